"""The pool: candidates are averaged, with weights by what they said of rows that they had not seen.

A log-linear pool multiplies candidates, p ∝ Π p_j^{a_j}. Its weights are a small convex problem in the
held-out likelihood; they need not sum to one, so a pool of timid candidates is not timid, and a pool of maps
that are linear in the scores is one such map. A mixture, p = Σ a_j p_j, is safer where a candidate may be far
off in single places: it serves two classes, where it costs nothing to predict.
"""

from __future__ import annotations

import numpy as np

from hcal.calibrators.h.rows import Float64
from hcal.runtime.numerics import IntArray
from hcal.solvers.lbfgs import lbfgs

#: Ridge that draws log-linear weights to equal ones, a candidate, in units of rows.
_PSEUDO_ROWS = 1.0
_EM_STEPS = 500


def log_linear_weights(log_p: Float64, y: IntArray, weight: Float64) -> Float64:
    """Return the weights (J,), each at least 0, of the log-linear pool of best held-out likelihood.

    Parameters
    ----------
    log_p : array of shape (J, N, K)
        What every candidate says of held-out rows; a constant may be missing in each row.
    y, weight : arrays of shape (N,)

    Examples
    --------
    >>> good = np.log([[0.8, 0.2], [0.2, 0.8]] * 50)
    >>> y = np.array([0, 1] * 40 + [1, 0] * 10)
    >>> log_linear_weights(np.stack([good, -good]), y, np.ones(100)).round(1)
    array([0.9, 0. ])
    """
    n_candidates = len(log_p)
    rows, even = np.arange(len(y)), 1.0 / n_candidates
    ridge = _PSEUDO_ROWS * n_candidates
    total = float(weight.sum())

    def loss(a: Float64) -> tuple[float, Float64]:
        s = np.tensordot(a, log_p, 1)
        s -= s.max(axis=1, keepdims=True)
        own = s[rows, y]
        p = np.exp(s, out=s)
        mass = p.sum(axis=1)
        value = float(weight @ (np.log(mass) - own)) + ridge * float(((a - even) ** 2).sum())
        p *= (weight / mass)[:, None]
        p[rows, y] -= weight
        gradient = log_p.reshape(n_candidates, -1) @ p.ravel()
        return value / total, (gradient + 2 * ridge * (a - even)) / total

    bounds: list[tuple[float | None, float | None]] = [(0.0, None)] * n_candidates
    return lbfgs(loss, np.full(n_candidates, even), bounds=bounds, max_iterations=100, tolerance=1e-9).theta


def mixture_weights(p: Float64, weight: Float64, pseudo: float = 1.0) -> Float64:
    """Return the weights (J,) of the mixture of best held-out likelihood, by EM.

    Parameters
    ----------
    p : array of shape (J, N)
        The probability that each candidate gave to what happened.
    weight : array of shape (N,)
    pseudo : float
        Rows that every candidate is given in advance: with few rows weights are nearly equal.

    Examples
    --------
    >>> mixture_weights(np.array([[0.9] * 98, [0.1] * 98]), np.ones(98)).round(2)
    array([0.99, 0.01])
    """
    a = np.full(len(p), 1.0 / len(p))
    p = np.maximum(p, np.finfo(np.float64).tiny)
    for _ in range(_EM_STEPS):
        share = p * a[:, None]
        share *= weight / share.sum(axis=0)
        new = share.sum(axis=1) + pseudo
        new /= new.sum()
        if np.abs(new - a).max() < 1e-10:
            return np.asarray(new)
        a = new
    return a
