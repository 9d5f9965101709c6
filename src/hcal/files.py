"""Data files: logits, probabilities and labels in and out, in the formats that people have.

A file *says* what it holds (the key ``logits``, ``probs`` or ``log_probs``); where it cannot (a bare
``.npy`` matrix, a table with free column names) the caller must. Nothing is guessed from the numbers.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.inputs import INPUT_KINDS, InputKind
from hcal.io import atomic_path
from hcal.unpickle import read_pickle

Arrays = dict[str, NDArray[Any]]
Part = Literal["cal", "test"]

#: Where a bare matrix waits for its name.
_BARE = "_bare"
_COLUMN = re.compile(r"(logits|probs|log_probs)(_cal|_test)?[ _.\[]?(\d+)\]?")


@dataclass(frozen=True)
class DataFile:
    """One part of a data file.

    Attributes
    ----------
    path : Path
    kind : {"logits", "probs", "log_probs"}
        What ``values`` holds, as the file or the caller said.
    values : array of shape (N, K), or (N,) for a binary score
    y : array of shape (N,), or None
    part : str
        ``"cal"``, ``"test"``, or ``""`` for a file without parts.
    """

    path: Path
    kind: InputKind
    values: NDArray[Any]
    y: NDArray[Any] | None
    part: str

    def labels(self) -> NDArray[Any]:
        """Return ``y``, or say that this file has none."""
        if self.y is None:
            raise ValueError(
                f"{self.path.name} has no labels: add an array 'y' beside {self.kind!r}, "
                "or name a file of labels with --labels"
            )
        return self.y


def read_data(
    path: str | Path, *, part: Part = "test", kind: str | None = None, labels: str | Path | None = None
) -> DataFile:
    """Read scores and labels from ``.npz .npy .csv .parquet .safetensors`` or a numpy pickle ``.p``.

    Parameters
    ----------
    path : path-like
    part : {"cal", "test"}
        Which part of a task file (``logits_cal``, ``y_cal``, ``logits_test``, ``y_test``); a file without
        parts is read whole.
    kind : {"logits", "probs", "log_probs"}, optional
        Needed only where the file holds several of them or does not say.
    labels : path-like, optional
        A second file with the labels, for formats that hold one array.

    Returns
    -------
    DataFile

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, probs=[[0.25, 0.75]], y=[1])
    >>> read_data(path).kind
    'probs'
    """
    path = Path(path)
    if kind is not None and kind not in INPUT_KINDS:
        raise ValueError(f"--input must be one of {', '.join(INPUT_KINDS)}, got {kind!r}")
    arrays = read_arrays(path)
    suffix, name = _find(arrays, path, part, kind)
    y = arrays.get(f"y{suffix}")
    if labels is not None:
        y = _read_labels(Path(labels))
    if y is not None and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    said = name.removesuffix(suffix) if name != _BARE else kind
    return DataFile(path, said, arrays[name], y, suffix.lstrip("_"))  # type: ignore[arg-type]


def _find(arrays: Arrays, path: Path, part: Part, kind: str | None) -> tuple[str, str]:
    """Return the suffix of the part and the name of the array to use."""
    wanted = (kind,) if kind else INPUT_KINDS
    for suffix in (f"_{part}", ""):
        found = [k + suffix for k in wanted if k + suffix in arrays]
        if len(found) > 1:
            raise ValueError(f"{path.name} holds {' and '.join(found)}: choose one with --input")
        if found:
            return suffix, found[0]
    if _BARE in arrays:
        if kind is None:
            raise ValueError(
                f"{path.name} does not say what its numbers are: add --input logits, probs or log_probs"
            )
        return "", _BARE
    held = ", ".join(sorted(arrays)) or "nothing"
    what = kind or "logits, probs or log_probs"
    role = "calibration" if part == "cal" else "test"
    raise ValueError(
        f"{path.name} has no {what} (nor a {role} part of that name with _{part}); it holds: {held}"
    )


def _read_labels(path: Path) -> NDArray[Any]:
    arrays = read_arrays(path)
    y = arrays["y"] if "y" in arrays else arrays.get(_BARE)
    if y is None:
        raise ValueError(f"{path.name} has no 'y'; it holds: {', '.join(sorted(arrays))}")
    return y.reshape(-1) if y.ndim == 2 and 1 in y.shape else y


# -- reading --------------------------------------------------------------------------------------


def read_arrays(path: Path) -> Arrays:
    """Read every array of a file by name, by the file's extension.

    Examples
    --------
    >>> read_arrays(Path("a.xlsx"))
    Traceback (most recent call last):
    ...
    ValueError: cannot read a.xlsx: the types are .csv, .npy, .npz, .p, .parquet, .pkl, .safetensors
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"cannot read {path.name}: the types are {', '.join(sorted(_READERS))}")
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a directory")
    return reader(path)


def _read_npz(path: Path) -> Arrays:
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as f:
            if not hasattr(f, "files"):
                raise ValueError("it is a single .npy array")
            return {k: f[k] for k in f.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"cannot read {path.name}: {_inert(error)}") from None


def _read_npy(path: Path) -> Arrays:
    try:
        return {_BARE: np.load(path, allow_pickle=False, mmap_mode="r")}
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"cannot read {path.name}: {_inert(error)}") from None


def _inert(error: Exception) -> str:
    text = str(error)
    if "allow_pickle" in text or "Python objects" in text:
        return "it holds Python objects, which are never unpickled; save plain numeric arrays"
    return text


def _read_csv(path: Path) -> Arrays:
    with path.open(newline="", encoding="utf-8-sig") as f:
        head = next(csv.reader(f), [])
    if not head:
        raise ValueError(f"{path.name} is empty")
    bare = all(_is_number(cell) for cell in head)
    try:
        table = np.loadtxt(
            path, delimiter=",", skiprows=0 if bare else 1, ndmin=2, quotechar='"', encoding="utf-8-sig"
        )
    except ValueError as error:
        raise ValueError(f"cannot read {path.name}: {error}") from None
    if bare:
        return {_BARE: table}
    if table.shape[1] != len(head):
        raise ValueError(f"{path.name}: {len(head)} column names for {table.shape[1]} columns")
    return _from_columns({name.strip(): table[:, i] for i, name in enumerate(head)})


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> Arrays:
    try:
        from pyarrow import ArrowException
        from pyarrow import parquet as pq
    except ImportError:
        raise ImportError("reading .parquet needs pyarrow: pip install 'hcal[frames]'") from None
    try:
        table = pq.read_table(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"cannot read {path.name}: {error}") from None
    return _from_columns({name: _column(table[name], name, path) for name in table.column_names})


def _column(column: Any, name: str, path: Path) -> NDArray[Any]:
    """Return a parquet column as an array; a column of lists becomes a matrix."""
    if column.null_count:
        raise ValueError(f"{path.name}: column {name!r} has {column.null_count} missing values")
    array = column.to_numpy()
    if (
        array.dtype == object
        and len(array)
        and hasattr(array[0], "__len__")
        and not isinstance(array[0], str)
    ):
        return np.stack([np.asarray(row) for row in array])
    return np.asarray(array)


def _from_columns(columns: Arrays) -> Arrays:
    """Gather ``logits_0, logits_1, …`` into one matrix; other columns besides ``y`` are a bare matrix."""
    arrays: Arrays = {}
    numbered: dict[str, dict[int, NDArray[Any]]] = {}
    rest: list[NDArray[Any]] = []
    for name, column in columns.items():
        match = _COLUMN.fullmatch(name)
        if match:
            numbered.setdefault(match[1] + (match[2] or ""), {})[int(match[3])] = column
        elif column.ndim == 2 or name.removesuffix("_cal").removesuffix("_test") in (*INPUT_KINDS, "y"):
            arrays[name] = column
        elif np.issubdtype(column.dtype, np.number):
            rest.append(column)
    for name, found in numbered.items():
        if sorted(found) not in (list(range(len(found))), list(range(1, len(found) + 1))):
            raise ValueError(f"the columns {name}_0, {name}_1, … have gaps: found {sorted(found)}")
        arrays[name] = np.stack([found[i] for i in sorted(found)], axis=1)
    if rest and not any(k.split("_cal")[0].split("_test")[0] in INPUT_KINDS for k in arrays):
        arrays[_BARE] = np.stack(rest, axis=1)
    return arrays


def _read_safetensors(path: Path) -> Arrays:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(f"cannot read {path.name}: {error}") from None
    except (TypeError, KeyError, AttributeError):  # bfloat16, which numpy does not have
        from safetensors.torch import load_file as load_torch

        return {k: v.float().numpy() for k, v in load_torch(path).items()}


def _read_benchmark(path: Path) -> Arrays:
    """Read the benchmark's ``((logits_cal, y_cal), (logits_test, y_test))``, or a dict of arrays."""
    held = read_pickle(path)
    if isinstance(held, dict):
        return {str(k): np.asarray(v) for k, v in held.items()}
    if isinstance(held, np.ndarray):
        return {_BARE: held}
    if _is_pair(held):
        return {"logits": held[0], "y": held[1]}
    if isinstance(held, tuple | list) and len(held) == 2 and all(map(_is_pair, held)):
        (logits_cal, y_cal), (logits_test, y_test) = held
        return {"logits_cal": logits_cal, "y_cal": y_cal, "logits_test": logits_test, "y_test": y_test}
    raise ValueError(
        f"{path.name}: expected ((logits_cal, y_cal), (logits_test, y_test)), (logits, y) or a dict of arrays"
    )


def _is_pair(held: Any) -> bool:
    return isinstance(held, tuple | list) and len(held) == 2 and all(isinstance(a, np.ndarray) for a in held)


_READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".safetensors": _read_safetensors,
    ".p": _read_benchmark,
    ".pkl": _read_benchmark,
}

# -- writing --------------------------------------------------------------------------------------


def write_probs(path: str | Path, probs: NDArray[Any], y: NDArray[Any] | None = None) -> None:
    """Write probabilities, and labels where known, in the format of the extension, atomically.

    Parameters
    ----------
    path : path-like
        ``.npz .npy .csv .parquet`` or ``.safetensors``; ``.npy`` holds the probabilities only.
    probs : array of shape (N, K)
    y : array of shape (N,), optional

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "p.csv"
    >>> write_probs(path, np.array([[0.25, 0.75]]), np.array([1]))
    >>> print(path.read_text().strip())
    probs_0,probs_1,y
    0.25,0.75,1
    """
    path = Path(path)
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"cannot write {path.name}: the types are {', '.join(sorted(_WRITERS))}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {path.parent}")
    arrays: Arrays = {"probs": probs}
    if y is not None:
        arrays["y"] = np.asarray(y)
    with atomic_path(path) as temporary:
        writer(temporary, arrays)


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
    columns = _to_columns(arrays)
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(c.tolist() for c in columns.values()), strict=True))


def _write_parquet(path: Path, arrays: Arrays) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ImportError:
        raise ImportError("writing .parquet needs pyarrow: pip install 'hcal[frames]'") from None
    pq.write_table(pa.table(_to_columns(arrays)), path)


def _write_safetensors(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save_file

    save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)


def _to_columns(arrays: Arrays) -> Arrays:
    probs = arrays["probs"]
    columns = {f"probs_{k}": np.ascontiguousarray(probs[:, k]) for k in range(probs.shape[1])}
    return columns | ({"y": arrays["y"]} if "y" in arrays else {})


_WRITERS: dict[str, Callable[[Path, Arrays], Any]] = {
    ".npz": lambda path, arrays: np.savez_compressed(path, **arrays),  # type: ignore[arg-type]
    ".npy": lambda path, arrays: np.save(path, arrays["probs"]),
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".safetensors": _write_safetensors,
}


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file, to name the data behind a result.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"")
    >>> checksum(path)[:12]
    'e3b0c44298fc'
    """
    with Path(path).open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
