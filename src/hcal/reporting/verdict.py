"""The verdict of the report, as an object: grade, headline, sentences and alarms.

It follows the assessment that ``hcal.evaluate`` also prints (:mod:`hcal.evaluation.assessment`), with three exceptions:
a collapsed predictor, a calibrator that made NLL worse, and rows that the calibrator was fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from hcal.evaluation.assessment import RULE, Grade, SegmentsOff
from hcal.reporting import sentences
from hcal.reporting.content import Content
from hcal.results import Result

#: If NLL rises by more than this share, even at the lower end of its interval, the grade is "bad".
WORSE: Final = 0.01


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
    changes : dict of float
        By how much calibration changed each headline metric; empty without a calibrator.
    segments : SegmentsOff or None
        The segments (``by=``) that are proven to be off, with how many rows they hold.
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
    rule: str = RULE

    @property
    def segments_off(self) -> int:
        """How many segments are proven to be off by more than the tolerance."""
        return 0 if self.segments is None else len(self.segments.segments)

    def gate_values(self) -> dict[str, float | str]:
        """Return the values that :func:`hcal.require` can name."""
        changes = {f"change({name})": change for name, change in self.changes.items()}
        segments: dict[str, float | str] = {}
        if self.segments is not None:
            segments = {
                "segments_off": float(self.segments_off),
                "segments_off_share": self.segments.share,
            }
        return {"grade": self.grade, **self.values, **changes, **segments}

    def to_records(self) -> list[dict[str, Any]]:
        """Return one row a metric."""
        return [{"metric": name, "value": value} for name, value in self.values.items()]

    def _content(self) -> dict[str, Any]:
        content = super()._content()
        off = self.segments
        if off is not None:
            content["segments"] = {
                "off": [vars(segment) for segment in off.segments],
                "count": len(off.segments),
                "of_segments": off.of_segments,
                "rows": off.rows,
                "of_rows": off.of_rows,
                "tolerance": off.tolerance,
            }
        return content

    def _headline(self) -> list[str]:
        return [f"{self.grade}: {self.headline}", *self.alarms]


def verdict_of(content: Content) -> ReportVerdict:
    """Return the verdict on the final probabilities of a report."""
    evaluation = content.final.evaluation
    assessment = evaluation.assessment
    worse = nll_is_worse(content)
    grade: Grade = "few"  # one row, rows of the fit, or few groups
    if assessment is not None and not content.seen:
        grade = assessment.grade
    if evaluation.collapsed or worse:
        grade = "bad"
    return ReportVerdict(
        grade=grade,
        headline=sentences.headline(content, grade),
        chips={} if assessment is None else sentences.chips(content, assessment, grade),
        sentences=tuple(sentences.sentences(content)),
        alarms=tuple(sentences.alarms(content, worse)),
        n=content.n,
        values=evaluation.values,
        changes={name: change.change for name, change in evaluation.differences.items()},
        segments=None if assessment is None else assessment.segments,
    )


def nll_is_worse(content: Content) -> bool:
    """Return whether calibration made NLL clearly worse: by more than ``WORSE``, and by more than chance."""
    if content.after is None:
        return False
    change = content.after.evaluation.differences["nll"]
    return change.low is not None and change.low > WORSE * change.before
