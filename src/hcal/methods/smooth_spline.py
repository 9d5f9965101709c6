"""A smoothing spline of the log-odds, one against the rest."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit

from hcal import xp
from hcal.maps.base import array, map_type
from hcal.methods._curves import Points, check_curves, fit_curves, pool_equal, read_curves
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
from hcal.numerics import Float64, run_starts
from hcal.rows import Rows
from hcal.solvers.regression import fit_logistic
from hcal.xp import Array

#: The fit pools neighbouring rows into at most this many groups, which is finer than the curve can resolve.
_GROUPS = 512
#: The spline is stored as a piecewise linear function with this many segments from one knot to the next.
_STEPS = 8
#: Penalties tried, in units of (range of the log-odds)³ on the mean log-loss.
_PENALTIES = 10.0 ** np.arange(-8.0, -1.0)
#: The least distance of knots; a smaller one could give an infinite slope.
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

    λ is chosen by the approximate leave-one-out log-loss, which takes one Newton step for each row and needs neither
    folds nor random numbers. If the spline falls somewhere, the nearest increasing curve is used instead, so no ranking
    is reversed. A class without calibration rows keeps its log-odds. A weight counts rows: with a weight of 7,
    leaving out one of seven copies of a row changes little, and the curve bends more.

    Lucena: Spline-based probability calibration, arXiv 1809.07751, has the idea, with folds and a ridge; the
    penalty on curvature is Green, Silverman: Nonparametric regression and generalized linear models, 1994.

    Parameters
    ----------
    knots : int
        The most knots, which are quantiles of the log-odds.

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
        odds = np.clip(xp.rounded(log_odds(rows.x)), -1e6, 1e6)
        labels = event_labels(rows.labels, rows.n_classes)
        fit_one = partial(_fit_spline, self.knots)
        curves = fit_curves(events(odds), labels, rows.weight, fit_one)
        return Fitted(OddsCurves(**curves))


class _Groups(NamedTuple):
    """Groups of neighbouring rows, each as one point of the curve."""

    x: Float64  # (G,) mean log-odds
    mass: Float64  # (G,)
    hits: Float64  # (G,)
    targets: Float64  # (2,) what stands for a miss and for a hit


def _fit_spline(n_knots: int, odds: Float64, hit: Float64, weight: Float64 | None) -> Points:
    """Return the points of the fitted curve."""
    groups = _grouped(*pool_equal(odds, hit, weight))
    miss_target, hit_target = groups.targets
    target = miss_target + (hit_target - miss_target) * groups.hits / groups.mass

    lines = np.stack([np.ones_like(groups.x), groups.x], axis=1)
    intercept, slope = increasing_logistic(lines, target, groups.mass).theta
    quantiles = np.linspace(0, 1, n_knots)
    knots = _apart(np.quantile(groups.x, quantiles, method="inverted_cdf"))
    line = intercept + slope * knots
    if len(knots) < 4:
        return knots, line
    values = _best_spline(groups, target, knots, line)
    return _increasing(groups, knots, values, slope)


def _best_spline(groups: _Groups, target: Float64, knots: Float64, start: Float64) -> Float64:
    """Return the values at the knots of the spline with the least left-out loss."""
    # Each column is the spline that is 1 at one knot and 0 at the others.
    design = _natural(knots, np.eye(len(knots)), groups.x)
    bending = _bending(knots) * (knots[-1] - knots[0]) ** 3
    total = groups.mass.sum()
    least_loss = np.inf
    best = start
    values = start
    for penalty in _PENALTIES[::-1]:  # from stiff to flexible; each fit starts at the one before
        values = fit_logistic(
            design, target, groups.mass, penalty=total * penalty * bending, start=values
        ).theta
        loss = _left_out_loss(groups, design, values, penalty * bending)
        if loss < least_loss:
            least_loss = loss
            best = values
    return best


def _increasing(groups: _Groups, knots: Float64, values: Float64, slope: float) -> Points:
    """Return the spline on a fine grid or, if it falls somewhere, the nearest increasing curve.

    That curve gets a thousandth of the affine slope in addition, so that different scores stay different.
    """
    steps = np.arange(_STEPS * (len(knots) - 1) + 1) / _STEPS
    fine = np.interp(steps, np.arange(len(knots)), knots)
    curve = _natural(knots, values, fine)
    falls = np.diff(curve) <= 0
    if not falls.any():
        return fine, curve

    mass_of_cell, _ = np.histogram(groups.x, np.append(fine, np.inf), weights=groups.mass)
    density = mass_of_cell + 1e-3 * groups.mass.sum() / len(fine)
    monotone = isotonic_regression(curve, weights=density).x
    return fine, monotone + 1e-3 * slope * (fine - fine.mean())


def _apart(knots: Float64) -> Float64:
    """Leave out knots that are closer than a ten-thousandth of the range to the one before."""
    gap = max((knots[-1] - knots[0]) * 1e-4, _CLOSEST)
    kept = [knots[0]]
    for knot in knots[1:]:
        if knot - kept[-1] > gap:
            kept.append(knot)
    return np.array(kept)


def _grouped(x: Float64, mass: Float64, hits: Float64) -> _Groups:
    """Pool neighbours into groups of about equal mass if there are many points."""
    if len(x) > _GROUPS:
        before = np.concatenate([[0.0], np.cumsum(mass)[:-1]]) / mass.sum()
        group = (before * _GROUPS * (1 + 1e-12)).astype(np.int64)
        first = run_starts(group)
        total = np.add.reduceat(mass, first)
        x = np.add.reduceat(x * mass, first) / total
        mass = total
        hits = np.add.reduceat(hits, first)

    all_hits = hits.sum()
    all_misses = mass.sum() - all_hits
    targets = platt_targets(np.array([0.0, 1.0]), np.array([all_misses, all_hits]))
    return _Groups(x, mass, hits, targets)


def _natural(knots: Float64, values: Float64, x: Float64, derivative: int = 0) -> Float64:
    """Return natural cubic splines through values (G, ...) at knots (G,), evaluated at x; linear outside."""
    from scipy.interpolate import CubicSpline

    spline = CubicSpline(knots, values, bc_type="natural")
    inside = np.clip(x, knots[0], knots[-1])
    beyond = (x - inside).reshape((-1,) + (1,) * (values.ndim - 1))
    return np.asarray(spline(inside, derivative) + beyond * spline(inside, derivative + 1))


def _bending(knots: Float64) -> Float64:
    """Return the matrix of ∫s″² as a quadratic form of the values at the knots: s″ is linear between them."""
    second = _natural(knots, np.eye(len(knots)), knots, 2)
    low = second[:-1]
    high = second[1:]
    width = np.diff(knots)[:, None]
    ends = low.T @ (width * low) + high.T @ (width * high)
    across = low.T @ (width * high)
    return np.asarray((ends + (across + across.T) / 2) / 3)


def _left_out_loss(groups: _Groups, design: Float64, theta: Float64, penalty: Float64) -> float:
    """Return the mean log-loss of each row under the fit without it, by one Newton step.

    The rows of a group count as one point. For its hits one hit is left out, for its misses one miss.
    """
    total = groups.mass.sum()
    odds = design @ theta
    q = expit(odds)
    curvature = q * (1 - q)
    gram = (design * (groups.mass * curvature)[:, None]).T @ design
    hessian = gram + 2 * total * penalty

    size = np.abs(np.diag(hessian)).max()
    inverse = np.linalg.inv(hessian + 1e-10 * size * np.eye(len(hessian)))
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    push = leverage / np.maximum(1 - curvature * leverage, 1e-6)

    miss_target, hit_target = groups.targets
    loss_of_miss = np.logaddexp(0, odds + push * (q - miss_target))
    loss_of_hit = np.logaddexp(0, -(odds + push * (q - hit_target)))
    losses = (groups.mass - groups.hits) * loss_of_miss + groups.hits * loss_of_hit
    return float(losses.sum() / total)
