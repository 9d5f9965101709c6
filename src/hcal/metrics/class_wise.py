"""Class-wise errors: is every column of the probabilities calibrated on its own?

Only the entries above the first bin edge (or above 1/K) are ever listed; the first bin follows from the
column totals by difference. So 1000 classes cost little more than reading the array once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.metrics.bins import check_bins
from hcal.metrics.documented import documented_metric
from hcal.metrics.kmeans import cluster_columns
from hcal.metrics.sample import Entries, Sample, Vector, as_sample
from hcal.runtime.numerics import Float64, IntArray


@dataclass(frozen=True)
class CellSums:
    """Weight and Σ w·(p − [y = k]) of every (class, bin), each of shape (K, bins)."""

    weight: Float64
    gap: Float64

    def errors(self, total: Any, order: float = 1) -> Vector:
        """Return the error of every class, (Σ_b (n_b/N)|gap_b/n_b|^r)^(1/r), shape (K,)."""
        if order == 1:
            return np.asarray(np.abs(self.gap).sum(axis=1) / total)
        mean = np.divide(np.abs(self.gap), self.weight, out=np.zeros_like(self.gap), where=self.weight > 0)
        return np.asarray((self.weight * mean**order).sum(axis=1) / total) ** (1 / order)


def equal_width_cells(s: Sample, bins: int) -> CellSums:
    """Return the equal-width cells (lo, hi]; an entry p = 0 lies in no bin."""
    edges = np.linspace(0, 1, check_bins(bins) + 1)
    e = s.data.entries(float(edges[1]))
    which = np.searchsorted(edges, e.value, side="left") - 1
    cells = _sum_cells(s, e, np.minimum(which, bins - 1), bins)
    weight = s.total - cells.weight.sum(axis=1) - s.zero_weights
    lost = np.bincount(s.y, weights=s.w * (s.data.chosen == 0), minlength=s.k)  # labels at p = 0: in no bin
    total = s.column_sums - np.bincount(s.y, weights=s.w, minlength=s.k) + lost
    gap = total - cells.gap.sum(axis=1)
    cells.weight[:, 0] += weight
    cells.gap[:, 0] += np.where(weight > 0, gap, 0.0)
    return cells


def _sum_cells(s: Sample, e: Entries, which: IntArray, bins: int) -> CellSums:
    flat = e.column * bins + which
    w = s.w[e.row]
    # An empty list of entries would give integer counts: hence the float64.
    weight = np.bincount(flat, weights=w, minlength=s.k * bins).astype(np.float64)
    gap = np.bincount(flat, weights=w * (e.value - e.mark), minlength=s.k * bins).astype(np.float64)
    return CellSums(weight.reshape(s.k, bins), gap.reshape(s.k, bins))


@documented_metric()
def cwece_a(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15, order: float = 1
) -> float:
    """Return the class-wise calibration error: the mean over classes of equal-width (lo, hi] errors.

    Examples
    --------
    >>> cwece_a([[0.25, 0.75]], [1])
    0.25
    """
    s = as_sample(probs, y, sample_weight)
    return float(equal_width_cells(s, bins).errors(s.total, order).mean())


@documented_metric()
def cwece_s(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 14) -> float:
    """Return the class-wise calibration error summed over classes, 14 bins as published.

    Examples
    --------
    >>> cwece_s([[0.25, 0.75]], [1])
    0.5
    """
    s = as_sample(probs, y, sample_weight)
    return float(equal_width_cells(s, bins).errors(s.total).sum())


@documented_metric()
def cwece_r2(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the mean over classes of the root-mean-square error over equal-width bins.

    Examples
    --------
    >>> cwece_r2([[0.25, 0.75]], [1])
    0.25
    """
    return cwece_a(probs, y, sample_weight=sample_weight, bins=bins, order=2)


def _threshold(threshold: float | None, k: int) -> float:
    value = 1 / k if threshold is None else threshold
    if not 0 <= value < 1:
        raise ValueError(f"threshold must lie in [0, 1), got {threshold!r}")
    return value


def thresholded_cells(s: Sample, bins: int, threshold: float | None) -> CellSums:
    """Return the cells [lo, hi) of the entries above the threshold only."""
    e = s.data.entries(_threshold(threshold, s.k))
    inner = np.linspace(1 / check_bins(bins), 1 - 1 / bins, bins - 1)
    return _sum_cells(s, e, np.searchsorted(inner, e.value, side="right").astype(np.int64), bins)


def kept_errors(cells: CellSums) -> Vector:
    """Return the error of every class over its kept entries, 0 for a class with none, shape (K,)."""
    kept = cells.weight.sum(axis=1)
    return np.asarray(np.divide(np.abs(cells.gap).sum(axis=1), kept, out=np.zeros_like(kept), where=kept > 0))


@documented_metric()
def tcwece(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15, threshold: float | None = None
) -> float:
    """Return the thresholded class-wise error: only entries above 1/K count, in bins [lo, hi).

    Patel et al.: Multi-Class Uncertainty Calibration via Mutual Information Maximization-based Binning,
    ICLR 2021. A class with no such entry counts 0 in the mean over classes.

    Parameters
    ----------
    bins : int
    threshold : float, optional
        1/K by default.

    Examples
    --------
    >>> tcwece([[0.25, 0.75]], [1])
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    return float(kept_errors(thresholded_cells(s, bins, threshold)).mean())


@documented_metric(weights="counts")
def tcwece_k(
    probs: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    bins: int = 15,
    threshold: float | None = None,
    restarts: int = 20,
    random_state: int = 0,
) -> float:
    """Return the thresholded class-wise error with bins from a 1-D k-means of every class.

    Patel et al., ICLR 2021. Lloyd iterations from randomly drawn values until the mean distance changes by
    at most 1e-5, best of ``restarts``. Deterministic for a given ``random_state``; the published values are
    not (their spread over seeds is 0.5–3 %).

    Parameters
    ----------
    bins : int
    threshold : float, optional
        1/K by default.
    restarts, random_state : int

    Examples
    --------
    >>> tcwece_k([[0.25, 0.75]], [1])
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("tcwece_k")
    e = s.data.entries(_threshold(threshold, s.k))
    edges = cluster_columns(s, check_bins(bins), restarts, random_state)
    which = np.zeros(len(e.value), dtype=np.int64)
    for j in range(edges.shape[1]):  # at most bins - 1 comparisons, each over all entries at once
        which += e.value > edges[e.column, j]
    return float(kept_errors(_sum_cells(s, e, which, bins)).mean())
