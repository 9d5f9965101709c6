"""Scaling-binning (Kumar, Liang & Ma, NeurIPS 2019), marginal form."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hcal import xp
from hcal.maps.base import array, map_type
from hcal.methods._curves import Curve, Curves, columns, default_floor, fit_curves, read_curves
from hcal.methods._log_odds import expit
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import Count, NotNegative, parameters
from hcal.numerics import Float64, softmax
from hcal.rows import Rows
from hcal.solvers.regression import fit_logistic
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
        x = rows.x
        y = rows.labels
        n, k = x.shape
        bins = max(1, min(10 * k, n // 5)) if self.bins is None else self.bins
        probs = xp.rounded(softmax(x))
        lines, converged = np.tile([[1.0], [0.0]], k), True  # a class without rows keeps its p_k
        ridge = np.array([_RIDGE / 2, 0.0])
        for c, p in columns(probs):
            hit = (y == c).astype(np.float64)
            if hit.any():
                design = np.stack([_clipped_odds(p), np.ones(n)], axis=1)
                solved = fit_logistic(design, hit, ridge=ridge, start=np.array([1.0, 0.0]))
                lines[:, c] = solved.theta
                converged &= solved.converged
        curves = fit_curves(
            _platt(probs, *lines), y, None, lambda score, *_: _discretise(score, bins)
        )
        floor = default_floor(self.floor, n, k)
        found = PlattCurves(shape="step", slope=lines[0], intercept=lines[1], floor=floor, **curves)
        return Fitted(found, converged, details={"bins": bins})


def _clipped_odds(p: Array) -> Array:
    xp = namespace(p)
    clipped = xp.clip(p, _CLIP, 1 - _CLIP)
    return xp.log(clipped / (1 - clipped))


def _platt(probs: Array, slope: Array, intercept: Array) -> Array:
    return expit(_clipped_odds(probs) * slope + intercept)


def _discretise(score: Float64, bins: int) -> Curve:
    """Return equal-mass bins (lo, hi] of the scores; the value of a bin is its mean score."""
    parts = np.array_split(np.sort(score), min(bins, len(score)))
    upper = np.unique([*((a[-1] + b[0]) / 2 for a, b in pairwise(parts)), 1.0])
    which = np.searchsorted(upper, score)
    mass, total = np.bincount(which), np.bincount(which, weights=score)
    filled = np.flatnonzero(mass)
    return upper[filled], total[filled] / mass[filled]
