"""Split rows into folds that depend neither on the order of the rows nor on their labels."""

from __future__ import annotations

import numpy as np

from hcal.numerics import FloatArray, IntArray, log_softmax


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
    log_p = log_softmax(x.astype(np.float64))
    p = np.exp(log_p)
    # Rows are sorted by the class with the highest mean probability, ties by the other classes.
    mass = p.mean(axis=0)
    order = np.lexsort([np.round(key, 9) for key in (p @ mass, log_p[:, mass.argmax()])])
    fold = np.empty(len(x), dtype=np.int64)
    if groups is None:
        fold[order] = np.arange(len(x)) % min(folds, len(x))
        return fold
    # The largest groups come first, each into the smallest fold; groups of one size in the order of their mean rank.
    names, member = np.unique(groups, return_inverse=True)
    place = np.empty(len(x))
    place[order] = np.arange(len(x))
    size = np.bincount(member)
    middle = np.bincount(member, weights=place) / size
    filled = np.zeros(min(folds, len(names)))
    of_group = np.empty(len(names), dtype=np.int64)
    for group in np.lexsort((middle, -size)):
        of_group[group] = int(filled.argmin())
        filled[of_group[group]] += size[group]
    fold[:] = of_group[member]
    return fold


def fold_sides(fold: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Return the rows to fit on and the rows held out for every fold; if there is one fold, it is used for both.

    >>> [(fit.tolist(), held.tolist()) for fit, held in fold_sides(np.array([0, 1, 0]))]
    [([1], [0, 2]), ([0, 2], [1])]
    """
    numbers = np.unique(fold)
    if len(numbers) == 1:
        every = np.arange(len(fold))
        return [(every, every)]
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in numbers]
