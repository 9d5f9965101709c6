"""The reference implementation of the h-calibration objective, in plain numpy: every engine computes this.

An event has a probability and a mark (whether it happened). Events are sorted by probability, and every run of M
consecutive events is a window. The error of a window is its mean probability minus its share of marks. A
one-dimensional k-means of the windows' mean probabilities gives the weight of each window (the paper's appendix on
weighting).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.numerics import Float64, FloatArray, prefix_sums

Weighting = Literal["kmeans", "uniform"]

#: A centroid half-way between two centres, up to this relative rounding, belongs to the lower cluster. Sums of tied
#: probabilities are equal but for rounding, which would otherwise decide their cluster.
HALF_WAY = 1 + 1e-10

#: A window whose probabilities sum to its number of marks, up to this relative rounding, has no error. Otherwise
#: rounding would decide the sign of its error, and so its gradient.
EVEN = 1e-9


@dataclass(frozen=True)
class ObjectiveSettings:
    """Constants of eq:EventEnsembleLoss and eq:finalloss, with the paper's values as defaults.

    Parameters
    ----------
    window : int
        M, the number of consecutive events in a window.
    epsilon : float
        ε, the error of a window that is tolerated.
    scale : float
        r, a constant factor of the loss.
    clusters, iterations : int
        Number of clusters and of Lloyd iterations of the 1-D k-means that weights the windows.
    weighting : {"kmeans", "uniform"}
    norm : {1, 2}
        1 takes the excess of the absolute error over ε, 2 its square (without a root).

    Examples
    --------
    >>> ObjectiveSettings(window=0)
    Traceback (most recent call last):
    ...
    ValueError: window must be an integer of at least 1, got 0
    """

    window: int = 200
    epsilon: float = 1e-20
    scale: float = 1e5
    clusters: int = 15
    iterations: int = 25
    weighting: Weighting = "kmeans"
    norm: int = 1

    def __post_init__(self) -> None:
        for name in ("window", "clusters", "iterations"):
            value = getattr(self, name)
            if int(value) != value or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon must be at least 0, got {self.epsilon!r}")
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale!r}")
        if self.weighting not in ("kmeans", "uniform"):
            raise ValueError(f"weighting must be 'kmeans' or 'uniform', got {self.weighting!r}")
        if self.norm not in (1, 2):
            raise ValueError(f"norm must be 1 or 2, got {self.norm!r}")


def families_loss(
    q: FloatArray, marks: NDArray[np.bool_], s: ObjectiveSettings, need_grad: bool = True
) -> tuple[float, FloatArray | None]:
    """Return the mean over rows of eq:finalloss, and its gradient (F, n) in the dtype of q, or None.

    ``q`` (F, n) are probabilities of events, ``marks`` (F, n) whether they happened; each row is sorted and
    windowed on its own.

    >>> settings = ObjectiveSettings(window=1, epsilon=0, scale=1, norm=2, weighting="uniform")
    >>> families_loss(np.array([[0.25, 0.75]]), np.array([[False, True]]), settings)
    (0.0625, array([[ 0.25, -0.25]]))
    """
    parts = [one_family(p, o, s) for p, o in zip(q, marks, strict=True)]
    loss = sum(loss for loss, _ in parts) / len(parts)
    gradient = np.stack([grad for _, grad in parts]) / len(parts)
    return loss, gradient.astype(q.dtype) if need_grad else None


def one_family(
    p: FloatArray, marks: NDArray[np.bool_], s: ObjectiveSettings
) -> tuple[float, Float64]:
    """Return the loss of events p (n,) with marks (n,), and its gradient (n,).

    Events are sorted by probability and mark. The error of a window is mean(q) − mean(marks); its excess over ε enters
    the loss with the weight of the window's cluster. The gradient treats order and weights as constants. Events with
    equal probability and mark get the mean of their gradients, so the order of rows has no influence.

    >>> one_family(np.array([0.5, 0.5]), np.array([False, True]), ObjectiveSettings(window=2))[0]
    0.0
    """
    q = np.asarray(p, dtype=np.float64)
    order = np.lexsort((marks, q))
    m = min(s.window, len(q))
    centroid = sliding_means(q[order], m)
    rate = sliding_means(marks[order], m)
    error = centroid - rate
    if s.weighting == "uniform":
        weight = np.full(len(error), 1 / len(error))
    else:
        weight = window_weights(centroid, s.clusters, s.iterations)

    excess = np.abs(error) - s.epsilon
    excess[excess <= EVEN * rate] = 0  # a sum that equals its count up to rounding has no sign
    loss = s.scale * (weight * excess**s.norm).sum()

    d_excess = excess > 0 if s.norm == 1 else 2 * excess
    slope = weight * np.sign(error) * d_excess
    ranked = np.convolve(slope, np.ones(m)) * s.scale / m
    events = np.stack([q[order], marks[order]])
    _, tied = np.unique(events, axis=1, return_inverse=True)
    mean_of_ties = np.bincount(tied, ranked) / np.bincount(tied)
    grad = np.empty(len(q))
    grad[order] = mean_of_ties[tied]
    return float(loss), grad


def sliding_means(values: ArrayLike, window: int) -> Float64:
    """Return the mean of every run of ``window`` consecutive values, or of all values if they are fewer.

    Shapes: values (n,) → (max(n − window, 0) + 1,).

    >>> sliding_means([0.0, 1.0, 2.0, 6.0], 2)
    array([0.5, 1.5, 4. ])
    """
    x = np.asarray(values, dtype=np.float64)
    m = min(window, len(x))
    prefix = prefix_sums(x)
    means: Float64 = (prefix[m:] - prefix[:-m]) / m
    return means


def window_weights(centroids: ArrayLike, clusters: int = 15, iterations: int = 25) -> Float64:
    """Return the weight 1/(C·N_c) of every window (m,), so that all clusters that are not empty weigh the same.

    ``centroids`` (m,) are the mean probabilities of the windows in ascending order; N_c is the size of a cluster.

    >>> window_weights([0.0, 0.1, 1.0], clusters=2)
    array([0.25, 0.25, 0.5 ])
    """
    _, edges = kmeans_ranges(centroids, clusters, iterations)
    counts = np.diff(edges)
    weight_of_cluster = 1 / (clusters * np.maximum(counts, 1))
    return np.repeat(weight_of_cluster, counts)


def kmeans_ranges(
    values: ArrayLike, clusters: int = 15, iterations: int = 25
) -> tuple[Float64, NDArray[np.int64]]:
    """Return centres (clusters,) and edges (clusters + 1,) of a 1-D k-means of ascending values (m,).

    Lloyd's algorithm starts at the quantiles (i + ½)/clusters and makes ``iterations`` steps, or fewer if nothing
    changes any more. Start and number of steps are part of the objective. Cluster i is
    ``values[edges[i]:edges[i + 1]]``, and a value half-way between two centres belongs to the lower one; an empty
    cluster keeps its centre. On sorted values a step costs a few binary searches and differences of prefix sums.

    >>> kmeans_ranges([0.0, 0.1, 0.9, 1.0], clusters=2)
    (array([0.05, 0.95]), array([0, 2, 4]))
    """
    x = np.asarray(values, dtype=np.float64)
    prefix = prefix_sums(x)
    centres = np.quantile(x, (np.arange(clusters) + 0.5) / clusters)
    edges = ranges_of(x, centres)
    for _ in range(iterations):
        counts = np.diff(edges)
        means = np.diff(prefix[edges]) / np.maximum(counts, 1)
        centres = np.where(counts > 0, means, centres)
        before = edges
        edges = ranges_of(x, centres)
        if np.array_equal(before, edges):
            break
    return centres, edges


def ranges_of(values: Float64, centres: Float64) -> NDArray[np.int64]:
    """Return the edges (C + 1,) of the ranges of ascending values nearest to each ascending centre (C,).

    >>> ranges_of(np.array([0.0, 0.4, 1.0]), np.array([0.0, 1.0]))
    array([0, 2, 3])
    """
    middles = HALF_WAY * (centres[1:] + centres[:-1]) / 2
    inner = np.searchsorted(values, middles, side="right")
    return np.concatenate([[0], inner, [len(values)]]).astype(np.int64)
