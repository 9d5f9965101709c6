"""All that ``predict_proba`` computes: scores → logits → floor → map → class frequencies → argmax kept → not 0.

The same formula runs in numpy, torch, ``torch.compile`` and ONNX. All calibrators share it; only the map in the middle
differs.
"""

from __future__ import annotations

import numpy as np

from hcal.compiled import kernel_pays
from hcal.inputs import INPUT_KINDS, InputKind, to_logits, zero_or_nan
from hcal.maps.base import Map, array, map_type, option
from hcal.numerics import Float64, FloatArray
from hcal.xp import Array, namespace

#: The logarithm of a probability that counts as 0, because no data set could tell it from 0.
_LOG_TINY = float(np.log(1e-30))
_LEAST_FLOOR = 1e-31
#: The least probability that a calibrator states, a normal number of float32: it has never seen that an event cannot
#: happen.
LEAST_PROBABILITY = 1e-37
_LOG_2 = float(np.log(2.0))
#: Rows are predicted in blocks of about this many scores, which stay in the cache: larger blocks take three times as
#: long at 5000 x 100. Memory stays bounded at any N.
_BLOCK_SCORES = 65_536
#: Scores further below the top score of their row count as this far below, so that products with them stay finite.
_LOWEST = -1e30


@map_type
class Prediction(Map):
    """Turns scores of the declared kind into probabilities."""

    map: Map
    kind: InputKind = option("what the scores are", INPUT_KINDS, "logits")
    preserves: str | None = option("what is promised", ("order", "accuracy", None), None)
    floor: Array = array(
        "what a probability of 0 is taken for", low=_LEAST_FLOOR, high=0.5, optional=True
    )
    prior: Array = array(
        "ln of new over old class frequencies", "K", low=-np.inf, high=700.0, optional=True
    )
    states_zero: bool = option("whether a probability may be 0", (True, False), True)

    def __call__(self, scores: Array) -> Array:
        """Return probabilities (N, K) of any scores (N, K).

        A row with NaN or +inf, or with −inf for every class, gives NaN: numpy input with such rows was refused before,
        but a deployed graph has no other check. A single −inf means that the class has the least probability.
        """
        xp = namespace(scores)
        x = to_logits(scores, self.kind)
        if self.floor is None:  # a floor counts from probability 1, and bounds the logits itself
            x = xp.maximum(x - xp.row_max(x), _LOWEST)
        # In ONNX, the largest score of a row may leave out a NaN, so each score is looked at.
        each_is_sound = xp.row_min(xp.astype(scores < np.inf, scores))
        one_is_finite = xp.astype(xp.row_max(scores) > -np.inf, scores)
        return self.of_logits(x, scores) + zero_or_nan(xp.minimum(each_is_sound, one_is_finite))

    def in_blocks(self, scores: FloatArray, *, once: bool = False) -> FloatArray:
        """Return probabilities (N, K) of checked numpy scores (N, K), computed block by block.

        ``once`` says that the caller predicts these rows and no others, so that a kernel must pay for its loading.
        """
        kernel = kernel_pays(*scores.shape, once=once)
        does_all = self.kind == "logits" and self.prior is None and self.map.kernel_keeps_argmax
        if kernel and does_all and to_logits(scores, self.kind) is scores:
            # The kernel works in blocks of its own and does all that is left to do.
            probs: FloatArray | None = self.map.compiled(scores)
            if probs is not None:
                return (
                    probs if self.states_zero else np.maximum(probs, LEAST_PROBABILITY, out=probs)
                )

        out = np.empty(scores.shape, dtype=scores.dtype)
        width = scores.dtype if self.map.float32_safe else np.float64
        step = self.rows_at_once(scores.shape[1])
        for start in range(0, len(scores), step):
            block = scores[start : start + step]
            x = to_logits(block, self.kind).astype(width, copy=False)
            probs = self.of_logits(x, block, kernel=kernel)
            if probs.dtype != out.dtype:
                probs = self.narrowed(probs, block)
            out[start : start + step] = probs
        return out

    def rows_at_once(self, n_classes: int) -> int:
        """Return how many rows :meth:`in_blocks` takes at a time."""
        return max(1, _BLOCK_SCORES // (n_classes * self.map.expansion))

    def of_logits(self, x: Array, scores: Array, *, kernel: bool = False) -> Array:
        """Return probabilities (N, K) of finite logits x (N, K), in their float width; x was made from ``scores``."""
        inner = x if self.floor is None else raise_to_floor(x, self.floor)
        probs = self.map.compiled(inner) if kernel else None
        is_kept = probs is not None and self.map.kernel_keeps_argmax and inner is scores

        if probs is None:
            probs = self.map.probabilities(inner)
            if probs.dtype != x.dtype:
                probs = namespace(x).astype(probs, x)
        if self.prior is not None:
            probs = reweight(probs, self.prior)
        if not is_kept and self.preserves is not None:
            probs = keep_argmax(probs, scores)
        if self.states_zero:
            return probs
        return namespace(x).maximum(probs, LEAST_PROBABILITY)

    def narrowed(self, probs: Array, x: Array) -> Array:
        """Return probabilities in the narrower float type of the logits x, with the argmax kept after this rounding."""
        narrow = namespace(x).astype(probs, x)
        return narrow if self.preserves is None else keep_argmax(narrow, x)


def learn_floor(log_probs: FloatArray, weight: Float64 | None) -> Float64:
    """Return the probability that a 0 is replaced by, learned from a calibration set.

    If the set has zeros, this is half of its smallest positive probability. Otherwise it is a quarter of that or of
    1/(N·K), whichever is smaller, so that new probabilities only a little below those of the set stay as they are.

    >>> round(float(learn_floor(np.log([[1e-300, 1.0], [0.01, 0.99]]), None)), 6)
    0.005
    >>> round(float(learn_floor(np.log([[0.4, 0.6]] * 10), None)), 6)
    0.0125
    """
    total = float(len(log_probs)) if weight is None else float(weight.sum())
    believed = log_probs >= _LOG_TINY
    smallest = float(np.exp(np.min(log_probs, where=believed, initial=0.0)))
    if believed.all():
        smallest = min(smallest, 1 / (max(total, 1.0) * log_probs.shape[1])) / 2
    return np.array(max(smallest / 2, _LEAST_FLOOR))  # weights may sum to any number


def raise_to_floor(x: Array, floor: Array) -> Array:
    """Return log-probabilities in which those below ln(2·floor) are raised to between ln(floor) and ln(2·floor).

    A probability of 0 is usually a small number that was rounded; the floor says how small. With the depth
    d = ln(2·floor) − x > 0, x becomes ln(2·floor) − ln 2 · d/(d + ln 2), which is increasing and smooth.

    >>> np.exp(raise_to_floor(np.log([1e-300, 0.01, 0.5]), np.array(0.005))).round(4)
    array([0.005, 0.01 , 0.5  ])
    """
    xp = namespace(x)
    knee = xp.log(2 * floor)
    depth = xp.maximum(knee - x, 0.0)
    raised = knee - _LOG_2 * (depth / (depth + _LOG_2))
    return xp.where(depth > 0, raised, x)


def reweight(probs: Array, log_ratio: Array) -> Array:
    """Return probabilities (N, K) times e^log_ratio (K,), normalised.

    A row whose products are all 0 says nothing about the classes that are left, and gets the factors alone.

    >>> reweight(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0.0, -np.inf]))
    array([[1., 0.],
           [1., 0.]])
    """
    xp = namespace(probs)
    factors = xp.exp(log_ratio - xp.row_max(log_ratio))
    products = probs * factors
    total = xp.row_sum(products)
    scaled = products / xp.where(total > 0, total, 1.0)
    return xp.where(total > 0, scaled, factors / xp.row_sum(factors))


def keep_argmax(probs: Array, x: Array) -> Array:
    """Return the probabilities with the same argmax as x, in case rounding made the top class equal to an earlier one.

    A strictly increasing map cannot change the argmax, but rounding can: two nearly equal logits may get equal
    probabilities, and ``argmax`` takes the first.

    >>> keep_argmax(np.array([[0.5, 0.5]]), np.array([[0.0, 1e-20]])).argmax()
    np.int64(1)
    """
    xp = namespace(probs)
    top = xp.argmax(x)
    top_after = xp.argmax(probs)
    if isinstance(probs, np.ndarray) and (top == top_after).all():
        return probs
    largest = xp.take_along(probs, top_after)
    just_above = largest + xp.eps(probs) * xp.abs(largest)
    top_prob = xp.where(top == top_after, xp.take_along(probs, top), just_above)
    return xp.put_along(probs, top, top_prob)
