"""A certificate in plain words: what is proven, what is refuted, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hcal.certificates.classes import class_tolerance
from hcal.certificates.event import EventCertificate, Refutation, part_name
from hcal.text import printable

if TYPE_CHECKING:
    from hcal.certificates.bounds import Gain
    from hcal.certificates.classes import ClassCertificates
    from hcal.certificates.result import Certificate, OutOfFoldCertificate

_SHOWN = 8


def points(value: float) -> str:
    """Write a difference of probabilities in points (hundredths).

    >>> points(0.0213), points(0.0002)
    ('2.1 points', '0.02 points')
    """
    return f"{100 * value:.1f} points" if value >= 0.005 else f"{100 * value:.2g} points"


def capital(text: str) -> str:
    """Return a text as a sentence begins: its first letter large, names inside it untouched.

    >>> capital("class McIntosh")
    'Class McIntosh'
    """
    return text[:1].upper() + text[1:]


def share(value: float) -> str:
    """Write a probability in per cent.

    >>> share(0.976)
    '97.6 %'
    """
    return f"{100 * value:.1f} %" if value >= 0.001 or value == 0 else f"{100 * value:.2g} %"


def rows_words(needed: int | None) -> str:
    """Say how many rows would tell.

    >>> rows_words(12000), rows_words(None)
    ('about 12,000 rows', 'more rows than is practical')
    """
    return "more rows than is practical" if needed is None else f"about {needed:,} rows"


def all_sentences(certificate: Certificate) -> list[str]:
    """Return the sentences of a certificate, the most important first."""
    c = certificate
    lines = [
        c.basis,
        f"{c.n:,} rows, {c.k} classes. All statements hold together with probability {100 * c.level:g} %.",
    ]
    for event in _spoken_of(c):
        limit = c.limit if event is c.headline else c.tolerance
        lines += event_sentences(event, limit, _name(c, event))
    if c.classes is not None and c.k > 2:
        lines += class_sentences(c.classes, c.tolerance)
    if c.gain is not None:
        lines.append(gain_sentence(c.gain))
    if c.groups:
        lines += group_sentences(c.groups)
    return [*lines, *(f"Not certified: {r}." for r in c.refused), *c.notes]


def _spoken_of(certificate: Certificate) -> list[EventCertificate]:
    """Return the events in the order of sentences: the headline first; of two classes no top label."""
    c = certificate
    others = [e for e in c.events.values() if e is not c.headline and not (c.k == 2 and e is c.top)]
    return [c.headline, *others]


def _name(certificate: Certificate, event: EventCertificate) -> str:
    """Return what a sentence calls an event: of two classes P(name)."""
    if certificate.k == 2 and certificate.classes is not None and event is certificate.headline:
        names, k = certificate.classes.names, int(certificate.classes.classes[0])
        return f"P({f'class {k}' if names is None else printable(names[k])})"
    return capital(event.name)


def event_sentences(event: EventCertificate, limit: float, title: str) -> list[str]:
    """Return what is estimated and proven about one event; ``limit`` is its tolerance."""
    lines = [
        _rate_sentence(title, event, event.overall),
        _error_sentence(title, event, f" (tolerance {points(limit)})"),
        part_sentence(event, limit),
        refutation_sentence(event),
    ]
    if event.discrete_error is not None:
        lines.append(
            f"{title}: its {len(event.table.count)} values are certified one by one; the ECE is at most "
            f"{points(event.discrete_error)}."
        )
    if event.assumed is not None:
        lines.append(assumed_sentence(event))
    if event.at_least > limit:
        lines.append(f"{title}: no number of rows would prove a bound of {points(limit)}.")
    elif event.bound > limit:
        many = capital(rows_words(event.rows_needed(limit)))
        lines.append(f"{many} would be needed to prove {points(limit)} for a calibrated predictor.")
    return [line for line in lines if line]


def out_of_fold_sentences(found: OutOfFoldCertificate) -> list[str]:
    """Return the sentences of an out-of-fold certificate."""
    main, folds = found.pooled.headline, len(found.folds)
    title = _name(found.pooled, main)
    wrong = sum(f.refuted for f in found.folds)
    return [
        f"Out-of-fold: every row's probability comes from a fit without its fold ({folds} folds). The "
        f"statements are about these fits on {100 - 100 / folds:.0f} % of the rows, not about one calibrator "
        "fitted on all of them. Assumed: rows are independent of each other.",
        f"{found.n:,} rows, {found.pooled.k} classes. All statements hold together with probability "
        f"{100 * found.level:g} %.",
        _rate_sentence(title, main, found.overall),
        _error_sentence(title, found),
        f"{wrong} of {folds} fits are proven to be off." if wrong else "No fit is proven to be off.",
    ]


def _rate_sentence(title: str, event: EventCertificate, overall: tuple[float, float]) -> str:
    low, high = (event.stated - end for end in reversed(overall))
    return (
        f"{title}: stated {share(event.stated)} on average, observed {share(event.observed)}; the true rate "
        f"lies between {share(max(low, 0.0))} and {share(min(high, 1.0))}."
    )


def _error_sentence(title: str, found: EventCertificate | OutOfFoldCertificate, limit: str = "") -> str:
    off = points(found.estimate) if found.estimate >= 0.0005 else "less than 0.1 points"
    far = share(found.share_far) if found.share_far >= 0.0005 else "0 %"
    return (
        f"{title}: estimated {off} off on average, at most {points(found.bound)} proven{limit}; an estimated "
        f"{far} of rows are off by more than 5 points."
    )


def part_sentence(event: EventCertificate, tolerance: float) -> str:
    """Return the bound at the finest resolution within the tolerance, or at the coarsest one."""
    within = [level for level, bound in event.at_most.items() if level and bound <= tolerance]
    level = max(within) if within else min(1, max(event.at_most))
    if not level:
        return f"Over all rows the average is off by at most {points(event.at_most[0])}."
    bound = points(event.at_most[level])
    return f"No {part_name(level)} of the predictions is off by more than {bound} on average."


def refutation_sentence(event: EventCertificate) -> str:
    """Return what is proven to be off, or that nothing is."""
    if event.refutation is not None:
        return f"Proven to be off: {_window(event.refutation, event.name)}."
    if event.band.refutes:
        return "Proven not to be exactly calibrated, by the curve; no single window is proven to be off."
    return "No window of neighbouring predictions is proven to be off."


def _window(found: Refutation, event: str) -> str:
    low, high = found.claims
    side = "at most" if found.direction == "over" else "at least"
    end = found.high if found.direction == "over" else found.low
    too = f"{found.direction}-confident"
    if event != "top label":
        too = f"stated too {'high' if found.direction == 'over' else 'low'}"
    return (
        f"the {found.rows:,} rows with probabilities from {low:.3g} to {high:.3g} state "
        f"{share(found.stated)} on average, and the true rate is {side} {share(end)} ({too} by at least "
        f"{points(found.at_least)})"
    )


def assumed_sentence(event: EventCertificate) -> str:
    """Return what follows from the assumption of a rising curve, the assumption in the sentence."""
    found = event.assumed
    if found is None:
        return ""
    if found.contradicted:
        return (
            "The assumption that the true rate never falls as the probability rises is refuted by these rows."
        )
    return (
        "If the true rate never falls as the probability rises (an assumption), the ECE is at most "
        f"{points(found.error)}."
    )


def class_sentences(classes: ClassCertificates, tolerance: float) -> list[str]:
    """Return how many classes are within their tolerance, the largest bound, and those proven wrong."""
    within = int((classes.smooth <= class_tolerance(classes.frequency, tolerance)).sum())
    many = len(classes.classes)
    if within == many:
        told = f"All {many} classes are proven to be within their tolerance."
    elif within:
        told = f"{within} of {many} classes are proven to be within their tolerance."
    elif len(classes.refutations) == many:
        told = f"None of the {many} classes could be certified."
    else:
        told = f"None of the {many} classes could be certified: too few rows."
    lines = [
        f"{told} No smooth calibration error exceeds {points(float(classes.smooth.max()))} "
        f"({classes.title(classes.worst)}); the mean bound is {points(float(classes.smooth.mean()))}."
    ]
    wrong = sorted(classes.refutations, key=lambda k: -classes.refutations[k].at_least)
    if not wrong:
        return [*lines, "No class is proven wrong."]
    named = ", ".join(f"{classes.title(k)} ({_direction(classes.refutations[k])})" for k in wrong[:_SHOWN])
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    first = f"{capital(classes.title(wrong[0]))}: {_window(classes.refutations[wrong[0]], 'class')}."
    return [*lines, f"Proven wrong: {named}{more}.", first]


def _direction(found: Refutation) -> str:
    return f"stated too {'high' if found.direction == 'over' else 'low'} by at least {points(found.at_least)}"


def gain_sentence(gain: Gain) -> str:
    """Return the certified gain over the baseline; about the population, not these rows."""
    if gain.at_least > 0:
        return (
            f"Against the baseline, the Brier score improves by at least {gain.at_least:.4f} in the "
            f"population (here {gain.before:.4f} → {gain.after:.4f})."
        )
    if gain.at_most < 0:
        return f"The baseline is better: its Brier score is lower by at least {-gain.at_most:.4f}."
    return (
        f"No gain over the baseline is proven: the Brier score changes by {-gain.at_most:+.4f} to "
        f"{-gain.at_least:+.4f} (negative is better)."
    )


def group_sentences(groups: tuple[EventCertificate, ...]) -> list[str]:
    """Return the groups that are proven off, or that none is."""
    wrong = [g for g in groups if g.proven]
    if not wrong:
        return [f"Groups: none of the {len(groups)} is proven to be off as a whole."]
    lines = []
    for g in wrong[:_SHOWN]:
        low, high = g.overall
        lines.append(
            f"Group {printable(g.name)} ({g.n:,} rows) is {g.proven}-confident by at least "
            f"{points(max(low, -high))}: it states {share(g.stated)} and {share(g.observed)} happened."
        )
    more = len(wrong) - _SHOWN
    return [*lines, *([f"{more} more groups are proven to be off."] if more > 0 else [])]


def table(certificate: Certificate) -> list[list[str]]:
    """Return the table of a certificate, its first row the heads."""
    rows = [["event", "rows", "off by at least", "off by at most", "smooth error at most", "rows for 0.01"]]
    for event in _spoken_of(certificate):
        for level, bound in event.at_most.items():
            here = event.windows.level == level
            least = float(event.windows.at_least[here].max())
            cells = ["", ""]
            if level == 0:
                needed = event.rows_needed(0.01)
                cells = [f"{event.bound:.4f}", "over 1,000,000" if needed is None else f"{needed:,}"]
            name = _name(certificate, event) if level == 0 else f"  each {part_name(level)}"
            mean = float(event.windows.rows[here].mean())
            rows.append([name, f"{mean:,.0f}", f"{least:.4f}", f"{bound:.4f}", *cells])
    c = certificate.classes
    if c is not None and certificate.k > 2:
        order = sorted(range(len(c.classes)), key=lambda i: (-c.at_least[i], -c.smooth[i]))
        for i in order[:_SHOWN]:
            most = max(abs(c.low[i]), abs(c.high[i]))
            name, *cells = c.title(int(c.classes[i])), f"{certificate.n:,}", f"{c.at_least[i]:.4f}"
            rows.append([name, *cells, f"{most:.4f}", f"{c.smooth[i]:.4f}", ""])
        if len(order) > _SHOWN:
            rows.append([f"  … {len(order) - _SHOWN} more classes", "", "", "", "", ""])
    for g in certificate.groups:
        low, high = g.overall
        rows.append([f"group {printable(g.name)}", f"{g.n:,}", f"{max(low, -high, 0.0):.4f}",
                     f"{max(abs(low), abs(high)):.4f}", f"{g.bound:.4f}", ""])  # fmt: skip
    return rows
