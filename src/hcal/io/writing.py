"""Probabilities to files, all at once or block by block: whole or not at all, with memory for one block."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hcal.extras import load_extra
from hcal.io.atomic import atomic_path
from hcal.io.tables import CLASSES, typed

Arrays = dict[str, NDArray[Any]]
#: What has a value a row, beside the probabilities: id, other columns, labels.
_PROBS: Final = "probs"


class _Writer:
    """Takes the arrays of one block after another; ``n_rows`` is announced, as some formats say it first."""

    #: Whether the probabilities are columns of a table, or one array.
    table = True

    def __init__(self, path: Path, n_rows: int) -> None:
        self.path, self.n_rows, self.begun = path, n_rows, False

    def write(self, arrays: Arrays) -> None:
        """Add a block."""
        if not self.begun:
            self.begin(arrays)
            self.begun = True
        self.add(arrays)

    def begin(self, arrays: Arrays) -> None:
        """Open the file, by what the first block has."""

    def add(self, arrays: Arrays) -> None:
        """Add a block to the open file."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what comes at the end, and close."""


class _Csv(_Writer):
    def begin(self, arrays: Arrays) -> None:
        self.file = self.path.open("w", newline="", encoding="utf-8")
        self.writer = csv.writer(self.file, lineterminator="\n")
        self.writer.writerow(arrays)

    def add(self, arrays: Arrays) -> None:
        self.writer.writerows(zip(*(c.tolist() for c in arrays.values()), strict=True))

    def finish(self) -> None:
        if self.begun:
            self.file.close()


class _Jsonl(_Csv):
    def begin(self, arrays: Arrays) -> None:
        self.file = self.path.open("w", newline="\n", encoding="utf-8")

    def add(self, arrays: Arrays) -> None:
        for row in zip(*(c.tolist() for c in arrays.values()), strict=True):
            plain = [None if isinstance(v, float) and not np.isfinite(v) else v for v in row]
            text = json.dumps(dict(zip(arrays, plain, strict=True)), ensure_ascii=False, default=str)
            self.file.write(text + "\n")


class _Arrow(_Writer):
    def begin(self, arrays: Arrays) -> None:
        suffix = self.path.suffix
        self.arrow = load_extra(f"writing {suffix}", "pyarrow", "frames")
        from pyarrow import ipc, parquet

        schema = self._table(arrays).schema
        self.writer = (parquet.ParquetWriter if suffix == ".parquet" else ipc.new_file)(
            str(self.path), schema
        )

    def _table(self, arrays: Arrays) -> Any:
        return self.arrow.table({n: a.tolist() if a.dtype == object else a for n, a in arrays.items()})

    def add(self, arrays: Arrays) -> None:
        schema = self.writer.schema if hasattr(self.writer, "schema") else None
        table = self._table(arrays)
        self.writer.write_table(table if schema is None else table.cast(schema))

    def finish(self) -> None:
        if self.begun:
            self.writer.close()


class _Npy(_Writer):
    """The probabilities alone."""

    table = False

    def begin(self, arrays: Arrays) -> None:
        self.file = self.path.open("wb")
        _write_header(self.file, arrays[_PROBS], self.n_rows)

    def add(self, arrays: Arrays) -> None:
        self.file.write(np.ascontiguousarray(arrays[_PROBS]).data)

    def finish(self) -> None:
        if self.begun:
            self.file.close()


class _Npz(_Writer):
    """The probabilities go straight into the archive; the columns beside them wait in memory."""

    table = False

    def begin(self, arrays: Arrays) -> None:
        self.archive = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, allowZip64=True)
        self.probs = self.archive.open(f"{_PROBS}.npy", "w", force_zip64=True)
        _write_header(self.probs, arrays[_PROBS], self.n_rows)
        self.beside: dict[str, list[NDArray[Any]]] = {n: [] for n in arrays if n not in (_PROBS, CLASSES)}
        self.classes = arrays.get(CLASSES)

    def add(self, arrays: Arrays) -> None:
        self.probs.write(np.ascontiguousarray(arrays[_PROBS]).data)
        for name, parts in self.beside.items():
            parts.append(arrays[name])

    def finish(self) -> None:
        if not self.begun:
            return
        self.probs.close()
        whole = {name: np.concatenate(parts) for name, parts in self.beside.items()}
        whole |= {} if self.classes is None else {CLASSES: self.classes}
        for name, array in whole.items():
            plain = typed(array.tolist()) if array.dtype == object else np.ascontiguousarray(array)
            with self.archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                npy.write_array(entry, plain, allow_pickle=False)
        self.archive.close()


def _write_header(file: Any, probs: NDArray[Any], n_rows: int) -> None:
    told = {
        "descr": npy.dtype_to_descr(probs.dtype),
        "fortran_order": False,
        "shape": (n_rows, *probs.shape[1:]),
    }
    npy.write_array_header_2_0(file, told)


_WRITERS: Final[dict[str, Callable[[Path, int], _Writer]]] = {
    ".npz": _Npz,
    ".npy": _Npy,
    ".csv": _Csv,
    ".parquet": _Arrow,
    ".feather": _Arrow,
    ".jsonl": _Jsonl,
}
#: The types that can be written.
WRITTEN_TYPES: Final = tuple(sorted(_WRITERS))


def can_write(path: str | Path) -> None:
    """Raise now, rather than after minutes of work, when ``path`` is not a type that can be written.

    Examples
    --------
    >>> can_write("out.npz")
    """
    if Path(path).suffix.lower() not in _WRITERS:
        raise ValueError(f"cannot write {Path(path).name}: the types are {', '.join(WRITTEN_TYPES)}")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"no such directory: {Path(path).parent}")


def write_probs(path: str | Path, probs: NDArray[Any], y: Any = None, **beside: Any) -> None:
    """Write probabilities, and what is known of the rows, in the format of the extension, atomically.

    Parameters
    ----------
    path : path-like
        ``.npz .npy .csv .parquet .feather`` or ``.jsonl``; ``.npy`` holds the probabilities only.
    probs : array of shape (N, K)
    y : array of shape (N,), optional
    **beside
        ``ids``, ``kept``, ``classes`` and ``names`` as for :func:`write_blocks`.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "p.csv"
    >>> probs, y, ids = np.array([[0.25, 0.75]]), np.array(["dog"]), np.array([7])
    >>> write_probs(path, probs, y, classes=["cat", "dog"], ids=ids)
    >>> print(path.read_text().strip())
    id,probs_cat,probs_dog,y
    7,0.25,0.75,dog
    """
    rows = {name: beside.pop(name, None) for name in ("ids", "kept")}
    with write_blocks(path, len(probs), **beside) as write:
        write(probs, y, **rows)


@contextmanager
def write_blocks(
    path: str | Path,
    n_rows: int,
    *,
    classes: Sequence[Any] | None = None,
    names: Mapping[str, str] | None = None,
) -> Iterator[Callable[..., None]]:
    """Yield a function that takes blocks of probabilities; the file appears when the last was written.

    The function takes ``probs`` (B, K), ``y``, ``ids`` and ``kept`` (a mapping of other columns), all but the
    first optional. A table has the id first, then the kept columns, the probabilities and the labels.

    Parameters
    ----------
    path : path-like
    n_rows : int
        Announced, because some formats say their length first.
    classes : sequence of K str, optional
        Names of the classes: of the columns of a table, an array ``classes`` of an ``.npz``.
    names : mapping, optional
        What ``id`` and ``label`` are called; ``"id"`` and ``"y"`` by default.

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
    written = 0
    with atomic_path(path) as temporary:
        writer = _WRITERS[Path(path).suffix.lower()](temporary, n_rows)

        def write(
            probs: NDArray[Any], y: Any = None, ids: Any = None, kept: Mapping[str, Any] | None = None
        ) -> None:
            nonlocal written
            arrays: Arrays = {} if ids is None else {called["id"]: np.asarray(ids)}
            arrays |= {n: np.asarray(a) for n, a in (kept or {}).items()}
            if writer.table:
                labels = range(probs.shape[1]) if classes is None else classes
                arrays |= {
                    f"{_PROBS}_{name}": np.ascontiguousarray(probs[:, k]) for k, name in enumerate(labels)
                }
            else:
                arrays[_PROBS] = probs
            if y is not None:
                arrays[called["label"]] = np.asarray(y)
            if classes is not None and not writer.table:
                arrays[CLASSES] = np.array([str(name) for name in classes])
            writer.write(arrays)
            written += len(probs)

        try:
            yield write
            if written != n_rows:
                raise ValueError(f"{written:,} rows came where {n_rows:,} were announced")
        finally:
            writer.finish()
