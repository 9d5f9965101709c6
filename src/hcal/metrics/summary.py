"""The handful of scores that every fit records before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.sample import Sample
from hcal.metrics.scores import accuracy, brier, mean_confidence, nll
from hcal.metrics.top_label import ece_ew
from hcal.numerics import IntArray

Scores = dict[str, float]


def score_probs(probs: Any, y: IntArray, sample_weight: NDArray[np.float64] | None = None) -> Scores:
    """Return NLL, Brier, accuracy, ECE and mean confidence of probabilities; probs (N, K), y (N,).

    >>> score_probs(np.array([[0.5, 0.5]]), np.array([0]))["accuracy"]
    1.0
    """
    return score_sample(Sample(probs, y, sample_weight))


def score_sample(s: Sample) -> Scores:
    """Return the same of a sample."""
    metrics = {"nll": nll, "brier": brier, "accuracy": accuracy, "ece_ew": ece_ew}
    return {name: metric(s) for name, metric in metrics.items()} | {"mean_confidence": mean_confidence(s)}
