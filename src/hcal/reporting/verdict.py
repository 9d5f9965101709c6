"""The verdict in words: how far off, how sure, what to do; and the commands that do it.

It follows the assessment that ``hcal.evaluate`` prints too (:mod:`hcal.evaluation.assessment`). A collapsed
predictor, a calibrator that made NLL worse, and rows of the fit overrule it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcal.certificates.sentences import capital, points
from hcal.evaluation import Evaluation
from hcal.evaluation.assessment import RULE, Grade
from hcal.reporting.charts import percent
from hcal.reporting.content import Content, ReportSide

#: A rise of NLL by more than this share, even at the lower end of its interval, is never good.
WORSE = 0.01
_DEFAULT = "pool"


@dataclass(frozen=True)
class ReportVerdict:
    """What the page says first.

    Attributes
    ----------
    grade : {"good", "care", "few", "bad"}
    headline : str
    chips : dict of str
        Three short statements: how far off, how sure, what to do.
    sentences, alarms : tuple of str
    rule : str
    """

    grade: Grade
    headline: str
    chips: dict[str, str]
    sentences: tuple[str, ...]
    alarms: tuple[str, ...]
    rule: str = RULE


def verdict_of(content: Content) -> ReportVerdict:
    """Return the verdict on the final probabilities of a report."""
    grade = _grade(content)
    subject = "As it stands, the model" if content.after else "The model"
    sentences = [_state(content.before.evaluation, subject)]
    if content.after is not None:
        sentences.append(_change(content, content.after))
    found = content.final.evaluation.assessment
    if content.crossed is not None:
        sentences += content.crossed.sentences
    if content.seen:
        sentences.append("Rows of the fit are among these rows: on them nothing is proven. Use others.")
    elif found is not None:
        sentences += found.sentences
    return ReportVerdict(
        grade, _headline(content, grade), _chips(content, grade), tuple(sentences), tuple(_alarms(content))
    )


def _grade(content: Content) -> Grade:
    found = content.final.evaluation.assessment
    if content.final.evaluation.collapsed or _worse(content):
        return "bad"
    return "few" if found is None or content.seen else found.grade  # a single row, or rows of the fit


def _worse(content: Content) -> bool:
    """Whether calibration made NLL worse, by more than a trifle and by more than chance."""
    if content.after is None:
        return False
    change = content.after.evaluation.differences["nll"]
    return change.low is not None and change.low > WORSE * change.before


def _headline(content: Content, grade: Grade) -> str:
    found = content.final.evaluation.assessment
    if content.seen and grade == "few":
        return "Cannot be told from rows that the calibrator learned from"
    if found is None or content.final.evaluation.collapsed:
        return f"Do not rely on {content.event}" if grade == "bad" else "One row tells nothing"
    after = " after calibration" if content.after is not None else ""
    within = f"within {points(found.tolerance)}"
    if grade == "care":
        why = "it is not shown to know more than the base rates"
        if found.skill.status == "proven":
            why = f"{percent(found.share_proven)} of the rows are off by more"
        return f"Usable with care: {content.event} is {within} on average{after}, but {why}"
    return {
        "good": f"{capital(content.event)} is right {within} on average{after}",
        "few": f"{content.n:,} rows cannot tell whether {content.event} is {within} of the truth{after}",
        "bad": f"Do not rely on {content.event}{after}",
    }[grade]


def _chips(content: Content, grade: Grade) -> dict[str, str]:
    found = content.final.evaluation.assessment
    if found is None:
        return {}
    sure = f"at most {points(found.bound)}, proven at {percent(content.ci, 0)}"
    if content.seen:
        sure = "not at all: these are rows of the fit"
    elif found.within.status == "refuted":
        sure = (
            f"{percent(found.share_far)} of rows are proven to be off by more than {points(found.tolerance)}"
        )
    elif found.within.status == "open":
        sure = f"not yet: at most {points(found.bound)} is proven, {points(found.tolerance)} is the tolerance"
    elif found.share_proven > 0:
        sure += f"; {percent(found.share_proven, 2)} of rows are off by more than {points(found.tolerance)}"
    return {
        "How far off": f"about {found.estimated} on average (estimate)".replace("about less", "less"),
        "How sure": sure,
        "What to do": _action(content, grade),
    }


def _action(content: Content, grade: Grade) -> str:
    """What to do, in a few words."""
    found = content.final.evaluation.assessment
    if content.seen:
        return "evaluate on rows that the calibrator has not seen"
    if grade == "few":
        rows = None if found is None else found.rows_needed
        return f"collect about {rows:,} labelled rows" if rows else "collect some more labelled rows"
    if grade == "bad" and content.shift:
        return "correct for the class frequencies of these rows"
    if grade == "bad":
        return "calibrate it" if content.after is None else "try another method"
    if grade == "care":
        skilled = found is not None and found.skill.status == "proven"
        return "use it where the rows are right" if skilled else "improve the model itself"
    return "use it, and watch it in operation"


def next_steps(content: Content, verdict: ReportVerdict) -> list[tuple[str, str]]:
    """Return what to do next, the most useful first: a sentence and a command that fits the file at hand."""
    s = content.source
    file = f"{s.name}{f' {s.options}' if s.options else ''}" if s.is_file else "TEST.npz"
    model = s.model or "model.hcal"
    cal_file = s.name if s.part else "CAL.npz"  # a file with parts holds its own calibration rows
    steps: list[tuple[str, str]] = []
    if content.shift and content.after is not None:
        words = "If the classes really come in other frequencies here, correct for it"
        steps.append((words, f"hcal apply {model} {file} -o probs.npz --prior estimate"))
    if content.seen:
        steps.append(("Evaluate it on other rows", f"hcal report OTHER.npz --model {model} -o report.html"))
    if verdict.grade == "few" and not content.seen:
        found = content.final.evaluation.assessment
        rows = found.rows_needed if found is not None else None
        many = f"about {rows:,} labelled rows" if rows else "some more labelled rows"
        with_model = f" --model {model}" if content.after is not None else ""
        steps.append((f"Collect {many}, then ask again", f"hcal report {file}{with_model} -o report.html"))
    if content.after is None and verdict.grade != "good":
        steps.append(("Calibrate on held-out rows", f"hcal fit {cal_file} -o {model}"))
        steps.append(("Look at the result", f"hcal report {file} --model {model} -o report.html"))
    if verdict.grade == "bad" and content.after is not None:
        used = "" if content.calibrator is None else content.calibrator.name
        method = _DEFAULT if used != _DEFAULT else "sms"
        steps.append(
            ("See which method does best on your rows", f"hcal compare {cal_file} --methods pool,ts,svs,sms")
        )
        steps.append(("Fit another method", f"hcal fit {cal_file} -o {model} --method {method}"))
    if content.after is not None and verdict.grade in ("good", "care"):
        steps.append(("Apply it to new rows", f"hcal apply {model} NEW.npz -o probs.npz"))
        steps.append(("Watch it in operation", f"hcal watch NEW.npz --model {model} --state watch.json"))
    return steps


def direction(found: Evaluation) -> str:
    """Return over-confident, under-confident or neither, as far as it exceeds chance."""
    gap, right = found.mean_confidence - found.accuracy, found.accuracy
    if abs(gap) <= 2 * np.sqrt(right * (1 - right) / found.n):
        return "neither over- nor under-confident on average"
    return f"{'over' if gap > 0 else 'under'}-confident by {100 * abs(gap):.1f} points"


def _state(found: Evaluation, subject: str) -> str:
    rate = found.positive
    if rate is not None:
        return (
            f"{subject} states a {rate.name} rate of {percent(rate.stated, 2)} on average; "
            f"{percent(rate.observed, 2)} was observed."
        )
    return (
        f"{subject} is {direction(found)}: it states {percent(found.mean_confidence)} on average "
        f"and is right {percent(found.accuracy)} of the time."
    )


def _change(content: Content, after: ReportSide) -> str:
    old, new = content.before.curves["smooth"].error, after.curves["smooth"].error
    method = content.calibrator.title if content.calibrator is not None else "calibration"
    title = method[0].lower() + method[1:] if method[1:2].islower() else method
    kept = f"none of the {len(content.y):,} predicted classes changes"
    if content.changed:
        verb = "cross 50 %" if content.binary else "change their class"
        kept = f"{content.changed:,} of {len(content.y):,} predictions {verb}"
    rate = after.evaluation.positive
    stated = percent(after.evaluation.mean_confidence) if rate is None else percent(rate.stated, 2)
    return (
        f"After {title} it states {stated}; the estimated calibration error "
        f"{'falls' if new < old else 'rises'} from {points(old)} to {points(new)}, and {kept}."
    )


def _alarms(content: Content) -> list[str]:
    alarms = [
        f"The predictor has collapsed: {r}. Low class-wise errors mean nothing here."
        for r in content.final.evaluation.collapse
    ]
    alarms += [f"{capital(note)}." for note in content.notes]
    if content.calibrator is not None and not content.calibrator.converged_:
        alarms.append("The calibrator's fit did not converge.")
    if _worse(content):
        alarms.append("NLL is worse after calibration than before, beyond chance.")
    if content.shift:
        alarms.append(
            f"The predicted class frequencies differ from those of the fit by {points(content.shift)} in "
            "total. If the classes come in other frequencies here, every probability is off; see below."
        )
    absent = [content.names[k] for k in np.flatnonzero(content.counts == 0)]
    if absent:
        shown = ", ".join(absent[:8]) + (" …" if len(absent) > 8 else "")
        alarms.append(f"No row of {len(absent)} of {len(content.names)} classes: {shown}.")
    return alarms
