"""Map × objective × solver on rows that are in memory or not: the same problem, by sums over blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hcal.maps.protocol import Map
from hcal.objective.protocol import Objective
from hcal.numerics import Float64, IntArray
from hcal.solvers.fit_map import Ridge, diagonal_of, fit_map, hessian_of, loss_of, units_of
from hcal.solvers.lbfgs import Loss, Solution
from hcal.solvers.methods import Solvable
from hcal.solvers.rows import ArrayRows, FitRows

#: How a map or an objective is made. It travels to the rows, which the closures of a map could not:
#: ``functools.partial(scaling.vector, 10)``.
MakeMap = Callable[[], Map]
MakeObjective = Callable[[], Objective]


@dataclass(frozen=True)
class SummedProblem:
    """A problem like :class:`hcal.solvers.fit_map.Problem`, its rows behind sums.

    Maps and objectives are made where the rows are.
    """

    make_map: MakeMap
    make_objective: MakeObjective
    rows: FitRows
    penalty: Ridge | None
    start: Float64

    def loss(self) -> Loss:
        """Return θ ↦ (value, gradient): one pass, two for an objective that needs a table first."""

        def loss(theta: Float64) -> tuple[float, Float64]:
            value, gradient = self._value_and_grad(theta)
            if self.penalty is not None:
                extra, slope = self.penalty.value_and_grad(theta)
                value, gradient = value + extra, gradient + slope
            return value, gradient

        return loss

    def _value_and_grad(self, theta: Float64) -> tuple[float, Float64]:
        objective, make = self.make_objective(), self.make_map
        if objective.table is not None:
            (table,) = self.rows.sum(partial(_table, make, self.make_objective, theta))
            value, by_rows = table.result()
            return value, self.rows.sum(partial(_slope_given, make, by_rows, theta))[0]
        if not objective.by_rows:
            raise ValueError(
                f"the objective {objective.name!r} is no sum over rows: it needs all of them at once"
            )
        value, gradient = self.rows.sum(partial(_slope, make, self.make_objective, theta))
        return value / self.rows.total, gradient / self.rows.total

    def has_hessian(self) -> bool:
        """Whether the second derivative is known."""
        return self.make_objective().uses_curvature and self.make_map().curvature is not None

    def hessian(self) -> Callable[[Float64], Float64]:
        """Return θ ↦ second derivative (P, P): one pass."""

        def hessian(theta: Float64) -> Float64:
            total: Float64 = self.rows.sum(partial(_curvature, self.make_map, theta))[0] / self.rows.total
            if self.penalty is not None:
                total[np.diag_indices_from(total)] += 2 * self.penalty.strength
            return total

        return hessian

    def units(self) -> Float64 | None:
        """Return the units of the parameters (P,): one pass."""
        if self.make_map().diagonal is None:
            return None
        total = self.rows.sum(partial(_diagonal, self.make_map, self.start))[0]
        return units_of(total / self.rows.total, self.penalty)


def fit_rows(
    make_map: MakeMap,
    make_objective: MakeObjective,
    solver: Callable[[Solvable], Solution],
    rows: FitRows,
    *,
    penalty: Ridge | None = None,
    start: Float64 | None = None,
) -> Solution:
    """Fit a map on rows in memory or not; see :func:`hcal.solvers.fit_map.fit_map`.

    ``make_map`` and ``make_objective`` are sent to where the rows are; ``solver`` is one of
    :mod:`hcal.solvers.methods`.

    >>> from hcal.maps import scaling
    >>> from hcal.objective import proper
    >>> from hcal.solvers.methods import Lbfgs
    >>> from hcal.solvers.rows import PieceRows
    >>> half = [(np.array([[0.0, 2.0]] * 2), np.array([1, 1]), np.ones(2))]
    >>> rest = [(np.array([[0.0, 2.0]] * 2), np.array([1, 0]), np.ones(2))]
    >>> rows = PieceRows([half, rest], list, lambda work, items: map(work, items), np.array([1.0, 3.0]))
    >>> round(float(np.exp(fit_rows(scaling.temperature, proper.log_loss, Lbfgs(), rows).theta[0])), 4)
    0.5493
    """
    if isinstance(rows, ArrayRows):
        x = rows.x.astype(np.float64, copy=False)
        return fit_map(
            make_map(), make_objective(), solver, x, rows.y, rows.weight, penalty=penalty, start=start
        )
    first = make_map().start if start is None else start
    return solver(SummedProblem(make_map, make_objective, rows, penalty, first))


def _slope(
    make_map: MakeMap, make_objective: MakeObjective, theta: Float64, x: Float64, y: IntArray, weight: Float64
) -> tuple[float, Float64]:
    value, gradient = loss_of(make_map(), make_objective(), x, y, weight)(theta)
    mass = float(weight.sum())  # the loss of a block is a mean
    return value * mass, gradient * mass


def _table(
    make_map: MakeMap, make_objective: MakeObjective, theta: Float64, x: Float64, y: IntArray, weight: Float64
) -> tuple[Any]:
    table = make_objective().table
    assert table is not None
    return (table(make_map().log_probs(theta, x), y, weight),)


def _slope_given(
    make_map: MakeMap, by_rows: Callable[..., Any], theta: Float64, x: Float64, y: IntArray, weight: Float64
) -> tuple[Float64]:
    log_probs, pullback = make_map().vjp(theta, x)
    return (pullback(by_rows(log_probs, y, weight)),)


def _curvature(make_map: MakeMap, theta: Float64, x: Float64, y: IntArray, weight: Float64) -> tuple[Float64]:
    return (hessian_of(make_map(), x, weight)(theta) * float(weight.sum()),)


def _diagonal(make_map: MakeMap, theta: Float64, x: Float64, y: IntArray, weight: Float64) -> tuple[Float64]:
    return (diagonal_of(make_map(), theta, x, weight),)
