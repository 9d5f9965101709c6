"""Split rows into folds that depend neither on the order of the rows nor on their labels.

The rows are sorted by their scores and laid end to end, each as long as its weight; the folds take turns of one row's
length. So a row of weight 2 is dealt out as the row twice would be, and no row is copied.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hcal.numerics import Float64, FloatArray, IntArray, log_softmax
from hcal.rows import Rows

#: A share of a row below this part of its weight is rounding.
_ROUNDING = 1e-9


def split_rows(rows: Rows, folds: int) -> list[tuple[Rows, Rows]]:
    """Return the rows to fit on and the rows held out for every fold; one fold alone is used for both.

    A row whose weight lies in several folds is on both sides, with a part of its weight on each.

    Parameters
    ----------
    rows : Rows
        Logits, with weights and groups where there are any.
    folds : int
        At most the number of rows, or of groups.

    Examples
    --------
    >>> rows = Rows(np.array([[0.0, 1.0], [0.0, 2.0]]), "logits", weight=np.array([2.0, 1.0]))
    >>> [(fit.weight.tolist(), held.weight.tolist()) for fit, held in split_rows(rows, 3)]
    [([1.0, 1.0], [1.0]), ([1.0, 1.0], [1.0]), ([2.0], [1.0])]
    """
    if rows.weight is None:
        sides = fold_sides(deal_folds(rows.scores, folds, rows.groups))
        return [(rows[fitted], rows[left_out]) for fitted, left_out in sides]
    shares = fold_shares(rows.scores, folds, rows.weight, rows.groups)
    if len(shares) == 1:
        return [(rows, rows)]
    return [(_weighing(rows, rows.weight - share), _weighing(rows, share)) for share in shares]


def fold_shares(
    x: FloatArray, folds: int, weight: Float64, groups: IntArray | None = None
) -> Float64:
    """Return how much of the weight of each row lies in each fold, shape (F, N).

    Examples
    --------
    >>> x = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    >>> fold_shares(x, 2, np.array([1.0, 3.0, 1.0]))
    array([[1., 1., 1.],
           [0., 2., 0.]])
    """
    order = _by_score(x, weight)
    ends = np.empty(len(x))
    ends[order] = np.cumsum(weight[order])
    starts = ends - weight
    # Weights that are smaller than rows take shorter turns, so that there are as many turns as rows.
    total = float(weight.sum())
    turn = min(1.0, total / len(x))
    if groups is not None:
        middles = (starts + ends - turn) / 2
        fold = _deal_groups(groups, weight, middles, folds)
        numbers = np.arange(fold.max() + 1)
        return np.where(fold == numbers[:, None], weight, 0.0)

    turns = int(total / turn + _ROUNDING)
    count = max(1, min(folds, turns))
    if count == 1:
        return weight[None, :]
    shares = [
        _covered(ends, f, count, turn) - _covered(starts, f, count, turn) for f in range(count)
    ]
    return np.stack(shares)


def deal_folds(x: FloatArray, folds: int, groups: IntArray | None = None) -> IntArray:
    """Return the fold (N,) of every row. Rows are sorted by their scores and dealt out in turn, like cards.

    Folds are not stratified by label. Stratified folds share the noise of the label frequencies, and a fit on some of
    them then does better on the others than on new rows.

    Parameters
    ----------
    x : array of shape (N, K)
        Logits.
    folds : int
        At most the number of rows, or of groups.
    groups : array of shape (N,), optional
        Rows of one group are put into one fold.

    Returns
    -------
    array of shape (N,)
        Numbers 0..F−1 of the folds; none is empty.

    Examples
    --------
    >>> x = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    >>> deal_folds(x, 2)
    array([0, 1, 0, 1])
    >>> deal_folds(x, 2, groups=np.array([7, 7, 8, 8]))
    array([0, 0, 1, 1])
    """
    order = _by_score(x, None)
    place = np.empty(len(x), dtype=np.int64)
    place[order] = np.arange(len(x))
    if groups is None:
        return place % min(folds, len(x))
    return _deal_groups(groups, np.ones(len(x)), place.astype(np.float64), folds)


def fold_sides(fold: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Return the rows to fit on and the rows held out for every fold; if there is one fold, it is used for both.

    >>> [(fit.tolist(), held.tolist()) for fit, held in fold_sides(np.array([0, 1, 0]))]
    [([1], [0, 2]), ([0, 2], [1])]
    """
    numbers = np.unique(fold)
    if len(numbers) == 1:
        rows = np.arange(len(fold))
        return [(rows, rows)]
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in numbers]


def _by_score(x: FloatArray, weight: Float64 | None) -> IntArray:
    """Return the rows in the order of the class with the highest mean probability, ties by the other classes."""
    log_p = log_softmax(x.astype(np.float64))
    p = np.exp(log_p)
    mass = p.mean(axis=0) if weight is None else weight @ p / weight.sum()
    expected = np.round(p @ mass, 9)
    of_commonest = np.round(log_p[:, mass.argmax()], 9)
    return np.lexsort([expected, of_commonest]).astype(np.int64)


def _deal_groups(groups: IntArray, weight: Float64, place: Float64, folds: int) -> IntArray:
    """Return the fold of every row, a group in one fold.

    The largest groups come first, each into the smallest fold; groups of one size in the order of their mean place.
    """
    names, member = np.unique(groups, return_inverse=True)
    size = np.bincount(member, weights=weight)
    middle = np.bincount(member, weights=weight * place) / size
    filled = np.zeros(min(folds, len(names)))
    fold_of_group = np.empty(len(names), dtype=np.int64)
    for group in np.lexsort((middle, -size)):
        fold_of_group[group] = int(filled.argmin())
        filled[fold_of_group[group]] += size[group]
    return np.asarray(fold_of_group[member])


def _covered(end: Float64, fold: int, count: int, turn: float) -> Float64:
    """Return how much of the line from 0 to each end lies in the turns of one fold."""
    cycles, rest = np.divmod(end / turn, count)
    return np.asarray(turn * (cycles + np.clip(rest - fold, 0.0, 1.0)))


def _weighing(rows: Rows, weight: Float64) -> Rows:
    """Return the rows with other weights, without those whose weight is 0 up to rounding."""
    assert rows.weight is not None
    kept = np.flatnonzero(weight > _ROUNDING * rows.weight)
    return replace(rows[kept], weight=weight[kept])
