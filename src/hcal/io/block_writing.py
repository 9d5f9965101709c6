"""Probabilities to files block by block: whole or not at all, and with memory for one block."""

from __future__ import annotations

import csv
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hcal.io.arrays import Arrays
from hcal.io.atomic import atomic_path
from hcal.io.columns import CLASSES
from hcal.io.writing import arrays_of, to_columns
from hcal.extras import load_extra


class BlockWriter(Protocol):
    """Takes the arrays of one block after another."""

    def write(self, arrays: Arrays) -> None:
        """Add a block."""

    def finish(self) -> None:
        """Write what comes at the end, and close."""


class _CsvBlocks:
    def __init__(self, path: Path, rows: int) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._begun = False

    def write(self, arrays: Arrays) -> None:
        columns = to_columns(arrays)
        if not self._begun:
            self._writer.writerow(columns)
            self._begun = True
        self._writer.writerows(zip(*(c.tolist() for c in columns.values()), strict=True))

    def finish(self) -> None:
        self._file.close()


class _ParquetBlocks:
    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, arrays: Arrays) -> None:
        table = load_extra("writing .parquet", "pyarrow", "frames").table(to_columns(arrays))
        if self._writer is None:
            from pyarrow import parquet

            self._writer = parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table.cast(self._writer.schema))

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _NpyBlocks:
    """One array whose length is known before its rows are."""

    def __init__(self, path: Path, rows: int) -> None:
        self._file, self._rows = path.open("wb"), rows
        self._begun = False

    def write(self, arrays: Arrays) -> None:
        probs = np.ascontiguousarray(arrays["probs"])
        if not self._begun:
            _write_header(self._file, probs.dtype, (self._rows, *probs.shape[1:]))
            self._begun = True
        self._file.write(probs.data)

    def finish(self) -> None:
        self._file.close()


class _NpzBlocks:
    """The probabilities go straight into the archive; the columns beside them wait in files of their own."""

    def __init__(self, path: Path, rows: int) -> None:
        self._rows = rows
        self._archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True)
        self._probs: Any = None
        self._beside: dict[str, tuple[BinaryIO, list[np.dtype[Any]]]] = {}
        self._classes: NDArray[Any] | None = None
        self._folder = path.parent

    def write(self, arrays: Arrays) -> None:
        probs = np.ascontiguousarray(arrays["probs"])
        if self._probs is None:
            self._probs = self._archive.open("probs.npy", "w", force_zip64=True)
            _write_header(self._probs, probs.dtype, (self._rows, *probs.shape[1:]))
            self._classes = arrays.get(CLASSES)
            for key in arrays.keys() - {"probs", CLASSES}:
                waits = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
                self._beside[key] = (waits, [])
        self._probs.write(probs.data)
        for key, (file, types) in self._beside.items():
            npy.write_array(file, np.ascontiguousarray(arrays[key]), allow_pickle=False)
            types.append(arrays[key].dtype)

    def finish(self) -> None:
        if self._probs is not None:
            self._probs.close()
        for key, (file, types) in self._beside.items():
            dtype = np.result_type(*types)  # the longest text decides how wide all are
            file.seek(0)
            with self._archive.open(f"{key}.npy", "w", force_zip64=True) as entry, file:
                _write_header(entry, dtype, (self._rows,))
                for _ in types:
                    entry.write(npy.read_array(file, allow_pickle=False).astype(dtype).tobytes())
        if self._classes is not None:
            with self._archive.open(f"{CLASSES}.npy", "w") as entry:
                npy.write_array(entry, self._classes, allow_pickle=False)
        self._archive.close()


def _write_header(file: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    told = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_2_0(file, told)


_BLOCKS: Final[dict[str, Callable[[Path, int], BlockWriter]]] = {
    ".csv": _CsvBlocks,
    ".parquet": _ParquetBlocks,
    ".npy": _NpyBlocks,
    ".npz": _NpzBlocks,
}
BLOCK_TYPES: Final = tuple(sorted(_BLOCKS))


def can_write_blocks(path: str | Path) -> None:
    """Raise now when ``path`` is not a type that can be written block by block."""
    if Path(path).suffix.lower() not in _BLOCKS:
        name, types = Path(path).name, ", ".join(BLOCK_TYPES)
        raise ValueError(f"cannot write {name} block by block: the types are {types}, or a folder")


@contextmanager
def write_blocks(
    path: str | Path, n_rows: int, *, classes: Sequence[Any] | None = None
) -> Iterator[Callable[..., None]]:
    """Yield a function that takes blocks of probabilities; the file appears when the last was written.

    The function takes ``probs``, ``y`` and ``ids``, and the file has the content that
    :func:`hcal.io.write_probs` gives it; ``n_rows`` are announced, because some formats say their length
    first.

    >>> path = Path(tempfile.mkdtemp()) / "p.csv"
    >>> with write_blocks(path, 2) as write:
    ...     for _ in range(2):
    ...         write(np.array([[0.25, 0.75]]), np.array([1]))
    >>> path.read_text().split()
    ['probs_0,probs_1,y', '0.25,0.75,1', '0.25,0.75,1']
    """
    can_write_blocks(path)
    written = 0
    with atomic_path(path) as temporary:
        writer = _BLOCKS[Path(path).suffix.lower()](temporary, n_rows)

        def write(probs: NDArray[Any], y: Any = None, ids: Any = None) -> None:
            nonlocal written
            writer.write(arrays_of(probs, y, classes=classes, ids=ids))
            written += len(probs)

        try:
            yield write
            if written != n_rows:
                raise ValueError(f"{written:,} rows came where {n_rows:,} were announced")
        finally:
            writer.finish()
