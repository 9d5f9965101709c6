"""The default for two classes: members are functions of the log-odds, and the pool is one increasing table.

Rows with the same log-odds are counted together, by class. Exchanging the two classes mirrors the table.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, Self

import numpy as np

from hcal.numerics import Float64, IntArray
from hcal.pool.map import BinaryPoolMap, Margins
from hcal.pool.members import (
    CONSTANT_RIDGE,
    RIDGE,
    Member,
    TemperatureMember,
    left_out_scores,
    shrinkage_of,
    weigh,
    weighing_rows,
)
from hcal.rows import Rows
from hcal.solvers.regression import fit_logistic

#: With more distinct log-odds than this, neighbours are counted together. It is odd, so no edge lies in the middle.
_PLACES = 4095
#: Log-odds that differ by less than this many standard deviations count as equal.
_SAME = 1e-5
#: Points of the table at quantiles, points at even distances, and knots of the spline.
_BY_MASS = 192
_EVEN = 65
KNOTS = 12
#: The least slope of the table, so that no two rows are tied: a share of temperature scaling's slope, which counts as
#: at least 1 in 100 standard deviations of the scores.
_LEAST_RISE = 1e-3
_FLATTEST = 1e-2
#: The largest log-odds; and the width, as a share of the range, of the steep piece at 0 if no prediction may cross 0.5.
_HIGHEST = 600.0
_NEAR = 1e-5


class BinaryPool(NamedTuple):
    """The fitted table, and the weights of the members."""

    map: BinaryPoolMap
    weights: Float64


def fit_binary_pool(rows: Rows, *, keep: bool) -> BinaryPool:
    """Fit the members, weigh them on rows left out of their fits, and keep their sum as an increasing table."""
    counts = count(rows)
    members = fit_two_class_members(rows)
    shrinkage = shrinkage_of(rows, members[0].margins)

    left_out = left_out_scores(members, rows, fit_two_class_members)
    seen = counts.rows() if rows.groups is None else rows[weighing_rows(rows)]
    weights = weigh(left_out, seen, shrinkage)

    table = pool_table(members, weights, counts)
    if keep:
        table = table.through_zero()
    return BinaryPool(BinaryPoolMap(knots=table.knots, values=table.values), weights)


def pool_table(members: list[Member], weights: Float64, counts: GridCounts) -> LogOddsTable:
    """Return the weighted sum of the members' log-odds, made strictly increasing."""
    # Loading it takes as long as all the rest of a prediction by a command, which has no use for it.
    from scipy.optimize import isotonic_regression

    beta = float(members[0].margins.beta)
    mean, deviation = counts.moments()
    slope = _LEAST_RISE * max(beta, _FLATTEST / deviation)

    grid = grid_of(counts)
    odds = np.stack([log_odds_of_two(member.scores(logits(grid))) for member in members])
    pooled = weights @ np.clip(odds, -_HIGHEST, _HIGHEST)
    rising = isotonic_regression(pooled).x
    return LogOddsTable(grid, rising + slope * (grid - mean), slope).extended(beta)


def fit_two_class_members(rows: Rows) -> list[Member]:
    """Fit temperature scaling, and a quadratic and a spline of the log-odds."""
    counted = count(rows).rows()
    temperature = TemperatureMember(cap=_HIGHEST).fit(counted)
    margins = temperature.margins
    return [temperature, Quadratic(margins).fit(counted), Spline(margins).fit(counted)]


def logits(odds: Float64) -> Float64:
    """Return logits (N, 2) of log-odds (N,)."""
    return np.stack([-0.5 * odds, 0.5 * odds], axis=1)


def log_odds_of_two(scores: Float64) -> Float64:
    """Return the log-odds (N,) of class 1."""
    return np.asarray(scores[:, 1] - scores[:, 0])


# -- members ------------------------------------------------------------------------------------------


class OddsCurve(Member):
    """log-odds = βu + columns(βu)·θ with a ridge penalty; subclasses say which columns."""

    def __init__(self, margins: Margins) -> None:
        self.margins = margins

    @abstractmethod
    def columns(self, z: Float64) -> Float64:
        """Return the columns (N, P), a constant first, of standardised log-odds (N,)."""

    def fit(self, rows: Rows) -> Self:
        """Minimise the log-loss of counted rows, with a ridge penalty of θ."""
        odds = self._tempered(rows.x)
        self._mean, self._deviation = moments(odds, rows.weights)
        standard = (odds - self._mean) / self._deviation
        self.prepare(standard, rows.weights)
        columns = self.columns(standard)
        ridge = np.append(CONSTANT_RIDGE, np.full(columns.shape[1] - 1, RIDGE))
        fitted = fit_logistic(
            columns, rows.labels.astype(np.float64), rows.weights, ridge=ridge, offset=odds
        )
        self._theta = fitted.theta
        self._left_out_odds = fitted.left_out
        return self

    def prepare(self, standard: Float64, weight: Float64) -> None:
        """Choose what the columns need, such as knots."""

    def scores(self, x: Float64) -> Float64:
        """Return scores (N, 2) of logits (N, 2)."""
        odds = self._tempered(x)
        columns = self.columns((odds - self._mean) / self._deviation)
        return logits(odds + columns @ self._theta)

    def left_out(self) -> Float64:
        """Return the scores of counted rows, each by the fit without one of its rows."""
        return logits(self._left_out_odds)

    def _tempered(self, x: Float64) -> Float64:
        return np.asarray(self.margins.beta * log_odds_of_two(x))


class Quadratic(OddsCurve):
    """A parabola of the log-odds."""

    name = "quadratic"

    def columns(self, z: Float64) -> Float64:
        """Return 1, z and z²."""
        return np.stack([np.ones_like(z), z, z * z], axis=1)


class Spline(OddsCurve):
    """A piecewise linear function of the log-odds."""

    name = "spline"

    def prepare(self, standard: Float64, weight: Float64) -> None:
        """Put the knots at quantiles."""
        order = np.argsort(standard, kind="stable")
        places = np.linspace(0.05, 0.95, KNOTS)
        self._knots = np.interp(places, middles(weight[order]), standard[order])

    def columns(self, z: Float64) -> Float64:
        """Return 1, z and |z − knot|, so that mirrored scores have mirrored columns."""
        column = z[:, None]
        bends = np.abs(column - self._knots)
        return np.concatenate([np.ones_like(column), column, bends], axis=1)


# -- counting -----------------------------------------------------------------------------------------


class GridCounts(NamedTuple):
    """The distinct log-odds (G,) of the rows, ascending, and the weight of both classes at each (2, G)."""

    odds: Float64
    mass: Float64

    def rows(self) -> Rows:
        """Return one row for each of the log-odds and class that occurs, with its weight."""
        label, place = np.nonzero(self.mass)
        scores = logits(self.odds[place])
        return Rows(scores, "logits", y=label, weight=self.mass[label, place])

    def moments(self) -> tuple[float, float]:
        """Return the mean and the standard deviation of the log-odds."""
        return moments(self.odds, self.mass.sum(axis=0))


def count(rows: Rows) -> GridCounts:
    """Count rows by their log-odds; if there are very many distinct ones, neighbours are counted together.

    >>> scores = logits(np.array([3.0, 1.0, 3.0]))
    >>> count(Rows(scores, "logits", y=np.array([1, 0, 0]))).mass
    array([[1., 1.],
           [0., 1.]])
    """
    odds = log_odds_of_two(rows.x)
    weight = rows.weights
    values, place = np.unique(odds, return_inverse=True)
    # Values that differ by rounding alone are merged, or a forest's scores would look continuous.
    near = min(_SAME, 0.05 / len(odds)) * moments(odds, weight)[1]
    group = np.append(0, np.cumsum(np.diff(values) > near))
    values, place = merged_values(values, place, group, weight)
    if len(values) > _PLACES:
        mass = np.asarray(np.bincount(place, weights=weight), dtype=np.float64)
        # Groups of equal mass; a value belongs where the middle of its mass lies, which is symmetric.
        group = np.minimum((middles(mass) * _PLACES).astype(np.int64), _PLACES - 1)
        group = np.unique(group, return_inverse=True)[1]
        values, place = merged_values(values, place, group, weight)
    size = len(values)
    ones = np.bincount(place, weights=weight * (rows.labels == 1), minlength=size)
    zeros = np.bincount(place, weights=weight * (rows.labels == 0), minlength=size)
    return GridCounts(values, np.stack([zeros, ones]))


def merged_values(
    values: Float64, place: IntArray, group: IntArray, weight: Float64
) -> tuple[Float64, IntArray]:
    """Merge the values (G,) of each group to their mean; return these and the group of every row."""
    mass = np.bincount(place, weights=weight)
    means = np.bincount(group, weights=mass * values) / np.bincount(group, weights=mass)
    return means, group[place]


def middles(mass: Float64) -> Float64:
    """Return the quantile in the middle of each mass (G,), in order."""
    return np.asarray((np.cumsum(mass) - 0.5 * mass) / mass.sum())


def moments(values: Float64, weight: Float64) -> tuple[float, float]:
    """Return the mean and the standard deviation; the latter is replaced by a unit if all values are equal.

    >>> moments(np.array([4.0, 4.0]), np.ones(2)), moments(np.zeros(2), np.ones(2))
    ((4.0, 4.0), (0.0, 1.0))
    """
    largest = float(np.abs(values).max())
    # Squares of huge scores overflow, and those of tiny ones vanish.
    unit = largest if largest > 1e-100 else 1.0
    scaled = values / unit
    mean = float(np.average(scaled, weights=weight))
    variance = float(np.average((scaled - mean) ** 2, weights=weight))
    deviation = np.sqrt(variance) if variance > 1e-18 else 1.0
    return mean * unit, float(deviation * unit)


# -- the table ----------------------------------------------------------------------------------------


def grid_of(counts: GridCounts) -> Float64:
    """Return the points of the table: all values if there are few, else quantiles and points at even distances."""
    odds = counts.odds
    if len(odds) == 1:
        return np.array([odds[0] - 1.0, odds[0] + 1.0])
    if len(odds) <= _BY_MASS + _EVEN:
        return odds
    places = np.linspace(0.0, 1.0, _BY_MASS)
    by_mass = np.interp(places, middles(counts.mass.sum(axis=0)), odds)
    zero = [0.0] if odds[0] < 0 < odds[-1] else []
    even = np.linspace(odds[0], odds[-1], _EVEN)
    points = np.unique(np.concatenate([by_mass, even, zero]))
    apart = np.diff(points) > 1e-9 * (odds[-1] - odds[0])
    return np.asarray(points[np.append(True, apart)])


class LogOddsTable(NamedTuple):
    """Log-odds (P,), the calibrated log-odds there, and the least slope that they rise with."""

    knots: Float64
    values: Float64
    least: float

    def extended(self, beta: float) -> LogOddsTable:
        """Make the table strictly increasing; extend it no steeper than its outer half or temperature scaling."""
        knots = self.knots
        smallest = 1e-12 * (1.0 + np.abs(self.values[1:]))
        steps = np.maximum(np.diff(self.values), smallest)
        values = self.values[0] + np.append(0.0, np.cumsum(steps))

        half = len(knots) // 2
        width = knots[-1] - knots[0]
        low = mean_slope(knots[: half + 1], values[: half + 1], 1e-3 * width)
        high = mean_slope(knots[-1 - half :], values[-1 - half :], 1e-3 * width)
        below = values[0] - min(low, beta) * width
        above = values[-1] + min(high, beta) * width
        return self._replace(
            knots=np.concatenate([[knots[0] - width], knots, [knots[-1] + width]]),
            values=np.concatenate([[below], values, [above]]),
        )

    def through_zero(self) -> LogOddsTable:
        """Return the table changed so that it has the sign of the log-odds everywhere, and still increases."""
        knots = self.knots
        near = _NEAR * (knots[-1] - knots[0])  # a jump at 0 is a steep piece
        points = np.concatenate([knots, [-near, 0.0, near], self._meets_line()])
        points = np.unique(points)
        table = np.interp(points, knots, self.values)
        line = self.least * points
        above = np.maximum(table, line)
        below = np.minimum(table, line)
        values = np.where(points > 0, above, below)
        values[points == 0] = 0.0
        return self._replace(knots=points, values=values)

    def _meets_line(self) -> Float64:
        """Return where the table meets the line of the least slope through 0."""
        knots = self.knots
        gap = self.values - self.least * knots
        i = np.flatnonzero(gap[:-1] * gap[1:] < 0)
        share = gap[i] / (gap[i] - gap[i + 1])
        return np.asarray(knots[i] + (knots[i + 1] - knots[i]) * share)


def mean_slope(knots: Float64, values: Float64, narrowest: float) -> float:
    """Return the slope from the first to the last point, which count as at least so far apart."""
    rise = values[-1] - values[0]
    width = knots[-1] - knots[0]
    return float(rise / max(width, narrowest))
