"""A checked sample of predictions, with the reductions that metrics share.

Every metric starts from one :class:`Sample`. It checks the input once, computes on the array's own library
and device, and remembers what it computed: one sort serves all top-label metrics, one pass finds the
entries that class-wise bins need. A bootstrap replicate is the same sample with other weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.io.top_k import TopK
from hcal.metrics.data import BLOCK, Data, Vector
from hcal.metrics.ranked import Ranked
from hcal.numerics import IntArray

# Where integer weights are written out as rows, or bins counted up to as many, they may sum to this.
MOST_COPIES = 10**7


class Sample:
    """N predictions with their labels, and optionally weights: what every metric computes from.

    A metric accepts it in place of ``probs`` (then ``y`` and ``sample_weight`` are not given), which saves
    checking and sorting the same arrays again.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
        numpy, torch (CPU or CUDA), pandas, polars; or :class:`hcal.io.top_k.TopK`.
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional

    Examples
    --------
    >>> s = Sample([[0.2, 0.8], [0.6, 0.4]], [1, 1])
    >>> s.n, s.k, float(s.total)
    (2, 2, 2.0)
    """

    def __init__(self, probs: Any, y: Any, sample_weight: Any = None) -> None:
        if isinstance(probs, TopK):
            from hcal.metrics.top_k import TopKData

            self.data: Data = TopKData(probs, y)
        else:
            self.data = Data(probs, y)
        # Replicates of a bootstrap keep the k-means clusters of the sample that they were drawn from.
        self.keep_clusters = False
        self.weight = inputs.check_weight(sample_weight, self.data.n)

    def reweighted(self, weight: Vector | None) -> Sample:
        """Return the same predictions under other (checked) weights, sharing all reductions."""
        other = object.__new__(Sample)
        other.data, other.weight, other.keep_clusters = self.data, weight, self.keep_clusters
        return other

    def relabelled(self, y: IntArray) -> Sample:
        """Return the same predictions and weights with other (checked) labels."""
        other = self.reweighted(self.weight)
        other.data = self.data.relabelled(y)
        for name in ("w", "total", "column_sums", "zero_weights"):  # no label in any of them
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        return other

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.data.n

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.data.k

    @property
    def y(self) -> IntArray:
        """Labels, shape (N,)."""
        return self.data.y

    @cached_property
    def w(self) -> Vector:
        """Weights, ones if none were given, shape (N,)."""
        return np.ones(self.n) if self.weight is None else self.weight

    @cached_property
    def total(self) -> float:
        """Sum of the weights."""
        return float(self.w.sum())

    @cached_property
    def ranked(self) -> Ranked:
        """The top labels in the order of the confidences."""
        d = self.data
        return Ranked(d.conf_sorted, d.hit_sorted, self.w[d.order])

    @cached_property
    def ranked_positive(self) -> Ranked:
        """Of two classes: class 1 in the order of its probability."""
        score, order = self.data.positive
        return Ranked(score, (self.y[order] == 1).astype(np.float64), self.w[order])

    @cached_property
    def column_sums(self) -> Vector:
        """Weighted sums of every class's probabilities, shape (K,)."""
        return self.data.column_sums(self.w)

    @cached_property
    def zero_weights(self) -> Vector:
        """Weight of the entries p = 0 of every class, shape (K,)."""
        return self.data.zero_weights(self.w)

    def drawn_ranked(self, draws: int, rng: np.random.Generator) -> Iterator[Ranked]:
        """Yield the top labels with hits drawn by their confidences, a block of the draws at a time."""
        conf = self.data.conf_sorted
        for hit in drawn_hits(conf, draws, rng):
            if self.data.tensor is None:
                yield Ranked(conf, hit.astype(np.float64), np.ones(1))
            else:
                from hcal.metrics.device_replicates import ranked_hits

                yield ranked_hits(self.data, hit)

    def mean(self, values: Vector) -> float:
        """Return the weighted mean of one value a row."""
        return float(np.dot(self.w, values) / self.total)

    def need_repetitions(self, metric: str, *, copied: bool = False) -> None:
        """Refuse weights that are not repetition counts, or are too many where they are written out."""
        if self.weight is not None and not np.array_equal(self.weight, np.rint(self.weight)):
            raise ValueError(
                f"{metric} counts samples, so sample_weight must hold whole repetition counts; "
                f"row {int(np.argmax(self.weight != np.rint(self.weight)))} is not whole"
            )
        if copied and self.weight is not None and self.total > MOST_COPIES:
            raise ValueError(
                f"{metric} looks at every repetition: sample_weight sums to {self.total:.3g}, and may to at "
                f"most {MOST_COPIES:.0e}"
            )


def as_value(x: Any) -> float:
    """Return a float; or, of an answer for many replicates at once, the array of all of them.

    >>> as_value(np.array(0.5)), as_value(np.array([0.5]))
    (0.5, array([0.5]))
    """
    x = as_array(x)
    return float(x) if x.ndim == 0 else x


def as_array(x: Any) -> NDArray[Any]:
    """Return an array in host memory of an array or a tensor."""
    return np.asarray(x.cpu() if hasattr(x, "cpu") else x)


def drawn_hits(conf: Vector, draws: int, rng: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    """Yield hits drawn with the confidences as their probabilities, a block of the draws at a time: (·, N).

    >>> [hit.shape for hit in drawn_hits(np.full(3, 0.5), 7, np.random.default_rng(0))]
    [(7, 3)]
    """
    step = max(1, BLOCK // len(conf))
    for i in range(0, draws, step):
        yield rng.random((min(step, draws - i), len(conf))) < conf


def as_sample(probs: Any, y: Any, sample_weight: Any) -> Sample:
    """Return the sample that a metric was called with, checking the input unless it was checked before.

    >>> s = as_sample([[0.2, 0.8]], [1], None)
    >>> as_sample(s, None, None) is s
    True
    """
    if isinstance(probs, Sample):
        if y is not None or sample_weight is not None:
            raise ValueError("a Sample already holds y and sample_weight: do not pass them again")
        return probs
    if y is None:
        raise ValueError("y is missing: pass integer labels of shape (N,)")
    return Sample(probs, y, sample_weight)


__all__ = [
    "BLOCK",
    "MOST_COPIES",
    "Data",
    "Sample",
    "Vector",
    "as_array",
    "as_sample",
    "as_value",
    "drawn_hits",
]
