"""Cross-validation folds: shuffled, stratified by label, or with whole groups kept together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.inputs import to_numpy
from hcal.numerics import IntArray

Fold = tuple[IntArray, IntArray]


def kfold(
    n_rows: int, n_folds: int, *, random_state: int = 0, stratify: Any = None, groups: Any = None
) -> list[Fold]:
    """Return ``n_folds`` pairs (rows to fit on, rows held out), each sorted ascending.

    Plain: the rows are permuted by ``RandomState(random_state)`` and cut into nearly equal consecutive parts.
    Stratified: the permuted rows of each class in turn are dealt out one a fold, so that no class differs
    by more than one between folds. Grouped: groups, largest first, each join the smallest fold so far.

    ``stratify`` and ``groups`` are arrays of shape (N,): labels whose shares the folds keep, and groups (one
    patient, one video) whose rows never stand on both sides.

    >>> [held_out.tolist() for _, held_out in kfold(5, 2, random_state=0)]
    [[0, 1, 2], [3, 4]]
    """
    if stratify is not None and groups is not None:
        raise ValueError("folds are stratified or grouped, not both: pass stratify or groups")
    if not 2 <= n_folds <= n_rows:
        raise ValueError(f"n_folds must lie in 2..{n_rows} (the number of rows), got {n_folds}")
    permutation = np.random.RandomState(random_state).permutation(n_rows)  # the published draws
    if groups is not None:
        number = _deal_groups(_column(groups, n_rows, "groups"), permutation, n_folds)
    elif stratify is not None:
        number = _deal_labels(_column(stratify, n_rows, "stratify"), permutation, n_folds)
    else:
        number = _deal_rows(permutation, n_folds)
    return [(np.flatnonzero(number != fold), np.flatnonzero(number == fold)) for fold in range(n_folds)]


def _column(values: Any, n_rows: int, what: str) -> NDArray[Any]:
    column, _ = to_numpy(values, what)
    if column.shape != (n_rows,):
        raise ValueError(f"{what} must have shape ({n_rows},), got {column.shape}")
    return column


def _deal_rows(permutation: IntArray, n_folds: int) -> IntArray:
    number = np.empty(len(permutation), dtype=np.int64)
    for fold, part in enumerate(np.array_split(permutation, n_folds)):
        number[part] = fold
    return number


def _deal_labels(labels: NDArray[Any], permutation: IntArray, n_folds: int) -> IntArray:
    by_label = permutation[np.argsort(labels[permutation], kind="stable")]
    number = np.empty(len(labels), dtype=np.int64)
    number[by_label] = np.arange(len(labels)) % n_folds
    return number


def _deal_groups(groups: NDArray[Any], permutation: IntArray, n_folds: int) -> IntArray:
    names, member, size = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < n_folds:
        raise ValueError(f"n_folds is {n_folds}, but there are only {len(names)} groups")
    # The seed decides between groups of equal size: they queue by where their first row was shuffled to.
    first_seen = np.full(len(names), len(groups))
    np.minimum.at(first_seen, member[permutation], np.arange(len(groups)))
    load = np.zeros(n_folds, dtype=np.int64)
    home = np.empty(len(names), dtype=np.int64)
    for group in np.lexsort((first_seen, -size)):
        home[group] = np.argmin(load)
        load[home[group]] += size[group]
    return home[member]
