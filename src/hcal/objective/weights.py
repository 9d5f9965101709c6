"""Weights of the windows: 1-D k-means on their centroids (the paper's appendix on weighting).

On sorted values a cluster is a contiguous range, so a Lloyd iteration costs a handful of binary searches
and of prefix-sum differences. The start and the number of iterations are part of the definition: another
k-means is another objective (docs/decisions/010-one-objective.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.objective.settings import HALF_WAY
from hcal.numerics import Float64, prefix_sums


def kmeans_ranges(
    values: ArrayLike, clusters: int = 15, iterations: int = 25
) -> tuple[Float64, NDArray[np.int64]]:
    """Cluster ascending values (m,): exactly ``iterations`` Lloyd steps from the quantiles (i + ½)/clusters.

    Centres (clusters,): an empty cluster keeps its own. Edges (clusters + 1,): cluster i is
    ``values[edges[i]:edges[i + 1]]``; a value half-way belongs to the lower one.

    >>> kmeans_ranges([0.0, 0.1, 0.9, 1.0], clusters=2)
    (array([0.05, 0.95]), array([0, 2, 4]))
    """
    x = np.asarray(values, dtype=np.float64)
    prefix = prefix_sums(x)
    centres = np.quantile(x, (np.arange(clusters) + 0.5) / clusters)
    for _ in range(iterations):
        edges = ranges_of(x, centres)
        counts = np.diff(edges)
        sums = np.diff(prefix[edges])
        centres = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    return centres, ranges_of(x, centres)


def ranges_of(values: Float64, centres: Float64) -> NDArray[np.int64]:
    """Return the edges of the ranges of ascending values nearest to each ascending centre.

    Shapes: values (m,), centres (C,) → (C + 1,).

    >>> ranges_of(np.array([0.0, 0.4, 1.0]), np.array([0.0, 1.0]))
    array([0, 2, 3])
    """
    inner = np.searchsorted(values, HALF_WAY * (centres[1:] + centres[:-1]) / 2, side="right")
    return np.concatenate([[0], inner, [len(values)]]).astype(np.int64)


def window_weights(centroids: ArrayLike, clusters: int = 15, iterations: int = 25) -> Float64:
    """Return w = 1/(C·N_c) (m,) of windows: each cluster counts the same (an empty one counts 0).

    The centroids (m,) of the windows ascend.

    >>> window_weights([0.0, 0.1, 1.0], clusters=2)
    array([0.25, 0.25, 0.5 ])
    """
    edges = kmeans_ranges(centroids, clusters, iterations)[1]
    counts = np.diff(edges)
    return np.repeat(1 / (clusters * np.maximum(counts, 1)), counts)
