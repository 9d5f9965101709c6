"""Spiegelhalter's test: is the Brier score what the predictions themselves expect it to be?"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr

from hcal.metrics.documented import documented_metric
from hcal.metrics.sample import Sample, Vector, as_sample, as_value, drawn_hits

#: In the standard deviation, confidences are kept this far from 1: one wrong certainty would make Z infinite.
EPSILON = float(np.finfo(np.float32).eps)


@documented_metric(weights="counts")
def spiegelhalter(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return |Z| of Spiegelhalter's test on the top label: about 0.8 by chance, above 1.96 in 5 % of cases.

    Spiegelhalter: Probabilistic prediction in patient management and clinical trials, Statistics in Medicine
    1986. Z = Σ (hit − conf)(1 − 2·conf) / √Σ (1 − 2·conf)²·conf·(1 − conf) is the squared error less what
    calibrated predictions expect of it, in standard deviations. It grows with N: compare p-values, not sizes.

    Examples
    --------
    >>> round(spiegelhalter([[0.1, 0.9]] * 40, [1] * 20 + [0] * 20), 3)
    8.433
    """
    s = as_sample(probs, y, sample_weight)
    s.need_repetitions("spiegelhalter")
    return as_value(np.abs(_ranked_z(s)))


def spiegelhalter_p(probs: Any, y: Any = None) -> float:
    """Return the two-sided p-value by the normal law; ``calibration_test`` has one by resampled labels.

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)

    Examples
    --------
    >>> round(spiegelhalter_p([[0.1, 0.9]] * 40, [1] * 36 + [0] * 4), 3)
    1.0
    """
    return float(2 * ndtr(-spiegelhalter(probs, y)))


def spiegelhalter_null(s: Sample, draws: int, rng: np.random.Generator) -> Vector:
    """Return |Z| of hits drawn with the confidences as their probabilities, shape (draws,)."""
    conf = s.data.conf
    slope, variance = _slope(conf)
    gaps = ((hit - conf) @ (s.w * slope) for hit in drawn_hits(conf, draws, rng))
    return np.concatenate([np.abs(_ratio(gap, s.w @ variance)) for gap in gaps])


def _ranked_z(s: Sample) -> Any:
    """Return Z with its sign: positive where the squared error is larger than the predictions expect."""
    r, (slope, variance) = s.ranked, _slope(s.data.conf_sorted)
    return _ratio(r.dot_hits(slope) - r.dot(s.data.conf_sorted * slope), r.dot(variance))


def _slope(conf: Vector) -> tuple[Vector, Vector]:
    """Return how the squared error changes with a hit, and the variance of that change; shape (N,) each."""
    slope, clipped = 1 - 2 * conf, np.minimum(conf, 1 - EPSILON)
    return slope, slope**2 * clipped * (1 - clipped)


def _ratio(excess: Any, variance: Any) -> Any:
    # Every confidence exactly 1/2: the squared error is 1/4 whatever happens.
    return np.where(variance > 0, excess, 0.0) / np.sqrt(np.where(variance > 0, variance, 1.0))
