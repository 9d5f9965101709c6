"""The objective as it is defined, in numpy without an eye on speed: what every engine must compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.objective.settings import EVEN, ObjectiveSettings
from hcal.objective.weights import window_weights
from hcal.numerics import Float64, FloatArray, prefix_sums


def families_loss(
    q: FloatArray, marks: NDArray[np.bool_], s: ObjectiveSettings, need_grad: bool = True
) -> tuple[float, Float64 | None]:
    """Return the mean over rows of eq:finalloss, and its gradient (F, n), or None.

    ``q`` (F, n) are probabilities of events, ``marks`` (F, n) whether they happened; each row is sorted and
    windowed on its own.

    >>> settings = ObjectiveSettings(window=1, epsilon=0, scale=1, norm=2, weighting="uniform")
    >>> families_loss(np.array([[0.25, 0.75]]), np.array([[False, True]]), settings)
    (0.0625, array([[ 0.25, -0.25]]))
    """
    parts = [one_family(p, o, s) for p, o in zip(q, marks, strict=True)]
    loss = sum(loss for loss, _ in parts) / len(parts)
    return loss, np.stack([grad for _, grad in parts]) / len(parts) if need_grad else None


def one_family(p: FloatArray, marks: NDArray[np.bool_], s: ObjectiveSettings) -> tuple[float, Float64]:
    """Return the loss of events p (n,) with marks (n,), and its gradient (n,).

    Sorted by probability and mark; the error of a window is mean(q) − mean(o), and what exceeds ε counts,
    with the weight of the window's cluster. Order and weights carry no gradient; events that tie in
    probability and mark share their mean, so that the order of rows cannot matter.

    >>> one_family(np.array([0.5, 0.5]), np.array([False, True]), ObjectiveSettings(window=2))[0]
    0.0
    """
    q = np.asarray(p, dtype=np.float64)
    order = np.lexsort((marks, q))
    m = min(s.window, len(q))
    centroid, rate = sliding_means(q[order], m), sliding_means(marks[order], m)
    error = centroid - rate
    uniform = np.full(len(error), 1 / len(error))
    weight = uniform if s.weighting == "uniform" else window_weights(centroid, s.clusters, s.iterations)
    excess = np.abs(error) - s.epsilon
    excess[excess <= EVEN * rate] = 0  # a sum that equals its count up to rounding has no sign
    slope = weight * np.sign(error) * (excess > 0 if s.norm == 1 else 2 * excess)
    ranked = np.convolve(slope, np.ones(m)) * s.scale / m
    _, tied = np.unique(np.stack([q[order], marks[order]]), axis=1, return_inverse=True)
    grad = np.empty(len(q))
    grad[order] = (np.bincount(tied, ranked) / np.bincount(tied))[tied]
    return float(s.scale * (weight * excess**s.norm).sum()), grad


def sliding_means(values: ArrayLike, window: int) -> Float64:
    """Return the mean of every run of ``window`` consecutive values, by one prefix sum.

    The sum runs in float64 over ascending values, so the difference of two prefixes loses at most
    a factor n / window of its precision. With fewer values than ``window`` there is one run: all of them.
    Shapes: values (n,) → (max(n − window, 0) + 1,).

    >>> sliding_means([0.0, 1.0, 2.0, 6.0], 2)
    array([0.5, 1.5, 4. ])
    """
    x = np.asarray(values, dtype=np.float64)
    m = min(window, len(x))
    prefix = prefix_sums(x)
    means: Float64 = (prefix[m:] - prefix[:-m]) / m
    return means
