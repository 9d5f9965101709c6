"""Two classes: members are functions of the log-odds, and the pool is one increasing function, stored as a table.

Rows with the same log-odds are counted together, by class. Every member is a small logistic regression on these
counts. Exchanging the two classes mirrors the function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from hcal.methods.folds import deal_folds
from hcal.numerics import Float64, IntArray
from hcal.pool.map import FLOOR, BinaryPoolMap
from hcal.pool.members import CAUTION, CONSTANT_RIDGE, FOLDS, RIDGE, hold
from hcal.pool.regression import fit_logistic, fit_temperature, pool_weights

#: With more distinct log-odds than this, neighbours are counted together. It is odd, so no edge lies in the middle.
_PLACES = 4095
#: Log-odds that differ by less than this many standard deviations count as equal.
_SAME = 1e-5
#: Points of the table at quantiles, points at even distances, and knots of the spline.
_BY_MASS, _EVEN, KNOTS = 192, 65, 12
#: The least slope of the table, so that no two rows are tied: a share of temperature scaling's slope, which counts as
#: at least 1 in 100 standard deviations of the scores.
_LEAST_RISE, _FLATTEST = 1e-3, 1e-2
#: The largest log-odds; and the width, as a share of the range, of the steep piece at 0 if no prediction may cross 0.5.
_HIGHEST, _NEAR = 600.0, 1e-5


class Line(NamedTuple):
    """The temperature, the points of the table, and the members' values there."""

    beta: float
    grid: Float64  # (Q,)
    members: Float64  # (3, Q)
    mean: float  # of the log-odds
    least: float  # the least slope


class Counts(NamedTuple):
    """The distinct log-odds (G,) of the rows, ascending, and the weight of both classes at each (2, G)."""

    u: Float64
    mass: Float64


def count(u: Float64, y: IntArray, weight: Float64) -> Counts:
    """Count rows by their log-odds; if there are very many distinct ones, neighbours are counted together.

    >>> count(np.array([3.0, 1.0, 3.0]), np.array([1, 0, 0]), np.ones(3)).mass
    array([[1., 1.],
           [0., 1.]])
    """
    at, place = np.unique(u, return_inverse=True)
    # Values that differ by rounding alone are merged, or a forest's scores would look continuous.
    near = min(_SAME, 0.05 / len(u)) * _moments(u, weight)[1]
    at, place = _merged(at, place, np.concatenate([[0], np.cumsum(np.diff(at) > near)]), weight)
    if len(at) > _PLACES:
        mass = np.asarray(np.bincount(place, weights=weight), dtype=np.float64)
        # Groups of equal mass; a value belongs where the middle of its mass lies, which is symmetric.
        group = np.minimum((_middles(mass) * _PLACES).astype(np.int64), _PLACES - 1)
        at, place = _merged(at, place, np.unique(group, return_inverse=True)[1], weight)
    return Counts(
        at,
        np.stack(
            [np.bincount(place, weights=weight * (y == c), minlength=len(at)) for c in (0, 1)]
        ),
    )


def _merged(
    at: Float64, place: IntArray, group: IntArray, weight: Float64
) -> tuple[Float64, IntArray]:
    """Merge the values (G,) of each group to their mean; return these and the group of every row."""
    mass = np.bincount(place, weights=weight)
    return np.bincount(group, weights=mass * at) / np.bincount(group, weights=mass), group[place]


def _middles(mass: Float64) -> Float64:
    return np.asarray((np.cumsum(mass) - 0.5 * mass) / mass.sum())


def _grid(u: Float64, mass: Float64) -> Float64:
    """Return the points of the table: all values if there are few, else quantiles and points at even distances."""
    if len(u) <= _BY_MASS + _EVEN:
        return u if len(u) > 1 else np.array([u[0] - 1.0, u[0] + 1.0])
    by_mass = np.interp(np.linspace(0.0, 1.0, _BY_MASS), _middles(mass), u)
    zero = [0.0] if u[0] < 0 < u[-1] else []
    at = np.unique(np.concatenate([by_mass, np.linspace(u[0], u[-1], _EVEN), zero]))
    return np.asarray(at[np.concatenate([[True], np.diff(at) > 1e-9 * (u[-1] - u[0])])])


def _moments(values: Float64, weight: Float64) -> tuple[float, float]:
    """Return the mean and the standard deviation; the latter is replaced by a unit if all values are equal."""
    largest = float(np.abs(values).max())
    unit = (
        largest if largest > 1e-100 else 1.0
    )  # squares of huge scores would overflow, and of tiny ones vanish
    mean = float(np.average(values / unit, weights=weight))
    deviation = float(np.sqrt(np.average((values / unit - mean) ** 2, weights=weight)))
    return mean * unit, deviation * unit if deviation > 1e-9 else unit


def fit_line(
    counts: Counts, grid: Float64 | None = None
) -> tuple[Line, Float64, IntArray, Float64]:
    """Fit the members; also return their log-odds of every count with one of its rows left out, its label and mass."""
    u, mass = counts
    total = mass.sum(axis=0)
    grid = _grid(u, total) if grid is None else grid
    label, place = np.nonzero(mass)
    weight, odds = mass[label, place], u[place]
    temperature = fit_temperature(
        np.stack([-0.5 * odds, 0.5 * odds], axis=1), label, weight, CAUTION
    )
    beta = temperature.beta
    t = beta * odds
    mean, deviation = _moments(t, weight)
    some = total > 0
    at = np.interp(np.linspace(0.05, 0.95, KNOTS), _middles(total[some]), beta * u[some])
    knots = (at - mean) / deviation

    def quadratic(z: Float64) -> Float64:
        return np.stack([np.ones_like(z), z, z * z], axis=1)

    def spline(z: Float64) -> Float64:
        # |z − k| rather than max(z − k, 0), so that mirrored scores have the mirrored basis.
        return np.concatenate(
            [np.ones((len(z), 1)), z[:, None], np.abs(z[:, None] - knots)], axis=1
        )

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

    With ``crossing`` no prediction crosses 0.5.
    """
    line, held, label, mass = fit_line(count(u, y, weight))
    if groups is not None:
        fold, parts = deal_folds(np.stack([-0.5 * u, 0.5 * u], axis=1), FOLDS, groups), []
        for number in range(int(fold.max()) + 1):
            out = fold == number
            other = fit_line(count(u[~out], y[~out], weight[~out]), line.grid)[0]
            parts.append(
                (
                    np.stack([np.interp(u[out], line.grid, m) for m in other.members]),
                    y[out],
                    weight[out],
                )
            )
        held, label, mass = (np.concatenate(p, axis=-1) for p in zip(*parts, strict=True))
    odds = np.clip(held, -FLOOR, FLOOR)
    errors = float(weight @ (0.5 + np.sign(u) * (0.5 - y)))
    weights = pool_weights(
        np.stack([-0.5 * odds, 0.5 * odds], axis=2), label, mass, *hold(3, errors)
    )
    values = isotonic_regression(weights @ line.members).x + line.least * (line.grid - line.mean)
    knots, values = _with_ends(line.grid, values, line.beta)
    if crossing:
        knots, values = _through_zero(knots, values, line.least)
    return BinaryPoolMap(knots=knots, values=values), weights


def _with_ends(knots: Float64, values: Float64, beta: float) -> tuple[Float64, Float64]:
    """Make the table strictly increasing; extend it no steeper than its outer half or temperature scaling."""
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
    """Return the table changed so that it has the sign of the log-odds everywhere, and is still strictly increasing."""
    gap = values - least * knots
    i = np.flatnonzero(gap[:-1] * gap[1:] < 0)  # where the table meets the line through 0
    meet = knots[i] + (knots[i + 1] - knots[i]) * gap[i] / (gap[i] - gap[i + 1])
    near = _NEAR * (knots[-1] - knots[0])  # a jump at 0 is a steep piece
    at = np.unique(np.concatenate([knots, [-near, 0.0, near], meet]))
    table, line = np.interp(at, knots, values), least * at
    kept = np.where(at > 0, np.maximum(table, line), np.minimum(table, line))
    kept[at == 0] = 0.0
    return at, kept
