"""Fit on rows that do not fit in memory: by sums over blocks where a method can, else on a seeded sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from hcal import inputs
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.calibration_rows import Hashes, keep_sketch, outputs_of
from hcal.calibrators.floor import apply_floor
from hcal.calibrators.params import refuse_types
from hcal.calibrators.registry import get_calibrator, list_calibrators
from hcal.calibrators.row_order import arrange
from hcal.calibrators.survey import PieceReader, RowPiece, Survey, checked_batch, open_piece
from hcal.io.blocks import Batches
from hcal.io.class_names import check_classes
from hcal.io.row_sample import RowSample, SampledRows
from hcal.metrics.streaming import StreamingMetrics
from hcal.metrics.summary import Scores
from hcal.numerics import Float64, FloatArray, IntArray, bounded, softmax
from hcal.partial import merged
from hcal.passes import one_by_one
from hcal.solvers.rows import ArrayRows, PieceRows, Run, array_rows

Method = TypeVar("Method", bound=Calibrator)
#: Entries (rows × classes) of a sample at most: 80 MB of float32, of which a fit needs several times.
SAMPLE_EVENTS = 20_000_000
_SCORED = ("nll", "brier", "accuracy", "ece_ew")


def fit_batches(
    calibrator: Method,
    batches: Iterable[RowPiece] | Callable[[], Iterable[RowPiece]],
    *,
    exact: bool | None = None,
    sample_rows: int = 1_000_000,
    random_state: int = 0,
    run: Run | None = None,
    classes: Any = None,
) -> Method:
    """Fit a calibrator on blocks of rows, of which one at a time is in memory.

    Methods that are fitted by sums (``methods_by_sums()``: temperature, vector and structured scaling) pass
    over the blocks as often as their solver asks and give what the fit in memory gives, to 1e-6 in the
    probabilities. Every other method is fitted in memory, on a sample: the rows of the smallest hashes of
    their numbers, stratified by class with weights that restore the classes' shares. Where the sample holds
    all rows, the fit is that in memory. With ``exact=True`` the default (``"h"``, more than two classes)
    learns its candidates by sums over all rows, in some hundred passes, and takes from the sample what
    compares rows with each other: folds, the weights of its pool, where its curves bend.

    ``info_["batches"]`` says how it was, how many rows there were and how many were used.

    Parameters
    ----------
    calibrator : Calibrator
    batches : Batches of :func:`hcal.io.batches`, iterable of Batch, or a function that returns one
        Or of functions that read batches where the work is done. A list, or what can be gone through again;
        an iterator that ends is enough for a sample.
    exact : bool, optional
        True insists on sums, False on a sample; by default sums where they are all that a method needs.
    sample_rows : int
        Rows of the sample; with many classes fewer, so that it holds at most 20 million numbers.
    random_state : int
        Of the sample.
    run : callable, optional
        (function, pieces) ↦ the function's result for every piece, in any order: where the passes run. By
        default here, one piece after the other.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns; by default those that the batches know.

    Returns
    -------
    Calibrator
        The same object, fitted.

    Examples
    --------
    >>> from hcal.io import Batch
    >>> from hcal.calibrators.ts import TemperatureScaling
    >>> z, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> blocks = [Batch(z[i : i + 2], "logits", y[i : i + 2], i) for i in (0, 2)]
    >>> cal = fit_batches(TemperatureScaling(), blocks)
    >>> cal.predict_proba(z[:1]).round(6), cal.info_["batches"]["exact"]
    (array([[0.25, 0.75]]), True)
    """
    summed = _by_sums(calibrator, exact)
    source = _Source(batches, one_by_one if run is None else run)
    if summed and source.once:
        raise ValueError(
            f"{calibrator.name!r} goes through the batches several times, and this iterator ends: pass a "
            "list or a function that returns an iterator, or exact=False for a fit on a sample"
        )
    calibrator._forget()
    refuse_types(calibrator)
    sample = _Sampling(sample_rows, random_state)
    names = getattr(batches, "classes", None) if classes is None else classes
    if summed:
        _fit_by_sums(calibrator, source, sample, names)
    else:
        _fit_sample(calibrator, source, sample, names)
    return calibrator


def methods_by_sums() -> list[str]:
    """Return the methods that :func:`fit_batches` fits by sums over all rows.

    Examples
    --------
    >>> "ts" in methods_by_sums(), "iso" in methods_by_sums()
    (True, False)
    """
    return [name for name in list_calibrators() if hasattr(get_calibrator(name), "_fit_rows")]


def _by_sums(calibrator: Calibrator, exact: bool | None) -> bool:
    able = hasattr(calibrator, "_fit_rows")
    if exact and not able and not hasattr(calibrator, "_fit_sampled_rows"):
        names = ", ".join(methods_by_sums())
        raise ValueError(
            f"{calibrator.name!r} cannot be fitted by sums over blocks; those that can are {names} and, with "
            "a sample beside, h"
        )
    return able if exact is None else exact


@dataclass
class _Source:
    """The pieces, where passes over them run, and how many there were."""

    given: Iterable[RowPiece] | Callable[[], Iterable[RowPiece]]
    drive: Run
    passes: int = 0

    @property
    def once(self) -> bool:
        return isinstance(self.given, Iterator)

    def __iter__(self) -> Iterator[RowPiece]:
        if isinstance(self.given, Batches) and self.drive is not one_by_one:
            return iter(self.given.pieces())  # read where the work is done
        return iter(self.given() if callable(self.given) else self.given)

    def run(self, work: Callable[[RowPiece], Any], pieces: Iterable[RowPiece]) -> Iterator[Any]:
        self.passes += 1
        return self.drive(work, pieces)


def _look(empty: Callable[[], Survey], piece: RowPiece) -> Survey:
    found = empty()
    for batch in open_piece(piece):
        found.update(batch)
    return found


def _surveyed(calibrator: Calibrator, source: _Source) -> Survey:
    empty = partial(Survey, calibrator.input)
    found: Survey = merged(source.run(partial(_look, empty), source), empty)
    found.result()
    if found.weighted:
        calibrator._check_weight(found.mass, found.n_classes)  # refused where the method takes none
    return found


# -- by sums ------------------------------------------------------------------------------------------


def _fit_by_sums(calibrator: Calibrator, source: _Source, sampling: _Sampling, classes: Any) -> None:
    plain = hasattr(calibrator, "_fit_rows")
    survey = _surveyed(calibrator, source) if plain else _sampled(calibrator, source, sampling)
    calibrator._warn_of_total(float(survey.mass.sum()), survey.weighing)
    names = None if classes is None else check_classes(classes, survey.n_classes)
    floor = survey.floor() if calibrator.floored and calibrator.input != "logits" else None
    reader = PieceReader(calibrator.input, survey.n_classes, floor, calibrator.native_float32)
    rows = PieceRows(source, reader, source.run, survey.mass)
    fitted: Fitted | None
    if plain:
        fitted = calibrator._fit_rows(rows)
    else:
        sample = _arranged(calibrator, survey.drawn(), floor)
        fitted = calibrator._fit_sampled_rows(rows, sample)
    if fitted is None:
        raise ValueError(
            f"{calibrator.name!r} cannot be fitted by sums here (two classes, few rows or the paper's "
            "protocol): leave exact out for a fit on a sample"
        )
    if floor is not None:
        fitted.state["input_floor"] = floor
    fitted.info["class_frequencies"] = (survey.mass / rows.total).tolist()
    fitted.info["fitted_on"] = {"rows": int(survey.counts.sum())}
    fitted = fitted.named(names)
    calibrator._remember(fitted, survey.n_classes, names)
    try:
        outputs = _score(calibrator, source, survey)
    except BaseException:
        calibrator._forget()
        raise
    keep_sketch(calibrator, survey.sketch.result(outputs))
    seen = int(survey.counts.sum())
    calibrator.info_["batches"] = _facts(seen, None, source.passes) | sampling.said(survey)
    calibrator._warn(fitted)


def _score(calibrator: Calibrator, source: _Source, survey: Survey) -> Hashes:
    """Set the scores before and after, over all rows; return the hashes of the outputs that are kept."""
    kept = survey.sketch.kept
    reader = PieceReader(calibrator.input, survey.n_classes, None, native_float32=True)
    rows = PieceRows(source, reader, source.run, survey.mass)
    before, after, outputs = rows.sum(partial(_score_block, calibrator, kept))
    calibrator.scores_ = {"before": before.scores(), "after": after.scores()}
    return np.asarray(outputs, dtype=np.uint64)


def _score_block(
    calibrator: Calibrator, kept: Hashes, x: FloatArray, y: IntArray, weight: Float64
) -> tuple[_Scored, _Scored, tuple[int, ...]]:
    probs = calibrator._predict_blocks(x)
    found = tuple(outputs_of(x, probs, kept).tolist())  # what adds up stands side by side
    return _Scored.of(softmax(x), y, weight), _Scored.of(probs, y, weight), found


@dataclass(frozen=True)
class _Scored:
    """Scores that add up."""

    metrics: StreamingMetrics

    @classmethod
    def of(cls, probs: FloatArray, y: IntArray, weight: Float64) -> _Scored:
        return cls(StreamingMetrics(probs.shape[1], _SCORED).update(probs, y, weight))

    def __add__(self, other: _Scored) -> _Scored:
        return _Scored(self.metrics.merge(other.metrics))

    def scores(self) -> Scores:
        total, *_, confidence = self.metrics.state["sums"]["sums"]
        return {**self.metrics.compute(), "mean_confidence": float(confidence / total)}


# -- from a sample ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sampling:
    """How a sample is drawn."""

    rows: int
    random_state: int

    def empty(self, n_classes: int) -> RowSample:
        return RowSample(n_classes, min(self.rows, max(SAMPLE_EVENTS // n_classes, 1)), self.random_state)

    def said(self, survey: Survey) -> dict[str, Any]:
        """Say what a sample decided beside the sums, if one did."""
        if survey.sample is None:
            return {}
        facts = {"sample_rows": len(survey.drawn().y), "random_state": self.random_state}
        return {"from_sample": ["folds", "weights of the pool", "where curves bend"], **facts}


def _arranged(calibrator: Calibrator, sample: SampledRows, floor: Any) -> ArrayRows:
    """Return the sample as a fit in memory would see it."""
    x, _ = inputs.check_logits(sample.scores, input=calibrator.input)
    found = arrange(bounded(x), sample.y, sample.weight, merge=calibrator.weighted)
    return array_rows(calibrator._working(apply_floor(found.logits, floor)), found.y, found.weight)


def _fit_sample(calibrator: Calibrator, source: _Source, sampling: _Sampling, classes: Any) -> None:
    survey = _sampled(calibrator, source, sampling)
    names = None if classes is None else check_classes(classes, survey.n_classes)
    texts = None if names is None else [str(name) for name in names]  # labels are positions
    sample = survey.drawn()
    scores, y, weight = sample.scores, sample.y, sample.weight
    if not calibrator.weighted:  # then proportions are kept by drawing alone
        scores, y = scores[sample.plain], y[sample.plain]
        calibrator.fit(scores, y, classes=texts)
    else:
        calibrator.fit(scores, y, None if (weight == 1.0).all() else weight, classes=texts)
    calibrator.class_names_ = names
    facts = _facts(sample.seen, len(y), source.passes)
    calibrator.info_["batches"] = facts | {"random_state": sampling.random_state}


def _sampled(calibrator: Calibrator, source: _Source, sampling: _Sampling) -> Survey:
    """Return the survey with a sample: from one pass, or from two where pieces are looked at elsewhere.

    Elsewhere, a piece would send all of its rows: it cannot know which are among the first of all. So the
    numbers of rows are asked for first.
    """
    if source.once or source.drive is one_by_one:
        survey = Survey(calibrator.input, sampling.empty)
        source.passes += 1
        for batch in chain.from_iterable(map(open_piece, source)):
            survey.update(batch)
    else:
        survey = _surveyed(calibrator, source)
        work = partial(_draw, calibrator.input, sampling, survey.counts)
        survey.sample = merged(source.run(work, source), partial(sampling.empty, survey.n_classes))
    if survey.result().weighted:
        calibrator._check_weight(survey.mass, survey.n_classes)
    return survey


def _draw(input: inputs.InputKind, sampling: _Sampling, counts: IntArray, piece: RowPiece) -> RowSample:
    sample = sampling.empty(len(counts)).expect(counts)
    for batch in open_piece(piece):
        _, y, weight = checked_batch(batch, input, len(counts))
        sample.update(np.asarray(batch.scores), y, weight, batch.start)
    return sample


def _facts(rows: int, used: int | None, passes: int) -> dict[str, Any]:
    """Say what the fit saw."""
    if used is None or used == rows:
        words = f"fitted on all {rows:,} rows" + (" by sums over blocks" if used is None else "")
    else:
        words = f"fitted on a sample of {used:,} of {rows:,} rows, stratified by class"
    whole = rows if used is None else used
    return {"exact": used is None, "rows": rows, "rows_used": whole, "passes": passes, "words": words}
