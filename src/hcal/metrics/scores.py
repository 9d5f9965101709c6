"""Scores: NLL, Brier, accuracy. Means over rows, so a weight is simply a weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.metrics.documented import documented_metric
from hcal.metrics.sample import Sample, Vector, as_sample

# A label that was given probability 0 costs -log of this (708.4): finite, so that averages can be compared.
SMALLEST = float(np.finfo(np.float64).tiny)


def nll_rows(s: Sample) -> Vector:
    """Return −log p(label) of every row, shape (N,)."""
    return np.asarray(-np.log(np.maximum(s.data.chosen, SMALLEST)))


def brier_rows(s: Sample) -> Vector:
    """Return Σ_k (p_k − [y = k])² of every row, shape (N,)."""
    return s.data.squares - 2 * s.data.chosen + 1


def hit_rows(s: Sample) -> Vector:
    """Return [prediction = label] of every row, shape (N,)."""
    return s.data.hit


@documented_metric()
def nll(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the mean negative log-likelihood; probability 0 on a label counts 708.4, not infinity.

    Examples
    --------
    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    s = as_sample(probs, y, sample_weight)
    return s.mean(nll_rows(s))


@documented_metric()
def brier(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the Brier score: the mean over rows of the squared error summed over classes.

    Examples
    --------
    >>> brier([[0.5, 0.5]], [0])
    0.5
    """
    s = as_sample(probs, y, sample_weight)
    return s.mean(brier_rows(s))


@documented_metric()
def accuracy(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the accuracy of the argmax (the first one, on ties).

    Examples
    --------
    >>> accuracy([[0.3, 0.7]], [1])
    1.0
    """
    s = as_sample(probs, y, sample_weight)
    return s.mean(s.data.hit)


@documented_metric()
def mean_confidence(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return the mean of the largest probability of every row.

    Examples
    --------
    >>> mean_confidence([[0.3, 0.7]], [1])
    0.7
    """
    s = as_sample(probs, y, sample_weight)
    return s.mean(s.data.conf)


@documented_metric()
def sharpness(probs: Any, y: Any = None, *, sample_weight: Any = None) -> float:
    """Return how far predictions are from uniform: mean of (Σ_k p_k² − 1/K)/(1 − 1/K), in [0, 1].

    0 for a uniform predictor, 1 for one that always puts everything on one class. It does not look at the
    labels: read it beside a calibration error, which a predictor that says nothing can bring to 0.

    Examples
    --------
    >>> sharpness([[0.5, 0.5], [0.0, 1.0]], [1, 1])
    0.5
    """
    s = as_sample(probs, y, sample_weight)
    return (s.mean(s.data.squares) - 1 / s.k) / (1 - 1 / s.k)
