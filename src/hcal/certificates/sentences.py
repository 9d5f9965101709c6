"""The sentences of a certificate: what is proven, what is refuted, and what cannot be certified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hcal.certificates.event import EventCertificate, Refutation, class_tolerance, part_name
from hcal.text import printable

if TYPE_CHECKING:
    from hcal.certificates.bounds import Gain
    from hcal.certificates.result import Certificate, ClassCertificates, OutOfFoldCertificate

_SHOWN = 8
_HIGH_OR_LOW = {"over": "high", "under": "low"}


# -- wording shared with reports and evaluations ---------------------------------------------------


def points(value: float) -> str:
    """Write a difference of probabilities in points (hundredths).

    >>> points(0.0213), points(0.0002)
    ('2.1 points', '0.02 points')
    """
    return f"{100 * value:.1f} points" if value >= 0.005 else f"{100 * value:.2g} points"


def share(value: float) -> str:
    """Write a probability in per cent.

    >>> share(0.976), share(0.0004), share(0.0)
    ('97.6 %', '0.04 %', '0.0 %')
    """
    return f"{100 * value:.1f} %" if value >= 0.001 or value == 0 else f"{100 * value:.2g} %"


def capital(text: str) -> str:
    """Return a text with its first letter in upper case and the rest unchanged (names keep their case).

    >>> capital("class McIntosh")
    'Class McIntosh'
    """
    return text[:1].upper() + text[1:]


def estimate_words(value: float) -> str:
    """Write an estimated error in points; anything below 0.1 points is "less than 0.1 points".

    >>> estimate_words(0.001), estimate_words(0.0009)
    ('0.1 points', 'less than 0.1 points')
    """
    return points(value) if value >= 0.001 else "less than 0.1 points"


def error_words(found: Any, limit: float | None = None) -> str:
    """Write the estimated and the proven error of an event or an out-of-fold certificate, with its tolerance."""
    far = share(found.share_far) if found.share_far >= 0.001 else "less than 0.1 %"
    tolerance = "" if limit is None else f" (tolerance {points(limit)})"
    return (
        f"estimated {estimate_words(found.estimate)} off on average, at most {points(found.bound)} proven"
        f"{tolerance}; {far} of rows are estimated to be off by more than 5 points."
    )


def rows_words(event: EventCertificate, limit: float) -> str:
    """Write how many rows would be needed to prove that an event is within a tolerance.

    Examples
    --------
    >>> import numpy as np
    >>> from hcal.certificates import certify_event
    >>> found = certify_event("top label", np.full(1000, 0.9), np.arange(1000) % 10 > 0)
    >>> rows_words(found, 0.01)
    'About 15,000 rows would tell, if it is calibrated.'
    """
    needed = event.rows_needed(limit)
    many = "More rows than is practical" if needed is None else f"About {needed:,} rows"
    if (
        needed is not None and needed <= event.n
    ):  # a typical sample of this size would have been enough
        many = "A few more rows"
    return f"{many} would tell, if it is calibrated."


def window_words(found: Refutation) -> str:
    """Write the mean stated probability of a refuted window, and the bound on its true rate."""
    side, end = ("at most", found.high) if found.direction == "over" else ("at least", found.low)
    return f"state {share(found.stated)} on average, and the true rate is {side} {share(end)}"


def group_sentences(groups: tuple[EventCertificate, ...]) -> list[str]:
    """Return a sentence for each group that is proven to be off, or one that says that none is."""
    wrong = [g for g in groups if g.proven]
    if not wrong:
        return [f"Groups: none of the {len(groups)} is proven to be off as a whole."]
    lines = [
        f"Group {printable(g.name)} ({g.n:,} rows): its probabilities are too {_HIGH_OR_LOW[g.proven]} on average by "
        f"at least {points(g.proven_gap)}; it states {share(g.stated)} and {share(g.observed)} happened."
        for g in wrong[:_SHOWN]
    ]
    more = [f"{len(wrong) - _SHOWN} more groups are proven to be off."] if wrong[_SHOWN:] else []
    return [*lines, *more]


# -- certificates -----------------------------------------------------------------------------------


def all_sentences(c: Certificate) -> list[str]:
    """Return the sentences of a certificate, the most important first."""
    return [
        c.basis,
        _size(c.n, c.k, c.level),
        *event_sentences(c.headline, c.limit),
        *([] if c.assume is None else [_assumed_sentence(c.headline)]),
        *([] if c.classes is None else class_sentences(c.classes, c.tolerance)),
        *([] if c.gain is None else [gain_sentence(c.gain)]),
        *(group_sentences(c.groups) if c.groups else []),
        *(f"Not certified: {r}." for r in c.refused),
    ]


def out_of_fold_sentences(found: OutOfFoldCertificate) -> list[str]:
    """Return the sentences of an out-of-fold certificate."""
    folds, wrong = len(found.folds), found.refuted
    return [
        f"Out-of-fold: every row's probability comes from a fit without its fold ({folds} folds). The "
        f"statements are about these fits on {100 - 100 / folds:.0f} % of the rows, not about one calibrator "
        "fitted on all of them. Assumed: rows are independent of each other.",
        _size(found.n, found.k, found.level),
        _rate_sentence(found.pooled, found.overall),
        f"{capital(found.pooled.name)}: {error_words(found)}",
        f"{wrong} of {folds} fits are proven to be off."
        if wrong
        else "No fit is proven to be off.",
    ]


def _size(n: int, k: int, level: float) -> str:
    return (
        f"{n:,} rows, {k} classes. All statements hold together with probability {100 * level:g} %."
    )


def event_sentences(event: EventCertificate, limit: float) -> list[str]:
    """Return sentences on what is estimated and proven about one event; ``limit`` is its tolerance."""
    title = capital(event.name)
    lines = [
        _rate_sentence(event, event.overall),
        f"{title}: {error_words(event, limit)}",
        _part_sentence(event, limit),
        _refutation_sentence(event),
    ]
    if event.discrete_error is not None:
        lines.append(
            f"{title}: its {len(event.table.count)} values are certified one by one; the ECE is at most "
            f"{points(event.discrete_error)}."
        )
    if event.proven_gap > limit:
        lines.append(f"{title}: no number of rows would prove a bound of {points(limit)}.")
    elif event.bound > limit:
        lines.append(f"{title} within {points(limit)}: not proven. {rows_words(event, limit)}")
    return lines


def _rate_sentence(event: EventCertificate, overall: tuple[float, float]) -> str:
    low, high = max(event.stated - overall[1], 0.0), min(event.stated - overall[0], 1.0)
    return (
        f"{capital(event.name)}: stated {share(event.stated)} on average, observed {share(event.observed)}; "
        f"the true rate lies between {share(low)} and {share(high)}."
    )


def _part_sentence(event: EventCertificate, tolerance: float) -> str:
    """Write the bound of the finest level that lies within the tolerance, or of the halves if none does."""
    within = [level for level, bound in event.at_most.items() if level and bound <= tolerance]
    level = max(within) if within else min(1, max(event.at_most))
    bound = points(event.at_most[level])
    if not level:
        return f"Over all rows the average is off by at most {bound}."
    return f"No {part_name(level)} of the predictions is off by more than {bound} on average."


def _refutation_sentence(event: EventCertificate) -> str:
    """Write the window that is proven to be off, or that there is none."""
    if event.refutation is not None:
        return f"Proven to be off: {_window(event.refutation, event.name == 'top label')}."
    if event.band.refutes:
        return "Proven not to be exactly calibrated, by the curve; no single window is proven to be off."
    return "No window of neighbouring predictions is proven to be off."


def _assumed_sentence(event: EventCertificate) -> str:
    """Write the bound on the ECE under the monotone assumption, and name the assumption."""
    title, rises = capital(event.name), "the true rate never falls as the probability rises"
    if event.monotone.contradicted:
        return f"{title}: the assumption that {rises} is refuted by these rows."
    return (
        f"{title}: if {rises} (an assumption), the ECE is at most {points(event.monotone.error)}."
    )


def _window(found: Refutation, top: bool = False) -> str:
    low, high = found.claims
    return (
        f"the {found.rows:,} rows with probabilities from {low:.3g} to {high:.3g} {window_words(found)} "
        f"({_direction(found, top)})"
    )


def _direction(found: Refutation, top: bool = False) -> str:
    words = f"stated too {_HIGH_OR_LOW[found.direction]}"
    return (
        f"{f'{found.direction}-confident' if top else words} by at least {points(found.at_least)}"
    )


def class_sentences(classes: ClassCertificates, tolerance: float) -> list[str]:
    """Write how many classes are within their tolerance, the largest bound, and the classes proven wrong."""
    within = int((classes.bound <= class_tolerance(classes.frequency, tolerance)).sum())
    many = len(classes.bound)
    if within:
        some = f"All {many}" if within == many else f"{within} of {many}"
        told = f"{some} classes are proven to be within their tolerance."
    else:
        why = "" if len(classes.refutations) == many else ": too few rows"
        told = f"None of the {many} classes could be certified{why}."
    lines = [
        f"{told} No smooth calibration error exceeds {points(float(classes.bound.max()))} "
        f"({classes.title(classes.worst)}); the mean bound is {points(float(classes.bound.mean()))}."
    ]
    wrong = sorted(classes.refutations, key=lambda k: -classes.refutations[k].at_least)
    if not wrong:
        return [*lines, "No class is proven wrong."]
    named = ", ".join(
        f"{classes.title(k)} ({_direction(classes.refutations[k])})" for k in wrong[:_SHOWN]
    )
    more = f" and {len(wrong) - _SHOWN} more" if wrong[_SHOWN:] else ""
    first = f"{capital(classes.title(wrong[0]))}: {_window(classes.refutations[wrong[0]])}."
    return [*lines, f"Proven wrong: {named}{more}.", first]


def gain_sentence(gain: Gain) -> str:
    """Write the certified gain over the baseline, which is about the population and not only these rows."""
    here = f"in the population (here {gain.before:.4f} → {gain.after:.4f})"
    if gain.at_least > 0:
        return f"Against the baseline, the Brier score improves by at least {gain.at_least:.4f} {here}."
    if gain.at_most < 0:
        return f"The baseline is better: its Brier score is lower by at least {-gain.at_most:.4f} {here}."
    ends = f"between {-gain.at_most:+.4f} and {-gain.at_least:+.4f}"
    return f"No gain over the baseline is proven: the change of the Brier score lies {ends} {here}."


def table_lines(certificate: Certificate) -> list[str]:
    """Return a table as aligned lines: a header, every level of the headline's windows, and every group."""
    event, w = certificate.headline, certificate.headline.windows
    rows = [["event", "rows", "off by at least", "off by at most", "smooth error at most"]]
    for level, most in event.at_most.items():
        here = w.level == level
        name = f"  each {part_name(level)}" if level else capital(event.name)
        cells = [f"{w.rows[here].mean():,.0f}", f"{w.at_least[here].max():.4f}", f"{most:.4f}"]
        rows.append([name, *cells, "" if level else f"{event.bound:.4f}"])
    for g in certificate.groups:
        numbers = (g.proven_gap, max(map(abs, g.overall)), g.bound)
        rows.append([f"group {printable(g.name)}", f"{g.n:,}", *(f"{x:.4f}" for x in numbers)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
