"""Write probabilities to files block by block, with memory for one block; a file appears complete or not at all."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.lib import format as npy

from hcal.class_names import ClassName, typed
from hcal.extras import load_extra
from hcal.frames import AnyArray
from hcal.io.files import atomic_path
from hcal.io.formats import MODEL
from hcal.io.request import CLASSES
from hcal.numerics import NumpyArray
from hcal.text import json_without_controls, spreadsheet_text, without_nan

if TYPE_CHECKING:
    from pyarrow import RecordBatchFileWriter, Schema
    from pyarrow.parquet import ParquetWriter

Arrays = dict[str, NumpyArray]
Add = Callable[[Arrays], None]
Called = Mapping[str, str]
_PROBS: Final = "probs"


@contextmanager
def _text(path: Path, _n_rows: int, _model: str) -> Iterator[Add]:
    """Write a line for each row: of a CSV with the names first, or a JSON object."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")

        def add(arrays: Arrays) -> None:
            if path.suffix.lower() == ".jsonl":
                for row in zip(*(column.tolist() for column in arrays.values()), strict=True):
                    plain = without_nan(dict(zip(arrays, row, strict=True)))
                    line = json.dumps(plain, ensure_ascii=False, default=str)
                    file.write(json_without_controls(line) + "\n")
                return
            if not file.tell():
                table.writerow([spreadsheet_text(name) for name in arrays])
            table.writerows(zip(*map(_csv_column, arrays.values()), strict=True))

        yield add


def _csv_column(column: NumpyArray) -> list[object]:
    """Return the cells of a column; texts are written so that a spreadsheet does not compute them."""
    cells: list[object] = column.tolist()
    if column.dtype.kind not in "OU":
        return cells
    return [spreadsheet_text(cell) if isinstance(cell, str) else cell for cell in cells]


@contextmanager
def _arrow(path: Path, _n_rows: int, model: str) -> Iterator[Add]:
    """Write a row group of parquet or a record batch of feather for each block, with the types of the first."""
    suffix = path.suffix.lower()
    arrow = load_extra(f"writing {suffix}", "pyarrow", "frames")
    from pyarrow import ipc, parquet

    create = parquet.ParquetWriter if suffix == ".parquet" else ipc.new_file
    with ExitStack() as stack:
        opened: list[tuple[ParquetWriter | RecordBatchFileWriter, Schema]] = []

        def add(arrays: Arrays) -> None:
            table = arrow.table(
                {n: a.tolist() if a.dtype == object else a for n, a in arrays.items()}
            )
            if not opened:
                schema = table.schema.with_metadata({MODEL: model}) if model else table.schema
                opened.append((stack.enter_context(create(str(path), schema)), schema))
            writer, schema = opened[0]
            writer.write_table(table.cast(schema))

        yield add


@contextmanager
def _arrays(path: Path, n_rows: int, model: str) -> Iterator[Add]:
    """Write probabilities as they come; the other arrays of an ``.npz`` are kept in memory until the end."""
    others = {MODEL: [np.array([model])]} if model else {}
    with ExitStack() as stack:
        archive = None
        if path.suffix.lower() == ".npz":
            archive = stack.enter_context(zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED))
        opened = (
            path.open("wb")
            if archive is None
            else archive.open(f"{_PROBS}.npy", "w", force_zip64=True)
        )
        file = stack.enter_context(opened)
        written = 0

        def add(arrays: Arrays) -> None:
            nonlocal written
            probs = np.ascontiguousarray(arrays.pop(_PROBS))
            if not written:
                shape, kind = (n_rows, *probs.shape[1:]), npy.dtype_to_descr(probs.dtype)
                npy.write_array_header_2_0(
                    file, {"descr": kind, "fortran_order": False, "shape": shape}
                )
            written += file.write(probs.data)
            for name, array in arrays.items():
                others.setdefault(name, []).append(array)

        yield add
        file.close()
        if archive is None:
            return
        for name, parts in others.items():
            array = np.concatenate(parts)
            plain = typed(array.tolist()) if array.dtype == object else np.ascontiguousarray(array)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                npy.write_array(entry, plain, allow_pickle=False)


WRITERS: Final = {
    **dict.fromkeys((".npz", ".npy"), _arrays),
    **dict.fromkeys((".csv", ".jsonl"), _text),
    **dict.fromkeys((".parquet", ".feather"), _arrow),
}


def can_write(path: str | Path) -> None:
    """Raise an error now, and not after minutes of work, if ``path`` is not of a type that can be written.

    Examples
    --------
    >>> can_write("out.npz")
    """
    if Path(path).suffix.lower() not in WRITERS:
        raise ValueError(
            f"cannot write {Path(path).name}: the types are {', '.join(sorted(WRITERS))}"
        )


@contextmanager
def write_blocks(
    path: str | Path,
    n_rows: int,
    *,
    classes: Sequence[ClassName] | None = None,
    names: Called | None = None,
    model: str = "",
) -> Iterator[BlockWriter]:
    """Yield a function that takes blocks of probabilities; the file appears when the last was written.

    The function takes ``probs`` (B, K), ``y``, ``ids`` and ``kept`` (a mapping of other columns), all but the
    first optional. A table has the id first, then the kept columns, the probabilities and the labels.

    Parameters
    ----------
    path : path-like
    n_rows : int
        How many rows there will be; some formats begin with this number.
    classes : sequence of K str, optional
        Names of the classes: part of the column names of a table, the array ``classes`` of an ``.npz``.
    names : mapping, optional
        What ``id`` and ``label`` are called; ``"id"`` and ``"y"`` by default.
    model : str
        Names the calibrator that made the probabilities (:func:`hcal.leakage.model_fingerprint`): ``.npz``,
        ``.parquet`` and ``.feather`` carry it; text has no place for it.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "p.csv"
    >>> with write_blocks(path, 2, names={"id": "key"}) as write:
    ...     for i in range(2):
    ...         write(np.array([[0.25, 0.75]]), ids=[i], kept={"site": np.array(["north"])})
    >>> path.read_text().split()
    ['key,site,probs_0,probs_1', '0,north,0.25,0.75', '1,north,0.25,0.75']
    """
    can_write(path)
    called = {"id": "id", "label": "y", **(names or {})}
    columns = _Columns(Path(path).suffix.lower(), classes, called)
    with atomic_path(path) as temporary, WRITERS[columns.suffix](temporary, n_rows, model) as add:
        writer = BlockWriter(columns, add)
        yield writer
        if writer.n_rows != n_rows:
            raise ValueError(f"{writer.n_rows:,} rows came where {n_rows:,} were announced")


class BlockWriter:
    """Writes blocks of probabilities, and counts their rows."""

    def __init__(self, columns: _Columns, add: Add) -> None:
        self._columns, self._add = columns, add
        self.n_rows = 0

    def __call__(
        self,
        probs: NumpyArray,
        y: AnyArray = None,
        ids: AnyArray = None,
        kept: Mapping[str, object] | None = None,
    ) -> None:
        """Write a block."""
        first = self.n_rows == 0
        self._add(self._columns.of_block(probs, y, ids, kept or {}, first=first))
        self.n_rows += len(probs)


@dataclass(frozen=True)
class _Columns:
    """How the columns of a file are called, and their order."""

    suffix: str
    classes: Sequence[ClassName] | None
    called: Called

    def of_block(
        self,
        probs: NumpyArray,
        y: AnyArray,
        ids: AnyArray,
        kept: Mapping[str, object],
        *,
        first: bool,
    ) -> Arrays:
        """Return the columns of a block; only the first block of an array file has the names of the classes."""
        written = self._probs(probs)
        if self.classes is not None and first and _PROBS in written:
            written[CLASSES] = np.array([str(name) for name in self.classes])
        label = free_name(self.called["label"], {*written, CLASSES})
        id_name = free_name(self.called["id"], {*written, CLASSES})
        if y is not None:
            written[label] = np.asarray(y)
        arrays: Arrays = {} if ids is None else {id_name: np.asarray(ids)}
        for name, cells in kept.items():
            arrays[free_name(name, {*arrays, *written, CLASSES})] = np.asarray(cells)
        return arrays | written

    def _probs(self, probs: NumpyArray) -> Arrays:
        if self.suffix in (".npz", ".npy"):
            return {_PROBS: probs}
        labels = range(probs.shape[1]) if self.classes is None else self.classes
        return {f"{_PROBS}_{name}": probs[:, k] for k, name in enumerate(labels)}


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name under which a column is kept: with ``_before`` where an output column is called so.

    >>> free_name("age", {"probs_0"}), free_name("probs_0", {"probs_0"})
    ('age', 'probs_0_before')
    """
    while name in taken:
        name = f"{name}_before"
    return name
