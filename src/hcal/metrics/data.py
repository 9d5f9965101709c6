"""Checked predictions and labels without weights, with the reductions that do not depend on weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.numerics import FloatArray, IntArray

Vector = NDArray[np.float64]

# Work on N x K arrays goes in blocks of about this many numbers, so that memory stays bounded.
BLOCK = 1 << 22


@dataclass(frozen=True)
class Entries:
    """The entries p_ik above a threshold, in row-major order."""

    row: IntArray
    column: IntArray
    value: Vector
    mark: NDArray[np.bool_]  # [y_i = k]


def is_on_device(probs: Any) -> bool:
    """Return whether an array is a CUDA tensor, which stays where it is."""
    return bool(getattr(getattr(probs, "device", None), "type", "cpu") == "cuda")


class Data:
    """Probabilities and labels without weights; reductions are computed when first asked for."""

    #: Whether the probabilities of all classes are there.
    complete = True

    def __init__(self, probs: Any, y: Any) -> None:
        self.tensor: Any = None
        if is_on_device(probs):
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

    @property
    def width(self) -> np.dtype[Any]:
        """The float width of the probabilities, float32 or float64."""
        return self.probs.dtype if self.tensor is None else np.dtype(str(self.tensor.dtype).partition(".")[2])

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
        """Draw labels from the predictions, shape (D, N), on their device: how calibrated data would look."""
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
            flat = np.flatnonzero(block.astype(np.float64, copy=False) > threshold)
            row, column = np.divmod(flat, self.k)
            offset = i * max(1, BLOCK // self.k)
            parts.append((row + offset, column, block.ravel()[flat].astype(np.float64)))
        rows, columns, values = (np.concatenate(found) for found in zip(*parts, strict=True))
        return rows, columns, values

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


def draw_columns(weights: FloatArray, n_draws: int, rng: np.random.Generator) -> IntArray:
    """Draw columns in proportion to weights (N, C): (D, N), one binary search a draw.

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
