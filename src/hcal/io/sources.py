"""What the public functions take rows from: arrays, files, Dask collections, and whatever yields blocks of rows.

All of them become a :class:`RowSource`. A function passes over it once with a partial result (:mod:`hcal.passes`), and
takes a sample for what needs rows at once. An array is one block, and its sample is everything. The sample does not
depend on how the rows were cut into blocks (:class:`RowSample`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, tee
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hcal.columns import refuse_numbers_from_one
from hcal.inputs import InputKind
from hcal.io.reading import Piece
from hcal.numerics import IntArray
from hcal.passes import Advance, Partial, Runner
from hcal.rows import ClassNames, Rows, rows_from

P = TypeVar("P", bound=Partial)
#: A block of rows, a part of a file, or a function that makes blocks in the process that works on them.
RowPiece = Rows | Piece | Callable[[], Rows | Iterable[Rows]]
#: Rows of a sample to fit on. With ten classes, the fit of the default then needs 0.8 GB.
SAMPLE_ROWS: Final = 300_000
#: The most scores (rows × classes) of such a sample: 160 MB of float64, and a fit needs several times that.
SAMPLE_SCORES: Final = 20_000_000
#: How many standard deviations of a hash's count are kept beyond the size of the sample, so that it is not too small.
_SPARE: Final = 6
#: So many rows beyond the sample are collected before some are dropped, which copies all of them.
_LATER: Final = 1000


@dataclass(frozen=True)
class RowSource:
    """Rows that come in blocks.

    Attributes
    ----------
    pieces : iterable
        Rows, parts of files, or functions that make blocks of rows in the process that works on them.
    kind : {"logits", "probs", "log_probs"}
    n_classes : int
    names : tuple of K str or int, optional
        Names of the classes.
    n_rows : int, optional
        How many rows there are, if that is known before the pass.
    runner : callable, optional
        Called with a function and pieces, it yields the function's result for every piece; by default ``map``.
    advance : callable, optional
        Called after each piece with its number of rows, for a progress bar.
    title : str
        What messages call the rows.
    whole : Rows, optional
        All rows, where they are in memory.
    grouped, segmented : bool
        Whether rows have groups, or segments.
    from_one : tuple of str
        The columns of files where these are numbered from 1 to K, so that labels may be too.

    Examples
    --------
    >>> rows = Rows.of([[0.2, 0.8], [0.6, 0.4]], [1, 1], input="probs")
    >>> source = source_of_blocks(rows.blocks(1))
    >>> len(source.sample()), source.n_classes
    (2, 2)
    """

    pieces: Iterable[RowPiece]
    kind: InputKind
    n_classes: int
    names: ClassNames | None = None
    n_rows: int | None = None
    runner: Runner | None = None
    advance: Advance = None
    title: str = "rows"
    whole: Rows | None = None
    grouped: bool = False
    segmented: bool = False
    from_one: tuple[str, ...] = ()

    def add_up(self, update: Callable[[P, Rows], object], empty: Callable[[], P]) -> P:
        """Return the partial result of all rows; ``update`` adds a block of rows to one."""
        work = partial(_add_piece, update, empty)
        whole = empty()
        pieces, work_pieces = tee(self.pieces)
        parts = (self.runner or map)(work, work_pieces)
        for piece, part in zip(pieces, parts, strict=True):
            whole.merge(part)
            if self.advance is not None and isinstance(piece, Rows | Piece):
                self.advance(len(piece))
        return whole

    def sample(self, most_rows: int = SAMPLE_ROWS, most_scores: int = SAMPLE_SCORES) -> Rows:
        """Return a random sample of the rows, which does not depend on the blocks; all rows if there are no more.

        >>> rows = Rows.of([[0.2, 0.8], [0.6, 0.4]], [1, 1], input="probs")
        >>> len(source_of_blocks([rows]).sample(most_rows=1))
        1
        """
        empty = partial(RowSample, most_rows, most_scores, self.n_rows)
        rows = self.add_up(RowSample.update, empty).rows()
        self.check_labels(rows)
        return rows

    def check_labels(self, sample: Rows) -> None:
        """Refuse labels that may count from 1, as the columns do; a block alone does not show it."""
        if self.from_one and sample.y is not None and self.names is None:
            refuse_numbers_from_one(self.from_one, sample.y)


def _add_piece(update: Callable[[P, Rows], object], empty: Callable[[], P], piece: RowPiece) -> P:
    """Return the partial result of a piece; an error about its rows says where the block begins."""
    result = empty()
    for block in blocks_of(piece):
        with rows_from(block.start):
            update(result, block)
    return result


def blocks_of(piece: RowPiece) -> Iterator[Rows]:
    """Yield the blocks of a piece, without empty ones."""
    # Only who reads files needs their reader.
    from hcal.io.blocks import read_piece

    blocks: Rows | Iterable[Rows]
    if isinstance(piece, Piece):
        blocks = read_piece(piece)
    else:
        blocks = piece() if callable(piece) else piece
    for block in [blocks] if isinstance(blocks, Rows) else blocks:
        if not isinstance(block, Rows):
            raise TypeError(
                "a source must yield hcal.rows.Rows (Rows.of(scores, y, input=…)), got "
                f"{type(block).__name__}"
            )
        if len(block):
            yield block


def source_of_rows(rows: Rows) -> RowSource:
    """Return rows in memory as a source: they are one block."""
    return RowSource(
        [rows],
        rows.kind,
        rows.n_classes,
        rows.names,
        n_rows=len(rows),
        whole=rows,
        grouped=rows.groups is not None,
        segmented=rows.by is not None,
    )


def source_of_blocks(blocks: Iterable[RowPiece] | Callable[[], Iterable[RowPiece]]) -> RowSource:
    """Return what yields blocks of rows, such as a generator, as a source; its first block says what the rows are.

    The rows are numbered in the order in which they come.
    """
    pieces = blocks() if callable(blocks) else blocks
    numbered = _numbered(chain.from_iterable(map(blocks_of, pieces)))
    first = next(numbered, None)
    if first is None:
        raise ValueError("there are no rows: the source yields none")
    return RowSource(
        chain([first], numbered),
        first.kind,
        first.n_classes,
        first.names,
        grouped=first.groups is not None,
        segmented=first.by is not None,
    )


def _numbered(blocks: Iterable[Rows]) -> Iterator[Rows]:
    """Yield blocks with the number of their first row in the whole source, their columns in the order of the first."""
    start = 0
    first = None
    for block in blocks:
        numbered = block if block.start == start else replace(block, start=start)
        first = numbered if first is None else first
        yield numbered.like_first(first)
        start += len(block)


def is_source(data: object) -> bool:
    """Whether data is a source of rows with their labels, and not an array.

    >>> is_source("scores/*.parquet"), is_source([[0.2, 0.8]]), is_source(iter([]))
    (True, False, True)
    """
    if isinstance(data, RowSource | Rows | str | os.PathLike) or hasattr(data, "as_source"):
        return True
    if isinstance(data, list | tuple):
        return bool(data) and all(isinstance(entry, Rows | str | os.PathLike) for entry in data)
    return hasattr(data, "__next__") or callable(data)


# -- a random sample of rows that come in blocks ----------------------------------------------------


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
