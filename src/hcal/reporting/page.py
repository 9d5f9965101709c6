"""The report as one self-contained HTML page (no script, style, font or picture from anywhere else), and its verdict.

The verdict follows the assessment that ``hcal.evaluate`` also prints (:mod:`hcal.evaluation.assessment`), with three
exceptions: a collapsed predictor, a calibrator that made a metric worse, and rows that the calibrator was fitted on.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from jinja2 import Environment

from hcal import inputs
from hcal._version import __version__
from hcal.class_names import ClassName
from hcal.evaluation.assessment import RULE, ClassesOff, Grade, SegmentsOff
from hcal.evaluation.axes import tick
from hcal.frames import AnyArray
from hcal.io import atomic_path
from hcal.methods import Calibrator
from hcal.progress import progress
from hcal.renamed import renamed
from hcal.reporting import sentences, tables
from hcal.reporting.charts import what_if
from hcal.reporting.content import SCORES, VIEWS, Content, measure_report, worse_metrics
from hcal.results import Result
from hcal.text import JsonObject, without_controls

#: The files of the page: the template, and the style and the script that it holds.
_FILES = ("page.html", "style.css", "script.js")


@renamed(ci="confidence", batch_rows="scores=hcal.io.batches(files, rows=…)")
def report(  # noqa: PLR0913 - a public door
    calibrator: Calibrator | str | None,
    scores: AnyArray,
    y: AnyArray,
    path: str | os.PathLike[str],
    *,
    input: inputs.InputKind | None = None,
    classes: Iterable[ClassName] | None = None,
    by: AnyArray = None,
    groups: AnyArray = None,
    positive: ClassName | None = None,
    confidence: float = 0.95,
    threshold: float | Sequence[float] = (),
    cost: Mapping[str, float] | None = None,
    cross_fit: bool = False,
) -> ReportVerdict:
    """Write one self-contained HTML page that shows whether the probabilities can be trusted.

    Parameters
    ----------
    calibrator : Calibrator or None
        Fitted: the page shows before and after. None: the scores as they are. With ``cross_fit`` the method
        to fit, by name or unfitted.
    scores : array-like of shape (N, K), or (N,) for a binary score
        What the model said about rows that the calibrator has not seen. Or, with ``y=None``, files or blocks of rows
        as :func:`hcal.evaluate` takes them: the headline numbers are of all rows, the rest of a sample if they do not
        fit into memory.
    y : array-like of shape (N,)
    path : path-like
        Written atomically.
    input : {"logits", "probs", "log_probs"}, optional
        What ``scores`` holds; the calibrator's own kind, or ``"logits"``, by default.
    classes : sequence of K str or int, optional
        Names of the classes; the calibrator's own by default.
    by : array-like of shape (N,), frame, or dict of columns, optional
        The segment of each row (a country, a tenant). The verdict says which segments are proven to be off, and
        a table lists them all, the worst first.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other (a patient, a user): intervals and proofs count whole groups, of
        which a proof needs at least 20. With files, ``by`` and ``groups`` are names of columns.
    positive : int or str, optional
        The positive class of two, by its number or name; the second by default. If the names are integers, it is
        a name.
    confidence : float
        Level of intervals and bands.
    threshold : float or sequence of float
        Thresholds of P(positive) that matter to you.
    cost : dict, optional
        ``{"fn": 10, "fp": 1}``: what a missed positive and a false alarm cost.
    cross_fit : bool
        Predict every row by a fit without it: for data too small to split.

    Returns
    -------
    ReportVerdict
        What the page says first: ``headline``, ``chips``, ``sentences``, ``alarms``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "report.html"
    >>> scores, y = [[2.0, 0.0], [0.0, 1.0]], ["cat", "dog"]
    >>> verdict = report(None, scores, y, path, classes=["cat", "dog"])
    >>> path.exists(), bool(verdict.headline)
    (True, True)
    """
    with progress("writing a report"):
        content = measure_report(
            scores,
            y,
            calibrator,
            input=input,
            classes=classes,
            confidence=confidence,
            positive=positive,
            groups=groups,
            by=by,
            threshold=threshold,
            cost=cost,
            cross_fit=cross_fit,
        )
        return write_page(path, content)


def build_report(
    scores: AnyArray, y: AnyArray, calibrator: Calibrator | None = None, **options: Any
) -> str:
    """Return the report as one self-contained HTML page.

    Parameters
    ----------
    scores, y, calibrator, **options
        As for :func:`hcal.reporting.measure_report`.

    Examples
    --------
    >>> "Calibration report" in build_report([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    True
    """
    return render(measure_report(scores, y, calibrator, **options))


def write_page(path: str | os.PathLike[str], content: Content) -> ReportVerdict:
    """Write a measured report to a file, atomically, and return its verdict."""
    with atomic_path(Path(path)) as temporary:
        temporary.write_text(render(content), encoding="utf-8")
    return verdict_of(content)


def render(content: Content) -> str:
    """Write the page as HTML."""
    folder = files("hcal.reporting")
    page, style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = sentences.percent
    environment.filters["number"] = sentences.number
    environment.filters["digest"] = _digest
    verdict = verdict_of(content)
    html = environment.from_string(page).render(
        content=content,
        verdict=verdict,
        name=Path(content.source.name).name,
        style=style,
        script=script,
        version=__version__,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        steps=sentences.next_steps(content, verdict.grade),
        views=VIEWS,
        tables=tables,
        class_rows=sentences.class_rows(content),
        what_if=what_if(content),
        tick=tick,
    )
    return without_controls(html)  # names of classes may hold terminal escapes


def _digest(text: str) -> str:
    """Name a script or style for the page's policy: a browser runs what has this hash and nothing else."""
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


# -- the verdict ------------------------------------------------------------------------------------


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
