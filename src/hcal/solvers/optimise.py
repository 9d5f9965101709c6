"""Solvers of smooth problems: L-BFGS, damped Newton, and a scalar search.

A problem is a function θ ↦ (value, gradient).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.numerics import Float64

Loss = Callable[[Float64], tuple[float, Float64]]

_ARMIJO = 1e-4
_MOST_STEPS = 100  # of Newton
_LEAST_STEP = 1e-10


@dataclass(frozen=True)
class Solution:
    """The parameters at which a solver stopped, and why it stopped."""

    theta: Float64
    value: float
    converged: bool
    message: str
    iterations: int


class Best:
    """Early stopping: keeps the candidate with the lowest score until ``patience`` candidates have not been better.

    >>> best = Best(patience=2)
    >>> [best.over(score, what) for what, score in enumerate([3.0, 1.0, 2.0, 1.5])], best.what
    ([False, False, False, True], 1)
    """

    def __init__(self, patience: int) -> None:
        self.what: Any = None
        self._patience, self._least, self._since = patience, np.inf, 0

    def over(self, score: float, what: Any) -> bool:
        """Add a candidate ``what`` with its score, and return whether to stop."""
        self._since += 1
        if score < self._least:
            self.what, self._least, self._since = what, score, 0
        return self._since >= self._patience


def lbfgs(
    loss: Loss,
    start: Float64,
    *,
    scale: Float64 | None = None,
    bounds: tuple[Float64, Float64] | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-7,
    gain: float = 1e-13,
    watch: Callable[[Float64], bool] | None = None,
) -> Solution:
    """Minimise a smooth function by bounded limited-memory BFGS.

    The solver works on θ/scale, where ``scale`` should be about 1/√(second derivative), so that units do not matter.
    It stops when the largest entry of the (projected) gradient is at most ``tolerance``, when an iteration gains less
    than ``gain`` relative to max(|value|, 1), or when ``watch``, called with θ, returns True; that counts as
    converged. ``bounds`` are the least and the greatest θ.

    >>> solved = lbfgs(lambda t: (float(((t - 3) ** 2).sum()), 2 * (t - 3)), np.zeros(2))
    >>> solved.theta.round(5), solved.converged
    (array([3., 3.]), True)
    """
    from scipy.optimize import Bounds, minimize

    unit = np.ones_like(start) if scale is None else scale

    def scaled(phi: Float64) -> tuple[float, Float64]:
        value, gradient = loss(unit * phi)
        return value, unit * gradient

    def after(intermediate_result: Any) -> None:
        if watch is not None and watch(unit * intermediate_result.x):
            raise StopIteration

    limits: Any = {"maxiter": max_iterations, "maxfun": 2 * max_iterations, "gtol": tolerance, "ftol": gain}
    box = None if bounds is None else Bounds(bounds[0] / unit, bounds[1] / unit)
    found = minimize(
        scaled, start / unit, jac=True, method="L-BFGS-B", bounds=box, callback=after, options=limits | {"maxcor": 20}
    )
    theta = np.asarray(unit * found.x, dtype=np.float64)
    done = bool(found.success) or found.status == 99  # 99: ended by ``watch``
    message = "" if done else f"L-BFGS stopped after {found.nit} iterations before it converged"
    return Solution(theta, float(found.fun), done, message, int(found.nit))


def newton(loss: Loss, hessian: Callable[[Float64], Float64], start: Float64, *, tolerance: float = 1e-12) -> Solution:
    """Minimise a smooth function by Newton steps with backtracking.

    ``loss`` is θ ↦ (value, gradient) and ``hessian`` θ ↦ (P, P). The Hessian may have flat directions (such as a
    shift of all intercepts) and, far from the optimum, negative curvature. The search stops when a full step is
    expected to gain less than ``tolerance`` relative to 1 + |value|.

    >>> square = lambda t: (float(((t - 3) ** 2).sum()), 2 * (t - 3))
    >>> newton(square, lambda t: 2 * np.eye(2), np.zeros(2)).theta.round(6)
    array([3., 3.])
    """
    theta, (value, gradient) = start.copy(), loss(start)
    for iteration in range(_MOST_STEPS):
        step = _direction(hessian(theta), gradient)
        gain, length = -float(gradient @ step), 1.0
        if gain <= tolerance * (1 + abs(value)):
            return Solution(theta, value, True, "", iteration)
        while length > _LEAST_STEP:
            new_value, new_gradient = loss(theta + length * step)
            if new_value <= value - _ARMIJO * length * gain:
                break
            length /= 2
        else:  # differences are now of the size of rounding errors: nothing is left to gain
            return Solution(theta, value, gain < 1e-6 * (1 + abs(value)), "no further descent", iteration)
        theta, value, gradient = theta + length * step, new_value, new_gradient
    message = f"Newton stopped after {_MOST_STEPS} iterations before it converged"
    return Solution(theta, value, False, message, _MOST_STEPS)


def _direction(hessian: Float64, gradient: Float64) -> Float64:
    """Return −H⁻¹g, with just enough added to the diagonal to make H positive definite."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    size = float(np.abs(np.diag(hessian)).max()) or 1.0
    # H is rescaled to a unit diagonal first, so that the ridge does not depend on the unit of the logits.
    unit = np.sqrt(np.maximum(np.diag(hessian), 1e-14 * size))
    scaled = hessian / unit[:, None] / unit
    ridge = 1e-11
    while True:
        try:
            factor = cho_factor(scaled + ridge * np.eye(len(scaled)))
            return np.asarray(-cho_solve(factor, gradient / unit) / unit, dtype=np.float64)
        except LinAlgError:
            ridge *= 10


def minimise_scalar(
    function: Callable[[float], float], low: float, high: float, *, points: int = 31, tolerance: float = 1e-7
) -> float:
    """Return the argument of the least value: an even scan, then Brent's method between the best point's neighbours.

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
