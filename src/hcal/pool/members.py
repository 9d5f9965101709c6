"""The members of the pool for three and more classes: temperature scaling, top-versus-rest and matrix scaling.

Every member learns by ``fit(rows)``, gives ``scores(x)`` of any logits, and says by ``left_out()`` what it would have
said of each row of the fit if that row had been left out. How far a member is trusted depends on the errors that it
learns from (:class:`Shrinkage`), and on rows that it never saw (:func:`weigh`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, Self

import numpy as np

from hcal.methods.folds import fold_shares, fold_sides
from hcal.numerics import Float64, IntArray, in_threads, row_blocks, softmax
from hcal.pool import map as maps
from hcal.pool.map import FLOOR, LEAST_DEVIATION, Curve, Margins, TopVersusRestMap
from hcal.rows import Rows
from hcal.solvers.nll import MatrixLinear, Ridge, fit_nll, second_sums
from hcal.solvers.optimise import Search
from hcal.solvers.regression import fit_logistic, fit_softmax
from hcal.solvers.temperature import label_derivatives, logit_scale, solve_newton

#: How many errors a part needs for each number that it learns, and how many nats it must gain to move a weight by 1.
CAUTION = 5.0
#: The least share, so that a penalty divided by it stays finite.
_LEAST_SHARE = 1e-9
#: Members are weighed on at most this many scores.
_MOST_SCORES = 4_000_000
#: Numbers in a block of rows.
_BLOCK_SCORES = 400_000
#: Where rows depend on each other, so many folds of whole groups are left out instead of single rows.
FOLDS = 5
#: Ridge penalties: of coefficients in standard deviations of what they multiply, of constants, and of matrix scaling,
#: which is multiplied by K.
RIDGE = 1.0
CONSTANT_RIDGE = 0.01
MATRIX_RIDGE = 0.125
#: How often the curve of the top-versus-rest member may change its slope.
KNOTS = 8
#: Temperature scaling does not say that an error is rarer than 1 in K times so many rows.
_LEAST_ROWS = 1000.0
#: With more scores than this, the search for the temperature starts on a part of the rows.
_MANY_SCORES = 4_000_000
#: Numbers in a block of matrix scaling's left-out rows.
_BLOCK = 1_000_000
#: Newton goes on until no float shows a gain.
_EXACT = Search(newton_gain=1e-16)


class Member(ABC):
    """What is weighed: a calibrator that also says what it would predict for a row that it had not seen."""

    name: ClassVar[str]
    margins: Margins  # what it sees of a row

    @abstractmethod
    def fit(self, rows: Rows) -> Self:
        """Learn from rows of logits."""

    @abstractmethod
    def scores(self, x: Float64) -> Float64:
        """Return scores (N, K) of logits (N, K): log-probabilities up to a constant in each row."""

    @abstractmethod
    def left_out(self) -> Float64:
        """Return the scores (S, K) of the rows of the fit, of each by the fit without it."""


@dataclass(frozen=True)
class Shrinkage:
    """A part that learns n numbers from e errors counts by the share e²/(e² + (5n)²)."""

    errors: float  # the weight of the rows whose label is not the top class

    def share(self, numbers: int) -> float:
        """Return how much a part counts that learns so many numbers: 0 without errors, near 1 with many.

        >>> [round(Shrinkage(errors).share(1), 2) for errors in (0.0, 5.0, 50.0)]
        [0.0, 0.5, 0.99]
        """
        needed = CAUTION * numbers
        return max(self.errors**2 / (self.errors**2 + needed**2), _LEAST_SHARE)


def weigh(left_out: Float64, rows: Rows, shrinkage: Shrinkage) -> Float64:
    """Return the members' weights (J,) that make rows likeliest which no member has seen; ``left_out`` (N, K, J).

    They are shrunk to equal weights, and with few errors to the first member alone, which is temperature scaling.
    """
    n_members = left_out.shape[2]
    share = shrinkage.share(1)
    centre = np.full(n_members, share / n_members)
    centre[0] += 1.0 - share
    fitted = fit_softmax(
        left_out, rows.labels, rows.weights, ridge=CAUTION / share, centre=centre, lowest=0.0
    )
    return fitted.theta


def left_out_scores(
    members: Sequence[Member], rows: Rows, fit_members: Callable[[Rows], Sequence[Member]]
) -> Float64:
    """Return the members' scores (S, K, J) of rows that they have not seen.

    Each row is left out alone, and with groups in a fold of whole groups, on which members are fitted again.
    """
    if rows.groups is None:
        scores = np.stack([member.left_out() for member in members], axis=2)
    else:
        scores = np.empty((*rows.scores.shape, len(members)))
        for fitted, unseen in fold_sides(_folds(rows)):
            for number, member in enumerate(fit_members(rows[fitted])):
                scores[unseen, :, number] = member.scores(rows.x[unseen])
        scores = scores[weighing_rows(rows)]
    # No member may take a row for impossible: one row would decide the weights of all.
    return np.asarray(np.maximum(scores - scores.max(axis=1, keepdims=True), -FLOOR))


def _folds(rows: Rows) -> IntArray:
    """Return the fold (N,) of every row, a group in one fold."""
    shares = fold_shares(rows.scores, FOLDS, rows.weights, rows.groups)
    return np.asarray(shares.argmax(axis=0))


def weighing_rows(rows: Rows) -> slice:
    """Return every so manieth row, so that the scores are not too many; rows are ordered by content."""
    return slice(None, None, max(1, -(-rows.scores.size // _MOST_SCORES)))


def in_blocks(function: Callable[[Rows], Float64], rows: Rows) -> Float64:
    """Return what a function computes of rows, block by block and in threads, so that memory stays bounded."""
    blocks = [rows[block] for block in row_blocks(rows.scores.shape, _BLOCK_SCORES)]
    return np.concatenate(in_threads(function, blocks, events=rows.scores.size))


# -- temperature scaling ------------------------------------------------------------------------------


class TemperatureMember(Member):
    """softmax(βx). A factor e in β must gain about 5 nats of log-likelihood."""

    name = "temperature"

    def __init__(self, sharpness: float = 1 / maps.TIE, cap: float | None = None) -> None:
        self.sharpness = sharpness
        self.cap = cap

    def fit(self, rows: Rows) -> Self:
        """Minimise Σ w·NLL(softmax(βx)) + 5·(√(1 + ln²β) − 1), and describe the margins that all members see."""
        fitted = fit_temperature(rows, CAUTION)
        cap = _cap_of(rows) if self.cap is None else self.cap
        margins = Margins(
            beta=np.array(fitted.beta),
            sharpness=np.array(self.sharpness),
            cap=np.array(cap),
            spread=np.array([0.0, 1.0, 0.0, 0.0]),
        )
        log_mean = in_blocks(partial(_log_mean_margin, margins), rows)
        self.margins = replace(margins, spread=_spread_of(log_mean))

        seen = weighing_rows(rows)
        self._rows = rows[seen]
        self._left_out_changes = fitted.left_out_changes[seen]
        return self

    def scores(self, x: Float64) -> Float64:
        """Return minus the margins, which count up to the cap."""
        return tempered(self.margins, x)

    def left_out(self) -> Float64:
        """Return minus the margins at the temperature of the fit without the row."""
        factors = 1.0 + self._left_out_changes
        margin = self.margins(self._rows.x) * factors[:, None]
        return np.asarray(self.margins.tempered(margin))


def tempered(margins: Margins, x: Float64) -> Float64:
    """Return the scores (N, K) of temperature scaling of logits (N, K)."""
    return np.asarray(margins.tempered(margins(x)))


class TemperatureFit(NamedTuple):
    """Inverse temperature β, and its relative change if each row is left out, (N,)."""

    beta: float
    left_out_changes: Float64


def fit_temperature(rows: Rows, price: float) -> TemperatureFit:
    """Minimise Σ w·NLL(softmax(βz)) + price·(√(1 + ln²β) − 1): a factor e in β must gain about ``price`` nats.

    >>> rows = Rows(np.array([[0.0, 2.0]] * 4000), "logits", y=np.array([1, 1, 1, 0] * 1000))
    >>> round(2 * fit_temperature(rows, 0.0).beta, 6)  # ln 3
    1.098612
    """
    unit = logit_scale(rows.x)
    if unit == 0:
        return TemperatureFit(1.0, np.zeros(len(rows)))
    step = 1 + rows.scores.size // _MANY_SCORES
    start = 1.0
    if step > 1:
        start = solve_newton(partial(_temperature_slope, rows[::step], unit, price / step)).beta
    beta = solve_newton(partial(_temperature_slope, rows, unit, price), start).beta

    _, first, second = label_derivatives(rows.x, rows.labels, beta, unit)
    log_beta = np.log(beta / unit)
    total = float(rows.weights @ second) + price / (1 + log_beta**2) ** 1.5 / beta**2
    weight = np.minimum(rows.weights, 1.0)
    changes = weight * first / (total - weight * second + 1e-300) / beta
    return TemperatureFit(beta / unit, changes)


def _temperature_slope(rows: Rows, unit: float, price: float, beta: float) -> tuple[float, float]:
    """Return slope and curvature in β of what is minimised; the curvature is positive in ln β too."""
    _, first, second = label_derivatives(rows.x, rows.labels, beta, unit) @ rows.weights
    log_beta = np.log(beta / unit)
    slope = first + price * log_beta / (beta * np.sqrt(1 + log_beta**2))
    bend = price / (beta**2 * (1 + log_beta**2) ** 1.5)
    return float(slope), float(second + bend + max(first, 0.0) / beta)


def _cap_of(rows: Rows) -> float:
    return float(np.log(rows.n_classes * (max(rows.total, _LEAST_ROWS) + 1.0)))


def _log_mean_margin(margins: Margins, rows: Rows) -> Float64:
    return np.asarray(maps.log_mean_margin(margins(rows.x))[:, 0])


def _spread_of(log_mean: Float64) -> Float64:
    """Return mean, deviation, and the range in deviations of a value of every row."""
    mean = log_mean.mean()
    deviation = log_mean.std() + LEAST_DEVIATION
    low, high = np.quantile((log_mean - mean) / deviation, [0.001, 0.999])
    return np.array([mean, deviation, low, high])


# -- top versus rest ----------------------------------------------------------------------------------


class TopVersusRest(Member):
    """How likely the top class is, by a curve of its log-odds; and how the others share the rest, by a bent line."""

    name = "top-versus-rest"

    def __init__(self, margins: Margins, shrinkage: Shrinkage, *, bent: bool = True) -> None:
        self.margins = margins
        self.bent = bent  # a line that is not bent keeps the order of the classes
        self._penalty = 1.0 / shrinkage.share(KNOTS)

    def fit(self, rows: Rows) -> Self:
        """Fit the line to the rows whose label is not the top, and the curve to all."""
        seen = weighing_rows(rows)
        missed = in_blocks(partial(missed_by, self.margins), rows)
        slopes, rest_changes = self._fit_rest(rows[seen], missed[seen])
        self.map = TopVersusRestMap(slopes=slopes, curve=Curve.zero())
        curve, left_out_odds = self._fit_curve(rows, 1.0 - missed)
        self.map = replace(self.map, curve=curve)

        self._rows = rows[seen]
        self._left_out_odds = left_out_odds[seen]
        self._left_out_rest = rest_changes
        return self

    def scores(self, x: Float64) -> Float64:
        """Return log-probabilities."""
        margin = self.margins(x)
        shares = self.margins.shares(margin)
        return np.asarray(self.map(margin, shares, self.margins.spread_of(margin)))

    def left_out(self) -> Float64:
        """Return log-probabilities, each from the curve and the line that were fitted without the row."""
        margin = self.margins(self._rows.x)
        shares = self.margins.shares(margin)
        rest = self.map.rest(margin, self.margins.spread_of(margin)) + self._left_out_rest
        rest = rest - maps.rest_mass(rest, shares)
        return np.asarray(maps.join_top(self._left_out_odds[:, None], rest, shares))

    def _fit_curve(self, rows: Rows, hit: Float64) -> tuple[Curve, Float64]:
        """Return the curve of the top's log-odds, and these (N,) after it, of each row by the fit without it."""
        odds = in_blocks(self._odds, rows)
        basis = CurveBasis.of(odds, rows.weights, KNOTS)
        ridge = self._penalty * basis.ridge()
        fitted = fit_logistic(basis.design(odds), hit, rows.weights, ridge=ridge, offset=odds)
        return basis.curve(fitted.theta), fitted.left_out

    def _fit_rest(self, rows: Rows, missed: Float64) -> tuple[Float64, Float64]:
        """Return the slopes, and by how much the scores (N, K) of each row change if the row is left out."""
        slopes = np.eye(1, 2 + len(maps.BENDS))[0]
        changes = np.zeros(rows.scores.shape)
        lost = missed > 0
        if not lost.any():
            return slopes, changes
        margin = self.margins(rows.x[lost])
        basis = self._rest_basis(margin)
        weight = (rows.weights * missed)[lost]
        used = basis.shape[2]
        fitted = fit_softmax(
            basis,
            rows.labels[lost],
            weight,
            offset=maps.log_outside(self.margins.shares(margin)),
            ridge=self._penalty * RIDGE,
            centre=slopes[:used],
        )
        changes[lost] = fitted.left_out_changes()
        slopes[:used] = fitted.theta
        if not self.bent:
            slopes[0] = max(slopes[0], 0.0)
        return slopes, changes

    def _rest_basis(self, margin: Float64) -> Float64:
        """Return what the slopes multiply, (N, K, J)."""
        if not self.bent:
            return np.negative(margin)[:, :, None]
        hinges = [np.maximum(margin - bend, 0.0) for bend in maps.BENDS]
        by_spread = self.margins.spread_of(margin) * margin
        return np.asarray(-np.stack([margin, *hinges, by_spread], axis=2))

    def _odds(self, rows: Rows) -> Float64:
        margin = self.margins(rows.x)
        rest = self.map.rest(margin, self.margins.spread_of(margin))
        return np.asarray(-maps.rest_mass(rest, self.margins.shares(margin))[:, 0])


def missed_by(margins: Margins, rows: Rows) -> Float64:
    """Return how far the label of each row is not its top class: 1, 0, or between where classes tie."""
    shares = margins.shares(margins(rows.x))
    return np.asarray(1.0 - shares[np.arange(len(rows)), rows.labels])


def shrinkage_of(rows: Rows, margins: Margins) -> Shrinkage:
    """Return the shrinkage that the errors of the uncalibrated predictions ask for."""
    missed = in_blocks(partial(missed_by, margins), rows)
    return Shrinkage(float(rows.weights @ missed))


class CurveBasis(NamedTuple):
    """The range and the knots of a curve, from the distribution of its argument."""

    low: float
    high: float
    knots: Float64  # (H,)
    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Float64, weight: Float64, knots: int) -> CurveBasis:
        """Return knots at quantiles of values (N,), and the range."""
        order = np.argsort(values, kind="stable")
        before = np.cumsum(weight[order]) - 0.5 * weight[order]
        places = np.concatenate([[0.001], np.linspace(0.03, 0.97, knots), [0.999]])
        low, *inner, high = np.interp(places * float(weight.sum()), before, values[order])
        mean = float(np.average(values, weights=weight))
        deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=weight)))
        return cls(float(low), float(high), np.array(inner), mean, deviation + LEAST_DEVIATION)

    def design(self, values: Float64) -> Float64:
        """Return the columns (N, 2 + H) of the regression that fits the curve, in standard deviations."""
        inside = np.clip(values, self.low, self.high)[:, None]
        bends = np.maximum(inside - self.knots, 0.0)
        lines = np.concatenate([inside - self.mean, bends], axis=1) / self.deviation
        return np.concatenate([np.ones((len(values), 1)), lines], axis=1)

    def ridge(self) -> Float64:
        """Return the penalties (2 + H,) of the coefficients."""
        return np.append(CONSTANT_RIDGE, np.full(len(self.knots) + 1, RIDGE))

    def curve(self, theta: Float64) -> Curve:
        """Return the curve of fitted coefficients (2 + H,)."""
        slopes = theta[1:] / self.deviation
        constant = theta[0] - slopes[0] * self.mean
        weights = np.append(constant, slopes)
        low = np.array(self.low)
        high = np.array(self.high)
        return Curve(low=low, high=high, knots=self.knots, weights=weights)


# -- matrix scaling -----------------------------------------------------------------------------------


class Matrix(Member):
    """softmax(b − W·margins) with W near the identity."""

    name = "matrix"

    def __init__(self, margins: Margins) -> None:
        self.margins = margins

    def fit(self, rows: Rows) -> Self:
        """Minimise Σ w·NLL + r·(|diag W − 1|² + |b|² + (K − 1)·|off-diagonal W|²), r a multiple of K."""
        k = rows.n_classes
        family = MatrixLinear(k)
        strength = MATRIX_RIDGE * k * np.where(np.eye(k) > 0, 1.0, k - 1.0)
        self._ridge = np.append(strength.ravel(), np.full(k, MATRIX_RIDGE * k))
        penalty = Ridge(self._ridge / rows.total, family.start)
        x = tempered(self.margins, rows.x)
        fitted = fit_nll(family, x, rows.labels, rows.weights, penalty=penalty, search=_EXACT)
        self.matrix = fitted.theta[by_class(k)].reshape(k, k + 1)
        self._theta = fitted.theta
        self._x = x
        self._rows = rows
        return self

    def scores(self, x: Float64) -> Float64:
        """Return the scores of logits."""
        return np.asarray(maps.matrix_scores(self.matrix, tempered(self.margins, x)))

    def left_out(self) -> Float64:
        """Return the scores of each row by one Newton step from the fit with all rows."""
        covariance = self._covariance()
        seen = weighing_rows(self._rows)
        x = self._x[seen]
        x = np.append(x, np.ones((len(x), 1)), axis=1)
        labels = self._rows.labels[seen]
        weights = np.minimum(self._rows.weights[seen], 1.0)
        blocks = row_blocks((len(x), self.matrix.size), _BLOCK)
        parts = [self._left_out_block(covariance, x[b], labels[b], weights[b]) for b in blocks]
        return np.concatenate(parts)

    def _covariance(self) -> Float64:
        """Return the inverse of the second derivative, (K, K + 1, K, K + 1): of W and b, class by class."""
        k = self._rows.n_classes
        sums = second_sums(MatrixLinear(k), self._theta, self._x, self._rows.weights)
        hessian = sums + 2 * np.diag(self._ridge)
        order = by_class(k)
        covariance = np.linalg.inv(hessian)[np.ix_(order, order)]
        return np.asarray(covariance.reshape(k, k + 1, k, k + 1))

    def _left_out_block(
        self, covariance: Float64, x: Float64, labels: IntArray, weights: Float64
    ) -> Float64:
        """Return scores (n, K); a row moves the scores by its leverage (K, K) times what it pulls."""
        n, k = len(x), len(self.matrix)
        scores = x @ self.matrix.T
        leverage = np.empty((n, k, k))
        for c in range(k):
            along = x @ covariance[c].reshape(k + 1, -1)
            leverage[:, c] = np.einsum("nbv,nv->nb", along.reshape(n, k, k + 1), x)
        leverage *= weights[:, None, None]

        probs = softmax(scores)
        spread = probs[:, :, None] * np.eye(k)
        curvature = spread - probs[:, :, None] * probs[:, None, :]
        pull = probs
        pull[np.arange(n), labels] -= 1.0
        moved = np.linalg.solve(np.eye(k) - curvature @ leverage, pull[:, :, None])
        return np.asarray(scores + (leverage @ moved)[:, :, 0])


def by_class(n_classes: int) -> IntArray:
    """Return where W and b of each class stand among the K² + K numbers of matrix scaling.

    >>> by_class(2)
    array([0, 1, 4, 2, 3, 5])
    """
    places = np.arange(n_classes * (n_classes + 1))
    weights = places[: n_classes**2].reshape(n_classes, n_classes)
    constants = places[n_classes**2 :, None]
    return np.append(weights, constants, axis=1).ravel()
