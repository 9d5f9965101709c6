"""The bounded, safeguarded one-dimensional temperature solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import FloatArray, IntArray

# log β of the search, β = 1/T. Outside of e^±16 a float64 softmax of any real logits is saturated.
LOG_BETA_BOUNDS = (-16.0, 16.0)


@dataclass(frozen=True)
class Temperature:
    """A solved temperature: β = 1/T, and whether the optimum lies inside the bracket."""

    beta: float
    converged: bool
    message: str = ""


def nll_slope(
    logits: FloatArray, y: IntArray, weight: NDArray[np.float64] | None
) -> Callable[[float], float]:
    """Return d(mean NLL of softmax(β z))/dβ as a function of β: mean of E_p[z] − z_y, increasing in β.

    Parameters
    ----------
    logits : array of shape (N, K)
    y : array of shape (N,)

    Returns
    -------
    callable

    Examples
    --------
    >>> slope = nll_slope(np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([1, 0]), None)
    >>> abs(slope(0.0)) < 1e-12
    True
    """
    z = logits - logits.max(axis=1, keepdims=True)
    target = float(np.average(z[np.arange(len(z)), y], weights=weight))

    def slope(beta: float) -> float:
        mean = np.empty(len(z))
        rows = max(1, 1_000_000 // z.shape[1])  # blocks that stay in cache and bound the memory
        for start in range(0, len(z), rows):
            block = z[start : start + rows]
            e = np.exp(beta * block)
            mean[start : start + rows] = np.einsum("nk,nk->n", e, block) / e.sum(axis=1)
        return float(np.average(mean, weights=weight)) - target

    return slope


def solve_increasing(
    slope: Callable[[float], float], bounds: tuple[float, float] = LOG_BETA_BOUNDS
) -> Temperature:
    """Find the root of an increasing function of β by bracketed search in log β.

    Never fails silently: when the function has one sign in the whole bracket, the better end comes back with
    ``converged=False`` and a sentence.

    Parameters
    ----------
    slope : callable of β
    bounds : (float, float)
        The bracket, in log β.

    Returns
    -------
    Temperature

    Examples
    --------
    >>> round(solve_increasing(lambda beta: beta - 2.0).beta, 6)
    2.0
    """
    from scipy.optimize import brentq

    low, high = bounds
    f_low, f_high = slope(float(np.exp(low))), slope(float(np.exp(high)))
    if f_low >= 0:
        return Temperature(
            float(np.exp(low)), f_low == 0, "the scores carry no information: T is at its upper bound"
        )
    if f_high <= 0:
        return Temperature(
            float(np.exp(high)), f_high == 0, "every label has the top score: T at its lower bound"
        )
    root = brentq(lambda t: slope(float(np.exp(t))), low, high, xtol=1e-10, rtol=1e-12)
    return Temperature(float(np.exp(root)), True)
