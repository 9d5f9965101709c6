"""Proper scores as objectives of a fit, in numpy, with analytic gradients.

An *objective* takes log-probabilities (N, K), labels (N,) and weights (N,) that sum to 1 over all rows, and
returns its value and its gradient in the log-probabilities. It knows nothing of maps: any objective can be
fitted with any map of :mod:`hcal.maps.scaling` by :func:`hcal.solvers.fit_map.fit_map`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcal.runtime.numerics import IntArray

Float64 = NDArray[np.float64]


class OneEntry(NamedTuple):
    """A gradient (N, K) with one non-zero a row: ``value[i]`` in column ``column[i]``.

    Most objectives look at one probability of each row (the label's, or the largest); saying so spares the
    pullback of a softmax half of its passes over the data.
    """

    column: IntArray
    value: Float64

    def dense(self, n_classes: int) -> Float64:
        """Return the full array (N, K).

        Examples
        --------
        >>> OneEntry(np.array([1]), np.array([2.0])).dense(3)
        array([[0., 2., 0.]])
        """
        out = np.zeros((len(self.column), n_classes))
        out[np.arange(len(out)), self.column] = self.value
        return out


Gradient = Float64 | OneEntry
ValueAndGrad = Callable[[Float64, IntArray, Float64], tuple[float, Gradient]]


@dataclass(frozen=True)
class Objective:
    """What a fit minimises.

    Attributes
    ----------
    name : str
    value_and_grad : callable
        (log-probabilities (N, K), labels (N,), weights (N,)) ↦ (value, gradient (N, K) or :class:`OneEntry`).
    by_rows : bool
        The value is a sum over rows, so it may be computed block by block.
    """

    name: str
    value_and_grad: ValueAndGrad
    by_rows: bool = True


def _nll(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
    return -float(weight @ log_probs[np.arange(len(y)), y]), OneEntry(y, -weight)


def _brier(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
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
    >>> round(value, 4), grad.dense(2)
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
