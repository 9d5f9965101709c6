"""Scores: NLL, Brier, accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.numerics import FloatArray, IntArray


def _checked(
    probs: Any, y: Any, sample_weight: Any
) -> tuple[FloatArray, IntArray, NDArray[np.float64] | None]:
    p, _ = inputs.check_probs(probs)
    return p, inputs.check_labels(y, *p.shape), inputs.check_weight(sample_weight, len(p))


def nll(probs: Any, y: Any, *, sample_weight: Any = None) -> float:
    """Return the mean negative log-likelihood.

    Examples
    --------
    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    p, labels, weight = _checked(probs, y, sample_weight)
    chosen = p[np.arange(len(p)), labels].astype(np.float64)
    return float(np.average(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)), weights=weight))


def brier(probs: Any, y: Any, *, sample_weight: Any = None) -> float:
    """Return the Brier score: the mean over rows of the squared error summed over classes.

    Examples
    --------
    >>> brier([[0.5, 0.5]], [0])
    0.5
    """
    p, labels, weight = _checked(probs, y, sample_weight)
    chosen = p[np.arange(len(p)), labels].astype(np.float64)
    squares = np.einsum("nk,nk->n", p, p, dtype=np.float64)
    return float(np.average(squares - 2 * chosen + 1, weights=weight))


def accuracy(probs: Any, y: Any, *, sample_weight: Any = None) -> float:
    """Return the accuracy of the argmax (the first one, on ties).

    Examples
    --------
    >>> accuracy([[0.3, 0.7]], [1])
    1.0
    """
    p, labels, weight = _checked(probs, y, sample_weight)
    return float(np.average(p.argmax(axis=1) == labels, weights=weight))
