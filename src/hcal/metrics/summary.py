"""The handful of scores that every fit records before and after."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.scores import accuracy, brier, nll
from hcal.metrics.top_label import ece_ew
from hcal.runtime.numerics import FloatArray, IntArray

Scores = dict[str, float]


def score_probs(probs: FloatArray, y: IntArray, sample_weight: NDArray[np.float64] | None = None) -> Scores:
    """Return NLL, Brier, accuracy, ECE and mean confidence of probabilities; probs (N, K), y (N,).

    Examples
    --------
    >>> score_probs(np.array([[0.5, 0.5]]), np.array([0]))["accuracy"]
    1.0
    """
    return {
        "nll": nll(probs, y, sample_weight=sample_weight),
        "brier": brier(probs, y, sample_weight=sample_weight),
        "accuracy": accuracy(probs, y, sample_weight=sample_weight),
        "ece_ew": ece_ew(probs, y, sample_weight=sample_weight),
        "mean_confidence": float(np.average(probs.max(axis=1), weights=sample_weight)),
    }
