"""Two classes: candidates for an increasing function of the log-odds, each as values on one grid.

With two classes all scores of a row are functions of one number u = z₁ − z₀. Rows are therefore counted: how
much of each class lies at each u. Every candidate is then a small logistic regression on those counts, and a
fold is another pair of counts. All is symmetric: exchanging the classes mirrors the fitted function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit
from sklearn.isotonic import isotonic_regression

from hcal.calibrators.h.rows import Float64
from hcal.calibrators.h.temperature import careful_temperature
from hcal.numerics import IntArray
from hcal.solvers.temperature import Temperature

#: Distinct log-odds that are kept apart; beyond so many, neighbours are counted together.
_PLACES = 4096
#: Points of the grid by mass, and evenly over the range.
_BY_MASS, _EVEN = 192, 65
#: A fitted function rises at least so fast, in units of temperature scaling's or, where that is flatter,
#: of a hundredth a standard deviation of the scores: nothing is tied.
LEAST_RISE, FLATTEST = 1e-3, 1e-2
_NEWTON = 60
#: Log-odds beyond this are this.
_HIGHEST = 600.0


class Counts(NamedTuple):
    """How much of each class (2, G) lies at each log-odds u (G,), ascending."""

    u: Float64
    mass: Float64

    @property
    def total(self) -> Float64:
        """Mass at each place, (G,)."""
        return np.asarray(self.mass.sum(axis=0))

    @property
    def errors(self) -> float:
        """Mass on the side of the other class; of what lies between, half."""
        side = 0.5 + 0.5 * np.sign(self.u)
        return float(self.mass[0] @ side + self.mass[1] @ (1.0 - side))


def places(u: Float64, weight: Float64) -> tuple[Float64, IntArray]:
    """Return the log-odds that are told apart (G,), and the place of every row (N,).

    >>> places(np.array([3.0, 1.0, 3.0]), np.ones(3))
    (array([1., 3.]), array([1, 0, 1]))
    """
    at, place = np.unique(u, return_inverse=True)
    if len(at) <= _PLACES:
        return at, place
    mass = np.bincount(place, weights=weight)
    # Equal masses a place, cut symmetrically: by the middle of each value's own mass.
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    group = np.minimum((middle * _PLACES).astype(np.int64), _PLACES - 1)
    group = np.unique(group, return_inverse=True)[1]
    merged = np.bincount(group, weights=mass * at) / np.bincount(group, weights=mass)
    return merged, group[place]


def count(u: Float64, place: IntArray, y: IntArray, weight: Float64) -> Counts:
    """Return the mass of each class at each place.

    >>> count(np.array([1.0, 3.0]), np.array([1, 0, 1]), np.array([1, 0, 0]), np.ones(3)).mass
    array([[1., 1.],
           [0., 1.]])
    """
    return Counts(
        u, np.stack([np.bincount(place, weights=weight * (y == c), minlength=len(u)) for c in (0, 1)])
    )


def grid(counts: Counts) -> Float64:
    """Return the places where functions are known (Q,): every one if there are few, else by mass and evenly.

    >>> grid(Counts(np.array([-1.0, 3.0]), np.ones((2, 2))))
    array([-1.,  3.])
    """
    u, mass = counts.u, counts.total
    if len(u) <= _BY_MASS + _EVEN:
        return u if len(u) > 1 else np.array([u[0] - 1.0, u[0] + 1.0])
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    by_mass = np.interp(np.linspace(0.0, 1.0, _BY_MASS), middle, u)
    at = np.unique(
        np.concatenate([by_mass, np.linspace(u[0], u[-1], _EVEN), [0.0] if u[0] < 0 < u[-1] else []])
    )
    apart = np.concatenate([[True], np.diff(at) > 1e-9 * (u[-1] - u[0])])
    return np.asarray(at[apart])


class Line(NamedTuple):
    """What a candidate sees: counts, their log-odds t = β u by temperature scaling, and those of the grid.

    ``center`` and ``spread`` standardise t; they and ``knots`` come from all rows and no label.
    """

    counts: Counts
    beta: float
    t: Float64
    at: Float64
    center: float
    spread: float
    order: Float64  # quantiles of the standardised t, (99,)
    least: Float64  # the least rise, on the grid

    def standard(self, t: Float64) -> Float64:
        """Return t in units of its spread."""
        return (t - self.center) / self.spread


def draw(counts: Counts, at: Float64) -> tuple[Line, Temperature]:
    """Solve the temperature of counts and look at everything through it; ``at`` is the grid in u."""
    solved = _temperature(counts)
    beta, mass = solved.beta, counts.total
    t = beta * counts.u
    center, spread = moments(t, mass)
    some = mass > 0
    middle = (np.cumsum(mass[some]) - 0.5 * mass[some]) / mass.sum()
    order = np.interp(np.linspace(0.01, 0.99, 99), middle, (t[some] - center) / spread)
    middle_u, spread_u = moments(counts.u, mass)
    least = LEAST_RISE * max(beta, FLATTEST / spread_u) * (at - middle_u)
    return Line(counts, beta, t, beta * at, center, spread, order, least), solved


def moments(values: Float64, mass: Float64) -> tuple[float, float]:
    """Return the mean and the standard deviation, which is not 0 where all values are one."""
    unit = float(np.abs(values).max()) or 1.0  # squares of huge scores would overflow
    mean = float(np.average(values / unit, weights=mass))
    deviation = float(np.sqrt(np.average((values / unit - mean) ** 2, weights=mass)))
    return mean * unit, deviation * unit if deviation > 1e-9 else unit


def _temperature(counts: Counts) -> Temperature:
    u = np.concatenate([counts.u, counts.u])
    y = np.repeat([0, 1], len(counts.u))
    weight = counts.mass.ravel()
    some = weight > 0
    logits = np.stack([-0.5 * u, 0.5 * u], axis=1)
    return careful_temperature(logits[some], y[some], weight[some])


#: (t, line) ↦ X, of shape (len(t), P).
Design = Callable[[Float64, Line], Float64]


@dataclass(frozen=True)
class Regression:
    """t + X(t)·θ by logistic regression, θ ~ N(0, σ²): one candidate."""

    name: str
    design: Design
    sigma: tuple[float, ...]  # of every column of X; the last stands for all that follow
    by_temperature: bool = True  # if not, the log-odds are those of the scores: the identity

    def __call__(self, line: Line) -> Float64:
        """Return log-odds on the grid."""
        if not self.by_temperature:
            return line.at / line.beta
        x = self.design(line.t, line)
        sigma = np.array([*self.sigma, *[self.sigma[-1]] * x.shape[1]])[: x.shape[1]]
        theta = logistic(line.t, x, line.counts.mass, 0.5 / sigma**2)
        return np.asarray(line.at + self.design(line.at, line) @ theta)


def logistic(offset: Float64, x: Float64, mass: Float64, ridge: Float64) -> Float64:
    """Return θ of least −Σ mass·ln P(class) + Σ ridge·θ² under log-odds offset + xθ, by damped Newton.

    >>> logistic(np.zeros(1), np.ones((1, 1)), np.array([[1.0], [3.0]]), np.zeros(1)).round(4)
    array([1.0986])
    """
    total = mass.sum(axis=0)

    def loss(theta: Float64) -> float:
        eta = offset + x @ theta
        return float(-mass[1] @ log_expit(eta) - mass[0] @ log_expit(-eta) + ridge @ theta**2)

    theta = np.zeros(x.shape[1])
    value = loss(theta)
    for _ in range(_NEWTON):
        p = expit(offset + x @ theta)
        gradient = x.T @ (total * p - mass[1]) + 2 * ridge * theta
        hessian = (x * (total * p * (1 - p))[:, None]).T @ x
        hessian[np.diag_indices_from(hessian)] += 2 * ridge + 1e-10 * (1 + hessian.diagonal())
        step = np.linalg.solve(hessian, gradient)
        expected, size = float(gradient @ step), 1.0
        # Close to the end the loss cannot tell a gain from rounding, and a full step needs no proof.
        while size > 1e-8 and expected > 1e-7 and not loss(theta - size * step) < value:
            size *= 0.5
        theta = theta - size * step
        if expected < 1e-16 or size <= 1e-8:
            break
        value = loss(theta)
    return theta


def rising(values: Float64, line: Line) -> Float64:
    """Return the nearest function on the grid that rises everywhere."""
    flat = isotonic_regression(np.clip(values, -_HIGHEST, _HIGHEST))
    return np.asarray(flat + line.least)


def _constant(t: Float64) -> Float64:
    return np.ones((len(t), 1))


def _affine(t: Float64, line: Line) -> Float64:
    return np.column_stack([_constant(t), line.standard(t)])


def _quadratic(t: Float64, line: Line) -> Float64:
    z = line.standard(t)
    return np.column_stack([_constant(t), z, z * z])


def _beta(t: Float64, line: Line) -> Float64:
    return np.column_stack([_constant(t), log_expit(t) / line.spread, -log_expit(-t) / line.spread])


def _hinges(n: int) -> Design:
    def design(t: Float64, line: Line) -> Float64:
        z = line.standard(t)
        knots = line.order[np.rint(np.linspace(4, 94, n)).astype(np.int64)]
        # |z − k| and not max(z − k, 0): the mirror image of the basis is the basis.
        return np.column_stack([_constant(t), z, *(np.abs(z - k) for k in knots)])

    return design


def _nothing(t: Float64, line: Line) -> Float64:
    """No column: the log-odds stay as they are."""
    return np.zeros((len(t), 0))


#: Few and stiff, many and loose: what the rows can bear, the pool finds out.
CANDIDATES = (
    Regression("temperature", _nothing, (1.0,)),
    Regression("identity", _nothing, (1.0,), by_temperature=False),
    Regression("affine", _affine, (3.0, 3.0)),
    Regression("beta", _beta, (3.0, 3.0)),
    Regression("quadratic", _quadratic, (3.0, 3.0, 1.0)),
    Regression("spline-3", _hinges(3), (3.0, 3.0, 0.5)),
    Regression("spline-6", _hinges(6), (3.0, 3.0, 0.5)),
    Regression("spline-6 stiff", _hinges(6), (3.0, 3.0, 0.2)),
    Regression("spline-12", _hinges(12), (3.0, 3.0, 1.0)),
    Regression("spline-12 stiff", _hinges(12), (3.0, 3.0, 0.3)),
)
