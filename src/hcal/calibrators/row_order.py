"""Rows in an order that depends on what they say, and folds that keep copies together.

A fit sees its rows through :func:`arrange`: sorted by content, equal ones merged into one with their weight,
then dealt by a fixed permutation. Any order of the same rows, and a weight of k instead of k copies, is
therefore the same input to every method, whatever it shuffles, samples or deals into folds.

The keys that sort are functions of the probabilities alone and do not name a class, so that a constant added
to a row's logits, or another numbering of the classes, gives the same order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import FloatArray, IntArray, log_softmax

Float64 = NDArray[np.float64]

#: Keys are compared on a grid of this step: rounding moves a log-probability by 1e-13 at most, and rows
#: nearer to each other than the grid are ordered by the keys that follow.
_GRID = 2.0**-30
#: Rows whose logits, without their constant, differ by no more than this are copies.
_COPY = 1e-9
#: Entries that are looked at together.
_BLOCK = 2_000_000
#: Share of the mass of repeated scores that may carry two labels before scores are taken to be discrete.
_MIXED = 0.02
#: Effective share (Σm)²/Σm² of the distinct scores below which a few of them hold most rows, as saturated
#: scores do and weights or resampled rows do not (exponential weights: 0.5, a bootstrap: 0.8).
_UNEVEN = 0.1


class Rows(NamedTuple):
    """Distinct rows in an order that depends on content alone.

    Attributes
    ----------
    logits : array of shape (M, K)
    y : array of shape (M,)
    weight : array of shape (M,), or None where every row counts once
    """

    logits: FloatArray
    y: IntArray
    weight: Float64 | None


def arrange(logits: FloatArray, y: IntArray, weight: Float64 | None, *, merge: bool) -> Rows:
    """Return the rows by content; with ``merge``, copies become one row that weighs as much as they did.

    Parameters
    ----------
    logits : array of shape (N, K)
    y : array of shape (N,)
    weight : array of shape (N,), optional
        Rows of weight 0 are left out.
    merge : bool
        Whether the method takes weights; if not, copies stay, side by side in no particular order.

    Returns
    -------
    Rows

    Examples
    --------
    >>> z, y = np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 2.0]]), np.array([1, 0, 1])
    >>> rows, other = arrange(z, y, None, merge=True), arrange(z[::-1], y[::-1], None, merge=True)
    >>> rows.weight.tolist(), rows.weight.tolist() == other.weight.tolist()
    ([2.0, 1.0], True)
    """
    if weight is not None and not (weight > 0).all():
        logits, y, weight = logits[weight > 0], y[weight > 0], weight[weight > 0]
    order, copy = content_order(logits, y, weight)
    if merge and copy.any():
        first = np.flatnonzero(~copy)
        mass = np.ones(len(y)) if weight is None else weight[order]
        order, weight = order[first], np.add.reduceat(mass, first)
    elif weight is not None:
        weight = weight[order]
    # Sorted rows would make "the first m" a biased sample; this permutation knows nothing of the data.
    shuffle = np.random.RandomState(0).permutation(len(order))
    order = order[shuffle]
    return Rows(logits[order], y[order], None if weight is None else weight[shuffle])


def content_order(
    logits: FloatArray, y: IntArray, weight: Float64 | None = None
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Return the order of rows by content (N,), and which of them repeat the one before (N,).

    Examples
    --------
    >>> order, copy = content_order(np.array([[0.0, 2.0], [3.0, 0.0], [5.0, 7.0]]), np.array([1, 1, 1]))
    >>> order.tolist(), copy.tolist()
    ([1, 0, 2], [False, False, True])
    """
    n = len(y)
    keys = _keys(logits, y)
    order = np.lexsort(keys)
    tied = np.ones(max(n - 1, 0), dtype=bool)
    for key in keys:
        tied &= key[order[1:]] == key[order[:-1]]
    if tied.any():
        classes = _class_order(logits, y, weight)
        _sort_ties(order, tied, logits, y, classes)
    copy = np.zeros(n, dtype=bool)
    pairs = np.flatnonzero(tied)
    copy[pairs + 1] = _equal(logits, y, order[pairs], order[pairs + 1])
    return order.astype(np.int64), copy


def _keys(logits: FloatArray, y: IntArray) -> tuple[IntArray, ...]:
    """Return the keys, the last one first in rank: ln p of the label, of the top class, and Σ p²."""
    n, k = logits.shape
    own, top, square = np.empty(n), np.empty(n), np.empty(n)
    step = max(1, _BLOCK // k)
    for start in range(0, n, step):
        part = slice(start, start + step)
        log_p = log_softmax(logits[part].astype(np.float64))
        own[part] = log_p[np.arange(len(log_p)), y[part]]
        top[part] = log_p.max(axis=1)
        p = np.exp(log_p, out=log_p)
        square[part] = np.einsum("nk,nk->n", p, p)
    # arcsinh: a log-probability of −1e300 fits the grid too, and the order stays.
    return tuple(np.rint(np.arcsinh(v) / _GRID).astype(np.int64) for v in (square, top, own))


def _class_order(logits: FloatArray, y: IntArray, weight: Float64 | None) -> IntArray:
    """Return the classes by their mass in scores and labels (K,), so that their numbers do not matter."""
    n, k = logits.shape
    mass = np.bincount(y, weights=weight, minlength=k).astype(np.float64)
    step = max(1, _BLOCK // k)
    for start in range(0, n, step):
        part = slice(start, start + step)
        p = np.exp(log_softmax(logits[part].astype(np.float64)))
        mass += p.sum(axis=0) if weight is None else weight[part] @ p
    # Sums of the same rows in another order differ in their last digits.
    return np.argsort(np.round(mass / mass.sum(), 10), kind="stable")


def _sort_ties(
    order: IntArray, tied: NDArray[np.bool_], logits: FloatArray, y: IntArray, classes: IntArray
) -> None:
    """Sort runs of equal keys by label and logits, classes in the given order, in place."""
    rank = np.argsort(classes)
    edge = np.flatnonzero(np.diff(np.concatenate(([False], tied, [False])).astype(np.int8)))
    for start, stop in zip(edge[::2], edge[1::2] + 1, strict=True):
        run = order[start:stop]
        z = _without_constant(logits[run])
        if (np.abs(z - z[0]) <= _COPY).all() and (y[run] == y[run[0]]).all():
            continue
        order[start:stop] = run[
            np.lexsort((*np.rint(np.arcsinh(z[:, classes]) / _GRID).T[::-1], rank[y[run]]))
        ]


def _equal(logits: FloatArray, y: IntArray, a: IntArray, b: IntArray) -> NDArray[np.bool_]:
    """Return whether rows a and b (P,) say the same, a block of pairs at a time."""
    same = y[a] == y[b]
    step = max(1, _BLOCK // logits.shape[1])
    for start in range(0, len(a), step):
        part = slice(start, start + step)
        gap = _without_constant(logits[a[part]]) - _without_constant(logits[b[part]])
        same[part] &= (np.abs(gap) <= _COPY).all(axis=1)
    return np.asarray(same)


def _without_constant(logits: FloatArray) -> Float64:
    z = logits.astype(np.float64)
    return np.asarray(z - z.max(axis=1, keepdims=True))


def are_discrete(logits: FloatArray, y: IntArray, weight: Float64) -> bool:
    """Return whether equal scores are independent rows (a forest of 100 trees has 101 values), not copies.

    Copies of a row bear its label. Where rows that share their scores often bear different ones, the scores
    are discrete: they come again because there are few of them. So they are where a few scores hold most rows
    (a forest that is sure of a thousand rows says the same of all).

    Parameters
    ----------
    logits : array of shape (M, K)
        Distinct rows, as :func:`arrange` merges them.
    y, weight : arrays of shape (M,)

    Examples
    --------
    >>> z = np.array([[0.0, 2.0], [0.0, 2.0], [0.0, 1.0]])
    >>> are_discrete(z, np.array([0, 1, 1]), np.ones(3)), are_discrete(z[1:], np.array([1, 1]), np.ones(2))
    (True, False)
    """
    order, copy = content_order(logits, np.zeros_like(y)) if len(y) else (y, np.zeros(0, dtype=bool))
    group = np.cumsum(~copy) - 1
    mass = np.bincount(group, weights=weight[order])
    labels = np.bincount(group)  # merged rows of one score differ by label
    repeated = mass[mass > 1.0].sum()
    mixed = labels.max(initial=0) > 1 and mass[labels > 1].sum() > _MIXED * repeated
    return bool(mixed or mass.sum() ** 2 < _UNEVEN * len(mass) * float(mass @ mass))


def deal(y: IntArray, weight: Float64, n_folds: int, *, discrete: bool = False) -> Float64:
    """Return how much of each row every fold holds out (n_folds, M); a column sums to the row's weight.

    The rows of each class are dealt in turn, in the order in which they stand (:func:`arrange` made it a
    random one). A row and its copies fall into one fold; where scores are discrete, whole counts of a row are
    independent rows and are dealt one by one.

    Examples
    --------
    >>> deal(np.array([0, 0, 1]), np.array([1.0, 3.0, 1.0]), 2)
    array([[1., 0., 1.],
           [0., 3., 0.]])
    >>> deal(np.array([0, 0, 1]), np.array([1.0, 3.0, 1.0]), 2, discrete=True)
    array([[1., 1., 1.],
           [0., 2., 0.]])
    """
    # Classes in the order in which they come: their numbers do not matter.
    _, first, which = np.unique(y, return_index=True, return_inverse=True)
    by_class = np.argsort(first[which], kind="stable")
    mass = weight[by_class]
    count = np.maximum(np.floor(mass), 1.0) if discrete else np.ones(len(mass))
    start = (np.cumsum(count) - count) % n_folds  # going on where the last row stopped keeps folds equal
    offset = (np.arange(n_folds)[:, None] - start) % n_folds
    # Every fold gets the whole rounds, and the next ones in turn the counts that are left over.
    share = (count // n_folds + (offset < count % n_folds)) / count
    held = np.empty((n_folds, len(y)))
    held[:, by_class] = share * mass
    return held
