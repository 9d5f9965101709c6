"""Estimates with intervals for the risk of one outcome; rows may come in groups that depend on each other.

Every interval here starts from *influence values*: to first order an estimate is a mean, and the influence of a row is
how far it moves that mean. The spread of their sums over independent units (rows, or whole groups) is the standard
error, whether or not the predictions are calibrated. What else an interval needs, so that it covers where outcomes are
few, stands beside each function. ``studies/coverage.py`` counts how often each interval covers the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr, ndtri, stdtrit

from hcal.metrics.sample import Vector
from hcal.numerics import Float64, IntArray, NumpyArray
from hcal.solvers.regression import fit_logistic

#: Log-odds are taken of probabilities at least this far from 0 and 1.
_CLIP: Final = 1e-8
#: Intervals need as many observed and expected outcomes as this, and as many rows without the outcome.
FEWEST_OUTCOMES: Final = 10
#: The scaled Brier score divides by the variance of the outcome, whose noise needs more of them. The expected ones are
#: counted: samples that happen to have more outcomes than usual also have a scaled score that is off.
FEWEST_FOR_SCALED: Final = 40
#: With so many times as many observed outcomes the expected number does not matter: the predictions are far off.
_FAR_OFF: Final = 10
#: Intervals need as many groups of dependent rows as this.
FEWEST_GROUPS: Final = 20
#: The weight, in outcomes, of Hanley's and McNeil's variance of the area against the observed one.
_PRIOR_OUTCOMES: Final = 8.0


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval; ends that do not exist are NaN."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.low):
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    @classmethod
    def alone(cls, value: float) -> Estimate:
        """Return a number without an interval."""
        return cls(float(value), np.nan, np.nan)


@dataclass(frozen=True)
class Outcome:
    """The predicted risk of one outcome and whether it happened, (N,) each, with the level of the intervals.

    ``groups`` are the numbers of dependent rows; None if all rows are independent.
    """

    risk: Vector
    event: Vector
    confidence: float = 0.95
    groups: IntArray | None = None

    @classmethod
    def at(
        cls, z: float, n: int, risk: Vector | None = None, event: Vector | None = None
    ) -> Outcome:
        """Return independent rows whose intervals reach z standard errors; without risks, for a mean alone."""
        nothing = np.zeros(n)
        confidence = float(2 * ndtr(z) - 1)
        return cls(
            nothing if risk is None else risk, nothing if event is None else event, confidence
        )

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.risk)

    @property
    def z(self) -> float:
        """The quantile of the normal distribution that belongs to the level."""
        return float(ndtri((1 + self.confidence) / 2))

    @property
    def log_odds(self) -> Vector:
        """The log-odds of the predicted risk."""
        return log_odds_of(self.risk)

    @property
    def n_units(self) -> int:
        """The number of independent units: groups, or rows."""
        return self.n if self.groups is None else len(np.unique(self.groups))

    def sums(self, influence: Float64) -> Float64:
        """Return the sum of influence values (N, …) over each independent unit."""
        if self.groups is None:
            return influence
        unit = np.unique(self.groups, return_inverse=True)[1]
        sums = np.zeros((int(unit.max()) + 1, *influence.shape[1:]))
        np.add.at(sums, unit, influence)
        return sums

    def variance(self, influence: Vector) -> float:
        """Return the variance of a sum of influence values with mean 0."""
        sums = self.sums(influence)
        count = len(sums)
        return float(sums @ sums) * count / (count - 1)

    def no_interval(self, fewest_expected: int = FEWEST_OUTCOMES) -> str:
        """Return why there are no intervals; empty if there are."""
        if self.n_units < FEWEST_GROUPS and self.groups is not None:
            return f"{self.n_units} groups of dependent rows, and intervals need {FEWEST_GROUPS}"
        events = float(self.event.sum())
        risks = float(self.risk.sum())
        observed = min(events, self.n - events)
        expected = min(risks, self.n - risks)
        # Fewer observed than that are enough where about as many are expected.
        needed = fewest_expected if expected > 2 * observed else FEWEST_OUTCOMES
        if observed < needed:
            return f"{observed:.0f} rows with the rarer outcome, and intervals need {needed}"
        if expected < fewest_expected and observed < _FAR_OFF * fewest_expected:
            words = f"{expected:.1f} expected rows of the rarer outcome"
            return f"{words}, and intervals need {fewest_expected}"
        return ""


def log_odds_of(risk: Vector) -> Vector:
    """Return the log-odds of probabilities, which are finite."""
    return np.asarray(logit(np.clip(risk, _CLIP, 1 - _CLIP)))


def normal_interval(value: float, variance: float, z: float) -> Estimate:
    """Return a value ± z standard errors."""
    margin = z * float(np.sqrt(variance))
    return Estimate(float(value), float(value - margin), float(value + margin))


@dataclass(frozen=True)
class MeanSpread:
    """How uncertain a mean over rows is: its independent units, their total, and what its sampling is like.

    Attributes
    ----------
    units : float
        How many independent observations there are: rows, copies of rows, or groups.
    error : float
        The standard error of the mean.
    skew : float
        The skewness of the mean.
    """

    units: float
    error: float
    skew: float

    @classmethod
    def of(cls, residual: Vector, weight: Vector, groups: NumpyArray | None) -> MeanSpread:
        """Return the spread of a weighted mean from what its rows differ from it, (N,).

        A whole weight stands for that many copies of a row. If any weight is not whole, every row is one observation.

        >>> MeanSpread.of(np.array([-1.0, 1.0]), np.array([2.0, 2.0]), None).units
        4.0
        """
        total = float(weight.sum())
        if groups is None and np.array_equal(weight, np.rint(weight)):
            units = total
            parts = residual
            copies = weight
        else:
            parts = (weight * residual)[weight > 0]
            if groups is not None:
                unit = np.unique(groups[weight > 0], return_inverse=True)[1]
                parts = np.bincount(unit, parts).astype(np.float64)
            units = float(len(parts))
            copies = np.ones(len(parts))
        if units < 2:
            return cls(units, np.nan, 0.0)
        squares = float(copies @ parts**2)
        cubes = float(copies @ parts**3)
        error = np.sqrt(squares * units / (units - 1)) / total
        # Of values that differ by rounding alone, the skewness would be noise.
        skew = cubes / squares**1.5 if squares > 0 else 0.0
        return cls(units, float(error), float(skew))

    def quantile(self, confidence: float) -> float:
        """Return the quantile of Student's distribution that belongs to a confidence."""
        return float(stdtrit(self.units - 1, (1 + confidence) / 2))


def weighted_mean(
    values: Vector, weight: Vector, groups: NumpyArray | None, confidence: float
) -> Estimate:
    """Return a mean over rows; its interval allows for the skewness of the values, as that of costs or losses.

    A whole weight stands for that many copies of a row; otherwise every row is one observation. Fewer than 20 groups
    of dependent rows have no interval.

    >>> print(weighted_mean(np.array([0.0, 1.0]), np.array([20.0, 20.0]), None, 0.95))
    0.500 (0.338 to 0.662)
    """
    mean = float(np.average(values, weights=weight))
    spread = MeanSpread.of(values - mean, weight, groups)
    if not spread.units >= (2 if groups is None else FEWEST_GROUPS):
        return Estimate.alone(mean)
    return hall_interval(mean, spread.error, spread.skew, spread.quantile(confidence))


def weighted_share(
    happened: Vector, weight: Vector, groups: NumpyArray | None, confidence: float
) -> Estimate:
    """Return the share of rows in which something happened (0.0 or 1.0), with Wilson's interval.

    The interval has a width where it happened in all rows or in none. Weights and groups count as in
    :func:`weighted_mean`: the rows are worth as many independent ones as have the same standard error.

    >>> print(weighted_share(np.ones(50), np.ones(50), None, 0.95))
    1.000 (0.925 to 1.000)
    """
    share = float(np.average(happened, weights=weight))
    spread = MeanSpread.of(happened - share, weight, groups)
    if not spread.units >= (2 if groups is None else FEWEST_GROUPS):
        return Estimate.alone(share)
    size = spread.units
    if spread.error > 0:
        size = (spread.units - 1) / spread.units * share * (1 - share) / spread.error**2
    wide = spread.quantile(confidence) ** 2 / max(size, 1.0)
    centre = (share + wide / 2) / (1 + wide)
    margin = np.sqrt(wide * share * (1 - share) + wide**2 / 4) / (1 + wide)
    low = min(max(float(centre - margin), 0.0), share)
    high = max(min(float(centre + margin), 1.0), share)
    return Estimate(share, low, high)


def skewed_interval(rows: Outcome, value: float, influence: Vector) -> Estimate:
    """Return the interval of a mean whose influence values (N,) are skewed, as those of rare outcomes are.

    >>> rows = Outcome(np.full(4, 0.5), np.zeros(4))
    >>> print(skewed_interval(rows, 0.0, np.array([-0.1, -0.1, -0.1, 0.3])))
    0.000 (-0.573 to 3.267)
    """
    sums = rows.sums(influence)
    count = len(sums)
    error = float(np.sqrt(rows.variance(influence)))
    spread = float(sums.std())
    if not spread > 0:
        return Estimate(float(value), float(value), float(value))
    third_moment = float(((sums - sums.mean()) ** 3).mean())
    return hall_interval(value, error, third_moment / spread**3 / np.sqrt(count), rows.z)


def hall_interval(value: float, error: float, skew: float, quantile: float) -> Estimate:
    """Return a value with the interval that its standard error and its skewness give.

    Hall's transformation of the studentised mean removes its skewness, and is monotone (Hall, JRSS B 1992).

    >>> print(hall_interval(0.5, 0.1, 0.0, 2.0))
    0.500 (0.300 to 0.700)
    """
    low = value - error * _without_skew(quantile, skew)
    high = value - error * _without_skew(-quantile, skew)
    return Estimate(float(value), float(low), float(high))


def _without_skew(quantile: float, skew: float) -> float:
    """Return Hall's inverse transformation of a normal quantile."""
    if abs(skew) < 1e-9:
        return quantile
    cubed = 1 + skew * (quantile - skew / 6)
    return float((np.cbrt(cubed) - 1) * 3 / skew)


# -- regressions on the log-odds ----------------------------------------------------------------------


def calibration_line(
    log_odds: Vector, event: NumpyArray, weight: Vector | None = None
) -> tuple[float, float]:
    """Return intercept and slope of the logistic regression of an event on log-odds; NaN where there is none.

    >>> x = np.array([-1.0, -1.0, 1.0, 1.0])
    >>> [round(value, 6) for value in calibration_line(x, np.array([1, 0, 0, 1]))]
    [0.0, 0.0]
    """
    happened = np.asarray(event, dtype=bool)
    if no_slope(log_odds, happened):
        return np.nan, np.nan
    design = np.stack([np.ones_like(log_odds), log_odds], axis=1)
    theta = fit_logistic(design, happened.astype(np.float64), weight).theta
    return float(theta[0]), float(theta[1])


def no_slope(log_odds: Vector, event: NumpyArray) -> str:
    """Return why a logistic regression on log-odds has no finite slope; empty if it has one."""
    happened = np.asarray(event, dtype=bool)
    if happened.all() or not happened.any():
        return "all rows have the same outcome: there is no slope"
    if log_odds.min() == log_odds.max():
        return "all predictions are equal: there is no slope"
    yes = log_odds[happened]
    no = log_odds[~happened]
    if yes.min() >= no.max() or yes.max() <= no.min():
        return "the predictions separate the outcomes: the slope is not finite"
    return ""


@dataclass(frozen=True)
class Regression:
    """A logistic regression: coefficients (C,), and their covariance (C, C) by the model and by the residuals."""

    coefficients: Vector
    by_model: Float64
    by_residuals: Float64


def regression(
    rows: Outcome, design: Float64, offset: Vector | float = 0.0, ridge: float = 0.0
) -> Regression:
    """Return the logistic regression of the outcome on a design (N, C).

    The covariance by residuals holds where the regression is wrong, and for groups of dependent rows. Each residual
    is divided by 1 − leverage, without which few rows look too certain (HC3: MacKinnon and White, 1985).
    """
    penalty = ridge * np.eye(design.shape[1])
    solved = fit_logistic(design, rows.event, penalty=penalty / 2, offset=offset)
    risk = expit(design @ solved.theta + offset)
    curvature = risk * (1 - risk)

    by_model = solved.covariance
    leverage = np.einsum("nc,cd,nd->n", design, by_model, design) * curvature
    residual = (rows.event - risk) / (1 - np.minimum(leverage, 0.9))
    sums = rows.sums(design * residual[:, None])
    middle = sums.T @ sums
    if rows.groups is not None:
        middle *= len(sums) / (len(sums) - 1)
    return Regression(solved.theta, by_model, by_model @ middle @ by_model)


def in_the_large(rows: Outcome) -> Estimate:
    """Return the intercept that brings the predicted risks to the observed number of outcomes."""
    fitted = regression(rows, np.ones((rows.n, 1)), offset=rows.log_odds)
    value = float(fitted.coefficients[0])
    if rows.no_interval():
        return Estimate.alone(value)
    return normal_interval(value, fitted.by_residuals[0, 0], rows.z)


def slope_and_intercept(rows: Outcome) -> tuple[Estimate, Estimate, str]:
    """Return slope and intercept of the outcome on the predicted log-odds, and why there are none.

    The larger of both variances is taken: with few outcomes residuals alone are too small too often.
    """
    x = rows.log_odds
    reason = no_slope(x, rows.event)
    if reason:
        return Estimate.alone(np.nan), Estimate.alone(np.nan), reason
    fitted = regression(rows, np.stack([np.ones_like(x), x], axis=1))
    intercept, slope = map(float, fitted.coefficients)
    if rows.no_interval():
        return Estimate.alone(slope), Estimate.alone(intercept), ""
    variance = np.maximum(np.diag(fitted.by_model), np.diag(fitted.by_residuals))
    slope_interval = normal_interval(slope, variance[1], rows.z)
    intercept_interval = normal_interval(intercept, variance[0], rows.z)
    return slope_interval, intercept_interval, ""


# -- means and ratios ---------------------------------------------------------------------------------


def observed_expected(rows: Outcome) -> Estimate:
    """Return O:E, observed over expected outcomes, with an interval of its logarithm."""
    observed = float(rows.event.sum())
    expected = max(float(rows.risk.sum()), _CLIP)
    ratio = observed / expected
    if rows.no_interval():
        return Estimate.alone(ratio)
    influence = (rows.event - ratio * rows.risk) / observed
    factor = float(np.exp(rows.z * np.sqrt(rows.variance(influence))))
    return Estimate(ratio, ratio / factor, ratio * factor)


def brier_scores(rows: Outcome) -> tuple[Estimate, Estimate]:
    """Return the Brier score, and the scaled Brier score."""
    losses = (rows.risk - rows.event) ** 2
    score = float(losses.mean())
    rate = float(rows.event.mean())
    null_score = rate * (1 - rate)
    scaled = 1 - score / null_score

    brier = Estimate.alone(score)
    if not rows.no_interval():
        brier = skewed_interval(rows, score, (losses - score) / rows.n)
    if rows.no_interval(FEWEST_FOR_SCALED):
        return brier, Estimate.alone(scaled)

    # To first order each row contributes (1 − 2·rate)(event − rate) to the null score.
    null_losses = null_score + (1 - 2 * rate) * (rows.event - rate)
    scaled_losses = losses - score * null_losses / null_score
    influence = -scaled_losses / null_score / rows.n
    return brier, skewed_interval(rows, scaled, influence)


# -- the area under the ROC curve ---------------------------------------------------------------------


def area(rows: Outcome) -> Estimate:
    """Return the area under the ROC curve, with an interval that has a width at an area of 1 too.

    The interval holds all areas A whose distance from the estimate is at most z standard errors at A (Newcombe,
    Statistics in Medicine 2006, method 5), by the variance of Hanley and McNeil. That variance is multiplied by the
    ratio of the observed one (DeLong, Biometrics 1988; for groups Obuchowski, 1997) to it at the estimate.
    """
    happened = np.asarray(rows.event == 1)
    n_yes = int(happened.sum())
    n_no = rows.n - n_yes
    above, _ = _shares_below(rows.risk, happened)
    value = float(above.mean())
    if rows.no_interval():
        return Estimate.alone(value)

    influence = area_influence(rows.risk, happened)
    by_model = _area_variance(value, n_yes, n_no)
    ratio = 1.0
    if by_model > 0:
        rarer = min(n_yes, n_no) * rows.n_units / rows.n
        observed = rows.variance(influence) / by_model
        ratio = (rarer * observed + _PRIOR_OUTCOMES) / (rarer + _PRIOR_OUTCOMES)

    low = _area_end(value, 0.0, rows.z, ratio, (n_yes, n_no))
    high = _area_end(value, 1.0, rows.z, ratio, (n_yes, n_no))
    return Estimate(value, low, high)


def area_influence(risk: Vector, happened: NDArray[np.bool_]) -> Vector:
    """Return how far each row (N,) moves the area under the ROC curve (DeLong, Biometrics 1988)."""
    above, below = _shares_below(risk, happened)
    influence = np.empty(len(risk))
    influence[happened] = (above - above.mean()) / len(above)
    influence[~happened] = (below - below.mean()) / len(below)
    return influence


def _shares_below(risk: Vector, happened: NDArray[np.bool_]) -> tuple[Vector, Vector]:
    """Return for each row with the outcome the share of rows without it that lie below; and the reverse."""
    ranks = midranks(risk)
    above = ranks[happened] - midranks(risk[happened])
    below = ranks[~happened] - midranks(risk[~happened])
    n_yes = float(len(above))
    n_no = float(len(below))
    return above / n_no, 1 - below / n_yes


def concordance(risk: Vector, event: NumpyArray) -> float:
    """Return the area under the ROC curve alone; NaN where all rows have the same outcome.

    >>> concordance(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    0.875
    """
    happened = np.asarray(event, dtype=bool)
    n_yes = int(happened.sum())
    n_no = len(happened) - n_yes
    if not n_yes or not n_no:
        return float("nan")
    ranks = midranks(risk)[happened].sum()
    return float((ranks - n_yes * (n_yes + 1) / 2) / (n_yes * n_no))


def midranks(x: Vector) -> Vector:
    """Return ranks from 1, ties with their mean rank.

    >>> midranks(np.array([0.3, 0.1, 0.3]))
    array([2.5, 1. , 2.5])
    """
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])


def _area_variance(value: float, n_yes: int, n_no: int) -> float:
    """Return the variance of an area by Hanley and McNeil, with Newcombe's mean number of pairs."""
    pairs = (n_yes + n_no) / 2 - 1
    of_events = pairs * (1 - value) / (2 - value)
    of_others = pairs * value / (1 + value)
    return value * (1 - value) * (1 + of_events + of_others) / (n_yes * n_no)


def _area_end(value: float, limit: float, z: float, ratio: float, sizes: tuple[int, int]) -> float:
    """Return the area between a value and a limit (0 or 1) that lies z standard errors from the value."""
    near = value
    far = limit
    for _ in range(60):
        middle = (near + far) / 2
        inside = (value - middle) ** 2 <= z**2 * ratio * _area_variance(middle, *sizes)
        if inside:
            near = middle
        else:
            far = middle
    return (near + far) / 2
