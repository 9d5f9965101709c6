"""The verdict in words: what was wrong, what calibration changed, whether the result is safe to use.

The grade rests on the interval of the expected calibration error: few rows can neither earn a good grade nor
be condemned by luck; a collapsed predictor or a proper score that got worse overrules it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hcal.report.charts import percent
from hcal.report.content import Content, Side

Grade = Literal["good", "care", "few", "bad"]
#: Largest mean gap between confidence and accuracy, in probability, for the two better grades.
GOOD, CARE = 0.02, 0.05
#: A rise of NLL by more than this share, even at the lower end of its interval, is never safe.
WORSE = 0.01


@dataclass(frozen=True)
class Verdict:
    """The grade, its headline, and the sentences under it."""

    grade: Grade
    headline: str
    sentences: tuple[str, ...]
    alarms: tuple[str, ...]


def judge(content: Content) -> Verdict:
    """Return the verdict on the final probabilities of a report.

    Parameters
    ----------
    content : Content

    Returns
    -------
    Verdict
    """
    alarms = _alarms(content)
    grade = _grade(content)
    sentences = [_state(content.before, "As it stands, the model" if content.after else "The model")]
    if content.after is not None:
        sentences.append(_change(content, content.after))
    sentences.append(_use(content, grade))
    return Verdict(grade, _HEADLINES[grade, content.after is not None], tuple(sentences), tuple(alarms))


_HEADLINES: dict[tuple[Grade, bool], str] = {
    ("good", True): "Safe to use: after calibration, what it says is what you get",
    ("care", True): "Usable with care: calibration left a visible gap",
    ("few", True): "Too few rows to tell whether these probabilities can be relied on",
    ("bad", True): "Do not rely on these probabilities",
    ("good", False): "Safe to use: what it says is what you get",
    ("care", False): "Usable with care: there is a visible gap",
    ("few", False): "Too few rows to tell whether these probabilities can be relied on",
    ("bad", False): "Do not rely on these probabilities",
}


def _ends(side: Side) -> tuple[float, float]:
    """Both ends of the interval of the calibration error; a single row has none and tells nothing."""
    return side.headline.interval("ece_ew") or (0.0, 1.0)


def _grade(content: Content) -> Grade:
    final = content.final
    if final.metrics.collapsed or _worse(content):
        return "bad"
    low, upper = _ends(final)
    if upper > CARE:
        return "few" if low <= GOOD else "bad"
    return "good" if upper <= GOOD else "care"


def _worse(content: Content) -> bool:
    """Whether calibration made NLL worse, by more than a trifle and by more than chance."""
    if content.after is None:
        return False
    change = content.after.headline.differences["nll"]
    return change.low is not None and change.low > WORSE * change.before


def direction(side: Side) -> str:
    """Return over-confident, under-confident or neither, judged against the noise of the accuracy.

    Parameters
    ----------
    side : Side

    Returns
    -------
    str
    """
    accuracy = side.metrics.accuracy
    noise = (accuracy * (1 - accuracy) / side.metrics.n) ** 0.5
    gap = side.over_confidence
    if abs(gap) <= max(2 * noise, 0.002):
        return "neither over- nor under-confident on average"
    return f"{'over' if gap > 0 else 'under'}-confident by {100 * abs(gap):.1f} points"


def _state(side: Side, subject: str) -> str:
    return (
        f"{subject} is {direction(side)}: it states {percent(side.metrics.mean_confidence)} on average "
        f"and is right {percent(side.metrics.accuracy)} of the time."
    )


def _change(content: Content, after: Side) -> str:
    method = content.calibrator.title if content.calibrator is not None else "calibration"
    before_error, after_error = content.before.headline["ece_ew"], after.headline["ece_ew"]
    verb = "fell" if after_error < before_error else "rose"
    if content.changed:
        share = percent(content.changed / after.metrics.n, 2)
        kept = f"{content.changed:,} predicted classes changed ({share})"
    else:
        kept = f"not one of the {after.metrics.n:,} predicted classes changed"
    return (
        f"After {method[0].lower() + method[1:] if method[1:2].islower() else method} it is "
        f"{direction(after)}: it states {percent(after.metrics.mean_confidence)}. The calibration error "
        f"{verb} from {percent(before_error)} to {percent(after_error)}, and {kept}."
    )


def _use(content: Content, grade: Grade) -> str:
    low, upper = _ends(content.final)
    if grade == "good":
        return (
            f"On data like these {content.final.metrics.n:,} rows, a stated confidence can be read as a "
            f"frequency: the mean gap is at most {percent(upper)} ({percent(content.ci, 0)} interval)."
        )
    if grade == "care":
        more = " More rows would tell: it may also be small." if low <= GOOD else ""
        return (
            f"The mean gap between stated confidence and frequency may be as large as {percent(upper)}: "
            f"good enough to rank and to flag, not to set fine thresholds.{more}"
        )
    if content.final.metrics.collapsed:
        return "The probabilities say next to nothing, whatever the class-wise errors below look like."
    if _worse(content):
        return "The calibrator made the log-likelihood worse on these rows: it does not fit this data."
    return (
        f"The mean gap between stated confidence and frequency lies between {percent(low)} and "
        f"{percent(upper)} ({percent(content.ci, 0)} interval)."
    )


def _alarms(content: Content) -> list[str]:
    alarms = list(content.final.metrics.warnings)
    alarms += [note[0].upper() + note[1:] + "." for note in content.notes]
    if content.calibrator is not None and not content.calibrator.converged_:
        alarms.append("The calibrator's fit did not converge.")
    if _worse(content):
        alarms.append("NLL is worse after calibration than before, beyond chance.")
    if content.absent:
        shown = ", ".join(content.absent[:8]) + (" …" if len(content.absent) > 8 else "")
        alarms.append(f"No row of {len(content.absent)} of {len(content.names)} classes: {shown}.")
    return alarms
