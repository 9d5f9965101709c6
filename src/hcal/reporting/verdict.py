"""The verdict of the report, as an object: grade, headline, sentences and alarms.

It follows the assessment that ``hcal.evaluate`` also prints (:mod:`hcal.evaluation.assessment`), with three exceptions:
a collapsed predictor, a calibrator that made a metric worse, and rows that the calibrator was fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hcal.evaluation.assessment import RULE, Grade
from hcal.evaluation.proven_off import ClassesOff, SegmentsOff
from hcal.reporting import sentences
from hcal.reporting.changes import SCORES, worse_metrics
from hcal.reporting.content import Content
from hcal.results import Result
from hcal.text import JsonObject


@dataclass(frozen=True, repr=False)
class ReportVerdict(Result):
    """The verdict at the top of the page.

    Attributes
    ----------
    grade : {"good", "care", "few", "bad"}
    headline : str
    chips : dict of str
        Three short statements: how far off, how sure, what to do.
    sentences, alarms : tuple of str
    n : int
        How many rows were measured.
    values : dict of float
        Every metric of the page by its name: of the probabilities after calibration, if there is a calibrator.
    by_chance : dict of float
        What a calibrated model of the same sharpness would show on as many rows, of each plug-in error.
    changes : dict of float
        By how much calibration changed each headline metric; empty without a calibrator.
    segments : SegmentsOff or None
        The segments (``by=``) that are proven to be off, with how many rows they hold.
    classes : ClassesOff or None
        The classes that are proven to be off; None with two classes.
    worse : tuple of str
        The headline metrics that calibration is proven to have made worse.
    rule : str
    """

    schema: ClassVar[str] = "hcal/report/1"

    grade: Grade
    headline: str
    chips: dict[str, str]
    sentences: tuple[str, ...]
    alarms: tuple[str, ...]
    n: int = 0
    values: dict[str, float] = field(default_factory=dict)
    changes: dict[str, float] = field(default_factory=dict)
    segments: SegmentsOff | None = None
    classes: ClassesOff | None = None
    worse: tuple[str, ...] = ()
    rule: str = RULE
    by_chance: dict[str, float] = field(default_factory=dict)

    @property
    def segments_off(self) -> int:
        """How many segments are proven to be off by more than the tolerance."""
        return 0 if self.segments is None else len(self.segments.segments)

    def gate_values(self) -> dict[str, float | str]:
        """Return the values that :func:`hcal.require` can name."""
        changes = {f"change({name})": change for name, change in self.changes.items()}
        parts: dict[str, float | str] = {"worse": float(len(self.worse))}
        if self.segments is not None:
            parts["segments_off"] = float(self.segments_off)
            parts["segments_off_share"] = self.segments.share
        if self.classes is not None:
            parts["classes_off"] = float(len(self.classes.classes))
            parts["classes_off_share"] = self.classes.share_proven
        return {"grade": self.grade, **self.values, **changes, **parts}

    def to_records(self) -> list[JsonObject]:
        """Return one row a metric."""
        return [
            {"metric": name, "value": value, "chance": self.by_chance.get(name)}
            for name, value in self.values.items()
        ]

    def _content(self) -> JsonObject:
        content = super()._content()
        if self.segments is not None:
            content["segments"] = {
                "off": [vars(segment) for segment in self.segments.segments],
                "count": len(self.segments.segments),
                "of_segments": self.segments.of_segments,
                "rows": self.segments.rows,
                "of_rows": self.segments.of_rows,
                "tolerance": self.segments.tolerance,
            }
        if self.classes is not None:
            content["classes"] = {
                "off": [vars(part) for part in self.classes.classes],
                "count": len(self.classes.classes),
                "of_classes": self.classes.of_classes,
                "rows": self.classes.rows,
                "of_rows": self.classes.of_rows,
            }
        return content

    def _headline(self) -> list[str]:
        return [f"{self.grade}: {self.headline}", *self.alarms]


def verdict_of(content: Content) -> ReportVerdict:
    """Return the verdict on the final probabilities of a report."""
    evaluation = content.final.evaluation
    assessment = evaluation.assessment
    grade = _grade(content)
    return ReportVerdict(
        grade=grade,
        headline=sentences.headline(content, grade),
        chips={} if assessment is None else sentences.chips(content, assessment, grade),
        sentences=tuple(sentences.sentences(content)),
        alarms=tuple(sentences.alarms(content, grade)),
        n=content.n,
        values=evaluation.values,
        changes={name: change.change for name, change in evaluation.differences.items()},
        segments=None if assessment is None else assessment.segments,
        classes=None if assessment is None else assessment.classes,
        worse=tuple(worse_metrics(content)),
        by_chance=evaluation.by_chance,
    )


def _grade(content: Content) -> Grade:
    """Return the grade of the assessment, lowered where the predictor collapsed or calibration did harm."""
    evaluation = content.final.evaluation
    worse = worse_metrics(content)
    if evaluation.collapsed or any(name in SCORES for name in worse):
        return "bad"
    if evaluation.assessment is None or content.seen:
        return "few"  # one row, rows of the fit, or few groups
    grade = evaluation.assessment.grade
    return "care" if worse and grade == "good" else grade
