"""What segments learn, as objects of arrays: softmax(slope · ln p + offset) on the common calibrator's p."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from hcal.maps.base import STEEP, Map, Prediction, ProbabilityMap, array, map_type, option
from hcal.numerics import Float64, FloatArray, IntArray, log_softmax
from hcal.pool.map import keep_top
from hcal.xp import Array

_TINY = float(np.finfo(np.float64).tiny)


@map_type
class SegmentedMap(Map):
    """A common prediction, and a correction of each segment; a prediction also needs the segment of each row."""

    common: Prediction
    slopes: Array = array("of ln p, of each segment", "S", low=0.0, high=STEEP)
    offsets: Array = array("of each class in each segment", "S", "K", optional=True)
    rows: Array = array("of the fit in each segment, by weight", "S", low=0.0)
    keep: bool = option("whether the common prediction's class stays", (True, False))

    def __call__(self, x: Array) -> NoReturn:
        """Refuse scores alone."""
        raise ValueError(
            "the calibrator has segments: a prediction needs the segment of each row (by=, --by)"
        )

    def of_rows(self, codes: IntArray) -> CorrectedRows:
        """Return the map of rows (N,) of known segments; rows with a code below 0 get the common prediction."""
        known = codes >= 0
        slopes = np.where(known, self.slopes[codes], 1.0)
        offsets = np.zeros((len(codes), 1))
        if self.offsets is not None:
            offsets = np.where(known[:, None], self.offsets[codes], 0.0)
        return CorrectedRows(
            common=self.common, slopes=slopes[:, None], offsets=offsets, keep=self.keep
        )


@map_type
class CorrectedRows(ProbabilityMap):
    """The corrections of some rows, in their order; it is made for one prediction and never stored."""

    common: Prediction
    slopes: Array = array("of ln p, of each row", "N", 1, low=0.0, high=STEEP)
    offsets: Array = array("of each row", "N", "C")
    keep: bool = option("whether the common prediction's class stays", (True, False))

    @property
    def is_common(self) -> bool:
        """Whether no row is corrected."""
        return not self._moved().any()

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        probs = self.common.in_blocks(np.asarray(x, dtype=np.float64))
        moved = self._moved()
        if not moved.any():
            return probs
        corrected = self._corrected(probs[moved], moved)
        probs[moved] = corrected
        return probs

    def _moved(self) -> NDArray[np.bool_]:
        """Return which rows are corrected, (N,)."""
        return np.asarray((self.slopes[:, 0] != 1.0) | (self.offsets != 0).any(axis=1))

    def _corrected(self, probs: FloatArray, moved: NDArray[np.bool_]) -> FloatArray:
        log_probs = log_of(probs)
        corrected = log_softmax(self.slopes[moved] * log_probs + self.offsets[moved])
        if self.keep:
            top = np.zeros_like(probs)
            top[np.arange(len(probs)), probs.argmax(axis=1)] = 1.0
            corrected = keep_top(corrected, top)
        return np.asarray(np.exp(corrected))


def log_of(probs: FloatArray) -> Float64:
    """Return ln p in float64; a probability of 0 counts as the smallest positive normal number.

    >>> log_of(np.array([[1.0, 0.0]])).round(1)
    array([[   0. , -708.4]])
    """
    return np.log(np.maximum(probs.astype(np.float64, copy=False), _TINY))
