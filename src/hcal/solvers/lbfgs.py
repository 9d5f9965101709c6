"""L-BFGS with analytic gradients, optional bounds and a change of scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.numerics import Float64

Loss = Callable[[Float64], tuple[float, Float64]]


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
