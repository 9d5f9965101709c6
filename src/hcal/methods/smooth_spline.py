"""A smoothing spline of the log-odds, one against the rest.

Nothing here jumps: knots, counts, the smoothness and the correction of a falling curve are continuous functions of the
rows, so scores that change by rounding change the probabilities by rounding.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit, softmax

from hcal.maps.base import array, map_type
from hcal.methods._curves import Points, check_curves, fit_curves, read_curves
from hcal.methods._log_odds import (
    OddsMap,
    event_labels,
    events,
    increasing_logistic,
    log_odds,
    platt_targets,
)
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import TwoOrMore, parameters
from hcal.numerics import Float64
from hcal.rows import Rows
from hcal.solvers.regression import LogisticFit, fit_logistic
from hcal.xp import Array

#: Rows are counted at so many places from one knot to the next, which is finer than the curve can resolve.
_PLACES = 40
#: The spline is stored as a piecewise linear function with this many segments from one knot to the next.
_STEPS = 8
#: Penalties λ that are averaged, from stiff to flexible, in units of (range of the log-odds)³ on the mean log-loss.
_PENALTIES = 10.0 ** np.arange(-2.0, -9.0, -1.0)
#: Knots are pulled by this share to even distances, so that no two meet where many rows have one score.
_EVEN = 1e-3
#: The curve rises everywhere by at least this share of the slope of a straight line, so that no two scores are tied.
_LEAST_RISE = 1e-3
#: Log-odds whose range is below this share of their size, or below any use, are equal up to rounding.
_SAME = 1e-7
_SMALLEST = 1e-90
#: The least distance of knots in a file; a smaller one could give an infinite slope.
_CLOSEST = 1e-100
_LARGE = 1e30


@map_type
class OddsCurves(OddsMap):
    """A piecewise linear function of the log-odds of each event, whose end lines continue."""

    offsets: Array = array(
        "event k owns points offsets[k] to offsets[k+1]",
        "E+1",
        low=0,
        dtype="int64",
        order="not falling",
    )
    knots: Array = array("log-odds, event after event", "P", low=-_LARGE, high=_LARGE)
    values: Array = array("calibrated log-odds there", "P", low=-_LARGE, high=_LARGE)

    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""
        return read_curves(odds, self.offsets, self.knots, self.values, "straight on")

    expansion = 4

    def check(self) -> None:
        """Raise a ValueError if fields contradict each other."""
        check_curves(self.offsets, self.knots)
        near = np.flatnonzero(~(np.diff(self.knots) >= _CLOSEST)) + 1
        if not np.isin(near, self.offsets).all():
            raise ValueError(f"'knots' must rise by at least {_CLOSEST:g} within an event")


@parameters
class SmoothSpline(Calibrator):
    """For each event, logit q = s(logit p), where the natural cubic spline s minimises log-loss + λ∫s″².

    The splines of seven λ are averaged; the weight of each is its likelihood of rows left out of its fit. That takes
    one Newton step for each row, and neither folds nor random numbers. If the average falls somewhere, the nearest
    increasing curve is used instead, so no ranking is reversed. A class without calibration rows keeps its log-odds.
    A weight counts rows: with a weight of 7, leaving out one of seven copies of a row changes little, and the curve
    bends more.

    Lucena: Spline-based probability calibration, arXiv 1809.07751, has the idea, with folds and a ridge; the
    penalty on curvature is Green, Silverman: Nonparametric regression and generalized linear models, 1994.

    Parameters
    ----------
    knots : int
        How many knots the spline has; they are averages of the log-odds around quantiles.

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

    knots: TwoOrMore = 12

    def _fit(self, rows: Rows) -> Fitted:
        # Log-odds beyond ±1e6 carry no more information, and the cube of their range must be finite.
        odds = np.clip(log_odds(rows.x), -1e6, 1e6)
        labels = event_labels(rows.labels, rows.n_classes)
        fit_one = partial(_fit_spline, self.knots)
        return Fitted(OddsCurves(**fit_curves(events(odds), labels, rows.weight, fit_one)))


class _Groups(NamedTuple):
    """Groups of neighbouring rows, each as one point of the curve."""

    x: Float64  # (G,) mean log-odds
    mass: Float64  # (G,)
    hits: Float64  # (G,)
    targets: Float64  # (2,) what stands for a miss and for a hit


def _fit_spline(n_knots: int, odds: Float64, hit: Float64, weight: Float64 | None) -> Points:
    """Return the points of the fitted curve."""
    mass = np.ones(len(odds)) if weight is None else weight
    low, high = float(odds.min()), float(odds.max())
    width = high - low
    if width <= max(_SAME * max(abs(low), abs(high)), _SMALLEST):
        targets = platt_targets(hit, mass)
        rate = np.average(targets, weights=mass)
        return np.array([low]), np.array([logit(rate)])

    unit = (odds - low) / width
    knots = _knots(unit, mass, n_knots)
    counts = _count(unit, mass, hit, knots)
    straight = _columns(counts.x, knots[[0, -1]])
    line = increasing_logistic(straight, counts.target, counts.mass).theta
    theta = _average_spline(knots, counts, line)
    fine, curve = _increasing(knots, theta, counts, least=_LEAST_RISE * line[1])
    return low + width * fine, curve


def _knots(x: Float64, mass: Float64, n_knots: int) -> Float64:
    """Return the least and the greatest of x (N,), and between them averages of the rows around quantiles."""
    order = np.argsort(x, kind="stable")
    before = np.append(0.0, np.cumsum(mass[order]))
    sums = np.append(0.0, np.cumsum((mass * x)[order]))
    even = np.linspace(0.0, 1.0, n_knots)
    edges = (even[1:] + even[:-1]) / 2 * before[-1]
    inner = np.diff(np.interp(edges, before, sums)) / np.diff(edges)
    quantiles = np.concatenate([[x.min()], inner, [x.max()]])
    return np.asarray((1 - _EVEN) * quantiles + _EVEN * even)


class _Counts(NamedTuple):
    """Places on the line, the mass of rows and of hits at each, and Platt's targets of a miss and a hit."""

    x: Float64  # (G,)
    mass: Float64  # (G,)
    hits: Float64  # (G,)
    targets: Float64  # (2,)

    @property
    def target(self) -> Float64:
        """The mean target at each place, (G,)."""
        miss, hit = self.targets
        rate = self.hits / self.mass
        return np.asarray(miss + (hit - miss) * rate)


def _count(x: Float64, mass: Float64, hit: Float64, knots: Float64) -> _Counts:
    """Count every row at the two places beside it, at the nearer one more, so that their mean is the row."""
    places = _between(knots, _PLACES)
    total = _shared(x, mass, places)
    hits = _shared(x, mass * hit, places)
    both = np.array([total.sum() - hits.sum(), hits.sum()])
    used = total > 0
    targets = platt_targets(np.array([0.0, 1.0]), both)
    return _Counts(places[used], total[used], hits[used], targets)


def _between(knots: Float64, steps: int) -> Float64:
    """Return the knots, and evenly between two of them steps − 1 points."""
    places = np.arange(steps * (len(knots) - 1) + 1) / steps
    return np.interp(places, np.arange(len(knots)), knots)


def _shared(x: Float64, mass: Float64, places: Float64) -> Float64:
    """Return the mass of points x (N,) at places (G,), each shared between the two places beside it."""
    last = len(places) - 2
    left = np.clip(np.searchsorted(places, x, side="right") - 1, 0, last)
    share = (x - places[left]) / (places[left + 1] - places[left])
    share = np.clip(share, 0.0, 1.0)
    at_left = np.bincount(left, weights=mass * (1 - share), minlength=last + 2)
    at_right = np.bincount(left + 1, weights=mass * share, minlength=last + 2)
    return np.asarray(at_left + at_right)


def _average_spline(knots: Float64, counts: _Counts, line: Float64) -> Float64:
    """Return the coefficients of the splines, averaged over the penalties."""
    design = _columns(counts.x, knots)
    bending = _bending(knots)
    total = counts.mass.sum()
    theta = np.append(line, np.zeros(len(bending) - len(line)))
    splines = []
    losses = []
    for strength in _PENALTIES:  # each fit starts at the one before
        penalty = total * strength * bending
        fitted = fit_logistic(design, counts.target, counts.mass, penalty=penalty, start=theta)
        theta = fitted.theta
        splines.append(theta)
        losses.append(_left_out_loss(design, fitted, counts))
    return np.asarray(softmax(-np.array(losses)) @ np.array(splines))


def _left_out_loss(design: Float64, fitted: LogisticFit, counts: _Counts) -> float:
    """Return the sum of the log-losses of all rows, of each under the fit without it, by one Newton step.

    The rows of a place count as one point. For its hits one hit is left out, for its misses one miss.
    """
    log_odds = design @ fitted.theta
    probs = expit(log_odds)
    leverage = np.einsum("ij,jk,ik->i", design, fitted.covariance, design)
    push = leverage / np.maximum(1 - probs * (1 - probs) * leverage, 1e-6)

    miss, hit = counts.targets
    missed = np.logaddexp(0, log_odds + push * (probs - miss))
    right = np.logaddexp(0, -(log_odds + push * (probs - hit)))
    return float((counts.mass - counts.hits) @ missed + counts.hits @ right)


def _increasing(knots: Float64, theta: Float64, counts: _Counts, *, least: float) -> Points:
    """Return the spline on a fine grid; where it rises by less than ``least``, the nearest curve that rises so."""
    fine = _between(knots, _STEPS)
    line = least * fine
    density = _shared(counts.x, counts.mass, fine)
    floor = 1e-3 * density.mean()
    excess = _columns(fine, knots) @ theta - line
    rising = isotonic_regression(excess, weights=density + floor).x
    return fine, rising + line


# -- natural cubic splines ----------------------------------------------------------------------------


def _columns(x: Float64, knots: Float64) -> Float64:
    """Return what the coefficients multiply at x (N,): 1, x, and for each inner knot a bend that is spread around it.

    The second derivative of a bend is a triangle from the knot before to the knot after, of area 1. So a
    coefficient is a change of slope, which keeps its meaning where knots are close to each other.
    """
    point = x[:, None]
    low, peak, high = knots[:-2], knots[1:-1], knots[2:]
    rise = peak - low
    fall = high - peak
    centre = (low + peak + high) / 3

    up = np.clip((point - low) / rise, 0.0, 1.0)
    down = np.clip((high - point) / fall, 0.0, 1.0)
    before = rise**2 * up**3 / (3 * (high - low))
    after = point - centre + fall**2 * down**3 / (3 * (high - low))
    bends = np.where(point < peak, before, after)
    return np.concatenate([np.ones_like(point), point, bends], axis=1)


def _bending(knots: Float64) -> Float64:
    """Return the matrix of ∫s″² as a quadratic form of the coefficients."""
    width = np.diff(knots)
    area = (knots[2:] - knots[:-2]) / 2
    same = np.diag(2 * area / 3)
    next_to = np.diag(width[1:-1] / 6, 1)
    triangles = (same + next_to + next_to.T) / np.outer(area, area)
    return np.pad(triangles, (2, 0))
