"""Spiegelhalter's test: is the Brier score what the predictions themselves expect it to be?"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtr

from hcal.metrics.documented import documented_metric
from hcal.metrics.sample import Sample, Vector, as_sample, drawn_hits

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
    return abs(spiegelhalter_z(s))


def spiegelhalter_z(s: Sample) -> float:
    """Return Z with its sign: positive where the squared error is larger than the predictions expect.

    Examples
    --------
    >>> round(spiegelhalter_z(Sample([[0.1, 0.9]] * 40, [1] * 40)), 3)
    -2.108
    """
    return float(_z(s.data.conf, s.data.hit[None], s.w)[0])


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
    return np.concatenate([np.abs(_z(conf, hit, s.w)) for hit in drawn_hits(conf, draws, rng)])


def _z(conf: Vector, hit: Any, weight: Vector) -> Vector:
    slope, clipped = 1 - 2 * conf, np.minimum(conf, 1 - EPSILON)
    spread = np.sqrt(weight @ (slope**2 * clipped * (1 - clipped)))
    if spread == 0:  # every confidence is exactly 1/2: the squared error is 1/4 whatever happens
        return np.zeros(len(hit))
    return np.asarray((hit - conf) @ (weight * slope) / spread)
