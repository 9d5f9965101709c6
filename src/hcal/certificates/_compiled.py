"""The bins of every class in one compiled pass: two additions a probability, a chunk of classes at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from hcal.certificates.table import _HALF, _SHIFT, _SIDE, BINS
from hcal.runtime.threads import each

#: Classes whose bins stay in the cache together.
_CHUNK = 48
_jit: Callable[[Callable[..., Any]], Callable[..., Any]] = njit(nogil=True, cache=True)


def accumulate(counted: Any, probs: Any) -> None:
    """Add every probability to its class's bin.

    Parameters
    ----------
    counted : array of shape (K, BINS, 2)
        Counts and sums of the claims.
    probs : contiguous array of shape (N, K)
    """
    k = probs.shape[1]
    chunks = [(a, min(a + _CHUNK, k)) for a in range(0, k, _CHUNK)]
    each(lambda c: _accumulate(counted, probs, *c), chunks, events=probs.size)


@_jit
def _accumulate(counted: Any, probs: Any, first: int, last: int) -> None:
    small = np.empty(1, dtype=np.float32)
    bits = small.view(np.int32)
    for i in range(probs.shape[0]):
        for k in range(first, last):
            p = probs[i, k]
            upper = p > 0.5
            small[0] = 1 - p if upper else p
            index = max((bits[0] >> _SHIFT) - (_HALF - _SIDE), 0)
            if upper:
                index = BINS - 1 - index
            counted[k, index, 0] += 1
            counted[k, index, 1] += p
