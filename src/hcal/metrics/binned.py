"""Top-label errors over bins: are 8 of 10 predictions with a confidence of 0.8 right?

Sums over a bin are differences of prefix sums over the sorted confidences. Some metrics count rows; for them an integer
weight stands for that many *copies* of a row, and a bin boundary may fall between two copies. Copies are identical, so
linear interpolation of the prefix sums is exact there.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from hcal.metrics.registry import metric
from hcal.metrics.sample import Ranked, Sample, Vector, as_sample, check_integer
from hcal.numerics import Float64, IntArray

#: ``ace`` clips confidences to at least this distance from 0 and 1, as published.
_CLIP = float(np.finfo(np.float32).eps)


class Bins(NamedTuple):
    """Sums of weight, weight·confidence and weight·hit in bins, each of shape (bins,)."""

    weight: Float64
    conf: Float64
    hit: Float64

    @property
    def full(self) -> Any:
        """Whether a bin holds any weight."""
        return self.weight > 0

    @property
    def gap(self) -> Float64:
        """|mean confidence − accuracy| of each bin; 0 for an empty bin."""
        return np.abs(self.conf - self.hit) / np.where(self.full, self.weight, 1.0)

    @property
    def mean_gap(self) -> float:
        """The unweighted mean gap of the bins that are not empty."""
        return float(self.gap[self.full].mean())

    def error(self, total: float, order: float = 1) -> float:
        """Return (Σ_b (n_b/N)·gap_b^r)^(1/r)."""
        return float((self.weight / total * self.gap**order).sum() ** (1 / order))


def at_rows(r: Ranked, positions: IntArray) -> Bins:
    """Return the bins between consecutive positions in the sorted rows."""
    return Bins(*np.diff(r.prefix[:, positions]))


def at_copies(r: Ranked, copies: Float64) -> Bins:
    """Return the bins between consecutive ranks of copies, counted from the least confident."""
    weight, conf, hit = r.prefix
    return Bins(np.diff(copies), *(np.diff(np.interp(copies, weight, x)) for x in (conf, hit)))


#: Return a number of bins, or refuse it.
check_bins = partial(check_integer, "bins", least=1)


def between_edges(r: Ranked, edges: Float64) -> Bins:
    """Return the bins (lo, hi] between ascending edges."""
    return at_rows(r, np.searchsorted(r.conf, edges, side="right").astype(np.int64))


def equal_width(s: Sample, bins: int) -> Bins:
    """Return bins (lo, hi] of equal width on [0, 1]; they hold every row, because a confidence is never 0."""
    return between_edges(s.ranked, np.linspace(0, 1, check_bins(bins) + 1))


def clipped_equal_width(s: Sample, bins: int) -> Bins:
    """Return bins [lo, hi) of equal width, the last one closed, of clipped confidences (for ``ace``)."""
    edges = np.linspace(0, 1, check_bins(bins) + 1)
    r = s.ranked
    clipped = Ranked(np.clip(r.conf, _CLIP, 1 - _CLIP), r.hit, r.weight)
    cuts = np.searchsorted(clipped.conf, edges[1:-1], side="left").astype(np.int64)
    return at_rows(clipped, np.concatenate([[0], cuts, [s.n]]))


@metric("top-label", "ECE, equal width", "mean gap between confidence and accuracy, 15 equal-width bins",
        label="ECE^ew", of_hits=True)  # fmt: skip
def ece_ew(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15, order: float = 1
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
    s = as_sample(probs, y, sample_weight)
    return equal_width(s, bins).error(s.total, order)


@metric("top-label", "ECE, equal mass", "the same with 15 bins of equal size",
        label="ECE^em", weights="counts", of_hits=True)  # fmt: skip
def ece_em(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15, order: float = 1
) -> float:
    """Return the calibration error over equal-mass bins (lo, hi] between interpolated quantiles.

    As published, the smallest confidence falls in no bin, and bins that ties leave empty are skipped.

    Examples
    --------
    >>> ece_em([[0.25, 0.75], [0.5, 0.5]], [1, 0])
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("ece_em")
    r, last = s.ranked, s.total - 1
    where = np.minimum(np.linspace(0, s.total, check_bins(bins) + 1), last)
    low = np.floor(where)
    ends = r.prefix[0, 1:]
    left, right = (
        r.conf[np.searchsorted(ends, np.minimum(i, last), side="right")] for i in (low, low + 1)
    )
    return between_edges(r, left + (where - low) * (right - left)).error(s.total, order)


@metric("top-label", "ECE, r = 2", "root-mean-square gap, 15 equal-width bins: large gaps weigh more",
        label="ECE (r=2)", of_hits=True)  # fmt: skip
def ece_r2(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the root-mean-square calibration error over equal-width bins (lo, hi].

    Examples
    --------
    >>> ece_r2([[0.25, 0.75]], [1])
    0.25
    """
    return ece_ew(probs, y, sample_weight=sample_weight, bins=bins, order=2)


@metric("top-label", "debiased ECE", "equal-mass ECE less what chance alone adds; may be negative",
        label="dECE", kind="debiased", weights="counts", of_hits=True)  # fmt: skip
def dece(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the debiased calibration error over equal-mass bins; signed, not clipped at 0.

    Kumar, Liang, Ma: Verified Uncertainty Calibration, NeurIPS 2019. Twice the plug-in error minus the
    (unweighted, as published) mean over bins of E|Normal(acc_b − conf_b, acc_b(1 − acc_b)/n_b)|. Boundaries
    are round(N·k/bins), half to even; there are fewer bins where N is smaller.

    Examples
    --------
    >>> dece([[0.25, 0.75], [0.0, 1.0]], [1, 1])
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("dece")
    b = at_copies(s.ranked, np.rint(s.total * np.arange(check_bins(bins) + 1) / bins))
    acc = b.hit[b.full] / b.weight[b.full]
    spread = np.sqrt(np.maximum(acc * (1 - acc), 0) / b.weight[b.full])
    return 2 * b.error(s.total) - float(folded_normal_mean(b.gap[b.full], spread).mean())


def folded_normal_mean(mu: Vector, sigma: Vector) -> Vector:
    """Return E|Normal(μ, σ²)|, elementwise; |μ| where σ = 0.

    >>> folded_normal_mean(np.array([0.0, -2.0]), np.array([1.0, 0.0])).round(4)
    array([0.7979, 2.    ])
    """
    z = np.divide(mu, sigma, out=np.zeros_like(mu), where=sigma > 0)
    smooth = sigma * np.sqrt(2 / np.pi) * np.exp(-0.5 * z * z) + mu * (1 - 2 * ndtr(-z))
    return np.where(sigma > 0, smooth, np.abs(mu))


@metric(
    "top-label",
    "ACE",
    "mean gap where every non-empty equal-width bin counts the same",
    of_hits=True,
)
def ace(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the unweighted mean gap of the non-empty equal-width bins [lo, hi), the last one closed.

    Confidences are clipped to [ε, 1 − ε] with ε = 1.19e-7 first, as published.

    Examples
    --------
    >>> round(ace([[0.25, 0.75], [1.0, 0.0]], [1, 0]), 6)
    0.125
    """
    return clipped_equal_width(as_sample(probs, y, sample_weight), bins).mean_gap


@metric("top-label", "sweep ECE, r = 1", "ECE with as many equal-mass bins as keep accuracy monotone",
        label="ECE^s (r=1)", weights="copies", of_hits=True)  # fmt: skip
def ece_s1(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the sweep calibration error of order 1: as many equal-mass bins as keep accuracy monotone.

    Roelofs et al.: Mitigating Bias in Calibration Error Estimation, AISTATS 2022.

    Examples
    --------
    >>> round(ece_s1([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    return _sweep_error(as_sample(probs, y, sample_weight), 1)


@metric("top-label", "sweep ECE, r = 2", "the same, root-mean-square",
        label="ECE^s (r=2)", weights="copies", of_hits=True)  # fmt: skip
def ece_s2(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the sweep calibration error of order 2 (see :func:`ece_s1`).

    Examples
    --------
    >>> round(ece_s2([[0.25, 0.75], [0.25, 0.75]], [1, 1]), 6)
    0.25
    """
    return _sweep_error(as_sample(probs, y, sample_weight), 2)


def _sweep_error(s: Sample, order: int) -> float:
    s.need_repetitions(f"ece_s{order}", copied=True)
    return _sweep(s.ranked).error(s.total, order)


def _sweep(r: Ranked) -> Bins:
    """Return the equal-mass bins of the largest number, counting up from 2, for which accuracy is still monotone."""
    n = int(np.rint(r.total))
    weight, _, hits = r.prefix
    if n > 2 and (np.diff(r.hit[r.weight > 0]) >= 0).all():
        # Every number of bins is monotone; n − 1 bins have two copies in the first and one in each other bin.
        return at_copies(r, np.concatenate([[0.0, 2.0], weight[weight > 2]]))
    most = 1
    for b in range(2, n):
        bounds = _sweep_bounds(n, b)
        if (np.diff(np.diff(np.interp(bounds, weight, hits)) / np.diff(bounds)) < 0).any():
            break
        most = b
    return at_copies(r, _sweep_bounds(n, most))


def _sweep_bounds(n: int, b: int) -> Float64:
    """Return the first rank of each of b bins, where rank i is in bin floor(i·b/n), and n itself."""
    return np.asarray(-(-np.arange(b + 1) * n // b), dtype=np.float64)


@metric("top-label", "MCE", "largest gap of any equal-width bin; noisy where a bin holds few samples",
        of_hits=True)  # fmt: skip
def mce(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the largest gap of the equal-width bins (lo, hi] that hold a sample.

    Examples
    --------
    >>> mce([[0.25, 0.75], [1.0, 0.0]], [1, 0])
    0.25
    """
    return float(equal_width(as_sample(probs, y, sample_weight), bins).gap.max())
