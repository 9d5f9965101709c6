"""The small set of operations that a map is written in to run elsewhere (PyTorch, ONNX).

A method that can run elsewhere has, beside ``_predict``, one function ``_graph(ops, x)``: the same map in
terms of the operations below. ``x`` holds float64 logits with the classes last; values of all runtimes take
``+ - * /`` and comparisons as usual. See docs/decisions/051-one-graph-for-torch-and-onnx.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Ops(ABC):
    """One runtime. Reductions go over the last axis and keep it.

    Examples
    --------
    >>> ops = NumpyOps()
    >>> ops.softmax(ops.const([[0.0, 0.0]]))
    array([[0.5, 0.5]])
    """

    @abstractmethod
    def const(self, value: ArrayLike) -> Any:
        """Return a float64 constant, as the learned ones; a plain number may stand right of an operator."""

    @abstractmethod
    def exp(self, x: Any) -> Any:
        """Return e^x."""

    @abstractmethod
    def log(self, x: Any) -> Any:
        """Return ln x."""

    @abstractmethod
    def max(self, x: Any) -> Any:
        """Return the largest value of each row, shape (..., 1)."""

    @abstractmethod
    def sum(self, x: Any) -> Any:
        """Return the sum of each row, shape (..., 1)."""

    @abstractmethod
    def maximum(self, x: Any, y: Any) -> Any:
        """Return the larger of two values, element by element; the second may be a plain number."""

    @abstractmethod
    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Return x where the condition holds, y elsewhere."""

    @abstractmethod
    def matmul(self, x: Any, matrix: Any) -> Any:
        """Return x @ matrix over the last axis."""

    @abstractmethod
    def top(self, x: Any) -> Any:
        """Return a mask that is true at the first largest value of each row."""

    @abstractmethod
    def rounded(self, x: Any) -> Any:
        """Return x rounded to the float width of the output, as float64 again."""

    @abstractmethod
    def bucket(self, x: Any, edges: NDArray[np.float64]) -> Any:
        """Return how many of the ascending edges are ≤ x: an index 0..len(edges)."""

    @abstractmethod
    def take(self, table: NDArray[np.float64], index: Any) -> Any:
        """Return table[index] of a 1-D table."""

    # -- derived: the same composition in every runtime ---------------------------------------------

    def minimum(self, x: Any, y: Any) -> Any:
        """Return the smaller of two values, element by element; the second may be a plain number."""
        return self.where(x < y, x, y)

    def log_softmax(self, x: Any) -> Any:
        """Return log-softmax over the classes."""
        shifted = x - self.max(x)
        return shifted - self.log(self.sum(self.exp(shifted)))

    def softmax(self, x: Any) -> Any:
        """Return softmax over the classes."""
        e = self.exp(x - self.max(x))
        return e / self.sum(e)

    def clip(self, x: Any, low: float, high: float) -> Any:
        """Return x, not below low and not above high."""
        return self.minimum(self.maximum(x, low), high)

    def log_probs(self, x: Any, eps: float) -> Any:
        """Return ln p of p = softmax(x) clipped to [eps, 1 − eps]."""
        return self.clip(self.log_softmax(x), float(np.log(eps)), float(np.log1p(-eps)))

    def columns(self, x: Any, chosen: NDArray[np.int64], n_classes: int) -> Any:
        """Return the chosen classes of x, shape (..., C)."""
        if len(chosen) == n_classes:
            return x
        return self.matmul(x, self.const(np.eye(n_classes)[:, chosen]))

    def keep_absent(self, inner: Any, x: Any, present: NDArray[np.int64], n_classes: int) -> Any:
        """Return probabilities where absent classes keep softmax(x) and the present ones share the rest."""
        if len(present) == n_classes:
            return inner
        probs, pick = self.softmax(x), np.eye(n_classes)[:, present]
        share = self.sum(self.matmul(probs, self.const(pick)))
        is_present = self.const(pick.sum(axis=1))
        return self.matmul(inner * share, self.const(pick.T)) + probs - probs * is_present

    def piecewise(self, x: Any, knots: ArrayLike, values: ArrayLike) -> Any:
        """Return the piecewise linear function through (knots, values); the end segments go on for ever."""
        t, v = np.asarray(knots, dtype=np.float64), np.asarray(values, dtype=np.float64)
        slope = np.diff(v) / np.diff(t)
        index = self.bucket(x, t[1:-1])
        # From the segment's left knot: an intercept at x = 0 would cancel digits far from 0.
        return self.take(v[:-1], index) + self.take(slope, index) * (x - self.take(t[:-1], index))


class NumpyOps(Ops):
    """The reference runtime; what the others are tested against.

    Parameters
    ----------
    dtype : numpy dtype
        The float width of input and output.

    Examples
    --------
    >>> NumpyOps().max(np.array([[1.0, 2.0]]))
    array([[2.]])
    """

    def __init__(self, dtype: Any = np.float64) -> None:
        self.dtype = np.dtype(dtype)

    def const(self, value: ArrayLike) -> Any:
        return np.asarray(value, dtype=np.float64)

    def exp(self, x: Any) -> Any:
        return np.exp(x)

    def log(self, x: Any) -> Any:
        return np.log(x)

    def max(self, x: Any) -> Any:
        return x.max(axis=-1, keepdims=True)

    def sum(self, x: Any) -> Any:
        return x.sum(axis=-1, keepdims=True)

    def maximum(self, x: Any, y: Any) -> Any:
        return np.maximum(x, y)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return np.where(condition, x, y)

    def matmul(self, x: Any, matrix: Any) -> Any:
        return x @ matrix

    def top(self, x: Any) -> Any:
        return np.arange(x.shape[-1]) == x.argmax(axis=-1)[..., None]

    def rounded(self, x: Any) -> Any:
        return x.astype(self.dtype).astype(np.float64)

    def bucket(self, x: Any, edges: NDArray[np.float64]) -> Any:
        return np.searchsorted(edges, x, side="right")

    def take(self, table: NDArray[np.float64], index: Any) -> Any:
        return np.asarray(table)[index]
