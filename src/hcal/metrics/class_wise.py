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
from hcal.metrics.sample import Sample, as_sample, as_value
from hcal.numerics import Float64


@dataclass(frozen=True)
class CellSums:
    """Weight and Σ w·(p − [y = k]) of every (class, bin), each of shape (..., K, bins).

    Arrays, or tensors on the device of the data; before K stands the axis of replicates, if there are many.
    """

    weight: Any
    gap: Any

    def errors(self, total: Any, order: float = 1) -> Any:
        """Return the error of every class, (Σ_b (n_b/N)|gap_b/n_b|^r)^(1/r), shape (..., K)."""
        if order == 1:
            return abs(self.gap).sum(-1) / total
        mean = abs(self.gap) / (self.weight + (self.weight == 0))
        return ((self.weight * mean**order).sum(-1) / total) ** (1 / order)


@dataclass(frozen=True)
class Cut:
    """Which entries count, those above a threshold, and where they are cut into bins."""

    threshold: float
    edges: Float64  # (bins − 1,) or (K, bins − 1): ascending, for all classes or for each
    closed: bool = False  # whether a bin holds its lower edge, [lo, hi), rather than its upper, (lo, hi]

    @property
    def bins(self) -> int:
        """Bins of a class."""
        return int(self.edges.shape[-1]) + 1


@dataclass(frozen=True)
class ClassTotals:
    """What the first bin is the rest of: total weight, and of every class sums over all rows, (..., K)."""

    weight: Any  # (..., 1) or a number
    claimed: Any  # Σ w·p
    zeros: Any  # weight of the entries p = 0
    happened: Any  # weight of the labels; one at p = 0 lies in no bin


def equal_width_cells(s: Sample, bins: int) -> CellSums:
    """Return the equal-width cells (lo, hi]; an entry p = 0 lies in no bin."""
    edges = np.linspace(0, 1, check_bins(bins) + 1)
    cells = sum_cells(s, Cut(float(edges[1]), edges[1:-1]))
    of = _totals(s)
    weight = of.weight - cells.weight.sum(-1) - of.zeros
    gap = of.claimed - of.happened - cells.gap.sum(-1)
    cells.weight[..., 0] += weight
    cells.gap[..., 0] += gap * (weight > 0)
    return cells


def _totals(s: Sample) -> ClassTotals:
    if s.data.tensor is not None:
        from hcal.metrics.device_cells import totals_on_device

        return totals_on_device(s)
    happened = np.bincount(s.y, weights=s.w * (s.data.chosen != 0), minlength=s.k)
    return ClassTotals(s.total, s.column_sums, s.zero_weights, happened)


def sum_cells(s: Sample, cut: Cut) -> CellSums:
    """Return the sums of the entries of every class and bin."""
    if s.data.tensor is not None:
        from hcal.metrics.device_cells import sum_cells_on_device

        return sum_cells_on_device(s, cut)
    e, bins = s.data.entries(cut.threshold), cut.bins
    flat = e.column * bins + bin_of_entries(np, cut, cut.edges, e.value, e.column)
    w = s.w[e.row]
    # An empty list of entries would give integer counts: hence the float64.
    weight = np.bincount(flat, weights=w, minlength=s.k * bins).astype(np.float64)
    gap = np.bincount(flat, weights=w * (e.value - e.mark), minlength=s.k * bins).astype(np.float64)
    return CellSums(weight.reshape(s.k, bins), gap.reshape(s.k, bins))


def bin_of_entries(xp: Any, cut: Cut, edges: Any, value: Any, column: Any) -> Any:
    """Return the bin of every entry, the number of edges below it; ``xp`` is numpy, or torch for tensors."""
    if edges.ndim == 1:
        return xp.searchsorted(edges, value, side="right" if cut.closed else "left")
    which = xp.zeros_like(column)
    for edge in edges.T:  # at most bins - 1 comparisons, each over all entries at once
        which += value > edge[column]
    return which


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
    return as_value(equal_width_cells(s, bins).errors(_totals(s).weight, order).mean(-1))


@documented_metric()
def cwece_s(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 14) -> float:
    """Return the class-wise calibration error summed over classes, 14 bins as published.

    Examples
    --------
    >>> cwece_s([[0.25, 0.75]], [1])
    0.5
    """
    s = as_sample(probs, y, sample_weight)
    return as_value(equal_width_cells(s, bins).errors(_totals(s).weight).sum(-1))


@documented_metric()
def cwece_r2(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the mean over classes of the root-mean-square error over equal-width bins.

    Examples
    --------
    >>> cwece_r2([[0.25, 0.75]], [1])
    0.25
    """
    return cwece_a(probs, y, sample_weight=sample_weight, bins=bins, order=2)


def _threshold(s: Sample, threshold: float | None) -> float:
    value = 1 / s.k if threshold is None else threshold
    if not 0 <= value < 1:
        raise ValueError(f"threshold must lie in [0, 1), got {threshold!r}")
    # As the probabilities write it: the 0.1 of float32 is above that of float64, and not above itself.
    return float(s.data.width.type(value))


def thresholded_cells(s: Sample, bins: int, threshold: float | None) -> CellSums:
    """Return the cells [lo, hi) of the entries above the threshold only."""
    inner = np.linspace(1 / check_bins(bins), 1 - 1 / bins, bins - 1)
    return sum_cells(s, Cut(_threshold(s, threshold), inner, closed=True))


def kept_errors(cells: CellSums) -> Any:
    """Return the error of every class over its kept entries, 0 for a class with none, shape (..., K)."""
    kept = cells.weight.sum(-1)
    return abs(cells.gap).sum(-1) / (kept + (kept == 0))


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
    return as_value(kept_errors(thresholded_cells(s, bins, threshold)).mean(-1))


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
    edges = cluster_columns(s, check_bins(bins), restarts, random_state)
    return as_value(kept_errors(sum_cells(s, Cut(_threshold(s, threshold), edges))).mean(-1))
