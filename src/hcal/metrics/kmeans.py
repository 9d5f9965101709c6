"""One-dimensional k-means per class, for ``tcwece_k``.

On sorted values a cluster is a contiguous range, so a Lloyd iteration of all restarts together costs a few
binary searches and prefix-sum differences, whatever N.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.sample import BLOCK, Sample, Vector, _cumulate

_STOP = 1e-5  # published: stop when the mean distance to the nearest centre changes by no more


def cluster_columns(s: Sample, clusters: int, restarts: int, random_state: int) -> NDArray[np.float64]:
    """Return the boundaries between the clusters of every class, shape (K, clusters − 1); inf where fewer."""
    if restarts < 1:
        raise ValueError(f"restarts must be a positive integer, got {restarts!r}")
    key = (clusters, restarts, random_state)
    weight = None if s.keep_clusters else s.weight
    if weight is None and key in s.data.cluster_edges:
        return s.data.cluster_edges[key]
    edges = np.full((s.k, clusters - 1), np.inf)
    if clusters > 1:
        step = max(1, BLOCK // s.n)
        for first in range(0, s.k, step):
            columns = np.ascontiguousarray(s.data.probs[:, first : first + step].T, dtype=np.float64)
            for i, column in enumerate(columns):
                rng = np.random.default_rng([random_state, first + i])
                edges[first + i] = _boundaries(_kmeans(column, weight, clusters, restarts, rng))
    if weight is None:
        s.data.cluster_edges[key] = edges
    return edges


def _boundaries(centres: Vector) -> Vector:
    return (centres[1:] + centres[:-1]) / 2


def _kmeans(
    x: Vector, weight: Vector | None, clusters: int, restarts: int, rng: np.random.Generator
) -> Vector:
    """Return the ascending centres of the best restart, inf for clusters that died."""
    if weight is None:
        x = np.sort(x)
        counts = np.arange(len(x) + 1, dtype=np.float64)
    else:
        order = np.argsort(x, kind="stable")
        x, weight = x[order], weight[order]
        counts = _cumulate(weight)
    sums = _cumulate(np.diff(counts) * x)
    centres = _starts(x, counts, clusters, restarts, rng)
    distance = np.full(restarts, np.inf)
    running = np.ones(restarts, dtype=bool)
    while running.any():
        now = centres[running]
        new, mean_distance = _lloyd(x, counts, sums, now)
        done = np.abs(distance[running] - mean_distance) <= _STOP
        centres[running], distance[running] = new, mean_distance
        running[np.flatnonzero(running)[done]] = False
    return np.asarray(centres[np.argmin(distance)])


def _starts(
    x: Vector, counts: Vector, clusters: int, restarts: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw values without replacement (copies of a weighted row are drawn like repeated rows)."""
    n = int(counts[-1])
    starts = np.full((restarts, clusters), np.inf)
    size = min(clusters, n)
    for r in range(restarts):
        copies = rng.choice(n, size=size, replace=False)
        starts[r, :size] = x[np.searchsorted(counts[1:], copies, side="right")]
    return np.sort(starts, axis=1)


def _lloyd(
    x: Vector, counts: Vector, sums: Vector, centres: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Vector]:
    """Move the centres of every restart to their means; also return the mean distance before the move."""
    rows = len(centres)
    cut = np.searchsorted(x, (centres[:, 1:] + centres[:, :-1]) / 2, side="right")
    bounds = np.concatenate([np.zeros((rows, 1), int), cut, np.full((rows, 1), len(x))], axis=1)
    alive = np.isfinite(centres)
    safe = np.where(alive, centres, 0.0)
    middle = np.clip(np.searchsorted(x, safe, side="right"), bounds[:, :-1], bounds[:, 1:])
    below, above = counts[middle] - counts[bounds[:, :-1]], counts[bounds[:, 1:]] - counts[middle]
    sum_below, sum_above = sums[middle] - sums[bounds[:, :-1]], sums[bounds[:, 1:]] - sums[middle]
    distance = (safe * (below - above) + sum_above - sum_below).sum(axis=1) / counts[-1]
    size = below + above
    moved = np.divide(sum_below + sum_above, size, out=np.full(centres.shape, np.inf), where=size > 0)
    return np.sort(moved, axis=1), distance
