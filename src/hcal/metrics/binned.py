"""Top-label errors over bins: of the rows for which 80 % is stated, does the event happen for 80 %?

Sums over a bin are differences of prefix sums over the sorted probabilities. A bin holds all rows of equal probability
or none of them, and every row is in a bin. Some metrics count rows; for them an integer weight stands for that many
copies of a row.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from hcal.frames import AnyArray
from hcal.metrics.by_chance import DrawnGaps, Noise
from hcal.metrics.registry import metric
from hcal.metrics.sample import (
    Event,
    PositiveClass,
    Ranked,
    Sample,
    Vector,
    as_sample,
    check_integer,
)
from hcal.numerics import Float64, IntArray

#: The published number of bins.
BINS: Final = 15
#: ``ace`` clips probabilities to at least this distance from 0 and 1, as published.
_CLIP = float(np.finfo(np.float32).eps)
#: The sweep tries blocks of numbers of bins, of about this many bins in total.
_SWEEP_BLOCK = 1 << 15


class Bins(NamedTuple):
    """Sums of weight, weight·conf and weight·hit in bins, each of shape (bins,)."""

    weight: Float64
    conf: Float64
    hit: Float64

    @property
    def full(self) -> NDArray[np.bool_]:
        """Whether a bin holds any weight."""
        return self.weight > 0

    @property
    def gap(self) -> Float64:
        """|mean probability − frequency| of each bin; 0 for an empty bin."""
        weight = np.where(self.full, self.weight, 1.0)
        return np.abs(self.conf - self.hit) / weight

    @property
    def mean_gap(self) -> float:
        """The unweighted mean gap of the bins that are not empty."""
        return float(self.gap[self.full].mean())

    def error(self, total: float, order: float = 1) -> float:
        """Return (Σ_b (n_b/N)·gap_b^r)^(1/r)."""
        share = self.weight / total
        return float((share * self.gap**order).sum() ** (1 / order))


# -- where the bins end -----------------------------------------------------------------------------

#: Return a number of bins, or refuse it.
check_bins = partial(check_integer, "bins", least=1)


def at_rows(ranked: Ranked, positions: IntArray) -> Bins:
    """Return the bins between consecutive positions in the sorted rows."""
    weight, conf, hit = np.diff(ranked.prefix[:, positions])
    return Bins(weight, conf, hit)


def noise_at(s: Sample, ranked: Ranked, positions: IntArray) -> Noise:
    """Return what chance adds to the bins between consecutive positions in the sorted rows."""
    weight, stated, _ = np.diff(ranked.prefix[:, positions])
    variance = np.diff(ranked.noise_prefix[positions])
    weighted = variance
    if s.weight is not None:
        weighted = np.diff(ranked.weighted_noise_prefix[positions])
    return Noise(weight, stated, variance, weighted)


def edge_positions(conf: Vector, edges: Float64) -> IntArray:
    """Return where bins (lo, hi] between ascending edges begin and end; the first one is closed, [lo, hi].

    ``conf`` (N,) ascend, and the last of the edges (bins + 1,) is not below them.

    >>> edge_positions(np.array([0.0, 0.5, 0.75]), np.array([0.0, 0.5, 1.0]))
    array([0, 2, 3])
    """
    ends = np.searchsorted(conf, edges[1:], side="right")
    return np.concatenate([[0], ends])


def width_positions(ranked: Ranked, bins: int) -> IntArray:
    """Return where bins (lo, hi] of equal width on [0, 1] begin and end; the first one is closed."""
    return edge_positions(ranked.conf, np.linspace(0, 1, check_bins(bins) + 1))


def equal_width(s: Sample, bins: int) -> Bins:
    """Return bins (lo, hi] of equal width on [0, 1]; the first one is closed."""
    return at_rows(s.ranked, width_positions(s.ranked, bins))


def clipped(ranked: Ranked) -> Ranked:
    """Return the events with probabilities clipped away from 0 and 1, for ``ace``."""
    conf = np.clip(ranked.conf, _CLIP, 1 - _CLIP)
    return Ranked(conf, ranked.hit, ranked.weight, ranked.run_ends)


def clipped_positions(ranked: Ranked, bins: int) -> IntArray:
    """Return where bins [lo, hi) of equal width begin and end; the last one is closed."""
    edges = np.linspace(0, 1, check_bins(bins) + 1)
    inner = np.searchsorted(ranked.conf, edges[1:-1], side="left")
    return np.concatenate([[0], inner, [len(ranked.conf)]])


def clipped_equal_width(s: Sample, bins: int) -> Bins:
    """Return bins [lo, hi) of equal width, the last one closed, of clipped probabilities (for ``ace``)."""
    ranked = clipped(s.ranked)
    return at_rows(ranked, clipped_positions(ranked, bins))


def width_noise(s: Sample) -> Noise:
    """Return what chance adds to the 15 bins of equal width."""
    return noise_at(s, s.ranked, width_positions(s.ranked, BINS))


def clipped_noise(s: Sample) -> Noise:
    """Return what chance adds to the 15 bins of clipped probabilities."""
    ranked = clipped(s.ranked)
    return noise_at(s, ranked, clipped_positions(ranked, BINS))


def _width_gaps(s: Sample) -> DrawnGaps:
    return width_noise(s).gaps(copies=s.is_whole)


def _mass_gaps(s: Sample) -> DrawnGaps:
    return noise_at(s, s.ranked, mass_positions(s, BINS)).gaps(copies=True)


def mean_share(gaps: DrawnGaps) -> float:
    """Return the unweighted mean by chance of the gaps of the bins that are not empty (for ``ace``)."""
    return float(gaps.share[gaps.weight > 0].mean())


def mass_positions(s: Sample, bins: int) -> IntArray:
    """Return where bins (lo, hi] between interpolated quantiles begin and end (for ``ece_em``)."""
    ranked = s.ranked
    last = s.total - 1
    ranks = np.minimum(np.linspace(0, s.total, check_bins(bins) + 1), last)
    below = np.floor(ranks)
    low = _value_of_copy(ranked, below)
    high = _value_of_copy(ranked, np.minimum(below + 1, last))
    edges = low + (ranks - below) * (high - low)
    positions = edge_positions(ranked.conf, edges)

    # The published definition has a golden value for the predicted class: its first bin (lo, hi] is open at the
    # smallest confidence. That leaves out one row; where more rows than one share the value, they stay in.
    lowest = int(np.searchsorted(ranked.conf, edges[0], side="right"))
    if not s.data.judges_positive and ranked.prefix[0, lowest] == 1 and s.total > 1:
        positions[0] = lowest
    return positions


def _value_of_copy(ranked: Ranked, rank: Float64) -> Vector:
    """Return the probability of the copies with these ranks, which count from 0."""
    ends = ranked.prefix[0, 1:]
    return ranked.conf[np.searchsorted(ends, rank, side="right")]


def rank_positions(ranked: Ranked, ranks: Float64) -> IntArray:
    """Return the ends of runs of equal probabilities that cut the copies at these ranks, or just above.

    ``ranks`` (bins + 1,) ascend from 0 to the number of copies. Bins that ties leave empty are left out.
    """
    return ranked.cuts[np.unique(np.searchsorted(ranked.cut_copies, ranks, side="left"))]


# -- the metrics ------------------------------------------------------------------------------------


@metric(
    "top-label",
    "ECE, equal width",
    "mean gap between confidence and accuracy, 15 equal-width bins",
    label="ECE^ew",
    of_hits=True,
    by_chance=lambda s, _: float(_width_gaps(s).error(s.total)),
)
def ece_ew(  # noqa: PLR0913
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
    bins: int = 15,
    order: float = 1,
) -> float:
    """Return the expected calibration error over equal-width bins (lo, hi]; empty bins count nothing.

    Parameters
    ----------
    bins : int
    order : float
        r in (Σ_b (n_b/N)|conf_b − acc_b|^r)^(1/r).

    Examples
    --------
    >>> ece_ew([[0.25, 0.75]], [1])
    0.25
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    return equal_width(s, bins).error(s.total, order)


@metric(
    "top-label",
    "ECE, equal mass",
    "the same with 15 bins of equal size",
    label="ECE^em",
    weights="counts",
    of_hits=True,
    by_chance=lambda s, _: float(_mass_gaps(s).error(s.total)),
)
def ece_em(  # noqa: PLR0913
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
    bins: int = 15,
    order: float = 1,
) -> float:
    """Return the calibration error over equal-mass bins (lo, hi] between interpolated quantiles.

    Equal probabilities share a bin, and bins that ties leave empty are skipped. As published, the one row with the
    smallest confidence of a predicted class falls in no bin; of two classes, every row is in a bin.

    Examples
    --------
    >>> ece_em([[0.25, 0.75], [0.5, 0.5]], [1, 0])
    0.375
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    s.need_repetitions("ece_em")
    return at_rows(s.ranked, mass_positions(s, bins)).error(s.total, order)


@metric(
    "top-label",
    "ECE, r = 2",
    "root-mean-square gap, 15 equal-width bins: large gaps weigh more",
    label="ECE (r=2)",
    of_hits=True,
    by_chance=lambda s, _: float(_width_gaps(s).error(s.total, order=2)),
)
def ece_r2(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
    bins: int = 15,
) -> float:
    """Return the root-mean-square calibration error over equal-width bins (lo, hi].

    Examples
    --------
    >>> ece_r2([[0.25, 0.75]], [1])
    0.25
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    return equal_width(s, bins).error(s.total, order=2)


@metric(
    "top-label",
    "debiased ECE",
    "equal-mass ECE less what chance alone adds; may be negative",
    label="dECE",
    kind="debiased",
    weights="counts",
    of_hits=True,
)
def dece(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
    bins: int = 15,
) -> float:
    """Return the debiased calibration error over equal-mass bins; signed, not clipped at 0.

    Kumar, Liang, Ma: Verified Uncertainty Calibration, NeurIPS 2019. Twice the plug-in error minus the
    mean over bins of E|Normal(acc_b − conf_b, acc_b(1 − acc_b)/n_b)|. Boundaries are round(N·k/bins), half to
    even, moved up to the end of a run of equal probabilities. The mean is unweighted, as published, unless such a
    run makes bins unequal: then a bin weighs as much as its rows, or calibrated predictions would be below 0.

    Examples
    --------
    >>> dece([[0.25, 0.75], [0.0, 1.0]], [1, 1])
    0.125
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    s.need_repetitions("dece")
    ranks = np.rint(s.total * np.arange(check_bins(bins) + 1) / bins)
    cells = at_rows(s.ranked, rank_positions(s.ranked, ranks))
    rate = cells.hit / cells.weight
    spread = np.sqrt(np.maximum(rate * (1 - rate), 0) / cells.weight)
    expected = folded_normal_mean(cells.gap, spread)
    bins_are_equal = np.array_equal(cells.weight, np.diff(ranks))
    mean_expected = np.average(expected, weights=None if bins_are_equal else cells.weight)
    return 2 * cells.error(s.total) - float(mean_expected)


def folded_normal_mean(mu: Vector, sigma: Vector) -> Vector:
    """Return E|Normal(μ, σ²)|, elementwise; |μ| where σ = 0.

    >>> folded_normal_mean(np.array([0.0, -2.0]), np.array([1.0, 0.0])).round(4)
    array([0.7979, 2.    ])
    """
    z = np.divide(mu, sigma, out=np.zeros_like(mu), where=sigma > 0)
    around_zero = sigma * np.sqrt(2 / np.pi) * np.exp(-0.5 * z * z)
    beyond = mu * (1 - 2 * ndtr(-z))
    return np.where(sigma > 0, around_zero + beyond, np.abs(mu))


@metric(
    "top-label",
    "ACE",
    "mean gap where every non-empty equal-width bin counts the same",
    of_hits=True,
    by_chance=lambda s, _: mean_share(clipped_noise(s).gaps(copies=s.is_whole)),
)
def ace(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
    bins: int = 15,
) -> float:
    """Return the unweighted mean gap of the non-empty equal-width bins [lo, hi), the last one closed.

    Confidences are clipped to [ε, 1 − ε] with ε = 1.19e-7 first, as published.

    Examples
    --------
    >>> round(ace([[0.25, 0.75], [1.0, 0.0]], [1, 0]), 6)
    0.125
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    return clipped_equal_width(s, bins).mean_gap


@metric(
    "top-label",
    "sweep ECE, r = 1",
    "ECE with as many equal-mass bins as keep accuracy monotone",
    label="ECE^s (r=1)",
    weights="copies",
    of_hits=True,
)
def ece_s1(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
) -> float:
    """Return the sweep calibration error of order 1: as many equal-mass bins as keep accuracy monotone.

    Roelofs et al.: Mitigating Bias in Calibration Error Estimation, AISTATS 2022. Boundaries are moved up to the end
    of a run of equal probabilities.

    Examples
    --------
    >>> round(ece_s1([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    s.need_repetitions("ece_s1", copied=True)
    return _sweep(s.ranked).error(s.total, order=1)


@metric(
    "top-label",
    "sweep ECE, r = 2",
    "the same, root-mean-square",
    label="ECE^s (r=2)",
    weights="copies",
    of_hits=True,
)
def ece_s2(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
) -> float:
    """Return the sweep calibration error of order 2 (see :func:`ece_s1`).

    Examples
    --------
    >>> round(ece_s2([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    s.need_repetitions("ece_s2", copied=True)
    return _sweep(s.ranked).error(s.total, order=2)


def _sweep(ranked: Ranked) -> Bins:
    """Return the equal-mass bins of the largest number, counting up from 2, for which accuracy is still monotone."""
    n = int(np.rint(ranked.total))
    runs = at_rows(ranked, ranked.cuts)
    if _is_monotone(runs):  # then the bins of every number are
        return _sweep_bins(ranked, n, max(n - 1, 1))
    few = min(n, len(runs.weight))
    for b in range(2, few):
        if not _is_monotone(_sweep_bins(ranked, n, b)):
            return _sweep_bins(ranked, n, b - 1)
    return _sweep_bins(ranked, n, _last_monotone(ranked, n, max(few, 2)))


def _last_monotone(ranked: Ranked, n: int, first: int) -> int:
    """Return one less than the least number of bins, from ``first`` on, whose frequencies fall somewhere.

    There are more bins than runs of equal probabilities, so blocks of numbers are tried at once.
    """
    copies = np.rint(ranked.cut_copies).astype(np.int64)
    hits = ranked.prefix[2, ranked.cuts]
    runs = np.arange(1, len(copies))
    step = max(1, _SWEEP_BLOCK // len(copies))
    for start in range(first, n, step):
        numbers = np.arange(start, min(start + step, n))
        bin_of_run = copies * numbers[:, None] // n
        closes = np.diff(bin_of_run, axis=1) > 0  # the run is the last of its bin
        closed = np.maximum.accumulate(np.where(closes, runs, 0), axis=1)
        begin = np.zeros_like(closed)
        begin[:, 1:] = closed[:, :-1]
        size = np.maximum(copies[runs] - copies[begin], 1)
        rate = (hits[runs] - hits[begin]) / size
        before = np.take_along_axis(rate, np.maximum(begin - 1, 0), axis=1)
        falls = (closes & (begin > 0) & (rate < before)).any(axis=1)
        if falls.any():
            return int(numbers[falls.argmax()]) - 1
    return max(n - 1, 1)


def _sweep_bins(ranked: Ranked, n: int, b: int) -> Bins:
    """Return b bins of equal mass: the copy of rank i belongs to bin floor(i·b/n), with those that are tied with it."""
    ranks = -(-np.arange(b + 1) * n // b)
    return at_rows(ranked, rank_positions(ranked, ranks.astype(np.float64)))


def _is_monotone(bins: Bins) -> bool:
    """Return whether the frequencies of the bins that hold rows never fall."""
    rate = bins.hit[bins.full] / bins.weight[bins.full]
    return bool((np.diff(rate) >= 0).all())


@metric(
    "top-label",
    "MCE",
    "largest gap of any equal-width bin; noisy where a bin holds few samples",
    of_hits=True,
    by_chance=lambda s, _: _width_gaps(s).largest(),
)
def mce(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    event: Event = "auto",
    positive: PositiveClass = None,
    bins: int = 15,
) -> float:
    """Return the largest gap of the equal-width bins (lo, hi] that hold a sample.

    Examples
    --------
    >>> mce([[0.25, 0.75], [1.0, 0.0]], [1, 0])
    0.25
    """
    s = as_sample(probs, y, sample_weight, event, positive)
    return float(equal_width(s, bins).gap.max())
