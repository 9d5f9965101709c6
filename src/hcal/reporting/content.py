"""The numbers and facts of a report, measured before any of its HTML is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from hcal import leakage
from hcal.class_names import positive_number
from hcal.evaluation import Evaluation, crossfit, reliability
from hcal.evaluation.curves import Binning, ReliabilityCurve
from hcal.evaluation.evaluator import (
    Settings,
    evaluate_rows,
    overlap_note,
    probs_of_calibrator,
    rows_of_calibrator,
)
from hcal.fit_record import FitRecord, effective_rows, refuse_other_kind_of
from hcal.inputs import InputKind, check_confidence
from hcal.methods import Calibrator
from hcal.metrics import list_metrics
from hcal.metrics.sample import Sample
from hcal.numerics import Float64, FloatArray, IntArray
from hcal.rows import Rows

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
    """

    name: str = "arrays in memory"
    part: str = ""
    kind: str = ""
    checksum: str = ""
    model: str = ""
    options: str = ""
    model_checksum: str = ""
    command: str = ""


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


def measure_report(
    scores: Any,
    y: Any,
    calibrator: Calibrator | str | None = None,
    *,
    input: InputKind | None = None,
    classes: Any = None,
    source: Source | None = None,
    confidence: float = 0.95,
    positive: Any = None,
    groups: Any = None,
    by: Any = None,
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
    kind: Any = input or getattr(calibrator, "input", "logits")
    crossed = None
    fitted: Any = calibrator
    if cross_fit:
        method: Any = calibrator or "pool"
        crossed = crossfit.cross_fit(method, scores, y, groups=groups, classes=classes, input=kind)
        fitted = crossed.calibrator
    elif isinstance(calibrator, str):
        raise ValueError(f"fit {calibrator!r} first, or pass cross_fit=True")
    if fitted is None:
        rows = Rows.of_predictions(scores, y, input=kind, groups=groups, by=by, classes=classes)
    else:
        if crossed is None:
            refuse_other_kind_of(fitted, input)
        others = {"groups": groups, "by": by, "classes": classes}
        rows = rows_of_calibrator(fitted, scores, y, **others)
    options = ReportOptions(
        confidence=check_confidence(confidence),
        positive=positive_number(positive, rows.names, rows.n_classes),
        threshold=tuple(np.atleast_1d(threshold).tolist()),
        cost=_checked_cost(cost),
    )
    probs = None
    overlap = None
    if crossed is not None:
        probs = np.asarray(crossed.probs)
    elif fitted is not None:
        probs = probs_of_calibrator(fitted, rows, scores)
        overlap = leakage.fit_overlap(fitted, scores)
    content = _measured(rows, probs, options)
    return replace(
        content,
        source=source or Source(kind=kind),
        calibrator=fitted,
        crossed=crossed,
        seen=overlap is not None and overlap.refused,
        shift=0.0 if fitted is None or crossed else frequency_shift(fitted.fit_, rows),
        notes=(*overlap_note(overlap), *content.notes),
    )


def _checked_cost(cost: Mapping[str, float] | None) -> Mapping[str, float]:
    if cost and (set(cost) != {"fn", "fp"} or min(cost.values()) <= 0):
        raise ValueError(
            f"cost must be {{'fn': …, 'fp': …}} with positive numbers, got {dict(cost)!r}"
        )
    return cost or {}


def _measured(rows: Rows, probs: FloatArray | None, options: ReportOptions) -> Content:
    """Measure probabilities before calibration, and after it (None without a calibrator)."""
    raw = rows.probs()
    settings = Settings(
        metrics=HEADLINE,
        confidence=options.confidence,
        resamples=RESAMPLES,
        positive=options.positive,
    )
    if probs is None:
        headlines = [evaluate_rows(rows, raw, settings)]
    else:
        # Segments and proofs are about what is used: the probabilities after calibration.
        before = evaluate_rows(replace(rows, by=None), raw, replace(settings, test=False))
        headlines = [before, evaluate_rows(rows, probs, settings, baseline=raw)]
    chosen, notes = _chosen_metrics(raw.size)
    sides = [
        _side(rows, side, headline, chosen, options)
        for side, headline in zip((raw, probs), headlines, strict=False)
        if side is not None
    ]
    names = rows.names or tuple(f"class {k}" for k in range(rows.n_classes))
    changed = 0 if probs is None else int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    return Content(
        source=Source(),
        rows=rows,
        names=tuple(str(name) for name in names),
        before=sides[0],
        after=sides[1] if len(sides) > 1 else None,
        calibrator=None,
        notes=(*notes, *headlines[-1].notes),
        options=options,
        changed=changed,
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
    curves = {}
    for binning in VIEWS:
        curves[binning] = reliability(
            sample,
            binning=binning,
            confidence=options.confidence,
            positive=options.positive,
            bins=15 if sample.n >= 1000 else 8,
            resamples=int(np.clip(_DRAWN_EVENTS / sample.n, 50, 100)),
        )[0]
    others = tuple(name for name in chosen if name not in HEADLINE)
    plain = replace(rows, by=None, groups=None)
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


# -- files in blocks --------------------------------------------------------------------------------


def measure_blocks(
    blocks: Any,
    calibrator: Calibrator | str | None = None,
    *,
    runner: Any = None,
    advance: Any = None,
    **options: Any,
) -> Content:
    """Measure files block by block: the headline metrics of all rows, everything else on a random sample.

    Parameters
    ----------
    blocks : hcal.io.Batches
    runner, advance
        As for :func:`hcal.evaluation.blocks.evaluate_batches`.
    calibrator, **options
        As for :func:`measure_report`.
    """
    from hcal.evaluation.blocks import evaluate_batches

    if options.pop("cross_fit", False) or isinstance(calibrator, str):
        raise ValueError(
            "cross-fitting needs all rows at once: one file, without batch_rows (--batch-rows)"
        )
    all_rows = evaluate_batches(
        blocks,
        calibrator,
        list(HEADLINE),
        options.get("confidence", 0.95),
        positive=options.get("positive", 1),
        runner=runner,
        advance=advance,
    )
    sample = all_rows.sample
    options.setdefault("source", Source(str(blocks.name), blocks.part, blocks.kind))
    if options.get("classes") is None:
        options["classes"] = None if blocks.classes is None else [str(n) for n in blocks.classes]
    content = measure_report(
        sample.scores,
        sample.y,
        calibrator,
        input=blocks.kind,
        groups=sample.groups,
        by=sample.by,
        **options,
    )
    if all_rows.result.n == len(sample):
        return content
    return _with_all_rows(content, all_rows)


def _with_all_rows(content: Content, all_rows: Any) -> Content:
    """Return the content of a sample with the numbers of all rows, where there are any."""
    note = f"everything but the headline numbers comes from a {all_rows.sampled}"
    overlap = all_rows.overlap
    before = all_rows.result if all_rows.before is None else all_rows.before
    after = content.after
    if after is not None:
        after = _with_headline(after, all_rows.result)
    return replace(
        content,
        before=_with_headline(content.before, before),
        after=after,
        changed=all_rows.argmax_changed,
        seen=content.seen or (overlap is not None and overlap.refused),
        notes=(*content.notes, note),
    )


def _with_headline(side: ReportSide, headline: Evaluation) -> ReportSide:
    results = side.evaluation.results | headline.results
    return replace(side, evaluation=replace(headline, results=results, notes=side.evaluation.notes))
