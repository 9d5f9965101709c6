"""One-dimensional k-means per class, for ``tcwece_k``.

On sorted values a cluster is a contiguous range, so a Lloyd iteration of all restarts together costs a few
binary searches and prefix-sum differences, whatever N.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.sample import BLOCK, Sample, Vector
from hcal.numerics import IntArray, prefix_sums

STOP = 1e-5  # published: stop when the mean distance to the nearest centre changes by no more


def cluster_columns(s: Sample, clusters: int, restarts: int, random_state: int) -> NDArray[np.float64]:
    """Return the boundaries between the clusters of every class, shape (K, clusters − 1); inf where fewer."""
    if restarts < 1:
        raise ValueError(f"restarts must be a positive integer, got {restarts!r}")
    key = (clusters, restarts, random_state)
    weight = None if s.keep_clusters else s.weight
    if weight is None and key in s.data.cluster_edges:
        return s.data.cluster_edges[key]
    total = s.n if weight is None else int(weight.sum())
    starts = start_copies(total, s.k, clusters, restarts, random_state)
    if s.data.tensor is not None and clusters > 1:
        from hcal.metrics.device_kmeans import cluster_columns_on_device

        edges = cluster_columns_on_device(s.data, weight, starts, clusters)
    else:
        edges = np.full((s.k, clusters - 1), np.inf)
        step = max(1, BLOCK // s.n)
        for first in range(0, s.k if clusters > 1 else 0, step):
            columns = np.ascontiguousarray(s.data.probs[:, first : first + step].T, dtype=np.float64)
            for k, column in enumerate(columns, start=first):
                centres = _kmeans(column, weight, starts[k], clusters)
                edges[k] = (centres[1:] + centres[:-1]) / 2
    if weight is None:
        s.data.cluster_edges[key] = edges
    return edges


@lru_cache(maxsize=2)  # a baseline, or the next model on the same rows, starts from the same copies
def start_copies(n: int, n_classes: int, clusters: int, restarts: int, random_state: int) -> IntArray:
    """Draw the copies whose values are the first centres of each class, without replacement.

    Shape: (K, restarts, at most clusters).

    >>> start_copies(3, 4, 5, 2, 0).shape
    (4, 2, 3)
    """
    out = np.empty((n_classes, restarts, min(clusters, n)), dtype=np.int64)
    for k, copies in enumerate(out):
        rng = np.random.default_rng([random_state, k])
        for row in copies:
            row[:] = rng.choice(n, size=len(row), replace=False)
    out.setflags(write=False)
    return out


def _kmeans(x: Vector, weight: Vector | None, copies: IntArray, clusters: int) -> Vector:
    """Return the ascending centres of the best restart, inf for clusters that died."""
    if weight is None:
        x = np.sort(x)
        counts = np.arange(len(x) + 1, dtype=np.float64)
    else:
        order = np.argsort(x, kind="stable")
        x, weight = x[order], weight[order]
        counts = prefix_sums(weight)
    sums = prefix_sums(np.diff(counts) * x)
    restarts, size = copies.shape
    centres = np.full((restarts, clusters), np.inf)
    centres[:, :size] = np.sort(x[np.searchsorted(counts[1:], copies, side="right")], axis=1)

    def rank(at: Vector) -> IntArray:
        return np.searchsorted(x, at, side="right").astype(np.int64, copy=False)

    distance = np.full(restarts, np.inf)
    running = np.ones(restarts, dtype=bool)
    while running.any():
        moved, total = move_centres(np, centres[running], rank, counts.__getitem__, sums.__getitem__, len(x))
        mean_distance = total / counts[-1]
        done = np.abs(distance[running] - mean_distance) <= STOP
        centres[running], distance[running] = np.sort(moved, axis=1), mean_distance
        running[np.flatnonzero(running)[done]] = False
    return np.asarray(centres[np.argmin(distance)])


def move_centres(xp: Any, centres: Any, rank: Any, counts: Any, sums: Any, n: int) -> tuple[Any, Any]:
    """Return the means of the clusters, inf where one is empty, and Σ |value − centre| before the move.

    ``centres`` (..., clusters) ascend, inf where a cluster died. ``rank`` says how many of the n values lie
    at or below points; ``counts`` and ``sums`` give prefix sums at ranks. ``xp`` is numpy or torch.
    """
    cut = rank((centres[..., 1:] + centres[..., :-1]) / 2)
    first = xp.zeros_like(cut[..., :1])
    bounds = xp.concatenate([first, cut, first + n], -1)
    low, high = bounds[..., :-1], bounds[..., 1:]
    safe = xp.where(xp.isfinite(centres), centres, 0.0)
    middle = xp.minimum(xp.maximum(rank(safe), low), high)
    below, above = counts(middle) - counts(low), counts(high) - counts(middle)
    sum_below, sum_above = sums(middle) - sums(low), sums(high) - sums(middle)
    distance = (safe * (below - above) + sum_above - sum_below).sum(-1)
    size = below + above
    return xp.where(size > 0, (sum_below + sum_above) / (size + (size == 0)), xp.inf), distance
