"""``hcal.evaluate`` of rows that come block by block: in one pass, and what cannot be had so from a sample.

Scores and the errors of equal-width bins are added up over all rows. Errors that need the order of all
confidences come with a bound on what their fine bins leave open. All others, and the intervals, are those of
a seeded sample of rows. Which is which is said metric by metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hcal import inputs, leakage
from hcal.calibrators.base import Calibrator
from hcal.certificates.streaming import CertificateStream
from hcal.evaluation.assessment import collapse_reasons
from hcal.evaluation.evaluator import chosen_metrics, evaluate
from hcal.evaluation.result import Difference, Evaluation, Result
from hcal.io.blocks import Batch, Batches, read_piece, rows_from
from hcal.io.probabilities import to_probs
from hcal.io.reading import Piece
from hcal.metrics.registry import METRICS
from hcal.metrics.streaming import NAMES, StreamingMetrics
from hcal.numerics import FloatArray, IntArray
from hcal.passes import Runner, add_up

#: A sample has at most so many rows, some metrics look at all pairs of them; and so many numbers.
SAMPLE_ROWS: Final = 20_000
SAMPLE_NUMBERS: Final = 2**23


@dataclass(frozen=True)
class SampledScores:
    """Rows of the sample, in the order of the source: scores (M, K), labels, and what came with them."""

    scores: NDArray[Any]
    y: IntArray
    weight: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None


@dataclass(frozen=True)
class BatchedEvaluation:
    """What one pass over all rows found.

    Attributes
    ----------
    result, before : Evaluation
        Of the calibrator's probabilities, and of the source's own where there is a calibrator (else None).
    how : dict of str
        By metric: ``"all rows"``, ``"all rows, within …"`` or ``"sample"``.
    sample_rows : int
    argmax_changed : int
        Rows to which the calibrator gave another most probable class.
    learned_from : float
        The share of these rows that the calibrator was fitted on.
    sample : SampledScores
    """

    result: Evaluation
    before: Evaluation | None
    how: dict[str, str]
    sample_rows: int
    argmax_changed: int
    learned_from: float
    sample: SampledScores

    @property
    def sampled(self) -> str:
        """The sample in words."""
        return f"seeded sample of {self.sample_rows:,} of {self.result.n:,} rows"

    @property
    def sentences(self) -> list[str]:
        """Which numbers come from all rows, and which from how large a sample."""
        if self.result.n == self.sample_rows:
            return []
        sample = self.sampled
        by: dict[str, list[str]] = {}
        for name, how in self.how.items():
            by.setdefault(how, []).append(name)
        told = [f"{how if how != 'sample' else sample}: {', '.join(by[how])}" for how in by]
        if self.result.ci is not None:
            told.append(f"intervals: of the {sample}, so wider than those of all rows")
        return told


class _Part:
    """What some rows add to an evaluation: a partial result (:mod:`hcal.passes`)."""

    def __init__(self, n_classes: int, streamed: list[str], positive: int, grouped: bool) -> None:
        self.before, self.after = (StreamingMetrics(n_classes, streamed) for _ in range(2))
        self.groups = CertificateStream(n_classes, positive=positive) if grouped else None
        self.rows: leakage.Fingerprint | None = None
        self.changed = 0
        self.sample: list[SampledScores] = []

    def update(self, batch: Batch, calibrator: Calibrator | None, rows: NDArray[np.int64]) -> None:
        """Add a block; ``rows`` are the numbers of those that belong to the sample."""
        y: IntArray = np.asarray(batch.y)
        raw = probs = to_probs(batch.scores, batch.kind)
        self.before.update(raw, y, batch.weight)
        if calibrator is not None:
            probs = inputs.check_probs(calibrator.predict_proba(batch.scores))[0]
            self.after.update(probs, y, batch.weight)
            self.changed += int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
            x = inputs.check_logits(batch.scores, input=calibrator.input, n_classes=calibrator.n_classes_)[0]
            self._add_rows(leakage.fingerprint(x))
        if self.groups is not None:
            self.groups.update(probs, y, batch.groups)
        mine = numbers_between(rows, batch.start, batch.start + len(batch)) - batch.start
        beside = (None if a is None else a[mine] for a in (batch.weight, batch.groups))
        self.sample.append(SampledScores(batch.scores[mine], y[mine], *beside))

    def merge(self, other: Self) -> Self:
        """Add what another part has seen, of rows that come after."""
        self.before.merge(other.before)
        self.after.merge(other.after)
        self._add_rows(other.rows)
        if self.groups is not None and other.groups is not None:
            self.groups.merge(other.groups)
        self.changed += other.changed
        self.sample += other.sample
        return self

    def _add_rows(self, rows: leakage.Fingerprint | None) -> None:
        if rows is not None:
            self.rows = rows if self.rows is None else leakage.merge_fingerprints(self.rows, rows)

    def sampled(self) -> SampledScores:
        """Return the rows of the sample together."""

        def column(name: str) -> Any:
            found = [getattr(s, name) for s in self.sample if len(s.y)]
            return None if found[0] is None else np.concatenate(found)

        return SampledScores(*(column(name) for name in ("scores", "y", "weight", "groups")))

    def share_fitted(self, calibrator: Calibrator | None) -> float:
        """Return the share of these rows that the calibrator was fitted on."""
        fitted = getattr(calibrator, "fitted_on_", None)
        return 0.0 if fitted is None or self.rows is None else leakage.overlap(fitted, self.rows).share


def numbers_between(rows: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """Return the sorted numbers of rows that lie in start..stop − 1."""
    return rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]


def sample_numbers(n_rows: int, n_classes: int, random_state: int = 0) -> NDArray[np.int64]:
    """Return the numbers of the rows that a sample holds, sorted: by the seed alone, whoever reads the rows.

    Parameters
    ----------
    n_rows, n_classes, random_state : int

    Returns
    -------
    array of int

    Examples
    --------
    >>> sample_numbers(5, 2), len(sample_numbers(10**9, 1000))
    (array([0, 1, 2, 3, 4]), 8388)
    """
    size = min(n_rows, SAMPLE_ROWS, max(SAMPLE_NUMBERS // n_classes, 1))
    if size == n_rows:
        return np.arange(n_rows, dtype=np.int64)
    rng = np.random.default_rng(random_state)
    return np.sort(rng.choice(n_rows, size, replace=False, shuffle=False)).astype(np.int64)


def _measure(
    empty: Callable[[], _Part], calibrator: Calibrator | None, work: tuple[Piece, NDArray[np.int64]]
) -> _Part:
    piece, rows = work
    part = empty()
    for batch in read_piece(piece):
        with rows_from(batch.start):
            part.update(batch, calibrator, rows)
    return part


def evaluate_batches(
    source: Batches,
    calibrator: Calibrator | None = None,
    metrics: str | Iterable[str] | None = None,
    ci: float | None = None,
    *,
    positive: int = 1,
    runner: Runner | None = None,
    advance: Callable[[int], None] | None = None,
    random_state: int = 0,
) -> BatchedEvaluation:
    """Evaluate a source's probabilities, and what a calibrator makes of them, in one pass over its rows.

    Parameters
    ----------
    source : Batches
        Of files, with labels.
    calibrator : Calibrator, optional
    metrics, ci, positive, random_state
        As for :func:`hcal.evaluate`; the seed also draws the sample.
    runner : Runner, optional
        Who works on the pieces; this process by default. The numbers do not depend on it.
    advance : callable, optional
        Told how many rows were done, again and again.

    Returns
    -------
    BatchedEvaluation

    Examples
    --------
    >>> import tempfile, hcal
    >>> path = f"{tempfile.mkdtemp()}/a.npz"
    >>> np.savez(path, probs=[[0.2, 0.8], [0.6, 0.4]], y=[1, 1])
    >>> found = evaluate_batches(hcal.io.batches(path, rows=1), metrics=["brier"])
    >>> round(found.result["brier"], 6), found.how
    (0.4, {'brier': 'all rows'})
    """
    metrics = metrics if metrics is None or isinstance(metrics, str) else list(metrics)
    wanted = {*chosen_metrics(metrics)[0], "nll", "accuracy"}  # by these a collapse is recognised
    source.check_labels()
    pieces = source.pieces()
    rows = sample_numbers(sum(map(len, pieces)), source.n_classes, random_state)
    work = [(piece, numbers_between(rows, piece.start, piece.start + len(piece))) for piece in pieces]
    grouped = source.first.groups is not None
    streamed = [name for name in NAMES if name in wanted]
    empty = partial(_Part, source.n_classes, streamed, positive, grouped)
    function = partial(_measure, empty, calibrator)
    whole = add_up(function, work, empty, runner=runner, advance=advance, size=lambda w: len(w[0]))
    options: dict[str, Any] = {"positive": positive, "random_state": random_state}
    return _result(whole, source, calibrator, metrics, ci, options)


def _result(
    whole: _Part,
    source: Batches,
    calibrator: Calibrator | None,
    metrics: Any,
    ci: Any,
    options: dict[str, Any],
) -> BatchedEvaluation:
    sample = whole.sampled()
    names = None if source.classes is None else [str(name) for name in source.classes]  # of positions
    options |= {"sample_weight": sample.weight, "groups": sample.groups, "classes": names}
    raw: FloatArray = to_probs(sample.scores, source.kind)
    before = result = _over_all(evaluate(raw, sample.y, metrics, ci, **options), whole.before, None)
    if calibrator is not None:
        probs = inputs.check_probs(calibrator.predict_proba(sample.scores))[0]
        drawn = evaluate(probs, sample.y, metrics, ci, baseline=raw, **options)
        result = _over_all(drawn, whole.after, before)
    if whole.groups is not None and len(sample.y) < result.n:
        result = replace(result, certificate=whole.groups.certify(level=ci or 0.95, classes=names))
    bounds = (whole.before if calibrator is None else whole.after).bounds()
    return BatchedEvaluation(
        result,
        None if calibrator is None else before,
        {name: _how(name, bounds, len(sample.y) == result.n) for name in result.results},
        len(sample.y),
        whole.changed,
        whole.share_fitted(calibrator),
        sample,
    )


def _how(name: str, bounds: dict[str, float], complete: bool) -> str:
    if complete or bounds.get(name) == 0:
        return "all rows"
    return f"all rows, within {bounds[name]:.1e}" if name in bounds else "sample"


def _over_all(drawn: Evaluation, streamed: StreamingMetrics, before: Evaluation | None) -> Evaluation:
    """Return the evaluation of a sample with everything that all rows have told in its place."""
    if drawn.n == streamed.n:
        return drawn
    values: dict[str, Any] = streamed.result() | {"mean_confidence": streamed.mean_confidence}
    summary = {name: values[name] for name in ("accuracy", "mean_confidence", "nll")}
    results = {
        name: Result(values[name], METRICS[name], found.interval) if name in NAMES else found
        for name, found in drawn.results.items()
    }
    differences = {
        name: Difference(before[name], results[name].value - before[name], d.low, d.high)
        for name, d in drawn.differences.items()
        if before is not None
    }
    reasons = collapse_reasons(
        **summary, n_classes=drawn.k, nll_before=None if before is None else before.nll
    )
    return replace(
        drawn, n=streamed.n, results=results, differences=differences, collapse=tuple(reasons), **summary
    )
