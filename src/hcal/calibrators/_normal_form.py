"""The normal form of logits for methods that look at single logits, and fair treatment of tied classes.

Softmax sees neither a constant added to a row nor the numbers of the classes; a function of single logits, a
random start a class, or a search that rounding may send elsewhere does. See
docs/decisions/098-centred-logits.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.calibrators.base import State
from hcal.calibrators.state import Field, StateSpec
from hcal.numerics import NOTHING, Float64, FloatArray, IntArray, centred
from hcal.runtime.ops import Ops
from hcal.solvers.temperature import logit_scale

#: Marks states whose method was fitted on centred logits; files of hcal 0.1 lack it.
MARK: State = {"centred": np.array(1, dtype=np.int64)}
MARKED = StateSpec(
    (Field("centred", "1: the logits of a row are centred first", (), 1, 1, "int64", optional=True),)
)
_GRID = 2.0**-32


def to_fit(logits: FloatArray) -> Float64:
    """Return centred logits on a grid of 2e-10 of their typical spread.

    A search that is not convex, or stops early, ends elsewhere when its input differs by rounding; on the
    grid, rows with another constant, or other classes first, are the same numbers.
    Shapes: logits (N, K) → (N, K).

    >>> z = np.array([[0.1, 0.2, 0.4], [3.0, 1.0, 1.0]])
    >>> bool((to_fit(z) == to_fit(z + 0.7)).all())
    True
    """
    x = np.asarray(centred(logits.astype(np.float64, copy=False)), dtype=np.float64)
    typical = float(np.median(x.max(axis=1) - x.min(axis=1)))
    unit = _GRID * (2.0 ** np.floor(np.log2(typical)) if typical > NOTHING else 1.0)
    fine = np.abs(x) < unit * 2.0**60  # above, floats are coarser than the grid
    np.rint(np.divide(x, unit, out=x, where=fine), out=x, where=fine)
    return np.multiply(x, unit, out=x, where=fine)


def ranked_units(
    logits: FloatArray, y: IntArray, weight: Float64 | None, max_events: int, usual: float = 1.0
) -> tuple[Float64, IntArray, Float64 | None, float]:
    """Return thinned rows by rank in their unit, where their labels stand, their weights, and the unit.

    The unit is 1 for logits of a usual scale, as published, else what brings them to the scale ``usual``.

    >>> ranked_units(np.array([[0.0, 3000.0]]), np.array([0]), None, 10)[3]
    1500.0
    """
    every = -(-logits.size // max_events)
    # One function for all classes: their numbers need not be known.
    x, own = by_rank(to_fit(logits[::every]), y[::every])
    scale = logit_scale(x)
    unit = 1.0 if scale == 0 or 0.5 <= scale <= 100 else scale / usual
    x /= unit
    return x, own, None if weight is None else weight[::every], unit


def to_predict(state: State, logits: FloatArray) -> Float64:
    """Return what a fitted method takes: centred logits, or, from a file of hcal 0.1, the logits themselves.

    >>> to_predict(MARK, np.array([[1.0, 3.0]])), to_predict({}, np.array([[1.0, 3.0]]))
    (array([[-1.,  1.]]), array([[1., 3.]]))
    """
    x = logits.astype(np.float64, copy=False)
    return np.asarray(centred(x), dtype=np.float64) if "centred" in state else x


def to_predict_graph(state: State, ops: Ops, x: Any, n_classes: int) -> Any:
    """Return the same as :func:`to_predict` in portable operations.

    >>> from hcal.runtime.ops import NumpyOps
    >>> to_predict_graph(MARK, NumpyOps(), np.array([[1.0, 3.0]]), 2)
    array([[-1.,  1.]])
    """
    if "centred" not in state:
        return x
    below = x - ops.max(x)
    return below - ops.sum(below) / n_classes


def by_rank(x: Float64, y: IntArray) -> tuple[Float64, IntArray]:
    """Return each row's values in falling order, and where the label's stands.

    What treats all classes alike needs no more, and then does not see their numbers.

    >>> by_rank(np.array([[1.0, 3.0, 2.0]]), np.array([0]))
    (array([[3., 2., 1.]]), array([2]))
    """
    own = x[np.arange(len(y)), y]
    place = (x > own[:, None]).sum(axis=1)
    return -np.sort(-x, axis=1), np.asarray(place, dtype=np.int64)


def average_ties(values: FloatArray, keys: FloatArray) -> None:
    """Give classes of equal key the mean of their values, in place.

    Keys (N, K) are sorted along rows, so that equal ones are neighbours.

    >>> values = np.array([[0.5, 0.3, 0.2]])
    >>> average_ties(values, np.array([[2.0, 1.0, 1.0]]))
    >>> values
    array([[0.5 , 0.25, 0.25]])
    """
    tied = keys[:, 1:] == keys[:, :-1]
    rows = np.flatnonzero(tied.any(axis=1))
    if not rows.size:
        return
    starts = np.concatenate([np.ones((len(rows), 1), dtype=bool), ~tied[rows]], axis=1).ravel()
    first = np.flatnonzero(starts)
    size = np.diff(first, append=len(starts))
    mean = np.add.reduceat(values[rows].ravel(), first) / size
    values[rows] = np.repeat(mean, size).reshape(len(rows), -1)
