"""Solvers of smooth problems: L-BFGS, damped Newton, accelerated proximal gradient, and a scalar search.

A problem is a function θ ↦ (value, gradient); what it is made of is none of a solver's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.numerics import Float64

Loss = Callable[[Float64], tuple[float, Float64]]

_ARMIJO = 1e-4
_LEAST_STEP = 1e-10


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped, and why; ``record`` is what a solver has to tell beyond that."""

    theta: Float64
    value: float
    converged: bool
    message: str
    iterations: int
    record: Any = None


def lbfgs(
    loss: Loss,
    start: Float64,
    *,
    scale: Float64 | None = None,
    bounds: list[tuple[float | None, float | None]] | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-7,
    gain: float = 1e-13,
    watch: Callable[[Float64], bool] | None = None,
) -> Solution:
    """Minimise a smooth function by bounded limited-memory BFGS.

    The solver works on θ/scale, about 1/√(second derivative), and so does not depend on units. It stops when
    the largest entry of the (projected) gradient there is at most ``tolerance``, when an iteration gains less
    than ``gain`` relative to max(|value|, 1), or when ``watch`` (called with θ) says so, which counts as
    converged.

    >>> solved = lbfgs(lambda t: (float(((t - 3) ** 2).sum()), 2 * (t - 3)), np.zeros(2))
    >>> solved.theta.round(5), solved.converged
    (array([3., 3.]), True)
    """
    from scipy.optimize import minimize

    unit = np.ones_like(start) if scale is None else scale

    def scaled(phi: Float64) -> tuple[float, Float64]:
        value, gradient = loss(unit * phi)
        return value, unit * gradient

    box = None
    if bounds is not None:
        box = [
            (a if a is None else a / s, b if b is None else b / s)
            for (a, b), s in zip(bounds, unit, strict=True)
        ]

    def after(intermediate_result: Any) -> None:
        if watch is not None and watch(unit * intermediate_result.x):
            raise StopIteration

    found = minimize(
        scaled,
        start / unit,
        jac=True,
        method="L-BFGS-B",
        bounds=box,
        callback=after,
        options={
            "maxiter": max_iterations,
            "maxfun": 2 * max_iterations,
            "maxcor": 20,
            "gtol": tolerance,
            "ftol": gain,
        },
    )
    theta = np.asarray(unit * found.x, dtype=np.float64)
    done = bool(found.success) or found.status == 99  # 99: ended by ``watch``
    message = "" if done else f"L-BFGS stopped after {found.nit} iterations before it converged"
    return Solution(theta, float(found.fun), done, message, int(found.nit))


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

    ``strength`` (K² + K,) stands as the parameters of :class:`hcal.solvers.families.MatrixScaling`: the matrix row by
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


def minimise_scalar(
    function: Callable[[float], float], low: float, high: float, *, points: int = 31, tolerance: float = 1e-7
) -> float:
    """Return the argument of the least value: an even scan, then Brent between the best point's neighbours.

    ``points`` of the scan should be enough to land in the valley of the global minimum; ``tolerance`` is
    absolute, on the argument.

    >>> round(minimise_scalar(lambda t: (t - 1.5) ** 2, -4.0, 4.0), 5)
    1.5
    """
    from scipy.optimize import minimize_scalar

    grid = np.linspace(low, high, points)
    values = [function(float(t)) for t in grid]
    best = int(np.argmin(values))
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, points - 1)]
    found = minimize_scalar(function, bounds=(left, right), method="bounded", options={"xatol": tolerance})
    # The bounded search never evaluates the ends, and one of them may be the minimum.
    return float(found.x) if found.fun <= values[best] else float(grid[best])
