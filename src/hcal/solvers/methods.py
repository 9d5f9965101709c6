"""Solvers of a composed problem: each holds its settings and is called with the problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from hcal.numerics import Float64
from hcal.solvers.lbfgs import Loss, Solution, lbfgs
from hcal.solvers.newton import newton
from hcal.solvers.proximal import Prox, proximal_gradient

#: Up to this many parameters a dense second derivative is cheaper than many L-BFGS steps.
NEWTON_PARAMETERS = 600


class Solvable(Protocol):
    """What these solvers ask of a problem, wherever its rows are."""

    @property
    def start(self) -> Float64:
        """Where to begin (P,)."""

    def loss(self) -> Loss:
        """Return θ ↦ (value, gradient)."""

    def has_hessian(self) -> bool:
        """Whether the second derivative is known."""

    def hessian(self) -> Callable[[Float64], Float64]:
        """Return θ ↦ second derivative (P, P)."""

    def units(self) -> Float64 | None:
        """Return the units of the parameters (P,), where they are known."""


@dataclass(frozen=True)
class Newton:
    """Damped Newton: NLL on maps with a ``curvature``; it stops when a step is to gain less than ``gain``."""

    gain: float = 1e-12

    def __call__(self, problem: Solvable) -> Solution:
        """Solve it."""
        return newton(problem.loss(), problem.hessian(), problem.start, tolerance=self.gain)


@dataclass(frozen=True)
class Lbfgs:
    """L-BFGS in the units of the map: every map and every smooth objective.

    Parameters
    ----------
    bounds : list of P pairs, optional
    max_iterations : int
    tolerance : float
        The largest entry of the gradient at which it stops.
    gain : float
        It also stops when an iteration gains less than this.
    watch : callable, optional
        Called with θ after every iteration; True ends the search.
    """

    bounds: list[tuple[float | None, float | None]] | None = None
    max_iterations: int = 1000
    tolerance: float = 1e-7
    gain: float = 1e-13
    watch: Callable[[Float64], bool] | None = None

    def __call__(self, problem: Solvable) -> Solution:
        """Solve it."""
        return lbfgs(
            problem.loss(),
            problem.start,
            scale=problem.units(),
            bounds=self.bounds,
            max_iterations=self.max_iterations,
            tolerance=self.tolerance,
            gain=self.gain,
            watch=self.watch,
        )


@dataclass(frozen=True)
class NewtonOrLbfgs:
    """Newton where the problem is convex, small and free, else L-BFGS.

    >>> from hcal.maps import scaling
    >>> from hcal.objective import proper
    >>> from hcal.solvers.fit_map import fit_map
    >>> x, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> fit_map(scaling.vector(2), proper.log_loss(), NewtonOrLbfgs(), x, y).converged
    True
    """

    newton: Newton = Newton()
    lbfgs: Lbfgs = Lbfgs()

    def __call__(self, problem: Solvable) -> Solution:
        """Solve it."""
        small = len(problem.start) <= NEWTON_PARAMETERS
        if problem.has_hessian() and self.lbfgs.bounds is None and small:
            return self.newton(problem)
        return self.lbfgs(problem)


@dataclass(frozen=True)
class Proximal:
    """Accelerated proximal gradient: a penalty with a kink on the distance from the start.

    Parameters
    ----------
    prox : Prox
    max_iterations : int
    tolerance : float
        It stops when no parameter moves by more, relative to the largest.
    """

    prox: Prox
    max_iterations: int = 500
    tolerance: float = 1e-5

    def __call__(self, problem: Solvable) -> Solution:
        """Solve it."""
        loss, start = problem.loss(), problem.start
        found = proximal_gradient(
            lambda d: loss(start + d),
            np.zeros_like(start),
            self.prox,
            max_iterations=self.max_iterations,
            tolerance=self.tolerance,
        )
        return replace(found, theta=start + found.theta)
