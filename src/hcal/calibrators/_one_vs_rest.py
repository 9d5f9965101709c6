"""One-vs-rest, written once: a curve per class on (p_k, [y = k]), then rows divided by their sum.

The sources of these methods give NaN for a row of zeros and a column of zeros for a class that the
calibration set lacks; here the row stays uncalibrated and the class keeps its p_k.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from hcal.calibrators.base import Calibrator, Fitted, State
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import Field, Order, Rule, Sizes, StateArrays, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, softmax

#: Knots and values of the curve of one class.
Curve = tuple[Float64, Float64]
#: Learns one curve from p_k, the marks [y = k] and the weights, all of shape (N,).
FitCurve = Callable[[Float64, Float64, Float64 | None], Curve]
#: Evaluates a curve: (p_k, knots, values) -> calibrated scores.
Evaluate = Callable[[Float64, Float64, Float64], Float64]

#: Marks states fitted on rounded probabilities; files of hcal 0.1 lack it.
ROUNDED: State = {"rounded": np.array(1, dtype=np.int64)}
ROUNDED_FIELD = Field(
    "rounded", "1: probabilities are rounded to ten digits first", (), 1, 1, "int64", optional=True
)
_DIGITS = 2.0**34
_COLUMNS = 64  # columns copied at a time: a strided read of one column costs as much as of a cache line

#: Probabilities that were averaged may pass 1 by rounding.
MOST = 1 + 1e-9
FLOOR = Field("floor", "added to every probability before the last normalisation", low=0)


def offsets_field(what: str, dim: str = "K+1", order: Order = "not falling") -> Field:
    """Return the array that says which of P points belong to which curve."""
    return Field("offsets", what, (dim,), 0, "P", "int64", order)


def _rises_in_each(state: StateArrays, _: Sizes) -> bool:
    falls = np.flatnonzero(state["knots"][1:] < state["knots"][:-1]) + 1
    return bool(np.isin(falls, state["offsets"]).all())


#: The state of the methods that are a curve a class.
CURVES = StateSpec(
    (
        offsets_field("class k owns knots offsets[k] to offsets[k+1]"),
        Field("knots", "where the curves are given, class after class", ("P",), 0, MOST),
        Field("values", "of the curves there", ("P",), 0, MOST),
        FLOOR,
        ROUNDED_FIELD,
    ),
    {"P": ("points of all curves", 0)},
    (
        Rule(
            "offsets",
            "begin with 0 and end with P",
            lambda s, n: s["offsets"][0] == 0 and s["offsets"][-1] == n["P"],
        ),
        Rule("knots", "not fall within a class", _rises_in_each),
    ),
)


def probabilities(logits: FloatArray, state: State = ROUNDED) -> FloatArray:
    """Return softmax rounded to ten digits, or, for the state of a file of hcal 0.1, as it is.

    Steps and pools ask whether two probabilities are equal, or equal to an edge. Where they are by the scores
    (votes of a forest, p = ½), the last bit of a softmax must not decide.

    >>> z = np.log([[0.1, 0.2, 0.7], [0.1, 0.7, 0.2]]) + np.array([[0.3], [7.0]])
    >>> p = probabilities(z)
    >>> bool(p[0, 1] == p[1, 2])
    True
    """
    probs = softmax(logits)
    return ten_digits(probs) if "rounded" in state else probs


def ten_digits(x: FloatArray) -> Float64:
    """Return numbers rounded to ten digits: what is equal but for rounding is equal.

    >>> bool(ten_digits(np.array(0.1 + 0.2)) == ten_digits(np.array(0.3)))
    True
    """
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(mantissa * _DIGITS), exponent) / _DIGITS, dtype=np.float64)


def columns(probs: FloatArray) -> Iterator[tuple[int, Float64]]:
    """Yield (k, contiguous copy of column k), reading the matrix in blocks of columns.

    >>> [(k, column.tolist()) for k, column in columns(np.eye(2))]
    [(0, [1.0, 0.0]), (1, [0.0, 1.0])]
    """
    for start in range(0, probs.shape[1], _COLUMNS):
        block = np.ascontiguousarray(probs[:, start : start + _COLUMNS].T, dtype=np.float64)
        for i, column in enumerate(block):
            yield start + i, column


def fit_curves(probs: FloatArray, y: IntArray, weight: Float64 | None, fit_one: FitCurve) -> State:
    """Fit a curve to every class that has rows; one without any gets an empty curve.

    The curves stand end to end: class k owns ``knots[offsets[k]:offsets[k+1]]`` and the same of ``values``.

    >>> state = fit_curves(np.eye(2), np.array([0, 0]), None, lambda p, hit, w: (p, hit))
    >>> state["offsets"]
    array([0, 2, 2])
    """
    mass = np.bincount(y, weights=weight, minlength=probs.shape[1])
    empty = np.empty(0), np.empty(0)
    curves = [
        fit_one(p, (y == k).astype(np.float64), weight) if mass[k] > 0 else empty for k, p in columns(probs)
    ]
    return end_to_end(curves)


def end_to_end(curves: list[Curve]) -> State:
    """Return curves as one state."""
    knots, values = zip(*curves, strict=True)
    offsets = np.cumsum([0, *map(len, knots)], dtype=np.int64)
    return {"offsets": offsets, "knots": np.concatenate(knots), "values": np.concatenate(values)}


def evaluate_curves(state: State, scores: FloatArray, evaluate: Evaluate) -> Float64:
    """Return each column's curve at that column, scores (N, K) → (N, K); without one, the column itself.

    >>> state = {"offsets": np.array([0, 1, 1]), "knots": np.array([1.0]), "values": np.array([0.2])}
    >>> evaluate_curves(state, np.array([[0.4, 0.6]]), step)
    array([[0.2, 0.6]])
    """
    offsets, out = state["offsets"], np.empty(scores.shape)
    for k, p in columns(scores):
        own = slice(offsets[k], offsets[k + 1])
        out[:, k] = evaluate(p, state["knots"][own], state["values"][own]) if own.stop > own.start else p
    return out


def apply_curves(
    state: State, scores: FloatArray, evaluate: Evaluate, *, uncalibrated: FloatArray | None = None
) -> Float64:
    """Evaluate each class's curve on its column and normalise the rows; a class without one keeps its column.

    ``state`` is that of :func:`fit_curves` with a ``floor``, ``evaluate`` is :func:`step` or :func:`line`,
    scores have shape (N, K). A row of zeros becomes that of ``uncalibrated``, by default the scores
    themselves.

    >>> state = {"offsets": np.array([0, 1, 1]), "knots": np.array([1.0]), "values": np.array([0.2])}
    >>> apply_curves(state | {"floor": np.array(0.0)}, np.array([[0.4, 0.6]]), step)
    array([[0.25, 0.75]])
    """
    raw = evaluate_curves(state, scores, evaluate)
    return normalise(raw, scores if uncalibrated is None else uncalibrated, float(state["floor"]))


def normalise(raw: Float64, probs: FloatArray, floor: float) -> Float64:
    """Divide rows by their sum (a row of zeros becomes the uncalibrated one), then lift zeros by the floor.

    ``raw`` (N, K) is changed in place; p becomes (p + floor)/(1 + K·floor).

    >>> normalise(np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([[0.5, 0.5], [0.9, 0.1]]), 0.0)
    array([[0.25, 0.75],
           [0.9 , 0.1 ]])
    """
    sums = raw.sum(axis=1, keepdims=True)
    nothing = np.flatnonzero(sums[:, 0] <= 0)
    raw[nothing] = probs[nothing]
    sums[nothing] = 1.0
    raw /= sums
    if floor > 0:
        raw += floor
        raw /= 1 + raw.shape[1] * floor
    return raw


def default_floor(floor: float | None, n_rows: float, n_classes: int) -> Float64:
    """Return the floor to use: 1/(N·K) unless the user names one.

    1/(N·K) is the same as mixing each row with the uniform one at weight 1/(N + 1): N rows cannot show an
    event to be rarer than about that, and a zero bin then costs log(N·K) instead of an infinite NLL.

    >>> float(default_floor(None, 50, 2)), float(default_floor(None, 1e-200, 4))
    (0.01, 0.25)
    """
    if floor is None:
        return np.array(1.0 / (max(n_rows, 1.0) * n_classes))  # weights may sum to less than a row
    if not (np.isfinite(floor) and floor >= 0):
        raise ValueError(f"floor must be finite and at least 0, got {floor!r}")
    return np.array(float(floor))


def step(p: Float64, knots: Float64, values: Float64) -> Float64:
    """Look up a step function with bins (lo, hi], ``knots`` being the upper ends; the first holds 0 too.

    >>> step(np.array([0.0, 0.5, 0.6]), np.array([0.5, 1.0]), np.array([0.1, 0.9]))
    array([0.1, 0.1, 0.9])
    """
    found: Float64 = values[np.minimum(np.searchsorted(knots, p, side="left"), len(values) - 1)]
    return found


def line(p: Float64, knots: Float64, values: Float64) -> Float64:
    """Interpolate linearly between knots, constant outside them.

    >>> line(np.array([0.0, 0.3]), np.array([0.2, 0.4]), np.array([0.1, 0.5]))
    array([0.1, 0.3])
    """
    return np.interp(p, knots, values)


@parameters
class CurvePerClass(Calibrator):
    """A curve per class on (p_k, [y = k]): subclasses say how one is learned and looked up."""

    state_specs = (CURVES,)
    #: :func:`step` or :func:`line`.
    look_up: ClassVar[Evaluate]

    floor: float | None = None
    input: InputKind = "logits"

    @abstractmethod
    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        """Return what learns the curve of one class, after checks of parameters and rows."""

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        probs = probabilities(logits)
        learner = self._curve(probs, y)
        curves = fit_curves(probs, y, sample_weight, learner)
        total = len(y) if sample_weight is None else float(sample_weight.sum())
        floor = default_floor(self.floor, total, logits.shape[1])
        return Fitted(curves | {"floor": floor} | ROUNDED, info=self._facts(learner))

    def _facts(self, learner: Any) -> dict[str, Any]:
        """Return what ``info_`` says of the learner of the curves."""
        return {}

    def _predict(self, logits: FloatArray) -> FloatArray:
        return apply_curves(self.state_, probabilities(logits, self.state_), type(self).look_up)
