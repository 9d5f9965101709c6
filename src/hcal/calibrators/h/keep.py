"""Stage 3, *keep*: the top class stays on top, and its probability stays calibrated.

Where P(top) is below the share of another class, the argmax would change. Two ways back, and all between:
λ = 0 leaves P(top) as it is and spreads the others more evenly until none is above it; λ = 1 lifts P(top)
to the middle between the two first. The first keeps the top-label event calibrated, the second favours
the likelihood.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.calibrators.h.rows import Float64
from hcal.numerics import FloatArray, IntArray

#: A held top class leads by this factor, so that no tie is left to the order of the classes.
JUST_BELOW = 1.0 - 1e-9


def join(q: Float64, rest: Any, top: IntArray, lift: float | None) -> Any:
    """Return probabilities (N, K) from P(top) and the shares of the rest, the argmax kept.

    Parameters
    ----------
    q : array of shape (N,)
        P(top).
    rest : array or tensor of shape (N, K)
        P(k | not top), 0 at the top class.
    top : array of shape (N,)
    lift : float or None
        λ in [0, 1]; None lets the argmax change.

    Returns
    -------
    array of shape (N, K), or tensor

    Examples
    --------
    >>> join(np.array([0.3]), np.array([[0.0, 0.9, 0.05, 0.05]]), np.array([0]), 0.0).round(3)
    array([[0.3, 0.3, 0.2, 0.2]])
    >>> join(np.array([0.3]), np.array([[0.0, 0.9, 0.05, 0.05]]), np.array([0]), None).round(3)
    array([[0.3  , 0.63 , 0.035, 0.035]])
    """
    if not isinstance(rest, np.ndarray):
        from hcal.calibrators.h import _tensors

        return _tensors.join(q, rest, top, lift)
    if lift is not None:
        q, rest = _keep(q, rest, top, lift)
    out = rest * (1.0 - q).astype(rest.dtype)[:, None]
    out[np.arange(len(top)), top] = q
    return out


def _keep(q: Float64, rest: FloatArray, top: IntArray, lift: float) -> tuple[Float64, FloatArray]:
    k = rest.shape[1]
    largest = rest.max(axis=1).astype(np.float64)
    lost = q < JUST_BELOW * largest * (1.0 - q)  # a tie within rounding is none, in every runtime
    if not lost.any():
        return q, rest
    q, rest = q.copy(), rest.copy()
    middle = 0.5 * (q + largest * (1.0 - q))[lost]
    lowest = 1.0 / k / JUST_BELOW
    lifted = q[lost] + lift * (middle - q[lost])
    held = np.maximum(lifted, lowest)
    q[lost] = held
    if k == 2:
        return q, rest
    # Mix the rest with its even share 1/(K−1) until its largest part is just below the top; a top class at
    # its lowest leaves them all even, and none at 1/K to the last digit, where metrics have a threshold.
    even = 1.0 / (k - 1)
    room = JUST_BELOW * held / (1.0 - held)
    spread = np.maximum(largest[lost] - even, 1e-12)  # 0 where the rest is even already
    w = np.where(lifted < lowest, 1.0, np.clip((largest[lost] - room) / spread, 0.0, 1.0))[:, None]
    mixed = (1.0 - w) * rest[lost] + w * even
    mixed[np.arange(len(mixed)), top[lost]] = 0.0
    rest[lost] = mixed
    return q, rest
