"""Top-k scores as the data of a sample: what looks at the top class, the label and Σp² needs no more."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from hcal import inputs
from hcal.io.top_k import TopK
from hcal.metrics.data import Data, Vector, draw_columns
from hcal.numerics import FloatArray, IntArray


class TopKData(Data):
    """Predictions of which the top k classes are known, and labels.

    A label that its row does not list has the probability of one unseen class, tail/(K − k).

    >>> TopKData(TopK([[0.7, 0.2]], [[4, 1]], n_classes=5), [0]).chosen.round(4)
    array([0.0333])
    """

    complete = False

    def __init__(self, top: TopK, y: Any) -> None:
        self.top, self.tensor = top, None
        self.n, self.k = len(top), top.n_classes
        self.y = inputs.check_labels(y, self.n, self.k)
        self._entries, self.cluster_edges, self.pair_sums = {}, {}, {}

    @property
    def probs(self) -> FloatArray:
        """Refused: there is no array of all classes."""
        raise ValueError(
            "this metric looks at every class, and top-k scores do not hold them; use top-label metrics and "
            "scores, or top.dense() where K is small"
        )

    @cached_property
    def _top(self) -> tuple[Vector, IntArray]:
        pred, conf = self.top.top()
        return conf, pred

    @cached_property
    def chosen(self) -> Vector:
        """Probability of the label, shape (N,)."""
        scores, _ = self.top.groups()
        return np.asarray(np.exp(scores[np.arange(self.n), self.top.columns_of(self.y)]))

    def drawn(self, n_draws: int, rng: np.random.Generator) -> IntArray:
        """Draw labels from the predictions, shape (D, N); among classes that are not listed evenly."""
        scores, sizes = self.top.groups()
        column = draw_columns(np.exp(scores + sizes), n_draws, rng)
        unseen = (rng.random(column.shape) * self.top.others).astype(np.int64)
        for listed in np.sort(np.where(self.top.indices < 0, self.k, self.top.indices), axis=1).T:
            unseen += unseen >= listed  # the r-th of the classes that are left
        k = self.top.indices.shape[1]
        own = self.top.indices[np.arange(self.n), np.minimum(column, k - 1)]
        return np.where(column < k, own, np.minimum(unseen, self.k - 1))

    @cached_property
    def squares(self) -> Vector:
        """Sum of squared probabilities of each row, shape (N,)."""
        scores, sizes = self.top.groups()
        return np.asarray(np.exp(2 * scores + sizes).sum(axis=1))
