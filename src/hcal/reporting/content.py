"""The numbers and facts of a report, measured before any of its HTML is written.

Among them is what calibration made worse, by more than a trifle and by more than chance (:func:`worse_metrics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from hcal.certificates.survey import Side, Survey
from hcal.class_names import ClassName, positive_number
from hcal.decisions.deciding import check_threshold
from hcal.decisions.threshold_curve import check_costs
from hcal.evaluation import Evaluation, crossfit
from hcal.evaluation.curves import Binning, CurveOptions, ReliabilityCurve, curve_of, judged_event
from hcal.evaluation.evaluator import in_memory
from hcal.evaluation.measurement import (
    NO_TEST,
    Settings,
    evaluate_rows,
    evaluate_survey,
    survey_source,
)
from hcal.evaluation.result import Difference
from hcal.fit_record import FitRecord, effective_rows, refuse_other_kind_of
from hcal.frames import AnyArray
from hcal.inputs import InputKind, check_confidence
from hcal.io.doors import RowInfo, source_of
from hcal.methods import Calibrator
from hcal.metrics import list_metrics
from hcal.metrics.sample import Sample
from hcal.numerics import Float64, FloatArray, IntArray
from hcal.rows import ClassNames, Rows

#: The headline metrics; only they have intervals, which take most of the time.
HEADLINE: Final = ("ece_ew", "nll", "brier", "accuracy")
#: With more probabilities than this only the metrics of ``_ONE_PASS`` are computed.
_MOST_PROBABILITIES: Final = 5_000_000
_ONE_PASS: Final = (
    "ece_ew",
    "ece_em",
    "dece",
    "ks",
    "smece",
    "cwece_a",
    "nll",
    "brier",
    "accuracy",
)
#: Bootstrap samples for the intervals of the headline.
RESAMPLES: Final = 400
#: Events drawn in total for the band of a curve without bins: with many rows fewer draws are enough.
_DRAWN_EVENTS: Final = 4e6
#: The views of the reliability diagram: the text of the button, and what its points are called.
VIEWS: Final[dict[Binning, tuple[str, str]]] = {
    "equal-width": ("Equal width", "equal-width bins"),
    "equal-mass": ("Equal mass", "equal-mass bins"),
    "corp": ("Isotonic", "steps of the isotonic fit"),
    "smooth": ("Smooth", "points of the smooth curve"),
}
#: Class frequencies that differ by less than this in total raise no alarm.
_SMALL_SHIFT: Final = 0.05
#: How often equal class frequencies raise an alarm, and the draws that this is computed from.
SHIFT_LEVEL: Final = 0.01
_SHIFT_DRAWS: Final = 999


@dataclass(frozen=True)
class Source:
    """Where the rows came from; the page shows it and uses it in the commands that it prints.

    Attributes
    ----------
    name : str
        The name of the file.
    part, kind, checksum : str
        Empty where unknown.
    model : str
        The name of the calibrator's file; empty if there is none.
    options : str
        The options with which a command reads the file, such as ``--label y``.
    model_checksum : str
        SHA-256 of the calibrator's file.
    command : str
        The whole command that wrote the report; empty from Python.
    run : dict
        What repeats the report: the words of the command with all options, versions, hashes of files; empty from
        Python.
    """

    name: str = "arrays in memory"
    part: str = ""
    kind: str = ""
    checksum: str = ""
    model: str = ""
    options: str = ""
    model_checksum: str = ""
    command: str = ""
    run: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportOptions:
    """What the reader asked for.

    Attributes
    ----------
    confidence : float
    positive : int
        The number of the positive class of two.
    threshold : tuple of float
        Thresholds of P(positive) that matter to the reader.
    cost : dict of float
        ``{"fn": …, "fp": …}``; empty if no costs were given.
    """

    confidence: float = 0.95
    positive: int = 1
    threshold: tuple[float, ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportSide:
    """Everything about one predictor, before or after calibration."""

    probs: FloatArray
    evaluation: Evaluation  # every metric, those of the headline with intervals, and what is proven
    curves: dict[Binning, ReliabilityCurve]  # of P(positive) or of the top label, by binning


@dataclass(frozen=True)
class Content:
    """All that the report shows, as data.

    Attributes
    ----------
    source : Source
    rows : Rows
        The rows whose pictures are shown: all of them, or a sample.
    names : tuple of K str
    before, after : ReportSide
        ``after`` is None without a calibrator.
    calibrator : Calibrator or None
    notes : tuple of str
    options : ReportOptions
    seen : bool
        Whether these are rows of the calibrator's fit.
    crossed : CrossFit or None
        If every row is predicted by a fit without it.
    shift : float
        How far the class frequencies are from those of the fit, beyond chance; 0 if they are not.
    changed : int
        How many of all rows the calibrator gives another class.
    """

    source: Source
    rows: Rows
    names: tuple[str, ...]
    before: ReportSide
    after: ReportSide | None
    calibrator: Calibrator | None
    notes: tuple[str, ...]
    options: ReportOptions
    seen: bool = False
    crossed: crossfit.CrossFit | None = None
    shift: float = 0.0
    changed: int = 0

    @property
    def final(self) -> ReportSide:
        """The predictor that the verdict is about: after calibration if there is a calibrator."""
        return self.before if self.after is None else self.after

    @property
    def sides(self) -> dict[str, ReportSide]:
        """The predictors by name: before, and after where there is one."""
        return {"before": self.before} | ({} if self.after is None else {"after": self.after})

    @property
    def y(self) -> IntArray:
        """The labels of the rows."""
        return self.rows.labels

    @property
    def n(self) -> int:
        """How many rows were measured; more than ``rows`` holds if the pictures show a sample."""
        return self.final.evaluation.n

    @property
    def sampled(self) -> bool:
        """Whether the pictures show a sample of the rows."""
        return self.n > len(self.rows)

    @property
    def counts(self) -> IntArray:
        """Rows of each class."""
        return np.bincount(self.y, minlength=len(self.names)).astype(np.int64)

    @property
    def binary(self) -> bool:
        """Whether there are two classes, so that the report is about P(positive)."""
        return len(self.names) == 2

    @property
    def event(self) -> str:
        """What the report assesses, in words."""
        return f"P({self.names[self.options.positive]})" if self.binary else "the stated confidence"


def measure_report(  # noqa: PLR0913
    scores: AnyArray,
    y: AnyArray,
    calibrator: Calibrator | str | None = None,
    *,
    input: InputKind | None = None,
    classes: Iterable[ClassName] | None = None,
    source: Source | None = None,
    confidence: float = 0.95,
    positive: ClassName | None = None,
    groups: AnyArray = None,
    by: AnyArray = None,
    threshold: float | Sequence[float] = (),
    cost: Mapping[str, float] | None = None,
    cross_fit: bool = False,
) -> Content:
    """Measure what a report shows, before and (with a calibrator) after calibration.

    Parameters
    ----------
    scores, y, calibrator, input, classes, confidence, positive, groups, by, threshold, cost, cross_fit
        As for :func:`hcal.report`.
    source : Source, optional
        The file, for the page.

    Examples
    --------
    >>> measure_report([[2.0, 0.0], [0.0, 1.0]], [0, 1]).counts
    array([1, 1])
    """
    kind_of_fit: InputKind = getattr(calibrator, "input", "logits")
    kind = input or kind_of_fit
    info = RowInfo(None, groups, by, classes)
    if cross_fit:
        rows = in_memory(source_of(scores, y, info, input=kind), "cross-fitting")
        method = crossfit.unfitted(calibrator or "pool", rows.kind)
        crossed = crossfit.cross_fit_rows(method, rows)
        rows = crossed.calibrator.rows_like(rows)
        content = _measured(
            _crossed_survey(rows, np.asarray(crossed.probs)),
            _options(rows.names, rows.n_classes, confidence, positive, threshold, cost),
        )
        return replace(
            content,
            source=source or Source(kind=rows.kind),
            calibrator=crossed.calibrator,
            crossed=crossed,
        )
    if isinstance(calibrator, str):
        raise ValueError(f"fit {calibrator!r} first, or pass cross_fit=True")
    if calibrator is not None:
        refuse_other_kind_of(calibrator, input)
    data = source_of(scores, y, info, input=kind, calibrator=calibrator)
    options = _options(data.names, data.n_classes, confidence, positive, threshold, cost)
    survey = survey_source(data, _headline_settings(options), calibrator=calibrator)
    content = _measured(survey, options)
    overlap = survey.overlap
    return replace(
        content,
        source=source or Source(kind=data.kind),
        calibrator=calibrator,
        seen=overlap is not None and overlap.refused,
        shift=0.0 if calibrator is None else frequency_shift(calibrator.fit_, survey.rows),
    )


def _options(
    names: ClassNames | None,
    n_classes: int,
    confidence: float,
    positive: ClassName | None,
    threshold: float | Sequence[float],
    cost: Mapping[str, float] | None,
) -> ReportOptions:
    """Return what the reader asked for, checked."""
    return ReportOptions(
        confidence=check_confidence(confidence),
        positive=positive_number(positive, names, n_classes),
        threshold=tuple(map(check_threshold, np.atleast_1d(threshold).tolist())),
        cost=_checked_cost(cost),
    )


def _headline_settings(options: ReportOptions) -> Settings:
    return Settings(
        metrics=HEADLINE,
        confidence=options.confidence,
        resamples=RESAMPLES,
        positive=options.positive,
    )


def _crossed_survey(rows: Rows, probs: FloatArray) -> Survey:
    """Return the survey of rows that were predicted by fits without them."""
    raw = rows.probs()
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    return Survey(rows, len(rows), Side(raw, None), Side(probs, None), changed=changed)


def _checked_cost(cost: Mapping[str, float] | None) -> Mapping[str, float]:
    """Return the costs of errors by their names; none if none were given."""
    if not cost:
        return {}
    missed, false_alarm = check_costs(cost)
    return {"fn": missed, "fp": false_alarm}


def _measured(survey: Survey, options: ReportOptions) -> Content:
    """Measure probabilities before calibration, and after it where there is a calibrator."""
    rows = survey.rows
    if rows.weight is not None:
        raise ValueError(
            "a report counts every row once, and these have weights: pass scores and labels as "
            "arrays, or rows without weights"
        )
    headline = evaluate_survey(survey, _headline_settings(options))
    headlines = [headline] if headline.before is None else [headline.before, headline]
    chosen, notes = _chosen_metrics(survey.before.probs.size)
    if survey.is_sample:
        notes.append(
            f"everything but the headline numbers comes from a seeded sample of {len(rows):,} of "
            f"{survey.n_rows:,} rows"
        )
    sides = [
        _side(rows, side.probs, evaluation, chosen, options)
        for side, evaluation in zip((survey.before, survey.after), headlines, strict=False)
        if side is not None
    ]
    names = rows.names or tuple(f"class {k}" for k in range(rows.n_classes))
    return Content(
        source=Source(),
        rows=rows,
        names=tuple(str(name) for name in names),
        before=sides[0],
        after=sides[1] if len(sides) > 1 else None,
        calibrator=None,
        # Where there is no test, the sentence about it says why.
        notes=(*notes, *(note for note in headline.notes if note != NO_TEST)),
        options=options,
        changed=survey.changed,
    )


def _chosen_metrics(n_probabilities: int) -> tuple[list[str], list[str]]:
    """Return the metrics of the page, and a note where only some are computed."""
    if n_probabilities <= _MOST_PROBABILITIES:
        return list_metrics(), []
    note = "only metrics that need one pass over the rows are shown at this size"
    return list(_ONE_PASS), [note]


def _side(
    rows: Rows, probs: FloatArray, headline: Evaluation, chosen: list[str], options: ReportOptions
) -> ReportSide:
    """Return everything about one predictor; ``headline`` has the metrics with intervals."""
    sample = Sample(probs, rows.labels, positive=options.positive)
    event = judged_event(sample, options.positive if sample.k == 2 else None, groups=rows.groups)
    bins = 15 if sample.n >= 1000 else 8
    resamples = int(np.clip(_DRAWN_EVENTS / sample.n, 50, 100))
    curves = {}
    for binning in VIEWS:
        curve_options = CurveOptions(binning, bins, options.confidence, resamples)
        curves[binning] = curve_of(event, curve_options, np.random.default_rng(0))
    others = tuple(name for name in chosen if name not in HEADLINE)
    plain = replace(rows, by=None)
    further = evaluate_rows(plain, probs, Settings(metrics=others, positive=options.positive))
    results = further.results | headline.results
    ordered = {name: results[name] for name in chosen}
    return ReportSide(probs, replace(headline, results=ordered, notes=further.notes), curves)


# -- class frequencies ------------------------------------------------------------------------------


def frequency_shift(record: FitRecord, rows: Rows) -> float:
    """Return how far the class frequencies of rows are from those of the fit; 0 where chance explains it.

    The distance is that of total variation. It is compared with the distances of class counts that are drawn twice
    from the pooled frequencies, for as many independent rows as the fit and these rows are worth.
    """
    fitted = record.frequencies
    if record.prior is not None or len(fitted) != rows.n_classes:  # questions with more options
        return 0.0
    counts = np.bincount(rows.labels, minlength=rows.n_classes)
    observed = counts / counts.sum()
    distance = float(np.abs(observed - fitted).sum() / 2)
    if distance <= _SMALL_SHIFT:
        return 0.0
    size_of_fit = record.effective_rows or min(record.rows, record.weight)
    by_chance = _chance_distances(fitted, observed, (size_of_fit, effective_rows(rows)))
    p_value = (1 + (by_chance >= distance - 1e-12).sum()) / (_SHIFT_DRAWS + 1)
    return distance if p_value <= SHIFT_LEVEL else 0.0


def _chance_distances(fitted: Float64, observed: Float64, sizes: tuple[float, float]) -> Float64:
    """Return distances of two samples of the pooled class frequencies, shape (draws,)."""
    rng = np.random.default_rng(0)
    weights = np.array(sizes) / sum(sizes)
    pooled = weights[0] * fitted + weights[1] * observed
    first, second = (
        rng.multinomial(max(round(size), 1), pooled, _SHIFT_DRAWS) / max(round(size), 1)
        for size in sizes
    )
    return np.asarray(np.abs(first - second).sum(axis=1) / 2)


# -- what calibration made worse --------------------------------------------------------------------


@dataclass(frozen=True)
class Trifle:
    """How a headline metric is called, and the change that nobody minds: a share of it, or a number."""

    title: str
    share: float = 0.0
    absolute: float = 0.0


#: The metrics that can condemn a calibrator, or stand in its way.
TRIFLES: Final = {
    "nll": Trifle("NLL", share=0.01),
    "brier": Trifle("the Brier score", share=0.01),
    "accuracy": Trifle("accuracy", absolute=0.01),
    "ece_ew": Trifle("the calibration error (ECE)", absolute=0.01),
}
#: Proper scores: a calibrator that makes one of them worse does harm.
SCORES: Final = ("nll", "brier")


def worse_metrics(content: Content) -> list[str]:
    """Return the headline metrics that calibration made worse: the better end of the interval is still worse."""
    if content.after is None:
        return []
    differences = content.after.evaluation.differences
    return [
        name
        for name, trifle in TRIFLES.items()
        if name in differences and _is_worse(name, differences[name], trifle)
    ]


def _is_worse(name: str, change: Difference, trifle: Trifle) -> bool:
    if change.low is None or change.high is None:
        return False
    least_harm = -change.high if name == "accuracy" else change.low
    return least_harm > max(trifle.share * change.before, trifle.absolute)
