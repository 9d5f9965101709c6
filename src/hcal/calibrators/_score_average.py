"""BIC scores, the elbow rule and the averaging weights that bbq and enir share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64

_ELBOW = 0.001  # the drop, in units of the variance of all scores, below which the sorted scores are flat
_LOG_FLOOR = -100.0  # a certain but wrong bin costs 100 nats a row, not infinity


def binary_cross_entropy(values: Float64, positives: Float64, negatives: Float64) -> Float64:
    """Return −[positives·log v + negatives·log(1 − v)] of each bin, each log at least −100.

    >>> binary_cross_entropy(np.array([0.0, 0.5]), np.array([1.0, 1.0]), np.array([1.0, 0.0])).round(4)
    array([100.    ,   0.6931])
    """
    with np.errstate(divide="ignore"):
        log_hit = np.maximum(np.log(values), _LOG_FLOOR)
        log_miss = np.maximum(np.log1p(-values), _LOG_FLOOR)
    return -(positives * log_hit + negatives * log_miss)


def bic_scores(cross_entropy: Float64, n_parameters: NDArray[Any], n_rows: int) -> Float64:
    """Return exp((min BIC − BIC)/2) of each model, BIC = 2·cross-entropy + parameters·ln N.

    >>> bic_scores(np.array([1.0, 1.0]), np.array([1, 3]), 10).round(3)
    array([1. , 0.1])
    """
    bic = 2 * cross_entropy + n_parameters * np.log(n_rows)
    scores: Float64 = np.exp((bic.min() - bic) / 2)
    return scores


def elbow_weights(scores: Float64) -> Float64:
    """Return averaging weights: the scores before the elbow of their sorted curve, summing to 1; else 0.

    Sorted descending, first past equal scores, then on while a score drops by more than 0.001 variances of
    all scores: models up to that one are kept.

    >>> elbow_weights(np.array([0.5, 1.0, 0.0, 0.0]))
    array([0.33333333, 0.66666667, 0.        , 0.        ])
    """
    order = np.argsort(-scores, kind="stable")
    drop = -np.diff(scores[order])
    k = 0
    while k < len(drop) and drop[k] == 0:
        k += 1
    threshold = _ELBOW * float(np.var(scores))
    while k < len(drop) and drop[k] > threshold:
        k += 1
    weights = np.zeros(len(scores))
    weights[order[: k + 1]] = scores[order[: k + 1]]
    weights /= weights.sum()
    return weights
