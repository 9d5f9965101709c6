"""Window statistics of Thm 7: the exact T₁, T₂, T₃ as the checkable definition, and the fast T̃."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.runtime.numerics import Float64


@dataclass(frozen=True)
class WindowStatistics:
    """T₁, T₂, T₃ of one event, interval and subset (eq:t1_definition to eq:t3_definition).

    Examples
    --------
    >>> WindowStatistics(2.0, 1.0, 4.0).error
    0.25
    """

    t1: float
    t2: float
    t3: float

    @property
    def error(self) -> float:
        """𝒯 = |T₁ − T₂| / T₃ (eq:thm7regterm)."""
        return abs(self.t1 - self.t2) / self.t3


def event_probs(probs: ArrayLike, y: ArrayLike, event: Iterable[int]) -> tuple[Float64, NDArray[np.bool_]]:
    """Return p_c(Y ∈ A | F) and whether Y ∈ A happened, for an event A given as a set of classes.

    Parameters
    ----------
    probs : array of shape (N, K)
    y : array of shape (N,)
    event : iterable of class indices

    Returns
    -------
    probabilities of shape (N,), marks of shape (N,)

    Examples
    --------
    >>> event_probs([[0.5, 0.25, 0.25]], [2], {1, 2})
    (array([0.5]), array([ True]))
    """
    classes = sorted(set(event))
    p = np.asarray(probs, dtype=np.float64)[:, classes].sum(axis=1)
    return p, np.isin(np.asarray(y), classes)


def exact_statistics(
    p: ArrayLike, occurred: ArrayLike, interval: tuple[float, float], subset: ArrayLike | None = None
) -> WindowStatistics:
    """Return T₁, T₂, T₃ of Thm 7 with their boundary terms.

    Parameters
    ----------
    p : array of shape (N,)
        Probabilities of one event A.
    occurred : array of shape (N,)
        Whether Yᵢ ∈ A.
    interval : (R₁, R₂)
        0 ≤ R₁ < R₂ ≤ 1. Events strictly inside count twice, events on a boundary once.
    subset : array of indices, optional
        Q, a subset of the events inside the interval; by default all of them.

    Returns
    -------
    WindowStatistics

    Examples
    --------
    >>> exact_statistics([0.25, 0.5, 1.0], [False, True, True], (0.25, 0.75))
    WindowStatistics(t1=1.0, t2=0.25, t3=3.0)
    """
    low, high = interval
    if not 0 <= low < high <= 1:
        raise ValueError(f"the interval needs 0 <= R1 < R2 <= 1, got {interval}")
    value, mark = np.asarray(p, dtype=np.float64), np.asarray(occurred, dtype=bool)
    inside = np.flatnonzero((low <= value) & (value <= high))
    chosen = inside if subset is None else np.asarray(subset)
    if not len(chosen) or not np.isin(chosen, inside).all():
        raise ValueError("the subset must be a non-empty set of events inside the interval")
    q, o = value[chosen], mark[chosen]
    times = np.where((q == low) | (q == high), 1.0, 2.0)
    return WindowStatistics(
        float((times * (1 - q))[o].sum()), float((times * q)[~o].sum()), float(times.sum())
    )


def sort_events(p: ArrayLike, occurred: ArrayLike) -> tuple[Float64, Float64]:
    """Sort events by probability, and by mark where probabilities tie: an order no row order can change.

    Parameters
    ----------
    p, occurred : arrays of shape (n,)

    Returns
    -------
    sorted probabilities q and marks o, both of shape (n,)

    Examples
    --------
    >>> sort_events([0.5, 0.25, 0.5], [1, 0, 0])
    (array([0.25, 0.5 , 0.5 ]), array([0., 0., 1.]))
    """
    value, mark = np.asarray(p, dtype=np.float64), np.asarray(occurred, dtype=np.float64)
    order = np.lexsort((mark, value))
    return value[order], mark[order]


def sliding_means(values: ArrayLike, window: int) -> Float64:
    """Return the mean of every run of ``window`` consecutive values, by one prefix sum.

    The sum runs in float64 over ascending values, so the difference of two prefixes loses at most
    a factor n / window of its precision. With fewer values than ``window`` there is one run: all of them.
    Shapes: values (n,) → (max(n − window, 0) + 1,).

    Examples
    --------
    >>> sliding_means([0.0, 1.0, 2.0, 6.0], 2)
    array([0.5, 1.5, 4. ])
    """
    x = np.asarray(values, dtype=np.float64)
    m = min(window, len(x))
    prefix: Float64 = np.concatenate([[0.0], np.cumsum(x)])
    means: Float64 = (prefix[m:] - prefix[:-m]) / m
    return means


def window_errors(q: ArrayLike, o: ArrayLike, window: int) -> Float64:
    """Return (T̃₂ − T̃₁)/T̃₃ = mean(q) − mean(o) of every window of sorted events (eq:rewriteT1 to T3).

    Parameters
    ----------
    q, o : arrays of shape (n,)
        Sorted probabilities and their marks.
    window : int

    Returns
    -------
    array of shape (max(n − window, 0) + 1,)

    Examples
    --------
    >>> window_errors([0.25, 0.5, 0.75], [0, 1, 1], 2)
    array([-0.125, -0.375])
    """
    errors: Float64 = sliding_means(q, window) - sliding_means(o, window)
    return errors
