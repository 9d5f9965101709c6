"""The promise of the argmax, to the last bit."""

from __future__ import annotations

import numpy as np

from hcal.numerics import FloatArray


def keep_argmax(probs: FloatArray, logits: FloatArray) -> None:
    """Where rounding made the top class of probs (N, K) tie with an earlier one, lift it by an ulp, in place.

    A strictly increasing map cannot change the argmax; a float can: two logits one ulp apart may get equal
    probabilities, and ``argmax`` takes the first. Half floats are narrowed later: :mod:`hcal.runtime.halves`.

    >>> probs = np.array([[0.5, 0.5]])
    >>> keep_argmax(probs, np.array([[0.0, 1e-20]]))
    >>> int(probs.argmax())
    1
    """
    top = logits.argmax(axis=1)
    rows = np.flatnonzero(probs.argmax(axis=1) != top)
    if rows.size:
        probs[rows, top[rows]] = np.nextafter(probs[rows].max(axis=1), probs.dtype.type(2))
