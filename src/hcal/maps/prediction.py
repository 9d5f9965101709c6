"""What ``predict_proba`` computes, whole: scores → logits → floor → map → class frequencies → argmax kept.

This is the one formula behind numpy, torch, ``torch.compile`` and ONNX. Every calibrator shares it; only the map in
the middle differs.
"""

from __future__ import annotations

import numpy as np

from hcal.inputs import INPUT_KINDS, to_logits
from hcal.maps.base import Map, array, map_type, option
from hcal.numerics import Float64, FloatArray
from hcal.xp import Array, namespace

#: Below this a probability counts as 0: no data set of any size could tell it from 0.
_LOG_TINY = float(np.log(1e-30))
_LEAST_FLOOR = 1e-31
_LOG_2 = float(np.log(2.0))
#: Rows are predicted in blocks of about this many scores, so memory stays bounded at any N.
_BLOCK_SCORES = 4_000_000
#: Below this many nats under the top, a score is as good as impossible; products with it stay finite.
_LOWEST = {"float64": -1e30, "float32": -1e15}


@map_type
class Prediction(Map):
    """Probabilities from scores of the declared kind."""

    map: Map
    kind: str = option("what the scores are", INPUT_KINDS, "logits")
    preserves: str | None = option("what is promised", ("order", "accuracy", None), None)
    floor: Array = array("what a probability of 0 is taken for", low=_LEAST_FLOOR, high=0.5, optional=True)
    prior: Array = array("ln of new over old class frequencies", "K", low=-np.inf, high=700.0, optional=True)

    def __call__(self, scores: Array) -> Array:
        """Return probabilities (N, K) of any scores (N, K).

        A row with NaN or +inf, or of −inf alone, comes out NaN: numpy input has been refused before this, and in a
        deployed graph nobody else would notice. A single −inf is a class that cannot be.
        """
        xp = namespace(scores)
        x = to_logits(scores, self.kind)
        lowest = _LOWEST["float64" if scores.itemsize == 8 else "float32"]
        x = xp.maximum(x - xp.row_max(x), lowest)
        return self.of_logits(x, scores) + 0 * xp.row_max(scores)

    def in_blocks(self, scores: FloatArray, *, kernel: bool = True) -> FloatArray:
        """Return probabilities (N, K) of checked numpy scores (N, K), some rows at a time."""
        out = np.empty(scores.shape, dtype=scores.dtype)
        wide = scores.dtype if self.map.float32_safe else np.float64
        step = max(1, _BLOCK_SCORES // (scores.shape[1] * self.map.expansion))
        for start in range(0, len(scores), step):
            given = scores[start : start + step]
            x = to_logits(given, self.kind).astype(wide, copy=False)
            probs = self.of_logits(x, given, kernel=kernel)
            out[start : start + step] = probs if probs.dtype == out.dtype else self.narrowed(probs, given)
        return out

    def of_logits(self, x: Array, scores: Array, *, kernel: bool = False) -> Array:
        """Return probabilities (N, K) of finite logits (N, K), in their float width; ``scores`` are what they were."""
        inner = x if self.floor is None else raise_to_floor(x, self.floor)
        probs = self.map.compiled(inner) if kernel else None
        kept = probs is not None and self.map.kernel_keeps_argmax and inner is scores
        if probs is None:
            probs = self.map.probabilities(inner)
            probs = probs if probs.dtype == x.dtype else namespace(x).astype(probs, x)
        if self.prior is not None:
            probs = reweight(probs, self.prior)
        return probs if kept or self.preserves is None else keep_argmax(probs, scores)

    def narrowed(self, probs: Array, x: Array) -> Array:
        """Return probabilities in the narrower floats of the logits x, with the promise kept there too."""
        narrow = namespace(x).astype(probs, x)
        return narrow if self.preserves is None else keep_argmax(narrow, x)


def learn_floor(log_probs: FloatArray, weight: Float64 | None) -> Float64:
    """Return the floor of a calibration set: half its smallest positive probability, where it has zeros.

    Without zeros, a quarter of that or of 1/(N·K), whichever is smaller: a zero that comes later finds a place, and
    what is merely smaller than a few rows show stays as it is.

    >>> round(float(learn_floor(np.log([[1e-300, 1.0], [0.01, 0.99]]), None)), 6)
    0.005
    """
    total = float(len(log_probs)) if weight is None else float(weight.sum())
    believed = log_probs >= _LOG_TINY
    smallest = float(np.exp(np.min(log_probs, where=believed, initial=0.0)))
    if believed.all():
        smallest = min(smallest, 1 / (max(total, 1.0) * log_probs.shape[1])) / 2
    return np.array(max(smallest / 2, _LEAST_FLOOR))  # weights may sum to any number


def raise_to_floor(x: Array, floor: Array) -> Array:
    """Return log-probabilities with those below ln(2·floor) drawn up to between ln(floor) and ln(2·floor).

    A probability of 0 is a small number that was rounded, and the calibration set says how small. With the depth
    d = ln(2·floor) − x > 0, x becomes ln(2·floor) − ln 2 · d/(d + ln 2): increasing, without a jump or a kink.

    >>> np.exp(raise_to_floor(np.log([1e-300, 0.01, 0.5]), np.array(0.005))).round(4)
    array([0.005, 0.01 , 0.5  ])
    """
    xp = namespace(x)
    knee = xp.log(2 * floor)
    depth = xp.maximum(knee - x, 0.0)
    return xp.where(depth > 0, knee - _LOG_2 * (depth / (depth + _LOG_2)), x)


def reweight(probs: Array, log_ratio: Array) -> Array:
    """Return probabilities (N, K) times e^log_ratio (K,), normalised; a row that would vanish stays.

    >>> reweight(np.array([[0.5, 0.5]]), np.log([1.0, 3.0]))
    array([[0.25, 0.75]])
    """
    xp = namespace(probs)
    shifted = probs * xp.exp(log_ratio - xp.row_max(log_ratio))
    total = xp.row_sum(shifted)
    return xp.where(total > 0, shifted / xp.where(total > 0, total, 1.0), probs)


def keep_argmax(probs: Array, x: Array) -> Array:
    """Return the probabilities with the top class of x on top, where rounding tied it with an earlier one.

    A strictly increasing map cannot change the argmax; a float can: two logits one step apart may get equal
    probabilities, and ``argmax`` takes the first.

    >>> keep_argmax(np.array([[0.5, 0.5]]), np.array([[0.0, 1e-20]])).argmax()
    np.int64(1)
    """
    xp = namespace(probs)
    wanted, found = xp.argmax(x), xp.argmax(probs)
    best = xp.take_along(probs, found)
    own = xp.take_along(probs, wanted)
    return xp.put_along(probs, wanted, xp.where(wanted == found, own, best + xp.eps(probs) * xp.abs(best)))
