"""Two classes: members are functions of the log-odds, and the pool of them is one increasing function, a table.

Rows are counted: how much of each class lies at each log-odds. Every member is a small logistic regression on those
counts. All is symmetric: exchanging the classes mirrors the function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from hcal.calibrators.folds import deal_folds
from hcal.calibrators.pool.map import FLOOR, BinaryPoolMap
from hcal.calibrators.pool.members import CAUTION, CONSTANT_RIDGE, FOLDS, RIDGE, hold
from hcal.calibrators.pool.regression import fit_logistic, fit_temperature, pool_weights
from hcal.numerics import Float64, IntArray

#: Distinct log-odds that are kept apart; beyond so many (odd: no row lies on an edge), neighbours are counted together.
_PLACES = 4095
#: Log-odds closer than this, in standard deviations, are one.
_SAME = 1e-5
#: Points of the table by mass, and evenly over the range; knots of the spline.
_BY_MASS, _EVEN, KNOTS = 192, 65, 12
#: The table rises at least so fast, in units of temperature scaling's slope or, where that is flatter, of a
#: hundredth a standard deviation of the scores: nothing is tied.
_LEAST_RISE, _FLATTEST = 1e-3, 1e-2
#: Log-odds beyond this are this; and how near 0, as a share of the range, a kept crossing is passed.
_HIGHEST, _NEAR = 600.0, 1e-5


class Line(NamedTuple):
    """The temperature, the points of the table, and the members' values there."""

    beta: float
    grid: Float64  # (Q,)
    members: Float64  # (3, Q)
    mean: float  # of the log-odds
    least: float  # the least slope


class Counts(NamedTuple):
    """Log-odds (G,) where rows lie, ascending, and the mass of both classes there (2, G)."""

    u: Float64
    mass: Float64


def count(u: Float64, y: IntArray, weight: Float64) -> Counts:
    """Count rows by their log-odds; of very many distinct ones neighbours are counted together.

    >>> count(np.array([3.0, 1.0, 3.0]), np.array([1, 0, 0]), np.ones(3)).mass
    array([[1., 1.],
           [0., 1.]])
    """
    at, place = np.unique(u, return_inverse=True)
    # Values that only rounding tells apart are one: a forest's scores must not look continuous.
    near = min(_SAME, 0.05 / len(u)) * _moments(u, weight)[1]
    at, place = _merged(at, place, np.concatenate([[0], np.cumsum(np.diff(at) > near)]), weight)
    if len(at) > _PLACES:
        mass = np.asarray(np.bincount(place, weights=weight), dtype=np.float64)
        # Equal masses a place, cut symmetrically: by the middle of each value's own mass.
        group = np.minimum((_middles(mass) * _PLACES).astype(np.int64), _PLACES - 1)
        at, place = _merged(at, place, np.unique(group, return_inverse=True)[1], weight)
    return Counts(at, np.stack([np.bincount(place, weights=weight * (y == c), minlength=len(at)) for c in (0, 1)]))


def _merged(at: Float64, place: IntArray, group: IntArray, weight: Float64) -> tuple[Float64, IntArray]:
    """Count places (G,) of one group together, at their mean."""
    mass = np.bincount(place, weights=weight)
    return np.bincount(group, weights=mass * at) / np.bincount(group, weights=mass), group[place]


def _middles(mass: Float64) -> Float64:
    return np.asarray((np.cumsum(mass) - 0.5 * mass) / mass.sum())


def _grid(u: Float64, mass: Float64) -> Float64:
    """Return the points of the table: every place if there are few, else by mass and evenly."""
    if len(u) <= _BY_MASS + _EVEN:
        return u if len(u) > 1 else np.array([u[0] - 1.0, u[0] + 1.0])
    by_mass = np.interp(np.linspace(0.0, 1.0, _BY_MASS), _middles(mass), u)
    zero = [0.0] if u[0] < 0 < u[-1] else []
    at = np.unique(np.concatenate([by_mass, np.linspace(u[0], u[-1], _EVEN), zero]))
    return np.asarray(at[np.concatenate([[True], np.diff(at) > 1e-9 * (u[-1] - u[0])])])


def _moments(values: Float64, weight: Float64) -> tuple[float, float]:
    """Return the mean and the standard deviation, which is not 0 where all values are one."""
    unit = float(np.abs(values).max()) or 1.0  # squares of huge scores would overflow
    mean = float(np.average(values / unit, weights=weight))
    deviation = float(np.sqrt(np.average((values / unit - mean) ** 2, weights=weight)))
    return mean * unit, deviation * unit if deviation > 1e-9 else unit


def fit_line(counts: Counts, grid: Float64 | None = None) -> tuple[Line, Float64, IntArray, Float64]:
    """Fit the members; beside them what they say of each count without one row of it, its label and mass."""
    u, mass = counts
    total = mass.sum(axis=0)
    grid = _grid(u, total) if grid is None else grid
    label, place = np.nonzero(mass)
    weight, odds = mass[label, place], u[place]
    temperature = fit_temperature(np.stack([-0.5 * odds, 0.5 * odds], axis=1), label, weight, CAUTION)
    beta = temperature.beta
    t = beta * odds
    mean, deviation = _moments(t, weight)
    some = total > 0
    at = np.interp(np.linspace(0.05, 0.95, KNOTS), _middles(total[some]), beta * u[some])
    knots = (at - mean) / deviation

    def quadratic(z: Float64) -> Float64:
        return np.stack([np.ones_like(z), z, z * z], axis=1)

    def spline(z: Float64) -> Float64:
        # |z − k| and not max(z − k, 0): the mirror image of the basis is the basis.
        return np.concatenate([np.ones((len(z), 1)), z[:, None], np.abs(z[:, None] - knots)], axis=1)

    held, members = [t * (1 + temperature.left_out)], [beta * grid]
    for design in (quadratic, spline):
        columns = design((t - mean) / deviation)
        ridge = np.concatenate([[CONSTANT_RIDGE], np.full(columns.shape[1] - 1, RIDGE)])
        fit = fit_logistic(t, columns, label.astype(np.float64), weight, ridge)
        held.append(fit.left_out)
        members.append(beta * grid + design((beta * grid - mean) / deviation) @ fit.theta)
    center, width = _moments(odds, weight)
    least = _LEAST_RISE * max(beta, _FLATTEST / width)
    line = Line(beta, grid, np.clip(np.stack(members), -_HIGHEST, _HIGHEST), center, least)
    return line, np.stack(held), label, weight


def fit_table(
    u: Float64, y: IntArray, weight: Float64, groups: IntArray | None, *, crossing: bool
) -> tuple[BinaryPoolMap, Float64]:
    """Fit the table of log-odds u = z₁ − z₀ (N,), and the weights of the members (3,).

    With ``crossing`` every prediction stays on its side of ½.
    """
    line, held, label, mass = fit_line(count(u, y, weight))
    if groups is not None:
        fold, parts = deal_folds(np.stack([-0.5 * u, 0.5 * u], axis=1), FOLDS, groups), []
        for number in range(int(fold.max()) + 1):
            out = fold == number
            other = fit_line(count(u[~out], y[~out], weight[~out]), line.grid)[0]
            parts.append((np.stack([np.interp(u[out], line.grid, m) for m in other.members]), y[out], weight[out]))
        held, label, mass = (np.concatenate(p, axis=-1) for p in zip(*parts, strict=True))
    odds = np.clip(held, -FLOOR, FLOOR)
    errors = float(weight @ (0.5 + np.sign(u) * (0.5 - y)))
    weights = pool_weights(np.stack([-0.5 * odds, 0.5 * odds], axis=2), label, mass, *hold(3, errors))
    values = isotonic_regression(weights @ line.members).x + line.least * (line.grid - line.mean)
    knots, values = _with_ends(line.grid, values, line.beta)
    if crossing:
        knots, values = _through_zero(knots, values, line.least)
    return BinaryPoolMap(knots=knots, values=values), weights


def _with_ends(knots: Float64, values: Float64, beta: float) -> tuple[Float64, Float64]:
    """Rise strictly; beyond the table no faster than in its outer half, nor than temperature scaling."""
    step = np.maximum(np.diff(values), 1e-12 * (1.0 + np.abs(values[1:])))
    values = values[0] + np.concatenate([[0.0], np.cumsum(step)])
    half, reach = len(knots) // 2, knots[-1] - knots[0]
    low = (values[half] - values[0]) / max(knots[half] - knots[0], 1e-3 * reach)
    high = (values[-1] - values[-1 - half]) / max(knots[-1] - knots[-1 - half], 1e-3 * reach)
    low, high = min(low, beta), min(high, beta)
    return (
        np.concatenate([[knots[0] - reach], knots, [knots[-1] + reach]]),
        np.concatenate([[values[0] - low * reach], values, [values[-1] + high * reach]]),
    )


def _through_zero(knots: Float64, values: Float64, least: float) -> tuple[Float64, Float64]:
    """Return the table with the sign of the log-odds: below 0 negative, above positive, and as strictly rising."""
    gap = values - least * knots
    i = np.flatnonzero(gap[:-1] * gap[1:] < 0)  # where the table meets the line through 0
    meet = knots[i] + (knots[i + 1] - knots[i]) * gap[i] / (gap[i] - gap[i + 1])
    near = _NEAR * (knots[-1] - knots[0])  # a jump at 0 is a steep piece
    at = np.unique(np.concatenate([knots, [-near, 0.0, near], meet]))
    table, line = np.interp(at, knots, values), least * at
    kept = np.where(at > 0, np.maximum(table, line), np.minimum(table, line))
    kept[at == 0] = 0.0
    return at, kept
