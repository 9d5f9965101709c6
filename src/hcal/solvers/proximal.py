"""Accelerated proximal gradient, for penalties with a kink: lasso, MCP, group lasso."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hcal.numerics import Float64
from hcal.solvers.lbfgs import Loss, Solution


@dataclass(frozen=True)
class Prox:
    """A penalty and its proximal map: (θ, step) ↦ argmin ½‖u − θ‖² + step · penalty(u)."""

    penalty: Callable[[Float64], float]
    step: Callable[[Float64, float], Float64]


def lasso_prox(strength: Float64) -> Prox:
    """Return Σ s|θ|.

    >>> lasso_prox(np.array([1.0, 1.0])).step(np.array([3.0, 0.5]), 1.0)
    array([2., 0.])
    """

    def step(theta: Float64, length: float) -> Float64:
        return np.sign(theta) * np.maximum(np.abs(theta) - length * strength, 0)

    return Prox(lambda theta: float(strength @ np.abs(theta)), step)


def mcp_prox(strength: Float64, gamma: float = 3.0) -> Prox:
    """Return the minimax concave penalty: s|θ| − θ²/2γ up to |θ| = γs, constant above.

    Steps must stay below ``gamma``; the solver's line search does.

    >>> mcp_prox(np.array([1.0, 1.0])).step(np.array([4.0, 0.5]), 1.0)
    array([4., 0.])
    """

    def penalty(theta: Float64) -> float:
        size = np.minimum(np.abs(theta), gamma * strength)
        return float((strength * size - size**2 / (2 * gamma)).sum())

    def step(theta: Float64, length: float) -> Float64:
        t = min(length, 0.5 * gamma)
        soft = np.sign(theta) * np.maximum(np.abs(theta) - t * strength, 0) / (1 - t / gamma)
        return np.where(np.abs(theta) > gamma * strength, theta, soft)

    return Prox(penalty, step)


def group_lasso_prox(strength: Float64, n_classes: int) -> Prox:
    """Return Σ_k s_k‖off-diagonal of row k of a matrix‖₂ + Σ s|θ| of the diagonal and of the offsets.

    ``strength`` (K² + K,) stands as the parameters of :func:`hcal.maps.scaling.matrix`: the matrix row by
    row, then the offsets.

    >>> group_lasso_prox(np.ones(6), 2).step(np.array([2.0, 0.5, 3.0, 0.0, 0.0, 0.0]), 1.0)
    array([1., 0., 2., 0., 0., 0.])
    """
    k = n_classes
    diagonal = np.r_[np.eye(k, dtype=bool).ravel(), np.ones(k, dtype=bool)]
    alone = lasso_prox(np.where(diagonal, strength, 0.0))
    # All members of a row share one strength; its first off-diagonal entry stands for it.
    per_row = np.array([strength[: k * k].reshape(k, k)[j, 1 if j == 0 else 0] for j in range(k)])

    def norms(theta: Float64) -> Float64:
        rows = np.where(diagonal, 0.0, theta)[: k * k].reshape(k, k)
        return np.asarray(np.linalg.norm(rows, axis=1), dtype=np.float64)

    def step(theta: Float64, length: float) -> Float64:
        size = norms(theta)
        shrink = np.maximum(1 - length * per_row / np.maximum(size, 1e-300), 0)
        out = alone.step(theta, length)
        out[: k * k] *= np.where(diagonal[: k * k], 1.0, np.repeat(shrink, k))
        return out

    return Prox(lambda theta: alone.penalty(theta) + float(per_row @ norms(theta)), step)


def proximal_gradient(
    loss: Loss, start: Float64, prox: Prox, *, max_iterations: int = 500, tolerance: float = 1e-5
) -> Solution:
    """Minimise smooth loss + penalty by accelerated proximal gradient (FISTA) with restarts.

    ``loss`` is θ ↦ (value, gradient). It stops when an iteration moves no parameter by more than
    ``tolerance``, relative to the largest.

    >>> square = lambda t: (float(((t - 3) ** 2).sum()), 2 * (t - 3))
    >>> proximal_gradient(square, np.zeros(1), lasso_prox(np.array([2.0]))).theta.round(4)
    array([2.])
    """
    theta = ahead = start.copy()
    momentum, length = 1.0, 1.0
    total = np.inf
    for iteration in range(1, max_iterations + 1):
        value, gradient = loss(ahead)
        while True:  # backtrack until the quadratic model is an upper bound
            trial = prox.step(ahead - length * gradient, length)
            move = trial - ahead
            new_value, _ = loss(trial)
            if new_value <= value + gradient @ move + move @ move / (2 * length) + 1e-12 or length < 1e-12:
                break
            length /= 2
        new_total = new_value + prox.penalty(trial)
        if new_total > total:  # momentum overshot: restart it from the best point
            ahead, momentum = theta.copy(), 1.0
            total = np.inf
            continue
        change = float(np.abs(trial - theta).max())
        faster = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = trial + (momentum - 1) / faster * (trial - theta)
        theta, momentum, total = trial, float(faster), new_total
        if change <= tolerance * max(1.0, float(np.abs(theta).max())):
            return Solution(theta, total, True, "", iteration)
        length *= 1.2
    message = f"proximal gradient stopped after {max_iterations} iterations before it converged"
    return Solution(theta, float(total), False, message, max_iterations)
