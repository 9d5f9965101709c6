"""A checked sample of predictions, with the reductions that metrics share.

Every metric starts from one :class:`Sample`. It checks the input once, computes on the array's own library
and device, and remembers what it computed: one sort serves all top-label metrics, one pass finds the
entries that class-wise bins need. A bootstrap replicate is the same sample with other weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.data.top_k import TopK
from hcal.metrics.ranked import Ranked
from hcal.runtime.numerics import FloatArray, IntArray

Vector = NDArray[np.float64]

# Work on N x K arrays goes in blocks of about this many numbers, so that memory stays bounded.
BLOCK = 1 << 22
# Where integer weights are written out as rows, or bins counted up to as many, they may sum to this.
MOST_COPIES = 10**7


@dataclass(frozen=True)
class Entries:
    """The entries p_ik above a threshold, in row-major order."""

    row: IntArray
    column: IntArray
    value: Vector
    mark: NDArray[np.bool_]  # [y_i = k]


class Data:
    """Probabilities and labels without weights; reductions are computed when first asked for."""

    #: Whether the probabilities of all classes are there.
    complete = True

    def __init__(self, probs: Any, y: Any) -> None:
        self.tensor: Any = None
        if getattr(getattr(probs, "device", None), "type", "cpu") == "cuda":
            from hcal.metrics.device import check_tensor

            self.tensor = check_tensor(probs)
            self.n, self.k = (int(d) for d in self.tensor.shape)
        else:
            self._probs, _ = inputs.check_probs(probs)
            self.n, self.k = self._probs.shape
        self.y = inputs.check_labels(y, self.n, self.k)
        self._entries: dict[float, Entries] = {}
        # What is costly and does not depend on weights is remembered: cluster boundaries, kernel sums.
        self.cluster_edges: dict[tuple[int, int, int], NDArray[np.float64]] = {}
        self.pair_sums: dict[float, tuple[Vector, float]] = {}
        #: What was computed on the device of a tensor; nothing of it depends on labels.
        self.on_device: dict[Any, Any] = {}

    @cached_property
    def probs(self) -> FloatArray:
        """Probabilities in host memory, shape (N, K), float32 or float64."""
        return self._probs if self.tensor is None else np.asarray(self.tensor.cpu().numpy())

    @cached_property
    def _top(self) -> tuple[Vector, IntArray]:
        if self.tensor is not None:
            conf, pred = self.tensor.max(dim=1)
            # torch does not promise the first maximum; argmax of the mask of maxima does not either,
            # so ties are resolved by the smallest index that reaches the maximum.
            tied = self.tensor == conf[:, None]
            pred = tied.to(dtype=self.tensor.dtype).cumsum(dim=1).eq(0).sum(dim=1)
            return np.asarray(conf.double().cpu().numpy()), pred.cpu().numpy().astype(np.int64)
        pred = self._probs.argmax(axis=1)
        return self._probs[np.arange(self.n), pred].astype(np.float64), pred.astype(np.int64)

    @property
    def conf(self) -> Vector:
        """Confidence max_k p_ik, shape (N,)."""
        return self._top[0]

    @property
    def pred(self) -> IntArray:
        """Predicted class, the first on ties, shape (N,)."""
        return self._top[1]

    @cached_property
    def hit(self) -> Vector:
        """[prediction = label] as 0.0 or 1.0, shape (N,)."""
        return np.asarray(self.pred == self.y, dtype=np.float64)

    @cached_property
    def chosen(self) -> Vector:
        """Probability of the label, shape (N,)."""
        if self.tensor is not None:
            import torch

            y = torch.from_numpy(self.y).to(self.tensor.device)
            return np.asarray(self.tensor.gather(1, y[:, None])[:, 0].double().cpu().numpy())
        return np.asarray(self._probs[np.arange(self.n), self.y], dtype=np.float64)

    @cached_property
    def squares(self) -> Vector:
        """Sum of squared probabilities of each row, shape (N,)."""
        if self.tensor is not None:
            return np.asarray(self.tensor.double().square().sum(dim=1).cpu().numpy())
        return np.concatenate(
            [np.einsum("nk,nk->n", b, b) for b in (x.astype(np.float64) for x in self.row_blocks())]
        )

    def relabelled(self, y: IntArray) -> Data:
        """Return the same predictions with other (checked) labels; what does not depend on y is shared."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        for name in ("hit", "chosen", "hit_sorted"):
            other.__dict__.pop(name, None)
        other.y, other.pair_sums = y, {}
        other._entries = {
            t: Entries(e.row, e.column, e.value, y[e.row] == e.column) for t, e in self._entries.items()
        }
        return other

    def drawn(self, n_draws: int, rng: np.random.Generator) -> Any:
        """Draw labels from the predictions, shape (D, N), on the device of the predictions."""
        if self.tensor is not None:
            from hcal.metrics.device_replicates import drawn_labels_on_device

            return drawn_labels_on_device(self, n_draws, rng)
        blocks = [draw_columns(block, n_draws, rng) for block in self.row_blocks()]
        return np.concatenate(blocks, axis=1)

    def row_blocks(self) -> list[FloatArray]:
        """Views of consecutive rows, about ``BLOCK`` numbers each."""
        step = max(1, BLOCK // self.k)
        return [self.probs[i : i + step] for i in range(0, self.n, step)]

    @cached_property
    def order(self) -> IntArray:
        """The stable ascending order of the confidences: the one sort of all top-label metrics."""
        return np.argsort(self.conf, kind="stable").astype(np.int64)

    @cached_property
    def conf_sorted(self) -> Vector:
        """Confidences, ascending."""
        return self.conf[self.order]

    @cached_property
    def hit_sorted(self) -> Vector:
        """Hits in the order of the confidences."""
        return self.hit[self.order]

    def column(self, k: int) -> Vector:
        """Return the probabilities of one class, shape (N,)."""
        if self.tensor is not None:
            return np.asarray(self.tensor[:, k].double().cpu().numpy())
        return np.asarray(self.probs[:, k], dtype=np.float64)

    def take(self, rows: IntArray) -> Any:
        """Return the probabilities of some rows, where they are."""
        return self.probs[rows] if self.tensor is None else self.tensor[rows]

    @cached_property
    def positive(self) -> tuple[Vector, IntArray]:
        """Of two classes: the probabilities of class 1, ascending, and their order."""
        score = self.column(1)
        order = np.argsort(score, kind="stable").astype(np.int64)
        return score[order], order

    def entries(self, threshold: float) -> Entries:
        """Return the entries p_ik > threshold."""
        if threshold not in self._entries:
            row, column, value = self._find(threshold)
            self._entries[threshold] = Entries(row, column, value, self.y[row] == column)
        return self._entries[threshold]

    def _find(self, threshold: float) -> tuple[IntArray, IntArray, Vector]:
        if self.tensor is not None:
            found = (self.tensor.double() > threshold).nonzero()
            value = self.tensor[found[:, 0], found[:, 1]].double().cpu().numpy()
            return found[:, 0].cpu().numpy(), found[:, 1].cpu().numpy(), value
        parts = []
        for i, block in enumerate(self.row_blocks()):
            # float32 is compared as float64: a float32 threshold would round 1/K to another number.
            flat = np.flatnonzero(block.astype(np.float64, copy=False) > threshold)
            row, column = np.divmod(flat, self.k)
            offset = i * max(1, BLOCK // self.k)
            parts.append((row + offset, column, block.ravel()[flat].astype(np.float64)))
        return (
            np.concatenate([p[0] for p in parts]),
            np.concatenate([p[1] for p in parts]),
            np.concatenate([p[2] for p in parts]),
        )

    def column_sums(self, weight: NDArray[np.float64]) -> Vector:
        """Return the weighted sums of every class's probabilities, shape (K,) or (B, K) for B weights."""
        if self.tensor is not None:
            import torch

            w = torch.from_numpy(weight).to(self.tensor.device)
            return np.asarray((w @ self.tensor.double()).cpu().numpy())
        return self._columns(weight, lambda block: block.astype(np.float64, copy=False))

    @cached_property
    def has_zeros(self) -> bool:
        """Whether some probability is exactly 0."""
        if self.tensor is not None:
            return bool((self.tensor == 0).any())
        return not all(block.all() for block in self.row_blocks())

    def zero_weights(self, weight: NDArray[np.float64]) -> Vector:
        """Return the weight of the entries p = 0 of every class, shape (K,) or (B, K) for B weights."""
        if not self.has_zeros:
            return np.zeros((*weight.shape[:-1], self.k))
        return self._columns(weight, lambda block: (block == 0).astype(np.float64))

    def _columns(self, weight: NDArray[np.float64], of: Callable[[FloatArray], Vector]) -> Vector:
        total = np.zeros((*weight.shape[:-1], self.k))
        start = 0
        for block in self.row_blocks():
            total += weight[..., start : start + len(block)] @ of(block)
            start += len(block)
        return total


class Sample:
    """N predictions with their labels, and optionally weights: what every metric computes from.

    A metric accepts it in place of ``probs`` (then ``y`` and ``sample_weight`` are not given), which saves
    checking and sorting the same arrays again.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
        numpy, torch (CPU or CUDA), pandas, polars; or :class:`hcal.data.top_k.TopK`.
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
                yield Ranked(conf, hit, np.ones(1))
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


def draw_columns(weights: FloatArray, n_draws: int, rng: np.random.Generator) -> IntArray:
    """Draw columns in proportion to weights (N, C): (D, N), one binary search a draw.

    Examples
    --------
    >>> draw_columns(np.array([[0.0, 1.0]]), 3, np.random.default_rng(0)).ravel()
    array([1, 1, 1])
    """
    rows = np.arange(len(weights))
    cumulated = np.cumsum(weights, axis=1, dtype=np.float64)
    cumulated /= cumulated[:, -1:]
    flat = (cumulated + rows[:, None]).ravel()
    found = np.searchsorted(flat, rng.random((n_draws, len(rows))) + rows, side="right")
    columns = np.clip(found - rows * weights.shape[1], 0, weights.shape[1] - 1)
    return np.asarray(columns, dtype=np.int64)


def number(x: Any) -> Any:
    """Return a float; or, of an answer for many replicates at once, the array of all of them.

    Examples
    --------
    >>> number(np.array(0.5)), number(np.array([0.5]))
    (0.5, array([0.5]))
    """
    x = as_array(x)
    return float(x) if x.ndim == 0 else x


def as_array(x: Any) -> NDArray[Any]:
    """Return an array in host memory of an array or a tensor.

    Examples
    --------
    >>> as_array([1.0])
    array([1.])
    """
    return np.asarray(x.cpu() if hasattr(x, "cpu") else x)


def drawn_hits(conf: Vector, draws: int, rng: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    """Yield hits drawn with the confidences as their probabilities, a block of the draws at a time: (·, N).

    Examples
    --------
    >>> [hit.shape for hit in drawn_hits(np.full(3, 0.5), 7, np.random.default_rng(0))]
    [(7, 3)]
    """
    step = max(1, BLOCK // len(conf))
    for i in range(0, draws, step):
        yield rng.random((min(step, draws - i), len(conf))) < conf


def as_sample(probs: Any, y: Any, sample_weight: Any) -> Sample:
    """Return the sample that a metric was called with, checking the input unless it was checked before.

    Examples
    --------
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
