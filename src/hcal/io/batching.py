"""Batches: the rows of a source block by block, so that a block bounds the memory and not the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.io.class_names import ClassName, check_classes
from hcal.io.columns import Columns
from hcal.io.limits import check_bytes
from hcal.io.pieces import Piece, Recipe, classes_of, count_labels, read_data_blocks, spans_of, texts_of
from hcal.io.plan import Part, UnknownKindError
from hcal.io.reading import DataFile
from hcal.io.rows import Span
from hcal.io.sources import files_of
from hcal.inputs import INPUT_KINDS, InputKind

#: The rows of a block where nobody says, and the numbers that it then holds at most.
ROWS: Final = 65_536
NUMBERS: Final = 2**23
#: By so many rows it is decided which columns are text.
_PROBE: Final = 1024


@dataclass(frozen=True)
class Batch:
    """Some rows of a source, in its order.

    Attributes
    ----------
    scores : array of shape (B, K), or (B,) for a binary score
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


@contextmanager
def rows_from(start: int) -> Iterator[None]:
    """Let an error about a block say where the block begins: its own rows are counted from there.

    Examples
    --------
    >>> with rows_from(65536):
    ...     raise ValueError("y: row 3 is 'cow'")
    Traceback (most recent call last):
    ...
    ValueError: counting from row 65,536: y: row 3 is 'cow'
    """
    try:
        yield
    except ValueError as error:
        if start == 0:
            raise
        raise type(error)(f"counting from row {start:,}: {error}") from None


def as_batch(start: int, data: DataFile) -> Batch:
    """Return rows of a file with their labels as integers."""
    with rows_from(start):
        y = None if data.y is None else inputs.check_labels(data.labels(), len(data.values), classes_of(data))
    return Batch(data.values, data.kind, y, start, data.ids, data.groups, data.weight)


def read_piece(piece: Piece) -> Iterator[Batch]:
    """Yield the batches of one of :meth:`Batches.pieces`, in this or in any other process.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, probs=[[0.25, 0.75], [0.5, 0.5]], y=[1, 0])
    >>> [batch.start for piece in batches(path, rows=1).pieces() for batch in read_piece(piece)]
    [0, 1]
    """
    for start, data in read_data_blocks(piece):
        yield as_batch(start, data)


class Batches:
    """The rows of files, block by block, as often as they are asked for.

    Attributes
    ----------
    kind : {"logits", "probs", "log_probs"}
    n_classes : int
    classes : tuple of str, or None
        Names of the classes in the order of the columns.
    part : str
        ``"cal"``, ``"test"``, or ``""`` for files without parts.
    first : DataFile
        Some of the first rows, by which it was decided what the columns hold.
    n_rows : int or None
        How many rows there are; None where only the end of an iterator will tell.
    n_bytes : int
        What all rows would take in memory.
    """

    def __init__(self, paths: Sequence[Path], recipe: Recipe, rows: int | None) -> None:
        self.paths = tuple(paths)
        self.first = first = self._probe(recipe)
        self.kind: InputKind = first.kind
        self.n_classes = classes_of(first)
        self.classes = first.classes
        self.part = first.part
        size = rows or max(1, min(ROWS, NUMBERS // self.n_classes))
        order = recipe.order or first.classes
        self.recipe = replace(
            recipe, rows=size, kind=first.kind, order=order, texts=texts_of(first), n_classes=self.n_classes
        )

    def _probe(self, recipe: Recipe) -> DataFile:
        """Return the first rows of all."""
        for path in self.paths:
            _, n_rows, _ = spans_of(path, recipe)
            if n_rows:
                _, data = next(read_data_blocks(Piece(path, Span(0, min(n_rows, recipe.rows)), 0, recipe)))
                return data
        raise ValueError(f"{self.paths[0].name} has no rows")

    @cached_property
    def _pieces(self) -> tuple[list[Piece], int]:
        pieces, start, held = list[Piece](), 0, 0
        for path in self.paths:
            spans, n_rows, n_bytes = spans_of(path, self.recipe)
            # Absolute: who reads a piece may stand in another folder.
            pieces += [Piece(path.absolute(), span, start + span.start, self.recipe) for span in spans]
            start, held = start + n_rows, held + n_bytes
        labels = self.recipe.labels
        if labels is not None and count_labels(labels) != start:
            raise ValueError(f"{labels.name} has {count_labels(labels):,} labels for {start:,} rows")
        return pieces, held

    @property
    def name(self) -> str:
        """The name of the first file, and how many come with it."""
        return replace(self.first, more=self.paths[1:]).name

    def check_labels(self) -> None:
        """Raise where there are no labels, or none that are classes: before a long pass, not in it."""
        as_batch(0, replace(self.first, y=self.first.labels()))

    def pieces(self) -> list[Piece]:
        """Return disjoint parts of the rows, in their order, each for :func:`read_piece`.

        They depend on the files and on the block size alone, never on who reads them.
        """
        return list(self._pieces[0])

    @property
    def n_rows(self) -> int | None:
        """How many rows there are."""
        return sum(map(len, self._pieces[0]))

    @property
    def n_bytes(self) -> int:
        """What all rows would take in memory."""
        return self._pieces[1]

    def __iter__(self) -> Iterator[Batch]:
        return chain.from_iterable(map(read_piece, self._pieces[0]))

    def read_all(self) -> DataFile:
        """Return all rows at once, as :func:`hcal.io.read_data` does for one file."""
        check_bytes(self.name, self.n_bytes, self.n_bytes)
        found = [data for piece in self._pieces[0] for _, data in read_data_blocks(piece)]

        def column(name: str) -> Any:
            held = [getattr(data, name) for data in found]
            return None if held[0] is None else np.concatenate(held)

        columns = {name: column(name) for name in ("values", "y", "ids", "groups", "weight")}
        return replace(self.first, path=self.paths[0], more=self.paths[1:], **columns)


class ArrayBatches(Batches):
    """Rows that a program hands over, block by block."""

    def __init__(
        self,
        blocks: Callable[[], Iterator[Any]],
        kind: InputKind,
        rows: int | None,
        classes: tuple[str, ...] | None,
    ) -> None:
        self._blocks, self.kind = blocks, kind
        self.paths, self.part, self.classes = (), "", classes
        self._waiting, first = self._peek()
        self.first = self._data(first)
        self.n_classes = classes_of(self.first)
        if classes is not None:
            check_classes(classes, self.n_classes)
        self._rows = rows or max(1, min(ROWS, NUMBERS // self.n_classes))

    def _peek(self) -> tuple[Iterator[Any] | None, Any]:
        found = self._blocks()
        try:
            first = next(found)
        except StopIteration:
            raise ValueError("the source has no rows") from None
        return chain([first], found), first

    @property
    def n_rows(self) -> None:
        """Unknown until the end."""
        return

    @property
    def n_bytes(self) -> int:
        """Unknown until the end, and so nothing that would not fit."""
        return 0

    def pieces(self) -> list[Piece]:
        """Say that there are none: arrays that a program makes can be read by that program only."""
        raise ValueError("an iterator has no pieces that other processes could read: write its rows to files")

    def __iter__(self) -> Iterator[Batch]:
        waiting, self._waiting = self._waiting, None
        start = 0
        for block in self._blocks() if waiting is None else waiting:
            data = self._data(block)
            if classes_of(data) != self.n_classes:
                raise ValueError(f"a block has {classes_of(data)} classes, the first has {self.n_classes}")
            if data.y is not None and len(data.y) != len(data.values):
                raise ValueError(f"y has {len(data.y)} labels for {len(data.values)} rows")
            for a in range(0, len(data.values), self._rows):
                b = a + self._rows
                y = None if data.y is None else data.y[a:b]
                yield as_batch(start + a, replace(data, values=data.values[a:b], y=y))
            start += len(data.values)

    def _data(self, block: Any) -> DataFile:
        values, labels = _pair(block)
        y = None if labels is None else inputs.to_numpy(labels, "y")[0]
        scores = inputs.to_numpy(values, self.kind)[0]
        return DataFile(Path("iterator"), self.kind, scores, y, "", self.classes)


def _pair(block: Any) -> tuple[Any, Any]:
    return (block[0], block[1]) if isinstance(block, tuple) and len(block) == 2 else (block, None)


def batches(
    source: Any,
    *,
    rows: int | None = None,
    kind: str | None = None,
    columns: Columns | None = None,
    labels: str | Path | None = None,
    part: Part = "test",
    classes: Sequence[str] | None = None,
    order: Sequence[ClassName] | None = None,
) -> Batches:
    """Return the rows of a source block by block, with memory for a block and not for the source.

    Parameters
    ----------
    source : path-like, sequence of path-like, array, callable or iterable
        A file, a folder or a pattern (``"scores/*.parquet"``, in sorted order): Parquet, Arrow IPC (feather),
        CSV, ``.npy``, ``.npz`` and Zarr are read block by block, the other types file by file. Or arrays
        of a program: one array, a pair ``(scores, y)``, an iterable of such blocks, or a callable that
        returns one; a bare iterator can be read once.
    rows : int, optional
        The most rows of a block; by default 65,536, fewer where a block would hold more than 2²³ numbers.
    kind, columns, labels, part, classes
        As for :func:`hcal.io.read_data`. Arrays of a program need ``kind``.
    order : sequence of K str or int, optional
        Names of the classes in the order in which the columns are to come; by default that of the first file.

    Examples
    --------
    >>> made = batches([np.zeros((3, 2)), np.ones((1, 2))], kind="logits", rows=2)
    >>> [(batch.start, len(batch)) for batch in made]
    [(0, 2), (2, 1), (3, 1)]
    """
    if rows is not None and (not isinstance(rows, int | np.integer) or rows < 1):
        raise ValueError(f"rows must be a positive integer, got {rows!r}")
    if kind is not None and kind not in INPUT_KINDS:
        raise ValueError(f"the kind of scores must be one of {', '.join(INPUT_KINDS)}, got {kind!r}")
    names = None if classes is None else tuple(classes)
    paths = files_of(source)
    if paths is None:
        if kind is None:
            raise UnknownKindError("arrays do not say what their numbers are: add kind")
        return ArrayBatches(_opener(source), kind, rows, names)  # type: ignore[arg-type]
    recipe = Recipe(
        _PROBE, kind, columns or Columns(), None if labels is None else Path(labels).absolute(), part, names,
        None if order is None else tuple(order),
    )  # fmt: skip
    return Batches(paths, recipe, rows)


def _opener(source: Any) -> Callable[[], Iterator[Any]]:
    """Return what begins the blocks of a program anew, or says that it cannot."""
    if callable(source):
        return lambda: iter(source())
    if isinstance(source, Iterator):
        left = [source]

        def once() -> Iterator[Any]:
            if not left:
                raise ValueError("an iterator can be read once: give a callable that returns a new one")
            return left.pop()

        return once
    if isinstance(source, tuple) or not isinstance(source, Iterable) or hasattr(source, "dtype"):
        return lambda: iter([source])
    return lambda: iter(source)
