"""Folds that do not depend on chance: rows are dealt in turns along label and confidence."""

from __future__ import annotations

import numpy as np

from hcal.numerics import Float64, IntArray, softmax


def deal_folds(x: Float64, y: IntArray, n_folds: int, groups: IntArray | None = None) -> IntArray:
    """Return the fold 0..n_folds−1 of every row (N,): in the order of (label, confidence) the folds take turns.

    Every fold then has its share of each label and of sure and unsure rows, copies are spread, and the order of
    rows does not matter. A group stays in one fold. Fewer rows or groups than folds make fewer folds.

    >>> deal_folds(np.array([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), np.array([1, 1, 1]), 2)
    array([0, 0, 1])
    """
    order = np.lexsort((softmax(x).max(axis=1).round(12), y))
    fold = np.empty(len(y), dtype=np.int64)
    if groups is None:
        fold[order] = np.arange(len(y)) % n_folds
        return fold
    _, first, member = np.unique(groups[order], return_index=True, return_inverse=True)
    turn = np.empty(len(first), dtype=np.int64)
    turn[np.argsort(first)] = np.arange(len(first)) % n_folds
    fold[order] = turn[member]
    return fold


def fold_sides(fold: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Return the rows to fit on and the rows held out, for every fold; one fold alone is both.

    >>> [(fit.tolist(), held.tolist()) for fit, held in fold_sides(np.array([0, 1, 0]))]
    [([1], [0, 2]), ([0, 2], [1])]
    """
    numbers = np.unique(fold)
    if len(numbers) == 1:
        every = np.arange(len(fold))
        return [(every, every)]
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in numbers]
