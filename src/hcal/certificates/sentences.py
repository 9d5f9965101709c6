"""A certificate in plain words: what is proven, what is refuted, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hcal.certificates.event import EventCertificate, Refutation, part_name

if TYPE_CHECKING:
    from hcal.certificates.classes import ClassCertificates
    from hcal.certificates.gain import Gain
    from hcal.certificates.groups import GroupCertificate
    from hcal.certificates.result import Certificate

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


def all_sentences(certificate: Certificate) -> list[str]:
    """Return the sentences of a certificate, the most important first."""
    c = certificate
    lines = [
        f"{c.n:,} rows, {c.k} classes. All of this holds at once with probability {share(c.level)}, if these "
        "rows are independent of each other and were not used to make the predictor."
    ]
    for event in c.events.values():
        lines += event_sentences(event, c.tolerance)
    if c.classes is not None:
        lines += class_sentences(c.classes, c.n)
    if c.gain is not None:
        lines.append(gain_sentence(c.gain))
    if c.groups:
        lines += group_sentences(c.groups)
    return [*lines, *(f"Refused: {r}." for r in c.refused), *c.notes]


def event_sentences(event: EventCertificate, tolerance: float) -> list[str]:
    """Return what is proven about one event."""
    low, high = event.overall
    stated = event.table.prefix[0][-1] / event.table.n
    title = capital(event.name)
    lines = [
        f"{title}: {share(stated)} is stated on average; the truth lies between "
        f"{share(max(stated - high, 0.0))} and {share(min(stated - low, 1.0))}.",
        part_sentence(event, tolerance),
        f"{title}: the smooth calibration error is at most {points(event.smooth)}; any range of "
        f"probabilities, wherever its ends, adds at most {points(2 * event.band.reach)} of sampling error.",
        refutation_sentence(event),
    ]
    if event.discrete_error is not None:
        lines.append(
            f"{title}: its {len(event.table.count)} values are certified one by one; the ECE is at most "
            f"{points(event.discrete_error)}."
        )
    if event.assumed is not None:
        lines.append(assumed_sentence(event))
    if event.at_least > tolerance:
        lines.append(f"{title}: a bound of {points(tolerance)} is out of reach, with any number of rows.")
    elif event.smooth > tolerance:
        needed = event.rows_needed(tolerance)
        many = "no number of rows" if needed is None else f"about {needed:,} rows"
        lines.append(f"{title}: a calibrated predictor would need {many} for a bound of {points(tolerance)}.")
    return [line for line in lines if line]


def part_sentence(event: EventCertificate, tolerance: float) -> str:
    """Return the bound at the finest resolution within the tolerance, or at the coarsest one."""
    within = [level for level, bound in event.at_most.items() if level and bound <= tolerance]
    level = max(within) if within else min(1, max(event.at_most))
    if not level:
        return f"Overall it is off by at most {points(event.at_most[0])}."
    return f"No {part_name(level)} of your predictions is off by more than {points(event.at_most[level])}."


def refutation_sentence(event: EventCertificate) -> str:
    """Return what is refuted, or that nothing is."""
    found = event.refutation
    if found is None:
        if event.band.refutes:
            return (
                "Refuted: exact calibration (by the cumulative curve; no single window is proven to be off)."
            )
        return "Nothing is refuted: every window may be exactly right."
    words = _window(found, event.name)
    return f"Refuted: calibration to within h is false for every h below {found.at_least:.4f}: {words}."


def _window(found: Refutation, event: str) -> str:
    low, high = found.claims
    side = "at most" if found.direction == "over" else "at least"
    end = found.high if found.direction == "over" else found.low
    too = f"{found.direction}-confident"
    if event != "top label":
        too = f"stated too {'high' if found.direction == 'over' else 'low'}"
    return (
        f"the {found.rows:,} rows with probabilities from {low:.3g} to {high:.3g} state "
        f"{share(found.stated)}, the truth is {side} {share(end)} ({too})"
    )


def assumed_sentence(event: EventCertificate) -> str:
    """Return what follows from the assumption of a rising curve, the assumption in the sentence."""
    found = event.assumed
    if found is None:
        return ""
    if found.contradicted:
        return "The assumption that the truth never falls as the probability rises is itself refuted here."
    return (
        "If the truth never falls as the probability rises (an assumption), the whole curve lies in its "
        f"band, and the ECE is at most {points(found.error)}."
    )


def class_sentences(classes: ClassCertificates, n: int) -> list[str]:
    """Return the worst class, the mean, and the classes that are proven wrong."""
    if len(classes.classes) == 1:
        lines = [
            f"{_title(classes, int(classes.classes[0]))} (the positive one, "
            f"{share(float(classes.frequency[0]))} of rows): its smooth "
            f"calibration error is at most {points(float(classes.smooth[0]))}."
        ]
    else:
        lines = [
            f"Every class: no smooth calibration error exceeds {points(float(classes.smooth.max()))} "
            f"({classes.title(classes.worst)}); the mean bound is {points(float(classes.smooth.mean()))}."
        ]
    wrong = sorted(classes.refutations, key=lambda k: -classes.refutations[k].at_least)
    if not wrong:
        return [*lines, "No class is proven wrong."] if len(classes.classes) > 1 else lines
    named = ", ".join(f"{classes.title(k)} ({_direction(classes.refutations[k])})" for k in wrong[:_SHOWN])
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    lines.append(f"Proven wrong: {named}{more}.")
    lines.append(f"{_title(classes, wrong[0])}: {_window(classes.refutations[wrong[0]], 'class')}.")
    return lines


def _title(classes: ClassCertificates, k: int) -> str:
    return capital(classes.title(k))


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


def group_sentences(groups: tuple[GroupCertificate, ...]) -> list[str]:
    """Return the groups that are proven off, or that none is."""
    wrong = [g for g in groups if g.proven]
    if not wrong:
        return [f"Groups: none of the {len(groups)} is proven to be off as a whole."]
    lines = []
    for g in wrong[:_SHOWN]:
        low, high = g.certificate.overall
        lines.append(
            f"Group {g.name} ({g.certificate.n:,} rows) is {g.proven}-confident by at least "
            f"{points(max(low, -high))}: it states {share(g.stated)} and {share(g.observed)} happened."
        )
    more = len(wrong) - _SHOWN
    return [*lines, *([f"{more} more groups are proven to be off."] if more > 0 else [])]


def table(certificate: Certificate) -> list[list[str]]:
    """Return the table of a certificate, its first row the heads."""
    rows = [["event", "rows", "off by at least", "off by at most", "smooth error at most", "rows for 0.01"]]
    for event in certificate.events.values():
        for level, bound in event.at_most.items():
            here = event.windows.level == level
            least = float(event.windows.at_least[here].max())
            cells = ["", ""]
            if level == 0:
                needed = event.rows_needed(0.01)
                cells = [f"{event.smooth:.4f}", "never" if needed is None else f"{needed:,}"]
            name = event.name if level == 0 else f"  each {part_name(level)}"
            mean = float(event.windows.rows[here].mean())
            rows.append([name, f"{mean:,.0f}", f"{least:.4f}", f"{bound:.4f}", *cells])
    c = certificate.classes
    if c is not None:
        order = sorted(range(len(c.classes)), key=lambda i: (-c.at_least[i], -c.smooth[i]))
        for i in order[:_SHOWN]:
            most = max(abs(c.low[i]), abs(c.high[i]))
            name, *cells = c.title(int(c.classes[i])), f"{certificate.n:,}", f"{c.at_least[i]:.4f}"
            rows.append([name, *cells, f"{most:.4f}", f"{c.smooth[i]:.4f}", ""])
        if len(order) > _SHOWN:
            rows.append([f"  … {len(order) - _SHOWN} more classes", "", "", "", "", ""])
    for g in certificate.groups:
        low, high = g.certificate.overall
        rows.append([f"group {g.name}", f"{g.certificate.n:,}", f"{max(low, -high, 0.0):.4f}",
                     f"{max(abs(low), abs(high)):.4f}", f"{g.certificate.smooth:.4f}", ""])  # fmt: skip
    return rows
