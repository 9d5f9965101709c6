"""Calibration errors of the KL-nearest calibration rows, in blocks that bound memory at any N."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hcal.numerics import FloatArray, IntArray, one_hot

Array = NDArray[np.float64]

_CLIP = 1e-30
_BLOCK_DISTANCES = 8_000_000  # distances held at once


class Neighbours:
    """The calibration rows p and their errors p − Y, ready to be asked for those nearest to new rows.

    Parameters
    ----------
    probs : array of shape (N, K)
    y : array of shape (N,)

    Examples
    --------
    >>> near = Neighbours(np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([0, 0]))
    >>> [(rows, errors.tolist()) for rows, errors in near.errors(np.array([[0.2, 0.8]]), [1])]
    [(slice(0, 1, None), [[[-0.9, 0.9]]])]
    """

    def __init__(self, probs: FloatArray, y: IntArray) -> None:
        self.log_probs = np.log(np.maximum(probs, _CLIP))
        self.error = probs - one_hot(y, probs.shape[1])

    def errors(self, queries: FloatArray, counts: Sequence[int]) -> Iterator[tuple[slice, Array]]:
        """Yield, for each block of queries, the mean error of the nearest rows.

        Parameters
        ----------
        queries : array of shape (M, K)
        counts : sequence of int, ascending
            How many neighbours; several at once share one search.

        Yields
        ------
        slice, array of shape (len(counts), rows of the block, K)
        """
        n = len(self.error)
        rows = max(1, _BLOCK_DISTANCES // n)
        most = max((c for c in counts if c < n), default=0)
        for start in range(0, len(queries), rows):
            block = queries[start : start + rows]
            nearest = self._nearest(block, most) if most else np.empty((len(block), 0), dtype=np.int64)
            yield slice(start, start + len(block)), self._means(nearest, counts)

    def _nearest(self, queries: FloatArray, most: int) -> IntArray:
        # KL(q‖p) = Σ q log q − Σ q log p, and the first part is the same for every p.
        distance = np.maximum(queries, _CLIP) @ -self.log_probs.T
        found = np.argpartition(distance, most - 1, axis=1)[:, :most]
        order = np.argsort(np.take_along_axis(distance, found, axis=1), axis=1, kind="stable")
        return np.take_along_axis(found, order, axis=1)

    def _means(self, nearest: IntArray, counts: Sequence[int]) -> Array:
        """Means over growing neighbourhoods: each adds only its new rows to the sum before it."""
        n, k = self.error.shape
        total, done = np.zeros((len(nearest), k)), 0
        means = np.empty((len(counts), len(nearest), k))
        for i, count in enumerate(counts):
            if count >= n:
                means[i] = self.error.mean(axis=0)
                continue
            fresh = nearest[:, done:count]
            pointer = np.arange(len(fresh) + 1) * fresh.shape[1]
            choice = csr_array((np.ones(fresh.size), fresh.ravel(), pointer), shape=(len(fresh), n))
            total += choice @ self.error
            done = count
            means[i] = total / count
        return means


def subtract_error(queries: FloatArray, error: Array, threshold: float) -> Array:
    """Return queries − error, unnormalised; entries at or below the threshold, before or after, stay.

    Parameters
    ----------
    queries, error : arrays of shape (M, K)
    threshold : float

    Returns
    -------
    array of shape (M, K)

    Examples
    --------
    >>> subtract_error(np.array([[0.6, 0.3, 0.1]]), np.array([[0.2, 0.3, -0.1]]), 0.1).round(2)
    array([[0.4, 0.3, 0.1]])
    """
    moved = queries - error
    return np.where((queries <= threshold) | (moved <= threshold), queries, moved)
