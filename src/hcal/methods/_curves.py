"""One-vs-rest methods: a curve for each class, fitted to (p_k, [y = k]), after which rows are divided by their sum.

The published code gives NaN if all curves of a row are 0, and probability 0 to a class without calibration rows. Here
such a row stays uncalibrated and such a class keeps its p_k.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import numpy as np

from hcal import xp
from hcal.maps.base import ProbabilityMap, array, map_type, option
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import NotNegative, parameters
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray, run_starts, softmax
from hcal.rows import Rows
from hcal.text import JsonObject
from hcal.xp import Array, namespace

#: Knots and values of the curve of one class.
Points = tuple[Float64, Float64]
#: A function that learns one curve from p_k, the indicators [y = k] and the weights, all of shape (N,).
FitCurve = Callable[[Float64, Float64, Float64 | None], Points]
#: Steps (lo, hi] with knots at their upper ends; lines, constant beyond the ends; lines that continue beyond the ends.
Shape = Literal["step", "line", "straight on"]
#: The largest value of a probability: an average of probabilities may exceed 1 by rounding.
MOST = 1 + 1e-9

#: A curve without points, which changes nothing.
NO_POINTS: Points = (np.empty(0), np.empty(0))

#: Columns copied at a time: reading one column of an array costs as much as reading a cache line of them.
_COLUMNS = 64


def read_curves(x: Array, offsets: Array, knots: Array, values: Array, shape: str) -> Array:
    """Evaluate the curve of each column at that column's values, x (N, E) → (N, E).

    The curves are stored one after the other: column e has ``knots[offsets[e] : offsets[e + 1]]`` and the same slice of
    ``values``. A column with an empty curve is returned unchanged.

    >>> offsets, knots, values = np.array([0, 2, 2]), np.array([0.5, 1.0]), np.array([0.1, 0.9])
    >>> read_curves(np.array([[0.5, 0.6], [0.6, 0.4]]), offsets, knots, values, "step")
    array([[0.1, 0.6],
           [0.9, 0.4]])
    """
    if knots.shape[0] == 0:
        return x
    if shape == "step":
        heights = _read_steps(x, offsets, knots, values)
    else:
        heights = _read_lines(x, offsets, knots, values, beyond_ends=shape == "straight on")
    has_curve = offsets[1:] > offsets[:-1]
    return namespace(x).where(has_curve, heights, x)


def _read_steps(x: Array, offsets: Array, knots: Array, values: Array) -> Array:
    xp = namespace(x)
    start = offsets[:-1]
    last_of_curve = offsets[1:] - 1
    step = xp.minimum(start + xp.segment_search(knots, offsets, x), last_of_curve)
    return xp.take(values, xp.clip(step, 0, knots.shape[0] - 1))


def _read_lines(
    x: Array, offsets: Array, knots: Array, values: Array, *, beyond_ends: bool
) -> Array:
    xp = namespace(x)
    last = knots.shape[0] - 1
    start = offsets[:-1]
    end = offsets[1:] - 1

    # The two knots around each value; outside the knots, the two next to it.
    low = start + xp.segment_search(knots, offsets, x, side="right") - 1
    low = xp.clip(xp.maximum(xp.minimum(low, end - 1), start), 0, last)
    high = xp.clip(xp.minimum(low + 1, end), 0, last)
    left = xp.take(knots, low)
    width = xp.take(knots, high) - left
    bottom = xp.take(values, low)
    rise = xp.take(values, high) - bottom

    along = x
    if not beyond_ends:
        first = xp.take(knots, xp.clip(start, 0, last))
        final = xp.take(knots, xp.clip(end, 0, last))
        along = xp.clip(x, first, final)
    share = (along - left) / xp.where(width > 0, width, 1.0)
    return bottom + xp.where(width > 0, share, 0.0) * rise


def check_curves(offsets: IntArray, knots: Float64) -> None:
    """Raise a ValueError if the offsets do not span the knots, or the knots of a curve are not ascending."""
    if offsets[0] != 0 or offsets[-1] != len(knots):
        raise ValueError(f"'offsets' must begin with 0 and end with {len(knots)}")
    falls = np.flatnonzero(knots[1:] < knots[:-1]) + 1
    if not np.isin(falls, offsets).all():
        raise ValueError("'knots' must not fall within a curve")


def normalised(raw: Array, probs: Array, floor: Array) -> Array:
    """Divide rows by their sum, then replace p by (p + floor)/(1 + K·floor), so that no probability is 0.

    A row of zeros is replaced by the row of ``probs``.

    >>> normalised(np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[0.5, 0.5], [0.9, 0.1]]), np.array(0.0))
    array([[0.25, 0.75],
           [0.9 , 0.1 ]])
    """
    xp = namespace(raw)
    total = xp.row_sum(raw)
    divided = raw / xp.where(total > 0, total, 1.0)
    shares = xp.where(total > 0, divided, probs)
    return (shares + floor) / (1 + raw.shape[-1] * floor)


@map_type
class Curves(ProbabilityMap):
    """A curve for the probability of each class, and rows divided by their sum.

    Probabilities are rounded to ten digits first. A step function compares them with its edges, and where scores are
    equal by construction (votes of a forest, p = ½) the rounding of a softmax must not decide.
    """

    shape: str = option("how a curve is read", ("step", "line", "straight on"))
    offsets: Array = array(
        "column k owns points offsets[k] to offsets[k+1]",
        "K+1",
        low=0,
        dtype="int64",
        order="not falling",
    )
    knots: Array = array("where the curves are given, class after class", "P", low=0, high=MOST)
    values: Array = array("of the curves there", "P", low=0, high=MOST)
    floor: Array = array("added to every probability before the last normalisation", low=0)

    def probabilities(self, x: Array) -> Array:
        xp = namespace(x)
        probs = xp.rounded(xp.softmax(x))
        return normalised(self.raw(probs), probs, self.floor)

    def raw(self, probs: Array) -> Array:
        """Return the curves at the probabilities (N, K), before rows are divided by their sum."""
        return read_curves(probs, self.offsets, self.knots, self.values, self.shape)

    expansion = 4

    def check(self) -> None:
        check_curves(self.offsets, self.knots)


def columns(probs: FloatArray) -> Iterator[tuple[int, Float64]]:
    """Yield (k, contiguous copy of column k); the matrix is read in blocks of columns.

    >>> [(k, column.tolist()) for k, column in columns(np.eye(2))]
    [(0, [1.0, 0.0]), (1, [0.0, 1.0])]
    """
    for start in range(0, probs.shape[1], _COLUMNS):
        block = np.ascontiguousarray(probs[:, start : start + _COLUMNS].T, dtype=np.float64)
        for i, column in enumerate(block):
            yield start + i, column


def fit_curves(
    probs: FloatArray, y: IntArray, weight: Float64 | None, fit_one: FitCurve
) -> JsonObject:
    """Fit a curve to every class; a class without rows gets an empty curve.

    >>> fit_curves(np.eye(2), np.array([0, 0]), None, lambda p, hit, w: (p, hit))["offsets"]
    array([0, 2, 2])
    """
    mass = np.bincount(y, weights=weight, minlength=probs.shape[1])
    curves = []
    for k, p in columns(probs):
        hit = (y == k).astype(np.float64)
        curves.append(fit_one(p, hit, weight) if mass[k] > 0 else NO_POINTS)
    return end_to_end(curves)


def end_to_end(curves: list[Points]) -> JsonObject:
    """Return curves, one after the other, as ``offsets``, ``knots`` and ``values``."""
    knots, values = zip(*curves, strict=True)
    offsets = np.cumsum([0, *map(len, knots)], dtype=np.int64)
    return {"offsets": offsets, "knots": np.concatenate(knots), "values": np.concatenate(values)}


def default_floor(floor: float | None, n_rows: float, n_classes: int) -> Float64:
    """Return the floor of the probabilities: 1/(N·K) unless the user gives one.

    A floor of 1/(N·K) mixes each row with the uniform distribution at weight 1/(N + 1). N rows cannot show that an
    event is much rarer, and an event in an empty bin costs log(N·K) instead of an infinite NLL.

    >>> float(default_floor(None, 50, 2)), float(default_floor(None, 1e-200, 4))
    (0.01, 0.25)
    """
    if floor is not None:
        return np.array(float(floor))
    rows = max(n_rows, 1.0)  # weights may sum to less than 1
    return np.array(1.0 / (rows * n_classes))


def pool_equal(
    p: Float64, hit: NumpyArray, weight: Float64 | None
) -> tuple[Float64, Float64, Float64]:
    """Sort by p and pool equal values: return the distinct p, and the total weight and weighted hits of each.

    >>> pool_equal(np.array([0.5, 0.2, 0.5]), np.array([1.0, 0.0, 0.0]), None)
    (array([0.2, 0.5]), array([1., 2.]), array([0., 1.]))
    """
    mass = np.ones(len(p)) if weight is None else weight
    order = np.argsort(p, kind="stable")
    p = p[order]
    first = run_starts(p)
    pooled_mass = np.add.reduceat(mass[order], first)
    pooled_hits = np.add.reduceat((hit * mass)[order], first)
    return p[first], pooled_mass, pooled_hits


@parameters
class CurvePerClass(Calibrator):
    """A curve for each class, fitted to (p_k, [y = k]); subclasses say how a curve is learned and interpolated."""

    map_types = (Curves,)
    shape: ClassVar[Shape]

    floor: NotNegative | None = None

    @abstractmethod
    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        """Check parameters and rows, and return the function that learns the curve of one class."""

    def _fit(self, rows: Rows) -> Fitted:
        x = rows.x
        y = rows.labels
        weight = rows.weight
        probs = xp.rounded(softmax(x))
        curves = fit_curves(probs, y, weight, self._curve(probs, y))
        total = len(y) if weight is None else float(weight.sum())
        floor = default_floor(self.floor, total, x.shape[1])
        return Fitted(Curves(shape=self.shape, floor=floor, **curves))
