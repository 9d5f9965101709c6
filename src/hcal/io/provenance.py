"""Which rows a calibrator learned from: a fingerprint that every fit keeps, whoever called it."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal.runtime.device_rows import DeviceRows

#: Numbers hashed at a time: what the work needs in memory, whatever the size of the data.
_BLOCK: Final = 2**16


def fingerprint(scores: NDArray[Any] | DeviceRows) -> dict[str, Any]:
    """Return what names a set of rows, in any order: how many, and a hash of what they say.

    float32 and float64 of the same values are the same rows.

    >>> one, other = fingerprint(np.eye(3)), fingerprint(np.eye(3)[::-1])
    >>> one == other, one["rows"]
    (True, 3)
    """
    hashes = np.sort(row_hashes(scores))
    return {"rows": len(hashes), "rows_sha256": hashlib.sha256(hashes.tobytes()).hexdigest()}


def row_hashes(scores: NDArray[Any] | DeviceRows) -> NDArray[np.uint64]:
    """Return a 64-bit hash of every row; shape (N,).

    >>> a, b, c = row_hashes(np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]]))
    >>> bool(a == b), bool(a == c)
    (True, False)
    """
    n, k = scores.shape
    # A row's hash is the sum of its cells, each times an odd number of its column. The numbers are
    # computed and not drawn: a saved model must say the same under every version of numpy.
    factors = mix(np.arange(1, k + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
    if isinstance(scores, DeviceRows):
        return mix(scores.cell_sums(factors))
    out = np.empty(n, dtype="<u8")
    step = max(_BLOCK // max(k, 1), 1)
    for start in range(0, n, step):
        # Adding zero makes −0 the 0 that it equals.
        bits = (np.asarray(scores[start : start + step], dtype="<f8") + 0.0).view("<u8")
        bits = bits ^ (bits >> np.uint64(32))  # what came as float32 has zeros below
        bits *= factors
        out[start : start + step] = mix(bits.sum(axis=1, dtype=np.uint64))
    return out


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over all 64 (the finaliser of splitmix64; Steele et al., OOPSLA 2014).

    >>> int(mix(np.array([1], dtype=np.uint64))[0]) % 1000
    789
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
