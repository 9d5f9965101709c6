"""Read files block by block, so that memory has to hold one block and not the whole source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from hcal import inputs
from hcal.class_names import ClassName
from hcal.io.files import files_of
from hcal.io.reading import DataFile, PathOrPaths, Piece, Reading, pieces_of, read_blocks
from hcal.io.records import is_answers
from hcal.io.request import Part, Request
from hcal.io.sources import RowSource
from hcal.numerics import log_softmax_options
from hcal.passes import Advance, Runner
from hcal.rows import Rows, rows_from

#: The rows of a block if the caller does not say, and the most numbers that such a block holds.
ROWS: Final = 65_536
NUMBERS: Final = 2**23
#: How many rows are read to find out the kind and the classes of a source.
_PROBE: Final = 1024


class NoRowsError(ValueError):
    """A source holds no rows."""


def rows_of(data: DataFile, start: int = 0, *, complete: bool = True) -> Rows:
    """Return rows that were read from a file as checked rows; ``complete`` says whether these are all its rows.

    Parameters
    ----------
    data : DataFile
    start : int
        The number of the first row in the source.
    """
    labels = None
    if data.y is not None:
        with rows_from(start):
            labels = data.labels(complete=complete)
    values = data.values
    kind = data.kind
    if data.questions:
        values = log_softmax_options(np.asarray(values, dtype=np.float64))
        kind = "log_probs"
    return Rows.of(
        values,
        labels,
        input=kind,
        weight=data.weight,
        groups=data.groups,
        # A calibrator finds its segments among the columns by their names.
        by=(data.segments | data.by) or None,
        ids=data.ids,
        time=data.time,
        classes=data.classes,
        start=start,
        complete=complete,
    )


def read_piece(piece: Piece) -> Iterator[Rows]:
    """Yield the rows, block by block, of one of :meth:`Batches.pieces`, in this or in any other process.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, probs=[[0.25, 0.75], [0.5, 0.5]], y=[1, 0])
    >>> pieces = batches(path, rows=1).pieces()
    >>> [rows.start for piece in pieces for rows in read_piece(piece)]
    [0, 1]
    """
    for start, data in read_blocks(piece):
        if len(data.values):
            yield rows_of(data, start, complete=False)


class Batches:
    """The rows of files, block by block; they can be iterated over again and again.

    Attributes
    ----------
    kind : {"logits", "probs", "log_probs"}
    n_classes : int
    classes : tuple of str, or None
        Names of the classes in the order of the columns.
    part : str
        ``"cal"``, ``"test"``, or ``""`` for files without parts.
    first : DataFile
        Some of the first rows, which decide the kind and the classes.
    n_rows : int
        How many rows there are.
    name : str
        The name of the first file, and how many come with it.
    """

    def __init__(self, paths: Sequence[Path], reading: Reading, rows: int | None) -> None:
        self.paths = tuple(paths)
        probed = chain.from_iterable(map(read_blocks, pieces_of(self.paths, reading, _PROBE)))
        first = next((data for _, data in probed if len(data.values)), None)
        if first is None:
            raise NoRowsError(f"{self.paths[0].name} has no rows")
        self.first, self.kind, self.n_classes = first, first.kind, first.n_classes
        self.classes, self.part = first.classes, first.part
        self.name = replace(first, path=self.paths[0], more=self.paths[1:]).name
        self._size = rows or max(1, min(ROWS, NUMBERS // self.n_classes))
        self.reading = reading.after(first)

    @cached_property
    def _pieces(self) -> list[Piece]:
        # Absolute, because the process that reads a piece may work in another folder.
        paths = [path.absolute() for path in self.paths]
        return [piece for piece in pieces_of(paths, self.reading, self._size) if len(piece)]

    def check_labels(self) -> None:
        """Raise an error before a long pass, and not in it, if labels are missing or are not classes."""
        inputs.check_labels(
            self.first.labels(complete=False), len(self.first.values), self.n_classes
        )

    def pieces(self) -> list[Piece]:
        """Return disjoint parts of the rows, in their order, each for :func:`read_piece`.

        They depend on the files and the block size only, not on the number of processes that read them.
        """
        return list(self._pieces)

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return sum(map(len, self._pieces))

    def as_source(self, runner: Runner | None = None, advance: Advance = None) -> RowSource:
        """Return the rows as what the public functions take them from.

        Parameters
        ----------
        runner : callable, optional
            Runs the pieces of work, as :class:`hcal.passes.Processes` or :class:`hcal.integrations.dask.Runner`;
            this process by default. The result does not depend on it.
        advance : callable, optional
            Called after each piece with its number of rows.
        """
        return RowSource(
            self.pieces(),
            self.kind,
            self.n_classes,
            None if self.classes is None else tuple(self.classes),
            n_rows=self.n_rows,
            runner=runner,
            advance=advance,
            title=self.name,
            grouped=self.first.groups is not None,
            segmented=bool(self.first.by or self.first.segments),
            from_one=self.first.from_one,
        )

    def __iter__(self) -> Iterator[Rows]:
        return chain.from_iterable(map(read_piece, self._pieces))


def batches(
    source: PathOrPaths,
    request: Request | None = None,
    *,
    rows: int | None = None,
    part: Part = "test",
    order: Sequence[ClassName] | None = None,
    keep: bool = False,
) -> Batches:
    """Return the rows of a source block by block, with memory for one block and not for the whole source.

    Parameters
    ----------
    source : path-like, or sequence of them
        A file, a folder or a pattern (``"scores/*.parquet"``, in sorted order). A compressed ``.npz`` is
        one piece. A program that makes its own rows yields :class:`hcal.rows.Rows`.
    request : Request, optional
        As for :func:`hcal.io.read`.
    rows : int, optional
        The most rows of a block; by default 65,536, fewer where a block would hold more than 2²³ numbers.
    part, order, keep
        As for :func:`hcal.io.read`.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npy"
    >>> np.save(path, np.zeros((3, 2)))
    >>> [(block.start, len(block)) for block in batches(path, Request(input="logits"), rows=2)]
    [(0, 2), (2, 1)]
    """
    if rows is not None and (not isinstance(rows, int | np.integer) or rows < 1):
        raise ValueError(f"rows must be a positive integer, got {rows!r}")
    request, paths = request or Request(), files_of(source)
    if is_answers(paths, request):
        raise ValueError(
            f"{paths[0].name}: answers of language models are read whole, not by blocks"
        )
    if request.labels is not None:
        request = replace(request, labels=Path(request.labels).absolute())
    return Batches(
        paths, Reading(request, part, keep, None if order is None else tuple(order)), rows
    )
