"""Curves of the log-odds, one against the rest: ln p_k − ln(1 − p_k) in, the calibrated log-odds out.

Two classes are one event, P(class 1), and its complement; more are K events whose probabilities are divided
by their sum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit

from hcal.calibrators._one_vs_rest import columns, normalise
from hcal.numerics import Float64, FloatArray, IntArray, softmax

#: Learns the numbers of one curve from log-odds, marks [y = k] and weights (N,), and whether it converged.
FitEvent = Callable[[Float64, Float64, Float64 | None], tuple[Float64, bool]]


def log_odds(logits: FloatArray) -> Float64:
    """Return ln p_k − ln(1 − p_k) of every class, without loss where p_k is near 1; logits (N, K) → (N, K).

    >>> log_odds(np.array([[0.0, 1000.0]]))
    array([[-1000.,  1000.]])
    """
    z = np.asarray(logits, dtype=np.float64)
    at, top = np.arange(len(z)), z.argmax(axis=1)
    largest = z[at, top]
    below = z.copy()
    below[at, top] = -np.inf
    second = below.max(axis=1)
    # The rest of the top class is summed from the others; subtracting would leave no digit.
    with np.errstate(under="ignore"):
        e = np.exp(below - second[:, None])
        rest = second + np.log(e.sum(axis=1))
        p = np.exp(z - largest[:, None])
        others = p.sum(axis=1, keepdims=True) - p
    others[at, top] = 1.0
    out: Float64 = z - largest[:, None] - np.log(others)
    out[at, top] = largest - rest
    return out


def events(scores: Float64) -> Float64:
    """Return the columns that get a curve: class 1 of two, all of more.

    >>> events(np.zeros((5, 2))).shape
    (5, 1)
    """
    return scores[:, 1:] if scores.shape[1] == 2 else scores


def fit_events(
    odds: Float64, y: IntArray, weight: Float64 | None, fit_one: FitEvent, identity: Float64
) -> tuple[Float64, bool]:
    """Fit the numbers of every curve; a class without rows, or the only one that has any, gets the identity.

    ``identity`` (P,) are the numbers that leave log-odds (N, K) as they are. The answer has shape (K, P), or
    (1, P) for two classes; beside it, whether all fits converged.

    >>> odds, y = np.array([[0.0, 0.0]]), np.array([1])
    >>> fit_events(odds, y, None, lambda o, hit, w: (np.zeros(2), True), np.array([0.0, 1.0]))
    (array([[0., 1.]]), True)
    """
    used = events(odds)
    first = odds.shape[1] - used.shape[1]
    found = np.tile(identity, (used.shape[1], 1)).astype(np.float64)
    mass = np.bincount(y, weights=weight, minlength=odds.shape[1])
    converged = True
    if np.count_nonzero(mass) > 1:
        for column, o in columns(used):
            if mass[column + first] > 0:
                found[column], well = fit_one(o, (y == column + first).astype(np.float64), weight)
                converged &= well
    return found, converged


def spread(curved: Float64, logits: FloatArray) -> Float64:
    """Return probabilities (N, K) from the calibrated log-odds of the events.

    ``curved`` has shape (N, K), or (N, 1) for two classes; a row of zeros falls back to the logits (N, K).

    >>> spread(np.array([[0.0]]), np.array([[0.0, 3.0]]))
    array([[0.5, 0.5]])
    """
    if curved.shape[1] == 1:
        return np.asarray(softmax(np.hstack([np.zeros_like(curved), curved])), dtype=np.float64)
    with np.errstate(under="ignore"):
        raw = np.asarray(expit(curved), dtype=np.float64)
    return normalise(raw, softmax(np.asarray(logits, dtype=np.float64)), 0.0)
