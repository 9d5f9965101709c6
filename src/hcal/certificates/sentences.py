"""The sentences of a certificate: what is proven, what is refuted, and what cannot be certified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hcal.certificates.event import (
    ESTIMATE_ROWS,
    EventCertificate,
    Refutation,
    class_tolerance,
    part_name,
)
from hcal.text import printable

if TYPE_CHECKING:
    from hcal.certificates.bounds import Gain
    from hcal.certificates.result import Certificate, ClassCertificates, OutOfFoldCertificate

_SHOWN = 8
#: The most subgroups that a table lists.
_MOST_LINES = 30
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


def estimate_words(value: float | None) -> str:
    """Write an estimated error in points; anything below 0.1 points is "less than 0.1 points".

    >>> estimate_words(0.001), estimate_words(0.0009), estimate_words(None)
    ('0.1 points', 'less than 0.1 points', 'not known')
    """
    if value is None:
        return "not known"
    return points(value) if value >= 0.001 else "less than 0.1 points"


class JudgedError(Protocol):
    """An event, or a certificate, with what is estimated and proven of its error."""

    @property
    def estimate(self) -> float | None:
        """The estimated error; None where there are too few rows."""

    @property
    def share_far(self) -> float | None:
        """The estimated share of rows that are off by more than 5 points."""

    @property
    def bound(self) -> float:
        """The proven error."""


def error_words(certificate: JudgedError, limit: float | None = None) -> str:
    """Write the estimated and the proven error of an event or an out-of-fold certificate, with its tolerance."""
    tolerance = "" if limit is None else f" (tolerance {points(limit)})"
    if certificate.estimate is None:
        return (
            f"at most {points(certificate.bound)} off on average, proven{tolerance}; "
            f"an estimate needs at least {ESTIMATE_ROWS} rows."
        )
    far = "less than 0.1 %"
    if certificate.share_far is not None and certificate.share_far >= 0.001:
        far = share(certificate.share_far)
    return (
        f"estimated {estimate_words(certificate.estimate)} off on average, "
        f"at most {points(certificate.bound)} proven{tolerance}; "
        f"{far} of rows are estimated to be off by more than 5 points."
    )


def rows_words(event: EventCertificate, limit: float) -> str:
    """Write how many rows would be needed to prove that an event is within a tolerance.

    Examples
    --------
    >>> import numpy as np
    >>> from hcal.certificates import certify_event
    >>> event = certify_event("top label", np.full(1000, 0.9), np.arange(1000) % 10 > 0)
    >>> rows_words(event, 0.01)
    'About 15,000 rows would tell, if it is calibrated.'
    """
    needed = event.rows_needed(limit)
    if needed is None:
        count = "More rows than is practical"
    elif needed <= event.n:  # a typical sample of this size would have been enough
        count = "A few more rows"
    else:
        count = f"About {needed:,} rows"
    return f"{count} would tell, if it is calibrated."


def window_words(window: Refutation) -> str:
    """Write the mean stated probability of a refuted window, and the bound on its true rate."""
    rate = f"at least {share(window.low)}"
    if window.direction == "over":
        rate = f"at most {share(window.high)}"
    return f"state {share(window.stated)} on average, and the true rate is {rate}"


def group_sentences(subgroups: tuple[EventCertificate, ...]) -> list[str]:
    """Return a sentence for each subgroup that is proven to be off, or one that says that none is."""
    wrong = [subgroup for subgroup in subgroups if subgroup.proven]
    if not wrong:
        return [f"None of the {len(subgroups)} segments is proven to be off as a whole."]
    lines = [_group_sentence(subgroup) for subgroup in wrong[:_SHOWN]]
    if len(wrong) > _SHOWN:
        lines.append(f"{len(wrong) - _SHOWN} more segments are proven to be off.")
    return lines


def subgroup_verdict(subgroup: EventCertificate, limit: float) -> str:
    """Return what is proven about a subgroup, or how many more rows like its own would tell."""
    if subgroup.proven:
        return (
            f"proven too {_HIGH_OR_LOW[subgroup.proven]} by at least {points(subgroup.proven_gap)}"
        )
    if subgroup.bound <= limit:
        return "proven to be within the tolerance"
    needed = subgroup.rows_needed(limit)
    if needed is None:
        return "may be right; no practical number of rows would tell"
    missing = needed - subgroup.n
    if missing <= 1:
        return "may be right; a few more rows would tell"
    return f"may be right; {missing:,} more rows would tell"


def subgroup_table(subgroups: tuple[EventCertificate, ...], limit: float) -> list[str]:
    """Return a table of subgroups as aligned lines, the worst first."""
    rows = [["segment", "rows", "stated", "observed", "off by, in points", "verdict"]]
    rows += [_subgroup_numbers(subgroup, limit) for subgroup in subgroups[:_MOST_LINES]]
    lines = _aligned(rows, left={0, 5})
    if len(subgroups) > _MOST_LINES:
        lines.append(f"… and {len(subgroups) - _MOST_LINES:,} more segments")
    return lines


def _subgroup_numbers(subgroup: EventCertificate, limit: float) -> list[str]:
    low, high = subgroup.overall
    return [
        printable(subgroup.name),
        f"{subgroup.n:,}",
        share(subgroup.stated),
        share(subgroup.observed),
        f"{100 * low:+.1f} to {100 * high:+.1f}",
        subgroup_verdict(subgroup, limit),
    ]


def _group_sentence(subgroup: EventCertificate) -> str:
    return (
        f"Segment {printable(subgroup.name)} ({subgroup.n:,} rows): its probabilities are too "
        f"{_HIGH_OR_LOW[subgroup.proven]} on average by at least {points(subgroup.proven_gap)}; "
        f"it states {share(subgroup.stated)} and {share(subgroup.observed)} happened."
    )


# -- certificates -----------------------------------------------------------------------------------


def all_sentences(certificate: Certificate) -> list[str]:
    """Return the sentences of a certificate, the most important first."""
    lines = [
        certificate.basis,
        _size(certificate.n, certificate.k, certificate.confidence),
        *event_sentences(certificate.headline, certificate.limit),
    ]
    if certificate.n_groups is not None:
        lines.append(
            "Rows of one group may depend on each other in any way, so the bounds count groups "
            "instead of rows."
        )
    if certificate.assume is not None:
        lines.append(_assumed_sentence(certificate.headline))
    if certificate.classes is not None:
        lines += class_sentences(certificate.classes, certificate.tolerance)
    if certificate.gain is not None:
        lines.append(gain_sentence(certificate.gain))
    if certificate.subgroups:
        lines += group_sentences(certificate.subgroups)
    return [*lines, *(f"Not certified: {reason}." for reason in certificate.refused)]


def out_of_fold_sentences(certificate: OutOfFoldCertificate) -> list[str]:
    """Return the sentences of an out-of-fold certificate."""
    folds = len(certificate.folds)
    wrong = certificate.refuted
    verdict = "No fit is proven to be off."
    if wrong:
        verdict = f"{wrong} of {folds} fits are proven to be off."
    return [
        f"Out-of-fold: every row's probability comes from a fit without its fold ({folds} folds). "
        f"The statements are about these fits on {100 - 100 / folds:.0f} % of the rows, not about "
        "one calibrator fitted on all of them. Assumed: rows are independent of each other.",
        _size(certificate.n, certificate.k, certificate.confidence),
        _rate_sentence(certificate.pooled, certificate.overall),
        f"{capital(certificate.pooled.name)}: {error_words(certificate)}",
        verdict,
    ]


def _size(n: int, k: int, confidence: float) -> str:
    return (
        f"{n:,} rows, {k} classes. All statements hold together with probability "
        f"{100 * confidence:g} %."
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
            f"{title}: its {len(event.table.count)} values are certified one by one; the ECE is "
            f"at most {points(event.discrete_error)}."
        )
    if event.proven_gap > limit:
        lines.append(f"{title}: no number of rows would prove a bound of {points(limit)}.")
    elif event.bound > limit:
        lines.append(f"{title} within {points(limit)}: not proven. {rows_words(event, limit)}")
    return lines


def _rate_sentence(event: EventCertificate, overall: tuple[float, float]) -> str:
    low = max(event.stated - overall[1], 0.0)
    high = min(event.stated - overall[0], 1.0)
    return (
        f"{capital(event.name)}: stated {share(event.stated)} on average, observed "
        f"{share(event.observed)}; the true rate lies between {share(low)} and {share(high)}."
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
        return (
            "Proven not to be exactly calibrated, by the curve; no single window is proven to be "
            "off."
        )
    return "No window of neighbouring predictions is proven to be off."


def _assumed_sentence(event: EventCertificate) -> str:
    """Write the bound on the ECE under the monotone assumption, and name the assumption."""
    title = capital(event.name)
    rises = "the true rate never falls as the probability rises"
    if event.monotone.contradicted:
        return f"{title}: the assumption that {rises} is refuted by these rows."
    return (
        f"{title}: if {rises} (an assumption), the ECE is at most {points(event.monotone.error)}."
    )


def _window(window: Refutation, top: bool = False) -> str:
    low, high = window.claims
    return (
        f"the {window.rows:,} rows with probabilities from {low:.3g} to {high:.3g} "
        f"{window_words(window)} ({_direction(window, top)})"
    )


def _direction(window: Refutation, top: bool = False) -> str:
    words = f"stated too {_HIGH_OR_LOW[window.direction]}"
    if top:
        words = f"{window.direction}-confident"
    return f"{words} by at least {points(window.at_least)}"


def class_sentences(classes: ClassCertificates, tolerance: float) -> list[str]:
    """Write how many classes are within their tolerance, the largest bound, and the classes proven wrong."""
    limits = class_tolerance(classes.frequency, tolerance)
    largest = points(float(classes.bound.max()))
    mean = points(float(classes.bound.mean()))
    within = int((classes.bound <= limits).sum())
    lines = [
        f"{_within_words(within, classes)} No smooth calibration error exceeds {largest} "
        f"({classes.title(classes.worst)}); the mean bound is {mean}."
    ]
    wrong = sorted(classes.refutations, key=lambda k: -classes.refutations[k].at_least)
    if not wrong:
        return [*lines, "No class is proven wrong."]
    named = [f"{classes.title(k)} ({_direction(classes.refutations[k])})" for k in wrong[:_SHOWN]]
    rest = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    first = f"{capital(classes.title(wrong[0]))}: {_window(classes.refutations[wrong[0]])}."
    return [*lines, f"Proven wrong: {', '.join(named)}{rest}.", first]


def _within_words(within: int, classes: ClassCertificates) -> str:
    count = len(classes.bound)
    if within == count:
        return f"All {count} classes are proven to be within their tolerance."
    if within:
        return f"{within} of {count} classes are proven to be within their tolerance."
    reason = "" if len(classes.refutations) == count else ": too few rows"
    return f"None of the {count} classes could be certified{reason}."


def gain_sentence(gain: Gain) -> str:
    """Write the certified gain over the baseline, which is about the population and not only these rows."""
    population = f"in the population (here {gain.before:.4f} → {gain.after:.4f})"
    if gain.at_least > 0:
        at_least = f"{gain.at_least:.4f} {population}"
        return f"Against the baseline, the Brier score improves by at least {at_least}."
    if gain.at_most < 0:
        at_least = f"{-gain.at_most:.4f} {population}"
        return f"The baseline is better: its Brier score is lower by at least {at_least}."
    ends = f"between {-gain.at_most:+.4f} and {-gain.at_least:+.4f}"
    change = f"the change of the Brier score lies {ends} {population}"
    return f"No gain over the baseline is proven: {change}."


# -- the table --------------------------------------------------------------------------------------


def table_lines(certificate: Certificate) -> list[str]:
    """Return a table as aligned lines: a header, every level of the headline's windows, and every subgroup."""
    rows = [["event", "rows", "off by at least", "off by at most", "smooth error at most", ""]]
    rows += [_level_cells(certificate.headline, level) for level in certificate.headline.at_most]
    rows += [_subgroup_cells(subgroup, certificate.limit) for subgroup in certificate.subgroups]
    return _aligned(rows, left={0, 5})


def _aligned(rows: list[list[str]], left: set[int]) -> list[str]:
    """Return rows of cells as lines; the columns in ``left`` begin, and the others end, at one place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _level_cells(event: EventCertificate, level: int) -> list[str]:
    windows = event.windows
    of_level = windows.level == level
    rows = f"{windows.rows[of_level].mean():,.0f}"
    least = f"{windows.at_least[of_level].max():.4f}"
    most = f"{event.at_most[level]:.4f}"
    if level:
        return [f"  each {part_name(level)}", rows, least, most, "", ""]
    return [capital(event.name), rows, least, most, f"{event.bound:.4f}", ""]


def _subgroup_cells(subgroup: EventCertificate, limit: float) -> list[str]:
    low, high = subgroup.overall
    numbers = (subgroup.proven_gap, max(abs(low), abs(high)), subgroup.bound)
    cells = [f"{number:.4f}" for number in numbers]
    verdict = subgroup_verdict(subgroup, limit)
    return [f"segment {printable(subgroup.name)}", f"{subgroup.n:,}", *cells, verdict]
