"""The pool: candidates are averaged, with weights by what they said of rows that they had not seen.

A log-linear pool multiplies candidates, p ∝ Π p_j^{a_j}. Its weights are a small convex problem in the
held-out likelihood; they need not sum to one, so a pool of timid candidates is not timid, and a pool of maps
that are linear in the scores is one such map.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hcal.calibrators.h.rows import Float64, few
from hcal.numerics import IntArray
from hcal.solvers.lbfgs import Loss, lbfgs

#: Ridge that draws log-linear weights to where they start, a candidate, in units of rows.
_PSEUDO_ROWS = 1.0
#: Leaning on the first candidate: half-way at so many rows, and by one pseudo-row more for so many.
_HALFWAY, _ROWS_A_PSEUDO_ROW = 2000.0, 200.0
#: How many times fewer rows, or errors, than are enough leave half the doubt.
_HALF_DOUBT = 10.0


class Caution(NamedTuple):
    """How a pool leans on a candidate that learns next to nothing: the ``safe`` one."""

    safe: int
    doubt: float  # in [0, 1]: 0 leans on nothing, 1 starts from the safe candidate alone
    ridge: float  # what the leaning is worth, as a share of the rows
    price: float  # nats of held-out likelihood that a unit of weight on another candidate has to earn
    #: Candidates that start without a share of their own; the safe one, if it is among them, does not weigh
    #: more than the doubt.
    idle: tuple[int, ...] = ()


def doubt(total: float, errors: float) -> float:
    """Return how little so many rows with so many errors say: 1 of none, exactly 0 of enough.

    >>> doubt(1000.0, 49.0), round(doubt(100.0, 49.0), 2), round(doubt(30.0, 5.0), 2)
    (0.0, 0.45, 0.91)
    """
    lack = (few(total, errors) - 1.0) ** 2
    return lack / (lack + _HALF_DOUBT**2)


def log_linear_weights(
    log_p: Any, y: IntArray, weight: Float64, *, lean: bool = False, caution: Caution | None = None
) -> Float64:
    """Return the weights (J,), each at least 0, of the log-linear pool of best held-out likelihood.

    With few rows they are nearly equal; with ``lean`` the first candidate is preferred the more, the more
    rows there are, and others must earn their weight by more than a hair of likelihood. With ``caution``
    the safe candidate is preferred, in doubt.

    ``log_p`` (J, N, K), an array or a tensor, is what every candidate says of held-out rows; a constant may
    be missing in each row.

    >>> good = np.log([[0.8, 0.2], [0.2, 0.8]] * 50)
    >>> y = np.array([0, 1] * 40 + [1, 0] * 10)
    >>> log_linear_weights(np.stack([good, -good]), y, np.ones(100)).round(1)
    array([1., 0.])
    """
    n_candidates, total = len(log_p), float(weight.sum())
    center, ridge = np.full(n_candidates, 1.0 / n_candidates), _PSEUDO_ROWS * n_candidates
    if lean:
        first = total / (total + _HALFWAY)
        center = (1.0 - first) * center + first * (np.arange(n_candidates) == 0)
        ridge += total / _ROWS_A_PSEUDO_ROW
    price = np.zeros(n_candidates)
    if caution is not None:
        index = np.arange(n_candidates)
        safe, idle = index == caution.safe, np.isin(index, caution.idle)
        if idle.any():
            center = np.where(idle, 0.0, center / center[~idle].sum())
        center = (1.0 - caution.doubt) * center + caution.doubt * safe
        ridge += caution.doubt * caution.ridge * total
        price = np.where(safe, 0.0, caution.doubt * caution.price)

    sums = _sums(log_p, y, weight)

    def loss(a: Float64) -> tuple[float, Float64]:
        value, gradient = sums(a)
        value += ridge * float(((a - center) ** 2).sum())
        value += float(price @ a)
        return value / total, (gradient + 2 * ridge * (a - center) + price) / total

    bounds: list[tuple[float | None, float | None]] = [(0.0, None)] * n_candidates
    if caution is not None and caution.safe in caution.idle:
        bounds[caution.safe] = (0.0, caution.doubt)
    return lbfgs(loss, center, bounds=bounds, max_iterations=100, tolerance=1e-9).theta


def _sums(log_p: Any, y: IntArray, weight: Float64) -> Loss:
    """Return a ↦ the summed NLL of the pool and its gradient (J,), by the runtime of ``log_p``."""
    if isinstance(log_p, np.ndarray):
        return partial(_pool_sums, log_p=log_p, y=y, weight=weight)
    from hcal.calibrators.h._tensors import PoolSums

    return PoolSums(log_p, y, weight)


def _pool_sums(a: Float64, *, log_p: Float64, y: IntArray, weight: Float64) -> tuple[float, Float64]:
    rows = np.arange(len(y))
    s = np.tensordot(a, log_p, 1)
    s -= s.max(axis=1, keepdims=True)
    own = s[rows, y]
    p = np.exp(s, out=s)
    mass = p.sum(axis=1)
    value = float(weight @ (np.log(mass) - own))
    p *= (weight / mass)[:, None]
    p[rows, y] -= weight
    return value, log_p.reshape(len(a), -1) @ p.ravel()
