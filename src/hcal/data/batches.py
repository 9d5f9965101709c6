"""Batches: the rows of a source block by block, so that a block bounds the memory and not the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hcal.inputs import InputKind


@dataclass(frozen=True)
class Batch:
    """Some rows of a source, in its order.

    Attributes
    ----------
    scores : array of shape (B, K)
    kind : {"logits", "probs", "log_probs"}
    y : array of shape (B,), or None
        Integers 0..K−1.
    start : int
        The number of the first row in the source.
    ids, groups, weight : array of shape (B,), or None
    """

    scores: NDArray[Any]
    kind: InputKind
    y: NDArray[Any] | None
    start: int
    ids: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    weight: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.scores)
