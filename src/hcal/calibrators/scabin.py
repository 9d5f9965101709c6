"""Scaling-binning (Kumar, Liang & Ma, NeurIPS 2019), marginal form."""

from __future__ import annotations

import numpy as np

from hcal import xp
from hcal.calibrators._curves import Curve, Curves, columns, default_floor, fit_curves, read_curves
from hcal.calibrators._log_odds import expit, logistic
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.parameters import parameters, whole_number
from hcal.maps.base import array, map_type
from hcal.numerics import Float64, IntArray, prefix_sums, softmax
from hcal.solvers.optimise import Solution
from hcal.xp import Array, namespace

_CLIP = 1e-12
# The L2 penalty of C = 1e10: no shrinkage in effect, but a finite optimum where a class is separable.
_RIDGE = 1e-10
# A class without rows keeps its p_k.
_IDENTITY = Solution(np.array([1.0, 0.0]), 0.0, True, "", 0)


@map_type
class PlattCurves(Curves):
    """Curves of what Platt scaling makes of each class's probability."""

    slope: Array = array("of each class's Platt curve", "K")
    intercept: Array = array("of each class's Platt curve", "K")

    def raw(self, probs: Array) -> Array:
        """Return the curves at the probabilities, before rows are divided by their sum."""
        scores = _platt(probs, self.slope, self.intercept)
        return read_curves(scores, self.offsets, self.knots, self.values, self.shape)


@parameters
class ScalingBinning(Calibrator):
    """Per class, a Platt curve discretised: each equal-mass bin returns the mean of the curve inside it.

    Kumar, Liang, Ma: Verified uncertainty calibration, NeurIPS 2019.

    Parameters
    ----------
    bins : int, optional
        10·K unless given, but at least 5 rows in each; 15 as published. A class has only N/K positives: with
        few bins they share one, classes tie, and accuracy falls.
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

    bins: int | None = None
    floor: float | None = None

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        n, k = x.shape
        bins = max(1, min(10 * k, n // 5)) if self.bins is None else whole_number("bins", self.bins, 1)
        probs = xp.rounded(softmax(x))
        present = np.bincount(y, minlength=k) > 0
        fits = [
            _fit_platt(_log_odds(p), (y == c).astype(np.float64)) if present[c] else _IDENTITY
            for c, p in columns(probs)
        ]
        slope, intercept = np.stack([fit.theta for fit in fits], axis=1)
        curves = fit_curves(
            _platt(probs, slope, intercept), y, weight, lambda score, _hit, _weight: _discretise(score, bins)
        )
        floor = default_floor(self.floor, n, k)
        found = PlattCurves(shape="step", slope=slope, intercept=intercept, floor=floor, **curves)
        failed = [c for c, fit in enumerate(fits) if not fit.converged]
        message = ""
        if failed:
            message = f"the Platt fit of {len(failed)} classes did not converge, first class {failed[0]}"
        return Fitted(found, not failed, message, {"bins": bins})


def _log_odds(p: Array) -> Array:
    xp = namespace(p)
    clipped = xp.clip(p, _CLIP, 1 - _CLIP)
    return xp.log(clipped / (1 - clipped))


def _platt(probs: Array, slope: Array, intercept: Array) -> Array:
    return expit(_log_odds(probs) * slope + intercept)


def _fit_platt(x: Float64, hit: Float64) -> Solution:
    """Minimise the mean logistic loss of slope·x + intercept."""
    design = np.stack([x, np.ones_like(x)], axis=1)
    ridge = np.diag([_RIDGE / len(x) / 2, 0.0])
    return logistic(design, hit, np.ones_like(x), penalty=ridge, start=np.array([1.0, 0.0]))


def _discretise(score: Float64, bins: int) -> Curve:
    """Equal-mass bins (lo, hi] of the scores; the value of a bin is the mean score in it."""
    score = np.sort(score)
    parts = min(bins, len(score))
    sizes = np.full(parts, len(score) // parts)
    sizes[: len(score) % parts] += 1
    starts = np.cumsum(sizes)[:-1]
    upper = np.unique(np.append((score[starts - 1] + score[starts]) / 2, 1.0))
    stops = np.searchsorted(score, upper, side="right")
    stops[-1] = len(score)
    mass = np.diff(stops, prepend=0)
    filled = mass > 0
    total = np.diff(prefix_sums(score)[stops], prepend=0.0)
    return upper[filled], total[filled] / mass[filled]
