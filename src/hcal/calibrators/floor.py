"""The floor: a probability of 0 is a censored small number, and a calibration set says how small.

A forest of 100 trees says 0 where it means "below 0.01"; naive Bayes says 1e-200 where it means nothing.
Taken at its word, one wrong row then costs hundreds of nats and decides every fit. So probabilities that are
smaller than any that the calibration set shows are drawn up to between ``floor`` and ``2·floor``, in their
order: with d = ln(2·floor) − ln p > 0, ln p becomes ln(2·floor) − ln 2 · d/(d + ln 2). This is increasing,
has no jump and no kink, and takes 0 to ``floor``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.state import Field, StateSpec
from hcal.numerics import FloatArray
from hcal.runtime.ops import Ops

#: Below this a probability counts as 0: no data set of any size could tell it from 0.
TINY = 1e-30
#: What every method that takes probabilities keeps beside its own state.
FLOOR_SPEC = StateSpec(
    (Field("input_floor", "what a probability of 0 is taken for", low=TINY / 4, high=0.5, optional=True),)
)
_LOG_2 = float(np.log(2.0))


def learn_floor(log_probs: FloatArray, weight: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the floor of a calibration set: half its smallest positive probability, where it has zeros.

    Without zeros, a quarter of that or of 1/(N·K), whichever is smaller: a zero that comes later finds a
    place, and what is merely smaller than a few rows show stays as it is.

    ``log_probs`` (N, K) are finite; rows without weight are not looked at.

    >>> round(float(learn_floor(np.log([[1e-300, 1.0], [0.01, 0.99]]), None)), 6)
    0.005
    """
    total = len(log_probs) if weight is None else float(weight.sum())
    return floor_of(*least_believed(log_probs, weight), total, log_probs.shape[1])


def least_believed(log_probs: FloatArray, weight: NDArray[np.float64] | None) -> tuple[float, bool]:
    """Return the smallest log-probability that is not taken for a zero, and whether there are no zeros.

    >>> least_believed(np.array([[-1e3, 0.0]]), None)
    (0.0, False)
    """
    seen = log_probs if weight is None else log_probs[weight > 0]
    believed = seen >= np.log(TINY)
    return float(np.min(seen, where=believed, initial=0.0)), bool(believed.all())


def floor_of(least: float, no_zeros: bool, total: float, n_classes: int) -> NDArray[np.float64]:
    """Return the floor of rows of which :func:`least_believed` is known; see :func:`learn_floor`.

    >>> floor_of(0.0, True, 5.0, 10)
    array(0.005)
    """
    smallest = float(np.exp(least))
    if no_zeros:
        smallest = min(smallest, 1 / (total * n_classes)) / 2
    return np.array(smallest / 2)


def apply_floor(log_probs: FloatArray, floor: NDArray[np.float64] | None) -> FloatArray:
    """Draw what lies below ``2·floor`` up to between ``floor`` and ``2·floor``; None leaves all as it is.

    Rows are not normalised: what comes out are logits.
    Shapes: log_probs (N, K), floor () → (N, K), of the same dtype.

    >>> np.exp(apply_floor(np.log([1e-300, 0.01, 0.5]), np.array(0.005))).round(4)
    array([0.005, 0.01 , 0.5  ])
    """
    if floor is None:
        return log_probs
    knee = log_probs.dtype.type(_knee(floor))
    below = log_probs < knee
    if not below.any():
        return log_probs
    out = log_probs.copy()
    depth = knee - log_probs[below]
    out[below] = knee - _LOG_2 * (depth / (depth + _LOG_2))
    return out


def graph_floor(ops: Ops, log_probs: Any, floor: NDArray[np.float64] | None) -> Any:
    """Return :func:`apply_floor` in the operations of :mod:`hcal.runtime.ops`.

    >>> from hcal.runtime.ops import NumpyOps
    >>> np.exp(graph_floor(NumpyOps(), np.log([1e-300, 0.01, 0.5]), np.array(0.005))).round(4)
    array([0.005, 0.01 , 0.5  ])
    """
    if floor is None:
        return log_probs
    knee = ops.const(_knee(floor))
    depth = ops.maximum(knee - log_probs, 0.0)
    return ops.where(log_probs < knee, knee - depth * _LOG_2 / (depth + _LOG_2), log_probs)


def _knee(floor: NDArray[np.float64]) -> float:
    return float(np.log(2 * float(floor)))
