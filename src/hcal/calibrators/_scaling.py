"""Maps that are linear in logits or log-probabilities, and what the scaling methods share."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.calibrators.base import Calibrator, Fitted
from hcal.maps.base import STEEP, Map, array, map_type
from hcal.numerics import Float64, FloatArray, IntArray, log_softmax
from hcal.xp import Array, namespace

#: Probabilities are clipped to [eps, 1 − eps] before a logarithm, as the published scaling methods do.
EPS = float(np.finfo(np.float64).eps)
_LEAST, _MOST = float(np.log(EPS)), float(np.log1p(-EPS))


@map_type
class Temperature(Map):
    """log softmax(βx) with the inverse temperature β = 1/T."""

    float32_safe = True
    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)

    def __call__(self, x: Array) -> Array:
        xp = namespace(x)
        return xp.log_softmax(xp.astype(self.beta, x) * (x - xp.row_max(x)))


class OneTemperature(Calibrator):
    """softmax(z/T): methods that differ only in how they find T."""

    preserves = "order"
    weighted = True
    map_types = (Temperature,)

    def _found(self, beta: float, converged: bool, message: str, /, **facts: float) -> Fitted:
        """Return what the fit learned: β = 1/T, and what else there is to tell."""
        return Fitted(
            Temperature(beta=np.array(beta)), converged, message, {"temperature": 1 / beta, **facts}
        )


def clipped_log_probs(x: Array) -> Array:
    """Return ln p of p = softmax(x) clipped to [eps, 1 − eps].

    >>> clipped_log_probs(np.array([[0.0, 1000.0]])).round(4)
    array([[-36.0437,  -0.    ]])
    """
    xp = namespace(x)
    return xp.clip(xp.log_softmax(x), _LEAST, _MOST)


def only_present(log_inner: Array, x: Array, present: Array) -> Array:
    """Return log-probabilities where absent classes keep softmax(x) and the present ones share the rest.

    An unpenalised likelihood would send a class that never occurs to probability 0: no evidence for that.
    ``log_inner`` (N, C) are log-probabilities over the C present classes.

    >>> x, inner = np.log([[0.5, 0.2, 0.3]]), np.log([[0.1, 0.9]])
    >>> np.exp(only_present(inner, x, np.array([1, 2]))).round(3)
    array([[0.5 , 0.05, 0.45]])
    """
    if present.shape[0] == x.shape[-1]:
        return log_inner
    xp = namespace(x)
    log_p = xp.log_softmax(x)
    shared = log_inner + xp.log_sum_exp(log_p[..., present])
    index = 0 * xp.argmax(log_p) + present
    return xp.put_along(log_p, index, shared)


def present_classes(y: IntArray, weight: Float64 | None, n_classes: int) -> IntArray:
    """Return the classes that have rows (of positive weight), ascending.

    >>> present_classes(np.array([2, 0, 2]), None, 4)
    array([0, 2])
    """
    seen = np.bincount(y if weight is None else y[weight > 0], minlength=n_classes)
    return np.flatnonzero(seen).astype(np.int64)


def present_field() -> Any:
    """Declare the classes that had calibration rows, where the others keep their probability."""
    return array("classes with calibration rows", "C", low=0, dtype="int64", order="increasing")


def places_among(present: IntArray, y: IntArray) -> IntArray:
    """Return where labels stand among the present classes.

    >>> places_among(np.array([0, 2]), np.array([2, 0]))
    array([1, 0])
    """
    return np.minimum(np.searchsorted(present, y), len(present) - 1)


def top_hits(logits: FloatArray, y: IntArray) -> Float64:
    """Return 1 where the label has the top score, 1/t where it shares it with t − 1 classes, else 0; (N,).

    ``argmax`` would give a tie to the class of the lowest number.

    >>> top_hits(np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([1, 1]))
    array([1. , 0.5])
    """
    best = logits.max(axis=1)
    ties = np.count_nonzero(logits == best[:, None], axis=1)
    return np.asarray((logits[np.arange(len(y)), y] == best) / ties, dtype=np.float64)


def log_probs_of(x: FloatArray) -> Float64:
    """Return ln softmax (N, K) in float64."""
    return np.asarray(log_softmax(x.astype(np.float64, copy=False)), dtype=np.float64)
