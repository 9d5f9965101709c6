"""Calibration errors of the KL-nearest calibration rows, in blocks that bound memory at any N."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_array

from hcal.numerics import Float64, FloatArray, IntArray, one_hot, row_blocks

_CLIP = 1e-30
_BLOCK_DISTANCES = 8_000_000  # distances held at once
_AT_THRESHOLD = 1e-13
_ROUNDING = 1e-11  # relative; matrix products of other shapes sum in another order


class Neighbours:
    """The calibration rows p (N, K) and their errors p − Y, ready to be asked for those nearest to new rows.

    >>> near = Neighbours(np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([0, 0]))
    >>> [(rows, errors.tolist()) for rows, errors in near.errors(np.array([[0.2, 0.8]]), [1])]
    [(slice(0, 1, None), [[[-0.9, 0.9]]])]
    """

    def __init__(self, probs: FloatArray, y: IntArray) -> None:
        self.log_probs = np.log(np.maximum(probs, _CLIP))
        self.error = probs - one_hot(y, probs.shape[1])

    def errors(self, queries: FloatArray, counts: Sequence[int]) -> Iterator[tuple[slice, Float64]]:
        """Yield, for each block of queries, the mean error of the nearest rows.

        Of M queries (M, K); ``counts``, ascending, share one search. An error is (len(counts), rows of the
        block, K).
        """
        for rows in row_blocks((len(queries), len(self.error)), _BLOCK_DISTANCES):
            # KL(q‖p) = Σ q log q − Σ q log p, and the first part is the same for every p.
            distance = np.maximum(queries[rows], _CLIP) @ -self.log_probs.T
            yield rows, self._means(distance, counts)

    def _means(self, distance: Float64, counts: Sequence[int]) -> Float64:
        """Means over growing neighbourhoods: each adds only its new rows to the sum before it."""
        m, n = distance.shape
        means = np.empty((len(counts), m, self.error.shape[1]))
        inner = [count for count in counts if count < n]
        means[len(inner) :] = self.error.mean(axis=0)
        if not inner:
            return means
        limits = np.partition(distance, [c - 1 for c in inner], axis=1)[:, [c - 1 for c in inner]]
        row, column = np.nonzero(distance <= (limits[:, -1] + _slack(limits[:, -1]))[:, None])
        found = distance[row, column]
        total, before = np.zeros((m, self.error.shape[1])), np.zeros(len(row))
        for i, count in enumerate(inner):
            share = _shares(found, row, limits[:, i], count)
            fresh = np.flatnonzero(share != before)
            pointer = np.searchsorted(row[fresh], np.arange(m + 1))
            change = csr_array(((share - before)[fresh], column[fresh], pointer), shape=(m, n))
            total += np.asarray(change @ self.error)
            before = share
            means[i] = total / count
        return means


def _slack(limit: Float64) -> Float64:
    """Return by how much rounding may move a distance, which depends on how many queries come together."""
    return _ROUNDING * limit  # all terms of a distance are positive: rounding is relative to it


def _shares(distance: Float64, row: IntArray, limit: Float64, count: int) -> Float64:
    """Return how much of each found row is a neighbour, ``count`` in all for every query.

    Rows as far away as the last neighbour share what is left, so that no order of rows decides.
    """
    inside = distance < (limit - _slack(limit))[row]
    tied = ~inside & (distance <= (limit + _slack(limit))[row])
    left = count - np.bincount(row, weights=inside, minlength=len(limit))
    ties = np.bincount(row, weights=tied, minlength=len(limit))
    return inside + tied * (left / np.maximum(ties, 1))[row]


def subtract_error(queries: FloatArray, error: Float64, threshold: float) -> Float64:
    """Return queries − error, unnormalised; entries at or below the threshold, before or after, stay.

    Shapes: queries, error (M, K) → (M, K).

    >>> subtract_error(np.array([[0.6, 0.3, 0.1]]), np.array([[0.2, 0.3, -0.1]]), 0.1).round(2)
    array([[0.4, 0.3, 0.1]])
    """
    moved = queries - error
    # Rounding must not decide at the threshold: an error that takes all of p leaves 1e-17 or 0.
    least = threshold + _AT_THRESHOLD
    return np.where((queries <= least) | (moved <= least), queries, moved)
