"""NLL with class weights that follow the class losses (Jung et al., ICML 2023) as an objective, in numpy."""

from __future__ import annotations

import numpy as np

from hcal.objective.protocol import Objective
from hcal.runtime.gradients import Gradient, OneEntry
from hcal.numerics import Float64, IntArray


def class_weights(losses: Float64, alpha: float, beta: float) -> Float64:
    """Return ω = 1 + β/(1 + e^{−u/α}) − β/2 (C,) of class losses, u their standard scores (sd with K − 1).

    ``losses`` (C,) are the mean NLL of each class that has rows.

    >>> class_weights(np.array([1.0, 1.0]), 1.0, 1.5)
    array([1., 1.])
    """
    spread = losses.std(ddof=1) if len(losses) > 1 else 0.0
    if spread == 0:
        return np.ones_like(losses)
    u = (losses - losses.mean()) / spread
    weights: Float64 = 1 + beta / (1 + np.exp(-u / alpha)) - beta / 2
    return weights


def row_weights(row_loss: Float64, y: IntArray, weight: Float64, alpha: float, beta: float) -> Float64:
    """Return the weight of each row in Σ_k ω_k ℓ_k: ω of its class divided by the mass of its class.

    Shapes: row_loss (N,), y (N,), weight (N,) → (N,).

    >>> row_weights(np.array([1.0, 1.0, 1.0]), np.array([0, 0, 1]), np.ones(3), 1.0, 1.5)
    array([0.5, 0.5, 1. ])
    """
    mass = np.bincount(y, weights=weight)
    present = np.flatnonzero(mass > 0)
    losses = np.bincount(y, weights=weight * row_loss)[present] / mass[present]
    per_class = np.zeros(len(mass))
    per_class[present] = class_weights(losses, alpha, beta) / mass[present]
    rows: Float64 = per_class[y] * weight
    return rows


def class_weighted_nll(*, alpha: float = 1.0, beta: float = 1.5) -> Objective:
    """Return Σ_k ω_k · (mean NLL of class k), with ω a constant in the gradient.

    Because ω moves with the losses but carries no gradient, this is the field of a fixed-point problem, not
    the gradient of one function: look for a root of the gradient rather than for a minimum.

    >>> objective = class_weighted_nll()
    >>> value, _ = objective.value_and_grad(np.log([[0.5, 0.5]] * 2), np.array([0, 1]), np.ones(2))
    >>> round(value, 4)  # twice log 2
    1.3863
    """

    def value_and_grad(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
        row_loss = -log_probs[np.arange(len(y)), y]
        w = row_weights(row_loss, y, weight, alpha, beta)
        return float(w @ row_loss), OneEntry(y, -w)

    return Objective("class_weighted_nll", value_and_grad, by_rows=False)
