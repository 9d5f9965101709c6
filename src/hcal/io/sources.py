"""What the public functions take rows from: arrays, files, Dask collections, and whatever yields blocks of rows.

All of them become a :class:`RowSource`. A function passes over it once with a partial result (:mod:`hcal.passes`), and
takes a sample for what needs rows at once. An array is one block, and its sample is everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from hcal.inputs import InputKind
from hcal.io.reading import Piece
from hcal.io.sampling import RowSample
from hcal.passes import Advance, Partial, Runner, add_up
from hcal.rows import ClassNames, Rows, rows_from

P = TypeVar("P", bound=Partial)
#: A block of rows, a part of a file, or a function that makes blocks in the process that works on them.
RowPiece = Rows | Piece | Callable[[], Rows | Iterable[Rows]]
#: Rows of a sample to fit on. With ten classes, the fit of the default then needs 0.8 GB.
SAMPLE_ROWS: Final = 300_000
#: The most scores (rows × classes) of such a sample: 160 MB of float64, and a fit needs several times that.
SAMPLE_SCORES: Final = 20_000_000


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

    def add_up(self, update: Callable[[P, Rows], object], empty: Callable[[], P]) -> P:
        """Return the partial result of all rows; ``update`` adds a block of rows to one."""
        work = partial(_add_piece, update, empty)
        return add_up(work, self.pieces, empty, self.runner, self.advance)

    def sample(self, most_rows: int = SAMPLE_ROWS, most_scores: int = SAMPLE_SCORES) -> Rows:
        """Return a random sample of the rows, which does not depend on the blocks; all rows if there are no more.

        >>> rows = Rows.of([[0.2, 0.8], [0.6, 0.4]], [1, 1], input="probs")
        >>> len(source_of_blocks([rows]).sample(most_rows=1))
        1
        """
        empty = partial(RowSample, most_rows, most_scores, self.n_rows)
        return self.add_up(RowSample.update, empty).rows()


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
