"""Everything that a report says in words: headline, chips, sentences, alarms and next steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from hcal.certificates.sentences import capital, estimate_words, points
from hcal.evaluation import Evaluation
from hcal.evaluation.assessment import Assessment, Grade
from hcal.evaluation.result import number_text
from hcal.reporting.content import TRIFLES, Content, ReportSide, Source, worse_metrics

#: The most names of classes in a sentence.
_NAMED: Final = 8


def percent(value: float, digits: int = 1) -> str:
    """Return a share in per cent; a small one with as many digits as say that it is not 0.

    >>> percent(0.12345).replace("\\N{NO-BREAK SPACE}", "_")
    '12.3_%'
    >>> percent(0.0000123).replace("\\N{NO-BREAK SPACE}", "_")
    '0.0012_%'
    """
    is_small = 0 < abs(100 * value) < 10.0**-digits / 2
    text = f"{100 * value:.2g}" if is_small else f"{100 * value:.{digits}f}"
    return f"{text}\N{NO-BREAK SPACE}%"


def number(value: float, share: bool = False) -> str:
    """Return a number, or a share in per cent, as every part of the page writes it; small ones with more digits.

    >>> number(0.04936, share=True).replace("\\N{NO-BREAK SPACE}", "_"), number(0.693147)
    ('4.94_%', '0.6931')
    """
    if share:
        return percent(value, 2 if abs(value) < 0.1 else 1)
    return number_text(value)


# -- headline and chips -----------------------------------------------------------------------------


def headline(content: Content, grade: Grade) -> str:
    """Return the verdict in one sentence."""
    assessment = content.final.evaluation.assessment
    if grade == "few" and content.seen:
        return "Cannot be told from rows that the calibrator learned from"
    if assessment is None:
        return _without_proof(content, grade)
    after = " after calibration" if content.after is not None else ""
    off = assessment.off_words
    if grade == "bad":
        return f"Do not rely on {content.event}{after}{_why_bad(content, assessment)}"
    parts = f", and {off}, are proven to be off" if off else ""
    if grade == "few":
        return (
            f"{_rows_of_proof(content)} cannot tell whether {content.event} is within the "
            f"tolerance of {points(assessment.tolerance)}{after}{parts}"
        )
    within = f"within {points(assessment.bound)}"
    if grade == "good":
        return f"{capital(content.event)} is right {within} on average{after}{parts}"
    return (
        f"Usable with care: {content.event} is {within} on average{after}, "
        f"but {_why_care(content, assessment)}"
    )


def _rows_of_proof(content: Content) -> str:
    """Return how many rows, in how many groups, a proof could count."""
    certificate = content.final.evaluation.certificate
    rows = content.n if certificate is None else certificate.n
    groups = content.rows.groups
    if groups is None:
        return f"{rows:,} rows"
    return f"{rows:,} rows in {len(np.unique(groups)):,} groups"


def _without_proof(content: Content, grade: Grade) -> str:
    """Return the headline of rows from which nothing can be proven: one row, or few groups of rows."""
    if grade == "bad":
        return f"Do not rely on {content.event}"
    if content.n == 1:
        return "One row tells nothing"
    return "Too few groups of rows to prove anything"


def _why_bad(content: Content, assessment: Assessment) -> str:
    """Return the reason for the grade "bad", after a colon; an empty string where the sentences have to say it."""
    if assessment.off_words:
        return f": {assessment.off_words}, are proven to be off"
    if content.final.evaluation.collapsed:
        return ": the predictor has collapsed"
    worse = worse_metrics(content)
    if worse:
        return f": calibration made {_listed(worse)} worse, beyond chance"
    if assessment.skill.status == "refuted":
        return ": it is worse than the base rates"
    return ""


def _why_care(content: Content, assessment: Assessment) -> str:
    if assessment.off_words:
        return f"{assessment.off_words}, are proven to be off"
    worse = worse_metrics(content)
    if worse:
        return f"calibration made {_listed(worse)} worse, beyond chance"
    if assessment.skill.status != "proven":
        return "it is not shown to know more than the base rates"
    share = percent(assessment.share_proven)
    return f"{share} of the rows are off by more than {points(assessment.tolerance)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(TRIFLES[name].title for name in names)


def chips(content: Content, assessment: Assessment, grade: Grade) -> dict[str, str]:
    """Return three short statements: how far off, how sure, what to do."""
    estimate = f"about {estimate_words(assessment.estimate)} on average (estimate)"
    estimate = estimate.replace("about less", "less")
    if assessment.estimate is None:
        estimate = f"at most {points(assessment.bound)} on average; too few rows for an estimate"
    if assessment.segments:
        worst = assessment.segments.segments[0]
        estimate += f"; in segment {worst.name} at least {points(worst.at_least)}"
    elif assessment.classes:
        worst = assessment.classes.classes[0]
        estimate += f"; for {worst.name} at least {points(worst.at_least)} in {worst.rows:,} rows"
    return {
        "How far off": estimate,
        "How sure": _how_sure(content, assessment),
        "What to do": _action(content, assessment, grade),
    }


def _how_sure(content: Content, assessment: Assessment) -> str:
    if content.seen:
        return "not at all: these are rows of the fit"
    tolerance = points(assessment.tolerance)
    bound = points(assessment.bound)
    far = f"off by more than {tolerance}"
    share = percent(assessment.share_proven)
    if assessment.segments:
        return f"{far} on average: proven for {assessment.segments.count}"
    if assessment.classes:
        return f"off by more than the class's tolerance: proven for {assessment.classes.count}"
    if assessment.within.status == "refuted":
        return f"{far} on average: proven for {share} of the rows"
    if assessment.within.status == "open" and bound == tolerance:
        return f"not yet: at most {bound} is proven, a little more than the tolerance"
    if assessment.within.status == "open":
        return f"not yet: at most {bound} is proven, {tolerance} is the tolerance"
    sure = f"at most {bound}, proven at {percent(content.options.confidence, 0)}"
    if assessment.share_proven > 0:
        sure += f"; {share} of the rows are {far}"
    return sure


def _action(content: Content, assessment: Assessment, grade: Grade) -> str:
    """Return what to do, in a few words."""
    if content.seen:
        return "evaluate on rows that the calibrator has not seen"
    if grade == "few":
        rows = rows_to_collect(content)
        return f"collect {rows}" if rows else "no practical number of rows would tell"
    if assessment.segments:
        return "calibrate the segments, each with its own correction"
    if grade == "bad" or worse_metrics(content):
        return _action_if_bad(content)
    if grade == "care" and assessment.skill.status != "proven":
        return "improve the model itself"
    if grade == "care":
        return "use it where the rows are right"
    return "use it, and watch it in operation"


def _action_if_bad(content: Content) -> str:
    if content.shift:
        return "correct for the class frequencies of these rows"
    return "calibrate it" if content.after is None else "try another method"


def rows_to_collect(content: Content) -> str:
    """Return in words how many more rows are needed; an empty string if no practical number is enough."""
    evaluation = content.final.evaluation
    assessment = evaluation.assessment
    certificate = evaluation.certificate
    if assessment is None or certificate is None:
        return "some more labelled rows"
    if assessment.rows_needed is not None:
        return f"about {assessment.rows_needed:,} labelled rows"
    never = certificate.headline.rows_needed(assessment.tolerance) is None
    return "" if never else "some more labelled rows"


# -- sentences --------------------------------------------------------------------------------------


def sentences(content: Content) -> list[str]:
    """Return the verdict in detail."""
    subject = "As it stands, the model" if content.after is not None else "The model"
    lines = [_state(content.before.evaluation, subject)]
    if content.after is not None:
        lines.append(_change(content, content.after))
    lines += _by_chance(content)
    if content.crossed is not None:
        lines += content.crossed.sentences
    assessment = content.final.evaluation.assessment
    if content.seen:
        lines.append("Rows of the fit are among these rows: on them nothing is proven. Use others.")
    elif assessment is not None:
        if content.sampled:
            lines.append(f"What follows is of the sample of {len(content.rows):,} rows.")
        lines += assessment.sentences
    return lines


def _state(evaluation: Evaluation, subject: str) -> str:
    rate = evaluation.positive
    if rate is not None:
        return (
            f"{subject} states a {rate.name} rate of {number(rate.stated, True)} on average; "
            f"{number(rate.observed, True)} was observed."
        )
    accuracy = evaluation.accuracy
    gap = evaluation.mean_confidence - accuracy
    direction = f"{'over' if gap > 0 else 'under'}-confident by {points(abs(gap))}"
    by_chance = 2 * np.sqrt(accuracy * (1 - accuracy) / evaluation.n)
    if abs(gap) <= by_chance:
        direction = "neither over- nor under-confident on average"
    return (
        f"{subject} is {direction}: it states {number(evaluation.mean_confidence, True)} on "
        f"average and is right {number(accuracy, True)} of the time."
    )


def _change(content: Content, after: ReportSide) -> str:
    """Return what calibration changed: the mean, the calibration error, and predicted classes."""
    title = "calibration" if content.calibrator is None else content.calibrator.title
    if title[1:2].islower():
        title = title[0].lower() + title[1:]
    rate = after.evaluation.positive
    stated = after.evaluation.mean_confidence if rate is None else rate.stated
    old = content.before.evaluation["ece_ew"]
    new = after.evaluation["ece_ew"]
    verb = "falls" if new < old else "rises"
    moved = f"{verb} from {number(old, True)} to {number(new, True)}"
    if number(old, True) == number(new, True):
        moved = f"stays at {number(new, True)}"
    return (
        f"After {title} it states {number(stated, True)} on average; the calibration error (ECE) "
        f"{moved}, and {_changed_classes(content)}."
    )


def _by_chance(content: Content) -> list[str]:
    """Return what the calibration error would be by chance; nothing for rows that depend on each other."""
    evaluation = content.final.evaluation
    level = evaluation.by_chance.get("ece_ew")
    if level is None:
        return []
    return [
        f"The calibration error (ECE) is {number(evaluation['ece_ew'], True)}; "
        f"{number(level, True)} would be "
        "expected by chance, of a calibrated model of the same sharpness on as many rows."
    ]


def _changed_classes(content: Content) -> str:
    if not content.changed:
        return f"none of the {content.n:,} predicted classes changes"
    verb = "cross 50 %" if content.binary else "change their class"
    return f"{content.changed:,} of {content.n:,} predictions {verb}"


# -- alarms -----------------------------------------------------------------------------------------


def alarms(content: Content, grade: Grade) -> list[str]:
    """Return what a reader must know before anything else."""
    evaluation = content.final.evaluation
    lines = [
        f"The predictor has collapsed: {reason}. Low class-wise errors mean nothing here."
        for reason in evaluation.collapse
    ]
    assessment = evaluation.assessment
    if assessment is not None and not content.seen:
        lines += _parts_off(assessment, grade)
    lines += [f"{capital(note)}." for note in content.notes]
    if content.calibrator is not None and not content.calibrator.converged_:
        lines.append("The calibrator's fit did not converge.")
    lines += [_worse_words(content, name) for name in worse_metrics(content)]
    if content.shift:
        lines.append(
            f"The class frequencies of these rows differ from those of the fit by "
            f"{points(content.shift)} in total. If that is so where the model is used, correct the "
            "probabilities for it; see below."
        )
    return lines + _absent_classes(content)


def _parts_off(assessment: Assessment, grade: Grade) -> list[str]:
    """Return what is proven about segments, and about classes unless they hold too few rows to matter."""
    lines = []
    if assessment.segments:
        lines.append(assessment.segments.words)
    if assessment.classes and grade != "good":
        lines.append(assessment.classes.words)
    return lines


def _worse_words(content: Content, name: str) -> str:
    """Return that calibration made a metric worse, with its values before and after."""
    share = name in ("accuracy", "ece_ew")
    before = number(content.before.evaluation[name], share)
    after = number(content.final.evaluation[name], share)
    title = capital(TRIFLES[name].title)
    return f"{title} is worse after calibration than before, beyond chance: {before} → {after}."


def _absent_classes(content: Content) -> list[str]:
    absent = [content.names[k] for k in np.flatnonzero(content.counts == 0)]
    if not absent:
        return []
    named = ", ".join(absent[:_NAMED]) + (" …" if len(absent) > _NAMED else "")
    where = "No row of the sample is" if content.sampled else "No row is"
    return [f"{where} of {len(absent):,} of {len(content.names):,} classes: {named}."]


# -- what now ---------------------------------------------------------------------------------------


def next_steps(content: Content, grade: Grade) -> list[tuple[str, str]]:
    """Return the next steps, the most useful first: a sentence, and a command for the file of this report."""
    source = content.source
    calibrated = content.after is not None
    file = "TEST.npz" if source.name == Source.name else f"{source.name} {source.options}".rstrip()
    model = source.model or "model.hcal"
    steps: list[tuple[str, str]] = []
    if content.shift and calibrated:
        steps.append(
            (
                "If the classes really come in other frequencies here, correct for it",
                f"hcal apply {model} {file} -o probs.npz --prior estimate",
            )
        )
    rows = rows_to_collect(content)
    if content.seen:
        command = f"hcal report OTHER.npz --model {model} -o report.html"
        steps.append(("Evaluate it on other rows", command))
    elif grade == "few" and rows:
        with_model = f" --model {model}" if calibrated else ""
        command = f"hcal report {file}{with_model} -o report.html"
        steps.append((f"Collect {rows}, then ask again", command))
    return steps + _steps_of_grade(content, grade, file, model)


def _steps_of_grade(content: Content, grade: Grade, file: str, model: str) -> list[tuple[str, str]]:
    """Return what to fit, or how to use what is good."""
    # A file with parts holds its own calibration rows.
    calibration = content.source.name if content.source.part else "CAL.npz"
    if grade != "good" and content.after is None:
        return [
            ("Calibrate on held-out rows", f"hcal fit {calibration} -o {model}"),
            ("Look at the result", f"hcal report {file} --model {model} -o report.html"),
        ]
    if grade == "bad":
        is_pool = content.calibrator is not None and content.calibrator.name == "pool"
        method = "sms" if is_pool else "pool"
        return [
            (
                "See which method does best on your rows",
                f"hcal compare {calibration} --methods pool,ts,svs,sms",
            ),
            ("Fit another method", f"hcal fit {calibration} -o {model} --method {method}"),
        ]
    if content.after is not None and grade in ("good", "care"):
        return [
            ("Apply it to new rows", f"hcal apply {model} NEW.npz -o probs.npz"),
            ("Watch it in operation", f"hcal watch NEW.npz --model {model} --state watch.json"),
        ]
    return []


def class_rows(content: Content) -> str:
    """Return the number of rows of each class in words; of many classes only the range."""
    counts = content.counts
    where = " (of the sample)" if content.sampled else ""
    if len(counts) > 12:
        return f"{counts.min():,} to {counts.max():,}, median {np.median(counts):,.0f}{where}"
    pairs = zip(content.names, counts, strict=True)
    return ", ".join(f"{name}: {count:,}" for name, count in pairs) + where
