"""Scaling-binning (Kumar, Liang & Ma, NeurIPS 2019), marginal form."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from hcal.calibrators._logistic import logistic
from hcal.calibrators._one_vs_rest import (
    CURVES,
    ROUNDED,
    Curve,
    apply_curves,
    columns,
    default_floor,
    fit_curves,
    probabilities,
    step,
)
from hcal.calibrators._shared import whole_number
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums
from hcal.solvers.optimise import Solution

_CLIP = 1e-12
# The L2 penalty of C = 1e10: no shrinkage in effect, but a finite optimum where a class is separable.
_RIDGE = 1e-10
# A class without rows keeps its p_k.
_IDENTITY = Solution(np.array([1.0, 0.0]), 0.0, True, "", 0)


@parameters
class ScalingBinning(Calibrator):
    """Per class, a Platt curve discretised: each equal-mass bin returns the mean of the curve inside it.

    Kumar, Liang, Ma: Verified uncertainty calibration, NeurIPS 2019.

    Parameters
    ----------
    bins : int, optional
        10·K unless given, but at least 5 rows in each; 15 as published. A class has only N/K positives: with
        few bins they share one, classes tie, and accuracy falls (decision 031).
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
    state_specs = (CURVES + StateSpec((Field("platt", "slope and intercept of each class", ("K", 2)),)),)

    bins: int | None = None
    floor: float | None = None
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        n, k = logits.shape
        bins = max(1, min(10 * k, n // 5)) if self.bins is None else whole_number("bins", self.bins, 1)
        probs = probabilities(logits)
        present = np.bincount(y, minlength=k) > 0
        fits = [
            _fit_platt(_log_odds(p), (y == c).astype(np.float64)) if present[c] else _IDENTITY
            for c, p in columns(probs)
        ]
        platt = np.stack([fit.theta for fit in fits])

        def fit_one(score: Float64, _hit: Float64, _weight: Float64 | None) -> Curve:
            return _discretise(score, bins)

        state = fit_curves(_platt(probs, platt), y, sample_weight, fit_one)
        state |= {"platt": platt, "floor": default_floor(self.floor, *logits.shape)} | ROUNDED
        failed = [c for c, fit in enumerate(fits) if not fit.converged]
        message = ""
        if failed:
            message = f"the Platt fit of {len(failed)} classes did not converge, first class {failed[0]}"
        return Fitted(state, not failed, message, {"bins": bins})

    def _predict(self, logits: FloatArray) -> FloatArray:
        probs = probabilities(logits, self.state_)
        return apply_curves(self.state_, _platt(probs, self.state_["platt"]), step, uncalibrated=probs)


def _platt(probs: FloatArray, platt: Float64) -> Float64:
    score = _log_odds(probs)
    score *= platt[:, 0]
    score += platt[:, 1]
    return expit(score, out=score)


def _log_odds(p: FloatArray) -> Float64:
    odds: Float64 = logit(np.clip(p, _CLIP, 1 - _CLIP))
    return odds


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
