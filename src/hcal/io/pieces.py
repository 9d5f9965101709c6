"""Pieces of a source: disjoint rows of a file that any process can read by itself, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Wish
from hcal.io.arrow import IpcRows, ParquetRows
from hcal.io.class_names import ClassName
from hcal.io.columns import ANY, TEXT_ROLES, Columns
from hcal.io.csv_rows import CsvRows
from hcal.io.limits import open_regular
from hcal.io.numpy_rows import NumpyRows
from hcal.io.plan import Part, ReadingPlan
from hcal.io.reading import (
    DataFile,
    data_of_arrays,
    explained,
    only_array,
    read_arrays,
    read_labels,
    wish_for_labels,
)
from hcal.io.rows import FileRows, Span, WholeRows, step_of
from hcal.io.zarr_rows import ZarrRows, is_zarr

_STREAMED: Final[dict[str, Callable[[BinaryIO, str, Wish], FileRows]]] = {
    ".npy": NumpyRows,
    ".npz": NumpyRows,
    ".csv": CsvRows,
    ".parquet": ParquetRows,
    ".feather": IpcRows,
    ".arrow": IpcRows,
    ".ipc": IpcRows,
}


@dataclass(frozen=True)
class Recipe:
    """How the rows of a source are read, whichever of its files they are in.

    Most of it is as for :func:`hcal.io.read_data`; the last two say what the first rows have, None where
    nobody has looked yet.
    """

    rows: int  # the most of a block
    kind: str | None = None
    columns: Columns = ANY
    labels: Path | None = None
    part: Part = "test"
    classes: tuple[str, ...] | None = None
    order: tuple[ClassName, ...] | None = None  # of the classes, as the columns come out
    n_classes: int | None = None
    texts: frozenset[str] | None = None  # the roles that hold text


@dataclass(frozen=True)
class Piece:
    """Rows that can be read alone: small, and the same in every process that sees the files.

    Attributes
    ----------
    path : Path
    span : Span
        The rows of the file.
    start : int
        The number of the first of them in the whole source.
    recipe : Recipe
    """

    path: Path
    span: Span
    start: int
    recipe: Recipe

    def __len__(self) -> int:
        return self.span.stop - self.span.start


@contextmanager
def open_rows(path: Path, wish: Wish) -> Iterator[FileRows]:
    """Open a file for reading some rows at a time; of a format that cannot, all are read."""
    make = _STREAMED.get(path.suffix.lower())
    if make is None and not is_zarr(path):
        yield WholeRows(read_arrays(path, wish))
        return
    file = None if make is None else open_regular(path)
    try:
        with explained(path.name):
            rows = ZarrRows(path, wish) if file is None or make is None else make(file, path.name, wish)
        try:
            yield rows
        finally:
            rows.close()
    finally:
        if file is not None:
            file.close()


def read_data_blocks(piece: Piece) -> Iterator[tuple[int, DataFile]]:
    """Yield the number of the first row of each block in the source, and the block."""
    recipe, span = piece.recipe, piece.span
    plan = plan_of(piece.path, recipe)
    with open_rows(piece.path, Wish(plan.choose, columns=plan.columns)) as rows:
        known = {plan.names[role] for role in recipe.texts or () if role in plan.names}
        blocks = rows.blocks(span, recipe.rows, judged=recipe.texts is not None, known=known)
        start, stop = piece.start, piece.start + len(piece)
        while start < stop:
            with explained(piece.path.name):
                arrays = next(blocks, None)
                if arrays is None:
                    raise ValueError("it ends early: the file was cut short")
                size = len(arrays[plan.names["scores"]])
                y = None if recipe.labels is None else labels_of(recipe.labels, start, start + size)
                data = data_of_arrays(plan, arrays, y, recipe.classes)
                _check_as_before(data, recipe, start)
            yield start, data.in_order_of(recipe.order)
            start += size


def plan_of(path: Path, recipe: Recipe) -> ReadingPlan:
    """Return what to read of one file of a source."""
    return ReadingPlan(path, recipe.part, recipe.kind, recipe.columns, own_labels=recipe.labels is None)


def texts_of(data: DataFile) -> frozenset[str]:
    """Return the roles that hold text."""
    held = dict(zip(TEXT_ROLES, (data.y, data.ids, data.groups), strict=True))
    return frozenset(role for role, a in held.items() if a is not None and a.dtype.kind == "U")


def _check_as_before(data: DataFile, recipe: Recipe, start: int) -> None:
    """Refuse rows that are not like the first: other classes, or text where the first had numbers."""
    if recipe.texts is None:
        return
    if recipe.n_classes != classes_of(data):
        raise ValueError(f"it has {classes_of(data)} classes, the first file {recipe.n_classes}")
    new = texts_of(data) - recipe.texts
    if new:  # the numbers were names then, and have been taken for something else
        raise ValueError(
            f"the {min(new)} column holds numbers in the first rows and text after row {start:,}: "
            "read block by block it must hold one of them"
        )


def classes_of(data: DataFile) -> int:
    """Return how many classes the scores have; two where there is one score a row."""
    return 2 if data.values.ndim == 1 else int(data.values.shape[-1])


def labels_of(path: Path, start: int, stop: int) -> NDArray[Any]:
    """Return labels ``start`` to ``stop`` − 1 of a file that holds one for each row of the source."""
    with open_rows(path, wish_for_labels(path)) as rows:
        if not rows.random:
            return _whole_labels(path, path.stat().st_mtime_ns)[start:stop]
        if stop > rows.n_rows:
            raise ValueError(f"{path.name} has {rows.n_rows:,} labels, and there are more rows")
        found = [only_array(a) for a in rows.blocks(Span(start, stop), stop - start, judged=True, known=())]
    return found[0] if found else np.empty(0, dtype=np.int64)


def count_labels(path: Path) -> int:
    """Return how many labels a file holds."""
    with open_rows(path, wish_for_labels(path)) as rows:
        return len(_whole_labels(path, path.stat().st_mtime_ns)) if not rows.random else rows.n_rows


@lru_cache(maxsize=1)
def _whole_labels(path: Path, changed: int) -> NDArray[Any]:
    """Return all labels of a file that has no rows to pick from; kept while it is unchanged."""
    return read_labels(path)


def declared_bytes(path: Path, recipe: Recipe) -> int:
    """Return the bytes that the wanted arrays of a file take, as far as it tells without being read.

    It is the size of the file where its format does not tell.
    """
    if path.suffix.lower() not in (".npy", ".npz", ".parquet"):
        return path.stat().st_size if path.is_file() else 0
    plan = plan_of(path, recipe)
    with open_rows(path, Wish(plan.choose, columns=plan.columns)) as rows:
        return rows.n_bytes


def spans_of(path: Path, recipe: Recipe) -> tuple[list[Span], int, int]:
    """Return the spans of a file, how many rows it has, and how many bytes they would take."""
    plan = plan_of(path, recipe)
    with open_rows(path, Wish(plan.choose, columns=plan.columns)) as rows, explained(path.name):
        n_rows = rows.n_rows
        return list(rows.spans(step_of(n_rows, recipe.rows))), n_rows, rows.n_bytes
