"""The bins of every class in one compiled pass: two additions a probability, a chunk of classes at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.certificates.table import _HALF, _SHIFT, _SIDE, BINS
from hcal.runtime.jit import jit
from hcal.runtime.threads import each

#: Classes whose bins stay in the cache together.
_CHUNK = 16
_jit = jit()


def accumulate(counted: Any, probs: Any) -> None:
    """Add every probability to its class's bin.

    ``counted`` (K, BINS, 2) holds counts and sums of the claims, ``probs`` (N, K) is contiguous.
    """
    k = probs.shape[1]
    chunks = [(a, min(a + _CHUNK, k)) for a in range(0, k, _CHUNK)]
    bits = probs.astype(np.float32, copy=False).view(np.int32)
    each(lambda c: _accumulate(counted, probs, bits, *c), chunks, events=probs.size)


@_jit
def _accumulate(counted: Any, probs: Any, bits: Any, first: int, last: int) -> None:
    mirrored = np.empty(1, dtype=np.float32)
    mirrored_bits = mirrored.view(np.int32)
    for i in range(probs.shape[0]):
        for k in range(first, last):
            p = probs[i, k]
            if p > 0.5:
                mirrored[0] = 1 - p
                index = BINS - 1 - max((mirrored_bits[0] >> _SHIFT) - (_HALF - _SIDE), 0)
            else:
                index = max((bits[i, k] >> _SHIFT) - (_HALF - _SIDE), 0)
            counted[k, index, 0] += 1
            counted[k, index, 1] += p
