"""The verdict of the report in words, what to do next, and the commands for it.

It follows the assessment that ``hcal.evaluate`` also prints (:mod:`hcal.evaluation.assessment`), with three exceptions:
a collapsed predictor, a calibrator that made NLL worse, and rows that the calibrator was fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcal.certificates.sentences import capital, estimate_words, points
from hcal.evaluation import Evaluation
from hcal.evaluation.assessment import RULE, Assessment, Grade
from hcal.reporting.charts import percent
from hcal.reporting.content import Content, ReportSide, Source

#: If NLL rises by more than this share, even at the lower end of its interval, the grade is "bad".
WORSE = 0.01


@dataclass(frozen=True)
class ReportVerdict:
    """The verdict at the top of the page.

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
    evaluation, found = content.final.evaluation, content.final.evaluation.assessment
    sentences = [
        _state(
            content.before.evaluation, "As it stands, the model" if content.after else "The model"
        )
    ]
    if content.after is not None:
        sentences.append(_change(content, content.after))
    if content.crossed is not None:
        sentences += content.crossed.sentences
    if content.seen:
        sentences.append(
            "Rows of the fit are among these rows: on them nothing is proven. Use others."
        )
    elif found is not None:
        sentences += found.sentences
    grade: Grade = (
        "few" if found is None or content.seen else found.grade
    )  # one row, or rows of the fit
    if evaluation.collapsed or _worse(content):
        grade = "bad"
    headline, chips = "One row tells nothing", {}
    if found is not None:
        headline, chips = _headline(content, found, grade), _chips(content, found, grade)
    elif grade == "bad":
        headline = f"Do not rely on {content.event}"
    return ReportVerdict(grade, headline, chips, tuple(sentences), tuple(_alarms(content)))


def _worse(content: Content) -> bool:
    """Return whether calibration made NLL clearly worse: by more than ``WORSE``, and by more than chance."""
    if content.after is None:
        return False
    change = content.after.evaluation.differences["nll"]
    return change.low is not None and change.low > WORSE * change.before


def _headline(content: Content, found: Assessment, grade: Grade) -> str:
    after = " after calibration" if content.after is not None else ""
    within = f"within {points(found.tolerance)}"
    if grade == "few" and content.seen:
        return "Cannot be told from rows that the calibrator learned from"
    if grade == "care":
        why = "it is not shown to know more than the base rates"
        if found.skill.status == "proven":
            why = f"{percent(found.share_proven)} of the rows are off by more"
        return f"Usable with care: {content.event} is {within} on average{after}, but {why}"
    return {
        "good": f"{capital(content.event)} is right {within} on average{after}",
        "few": f"{len(content.y):,} rows cannot tell whether {content.event} is {within} of the truth{after}",
        "bad": f"Do not rely on {content.event}{after}",
    }[grade]


def _chips(content: Content, found: Assessment, grade: Grade) -> dict[str, str]:
    sure = f"at most {points(found.bound)}, proven at {percent(content.confidence, 0)}"
    far = f"off by more than {points(found.tolerance)}"
    if content.seen:
        sure = "not at all: these are rows of the fit"
    elif found.within.status == "refuted":
        sure = f"{far} on average: proven for {percent(found.share_proven)} of the rows"
    elif found.within.status == "open":
        sure = f"not yet: at most {points(found.bound)} is proven, {points(found.tolerance)} is the tolerance"
    elif found.share_proven > 0:
        sure += f"; {percent(found.share_proven, 2)} of rows are {far}"
    estimate = f"about {estimate_words(found.estimate)} on average (estimate)".replace(
        "about less", "less"
    )
    return {"How far off": estimate, "How sure": sure, "What to do": _action(content, found, grade)}


def _action(content: Content, found: Assessment, grade: Grade) -> str:
    """Return what to do, in a few words."""
    if content.seen:
        return "evaluate on rows that the calibrator has not seen"
    if grade == "few":
        return (
            f"collect {rows}"
            if (rows := _rows_to_collect(content))
            else "no practical number of rows would tell"
        )
    if grade == "bad" and content.shift:
        return "correct for the class frequencies of these rows"
    if grade == "bad":
        return "calibrate it" if content.after is None else "try another method"
    if grade == "care" and found.skill.status != "proven":
        return "improve the model itself"
    return (
        "use it where the rows are right"
        if grade == "care"
        else "use it, and watch it in operation"
    )


def _rows_to_collect(content: Content) -> str:
    """Return in words how many more rows are needed; an empty string if no practical number is enough."""
    found, certificate = content.final.evaluation.assessment, content.final.evaluation.certificate
    if found is not None and found.rows_needed is not None:
        return f"about {found.rows_needed:,} labelled rows"
    never = found and certificate and certificate.headline.rows_needed(found.tolerance) is None
    return "" if never else "some more labelled rows"


def next_steps(content: Content, verdict: ReportVerdict) -> list[tuple[str, str]]:
    """Return the next steps, the most useful first: a sentence, and a command for the file of this report."""
    s, grade, calibrated = content.source, verdict.grade, content.after is not None
    file = f"{s.name} {s.options}".rstrip() if s.name != Source.name else "TEST.npz"
    model = s.model or "model.hcal"
    cal_file = s.name if s.part else "CAL.npz"  # a file with parts holds its own calibration rows
    steps: dict[str, str] = {}
    if content.shift and calibrated:
        words = "If the classes really come in other frequencies here, correct for it"
        steps[words] = f"hcal apply {model} {file} -o probs.npz --prior estimate"
    if content.seen:
        steps["Evaluate it on other rows"] = f"hcal report OTHER.npz --model {model} -o report.html"
    elif grade == "few" and (rows := _rows_to_collect(content)):
        with_model = f" --model {model}" if calibrated else ""
        steps[f"Collect {rows}, then ask again"] = f"hcal report {file}{with_model} -o report.html"
    if grade != "good" and not calibrated:
        steps["Calibrate on held-out rows"] = f"hcal fit {cal_file} -o {model}"
        steps["Look at the result"] = f"hcal report {file} --model {model} -o report.html"
    elif grade == "bad":
        method = (
            "sms"
            if content.calibrator is not None and content.calibrator.name == "pool"
            else "pool"
        )
        compare = f"hcal compare {cal_file} --methods pool,ts,svs,sms"
        steps["See which method does best on your rows"] = compare
        steps["Fit another method"] = f"hcal fit {cal_file} -o {model} --method {method}"
    elif calibrated and grade in ("good", "care"):
        steps["Apply it to new rows"] = f"hcal apply {model} NEW.npz -o probs.npz"
        steps["Watch it in operation"] = f"hcal watch NEW.npz --model {model} --state watch.json"
    return list(steps.items())


def _state(found: Evaluation, subject: str) -> str:
    rate = found.positive
    if rate is not None:
        return (
            f"{subject} states a {rate.name} rate of {percent(rate.stated, 2)} on average; "
            f"{percent(rate.observed, 2)} was observed."
        )
    gap, right = found.mean_confidence - found.accuracy, found.accuracy
    direction = f"{'over' if gap > 0 else 'under'}-confident by {100 * abs(gap):.1f} points"
    if abs(gap) <= 2 * np.sqrt(right * (1 - right) / found.n):  # no more than chance
        direction = "neither over- nor under-confident on average"
    return (
        f"{subject} is {direction}: it states {percent(found.mean_confidence)} on average "
        f"and is right {percent(found.accuracy)} of the time."
    )


def _change(content: Content, after: ReportSide) -> str:
    old, new = content.before.curves["smooth"].error, after.curves["smooth"].error
    method = content.calibrator.title if content.calibrator is not None else "calibration"
    title = method[0].lower() + method[1:] if method[1:2].islower() else method
    kept = f"none of the {len(content.y):,} predicted classes changes"
    changed = int((content.before.probs.argmax(axis=1) != after.probs.argmax(axis=1)).sum())
    if changed:
        verb = "cross 50 %" if content.binary else "change their class"
        kept = f"{changed:,} of {len(content.y):,} predictions {verb}"
    rate = after.evaluation.positive
    stated = percent(after.evaluation.mean_confidence) if rate is None else percent(rate.stated, 2)
    verb, ends = "falls" if new < old else "rises", (points(old), points(new))
    moved = f"stays at {ends[0]}" if ends[0] == ends[1] else f"{verb} from {ends[0]} to {ends[1]}"
    return f"After {title} it states {stated}; the estimated calibration error {moved}, and {kept}."


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
