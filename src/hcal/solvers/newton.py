"""Damped Newton for small convex problems: insensitive to the units of the parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hcal.numerics import Float64
from hcal.solvers.lbfgs import Loss, Solution

_ARMIJO = 1e-4
_LEAST_STEP = 1e-10


def newton(
    loss: Loss,
    hessian: Callable[[Float64], Float64],
    start: Float64,
    *,
    limit: Float64 | None = None,
    max_iterations: int = 100,
    tolerance: float = 1e-12,
) -> Solution:
    """Minimise a smooth function by Newton steps with backtracking.

    ``loss`` is θ ↦ (value, gradient), ``hessian`` θ ↦ (P, P), in which flat directions (the shift of all
    intercepts) are allowed, and far from the optimum a curvature below 0. |θ| stays within ``limit`` (P,);
    what the gradient holds there takes no part in a step. It stops when a full step is expected to gain less
    than ``tolerance`` relative to 1 + |value|.

    >>> square = lambda t: (float(((t - 3) ** 2).sum()), 2 * (t - 3))
    >>> newton(square, lambda t: 2 * np.eye(2), np.zeros(2)).theta.round(6)
    array([3., 3.])
    """
    theta, (value, gradient) = start.copy(), loss(start)
    for iteration in range(max_iterations):
        step = _step(hessian(theta), theta, gradient, limit)
        gain = -float(gradient @ step)
        if gain <= tolerance * (1 + abs(value)):
            return Solution(theta, value, True, "", iteration)
        length = 1.0
        while length > _LEAST_STEP:
            trial = theta + length * step
            if limit is not None:
                trial = np.clip(trial, -limit, limit)
            new_value, new_gradient = loss(trial)
            if new_value <= value - _ARMIJO * float(gradient @ (theta - trial)):
                break
            length /= 2
        else:  # rounding, not the function, now decides: nothing is left to gain
            return Solution(theta, value, gain < 1e-6 * (1 + abs(value)), "no further descent", iteration)
        theta, value, gradient = trial, new_value, new_gradient
    message = f"Newton stopped after {max_iterations} iterations before it converged"
    return Solution(theta, value, False, message, max_iterations)


def _step(hessian: Float64, theta: Float64, gradient: Float64, limit: Float64 | None) -> Float64:
    if limit is None:
        return _direction(hessian, gradient)
    held = (np.abs(theta) >= limit) & (gradient * theta < 0)
    free = np.flatnonzero(~held)
    step = np.zeros_like(theta)
    step[free] = _direction(hessian[np.ix_(free, free)], gradient[free])
    return step


def _direction(hessian: Float64, gradient: Float64) -> Float64:
    """Return −H⁻¹g, with just enough added to the diagonal to make H positive definite."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    size = float(np.abs(np.diag(hessian)).max()) or 1.0
    # Rescaling to a unit diagonal first: logits may come in any unit, and a fixed ridge would notice.
    unit = np.sqrt(np.maximum(np.diag(hessian), 1e-14 * size))
    scaled = hessian / unit[:, None] / unit
    ridge = 1e-11
    while True:
        try:
            factor = cho_factor(scaled + ridge * np.eye(len(scaled)))
            return np.asarray(-cho_solve(factor, gradient / unit) / unit, dtype=np.float64)
        except LinAlgError:
            ridge *= 10
