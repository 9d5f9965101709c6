"""Scaling-binning (Kumar, Liang & Ma, NeurIPS 2019), marginal form."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from hcal import xp
from hcal.maps.base import array, map_type
from hcal.methods._curves import Curves, Points, columns, default_floor, fit_curves, read_curves
from hcal.methods._log_odds import expit
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import Count, NotNegative, parameters
from hcal.numerics import Float64, softmax
from hcal.rows import Rows
from hcal.solvers.regression import LogisticFit, fit_logistic
from hcal.xp import Array, namespace

_CLIP = 1e-12
# The L2 penalty of C = 1e10: practically no shrinkage, but a finite optimum if a class is separable.
_RIDGE = 1e-10


@map_type
class PlattCurves(Curves):
    """Curves of the Platt-scaled probability of each class."""

    slope: Array = array("of each class's Platt curve", "K")
    intercept: Array = array("of each class's Platt curve", "K")

    def raw(self, probs: Array) -> Array:
        """Return the curves at the probabilities, before rows are divided by their sum."""
        scores = _platt(probs, self.slope, self.intercept)
        return read_curves(scores, self.offsets, self.knots, self.values, self.shape)


@parameters
class ScalingBinning(Calibrator):
    """For each class, a Platt curve made discrete: each equal-mass bin gets the mean of the curve inside it.

    Kumar, Liang, Ma: Verified uncertainty calibration, NeurIPS 2019.

    Parameters
    ----------
    bins : int, optional
        10·K unless given, but at least 5 rows in each; 15 as published. A class has only about N/K positive rows. With
        few bins these share one bin, classes tie, and accuracy falls.
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> probs = [[0.2, 0.8], [0.8, 0.2]] * 2 + [[0.2, 0.8]]
    >>> cal = ScalingBinning(bins=5, floor=0, input="probs").fit(probs, [1, 0, 0, 1, 1])
    >>> cal.predict_proba([[0.1, 0.9]]).round(4)
    array([[0.3333, 0.6667]])
    """

    name = "scabin"
    title = "Scaling-binning"
    map_types = (PlattCurves,)

    bins: Count | None = None
    floor: NotNegative | None = None

    def _fit(self, rows: Rows) -> Fitted:
        n = len(rows)
        k = rows.n_classes
        bins = max(1, min(10 * k, n // 5)) if self.bins is None else self.bins
        probs = xp.rounded(softmax(rows.x))

        slopes = np.ones(k)  # a class without rows keeps its p_k
        intercepts = np.zeros(k)
        converged = True
        for c, p in columns(probs):
            hit = (rows.labels == c).astype(np.float64)
            if hit.any():
                solved = _fit_platt(p, hit)
                slopes[c], intercepts[c] = solved.theta
                converged &= solved.converged

        scores = _platt(probs, slopes, intercepts)
        steps = fit_curves(scores, rows.labels, None, partial(_discretise, bins))
        floor = default_floor(self.floor, n, k)
        curves = PlattCurves(shape="step", slope=slopes, intercept=intercepts, floor=floor, **steps)
        return Fitted(curves, converged, details={"bins": bins})


def _fit_platt(p: Float64, hit: Float64) -> LogisticFit:
    design = np.stack([_clipped_odds(p), np.ones(len(p))], axis=1)
    ridge = np.array([_RIDGE / 2, 0.0])
    return fit_logistic(design, hit, ridge=ridge, start=np.array([1.0, 0.0]))


def _clipped_odds(p: Array) -> Array:
    xp = namespace(p)
    clipped = xp.clip(p, _CLIP, 1 - _CLIP)
    return xp.log(clipped / (1 - clipped))


def _platt(probs: Array, slope: Array, intercept: Array) -> Array:
    return expit(_clipped_odds(probs) * slope + intercept)


def _discretise(bins: int, score: Float64, _hit: Float64, _weight: Float64 | None) -> Points:
    """Return equal-mass bins (lo, hi] of the scores; the value of a bin is its mean score."""
    parts = np.array_split(np.sort(score), min(bins, len(score)))
    cuts = [(lower[-1] + upper[0]) / 2 for lower, upper in pairwise(parts)]
    ends = np.unique([*cuts, 1.0])

    bin_of_row = np.searchsorted(ends, score)
    mass = np.bincount(bin_of_row)
    total = np.bincount(bin_of_row, weights=score)
    filled = np.flatnonzero(mass)
    return ends[filled], total[filled] / mass[filled]
