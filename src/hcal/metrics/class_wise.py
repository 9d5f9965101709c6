"""Class-wise errors: is the probability of every class calibrated on its own?

Only entries above the first bin edge (or above 1/K) are listed one by one; the sums of the first bin are the column
totals minus those of the other bins. So 1000 classes cost little more than reading the array once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hcal.metrics.binned import check_bins
from hcal.metrics.registry import metric
from hcal.metrics.sample import Sample, Vector, as_sample
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums

#: k-means stops when the mean distance to the nearest centre changes by no more than this, as published.
_STOP = 1e-5
_RESTARTS = 20


class Cells(NamedTuple):
    """Weight and Σ w·(p − [y = k]) of every class and bin, each of shape (K, bins)."""

    weight: Float64
    gap: Float64

    def errors(self, total: float, order: float = 1) -> Vector:
        """Return the error of every class, (Σ_b (n_b/N)|gap_b/n_b|^r)^(1/r), shape (K,)."""
        if order == 1:
            return np.asarray(np.abs(self.gap).sum(axis=1) / total)
        mean = np.abs(self.gap) / np.where(self.weight == 0, 1.0, self.weight)
        return np.asarray(((self.weight * mean**order).sum(axis=1) / total) ** (1 / order))

    def kept_errors(self) -> Vector:
        """Return the error of every class over its listed entries only; 0 for a class without any."""
        kept = self.weight.sum(axis=1)
        return np.asarray(np.abs(self.gap).sum(axis=1) / np.where(kept == 0, 1.0, kept))


def _listed_cells(s: Sample, threshold: float, edges: Float64, *, closed: bool = False) -> Cells:
    """Return the cells of the entries above a threshold.

    ``edges`` ascend, (bins − 1,) for all classes or (K, bins − 1) for each; a ``closed`` bin is [lo, hi), an
    open one (lo, hi].
    """
    e, bins = s.data.entries(threshold), edges.shape[-1] + 1
    if edges.ndim == 1:
        which = np.searchsorted(edges, e.value, side="right" if closed else "left")
    else:
        which = np.zeros_like(e.column)
        for edge in edges.T:  # at most bins − 1 comparisons, each over all entries at once
            which += e.value > edge[e.column]
    flat, w = e.column * bins + which, s.w[e.row]
    sums = (np.bincount(flat, weights=x, minlength=s.k * bins) for x in (w, w * (e.value - e.mark)))
    # Without any entry, bincount returns integers.
    return Cells(*(x.astype(np.float64).reshape(s.k, bins) for x in sums))


def equal_width_cells(s: Sample, bins: int) -> Cells:
    """Return the equal-width cells (lo, hi]; the first one is closed, [0, hi]."""
    edges = np.linspace(0, 1, check_bins(bins) + 1)
    cells = _listed_cells(s, float(edges[1]), edges[1:-1])
    happened = np.bincount(s.y, weights=s.w, minlength=s.k)
    rest = s.total - cells.weight.sum(axis=1)
    rest *= rest > 1e-12 * s.total  # less is what rounding leaves of nothing
    cells.gap[:, 0] += (s.column_sums - happened - cells.gap.sum(axis=1)) * (rest > 0)
    cells.weight[:, 0] += rest
    return cells


def thresholded_cells(s: Sample, bins: int) -> Cells:
    """Return the cells [lo, hi) of the entries above 1/K only."""
    inner = np.linspace(1 / check_bins(bins), 1 - 1 / bins, bins - 1)
    return _listed_cells(s, _threshold(s), inner, closed=True)


def _threshold(s: Sample) -> float:
    """Return 1/K rounded to the dtype of the probabilities, so that an entry of exactly 1/K is not above it."""
    return float(s.data.probs.dtype.type(1 / s.k))


@metric(
    "class-wise",
    "CWECE, mean",
    "ECE of every class's probability, averaged over classes",
    label="CWECE_a",
)
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


@metric("class-wise", "CWECE, sum", "the same with 14 bins, summed over classes", label="CWECE_s")
def cwece_s(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 14) -> float:
    """Return the class-wise calibration error summed over classes, 14 bins as published.

    Examples
    --------
    >>> cwece_s([[0.25, 0.75]], [1])
    0.5
    """
    s = as_sample(probs, y, sample_weight)
    return float(equal_width_cells(s, bins).errors(s.total).sum())


@metric("class-wise", "CWECE, r = 2", "root-mean-square gap of every class, averaged over classes",
        label="CWECE (r=2)")  # fmt: skip
def cwece_r2(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the mean over classes of the root-mean-square error over equal-width bins.

    Examples
    --------
    >>> cwece_r2([[0.25, 0.75]], [1])
    0.25
    """
    return cwece_a(probs, y, sample_weight=sample_weight, bins=bins, order=2)


@metric("class-wise", "tCWECE", "class-wise ECE over the probabilities above 1/K only")
def tcwece(probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15) -> float:
    """Return the thresholded class-wise error: only entries above 1/K count, in bins [lo, hi).

    Patel et al.: Multi-Class Uncertainty Calibration via Mutual Information Maximization-based Binning,
    ICLR 2021. A class with no such entry counts 0 in the mean over classes.

    Examples
    --------
    >>> tcwece([[0.25, 0.75]], [1])
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    return float(thresholded_cells(s, bins).kept_errors().mean())


@metric(
    "class-wise",
    "tCWECE, k-means",
    "the same with bins from k-means",
    label="tCWECE^k",
    weights="counts",
)
def tcwece_k(
    probs: Any, y: Any = None, *, sample_weight: Any = None, bins: int = 15, random_state: int = 0
) -> float:
    """Return the thresholded class-wise error with bins from a 1-D k-means of every class.

    Patel et al., ICLR 2021. Lloyd iterations from randomly drawn values until the mean distance changes by
    at most 1e-5, best of 20. Deterministic for a given ``random_state``; the published values are
    not (their spread over seeds is 0.5–3 %).

    Parameters
    ----------
    bins : int
    random_state : int

    Examples
    --------
    >>> tcwece_k([[0.25, 0.75]], [1])
    0.125
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("tcwece_k")
    edges = _cluster_edges(s, check_bins(bins), random_state)
    return float(_listed_cells(s, _threshold(s), edges).kept_errors().mean())


# -- one-dimensional k-means ------------------------------------------------------------------------


def _cluster_edges(s: Sample, clusters: int, random_state: int) -> Float64:
    """Return the boundaries between the clusters of every class, shape (K, clusters − 1); inf for missing clusters.

    They are kept with the sample, and all replicates of a bootstrap share them.
    """
    key = (clusters, random_state)
    weight = s.clusters.weight
    if key in s.clusters.edges:
        return s.clusters.edges[key]
    total = s.n if weight is None else int(weight.sum())
    edges = np.empty((s.k, clusters - 1))
    for k, column in enumerate(s.data.columns()):
        rng = np.random.default_rng([random_state, k])
        size = min(clusters, total)
        starts = np.stack([rng.choice(total, size=size, replace=False) for _ in range(_RESTARTS)])
        centres = _kmeans(column, weight, starts, clusters)
        edges[k] = (centres[1:] + centres[:-1]) / 2
    s.clusters.edges[key] = edges
    return edges


def _kmeans(x: FloatArray, weight: Vector | None, starts: IntArray, clusters: int) -> Vector:
    """Return the ascending centres of the best restart; inf for clusters that became empty.

    On sorted values a cluster is a contiguous range, so a Lloyd iteration of all restarts together costs a few
    binary searches and differences of prefix sums for any N. The first centres of each restart are the values of
    the rows (copies) with the ranks ``starts`` (restarts, size).
    """
    if weight is None:
        values, counts = np.sort(x).astype(np.float64), np.arange(len(x) + 1, dtype=np.float64)
    else:
        order = np.argsort(x, kind="stable")
        values, counts = x[order].astype(np.float64), prefix_sums(weight[order])
    sums = prefix_sums(np.diff(counts) * values)
    centres = np.full((len(starts), clusters), np.inf)
    centres[:, : starts.shape[1]] = np.sort(
        values[np.searchsorted(counts[1:], starts, side="right")], axis=1
    )
    distance, running = np.full(len(starts), np.inf), np.ones(len(starts), dtype=bool)
    while running.any():
        moved, found = _lloyd(values, counts, sums, centres[running])
        done = np.abs(distance[running] - found) <= _STOP
        centres[running], distance[running] = np.sort(moved, axis=1), found
        running[np.flatnonzero(running)[done]] = False
    return np.asarray(centres[np.argmin(distance)])


def _lloyd(x: Vector, counts: Vector, sums: Vector, centres: Float64) -> tuple[Float64, Vector]:
    """Return the means of the clusters (R, C), inf if empty, and the mean distance (R,) to the old centres."""
    cut = np.searchsorted(x, (centres[:, 1:] + centres[:, :-1]) / 2, side="right")
    low = np.concatenate([np.zeros_like(cut[:, :1]), cut], axis=1)
    high = np.concatenate([cut, np.full_like(cut[:, :1], len(x))], axis=1)
    safe = np.where(np.isfinite(centres), centres, 0.0)
    middle = np.clip(np.searchsorted(x, safe, side="right"), low, high)
    below, above = counts[middle] - counts[low], counts[high] - counts[middle]
    sum_below, sum_above = sums[middle] - sums[low], sums[high] - sums[middle]
    distance = (safe * (below - above) + sum_above - sum_below).sum(axis=1) / counts[-1]
    size = below + above
    means = (sum_below + sum_above) / np.maximum(size, 1.0)
    return np.where(size > 0, means, np.inf), distance
