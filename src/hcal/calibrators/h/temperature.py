"""The temperature of few rows: 1 unless they say otherwise.

A handful of rows, or of errors, fits a temperature to chance. Where there are few, |ln T| has a price in
nats of likelihood, a Laplace prior: rows that say nothing leave the scores as they are, and a classifier that
is far off still pays it easily. With enough of both the price is 0, and nothing is changed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize_scalar

from hcal.calibrators.h.rows import Float64, few
from hcal.runtime.numerics import FloatArray, IntArray
from hcal.solvers.temperature import Temperature, label_derivatives, solve_temperature

#: Nats that a factor e in temperature has to be worth, where rows are few.
_PRICE = 2.0


def careful_temperature(logits: FloatArray, y: IntArray, weight: Float64) -> Temperature:
    """Return temperature scaling, between T = 1 and the T of least NLL as far as rows and errors allow.

    Parameters
    ----------
    logits : array of shape (N, K)
    y, weight : arrays of shape (N,)

    Examples
    --------
    >>> z, y = np.array([[0.0, 2.0]] * 8), np.array([1] * 6 + [0] * 2)
    >>> careful_temperature(z, y, np.ones(8)).beta, round(solve_temperature(z, y).beta, 3)
    (1.0, 0.549)
    >>> round(careful_temperature(z, y, 1000 * np.ones(8)).beta, 3)
    0.549
    """
    solved = solve_temperature(logits, y, weight)
    wrong = logits[np.arange(len(y)), y] < logits.max(axis=1)
    price = _PRICE * (1.0 - 1.0 / few(float(weight.sum()), float(weight @ wrong)))
    best = float(np.log(solved.beta))
    if price == 0 or abs(best) < 1e-9:
        return solved

    def loss(log_beta: float) -> float:
        own = label_derivatives(logits, y, float(np.exp(log_beta)))[0]
        return float(weight @ own) + price * abs(log_beta)

    ends = (min(best, 0.0), max(best, 0.0))
    found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6})
    return replace(solved, beta=1.0 if loss(0.0) <= found.fun else float(np.exp(found.x)))
