"""The top k scores of very many classes, and the probability that is left: what servers of LLMs return.

A row lists k classes of K with their probabilities; the other K − k classes share the *tail*. The convention
everywhere: they share it evenly, each with tail/(K − k). That is what is known of them, it makes a row of
K numbers out of k + 1 without building it, and it touches nothing that looks at the top class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.inputs import INPUT_KINDS, check_labels, to_numpy
from hcal.numerics import Float64, IntArray, log_softmax

#: A tail below this counts as this: 1 − Σ of printed log-probabilities cannot tell it from 0.
LEAST_TAIL = 1e-12
_NOTHING = float(np.log(np.finfo(np.float64).smallest_subnormal))
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class TopK:
    """Scores of the top k of K classes for N rows, and what they leave.

    Parameters
    ----------
    values : array-like of shape (N, k)
        In any order; in a row with fewer than k classes the places left over have index −1.
    indices : array-like of shape (N, k)
        The classes, 0..K−1, none twice in a row.
    tail : array-like of shape (N,), optional
        The probability of all other classes together, in the form that ``kind`` says (a probability, its
        logarithm, or the log-sum-exp of the other logits). By default what the values leave of 1; logits
        do not say what they leave.
    n_classes : int
        K.
    kind : {"probs", "log_probs", "logits"}

    Attributes
    ----------
    log_probs : array of shape (N, k)
    log_tail : array of shape (N,)
        At least ln 1e-12 where there are other classes.
    others : array of shape (N,)
        How many classes share the tail.

    Examples
    --------
    >>> top = TopK([[0.7, 0.2]], [[4, 1]], n_classes=5)
    >>> top.dense().round(4)
    array([[0.0333, 0.2   , 0.0333, 0.0333, 0.7   ]])
    """

    values: Any
    indices: Any
    tail: Any = None
    n_classes: int = 0
    kind: Literal["probs", "log_probs", "logits"] = "probs"

    def __post_init__(self) -> None:
        values, indices = self._checked()
        listed = indices >= 0
        others = self.n_classes - listed.sum(axis=1)
        log_values = _logs(values, self.kind, listed)
        log_tail = self._log_tail(log_values, others)
        if self.kind == "logits":
            both = np.asarray(log_softmax(np.column_stack([log_values, log_tail])), dtype=np.float64)
            log_values, log_tail = both[:, :-1], both[:, -1]
        total = np.exp(log_values).sum(axis=1) + np.exp(log_tail)
        off = np.abs(total - 1) > _TOLERANCE
        if off.any():
            row = int(np.argmax(off))
            raise ValueError(
                f"values and tail must sum to 1 (within {_TOLERANCE:g}); row {row}: {total[row]:.6g}"
            )
        log_tail = np.where(others > 0, np.maximum(log_tail, np.log(LEAST_TAIL)), -np.inf)
        each = log_tail - np.log(np.maximum(others, 1))
        low = each > log_values.max(axis=1) + 1e-9
        if low.any():
            row = int(np.argmax(low))
            raise ValueError(
                f"row {row} leaves e^{each[row]:.4g} to every class that it does not list, more than to any "
                "that it lists: these are not its top classes"
            )
        fields = {
            "values": values, "indices": indices, "log_probs": np.where(listed, log_values, -np.inf),
            "log_tail": log_tail, "others": others,
        }  # fmt: skip
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    log_probs: Float64 = None  # type: ignore[assignment]
    log_tail: Float64 = None  # type: ignore[assignment]
    others: IntArray = None  # type: ignore[assignment]

    def _checked(self) -> tuple[Float64, IntArray]:
        if self.kind not in INPUT_KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, INPUT_KINDS))}, got {self.kind!r}")
        if not isinstance(self.n_classes, int | np.integer) or self.n_classes < 2:
            raise ValueError(f"n_classes must be an integer of at least 2, got {self.n_classes!r}")
        values = np.asarray(to_numpy(self.values, "values")[0], dtype=np.float64)
        indices, _ = to_numpy(self.indices, "indices")
        if values.ndim != 2 or not values.size or indices.shape != values.shape:
            raise ValueError(
                f"values and indices must have one shape (N, k), got {values.shape} and {indices.shape}"
            )
        if not np.issubdtype(indices.dtype, np.integer):
            raise ValueError(f"indices must be integers, got {indices.dtype}")
        indices = indices.astype(np.int64)
        _refuse(indices < -1, "indices must lie in 0..K−1, or be −1 where nothing is listed")
        _refuse(indices >= self.n_classes, f"indices must lie in 0..{self.n_classes - 1}")
        in_order = np.sort(indices, axis=1)
        _refuse((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0), "a class is listed twice")
        _refuse(np.asarray((indices < 0).all(axis=1)), "no class is listed")
        bad = (np.isnan(values) | np.isposinf(values)) & (indices >= 0)
        _refuse(bad, "values must be finite")
        if self.kind == "probs":
            _refuse((values < 0) & (indices >= 0), "values must not be negative")
        return values, indices

    def _log_tail(self, log_values: Float64, others: IntArray) -> Float64:
        """Return the logarithm of what is left."""
        if self.tail is None:
            if self.kind == "logits" and others.any():
                raise ValueError("logits do not say what is left: pass tail, the log-sum-exp of the others")
            left = np.maximum(1 - np.exp(log_values).sum(axis=1), 0) * (others > 0)
            return _logs(left, "probs", left > 0)
        tail = np.asarray(to_numpy(self.tail, "tail")[0], dtype=np.float64)
        if tail.shape != (len(log_values),):
            raise ValueError(f"tail must have shape ({len(log_values)},), got {tail.shape}")
        _refuse(np.isnan(tail) | np.isposinf(tail), "tail must be finite")
        if self.kind == "probs":
            _refuse(tail < 0, "tail must not be negative")
        return np.where(others > 0, _logs(tail, self.kind, np.ones(len(tail), dtype=bool)), _NOTHING)

    @classmethod
    def from_dense(cls, probs: Any, k: int) -> TopK:
        """Return the top k of probabilities (N, K), the most probable first.

        Examples
        --------
        >>> TopK.from_dense([[0.1, 0.6, 0.3]], 2).indices
        array([[1, 2]])
        """
        p = np.asarray(to_numpy(probs, "probs")[0], dtype=np.float64)
        k = min(k, p.shape[1])
        order = np.argsort(-p, axis=1, kind="stable")[:, :k]
        values = np.take_along_axis(p, order, axis=1)
        rest = p.copy()
        np.put_along_axis(rest, order, 0.0, axis=1)
        return cls(values, order, rest.sum(axis=1), n_classes=p.shape[1])

    def __len__(self) -> int:
        return len(self.indices)

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise ValueError("these are the top k of K classes; dense() is the array of all, where K is small")

    def __getitem__(self, rows: Any) -> TopK:
        """Return some rows, by a number, a slice, a mask or numbers."""
        part = np.atleast_1d(np.arange(len(self))[rows])
        return self.with_probs(np.exp(self.log_probs), np.exp(self.log_tail), part)

    def with_probs(self, values: Float64, tail: Float64, rows: Any = slice(None)) -> TopK:
        """Return other probabilities (N, k) and tails (N,) of the same classes, or some rows of them."""
        return TopK(values[rows], self.indices[rows], tail[rows], self.n_classes, "probs")

    def groups(self) -> tuple[Float64, Float64]:
        """Return scores (N, k + 1) and ln of how many classes have them (N, k + 1); the last is the tail's.

        Scores are ln of the probability of ONE class; where no class has one, a finite number and ln 0.
        """
        each = self.log_tail - np.log(np.maximum(self.others, 1))
        least = np.min(self.log_probs, axis=1, where=self.indices >= 0, initial=0.0)
        each = np.where(self.others > 0, each, least)
        listed = np.where(self.indices >= 0, self.log_probs, least[:, None])
        with np.errstate(divide="ignore"):
            sizes = np.log(np.column_stack([self.indices >= 0, self.others]).astype(np.float64))
        return np.column_stack([listed, each]), sizes

    def columns_of(self, y: Any) -> IntArray:
        """Return the column of :meth:`groups` that holds each label (N,); k where it is not listed."""
        labels = check_labels(y, len(self), self.n_classes)
        found = self.indices == labels[:, None]
        columns = np.where(found.any(axis=1), found.argmax(axis=1), self.indices.shape[1])
        return np.asarray(columns, dtype=np.int64)

    def top(self) -> tuple[IntArray, Float64]:
        """Return the most probable class of each row (the first, on ties) and its probability; (N,) each."""
        best = self.log_probs.max(axis=1)
        tied = np.where(self.log_probs == best[:, None], self.indices, self.n_classes)
        return np.asarray(tied.min(axis=1)), np.exp(best)

    def dense(self) -> Float64:
        """Return all probabilities (N, K): for few classes only."""
        share = np.exp(self.log_tail) / np.maximum(self.others, 1)
        out = np.repeat(share[:, None], self.n_classes, axis=1)
        row, place = np.nonzero(self.indices >= 0)
        out[row, self.indices[row, place]] = np.exp(self.log_probs[row, place])
        return out


def _logs(values: Float64, kind: str, listed: NDArray[np.bool_]) -> Float64:
    """Return logarithms (logits as they are), finite where listed and next to nothing elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values) if kind == "probs" else values
    floor = _NOTHING if kind != "logits" else -np.finfo(np.float64).max
    return np.where(listed, np.maximum(np.nan_to_num(logs, nan=floor, neginf=floor), floor), _least(kind))


def _least(kind: str) -> float:
    return -np.inf if kind == "logits" else _NOTHING


def _refuse(bad: NDArray[np.bool_], words: str) -> None:
    if bad.any():
        raise ValueError(f"{words}; row {int(np.argwhere(bad)[0][0])} is not so")
