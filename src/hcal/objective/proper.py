"""Proper scores as objectives of a fit, in numpy, with analytic gradients.

An *objective* takes log-probabilities (N, K), labels (N,) and weights (N,) that sum to 1 over all rows, and
returns its value and its gradient in the log-probabilities. It knows nothing of maps: any objective can be
fitted with any map of :mod:`hcal.maps.scaling` by :func:`hcal.solvers.fit_map.fit_map`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import IntArray

Float64 = NDArray[np.float64]
ValueAndGrad = Callable[[Float64, IntArray, Float64], tuple[float, Float64]]


@dataclass(frozen=True)
class Objective:
    """What a fit minimises.

    Attributes
    ----------
    name : str
    value_and_grad : callable
        (log-probabilities (N, K), labels (N,), weights (N,)) ↦ (value, gradient (N, K)).
    by_rows : bool
        The value is a sum over rows, so it may be computed block by block.
    """

    name: str
    value_and_grad: ValueAndGrad
    by_rows: bool = True


def _nll(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Float64]:
    rows = np.arange(len(y))
    gradient = np.zeros_like(log_probs)
    gradient[rows, y] = -weight
    return -float(weight @ log_probs[rows, y]), gradient


def _brier(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Float64]:
    rows = np.arange(len(y))
    probs = np.exp(log_probs)
    error = probs.copy()
    error[rows, y] -= 1
    value = float(weight @ np.einsum("nk,nk->n", error, error))
    return value, 2 * weight[:, None] * error * probs


def nll() -> Objective:
    """Return the mean negative log-likelihood.

    Returns
    -------
    Objective

    Examples
    --------
    >>> value, grad = nll().value_and_grad(np.log([[0.25, 0.75]]), np.array([1]), np.array([1.0]))
    >>> round(value, 4), grad
    (0.2877, array([[ 0., -1.]]))
    """
    return Objective("nll", _nll)


def brier() -> Objective:
    """Return the Brier score: the mean over rows of the squared error summed over classes.

    Returns
    -------
    Objective

    Examples
    --------
    >>> value, grad = brier().value_and_grad(np.log([[0.25, 0.75]]), np.array([1]), np.array([1.0]))
    >>> round(value, 4)
    0.125
    """
    return Objective("brier", _brier)
