"""The temperature of few rows: 1 unless they say otherwise.

A handful of rows, or of errors, fits a temperature to chance. Where there are few, |ln T| has a price in
nats of likelihood, a Laplace prior: rows that say nothing leave the scores as they are, and a classifier that
is far off still pays it easily. With enough of both the price is 0, and nothing is changed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from hcal.calibrators.h.rows import Float64, few
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.numerics import IntArray
from hcal.solvers.temperature import Temperature, label_derivatives, solve_temperature

#: Nats that a factor e in temperature has to be worth, where rows are few.
_PRICE = 2.0
#: Places between the T of least NLL and T = 1 that are looked at.
_LOOKS = 17


def careful_temperature(logits: Logits, y: IntArray, weight: Float64) -> Temperature:
    """Return temperature scaling, between T = 1 and the T of least NLL as far as rows and errors allow.

    >>> z, y = np.array([[0.0, 2.0]] * 8), np.array([1] * 6 + [0] * 2)
    >>> round(careful_temperature(z, y, np.ones(8)).beta, 3), round(solve_temperature(z, y).beta, 3)
    (0.98, 0.549)
    >>> round(careful_temperature(z, y, 1000 * np.ones(8)).beta, 3)
    0.549
    """
    if isinstance(logits, DeviceRows):
        from hcal.calibrators.h import _tensors

        solved, errors = _tensors.solve_temperature(logits, y, weight)
        if few(float(weight.sum()), errors) == 1:
            return solved
        logits = logits[:].astype(np.float64)  # few rows or errors have a search of their own, on the host
    solved = solve_temperature(logits, y, weight)
    wrong = logits[np.arange(len(y)), y] < logits.max(axis=1)
    price = _PRICE * (1.0 - 1.0 / few(float(weight.sum()), float(weight @ wrong)))
    best = float(np.log(solved.beta))
    if price == 0 or abs(best) < 1e-9:
        return solved

    def of(log_beta: float) -> tuple[float, float]:
        """Return the priced loss, and how much more than its price a step towards ``best`` gains there."""
        beta = float(np.exp(log_beta))
        own, slope = label_derivatives(logits, y, beta)
        gain = float(np.sign(-best)) * beta * float(weight @ slope)
        return float(weight @ own) + price * abs(log_beta), gain - price

    # Scores in a tiny unit gain nothing near T = 1, and all far from it: seen from the far end, where the
    # gain is 0, the first place that is worth its price is the one.
    at = np.linspace(best, 0.0, _LOOKS)
    worth = next((i for i, t in enumerate(at) if of(float(t))[1] > 0), None)
    if worth is None:
        return replace(solved, beta=1.0)
    if worth == 0:  # the far end is a bound, not an optimum, and still worth its price
        return solved
    found = float(brentq(lambda t: of(t)[1], at[worth - 1], at[worth], xtol=1e-12))
    return replace(solved, beta=1.0 if of(0.0)[0] <= of(found)[0] else float(np.exp(found)))
