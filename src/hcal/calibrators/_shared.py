"""Small pure pieces that several methods share."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.state import STEEP, Field, StateSpec
from hcal.numerics import Float64, FloatArray, IntArray, log_softmax, softmax
from hcal.runtime.ops import Ops

#: Probabilities are clipped to [eps, 1 − eps] before a logarithm, as the published scaling methods do.
EPS = float(np.finfo(np.float64).eps)

#: The inverse temperature of the methods that have one.
BETA = Field("beta", "inverse temperature 1/T", low=0.0, high=STEEP)
#: The classes that had calibration rows, where the others keep their probability.
PRESENT = Field("present", "classes with calibration rows", ("C",), 0, "K-1", "int64", "increasing")
PRESENT_SIZE = {"C": ("classes with calibration rows", 1)}


class OneTemperature(Calibrator):
    """softmax(z/T): methods that differ only in how they find T."""

    preserves = "order"
    weighted = True
    state_specs = (StateSpec((BETA,)),)

    def _found(self, beta: float, converged: bool, message: str, /, **facts: float) -> Fitted:
        """Return what the fit learned: β = 1/T, and what else there is to tell."""
        return Fitted({"beta": np.array(beta)}, converged, message, {"temperature": 1 / beta, **facts})

    def _predict(self, logits: FloatArray) -> FloatArray:
        return softmax(logits * self.state_["beta"])

    def _graph(self, ops: Ops, x: Any) -> Any:
        return ops.softmax(x * ops.const(self.state_["beta"]))


def probs_and_rest(ops: Ops, x: Any) -> tuple[Any, Any]:
    """Return p and 1 − p (N, K) in the operations of a graph; 1 − p of the top is summed from the others.

    >>> from hcal.runtime.ops import NumpyOps
    >>> [round(float(p[0, 1]), 3) for p in probs_and_rest(NumpyOps(), np.log([[0.25, 0.75]]))]
    [0.75, 0.25]
    """
    probs, top = ops.softmax(x), ops.top(x)
    others = ops.sum(ops.where(top, probs * 0, probs))
    return probs, ops.where(top, others, probs * -1 + 1)


def clipped_log_probs(logits: FloatArray, eps: float = EPS) -> Float64:
    """Return ln p of p = softmax(z) clipped to [eps, 1 − eps].

    >>> clipped_log_probs(np.array([[0.0, 1000.0]])).round(4)
    array([[-36.0437,  -0.    ]])
    """
    x = np.asarray(log_softmax(logits.astype(np.float64, copy=False)), dtype=np.float64)
    return np.clip(x, np.log(eps), np.log1p(-eps), out=x)


def top_hits(logits: FloatArray, y: IntArray) -> Float64:
    """Return 1 where the label has the top score, 1/t where it shares it with t − 1 classes, else 0; (N,).

    ``argmax`` would give a tie to the class of the lowest number.

    >>> top_hits(np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([1, 1]))
    array([1. , 0.5])
    """
    best = logits.max(axis=1)
    ties = np.count_nonzero(logits == best[:, None], axis=1)
    return np.asarray((logits[np.arange(len(y)), y] == best) / ties, dtype=np.float64)


def present_classes(y: IntArray, weight: Float64 | None, n_classes: int) -> IntArray:
    """Return the classes that have rows (of positive weight), ascending.

    >>> present_classes(np.array([2, 0, 2]), None, 4)
    array([0, 2])
    """
    seen = np.bincount(y if weight is None else y[weight > 0], minlength=n_classes)
    return np.flatnonzero(seen).astype(np.int64)


def whole_number(name: str, value: Any, least: int) -> int:
    """Return a parameter that counts something, or say what it must be.

    >>> whole_number("bins", 15, 1)
    15
    """
    if not isinstance(value, Real) or not float(value).is_integer() or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {kind}, got {value!r}")
    return int(float(value))


def places_among(present: IntArray, y: IntArray) -> IntArray:
    """Return where labels stand among the present classes; rows of weight 0 may lack a place: any does.

    >>> places_among(np.array([0, 2]), np.array([2, 0]))
    array([1, 0])
    """
    return np.minimum(np.searchsorted(present, y), len(present) - 1)


def keep_absent(inner: FloatArray, logits: FloatArray, present: IntArray) -> FloatArray:
    """Return probabilities where absent classes keep softmax(z) and the present ones share the rest.

    An unpenalised likelihood would send a class that never occurs to probability 0: no evidence for that.

    ``inner`` (N, C) are probabilities over the C present classes.

    >>> keep_absent(np.array([[0.1, 0.9]]), np.log([[0.5, 0.2, 0.3]]), np.array([1, 2])).round(3)
    array([[0.5 , 0.05, 0.45]])
    """
    if len(present) == logits.shape[1]:
        return inner
    out = softmax(logits)
    out[:, present] = inner * out[:, present].sum(axis=1, keepdims=True)
    return out
