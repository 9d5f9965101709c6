"""Two classes: candidates for an increasing function of the log-odds, each as values on one grid.

With two classes all scores of a row are functions of one number u = z₁ − z₀. Rows are therefore counted: how
much of each class lies at each u. Every candidate is then a small logistic regression on those counts, and a
fold is another pair of counts. All is symmetric: exchanging the classes mirrors the fitted function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit
from sklearn.isotonic import isotonic_regression

from hcal.calibrators.base import Fitted
from hcal.calibrators.h.blend import FLOOR
from hcal.calibrators.h.pool import Caution, doubt, log_linear_weights
from hcal.calibrators.h.rows import Float64
from hcal.calibrators.h.sentences import one_class, sides_told
from hcal.calibrators.h.temperature import careful_temperature
from hcal.runtime.numerics import FloatArray, IntArray
from hcal.solvers.temperature import Temperature

#: Distinct log-odds that are kept apart; beyond so many, neighbours are counted together.
_PLACES = 4096
#: Points of the grid by mass, and evenly over the range.
_BY_MASS, _EVEN = 192, 65
#: A fitted function rises at least so fast, in units of temperature scaling's or, where that is flatter,
#: of a hundredth a standard deviation of the scores: nothing is tied.
_LEAST_RISE, _FLATTEST = 1e-3, 1e-2
_NEWTON = 60
#: How near 0, as a share of the range, a kept crossing is passed.
_NEAR = 1e-5
#: Leaning on temperature scaling where rows are few: its worth a row, and the nats that others have to earn.
_CAUTION_RIDGE, _CAUTION_PRICE = 1.0, 6.0
#: Log-odds beyond this are this.
_HIGHEST = 600.0


class Counts(NamedTuple):
    """How much of each class lies at each log-odds.

    Attributes
    ----------
    u : array of shape (G,)
        Ascending.
    mass : array of shape (2, G)
    """

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

    Examples
    --------
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

    Examples
    --------
    >>> count(np.array([1.0, 3.0]), np.array([1, 0, 1]), np.array([1, 0, 0]), np.ones(3)).mass
    array([[1., 1.],
           [0., 1.]])
    """
    return Counts(
        u, np.stack([np.bincount(place, weights=weight * (y == c), minlength=len(u)) for c in (0, 1)])
    )


def grid(counts: Counts) -> Float64:
    """Return the places where functions are known (Q,): every one if there are few, else by mass and evenly.

    Examples
    --------
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
    center, spread = _moments(t, mass)
    some = mass > 0
    middle = (np.cumsum(mass[some]) - 0.5 * mass[some]) / mass.sum()
    order = np.interp(np.linspace(0.01, 0.99, 99), middle, (t[some] - center) / spread)
    middle_u, spread_u = _moments(counts.u, mass)
    least = _LEAST_RISE * max(beta, _FLATTEST / spread_u) * (at - middle_u)
    return Line(counts, beta, t, beta * at, center, spread, order, least), solved


def _moments(values: Float64, mass: Float64) -> tuple[float, float]:
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


Design = Callable[[Float64, Line], Float64]


@dataclass(frozen=True)
class Regression:
    """t + X(t)·θ by logistic regression, θ ~ N(0, σ²): one candidate.

    Attributes
    ----------
    name : str
    design : callable
        (t, line) ↦ X, of shape (len(t), P).
    sigma : tuple of float
        Prior deviation of every column of X; the last stands for all that follow.
    by_temperature : bool
        If not, the log-odds are those of the scores: the identity.
    """

    name: str
    design: Design
    sigma: tuple[float, ...]
    by_temperature: bool = True

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

    Examples
    --------
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


class Table(NamedTuple):
    """A rising, piecewise linear function of u = z₁ − z₀ with values in log-odds; its ends go on for ever."""

    knots: Float64
    values: Float64


def fit_table(
    u: Float64, y: IntArray, weight: Float64, held: Float64
) -> tuple[Table, dict[str, float], Temperature]:
    """Pool the candidates by what they say out of fold, and fit each on all rows.

    Parameters
    ----------
    u : array of shape (N,)
        z₁ − z₀.
    y, weight : arrays of shape (N,)
    held : array of shape (F, N)
        The weight of every row that each fold holds out; without folds, temperature scaling.

    Returns
    -------
    Table, dict of str to float, Temperature
        The function, every candidate's share, and how the temperature was found.
    """
    at, place = places(u, weight)
    everything = count(at, place, y, weight)
    knots = grid(everything)
    line, solved = draw(everything, knots)
    seen, tested = [], []
    for part in held:
        out = count(at, place, y, part)
        fold, _ = draw(Counts(at, _less(everything.mass, out.mass)), knots)
        odds = np.stack([rising(candidate(fold), fold) for candidate in CANDIDATES])
        seen.append(np.stack([np.interp(at, knots, o) for o in odds]))
        tested.append(out.mass)
    if not seen:
        return _with_ends(knots, rising(line.at, line), solved.beta), {"temperature": 1.0}, solved
    little = doubt(float(weight.sum()), everything.errors)
    share = _shares(np.concatenate(seen, axis=1), np.concatenate(tested, axis=1), little)
    values = share @ np.stack([rising(candidate(line), line) for candidate in CANDIDATES])
    names = [candidate.name for candidate in CANDIDATES]
    table = _with_ends(knots, values + line.least, solved.beta)
    return table, dict(zip(names, share.tolist(), strict=True)), solved


def _with_ends(knots: Float64, values: Float64, beta: float) -> Table:
    """Rise strictly; beyond the grid no faster than in its outer half, nor than temperature scaling."""
    step = np.maximum(np.diff(values), 1e-12 * (1.0 + np.abs(values[1:])))
    values = values[0] + np.concatenate([[0.0], np.cumsum(step)])
    half, reach = len(knots) // 2, knots[-1] - knots[0]
    low = (values[half] - values[0]) / max(knots[half] - knots[0], 1e-3 * reach)
    high = (values[-1] - values[-1 - half]) / max(knots[-1] - knots[-1 - half], 1e-3 * reach)
    low, high = min(low, beta), min(high, beta)
    return Table(
        np.concatenate([[knots[0] - reach], knots, [knots[-1] + reach]]),
        np.concatenate([[values[0] - low * reach], values, [values[-1] + high * reach]]),
    )


def crossing_kept(table: Table, beta: float) -> Table:
    """Return the table with the sign of u: below 0 it is negative, above positive, and it rises as strictly.

    Examples
    --------
    >>> kept = crossing_kept(Table(np.array([-1.0, 1.0]), np.array([1.0, 2.0])), 1.0)
    >>> look_up(kept, np.array([-0.5, 0.0, 0.5])).round(4)
    array([-5.00e-04,  0.00e+00,  1.75e+00])
    """
    ramp = _LEAST_RISE * beta
    near = _NEAR * (table.knots[-1] - table.knots[0])  # a jump at 0 is a steep piece
    knots = np.unique(np.concatenate([table.knots, [-near, 0.0, near], _meetings(table, ramp)]))
    values, line = look_up(table, knots), ramp * knots
    kept = np.where(knots > 0, np.maximum(values, line), np.minimum(values, line))
    kept[knots == 0] = 0.0
    return Table(knots, kept)


def _meetings(table: Table, ramp: float) -> Float64:
    """Return where the table meets the line through 0, so that the larger of both is piecewise linear."""
    gap = table.values - ramp * table.knots
    i = np.flatnonzero(gap[:-1] * gap[1:] < 0)
    return np.asarray(table.knots[i] + (table.knots[i + 1] - table.knots[i]) * gap[i] / (gap[i] - gap[i + 1]))


def look_up(table: Table, u: Float64) -> Float64:
    """Return the log-odds at u; the end segments go on for ever.

    Examples
    --------
    >>> look_up(Table(np.array([0.0, 1.0]), np.array([0.0, 2.0])), np.array([-1.0, 0.5, 3.0]))
    array([-2.,  1.,  6.])
    """
    knots, values = table
    slope = np.diff(values)[[0, -1]] / np.diff(knots)[[0, -1]]
    out = np.interp(u, knots, values)
    out += slope[0] * np.minimum(u - knots[0], 0.0)
    out += slope[1] * np.maximum(u - knots[-1], 0.0)
    return np.asarray(out)


def _less(mass: Float64, held: Float64) -> Float64:
    """Return what is left of mass; what is all but nothing is rounding."""
    left = mass - held
    return np.where(left > 1e-9 * mass, left, 0.0)


def _shares(odds: Float64, mass: Float64, little: float) -> Float64:
    """Return the weights (J,) of candidates with held-out log-odds (J, G) where mass (2, G) lies.

    With ``little`` to learn from they lean on the first, temperature scaling.
    """
    odds = np.clip(odds, -FLOOR, FLOOR)
    both = np.stack([-0.5 * odds, 0.5 * odds], axis=2)
    y, weight = np.repeat([0, 1], odds.shape[1]), mass.ravel()
    some = weight > 0
    held = np.concatenate([both, both], axis=1)[:, some]
    caution = Caution(0, little, _CAUTION_RIDGE, _CAUTION_PRICE, idle=(0, 1))
    return log_linear_weights(held, y[some], weight[some], caution=caution)


def fit_two(
    logits: FloatArray, y: IntArray, weight: Float64, held: Float64 | None, *, crossing: bool
) -> Fitted:
    """Fit two classes.

    Parameters
    ----------
    logits : array of shape (N, 2)
    y, weight : arrays of shape (N,)
    held : array of shape (F, N), optional
        The weight of every row that each fold holds out; without it, temperature scaling.
    crossing : bool
        Whether the side of every prediction is kept, beside the ranking.
    """
    u = _odds(logits)
    table, share, solved = fit_table(u, y, weight, np.zeros((0, len(y))) if held is None else held)
    if crossing:
        table = crossing_kept(table, max(solved.beta, _FLATTEST / _moments(u, weight)[1]))
    moved = float(weight @ ((look_up(table, u) > 0) != (u > 0)))
    turn = float(np.interp(0.0, table.values, table.knots))
    info = {
        "protocol": "default",
        "map": "pool",
        "candidates": share,
        "promise": "accuracy" if crossing else "ranking",
        "changed_sides": moved,
        "crossing": turn,
        "notes": [sides_told(moved, float(weight.sum()), turn)],
        "warnings": one_class(np.bincount(y, weights=weight, minlength=2)),
        "absent_classes": np.flatnonzero(np.bincount(y, minlength=2) == 0).tolist(),
    }
    state = {"table.knots": table.knots, "table.values": table.values}
    return Fitted(state, solved.converged, solved.message, info)


def _odds(logits: FloatArray) -> Float64:
    """Return z₁ − z₀ (N,); what is all but a subnormal number is 0, because its inverse is none."""
    u = logits[:, 1].astype(np.float64) - logits[:, 0].astype(np.float64)
    return np.where(np.abs(u) < 1e-290, 0.0, u)


def is_table(state: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether a state is that of two classes; models of version 0.1 are not."""
    return "table.knots" in state


def predict_two(state: Mapping[str, NDArray[Any]], logits: FloatArray, out: FloatArray) -> None:
    """Write the probabilities of logits (N, 2) into ``out``."""
    odds = look_up(Table(state["table.knots"], state["table.values"]), _odds(logits))
    out[:, 1] = expit(odds)
    out[:, 0] = expit(-odds)
