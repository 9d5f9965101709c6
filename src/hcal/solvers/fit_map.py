"""Map × objective × solver: the one place where the three meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hcal.maps.protocol import Map
from hcal.objective.protocol import Objective
from hcal.numerics import Float64, IntArray, row_blocks
from hcal.runtime.threads import each
from hcal.solvers.lbfgs import Loss, Solution

# Blocks of 256 KiB stay in the cache: a pass at 25000×1000 takes 0.23 s instead of 0.6 s. Matrix products
# want some rows at least.
_BLOCK_EVENTS = 32_768
_MATRIX_ROWS = 512
_THREADED_EVENTS, _PART_EVENTS = 2_000_000, 1_000_000


@dataclass(frozen=True)
class Ridge:
    """The penalty Σ strength · (θ − centre)².

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

    >>> unit_weight(None, 4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return np.full(n_rows, 1 / n_rows) if weight is None else weight / weight.sum()


def _rows(map: Map, x: Float64) -> int:
    least = _MATRIX_ROWS if map.name == "matrix" else 1
    return max(least, _BLOCK_EVENTS // int(x.shape[1]))


def _parts(map: Map, objective: Objective, x: Float64) -> list[tuple[int, int]]:
    """Return runs of rows for threads, of a fixed size: the sum is the same however many threads there are.

    Not for matrix products and torch, which have threads of their own.
    """
    own_threads = map.name == "matrix" or map.module is not None
    if not objective.by_rows or own_threads or x.size < _THREADED_EVENTS:
        return [(0, len(x))]
    step = max(1, _PART_EVENTS // int(x.shape[1]))
    return [(first, min(first + step, len(x))) for first in range(0, len(x), step)]


def loss_of(
    map: Map,
    objective: Objective,
    x: Float64,
    y: IntArray,
    weight: Float64 | None = None,
    penalty: Ridge | None = None,
) -> Loss:
    """Return θ ↦ (objective of the map's probabilities + penalty, gradient in θ).

    The map takes the scores ``x`` (N, ·); ``y`` and ``weight`` have shape (N,).

    >>> from hcal.maps import scaling
    >>> from hcal.objective import proper
    >>> loss = loss_of(scaling.temperature(), proper.log_loss(), np.array([[0.0, 0.0]]), np.array([0]))
    >>> round(loss(np.zeros(1))[0], 4)
    0.6931
    """
    w = unit_weight(weight, len(x))
    rows = _rows(map, x) if objective.by_rows else len(x)
    parts = _parts(map, objective, x)

    def loss(theta: Float64) -> tuple[float, Float64]:
        def over(part: tuple[int, int]) -> tuple[float, Float64]:
            (first, last), value, gradient = part, 0.0, np.zeros_like(theta)
            for start in range(first, last, rows):
                block = slice(start, min(start + rows, last))
                log_probs, pullback = map.vjp(theta, x[block])
                own, slope = objective.value_and_grad(log_probs, y[block], w[block])
                value += own
                gradient += pullback(slope)
            return value, gradient

        value, gradient = (0.0, np.zeros_like(theta)) if penalty is None else penalty.value_and_grad(theta)
        for own, slope in each(over, parts, events=x.size):
            value += own
            gradient += slope
        return value, gradient

    return loss


def hessian_of(
    map: Map, x: Float64, weight: Float64 | None = None, penalty: Ridge | None = None
) -> Callable[[Float64], Float64]:
    """Return θ ↦ second derivative (P, P) of mean NLL + penalty, for maps that have a ``curvature``.

    >>> from hcal.maps import scaling
    >>> hessian_of(scaling.vector(2), np.zeros((1, 2)))(scaling.vector(2).start)[2:, 2:]
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    curvature = map.curvature
    if curvature is None:
        raise ValueError(f"the map {map.name!r} has no curvature: use L-BFGS")
    w = unit_weight(weight, len(x))

    def hessian(theta: Float64) -> Float64:
        blocks = row_blocks((len(x), len(theta)), 4_000_000)
        total = sum((curvature(theta, x[b], w[b]) for b in blocks), np.zeros((len(theta), len(theta))))
        if penalty is not None:
            total[np.diag_indices_from(total)] += 2 * penalty.strength
        return total

    return hessian


@dataclass(frozen=True)
class Problem:
    """What a solver is given: all of a fit but how to do it.

    The fields are the arguments of :func:`fit_map`, with a ``start`` of shape (P,).

    >>> from hcal.maps import scaling
    >>> from hcal.objective import proper
    >>> map = scaling.temperature()
    >>> problem = Problem(map, proper.log_loss(), np.zeros((1, 2)), np.array([0]), None, None, map.start)
    >>> round(problem.loss()(problem.start)[0], 4)
    0.6931
    """

    map: Map
    objective: Objective
    x: Float64
    y: IntArray
    weight: Float64 | None
    penalty: Ridge | None
    start: Float64

    def loss(self) -> Loss:
        """Return θ ↦ (value, gradient)."""
        return loss_of(self.map, self.objective, self.x, self.y, self.weight, self.penalty)

    def has_hessian(self) -> bool:
        """Whether the second derivative is known: the map's curvature is that of the objective."""
        return self.objective.uses_curvature and self.map.curvature is not None

    def hessian(self) -> Callable[[Float64], Float64]:
        """Return θ ↦ second derivative (P, P)."""
        if not self.objective.uses_curvature:
            raise ValueError(f"the objective {self.objective.name!r} has no second derivative: use L-BFGS")
        return hessian_of(self.map, self.x, self.weight, self.penalty)

    def units(self) -> Float64 | None:
        """Return 1/√(diagonal of the second derivative of NLL at the start), where the map knows it."""
        if self.map.diagonal is None:
            return None
        weight = unit_weight(self.weight, len(self.x))
        return units_of(diagonal_of(self.map, self.start, self.x, weight), self.penalty)


#: How a problem is solved: :mod:`hcal.solvers.methods`, :class:`hcal.solvers.adam.Adam`, or your own.
Solver = Callable[[Problem], Solution]


def fit_map(
    map: Map,
    objective: Objective,
    solver: Solver,
    x: Float64,
    y: IntArray,
    weight: Float64 | None = None,
    *,
    penalty: Ridge | None = None,
    start: Float64 | None = None,
) -> Solution:
    """Fit any map by any objective with any solver that suits them.

    Parameters
    ----------
    map : Map
    objective : Objective
    solver : callable
        Problem ↦ Solution: ``Newton``, ``Lbfgs``, ``NewtonOrLbfgs``, ``Proximal`` of
        :mod:`hcal.solvers.methods` or ``Adam`` of :mod:`hcal.solvers.adam`.
    x : array of shape (N, ·)
        The scores that the map takes: log-softmax of the logits for the maps that are torch modules.
    y : array of shape (N,)
    weight : array of shape (N,), optional
    penalty : Ridge, optional
    start : array of shape (P,), optional
        Default: the start of the map.

    Returns
    -------
    Solution

    Examples
    --------
    >>> from hcal.maps import scaling
    >>> from hcal.objective import proper
    >>> from hcal.solvers.methods import Lbfgs
    >>> x, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> solved = fit_map(scaling.temperature(), proper.log_loss(), Lbfgs(), x, y)
    >>> np.exp(scaling.temperature().log_probs(solved.theta, x[:1])).round(4)
    array([[0.25, 0.75]])
    """
    first = map.start if start is None else start
    return solver(Problem(map, objective, x, y, weight, penalty, first))


def diagonal_of(map: Map, theta: Float64, x: Float64, weight: Float64) -> Float64:
    """Return the diagonal (P,) of the second derivative of the weighted sum of NLLs.

    >>> from hcal.maps import scaling
    >>> diagonal_of(scaling.vector(2), scaling.vector(2).start, np.zeros((1, 2)), np.ones(1))
    array([0.  , 0.  , 0.25, 0.25])
    """
    assert map.diagonal is not None
    total, rows = np.zeros_like(theta), _rows(map, x)
    for block in row_blocks((len(x), 1), rows):
        total += map.diagonal(theta, x[block], weight[block])
    return total


def units_of(diagonal: Float64, penalty: Ridge | None) -> Float64 | None:
    """Return 1/√(diagonal, with the penalty's), or None where there is nothing to measure units by.

    >>> units_of(np.array([4.0, 1.0]), None)
    array([0.5, 1. ])
    """
    total = diagonal if penalty is None else diagonal + 2 * penalty.strength
    if not total.max() > 0:  # one class, or saturated throughout
        return None
    units: Float64 = 1 / np.sqrt(np.maximum(total, 1e-8 * total.max()))
    return units
