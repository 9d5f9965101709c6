"""Class-wise errors: is the probability of every class calibrated on its own?

Only entries above the first bin edge (or above 1/K) are listed one by one; the sums of the first bin are the column
totals minus those of the other bins. So 1000 classes cost little more than reading the array once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcal.frames import AnyArray
from hcal.metrics.binned import BINS, check_bins
from hcal.metrics.by_chance import DrawnGaps, Noise
from hcal.metrics.registry import metric
from hcal.metrics.sample import Entries, Sample, Vector, as_sample
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums

#: k-means stops when the mean distance to the nearest centre changes by no more than this, as published.
_STOP = 1e-5
_RESTARTS = 20
#: The published number of bins of the sum over classes.
SUM_BINS: Final = 14


class Cells(NamedTuple):
    """Weight and Σ w·(p − [y = k]) of every class and bin, each of shape (K, bins)."""

    weight: Float64
    gap: Float64

    def errors(self, total: float, order: float = 1) -> Vector:
        """Return the error of every class, (Σ_b (n_b/N)|gap_b/n_b|^r)^(1/r), shape (K,)."""
        gap = np.abs(self.gap)
        if order == 1:
            return np.asarray(gap.sum(axis=1) / total)
        mean = gap / np.where(self.weight == 0, 1.0, self.weight)
        power = (self.weight * mean**order).sum(axis=1) / total
        return np.asarray(power ** (1 / order))

    def kept_errors(self) -> Vector:
        """Return the error of every class over its listed entries only; 0 for a class without any."""
        kept = self.weight.sum(axis=1)
        size = np.abs(self.gap).sum(axis=1)
        return np.asarray(size / np.where(kept == 0, 1.0, kept))


class Listed(NamedTuple):
    """The entries above a threshold, and the place of each in an array of classes × bins."""

    entries: Entries
    place: IntArray
    shape: tuple[int, int]

    def sums(self, values: Vector) -> Float64:
        """Return the sum of one value an entry over every class and bin, shape (K, bins)."""
        size = self.shape[0] * self.shape[1]
        # Without any entry, bincount returns integers.
        sums = np.bincount(self.place, values, size)
        return sums.astype(np.float64).reshape(self.shape)


def _listed(s: Sample, threshold: float, edges: Float64, *, closed: bool = False) -> Listed:
    """Return the entries above a threshold with their bins.

    ``edges`` ascend, (bins − 1,) for all classes or (K, bins − 1) for each; a ``closed`` bin is [lo, hi), an open one
    (lo, hi]. The bins do not depend on weights or labels, so all replicates of a sample share them.
    """
    entries = s.data.entries(threshold)
    bins = edges.shape[-1] + 1
    key = (threshold, closed, edges.shape, edges.tobytes())
    if key not in s.data.places:
        s.data.places[key] = entries.column * bins + _bin_of(entries, edges, closed=closed)
    return Listed(entries, s.data.places[key], (s.k, bins))


def _bin_of(entries: Entries, edges: Float64, *, closed: bool) -> IntArray:
    """Return the bin of every entry."""
    if edges.ndim == 1:
        return np.searchsorted(edges, entries.value, side="right" if closed else "left")
    which = np.zeros_like(entries.column)
    for edge in edges.T:  # at most bins − 1 comparisons, each over all entries at once
        which += entries.value > edge[entries.column]
    return which


def _cells(s: Sample, listed: Listed) -> Cells:
    """Return the cells of listed entries."""
    entries = listed.entries
    weight = s.w[entries.row]
    gap = entries.value - entries.mark
    return Cells(listed.sums(weight), listed.sums(weight * gap))


def _noise(s: Sample, listed: Listed) -> Noise:
    """Return what chance adds to the cells of listed entries."""
    p = listed.entries.value
    weight = s.w[listed.entries.row]
    of_entries = weight * p * (1 - p)
    variance = listed.sums(of_entries)
    weighted = variance if s.weight is None else listed.sums(weight * of_entries)
    return Noise(listed.sums(weight), listed.sums(weight * p), variance, weighted)


def _of_equal_width(s: Sample, bins: int) -> Listed:
    """Return the entries above the first of the equal-width bins (lo, hi]."""
    edges = np.linspace(0, 1, check_bins(bins) + 1)
    return _listed(s, float(edges[1]), edges[1:-1])


def _rest(s: Sample, weight: Float64) -> Vector:
    """Return the weight of the first bin of every class, (K,), from that of the listed entries."""
    rest = s.total - weight.sum(axis=1)
    return np.asarray(rest * (rest > 1e-12 * s.total))  # less is what rounding leaves of nothing


def equal_width_cells(s: Sample, bins: int) -> Cells:
    """Return the equal-width cells (lo, hi]; the first one is closed, [0, hi]."""
    cells = _cells(s, _of_equal_width(s, bins))
    rest = _rest(s, cells.weight)
    happened = np.bincount(s.y, weights=s.w, minlength=s.k)
    gap_of_rest = s.column_sums - happened - cells.gap.sum(axis=1)
    cells.gap[:, 0] += gap_of_rest * (rest > 0)
    cells.weight[:, 0] += rest
    return cells


def equal_width_noise(s: Sample, bins: int) -> Noise:
    """Return what chance adds to the equal-width cells."""
    noise = _noise(s, _of_equal_width(s, bins))
    rest = _rest(s, noise.weight)
    full = rest > 0
    weight = noise.weight.copy()
    weight[:, 0] += rest
    stated = _with_first_bin(noise.stated, s.column_sums, full)
    variance = _with_first_bin(noise.variance, s.column_variances, full)
    weighted = _with_first_bin(noise.weighted_variance, s.weighted_column_variances, full)
    return Noise(weight, stated, variance, weighted)


def _with_first_bin(sums: Float64, total: Vector, full: NDArray[np.bool_]) -> Float64:
    """Return sums of listed entries, (K, bins), with what is left of the classes' totals in the first bin."""
    sums = sums.copy()
    rest = np.maximum(total - sums.sum(axis=1), 0.0)
    sums[:, 0] += rest * full
    return sums


def _of_threshold(s: Sample, bins: int) -> Listed:
    """Return the entries above 1/K, in bins [lo, hi)."""
    inner = np.linspace(1 / check_bins(bins), 1 - 1 / bins, bins - 1)
    return _listed(s, _threshold(s), inner, closed=True)


def thresholded_cells(s: Sample, bins: int) -> Cells:
    """Return the cells [lo, hi) of the entries above 1/K only."""
    return _cells(s, _of_threshold(s, bins))


def thresholded_noise(s: Sample, bins: int) -> Noise:
    """Return what chance adds to the cells of the entries above 1/K."""
    return _noise(s, _of_threshold(s, bins))


def _of_clusters(s: Sample, bins: int, random_state: int) -> Listed:
    """Return the entries above 1/K, in the clusters of their class."""
    edges = _cluster_edges(s, check_bins(bins), random_state)
    return _listed(s, _threshold(s), edges)


# -- the metrics ------------------------------------------------------------------------------------


def kept_by_chance(noise: Noise, *, copies: bool) -> float:
    """Return the mean over classes of the error by chance over their listed entries."""
    kept = noise.weight.sum(axis=1)
    sizes = noise.gaps(copies=copies).size.sum(axis=1)
    return float((sizes / np.where(kept == 0, 1.0, kept)).mean())


def _threshold(s: Sample) -> float:
    """Return 1/K rounded to the dtype of the probabilities, so that an entry of exactly 1/K is not above it."""
    return float(s.data.probs.dtype.type(1 / s.k))


def _width_gaps(s: Sample, bins: int = BINS) -> DrawnGaps:
    return equal_width_noise(s, bins).gaps(copies=s.is_whole)


@metric(
    "class-wise",
    "CWECE, mean",
    "ECE of every class's probability, averaged over classes",
    label="CWECE_a",
    by_chance=lambda s, _: float(_width_gaps(s).error(s.total).mean()),
)
def cwece_a(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    bins: int = 15,
    order: float = 1,
) -> float:
    """Return the class-wise calibration error: the mean over classes of equal-width (lo, hi] errors.

    Examples
    --------
    >>> cwece_a([[0.25, 0.75]], [1])
    0.25
    """
    s = as_sample(probs, y, sample_weight)
    return float(equal_width_cells(s, bins).errors(s.total, order).mean())


@metric(
    "class-wise",
    "CWECE, sum",
    "the same with 14 bins, summed over classes",
    label="CWECE_s",
    by_chance=lambda s, _: float(_width_gaps(s, SUM_BINS).error(s.total).sum()),
)
def cwece_s(
    probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None, bins: int = 14
) -> float:
    """Return the class-wise calibration error summed over classes, 14 bins as published.

    Examples
    --------
    >>> cwece_s([[0.25, 0.75]], [1])
    0.5
    """
    s = as_sample(probs, y, sample_weight)
    return float(equal_width_cells(s, bins).errors(s.total).sum())


@metric(
    "class-wise",
    "CWECE, r = 2",
    "root-mean-square gap of every class, averaged over classes",
    label="CWECE (r=2)",
    by_chance=lambda s, _: float(_width_gaps(s).error(s.total, order=2).mean()),
)
def cwece_r2(
    probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None, bins: int = 15
) -> float:
    """Return the mean over classes of the root-mean-square error over equal-width bins.

    Examples
    --------
    >>> cwece_r2([[0.25, 0.75]], [1])
    0.25
    """
    return cwece_a(probs, y, sample_weight=sample_weight, bins=bins, order=2)


@metric(
    "class-wise",
    "tCWECE",
    "class-wise ECE over the probabilities above 1/K only",
    by_chance=lambda s, _: kept_by_chance(thresholded_noise(s, BINS), copies=s.is_whole),
)
def tcwece(
    probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None, bins: int = 15
) -> float:
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
    by_chance=lambda s, _: kept_by_chance(_noise(s, _of_clusters(s, BINS, 0)), copies=True),
)
def tcwece_k(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    bins: int = 15,
    random_state: int = 0,
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
    return float(_cells(s, _of_clusters(s, bins, random_state)).kept_errors().mean())


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
        draws = [rng.choice(total, size=size, replace=False) for _ in range(_RESTARTS)]
        starts = np.stack(draws)
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
        values = np.sort(x).astype(np.float64)
        counts = np.arange(len(x) + 1, dtype=np.float64)
    else:
        order = np.argsort(x, kind="stable")
        values = x[order].astype(np.float64)
        counts = prefix_sums(weight[order])
    sums = prefix_sums(np.diff(counts) * values)

    centres = np.full((len(starts), clusters), np.inf)
    first = np.searchsorted(counts[1:], starts, side="right")
    centres[:, : starts.shape[1]] = np.sort(values[first], axis=1)
    distance = np.full(len(starts), np.inf)
    running = np.arange(len(starts))
    while len(running):
        moved, mean_distance = _lloyd(values, counts, sums, centres[running])
        changes = np.abs(distance[running] - mean_distance) > _STOP
        centres[running] = np.sort(moved, axis=1)
        distance[running] = mean_distance
        running = running[changes]
    return np.asarray(centres[np.argmin(distance)])


def _lloyd(x: Vector, counts: Vector, sums: Vector, centres: Float64) -> tuple[Float64, Vector]:
    """Return the means of the clusters (R, C), inf if empty, and the mean distance (R,) to the old centres."""
    between = (centres[:, 1:] + centres[:, :-1]) / 2
    cut = np.searchsorted(x, between, side="right")
    low = np.zeros(centres.shape, dtype=np.int64)
    low[:, 1:] = cut
    high = np.full(centres.shape, len(x))
    high[:, :-1] = cut
    safe = np.where(np.isfinite(centres), centres, 0.0)
    middle = np.clip(np.searchsorted(x, safe, side="right"), low, high)

    below = counts[middle] - counts[low]
    above = counts[high] - counts[middle]
    sum_below = sums[middle] - sums[low]
    sum_above = sums[high] - sums[middle]
    distances = safe * (below - above) + sum_above - sum_below
    distance = distances.sum(axis=1) / counts[-1]
    size = below + above
    means = (sum_below + sum_above) / np.maximum(size, 1.0)
    return np.where(size > 0, means, np.inf), distance
