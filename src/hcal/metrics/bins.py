"""Bins on sorted confidences, all through prefix sums, and the errors over them.

Positions are counts of *copies*: an integer weight equals repetition, so a boundary may fall inside a row
of weight 3. Copies of a row are identical, hence linear interpolation of the prefix sums is exact there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcal.metrics.sample import Sample, Vector
from hcal.runtime.numerics import IntArray


@dataclass(frozen=True)
class Bins:
    """Weight, mean confidence and accuracy of the non-empty bins, each of shape (bins,)."""

    weight: Vector
    conf: Vector
    acc: Vector

    @property
    def gap(self) -> Vector:
        """|confidence − accuracy| of each bin."""
        return np.abs(self.conf - self.acc)


def _bins(weight: Vector, conf: Vector, hit: Vector) -> Bins:
    full = weight > 0
    w = weight[full]
    return Bins(w, conf[full] / w, hit[full] / w)


def at_rows(s: Sample, positions: IntArray) -> Bins:
    """Return the bins between consecutive positions in the sorted rows."""
    weight, conf, hit = (np.diff(x[positions]) for x in s.prefix)
    return _bins(weight, conf, hit)


def at_copies(s: Sample, copies: Vector) -> Bins:
    """Return the bins between consecutive numbers of copies, counted from the least confident."""
    weight, conf, hit = s.prefix
    return _bins(
        np.diff(copies), np.diff(np.interp(copies, weight, conf)), np.diff(np.interp(copies, weight, hit))
    )


def check_bins(bins: int) -> int:
    """Check a number of bins.

    Examples
    --------
    >>> check_bins(15)
    15
    """
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise ValueError(f"bins must be a positive integer, got {bins!r}")
    return int(bins)


def equal_width(s: Sample, bins: int) -> Bins:
    """Bins (lo, hi] of equal width on [0, 1]. A confidence is never 0, so none is lost."""
    edges = np.linspace(0, 1, check_bins(bins) + 1)
    return at_rows(s, np.searchsorted(s.data.conf_sorted, edges, side="right").astype(np.int64))


def equal_mass(s: Sample, bins: int) -> Bins:
    """Bins with boundaries round(N·k/bins), half to even; fewer bins where N is smaller."""
    return at_copies(s, np.rint(s.total * np.arange(check_bins(bins) + 1) / bins))


def quantile_edges(s: Sample, bins: int) -> Bins:
    """Bins (lo, hi] between interpolated quantiles of the confidences; the smallest one is in no bin."""
    conf, weight = s.data.conf_sorted, s.prefix[0][1:]
    where = np.minimum(np.linspace(0, s.total, check_bins(bins) + 1), s.total - 1)
    low = np.floor(where)
    copy = [conf[np.searchsorted(weight, np.minimum(i, s.total - 1), side="right")] for i in (low, low + 1)]
    edges = copy[0] + (where - low) * (copy[1] - copy[0])
    edges[-1] = conf[-1] if s.weight is None else conf[s.w_sorted > 0][-1]
    return at_rows(s, np.searchsorted(conf, edges, side="right").astype(np.int64))


def sweep(s: Sample) -> Bins:
    """The most equal-mass bins, counting up from 2, before accuracies stop being non-decreasing."""
    n = round(s.total)
    best = at_copies(s, np.array([0.0, n]))
    if n < 3:
        return best
    hit = s.data.hit_sorted[s.w_sorted > 0]
    if (np.diff(hit) >= 0).all():  # every number of bins passes; do not try all of them
        # n - 1 bins: two copies in the first, one in each other; those of one row have the same gap.
        return at_copies(s, np.concatenate([[0.0, 2.0], s.prefix[0][s.prefix[0] > 2]]))
    weight, _, hits = s.prefix
    for b in range(2, n):
        bounds = _sweep_bounds(n, b)
        acc = np.diff(np.interp(bounds, weight, hits)) / np.diff(bounds)
        if (np.diff(acc) < 0).any():
            return at_copies(s, _sweep_bounds(n, b - 1))
    return at_copies(s, _sweep_bounds(n, n - 1))


def _sweep_bounds(n: int, b: int) -> Vector:
    """First ranks of the bins of rank i -> floor(i·b/n), and n itself."""
    return (-(-np.arange(b + 1) * n // b)).astype(np.float64)


def error(bins: Bins, total: float, order: float = 1) -> float:
    """Return (Σ_b (n_b/N)·gap_b^r)^(1/r)."""
    return float(((bins.weight / total * bins.gap**order).sum()) ** (1 / order))
