"""The verdict in words: what is proven, what is refuted, what cannot be told and how many rows would tell.

It grades by the three statements of :mod:`hcal.evaluation.standing`, which ``hcal.evaluate`` prints too: the
worst of the top label, every class with its own base rate, the whole vector's test, and NLL against that of
the base rates. A collapsed predictor or a calibrator that made NLL worse overrules them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hcal.certificates import TOLERANCE
from hcal.reporting.charts import percent
from hcal.reporting.content import Content, ReportSide

Grade = Literal["good", "care", "few", "bad"]
#: A rise of NLL by more than this share, even at the lower end of its interval, is never safe.
WORSE = 0.01

RULE = (
    f"The rule. Tolerance: {100 * TOLERANCE:.0f} points; for a class of frequency π, 2·√(π(1−π)) times that. "
    "Safe: the smooth calibration error of the top label and of every class is certified to be within its "
    "tolerance, and NLL is better than that of the base rates. Not safe: some window of neighbours is proven "
    "to be off by more than the tolerance, or a class's mean by more than its own; or NLL is worse than that "
    f"of the base rates, or more than {100 * WORSE:.0f} % worse than before calibration; or the predictor "
    "has collapsed. With care: within tolerance, but not shown to know more than the base rates. Else it "
    "cannot be told."
)


@dataclass(frozen=True)
class ReportVerdict:
    """The grade, its headline, and the sentences under it."""

    grade: Grade
    headline: str
    sentences: tuple[str, ...]
    alarms: tuple[str, ...]
    rule: str = RULE


def judge_report(content: Content) -> ReportVerdict:
    """Return the verdict on the final probabilities of a report."""
    grade = _grade(content)
    sentences = [_state(content.before, "As it stands, the model" if content.after else "The model")]
    if content.after is not None:
        sentences.append(_change(content, content.after))
    standing = content.final.headline.standing
    if content.seen:
        sentences.append("Rows of the fit are among these rows: on them nothing is proven. Use others.")
    elif standing is not None:
        sentences += standing.sentences
    return ReportVerdict(grade, _headline(content, grade), tuple(sentences), tuple(_alarms(content)))


def _headline(content: Content, grade: Grade) -> str:
    after = "After calibration, it" if content.after is not None else "It"
    if grade == "few" and content.seen:
        return "Cannot be told from rows that the calibrator learned from"
    if grade == "few":
        rows = f"{content.final.metrics.n:,} rows"
        return f"Cannot be told from {rows} whether these probabilities can be relied on"
    return {
        "good": f"Safe to use: {after[0].lower() + after[1:]} is proven to be within "
        f"{100 * TOLERANCE:.0f} points of what it says, on average",
        "care": "Usable with care: calibrated, but not shown to know more than the base rates",
        "bad": "Do not rely on these probabilities",
    }[grade]


def _grade(content: Content) -> Grade:
    final = content.final
    standing = final.headline.standing
    if final.metrics.collapsed or _worse(content):
        return "bad"
    if standing is None or content.seen:  # a single row, or rows of the fit
        return "few"
    if "refuted" in (standing.tolerance.status, standing.knowledge.status):
        return "bad"
    if standing.tolerance.status == "open":
        return "few"
    return "good" if standing.knowledge.status == "proven" else "care"


def _worse(content: Content) -> bool:
    """Whether calibration made NLL worse, by more than a trifle and by more than chance."""
    if content.after is None:
        return False
    change = content.after.headline.differences["nll"]
    return change.low is not None and change.low > WORSE * change.before


def direction(side: ReportSide) -> str:
    """Return over-confident, under-confident or neither, as far as the certificate proves it."""
    certificate = side.headline.certificate
    top = None if certificate is None else certificate.top
    low, high = (-1.0, 1.0) if top is None else top.overall
    if low <= 0 <= high:
        return "neither proven over- nor under-confident on average"
    gap = side.over_confidence
    return f"{'over' if gap > 0 else 'under'}-confident by {100 * abs(gap):.1f} points"


def _state(side: ReportSide, subject: str) -> str:
    return (
        f"{subject} is {direction(side)}: it states {percent(side.metrics.mean_confidence)} on average "
        f"and is right {percent(side.metrics.accuracy)} of the time."
    )


def _change(content: Content, after: ReportSide) -> str:
    method = content.calibrator.title if content.calibrator is not None else "calibration"
    before_error, after_error = content.before.headline["ece_ew"], after.headline["ece_ew"]
    verb = "fell" if after_error < before_error else "rose"
    if content.changed:
        share = percent(content.changed / after.metrics.n, 2)
        what = "predictions changed side" if len(content.names) == 2 else "predicted classes changed"
        kept = f"{content.changed:,} of {after.metrics.n:,} {what} ({share})"
    else:
        kept = f"not one of the {after.metrics.n:,} predicted classes changed"
    return (
        f"After {method[0].lower() + method[1:] if method[1:2].islower() else method} it is "
        f"{direction(after)}: it states {percent(after.metrics.mean_confidence)}. The calibration error "
        f"{verb} from {percent(before_error)} to {percent(after_error)}, and {kept}."
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
