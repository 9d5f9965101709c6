"""Proper scores as objectives of a fit, in numpy, with analytic gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.objective.protocol import Objective
from hcal.runtime.gradients import Gradient, OneEntry
from hcal.numerics import Float64, IntArray


def _nll(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
    return -float(weight @ log_probs[np.arange(len(y)), y]), OneEntry(y, -weight)


def _brier(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
    rows = np.arange(len(y))
    probs = np.exp(log_probs)
    error = probs.copy()
    error[rows, y] -= 1
    value = float(weight @ np.einsum("nk,nk->n", error, error))
    return value, 2 * weight[:, None] * error * probs


def log_loss() -> Objective:
    """Return the mean negative log-likelihood.

    Examples
    --------
    >>> value, grad = log_loss().value_and_grad(np.log([[0.25, 0.75]]), np.array([1]), np.array([1.0]))
    >>> round(value, 4), grad.dense(2)
    (0.2877, array([[ 0., -1.]]))
    """
    return Objective("nll", _nll, uses_curvature=True, torch_loss=lambda: _engine("torch_nll"))


def brier_loss() -> Objective:
    """Return the Brier score: the mean over rows of the squared error summed over classes.

    Examples
    --------
    >>> value, grad = brier_loss().value_and_grad(np.log([[0.25, 0.75]]), np.array([1]), np.array([1.0]))
    >>> round(value, 4)
    0.125
    """
    return Objective("brier", _brier, torch_loss=lambda: _engine("torch_brier"))


def _engine(name: str) -> Any:
    from hcal.objective import torch_loss

    return getattr(torch_loss, name)
