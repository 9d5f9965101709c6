"""Rows in an order that depends on what they say, and folds that keep copies together.

A fit sees its rows through :func:`arrange`: sorted by content, equal ones merged into one with their weight,
then dealt by a fixed permutation. Any order of the same rows, and a weight of k instead of k copies, is
therefore the same input to every method, whatever it shuffles, samples or deals into folds.

The keys that sort are functions of the probabilities alone and do not name a class, so that a constant added
to a row's logits, or another numbering of the classes, gives the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcal.runtime.device_rows import DeviceRows, Logits, taken
from hcal.numerics import NOTHING, Float64, FloatArray, IntArray, log_softmax, row_blocks

#: Keys are compared on a grid of this step: rounding moves a log-probability by 1e-13 at most, and rows
#: nearer to each other than the grid are ordered by the keys that follow.
_GRID = 2.0**-30
#: Rows whose logits, without their constant, differ by no more than this (times their spread, if that is
#: below 1) are copies.
_COPY = 1e-9
#: Entries that are looked at together.
_BLOCK = 2_000_000
#: Share of the mass of repeated scores that may carry two labels before scores are taken to be discrete.
_MIXED = 0.02
#: Effective share (Σm)²/Σm² of the distinct scores below which a few of them hold most rows, as saturated
#: scores do and weights or resampled rows do not (exponential weights: 0.5, a bootstrap: 0.8).
_UNEVEN = 0.1


class ArrangedRows(NamedTuple):
    """Distinct rows (M, K) in an order by content alone; weights are None where every row counts once."""

    logits: Any
    y: IntArray
    weight: Float64 | None


def arrange(logits: Logits, y: IntArray, weight: Float64 | None, *, merge: bool) -> ArrangedRows:
    """Return the rows by content; with ``merge``, copies become one row that weighs as much as they did.

    Rows of weight 0 are left out. Without ``merge``, for methods that take no weights, copies stay, side by
    side in no particular order.

    >>> z, y = np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 2.0]]), np.array([1, 0, 1])
    >>> rows, other = arrange(z, y, None, merge=True), arrange(z[::-1], y[::-1], None, merge=True)
    >>> rows.weight.tolist(), rows.weight.tolist() == other.weight.tolist()
    ([2.0, 1.0], True)
    """
    if weight is not None and not (weight > 0).all():
        logits, y, weight = taken(logits, weight > 0), y[weight > 0], weight[weight > 0]
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
    return ArrangedRows(taken(logits, order), y[order], None if weight is None else weight[shuffle])


def content_order(
    logits: Logits, y: IntArray, weight: Float64 | None = None
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Return the order of rows by content (N,), and which of them repeat the one before (N,).

    The weight helps to tell classes apart where rows are mirror images of each other.

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
    same = _tied_and_equal(logits, y, order, tied)
    if (same != tied).any():
        _sort_ties(order, tied, same, logits, y, weight)
        same = _tied_and_equal(logits, y, order, tied)
    return order.astype(np.int64), np.concatenate([np.zeros(min(n, 1), dtype=bool), same])


def _keys(logits: Logits, y: IntArray) -> tuple[IntArray, ...]:
    """Return the keys, the last one first in rank: ln p of the label, of the top class, and Σ p²."""
    own, top, square = (
        logits.log_probability_facts(y)
        if isinstance(logits, DeviceRows)
        else _log_probability_facts(logits, y)
    )
    # arcsinh: a log-probability of −1e300 fits the grid too, and the order stays.
    return tuple(np.rint(np.arcsinh(v) / _GRID).astype(np.int64) for v in (square, top, own))


def _log_probability_facts(logits: FloatArray, y: IntArray) -> tuple[Float64, Float64, Float64]:
    own, top, square = np.empty((3, len(y)))
    for part in row_blocks(logits.shape, _BLOCK):
        log_p = log_softmax(logits[part].astype(np.float64))
        own[part] = log_p[np.arange(len(log_p)), y[part]]
        top[part] = log_p.max(axis=1)
        p = np.exp(log_p, out=log_p)
        square[part] = np.einsum("nk,nk->n", p, p)
    return own, top, square


def _tied_and_equal(
    logits: Logits, y: IntArray, order: IntArray, tied: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which neighbours in the order say the same (N − 1,)."""
    same = np.zeros(len(tied), dtype=bool)
    pairs = np.flatnonzero(tied)
    same[pairs] = _equal(logits, y, order[pairs], order[pairs + 1])
    return same


def _sort_ties(
    order: IntArray,
    tied: NDArray[np.bool_],
    same: NDArray[np.bool_],
    logits: Logits,
    y: IntArray,
    weight: Float64 | None,
) -> None:
    """Sort runs of equal keys by label and logits, in place; runs of copies alone stay."""
    run = np.concatenate([[0], np.cumsum(~tied)])  # the run of every place
    mixed = np.zeros(run[-1] + 1, dtype=bool)
    mixed[run[1:][tied & ~same]] = True
    places = np.flatnonzero(mixed[run])
    rows = order[places]
    rank = class_ranks(logits, y, weight)
    z = _without_constant(logits[rows])
    unit = _GRID * (min(1.0, float(np.abs(z).max())) or 1.0)  # rows of tiny scores differ too
    columns = np.rint(z / unit)[:, np.argsort(rank)]
    order[places] = rows[np.lexsort((*columns.T[::-1], rank[y[rows]], run[places]))]


def class_ranks(logits: Logits, y: IntArray, weight: Float64 | None) -> IntArray:
    """Return a place of every class that its rows decide, not its number (unless they are alike in all).

    Mirror images (scores of a and b swapped, and the label with them) have equal keys.

    >>> class_ranks(np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 3.0]]), np.array([1, 0, 1]), None)
    array([0, 1])
    """
    n, k = logits.shape
    mass = np.ones(n) if weight is None else weight / weight.max()
    first, second = np.zeros(k), np.zeros(k)
    for part in row_blocks((n, k), _BLOCK):
        z = _without_constant(logits[part])
        first += mass[part] @ z
        second += mass[part] @ np.exp(z)
    labels = np.bincount(y, weights=mass, minlength=k)
    keys = (np.rint(v / (np.abs(v).max() * _GRID or 1.0)) for v in (second, first, labels))
    rank = np.empty(k, dtype=np.int64)
    rank[np.lexsort(tuple(keys))] = np.arange(k)
    return rank


def _equal(logits: Logits, y: IntArray, a: IntArray, b: IntArray) -> NDArray[np.bool_]:
    """Return whether rows a and b (P,) say the same, a block of pairs at a time."""
    same = y[a] == y[b]
    for part in row_blocks((len(a), logits.shape[1]), _BLOCK):
        z, other = _without_constant(logits[a[part]]), _without_constant(logits[b[part]])
        spread = np.minimum(-z.min(axis=1, initial=0), 1.0)  # scores may be of any unit, also a tiny one
        same[part] &= np.abs(z - other).max(axis=1, initial=0) <= _COPY * spread
    return np.asarray(same)


def _without_constant(logits: FloatArray) -> Float64:
    z = logits.astype(np.float64)
    z -= z.max(axis=1, keepdims=True)
    z[z > -NOTHING] = 0.0
    return np.asarray(z)


def are_discrete(logits: Logits, y: IntArray, weight: Float64) -> bool:
    """Return whether equal scores are independent rows (a forest of 100 trees has 101 values), not copies.

    Copies of a row bear its label. Where rows that share their scores often bear different ones, the scores
    are discrete: they come again because there are few of them. So they are where a few scores hold most rows
    (a forest that is sure of a thousand rows says the same of all).

    Rows (M, K) are distinct, as :func:`arrange` merges them.

    >>> z = np.array([[0.0, 2.0], [0.0, 2.0], [0.0, 1.0]])
    >>> are_discrete(z, np.array([0, 1, 1]), np.ones(3)), are_discrete(z[1:], np.array([1, 1]), np.ones(2))
    (True, False)
    """
    order, copy = content_order(logits, np.zeros_like(y), weight) if len(y) else (y, np.zeros(0, dtype=bool))
    group = np.cumsum(~copy) - 1
    mass = np.bincount(group, weights=weight[order])
    labels = np.bincount(group)  # merged rows of one score differ by label
    repeated = mass[mass > 1.0].sum()
    mixed = labels.max(initial=0) > 1 and mass[labels > 1].sum() > _MIXED * repeated
    return bool(mixed or mass.sum() ** 2 < _UNEVEN * len(mass) * float(mass @ mass))


def deal(y: IntArray, weight: Float64, n_folds: int, *, discrete: bool = False) -> Float64:
    """Return how much of every row each fold holds out (n_folds, M); a column sums to the row's weight.

    The rows of each class are dealt in turn, in the order in which they stand (:func:`arrange` made it a
    random one). A row and its copies fall into one fold; where scores are discrete, whole counts of a row are
    independent rows and are dealt one by one.

    >>> deal(np.array([0, 0, 1]), np.array([1.0, 3.0, 1.0]), 2)
    array([[1., 0., 1.],
           [0., 3., 0.]])
    >>> deal(np.array([0, 0, 1]), np.array([1.0, 3.0, 1.0]), 2, discrete=True)
    array([[1., 1., 1.],
           [0., 2., 0.]])
    """
    # Classes come in the order of their first rows: their numbers must not decide.
    _, first, member = np.unique(y, return_index=True, return_inverse=True)
    by_class = np.argsort(first[member], kind="stable")
    mass = weight[by_class]
    count = np.maximum(np.floor(mass), 1.0) if discrete else np.ones(len(mass))
    start = (np.cumsum(count) - count) % n_folds  # going on where the last row stopped keeps folds equal
    offset = (np.arange(n_folds)[:, None] - start) % n_folds
    # Every fold gets the whole rounds, and the next ones in turn the counts that are left over.
    share = (count // n_folds + (offset < count % n_folds)) / count
    held = np.empty((n_folds, len(y)))
    held[:, by_class] = share * mass
    return held


class WeightedRows(NamedTuple):
    """Some rows (R,), and how much of each counts (R,)."""

    rows: IntArray
    weight: Float64


def fold_parts(
    logits: FloatArray, y: IntArray, weight: Float64 | None, n_folds: int, *, random_state: int = 0
) -> list[tuple[WeightedRows, WeightedRows]]:
    """Return (part to fit on, part held out) of every fold; copies of a row stand on one side.

    As many folds at most are made as there are rows to deal; one fold holds everything out that it fits on.

    >>> z = np.array([[0.0, 2.0], [0.0, 2.0], [1.0, 0.0], [0.0, 3.0]])
    >>> folds = fold_parts(z, np.array([1, 1, 0, 1]), None, 2)
    >>> sorted(held.rows.tolist() for _, held in folds)
    [[0, 1], [2, 3]]
    """
    mass = np.ones(len(y)) if weight is None else weight
    order, copy = content_order(logits, y, mass)
    group = np.empty(len(y), dtype=np.int64)
    group[order] = np.cumsum(~copy) - 1
    _, first, group = np.unique(group, return_index=True, return_inverse=True)
    total: Float64 = np.bincount(group, weights=mass).astype(np.float64)
    discrete = are_discrete(logits[first], y[first], total)
    if discrete:  # every row as it stands, counts one by one
        first, group, total = np.arange(len(y)), np.arange(len(y)), mass
    units = int(np.maximum(np.floor(total), 1.0).sum()) if discrete else len(first)
    n_folds = min(n_folds, units)
    if n_folds < 2:
        everything = WeightedRows(np.arange(len(y)), mass)
        return [(everything, everything)]
    shuffle = np.random.RandomState(random_state).permutation(len(first))
    held = np.empty((n_folds, len(first)))
    held[:, shuffle] = deal(y[first[shuffle]], total[shuffle], n_folds, discrete=discrete)
    share = held / total
    return [(_part(mass - part, mass), _part(part, mass)) for part in (mass * s[group] for s in share)]


def _part(weight: Float64, mass: Float64) -> WeightedRows:
    # What is left of a row by rounding alone is nothing.
    rows = np.flatnonzero(weight > 1e-9 * mass)
    return WeightedRows(rows, weight[rows])
