"""Evaluate files that do not fit in memory: one pass over the rows, block by block, and a sample for the rest.

Scores and the errors of equal-width bins are sums over all rows. Errors that need all confidences in order are read
from fine bins, and their numerical error is bounded. All other metrics, and the intervals, are computed on a random
sample of the rows with a fixed seed. ``BatchedEvaluation.how`` says for each metric which of these it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hcal import leakage
from hcal.certificates import CertificateStream
from hcal.evaluation.assessment import collapse_reasons, with_segments
from hcal.evaluation.evaluator import chosen_metrics, evaluate
from hcal.evaluation.result import Difference, Evaluation
from hcal.inputs import to_probs
from hcal.io.blocks import Batches, read_piece
from hcal.io.reading import Piece
from hcal.methods.base import Calibrator
from hcal.metrics.streaming import NAMES, StreamingMetrics
from hcal.passes import Runner, add_up
from hcal.rows import Rows, rows_from

#: The sample has at most this many rows (some metrics compare all pairs of rows) and this many numbers.
SAMPLE_ROWS: Final = 20_000
SAMPLE_NUMBERS: Final = 2**23


@dataclass(frozen=True)
class BatchedEvaluation:
    """The evaluation of all rows, from one pass over them.

    Attributes
    ----------
    result, before : Evaluation
        After calibration and before it. Without a calibrator ``result`` is of the source's probabilities, and
        ``before`` is None.
    how : dict of str
        What each metric was computed from: ``"all rows"``, ``"all rows, within …"`` or ``"sample"``.
    argmax_changed : int
        Rows whose predicted class the calibrator changed.
    overlap : Overlap or None
        How many of these rows the calibrator was fitted on; None where it does not know.
    sample : Rows
        The rows of the sample, in the order of the source.
    """

    result: Evaluation
    before: Evaluation | None
    how: dict[str, str]
    argmax_changed: int
    overlap: leakage.Overlap | None
    sample: Rows

    @property
    def sampled(self) -> str:
        """The size of the sample in words."""
        return f"seeded sample of {len(self.sample):,} of {self.result.n:,} rows"

    @property
    def sentences(self) -> list[str]:
        """Which numbers come from all rows, and which from how large a sample."""
        if self.result.n == len(self.sample):
            return []
        by: dict[str, list[str]] = {}
        for name, how in self.how.items():
            by.setdefault(self.sampled if how == "sample" else how, []).append(name)
        told = [f"{how}: {', '.join(names)}" for how, names in by.items()]
        if self.result.confidence is not None:
            told.append(f"intervals: of the {self.sampled}, so wider than those of all rows")
        return told


class _Part:
    """The sums and sampled rows of some blocks: a partial result (:mod:`hcal.passes`)."""

    def __init__(self, n_classes: int, streamed: list[str], positive: int, segmented: bool) -> None:
        judged = positive if n_classes == 2 else 1
        empty = StreamingMetrics(n_classes, streamed, positive=judged)
        self.before, self.after = empty.empty(), empty.empty()
        self.segments = CertificateStream(n_classes, positive=positive) if segmented else None
        self.rows: leakage.Fingerprint | None = None
        self.changed = 0
        self.sample: list[Rows] = []

    def update(
        self, batch: Rows, calibrator: Calibrator | None, numbers: NDArray[np.int64]
    ) -> None:
        """Add a block; ``numbers`` are those of all rows that belong to the sample."""
        raw = probs = to_probs(batch.scores, batch.kind)
        self.before.update(raw, batch.y, batch.weight)
        if calibrator is not None:
            rows = calibrator.rows_like(batch)
            probs = calibrator.probs_of(rows)
            self.after.update(probs, batch.y, batch.weight)
            self.changed += int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
            self.rows = leakage.merge_fingerprints(self.rows, leakage.fingerprint(rows.logits()))
        if self.segments is not None:
            self.segments.update(probs, batch.y, batch.by)
        ends = np.searchsorted(numbers, [batch.start, batch.start + len(batch)])
        mine = numbers[slice(*ends)] - batch.start
        self.sample.append(batch[mine])

    def merge(self, other: Self) -> Self:
        """Add the part of later rows."""
        self.before.merge(other.before)
        self.after.merge(other.after)
        self.rows = leakage.merge_fingerprints(self.rows, other.rows)
        if self.segments is not None and other.segments is not None:
            self.segments.merge(other.segments)
        self.changed += other.changed
        self.sample += other.sample
        return self


def sample_numbers(n_rows: int, n_classes: int) -> NDArray[np.int64]:
    """Return the sorted numbers of the rows in the sample; they depend on the size of the data alone.

    >>> sample_numbers(5, 2), len(sample_numbers(10**9, 1000))
    (array([0, 1, 2, 3, 4]), 8388)
    """
    size = min(n_rows, SAMPLE_ROWS, max(SAMPLE_NUMBERS // n_classes, 1))
    rng = np.random.default_rng(0)
    return np.sort(rng.choice(n_rows, size, replace=False, shuffle=False)).astype(np.int64)


def _measure(
    empty: Callable[[], _Part], calibrator: Calibrator | None, rows: NDArray[np.int64], piece: Piece
) -> _Part:
    part = empty()
    for batch in read_piece(piece):
        with rows_from(batch.start):
            part.update(batch, calibrator, rows)
    return part


def evaluate_batches(
    source: Batches,
    calibrator: Calibrator | None = None,
    metrics: str | Iterable[str] | None = None,
    confidence: float | None = None,
    *,
    positive: int = 1,
    runner: Runner | None = None,
    advance: Callable[[int], None] | None = None,
) -> BatchedEvaluation:
    """Evaluate the probabilities of a source, before and after calibration, in one pass over its rows.

    Parameters
    ----------
    source : Batches
        Files with labels.
    calibrator : Calibrator, optional
    metrics, confidence, positive
        As for :func:`hcal.evaluate`.
    runner : Runner, optional
        Runs the pieces of work, then the evaluations of the sample; this process by default. The numbers do not
        depend on it.
    advance : callable, optional
        Called after each piece with its number of rows.

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
    wanted = {*chosen_metrics(metrics), "nll", "accuracy"}  # by these a collapse is recognised
    source.check_labels()
    pieces = source.pieces()
    # Counts do not tell which rows depend on each other: with groups the sample alone is certified.
    segmented = bool(source.first.by) and source.first.groups is None
    rows = sample_numbers(sum(map(len, pieces)), source.n_classes)
    empty = partial(_Part, source.n_classes, [n for n in NAMES if n in wanted], positive, segmented)
    whole = add_up(
        partial(_measure, empty, calibrator, rows), pieces, empty, runner=runner, advance=advance
    )

    sample = Rows.joined([block for block in whole.sample if len(block)])
    names = (
        None if source.classes is None else [str(name) for name in source.classes]
    )  # of positions
    asked: dict[str, Any] = {
        "metrics": metrics,
        "confidence": confidence,
        "positive": positive,
        "classes": names,
    }
    asked |= {"sample_weight": sample.weight, "groups": sample.groups, "by": sample.by}
    sides = [None] if calibrator is None else [None, calibrator]
    drawn = (runner or map)(partial(_evaluate_sample, sample, asked), sides)
    found: list[Evaluation] = []
    for evaluation, streamed in zip(drawn, (whole.before, whole.after), strict=False):
        found.append(_over_all(evaluation, streamed, *found))
    result, before, overlap = found[-1], None if calibrator is None else found[0], None
    record = getattr(calibrator, "fit_", None)
    if record is not None and whole.rows is not None:
        overlap = leakage.overlap(record.fingerprint, whole.rows)
    how = dict.fromkeys(result.results, "all rows")
    if len(sample) < result.n:
        bounds = streamed.bounds()
        how |= {
            n: f"all rows, within {bounds[n]:.1e}" if n in NAMES else "sample"
            for n in how
            if bounds.get(n, 1)
        }
        if whole.segments is not None:
            certificate = whole.segments.result(confidence or 0.95, classes=names)
            verdict = result.assessment
            if verdict is not None:
                verdict = with_segments(verdict, certificate)
            result = replace(result, certificate=certificate, assessment=verdict)
    return BatchedEvaluation(result, before, how, whole.changed, overlap, sample)


def _evaluate_sample(
    sample: Rows, asked: dict[str, Any], calibrator: Calibrator | None
) -> Evaluation:
    """Evaluate the sample as it is (None), or after calibration; only paired intervals need both at once."""
    raw = probs = to_probs(sample.scores, sample.kind)
    if calibrator is not None:
        probs = calibrator.probs_of(calibrator.rows_like(sample))
        asked = asked | {"baseline": None if asked["confidence"] is None else raw}
    return evaluate(probs, sample.y, **asked)


def _over_all(
    drawn: Evaluation, streamed: StreamingMetrics, before: Evaluation | None = None
) -> Evaluation:
    """Return the evaluation of a sample with the numbers of all rows in place of the sample's, where there are any."""
    values: dict[str, Any] = {}
    if drawn.n < streamed.n:
        values = streamed.result() | {"mean_confidence": streamed.mean_confidence}
    told = {
        name: values.get(name, getattr(drawn, name))
        for name in ("accuracy", "mean_confidence", "nll")
    }
    results = {n: replace(r, value=values.get(n, r.value)) for n, r in drawn.results.items()}
    paired, differences = drawn.differences, {}
    if before is not None:
        for n, r in results.items():
            known = paired.get(n, Difference(nan, nan))
            differences[n] = replace(known, before=before[n], change=r.value - before[n])
    reasons = collapse_reasons(
        **told,
        n_classes=drawn.k,
        nll_before=None if before is None else before.nll,
        rows=streamed.n,
    )
    told |= {
        "n": streamed.n,
        "results": results,
        "differences": differences,
        "collapse": tuple(reasons),
    }
    return replace(drawn, **told)
