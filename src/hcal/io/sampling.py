"""A random sample of rows that come in blocks, which does not depend on how they were cut into blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import IntArray
from hcal.rows import Rows

#: How many standard deviations of a hash's count are kept beyond the size of the sample, so that it is not too small.
_SPARE: Final = 6
#: So many rows beyond the sample are collected before some are dropped, which copies all of them.
_LATER: Final = 1000


class RowSample:
    """The rows whose numbers have the smallest hashes: a partial result (:mod:`hcal.passes`).

    Parameters
    ----------
    most_rows : int
        The size of the sample; all rows are kept if there are no more than these.
    most_scores : int
        The most numbers (rows × classes) of the sample.
    n_rows : int, optional
        How many rows will come, if that is known: then a part keeps its share of them, and not a whole sample.

    Examples
    --------
    >>> rows = Rows.of(np.eye(2)[[0, 1, 1, 0]], [0, 1, 1, 0], input="probs")
    >>> parts = [RowSample(3, 100).update(block) for block in rows.blocks(2)]
    >>> sample = parts[1].merge(parts[0]).rows()
    >>> len(sample), sample.source_rows
    (3, 4)
    """

    def __init__(self, most_rows: int, most_scores: int, n_rows: int | None = None) -> None:
        if most_rows < 1:
            raise ValueError(f"a sample needs at least 1 row, got {most_rows}")
        self.most_rows = most_rows
        self.most_scores = most_scores
        self.n_rows = n_rows
        self.seen = 0
        self._kept = 0
        self._blocks: list[Rows] = []
        #: The numbers of the rows of each block.
        self._numbers: list[IntArray] = []

    def update(self, block: Rows) -> Self:
        """Add a block of rows."""
        self.seen += len(block)
        numbers = np.arange(block.start, block.start + len(block))
        size = self._size(block.n_classes)
        if self.n_rows is not None and self.n_rows > size:
            near = _hashes(numbers) <= _limit(size, self.n_rows)
            block = block[near]
            numbers = numbers[near]
        self._add(block, numbers)
        return self

    def merge(self, other: RowSample) -> Self:
        """Add the rows of another part."""
        self.seen += other.seen
        for block, numbers in zip(other._blocks, other._numbers, strict=True):
            self._add(block, numbers)
        return self

    def rows(self) -> Rows:
        """Return the sample in the order of the source; no rows at all are an error."""
        if not self._blocks:
            raise ValueError("there are no rows")
        self._drop()
        return replace(self._blocks[0], source_rows=self.seen)

    def _size(self, n_classes: int) -> int:
        return min(self.most_rows, max(1, self.most_scores // n_classes))

    def _add(self, block: Rows, numbers: IntArray) -> None:
        if not len(block):
            return
        self._blocks.append(block)
        self._numbers.append(numbers)
        self._kept += len(block)
        size = self._size(block.n_classes)
        if self._kept > size + size // 4 + _LATER:
            self._drop()

    def _drop(self) -> None:
        """Keep the rows with the smallest hashes, joined in the order of their numbers."""
        numbers = np.concatenate(self._numbers)
        size = self._size(self._blocks[0].n_classes)
        in_order = bool((np.diff(numbers) > 0).all())
        if len(self._blocks) == 1 and len(numbers) <= size and in_order:
            return
        joined = Rows.joined(self._blocks)
        chosen = np.arange(len(numbers))
        if len(numbers) > size:
            chosen = np.argpartition(_hashes(numbers), size - 1)[:size]
        chosen = chosen[np.argsort(numbers[chosen])]
        self._blocks = [joined[chosen]]
        self._numbers = [numbers[chosen]]
        self._kept = len(chosen)


def _limit(size: int, n_rows: int) -> np.uint64:
    """Return the hash below which about ``size`` of the rows lie, and hardly ever fewer."""
    share = (size + _SPARE * np.sqrt(size)) / n_rows
    return np.uint64(min(int(share * 2**64), 2**64 - 1))


def _hashes(numbers: IntArray) -> NDArray[np.uint64]:
    """Return a hash of every number (the finaliser of splitmix64; Steele et al., OOPSLA 2014)."""
    x = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
