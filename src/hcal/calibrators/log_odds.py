"""Curves of the log-odds, one against the rest: ``platt``, ``quadratic`` and ``smooth_spline``.

ln p_k − ln(1 − p_k) goes in, the calibrated log-odds come out. Two classes are one event, P(class 1), and its
complement; more are K events whose probabilities are divided by their sum. What fits the curves are small penalised
logistic regressions with soft targets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
from scipy.optimize import isotonic_regression

from hcal import xp
from hcal.calibrators._curves import Curve, check_curves, columns, fit_curves, pool_equal, read_curves
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.parameters import parameters, whole_number
from hcal.maps.base import Map, array, map_type
from hcal.numerics import Float64, IntArray, run_starts
from hcal.solvers.nll import logistic
from hcal.solvers.optimise import Solution
from hcal.xp import Array, namespace

#: Learns the numbers of one curve from log-odds, marks [y = k] and weights (N,), and whether it converged.
FitEvent = Callable[[Float64, Float64, Float64 | None], tuple[Float64, bool]]

#: The smaller slope of a parabola is at least this share of the larger: rows that were told apart stay so.
_LEAST = 1e-3
_TINY = float(np.finfo(np.float64).tiny)
#: Rows enter the spline's fit as at most so many groups of neighbours: the curve cannot tell more apart.
_GROUPS = 512
#: The spline is kept as a polygon of so many points from one knot to the next.
_STEPS = 8
#: Penalties tried, in units of (range of the log-odds)³ on the mean log-loss.
_PENALTIES = 10.0 ** np.arange(-8.0, -1.0)
#: Knots nearer than this would make a slope that is not a number.
_CLOSEST = 1e-100
_LARGE = 1e30


class OddsMap(Map):
    """A curve of the log-odds of each of E events: one for two classes, else K. Subclasses write ``curved``."""

    @abstractmethod
    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K)."""
        xp = namespace(x)
        curved = self.curved(events(log_odds(x)))
        if x.shape[-1] == 2:
            return xp.log_softmax(xp.concat([0 * curved, curved]))
        return xp.log_softmax(log_sigmoid(curved))

    def check_fields(self, sizes: Mapping[str, int]) -> None:
        """Raise a ValueError that names the field which is not as declared."""
        classes = sizes.get("K")
        super().check_fields(sizes if classes is None else {**sizes, "E": 1 if classes == 2 else classes})


def log_odds(x: Array) -> Array:
    """Return ln p_k − ln(1 − p_k) of every class, without loss where p_k is near 1; logits (N, K) → (N, K).

    >>> log_odds(np.array([[0.0, 1000.0]]))
    array([[-1000.,  1000.]])
    """
    xp = namespace(x)
    top, largest = xp.argmax(x), xp.row_max(x)
    # The rest of the top class is summed from the others; subtracting would leave no digit.
    rest = xp.log_sum_exp(xp.replaced(x, top, -np.inf))
    p = xp.exp(x - largest)
    others = xp.replaced(xp.row_sum(p) - p, top, 1.0)
    return xp.put_along(x - largest - xp.log(others), top, largest - rest)


def log_sigmoid(x: Array) -> Array:
    """Return −ln(1 + e^−x), without overflow on either side.

    >>> log_sigmoid(np.array([-1000.0, 1000.0]))
    array([-1000.,     0.])
    """
    xp = namespace(x)
    return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))


def expit(x: Array) -> Array:
    """Return 1/(1 + e^−x), without overflow on either side.

    >>> expit(np.array([-1000.0, 0.0, 1000.0]))
    array([0. , 0.5, 1. ])
    """
    return namespace(x).exp(log_sigmoid(x))


def events(odds: Array) -> Array:
    """Return the columns that get a curve: class 1 of two, all of more.

    >>> events(np.zeros((5, 2))).shape
    (5, 1)
    """
    return odds[..., 1:] if odds.shape[-1] == 2 else odds


def event_labels(y: IntArray, n_classes: int) -> IntArray:
    """Return which of the :func:`events` happened (N,); none (a number past the last) if all rows are of one class.

    From one class alone nothing can be learned.

    >>> event_labels(np.array([0, 1]), 2), event_labels(np.array([2, 2]), 3)
    (array([1, 0]), array([3, 3]))
    """
    if y.min() == y.max():
        return np.full_like(y, n_classes)
    return 1 - y if n_classes == 2 else y


def fit_events(
    odds: Float64, y: IntArray, weight: Float64 | None, fit_one: FitEvent, identity: Float64
) -> tuple[Float64, bool]:
    """Fit the numbers of every curve; a class without rows, or the only one that has any, gets the identity.

    ``identity`` (P,) are the numbers that leave log-odds (N, K) as they are. The answer has shape (K, P), or
    (1, P) for two classes; beside it, whether all fits converged.

    >>> odds, y = np.array([[0.0, 0.0]]), np.array([1])
    >>> fit_events(odds, y, None, lambda o, hit, w: (np.zeros(2), True), np.array([0.0, 1.0]))
    (array([[0., 1.]]), True)
    """
    used, own = events(odds), event_labels(y, odds.shape[1])
    found, converged = np.tile(identity, (used.shape[1], 1)).astype(np.float64), True
    for k, o in columns(used):
        hit = (own == k).astype(np.float64)
        if hit.any():
            found[k], well = fit_one(o, hit, weight)
            converged &= well
    return found, converged


def platt_targets(hit: Float64, weight: Float64 | None) -> Float64:
    """Return Platt's targets: (n₊ + 1)/(n₊ + 2) for a hit, 1/(n₋ + 2) for a miss.

    They are what a uniform prior on each rate makes of the labels, and keep separable data from running off.

    >>> platt_targets(np.array([1.0, 0.0, 0.0]), None)
    array([0.66666667, 0.25      , 0.25      ])
    """
    mass = np.ones(len(hit)) if weight is None else weight
    hits, misses = float(mass @ hit), float(mass @ (1 - hit))
    return np.where(hit > 0, (hits + 1) / (hits + 2), 1 / (misses + 2))


def increasing_logistic(design: Float64, target: Float64, weight: Float64 | None) -> Solution:
    """As :func:`hcal.solvers.nll.logistic`, with all coefficients but the first at least 0.

    Convex with few bounds: the best of the solutions with some coefficients at 0 that keep the others there.

    The first column of the design (N, P) is the intercept.

    >>> design = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> increasing_logistic(design, np.array([0.75, 0.25]), np.ones(2)).theta.round(6)
    array([0., 0.])
    """
    size = design.shape[1]
    found = []
    for kept in range(size - 1, -1, -1):
        for chosen in combinations(range(1, size), kept):
            used = [0, *chosen]
            solved = logistic(design[:, used], target, weight)
            if (solved.theta[1:] >= 0).all():
                theta = np.zeros(size)
                theta[used] = solved.theta
                found.append(replace(solved, theta=theta))
        if kept == size - 1 and found:  # no bound is active
            break
    return min(found, key=lambda solved: solved.value)


# -- platt ------------------------------------------------------------------------------------------


@map_type
class AffineOdds(OddsMap):
    """slope · log-odds + intercept."""

    slope: Array = array("of each event", "E")
    intercept: Array = array("of each event", "E")

    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""
        return odds * self.slope + self.intercept


@parameters
class PlattScaling(Calibrator):
    """Per event, logit q = a · logit p + b with a ≥ 0, of greatest likelihood.

    Two classes have one event; with more, each class against the rest, and rows divided by their sum. A class
    absent from the calibration rows keeps its log-odds. The slope cannot be negative: calibration never turns
    a ranking around.

    Platt: Probabilistic outputs for support vector machines and comparisons to regularized likelihood
    methods, Advances in Large Margin Classifiers, 1999. There the score is a margin; here the log-odds.

    Parameters
    ----------
    smooth : bool
        Platt's targets, (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2), in place of 1 and 0.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = PlattScaling(smooth=False).fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0]]).round(3)
    array([[0.25, 0.75]])
    """

    name = "platt"
    title = "Platt scaling"
    weighted = True
    map_types = (AffineOdds,)

    smooth: bool = True

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        found, converged = fit_events(log_odds(x), y, weight, self._fit_one, identity=np.array([0.0, 1.0]))
        line = AffineOdds(intercept=found[:, 0], slope=found[:, 1])
        return Fitted(line, converged, "" if converged else "Newton did not converge")

    def _fit_one(self, odds: Float64, hit: Float64, weight: Float64 | None) -> tuple[Float64, bool]:
        target = platt_targets(hit, weight) if self.smooth else hit
        solved = increasing_logistic(np.stack([np.ones_like(odds), odds], axis=1), target, weight)
        return solved.theta, solved.converged


# -- quadratic --------------------------------------------------------------------------------------


@map_type
class QuadraticOdds(OddsMap):
    """A parabola between two log-odds, and its tangents outside."""

    height: Array = array("at the low end", "E")
    low_slope: Array = array("at the low end", "E")
    high_slope: Array = array("at the high end", "E")
    low: Array = array("least log-odds seen", "E")
    high: Array = array("greatest log-odds seen", "E")

    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""
        rising, falling = _parts(odds, self.low, self.high)
        return self.height + self.low_slope * falling + self.high_slope * rising

    def check(self) -> None:
        """Raise a ValueError where fields do not fit each other."""
        if (self.high < self.low).any():
            raise ValueError("'high' must not lie below 'low'")


class QuadraticScaling(Calibrator):
    """Per event, logit q is a quadratic of logit p, increasing; outside the calibration range, its tangents.

    Two Gaussian classes of unequal variance have log-odds that are quadratic in the score, which is what asks
    for it. The parameters are a height and the slopes, both at least 0, at the two ends of the calibration
    range: a free parabola turns back somewhere, and then ranks the surest rows last. Platt's targets keep
    separable rows finite. A class absent from the calibration rows keeps its log-odds.

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025, motivate the
    quadratic; the bounds and the tangents are ours.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 2000)
    >>> score = rng.normal(size=2000) * (1 + y) + y
    >>> cal = QuadraticScaling().fit(score, y)
    >>> cal.scores_["after"]["nll"] < cal.scores_["before"]["nll"]
    True
    """

    name = "quadratic"
    title = "Quadratic scaling"
    weighted = True
    map_types = (QuadraticOdds,)

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        # height 0 at log-odds 0 and slope 1 at both ends: the identity
        identity = np.array([0.0, 1.0, 1.0, 0.0, 0.0])
        found, converged = fit_events(log_odds(x), y, weight, _fit_parabola, identity)
        height, low_slope, high_slope, low, high = found.T
        curve = QuadraticOdds(height=height, low_slope=low_slope, high_slope=high_slope, low=low, high=high)
        return Fitted(curve, converged, "" if converged else "Newton did not converge")


def _parts(odds: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return two increasing functions, 0 at ``low``: slope 0 → 1 and slope 1 → 0 over [low, high].

    Their sum is odds − low. Below and above they go on straight.
    """
    xp = namespace(odds)
    # high − low may be 0 (all rows equal): then only the tangents are left.
    width = xp.maximum(high - low, _TINY)
    inside = xp.clip(odds, low, high) - low
    rising = inside * (inside / width) / 2 + xp.maximum(odds - high, 0.0)
    return rising, odds - low - rising


def _fit_parabola(odds: Float64, hit: Float64, weight: Float64 | None) -> tuple[Float64, bool]:
    low, high = odds.min(), odds.max()
    rising, falling = _parts(odds, low, high)
    design = np.stack([np.ones_like(odds), falling + _LEAST * rising, rising + _LEAST * falling], axis=1)
    solved = increasing_logistic(design, platt_targets(hit, weight), weight)
    height, a, b = solved.theta
    return np.array([height, a + _LEAST * b, b + _LEAST * a, low, high]), solved.converged


# -- smooth_spline ----------------------------------------------------------------------------------


@map_type
class OddsCurves(OddsMap):
    """A polygon of the log-odds of each event, straight beyond its ends."""

    offsets: Array = array(
        "event k owns points offsets[k] to offsets[k+1]", "E+1", low=0, dtype="int64", order="not falling"
    )
    knots: Array = array("log-odds, event after event", "P", low=-_LARGE, high=_LARGE)
    values: Array = array("calibrated log-odds there", "P", low=-_LARGE, high=_LARGE)

    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""
        return read_curves(odds, self.offsets, self.knots, self.values, "straight on")

    expansion = 4

    def check(self) -> None:
        """Raise a ValueError where fields do not fit each other."""
        check_curves(self.offsets, self.knots)
        near = np.flatnonzero(~(np.diff(self.knots) >= _CLOSEST)) + 1
        if not np.isin(near, self.offsets).all():
            raise ValueError(f"'knots' must rise by at least {_CLOSEST:g} within an event")


@parameters
class SmoothSpline(Calibrator):
    """Per event, logit q = s(logit p): a natural cubic spline of least log-loss + λ∫s″², straight outside.

    λ comes from the approximate leave-one-out log-loss (one Newton step per row left out: no folds, nothing
    random). A spline that falls somewhere is replaced by the nearest increasing curve, so no ranking turns
    around. A class absent from the calibration rows keeps its log-odds. A weight counts rows, so weights that are
    all 7 are seven copies of each row: leaving one of them out costs little, and the curve bends more.

    Lucena: Spline-based probability calibration, arXiv 1809.07751, has the idea, with folds and a ridge; the
    penalty on curvature is Green, Silverman: Nonparametric regression and generalized linear models, 1994.

    Parameters
    ----------
    knots : int
        At most so many, at quantiles of the log-odds.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> score = rng.normal(size=3000) * 3
    >>> y = (rng.random(3000) < expit(np.tanh(score) * 2)).astype(int)
    >>> cal = SmoothSpline().fit(score, y)
    >>> bool(abs(cal.predict_proba([6.0])[0, 1] - expit(2.0)) < 0.03)
    True
    """

    name = "smooth_spline"
    title = "Smoothing spline of the log-odds"
    weighted = True
    map_types = (OddsCurves,)

    knots: int = 12

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        learner = partial(_fit_spline, whole_number("knots", self.knots, 2))
        # Beyond e^±1e6 rows say nothing new, and the cube of the range must be a number.
        odds = np.clip(xp.rounded(log_odds(x)), -1e6, 1e6)
        return Fitted(OddsCurves(**fit_curves(events(odds), event_labels(y, x.shape[1]), weight, learner)))


def _fit_spline(n_knots: int, odds: Float64, hit: Float64, weight: Float64 | None) -> Curve:
    """Return knots and the spline's values there."""
    x, mass, hits = _grouped(*pool_equal(odds, hit, weight))
    targets = platt_targets(np.array([0.0, 1.0]), np.array([mass.sum() - hits.sum(), hits.sum()]))
    target = targets[0] + (targets[1] - targets[0]) * hits / mass
    affine = increasing_logistic(np.stack([np.ones_like(x), x], axis=1), target, mass).theta
    at = _apart(np.quantile(x, np.linspace(0, 1, n_knots), method="inverted_cdf"))
    values = affine[0] + affine[1] * at
    if len(at) < 4:
        return at, values
    # A column a knot: the spline that is 1 there and 0 at the others.
    design, bending = _natural(at, np.eye(len(at)), x), _bending(at) * (at[-1] - at[0]) ** 3
    best, chosen = np.inf, values
    for penalty in _PENALTIES[::-1]:  # from stiff to loose, each from the one before
        values = logistic(design, target, mass, penalty=penalty * bending, start=values).theta
        error = _left_out(design, values, mass, hits, targets, penalty * bending)
        if error < best:
            best, chosen = error, values
    return _increasing(at, chosen, x, mass, slope=affine[1])


def _increasing(knots: Float64, values: Float64, x: Float64, mass: Float64, *, slope: float) -> Curve:
    """Return the spline at points close together; where it falls, the nearest increasing curve.

    A flat stretch gets a thousandth of the affine slope: rows that were told apart stay so.
    """
    steps = np.arange(_STEPS * (len(knots) - 1) + 1) / _STEPS
    fine = np.interp(steps, np.arange(len(knots)), knots)
    curve = _natural(knots, values, fine)
    if (np.diff(curve) <= 0).any():
        density = np.histogram(x, np.append(fine, np.inf), weights=mass)[0] + 1e-3 * mass.sum() / len(fine)
        curve = isotonic_regression(curve, weights=density).x + 1e-3 * slope * (fine - fine.mean())
    return fine, curve


def _apart(knots: Float64) -> Float64:
    """Leave out knots closer than a ten-thousandth of the range: no curvature can be told between them."""
    gap = (knots[-1] - knots[0]) * 1e-4
    kept = [knots[0]]
    for knot in knots[1:]:
        if knot - kept[-1] > gap:
            kept.append(knot)
    return np.array(kept)


def _grouped(x: Float64, mass: Float64, hits: Float64) -> tuple[Float64, Float64, Float64]:
    """Pool neighbours into groups of about equal mass, where there are many."""
    if len(x) <= _GROUPS:
        return x, mass, hits
    before = np.concatenate([[0.0], np.cumsum(mass)[:-1]]) / mass.sum()
    first = run_starts((before * _GROUPS * (1 + 1e-12)).astype(np.int64))
    total = np.add.reduceat(mass, first)
    return np.add.reduceat(x * mass, first) / total, total, np.add.reduceat(hits, first)


def _natural(knots: Float64, values: Float64, x: Float64, derivative: int = 0) -> Float64:
    """Return the natural cubic splines through values (G, ...) at the knots (G,), at x; straight outside."""
    from scipy.interpolate import CubicSpline

    spline = CubicSpline(knots, values, bc_type="natural")
    inside = np.clip(x, knots[0], knots[-1])
    beyond = (x - inside).reshape((-1,) + (1,) * (values.ndim - 1))
    out: Float64 = spline(inside, derivative) + beyond * spline(inside, derivative + 1)
    return out


def _bending(knots: Float64) -> Float64:
    """Return the matrix of ∫s″² as a quadratic form of the values at the knots: s″ is linear between them."""
    second = _natural(knots, np.eye(len(knots)), knots, 2)
    low, high, width = second[:-1], second[1:], np.diff(knots)[:, None]
    ends = low.T @ (width * low) + high.T @ (width * high)
    across = low.T @ (width * high)
    form: Float64 = (ends + (across + across.T) / 2) / 3
    return form


def _left_out(
    design: Float64, theta: Float64, mass: Float64, hits: Float64, targets: Float64, penalty: Float64
) -> float:
    """Return the mean log-loss of each row under the fit without it, by one Newton step.

    Rows of a group are the same point: its hits and its misses each leave out one row of their kind.
    """
    eta = design @ theta
    q = expit(eta)
    curvature = q * (1 - q)
    hessian = (design * (mass * curvature)[:, None]).T @ design + 2 * mass.sum() * penalty
    size = np.abs(np.diag(hessian)).max()
    inverse = np.linalg.inv(hessian + 1e-10 * size * np.eye(len(hessian)))
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    push = leverage / np.maximum(1 - curvature * leverage, 1e-6)
    missed = np.logaddexp(0, eta + push * (q - targets[0]))
    right = np.logaddexp(0, -(eta + push * (q - targets[1])))
    return float(((mass - hits) * missed + hits * right).sum() / mass.sum())
