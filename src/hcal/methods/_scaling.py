"""Shared by the scaling methods: their maps, and logits that are centred, rounded to a grid, sorted or thinned out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hcal.maps.base import STEEP, Map, array, map_type
from hcal.methods.base import Calibrator, Fitted
from hcal.numerics import NOTHING, Float64, FloatArray, IntArray
from hcal.rows import Rows
from hcal.solvers.temperature import SolvedTemperature, logit_scale
from hcal.xp import Array, namespace

#: Probabilities are clipped to [eps, 1 − eps] before a logarithm, as the published scaling methods do.
EPS = float(np.finfo(np.float64).eps)
#: The width of the grid of logits, relative to their typical spread.
_GRID = 2.0**-32
_LEAST = float(np.log(EPS))
_MOST = float(np.log1p(-EPS))


@map_type
class Temperature(Map):
    """log softmax(βx) with the inverse temperature β = 1/T."""

    float32_safe = True
    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        return xp.log_softmax(xp.astype(self.beta, x) * (x - xp.row_max(x)))


class OneTemperature(Calibrator):
    """Base of the methods with prediction softmax(z/T), which differ only in how they find T."""

    promises = "order"
    weighted = True
    map_types = (Temperature,)

    def _solution(self, solved: SolvedTemperature, **facts: float) -> Fitted:
        """Return the result of a fit; ``facts`` are added to its details."""
        details = {"temperature": 1 / solved.beta, **facts}
        scaling = Temperature(beta=np.array(solved.beta))
        return Fitted(scaling, solved.converged, solved.message, details)


def clipped_log_probs(x: Array) -> Array:
    """Return ln p of p = softmax(x) clipped to [eps, 1 − eps], as the published scaling methods do.

    >>> clipped_log_probs(np.array([[0.0, 1000.0]])).round(4)
    array([[-36.0437,  -0.    ]])
    """
    xp = namespace(x)
    return xp.clip(xp.log_softmax(x), _LEAST, _MOST)


@map_type
class ClassLines(Map):
    """softmax of a ln p − b ln(1 − p) + c over the classes with calibration rows; vector scaling has no b.

    The other classes keep their probability: the likelihood alone would move a class that never occurs to probability
    0, and a small sample is no evidence for that.
    """

    present: Array = array(
        "classes with calibration rows", "C", low=0, dtype="int64", order="increasing"
    )
    slopes: Array = array("of ln p, and of −ln(1 − p) if it is used", "A", "C")
    offsets: Array = array("of a class", "C")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        scores = self.offsets
        for i, feature in enumerate(class_features(x, self.slopes.shape[0])):
            scores = scores + feature[..., self.present] * self.slopes[i]
        log_inner = xp.log_softmax(scores)
        if self.present.shape[0] == x.shape[-1]:
            return log_inner

        log_p = xp.log_softmax(x)
        shared = log_inner + xp.log_sum_exp(log_p[..., self.present])
        positions = 0 * xp.argmax(log_p) + self.present  # the same for every row
        return xp.put_along(log_p, positions, shared)

    def check_fields(self, sizes: Mapping[str, int]) -> None:
        """Raise a ValueError that names a field that is not as declared."""
        super().check_fields(sizes)
        if self.present[-1] >= sizes.get("K", np.inf):
            raise ValueError(
                f"'present' holds {self.present[-1]}, declared are classes below {sizes['K']}"
            )
        if self.slopes.shape[0] not in (1, 2):
            raise ValueError(f"'slopes' has {self.slopes.shape[0]} rows, declared are one or two")


def class_features(x: Array, count: int) -> list[Array]:
    """Return ln p and, if two are asked for, −ln(1 − p), with p and 1 − p clipped to [eps, 1 − eps].

    1 − p of the top class is the sum of the other classes, since subtracting would lose all digits near p = 1.

    >>> [f.round(4).tolist() for f in class_features(np.array([[0.0, 40.0]]), 2)]
    [[[-36.0437, -0.0]], [[0.0, 36.0437]]]
    """
    if count == 1:
        return [clipped_log_probs(x)]
    xp = namespace(x)
    p = xp.softmax(x)
    top = xp.argmax(x)
    rest_of_top = xp.row_sum(xp.put_along(p, top, 0.0))
    rest = xp.put_along(1 - p, top, rest_of_top)
    return [clipped_log_probs(x), -xp.log(xp.clip(rest, EPS, 1 - EPS))]


def present_classes(y: IntArray) -> tuple[IntArray, IntArray]:
    """Return the classes that have rows, ascending, and the index of each label among them."""
    present, place = np.unique(y, return_inverse=True)
    return present.astype(np.int64), place.astype(np.int64)


def top_hits(logits: FloatArray, y: IntArray) -> Float64:
    """Return 1 if the label has the top score, 1/t if t classes share the top score, else 0; (N,).

    ``argmax`` would decide a tie for the class with the lowest number.

    >>> top_hits(np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([1, 1]))
    array([1. , 0.5])
    """
    best = logits.max(axis=1)
    ties = np.count_nonzero(logits == best[:, None], axis=1)
    return np.asarray((logits[np.arange(len(y)), y] == best) / ties, dtype=np.float64)


def without_mean(x: Array) -> Array:
    """Return logits (N, K) minus their mean over the classes, which does not change their softmax.

    >>> without_mean(np.array([[1.0, 3.0]]))
    array([[-1.,  1.]])
    """
    xp = namespace(x)
    below = x - xp.row_max(x)
    return below - xp.row_sum(below) / x.shape[-1]


def on_grid(x: FloatArray) -> Float64:
    """Return centred logits (N, K) on a grid of 2e-10 of their typical spread.

    A search that is not convex, or stops early, may end elsewhere if its input differs by rounding. On the grid,
    adding a constant to a row or reordering the classes gives exactly the same numbers.

    >>> z = np.array([[0.1, 0.2, 0.4], [3.0, 1.0, 1.0]])
    >>> bool((on_grid(z) == on_grid(z + 0.7)).all())
    True
    """
    x = np.asarray(without_mean(x.astype(np.float64, copy=False)), dtype=np.float64)
    typical = float(np.median(x.max(axis=1) - x.min(axis=1)))
    unit = _GRID * (2.0 ** np.floor(np.log2(typical)) if typical > NOTHING else 1.0)
    fine = np.abs(x) < unit * 2.0**60  # above, floats are coarser than the grid
    np.rint(np.divide(x, unit, out=x, where=fine), out=x, where=fine)
    return np.multiply(x, unit, out=x, where=fine)


def by_rank(x: Float64, y: IntArray) -> tuple[Float64, IntArray]:
    """Return the values of each row in falling order, and the rank of the label's value.

    A method that treats all classes alike needs nothing else, and then does not depend on the numbers of the classes.

    >>> by_rank(np.array([[1.0, 3.0, 2.0]]), np.array([0]))
    (array([[3., 2., 1.]]), array([2]))
    """
    label_values = x[np.arange(len(y)), y]
    rank = (x > label_values[:, None]).sum(axis=1)
    return -np.sort(-x, axis=1), np.asarray(rank, dtype=np.int64)


class ThinnedRows(NamedTuple):
    """Every n-th row of logits, sorted and divided by a unit."""

    logits: Float64  # (n, K)
    labels: IntArray  # (n,) the rank of the label's logit
    weight: Float64 | None  # (n,)
    unit: float


def thinned_ranks(rows: Rows, max_events: int, usual: float = 1.0) -> ThinnedRows:
    """Return every n-th row of logits, sorted and divided by a unit; at most ``max_events`` logits are kept.

    The unit is 1 for logits of a usual scale, as published; otherwise it brings them to the scale ``usual``.

    >>> thinned_ranks(Rows(np.array([[0.0, 3000.0]]), "logits", y=np.array([0])), 10).unit
    1500.0
    """
    kept = slice(None, None, thinning_step(rows, max_events))
    # All classes share one function, so rows can be sorted.
    ranked, labels = by_rank(on_grid(rows.x[kept]), rows.labels[kept])
    scale = logit_scale(ranked)
    is_usual = scale == 0 or 0.5 <= scale <= 100
    unit = 1.0 if is_usual else scale / usual
    weight = None if rows.weight is None else rows.weight[kept]
    return ThinnedRows(ranked / unit, labels, weight, unit)


def thinning_step(rows: Rows, max_events: int) -> int:
    """Return n where every n-th row has at most ``max_events`` logits."""
    return -(-rows.x.size // max_events)
