"""Map × objective × solver: the one place where the three meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcal.maps.scaling import Map
from hcal.numerics import IntArray
from hcal.objective.proper import Objective
from hcal.solvers.lbfgs import Solution, lbfgs

Float64 = NDArray[np.float64]

# Blocks of about this many events keep the temporaries in the cache; matrix products want some rows at least.
_BLOCK_EVENTS = 65_536
_MIN_ROWS = 64


@dataclass(frozen=True)
class Ridge:
    """The penalty Σ strength · (θ − centre)².

    Examples
    --------
    >>> Ridge(np.array([2.0]), np.array([1.0])).value_and_grad(np.array([3.0]))
    (8.0, array([8.]))
    """

    strength: Float64
    centre: Float64

    def value_and_grad(self, theta: Float64) -> tuple[float, Float64]:
        """Return the penalty and its gradient."""
        away = theta - self.centre
        pull = self.strength * away
        return float(pull @ away), 2 * pull


def unit_weight(weight: Float64 | None, n_rows: int) -> Float64:
    """Return weights that sum to 1; None means equal ones.

    Examples
    --------
    >>> unit_weight(None, 4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return np.full(n_rows, 1 / n_rows) if weight is None else weight / weight.sum()


def loss_of(
    map: Map,
    objective: Objective,
    x: Float64,
    y: IntArray,
    weight: Float64 | None = None,
    penalty: Ridge | None = None,
) -> Callable[[Float64], tuple[float, Float64]]:
    """Return θ ↦ (objective of the map's probabilities + penalty, gradient in θ).

    Parameters
    ----------
    map : Map
    objective : Objective
    x : array of shape (N, ·)
        The scores that the map takes.
    y : array of shape (N,)
    weight : array of shape (N,), optional
    penalty : Ridge, optional

    Returns
    -------
    callable

    Examples
    --------
    >>> from hcal.maps import scaling
    >>> from hcal.objective import proper
    >>> loss = loss_of(scaling.temperature(), proper.nll(), np.array([[0.0, 0.0]]), np.array([0]))
    >>> round(loss(np.zeros(1))[0], 4)
    0.6931
    """
    w = unit_weight(weight, len(x))
    rows = max(_MIN_ROWS, _BLOCK_EVENTS // x.shape[1]) if objective.by_rows else len(x)

    def loss(theta: Float64) -> tuple[float, Float64]:
        value, gradient = (0.0, np.zeros_like(theta)) if penalty is None else penalty.value_and_grad(theta)
        for start in range(0, len(x), rows):
            block = slice(start, start + rows)
            log_probs, pullback = map.vjp(theta, x[block])
            part, slope = objective.value_and_grad(log_probs, y[block], w[block])
            value += part
            gradient += pullback(slope)
        return value, gradient

    return loss


def fit_map(
    map: Map,
    objective: Objective,
    x: Float64,
    y: IntArray,
    weight: Float64 | None = None,
    *,
    penalty: Ridge | None = None,
    start: Float64 | None = None,
    scale: Float64 | None = None,
    bounds: list[tuple[float | None, float | None]] | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-7,
) -> Solution:
    """Fit any map by any objective with L-BFGS; see :func:`loss_of` and :func:`hcal.solvers.lbfgs.lbfgs`.

    Returns
    -------
    Solution

    Examples
    --------
    >>> from hcal.maps import scaling
    >>> from hcal.objective import proper
    >>> x, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> solved = fit_map(scaling.temperature(), proper.nll(), x, y)
    >>> np.exp(scaling.temperature().log_probs(solved.theta, x[:1])).round(4)
    array([[0.25, 0.75]])
    """
    loss = loss_of(map, objective, x, y, weight, penalty)
    first = map.start if start is None else start
    return lbfgs(loss, first, scale=scale, bounds=bounds, max_iterations=max_iterations, tolerance=tolerance)
