"""Probabilities to files, whole or not at all."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Arrays
from hcal.io.columns import CLASSES
from hcal.extras import load_extra

#: Rows, the first one for names, and columns of a sheet.
_SHEET: Final = (1_048_576, 16_384)


def write_probs(
    path: str | Path,
    probs: NDArray[Any],
    y: NDArray[Any] | None = None,
    *,
    classes: Sequence[Any] | None = None,
    ids: NDArray[Any] | None = None,
) -> None:
    """Write probabilities, and what is known of the rows, in the format of the extension, atomically.

    Parameters
    ----------
    path : path-like
        ``.npz .npy .csv .parquet .feather .jsonl .xlsx`` or ``.safetensors``; ``.npy`` holds the
        probabilities only.
    probs : array of shape (N, K)
    y : array of shape (N,), optional
    classes : sequence of K str, optional
        Names of the classes: of the columns of a table, an array ``classes`` of an ``.npz``.
    ids : array of shape (N,), optional
        Written as ``id``, the first column of a table.

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
    from hcal.io.atomic import atomic_path

    can_write(path)
    with atomic_path(path) as temporary:
        _WRITERS[Path(path).suffix.lower()](temporary, arrays_of(probs, y, classes=classes, ids=ids))


def arrays_of(
    probs: NDArray[Any], y: Any = None, *, classes: Sequence[Any] | None = None, ids: Any = None
) -> Arrays:
    """Return what is written of some rows, by name.

    >>> list(arrays_of(np.array([[0.25, 0.75]]), [1], ids=[7]))
    ['id', 'probs', 'y']
    """
    arrays: Arrays = {} if ids is None else {"id": np.asarray(ids)}
    arrays["probs"] = probs
    if y is not None:
        arrays["y"] = np.asarray(y)
    if classes is not None:
        arrays[CLASSES] = np.array([str(name) for name in classes])
    return arrays


def can_write(path: str | Path) -> None:
    """Raise now, rather than after minutes of work, when ``path`` is not a type that can be written.

    Examples
    --------
    >>> can_write("out.npz")
    """
    if Path(path).suffix.lower() not in _WRITERS:
        raise ValueError(f"cannot write {Path(path).name}: the types are {', '.join(sorted(_WRITERS))}")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"no such directory: {Path(path).parent}")


def _write_csv(path: Path, arrays: Arrays) -> None:
    columns = to_columns(arrays)
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(c.tolist() for c in columns.values()), strict=True))


def _write_jsonl(path: Path, arrays: Arrays) -> None:
    columns = to_columns(arrays)
    with path.open("w", newline="\n", encoding="utf-8") as f:
        for row in zip(*(c.tolist() for c in columns.values()), strict=True):
            f.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def _write_xlsx(path: Path, arrays: Arrays) -> None:
    openpyxl = load_extra("writing .xlsx", "openpyxl", "excel")
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.utils.exceptions import IllegalCharacterError

    columns = to_columns(arrays)
    if len(columns) > _SHEET[1] or len(arrays["probs"]) >= _SHEET[0]:
        raise ValueError(f".xlsx holds {_SHEET[0]:,} rows and {_SHEET[1]:,} columns: write .parquet or .csv")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("probs")

    def cell(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        made = WriteOnlyCell(sheet, value)
        made.data_type = "s"  # a text that begins with '=' is a name, and no formula
        return made

    try:
        for row in ((*columns,), *zip(*(c.tolist() for c in columns.values()), strict=True)):
            sheet.append([cell(value) for value in row])
    except IllegalCharacterError:
        raise ValueError(".xlsx cannot hold a text with control characters: write .csv or .jsonl") from None
    book.save(path)


def _write_arrow(path: Path, arrays: Arrays, *, kind: str) -> None:
    pa = load_extra(f"writing {kind}", "pyarrow", "frames")
    from pyarrow import feather, parquet

    table = pa.table(to_columns(arrays))
    (parquet.write_table if kind == ".parquet" else feather.write_feather)(table, path)


def _write_safetensors(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save

    # Names of classes stay in the model; a text of a row has no other place.
    held = {k: v for k, v in arrays.items() if k != CLASSES}
    text = [k for k, v in held.items() if v.dtype.kind not in "biuf"]
    if text:
        raise ValueError(f".safetensors holds numbers, and {text[0]!r} is text: write .npz, .csv or .parquet")
    # Written by Python: the library's own writer reports a full disk as an error of the format.
    path.write_bytes(save({k: np.ascontiguousarray(v) for k, v in held.items()}))


def to_columns(arrays: Arrays) -> Arrays:
    """Return arrays as the columns of a table, in their order."""
    probs = arrays["probs"]
    names = arrays[CLASSES].tolist() if CLASSES in arrays else range(probs.shape[1])
    columns = {"id": arrays["id"]} if "id" in arrays else {}
    columns |= {f"probs_{name}": np.ascontiguousarray(probs[:, k]) for k, name in enumerate(names)}
    return columns | ({"y": arrays["y"]} if "y" in arrays else {})


_WRITERS: Final[dict[str, Callable[[Path, Arrays], Any]]] = {
    ".npz": lambda path, arrays: np.savez_compressed(path, **arrays),  # type: ignore[arg-type]
    ".npy": lambda path, arrays: np.save(path, arrays["probs"]),
    ".csv": _write_csv,
    ".parquet": partial(_write_arrow, kind=".parquet"),
    ".feather": partial(_write_arrow, kind=".feather"),
    ".jsonl": _write_jsonl,
    ".xlsx": _write_xlsx,
    ".safetensors": _write_safetensors,
}
