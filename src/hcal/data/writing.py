"""Probabilities to files, whole or not at all."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal.data.arrays import Arrays


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
    from hcal.data.atomic import atomic_path

    can_write(path)
    arrays: Arrays = {"probs": probs}
    if y is not None:
        arrays["y"] = np.asarray(y)
    with atomic_path(path) as temporary:
        _WRITERS[Path(path).suffix.lower()](temporary, arrays)


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
    from safetensors.numpy import save

    # Written by Python: the library's own writer reports a full disk as an error of the format.
    path.write_bytes(save({k: np.ascontiguousarray(v) for k, v in arrays.items()}))


def _to_columns(arrays: Arrays) -> Arrays:
    probs = arrays["probs"]
    columns = {f"probs_{k}": np.ascontiguousarray(probs[:, k]) for k in range(probs.shape[1])}
    return columns | ({"y": arrays["y"]} if "y" in arrays else {})


_WRITERS: Final[dict[str, Callable[[Path, Arrays], Any]]] = {
    ".npz": lambda path, arrays: np.savez_compressed(path, **arrays),  # type: ignore[arg-type]
    ".npy": lambda path, arrays: np.save(path, arrays["probs"]),
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".safetensors": _write_safetensors,
}
