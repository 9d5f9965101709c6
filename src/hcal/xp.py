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

exp, log, log1p, expm1, sqrt, tanh, abs = np.exp, np.log, np.log1p, np.expm1, np.sqrt, np.tanh, np.abs
where, maximum, minimum, clip, isnan, take = np.where, np.maximum, np.minimum, np.clip, np.isnan, np.take
#: Of each row (N, K), as (N, 1); NaN where one is.
row_sum = partial(np.sum, axis=-1, keepdims=True)
row_max, row_min = partial(np.max, axis=-1, keepdims=True), partial(np.min, axis=-1, keepdims=True)
#: Where each row is largest, (N, 1); of ties the first.
argmax = partial(np.argmax, axis=-1, keepdims=True)
#: Running sums along rows; arrays of one shape (…) as (…, M); arrays side by side along the last axis.
cumsum, stack, concat = (partial(np.cumsum, axis=-1), partial(np.stack, axis=-1), partial(np.concatenate, axis=-1))
#: From each row the values at its indices: x (N, K), index (N, J) → (N, J).
take_along = partial(np.take_along_axis, axis=-1)


def namespace(x: Array) -> Any:
    """Return the module whose functions take ``x``: this one, or :mod:`hcal.xp_torch`."""
    if isinstance(x, (np.ndarray, np.generic, float, int)):  # torch.compile reads tuples alone
        return _SELF
    from hcal import xp_torch

    return xp_torch


def asarray(values: Any, like: Array) -> Array:
    """Return numbers as an array of the library, device and float width of ``like``."""
    return np.asarray(values, dtype=like.dtype)


def astype(x: Array, like: Array) -> Array:
    """Return x in the float width of ``like``."""
    return x.astype(like.dtype, copy=False)


def eps(x: Array) -> float:
    """Return the spacing of x's floats at 1."""
    return float(np.finfo(x.dtype).eps)


def tiny(x: Array) -> float:
    """Return the smallest positive number of x's floats that is computed with in full width."""
    return float(np.finfo(x.dtype).tiny)


def log_softmax(x: Array) -> Array:
    """Return ln softmax of each row. A row with NaN or +inf, or of −inf alone, becomes NaN."""
    below = x - row_max(x)
    below -= np.log(np.exp(below).sum(axis=-1, keepdims=True))
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
    out /= out.sum(axis=-1, keepdims=True)
    return out


def log_sum_exp(x: Array) -> Array:
    """Return ln Σ e^x of each row, (N, 1)."""
    top = row_max(x)
    return top + np.log(np.exp(x - top).sum(axis=-1, keepdims=True))


def floor_index(x: Array) -> Array:
    """Return numbers ≥ 0, rounded down, as indices."""
    return x.astype(np.intp)


def put_along(x: Array, index: Array, values: Array) -> Array:
    """Return x with each row's values at its indices replaced; x may be overwritten."""
    np.put_along_axis(x, index, values, axis=-1)
    return x


def replaced(x: Array, index: Array, value: float) -> Array:
    """Return a copy of x in which each row has this value at its index (N, 1)."""
    out = x.copy()
    np.put_along_axis(out, index, value, axis=-1)
    return out


def sum_by(values: Array, group: Array) -> Array:
    """Return the sums of each row's values by group: values and groups 0..K−1 (N, K) → sums (N, K) of the groups.

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
    """Return float64 numbers rounded to 34 bits, ten digits; narrower ones as they are.

    What is equal but for rounding becomes equal: functions with steps need that. Splitting by Veltkamp.

    >>> bool(rounded(np.array(0.1 + 0.2)) == rounded(np.array(0.3)))
    True
    """
    if eps(x) > 1e-10:
        return x
    big = x * (2.0**19 + 1)
    return big - (big - x)


def sort_rows(x: Array) -> tuple[Array, Array]:
    """Return each row from its largest value down, and the order that sorts it (stable)."""
    order = np.argsort(-x, axis=-1, kind="stable")
    return np.take_along_axis(x, order, axis=-1), order


def searchsorted(edges: Array, x: Array, *, right: bool = False) -> Array:
    """Return how many of the ascending edges (G,) lie below each x; with ``right``, below or at it."""
    return np.searchsorted(edges, x, side="right" if right else "left")


def segment_search(knots: Array, offsets: Array, x: Array, *, right: bool = False) -> Array:
    """Return how many knots of its own column's segment lie below each x (N, E); with ``right``, below or at it.

    Column e owns ``knots[offsets[e] : offsets[e + 1]]``, ascending.

    >>> segment_search(np.array([0.5, 0.2, 0.6]), np.array([0, 1, 3]), np.array([[0.7, 0.5]]))
    array([[1, 1]])
    """
    side: Literal["left", "right"] = "right" if right else "left"
    out = np.empty(x.shape, dtype=np.int64)
    for e in range(x.shape[-1]):
        out[..., e] = np.searchsorted(knots[offsets[e] : offsets[e + 1]], x[..., e], side=side)
    return out


def interp(x: Array, knots: Array, values: Array) -> Array:
    """Return the piecewise linear function through (knots, values) at x; outside it goes straight on.

    >>> interp(np.array([-1.0, 0.5]), np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    array([-2.,  1.])
    """
    inside = np.interp(x, knots, values)
    if len(knots) < 2:
        return inside
    first = (values[1] - values[0]) / (knots[1] - knots[0])
    last = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
    return inside + first * np.minimum(x - knots[0], 0) + last * np.maximum(x - knots[-1], 0)


_SELF = importlib.import_module(__name__)
