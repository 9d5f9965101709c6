"""Solvers of smooth problems: L-BFGS, damped Newton, and a scalar search.

A problem is a function θ ↦ (value, gradient).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from hcal.numerics import Float64

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

Loss = Callable[[Float64], tuple[float, Float64]]
#: What a loss returns beside its value, for the next step.
State = TypeVar("State")
Candidate = TypeVar("Candidate")

_MOST_STEPS = 100  # of Newton
_LEAST_STEP = 1e-10
_FARTHEST = 1e60  # from where a search began: no minimum lies so far, in units of the start
_SEEN = 1e-9  # a relative gain below this is lost in the rounding of sums
_ENDED_BY_CALLBACK = 99  # scipy's status of a search that the callback ended


@dataclass(frozen=True)
class Solution:
    """The parameters at which a solver stopped, and why it stopped."""

    theta: Float64
    value: float
    converged: bool
    message: str
    iterations: int


@dataclass(frozen=True)
class NewtonSolution(Solution, Generic[State]):
    """The solution of :func:`newton`, and what the loss returned beside its value there."""

    state: State


class Best(Generic[Candidate]):
    """Early stopping: keeps the candidate with the lowest score until ``patience`` candidates have not been better.

    >>> best = Best(patience=2)
    >>> [best.over(score, what) for what, score in enumerate([3.0, 1.0, 2.0, 1.5])], best.what
    ([False, False, False, True], 1)
    """

    def __init__(self, patience: int) -> None:
        self.what: Candidate | None = None
        self._patience = patience
        self._least = np.inf
        self._since = 0

    def over(self, score: float, what: Candidate) -> bool:
        """Add a candidate ``what`` with its score, and return whether to stop."""
        self._since += 1
        if score < self._least:
            self.what = what
            self._least = score
            self._since = 0
        return self._since >= self._patience


@dataclass(frozen=True)
class Search:
    """Where to search for a minimum, and when to stop.

    L-BFGS stops when the largest entry of the (projected) gradient is at most ``tolerance``, when an iteration gains
    less than ``gain`` relative to max(|value|, 1), or when ``watch``, called with θ after every iteration, returns
    True; that counts as converged. ``bounds`` are the least and the greatest θ. Where a fit can use Newton instead,
    that stops when a step is expected to gain less than ``newton_gain``.
    """

    bounds: tuple[Float64, Float64] | None = None
    max_iterations: int = 1000
    tolerance: float = 1e-7
    gain: float = 1e-13
    newton_gain: float = 1e-12
    watch: Callable[[Float64], bool] | None = None


def lbfgs(
    loss: Loss, start: Float64, search: Search | None = None, *, scale: Float64 | None = None
) -> Solution:
    """Minimise a smooth function by bounded limited-memory BFGS.

    The solver works on θ/scale, where ``scale`` should be about 1/√(second derivative), so that units do not matter.

    >>> solved = lbfgs(lambda t: (float(((t - 3) ** 2).sum()), 2 * (t - 3)), np.zeros(2))
    >>> solved.theta.round(5), solved.converged
    (array([3., 3.]), True)
    """
    from scipy.optimize import Bounds, minimize

    search = search or Search()
    unit = np.ones_like(start) if scale is None else scale
    box = None
    if search.bounds is not None:
        lowest, highest = search.bounds
        box = Bounds(lowest / unit, highest / unit)
    result = minimize(
        partial(_scaled_loss, loss, unit),
        start / unit,
        jac=True,
        method="L-BFGS-B",
        bounds=box,
        callback=None if search.watch is None else _Callback(search.watch, unit),
        options={
            "maxiter": search.max_iterations,
            "maxfun": 2 * search.max_iterations,
            "gtol": search.tolerance,
            "ftol": search.gain,
            "maxcor": 20,
        },
    )
    iterations = int(result.nit)
    theta = np.asarray(unit * result.x, dtype=np.float64)
    converged = bool(result.success) or result.status == _ENDED_BY_CALLBACK
    message = (
        "" if converged else f"L-BFGS stopped after {iterations} iterations before it converged"
    )
    return Solution(theta, float(result.fun), converged, message, iterations)


def _scaled_loss(loss: Loss, unit: Float64, scaled_theta: Float64) -> tuple[float, Float64]:
    value, gradient = loss(unit * scaled_theta)
    return value, unit * gradient


@dataclass(frozen=True)
class _Callback:
    """What scipy calls after every iteration; the name of its argument is scipy's."""

    watch: Callable[[Float64], bool]
    unit: Float64

    def __call__(self, intermediate_result: OptimizeResult) -> None:
        if self.watch(self.unit * intermediate_result.x):
            raise StopIteration


def newton(
    loss: Callable[[Float64], tuple[float, State]],
    direction: Callable[[Float64, State], tuple[Float64, Float64]],
    start: Float64,
    *,
    tolerance: float = 1e-12,
    lowest: float = -np.inf,
) -> NewtonSolution[State]:
    """Minimise a convex function by damped Newton steps.

    ``loss`` is θ ↦ (value, state), where the state is what the next step needs, such as the gradient; ``direction`` is
    (θ, state) ↦ (gradient, H⁻¹·gradient). A step is halved until the value does not rise. Near the minimum rounding
    hides the gain, so steps are taken in full. The search ends after a step that was expected to gain at most
    ``tolerance`` relative to 1 + |value|, or before one that goes beyond all bounds, as where nothing is curved. No
    parameter falls below ``lowest``.

    >>> square = lambda t: (float(((t - 3) ** 2).sum()), 2 * (t - 3))
    >>> newton(square, lambda t, gradient: (gradient, gradient / 2), np.zeros(2)).theta
    array([3., 3.])
    """
    theta = start
    value, state = loss(start)
    farthest = _FARTHEST * max(1.0, float(np.abs(start).max(initial=0.0)))
    for iteration in range(1, _MOST_STEPS + 1):
        gradient, step = direction(theta, state)
        if not np.abs(theta - step).max(initial=0.0) <= farthest:
            message = f"Newton stopped after {iteration - 1} iterations where nothing is curved"
            return NewtonSolution(theta, value, False, message, iteration - 1, state)
        expected_gain = float(gradient @ step)
        length = 1.0
        trial = np.maximum(theta - step, lowest)
        trial_value, state = loss(trial)

        can_be_seen = expected_gain > _SEEN * (1 + abs(value))
        while not trial_value <= value and can_be_seen and length > _LEAST_STEP:
            length /= 2
            trial = np.maximum(theta - length * step, lowest)
            trial_value, state = loss(trial)

        theta = trial
        value = trial_value
        if expected_gain <= tolerance * (1 + abs(value)):
            return NewtonSolution(theta, value, True, "", iteration, state)
    message = f"Newton stopped after {_MOST_STEPS} iterations before it converged"
    return NewtonSolution(theta, value, False, message, _MOST_STEPS, state)


def solve_curved(hessian: Float64, gradient: Float64) -> Float64:
    """Return H⁻¹g, with just enough added to the diagonal to make H positive definite.

    Flat directions, such as a shift of all intercepts, get no step.

    >>> solve_curved(np.diag([2.0, 0.0]), np.array([1.0, 0.0])).round(6)
    array([0.5, 0. ])
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    diagonal = np.diag(hessian)
    size = float(np.abs(diagonal).max()) or 1.0
    # The diagonal is scaled to 1 first, because a fixed ridge would depend on the unit of the logits.
    unit = np.sqrt(np.maximum(diagonal, 1e-14 * size))
    scaled = hessian / unit[:, None] / unit
    ridge = 1e-11
    while True:
        try:
            factor = cho_factor(scaled + ridge * np.eye(len(scaled)))
            step = cho_solve(factor, gradient / unit) / unit
            return np.asarray(step, dtype=np.float64)
        except LinAlgError:
            ridge *= 10


def minimise_scalar(
    function: Callable[[float], float],
    low: float,
    high: float,
    *,
    points: int = 31,
    tolerance: float = 1e-7,
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
    left = grid[max(best - 1, 0)]
    right = grid[min(best + 1, points - 1)]
    inner = minimize_scalar(
        function, bounds=(left, right), method="bounded", options={"xatol": tolerance}
    )
    # The bounded search never evaluates the ends, and one of them may be the minimum.
    return float(inner.x if inner.fun <= values[best] else grid[best])
