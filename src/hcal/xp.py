"""The operations that numpy and torch share. Every map is written once, in these.

``xp = namespace(x)`` is this module for a numpy array and :mod:`hcal.xp_torch` for a tensor: the same names, the
same meaning. Operators (``+ - * / @ < >= == & ~``), indexing and ``x.shape`` work on both and need no name here.
Rows are the last axis: (N, K) scores of N rows and K classes.

>>> x = np.array([[0.0, 1.0, 1.0]])
>>> xp = namespace(x)
>>> xp.log_softmax(x).round(3), xp.argmax(x)
(array([[-1.862, -0.862, -0.862]]), array([[1]]))
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

#: A numpy array or a torch tensor. Neither library knows the other's type, so the checker cannot either.
Array: TypeAlias = Any
SearchSide = Literal["left", "right"]
#: For arrays up to this size, the number of calls decides how long a formula takes, and not what they compute.
_SMALL = 2_000

exp, log, log1p, sqrt, abs = np.exp, np.log, np.log1p, np.sqrt, np.abs
expm1, zeros_like = np.expm1, np.zeros_like
where, maximum, minimum, take = np.where, np.maximum, np.minimum, np.take
#: The sum, the largest and the smallest value of each row, (N, K) → (N, 1); NaN in a row gives NaN.
#: The ufuncs' own reductions: in a row of ten classes, np.sum takes twice as long.
row_sum = partial(np.add.reduce, axis=-1, keepdims=True)
row_max = partial(np.maximum.reduce, axis=-1, keepdims=True)
row_min = partial(np.minimum.reduce, axis=-1, keepdims=True)
#: The index of the largest value of each row, (N, 1); the first of several that tie.
argmax = partial(np.argmax, axis=-1, keepdims=True)
#: Running sums along rows; M arrays of one shape (…) stacked to (…, M); arrays joined along the last axis.
cumsum, stack, concat = (
    partial(np.cumsum, axis=-1),
    partial(np.stack, axis=-1),
    partial(np.concatenate, axis=-1),
)
#: The values of each row at the row's own indices: x (N, K), index (N, J) → (N, J).
take_along = partial(np.take_along_axis, axis=-1)
#: How many of the ascending edges (G,) are smaller than each x; with ``side="right"``, smaller or equal.
searchsorted = np.searchsorted


class Recorded:
    """A value that stands for an array while a formula is recorded; ``operations`` are the functions that take it."""

    operations: Any


def namespace(x: Array) -> Any:
    """Return the module whose functions take ``x``: this one, :mod:`hcal.xp_torch`, or that of a recorded value."""
    if isinstance(x, (np.ndarray, np.generic, float, int)):  # torch.compile reads tuples alone
        return _SELF
    if isinstance(x, Recorded):
        return x.operations
    from hcal import xp_torch

    return xp_torch


def astype(x: Array, like: Array) -> Array:
    """Return x in the float width of ``like``."""
    return x.astype(like.dtype, copy=False)


def eps(x: Array) -> float:
    """Return the distance from 1 to the next larger number of x's float width."""
    return float(np.finfo(x.dtype).eps)


def tiny(x: Array) -> float:
    """Return the smallest positive normal number of x's float width."""
    return float(np.finfo(x.dtype).tiny)


def clip(x: Array, low: Array, high: Array) -> Array:
    """Return x, or the bound that it is beyond; for one row, np.clip takes three times as long."""
    return np.minimum(np.maximum(x, low), high)


def log_softmax(x: Array) -> Array:
    """Return ln softmax of each row. A row with NaN or +inf, or of −inf alone, becomes NaN."""
    below = x - row_max(x)
    below -= np.log(row_sum(np.exp(below)))
    return below


def softmax(x: Array) -> Array:
    """Return softmax along the last axis, in the float width of the input.

    Parameters
    ----------
    x : array of shape (..., K)

    Returns
    -------
    array of shape (..., K)

    Examples
    --------
    >>> softmax(np.array([[1e4, 0.0]]))
    array([[1., 0.]])
    """
    out = np.exp(x - row_max(x))
    out /= row_sum(out)
    return out


def log_sum_exp(x: Array) -> Array:
    """Return ln Σ e^x of each row, (N, 1)."""
    xp = namespace(x)
    # Not torch.logsumexp: in onnxruntime it gives NaN where all other scores are far below the top.
    top = xp.row_max(x)
    return top + xp.log(xp.row_sum(xp.exp(x - top)))


def log_sigmoid(x: Array) -> Array:
    """Return −ln(1 + e^−x), without overflow on either side.

    >>> log_sigmoid(np.array([-1000.0, 1000.0]))
    array([-1000.,     0.])
    """
    xp = namespace(x)
    return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))


def bent(x: Array, bends: Array, changes: Array) -> Array:
    """Return Σ changes·max(x − bends, 0), for x of any shape: a line that starts flat and bends.

    >>> bent(np.array([0.0, 1.5, 4.0]), np.array([1.0, 3.0]), np.array([2.0, -1.0]))
    array([0., 1., 5.])
    """
    if isinstance(x, np.ndarray) and x.size <= _SMALL:
        return np.maximum(x[..., None] - bends, 0.0) @ changes
    xp = namespace(x)
    total = 0.0
    for number, bend in enumerate(bends):
        total = total + changes[number] * xp.maximum(x - bend, 0.0)
    return total


def floor_index(x: Array) -> Array:
    """Return numbers ≥ 0, rounded down, as indices."""
    return x.astype(np.intp)


def put_along(x: Array, index: Array, values: Array) -> Array:
    """Return x with the values of each row at the row's own indices replaced: by an array (N, J), or by one number.

    x may be overwritten.
    """
    np.put_along_axis(x, index, values, axis=-1)
    return x


def sum_by(values: Array, group: Array) -> Array:
    """Return for each row the sums of its values by group: values (N, K), group numbers 0..K−1 (N, K) → sums (N, K).

    >>> sum_by(np.array([[1.0, 2.0, 4.0]]), np.array([[0, 1, 1]]))
    array([[1., 6., 0.]])
    """
    at = group + values.shape[-1] * np.arange(len(values))[:, None]
    sums = np.bincount(at.ravel(), weights=values.ravel(), minlength=values.size)
    return sums.reshape(values.shape).astype(values.dtype, copy=False)


def kth_smallest(x: Array, k: Array) -> Array:
    """Return the k-th smallest value of each row, (N, 1); k is a whole number that counts from 1."""
    return np.partition(x, int(k) - 1, axis=-1)[:, int(k) - 1 : int(k)]


def one_hot(index: Array, n: int, like: Array) -> Array:
    """Return 1 at each index and 0 elsewhere, index (N,) → (N, n), in the float width of ``like``."""
    return (index[:, None] == np.arange(n)).astype(like.dtype)


def rounded(x: Array) -> Array:
    """Return float64 numbers rounded to 34 bits (ten digits); numbers of a narrower type are returned unchanged.

    Step functions need this: values that differ only by rounding errors become equal. Veltkamp's splitting.

    >>> bool(rounded(np.array(0.1 + 0.2)) == rounded(np.array(0.3)))
    True
    """
    if x.itemsize < 8:
        return x
    big = x * (2.0**19 + 1)
    return big - (big - x)


def sort_rows(x: Array) -> tuple[Array, Array]:
    """Return each row in falling order, and the indices that sort it; ties keep their order."""
    order = np.argsort(-x, axis=-1, kind="stable")
    return np.take_along_axis(x, order, axis=-1), order


def segment_search(knots: Array, offsets: Array, x: Array, side: SearchSide = "left") -> Array:
    """Return for each x (N, E) how many knots of its column are smaller; with ``side="right"``, smaller or equal.

    The knots of column e are ``knots[offsets[e] : offsets[e + 1]]``, ascending.

    >>> segment_search(np.array([0.5, 0.2, 0.6]), np.array([0, 1, 3]), np.array([[0.7, 0.5]]))
    array([[1, 1]])
    """
    out = np.empty(x.shape, dtype=np.int64)
    for e in range(x.shape[-1]):
        out[..., e] = np.searchsorted(knots[offsets[e] : offsets[e + 1]], x[..., e], side)
    return out


def interp(x: Array, knots: Array, values: Array) -> Array:
    """Return the increasing piecewise linear function through (knots, values) at x.

    Beyond the knots, the first and the last line continue. Rounding never inverts the order of two results.

    >>> interp(np.array([-1.0, 0.5]), np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    array([-2.,  1.])
    """
    xp = namespace(x)
    if knots.shape[0] < 2:
        return values[0] + 0 * x
    low, high, width = values[:-1], values[1:], knots[1:] - knots[:-1]
    # In float32 two knots may coincide: nothing lies between them.
    slopes = xp.where(width > 0, (high - low) / xp.where(width > 0, width, 1.0), 0.0)
    at = xp.searchsorted(knots[1:-1], x, side="right")
    out = xp.take(low, at) + xp.take(slopes, at) * (x - xp.take(knots, at))
    return xp.minimum(out, xp.take(xp.concat([high[:-1], high[-1:] + np.inf]), at))


_SELF = importlib.import_module(__name__)
