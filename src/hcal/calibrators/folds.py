"""Folds that depend neither on the order of the rows nor on their labels: dealt systematically along the scores."""

from __future__ import annotations

import numpy as np

from hcal.numerics import FloatArray, IntArray, log_softmax


def deal_folds(x: FloatArray, n_folds: int, groups: IntArray | None = None) -> IntArray:
    """Return the fold (N,) of every row: each fold gets its part of the rows, from one end of the scores to the other.

    Labels take no part: folds that each get their share of every label repeat the noise of the labels, and what is
    fitted on some of them then does better on the others than on new rows.

    Parameters
    ----------
    x : array of shape (N, K)
        Logits.
    n_folds : int
        At most as many are dealt as there are rows, or groups.
    groups : array of shape (N,), optional
        Rows of one group fall into one fold.

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
    log_p = log_softmax(x.astype(np.float64))
    p = np.exp(log_p)
    # Along the class of most mass, which is known by its rows and not by its number; ties by the other classes.
    mass = p.mean(axis=0)
    order = np.lexsort([np.round(key, 9) for key in (p @ mass, log_p[:, mass.argmax()])])
    fold = np.empty(len(x), dtype=np.int64)
    if groups is None:
        fold[order] = np.arange(len(x)) % min(n_folds, len(x))
        return fold
    # Groups are dealt in the order of their middle rows, the largest first into the emptiest fold.
    names, member = np.unique(groups, return_inverse=True)
    place = np.empty(len(x))
    place[order] = np.arange(len(x))
    size = np.bincount(member)
    middle = np.bincount(member, weights=place) / size
    filled = np.zeros(min(n_folds, len(names)))
    of_group = np.empty(len(names), dtype=np.int64)
    for group in np.lexsort((middle, -size)):
        of_group[group] = int(filled.argmin())
        filled[of_group[group]] += size[group]
    fold[:] = of_group[member]
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
