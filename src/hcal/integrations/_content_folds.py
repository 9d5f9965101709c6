"""Folds and an order of rows that depend on what the rows say, not on where they stand.

Equal rows share a fold, so a duplicate never stands on both sides of a split, and a weight of 3 gives the
same folds as a row repeated three times. See docs/decisions/050-folds-by-content.md.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import IntArray


def content_folds(
    X: Any, labels: IntArray, n_folds: int, *, random_state: int = 0, counted: NDArray[np.bool_] | None = None
) -> IntArray:
    """Return the fold 0..n_folds−1 of every row, stratified by label; −1 means always in the training part.

    ``X`` is numpy, scipy sparse, pandas, polars, or a sequence of objects. Rows that are not ``counted``
    (weight 0) are dealt nowhere and change nothing.

    >>> content_folds([[1.0], [2.0], [1.0], [3.0]], np.array([0, 0, 0, 0]), 2)[[0, 2]].tolist()
    [0, 0]
    """
    number = np.full(len(labels), -1, dtype=np.int64)
    digest = digests(X, random_state)
    rows = np.arange(len(labels)) if counted is None else np.flatnonzero(counted)
    dealt = 0
    for label in np.unique(labels[rows]):
        mine = rows[labels[rows] == label]
        distinct, member = np.unique(digest[mine], return_inverse=True)
        if len(distinct) < 2:  # the estimator must know every class in every fold
            continue
        # Going on where the last class stopped keeps the folds equal in size when classes are small.
        number[mine] = (dealt + member) % n_folds
        dealt += len(distinct)
    return number


def merge_equal(
    digest: NDArray[np.bytes_], fold: IntArray, labels: IntArray, weight: NDArray[np.float64] | None
) -> tuple[IntArray, NDArray[np.float64]]:
    """Return one row of every set of equal ones, in an order that depends on content alone, and its weight.

    A method that shuffles rows or counts them then says the same of a weighted row as of a repeated one.

    Rows are equal where ``digest``, ``fold`` and ``labels`` (N,) are: what they say, who scored them, what
    they are.

    >>> digest, fold = np.array([b"b", b"a", b"b"]), np.zeros(3, dtype=int)
    >>> merge_equal(digest, fold, np.array([1, 0, 1]), None)
    (array([1, 0]), array([1., 2.]))
    """
    key = np.rec.fromarrays([digest, fold, labels])
    _, first, member = np.unique(key, return_index=True, return_inverse=True)
    mass = np.bincount(member, weights=weight, minlength=len(first)).astype(np.float64)
    return first[mass > 0].astype(np.int64), mass[mass > 0]


def digests(X: Any, random_state: int = 0) -> NDArray[np.bytes_]:
    """Return a keyed hash of every row.

    >>> a, b, c = digests([[1.0, 2.0], [1.0, 2.5], [1.0, 2.0]])
    >>> bool(a == c), bool(a == b)
    (True, False)
    """
    key = int(random_state).to_bytes(8, "little", signed=True)
    return np.array(
        [hashlib.blake2b(row, digest_size=16, key=key).hexdigest() for row in _row_bytes(X)], dtype="S32"
    )


def _row_bytes(X: Any) -> list[bytes]:
    if hasattr(X, "tocsr"):
        csr = X.tocsr().copy()
        csr.sum_duplicates()
        csr.eliminate_zeros()
        ends = csr.indptr
        return [csr.indices[a:b].tobytes() + csr.data[a:b].tobytes() for a, b in pairwise(ends)]
    array = np.asarray(X)
    if array.dtype == object or array.dtype.kind in "USMm":
        return [repr(row.tolist() if isinstance(row, np.ndarray) else row).encode() for row in array]
    return [row.tobytes() for row in np.ascontiguousarray(array)]
