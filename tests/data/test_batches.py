"""Batches: streamed rows are the rows, whatever the format, the size of a block and the reader."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcal.data import Columns, batches, read_data, read_piece

N, K = 1234, 5
NAMES = ["ant", "bee", "cat", "dog", "eel"]


def _made(seed: int = 0, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, K)).astype(np.float32)
    return logits, rng.integers(0, K, n), np.array([f"r{i:05d}" for i in range(n)])


def _npy(path: Path, logits: Any, y: Any, ids: Any) -> dict[str, Any]:
    np.save(path.with_suffix(".npy"), logits)
    np.save(path.parent.parent / "y.npy", y)
    return {"kind": "logits", "labels": path.parent.parent / "y.npy"}


def _npz(save: Callable[..., None]) -> Callable[..., dict[str, Any]]:
    def write(path: Path, logits: Any, y: Any, ids: Any) -> dict[str, Any]:
        save(path.with_suffix(".npz"), logits=logits, y=y, id=ids)
        return {"columns": Columns(id="id")}

    return write


def _fortran(path: Path, logits: Any, y: Any, ids: Any) -> dict[str, Any]:
    np.savez_compressed(path.with_suffix(".npz"), logits=np.asfortranarray(logits), y=y)
    return {}


def _frame(logits: Any, y: Any, ids: Any) -> Any:
    import pandas as pd

    frame = pd.DataFrame(logits, columns=[f"logits_{name}" for name in NAMES])
    return frame.assign(target=np.array(NAMES)[y], key=ids)


COLUMNS = Columns(scores="logits_*", label="target", id="key")


def _csv(path: Path, *rows: Any) -> dict[str, Any]:
    _frame(*rows).to_csv(path.with_suffix(".csv"), index=False)
    return {"columns": COLUMNS}


def _parquet(path: Path, *rows: Any) -> dict[str, Any]:
    _frame(*rows).to_parquet(path.with_suffix(".parquet"), row_group_size=100)
    return {"columns": COLUMNS}


def _feather(path: Path, *rows: Any) -> dict[str, Any]:
    _frame(*rows).to_feather(path.with_suffix(".feather"), chunksize=90)
    return {"columns": COLUMNS}


def _jsonl(path: Path, *rows: Any) -> dict[str, Any]:
    _frame(*rows).to_json(path.with_suffix(".jsonl"), orient="records", lines=True, double_precision=15)
    return {"columns": COLUMNS}


FORMATS = {
    "npy": _npy,
    "npz": _npz(np.savez),
    "npz, compressed": _npz(np.savez_compressed),
    "npz, by columns": _fortran,
    "csv": _csv,
    "parquet": _parquet,
    "feather": _feather,
    "jsonl": _jsonl,
}


@pytest.mark.parametrize("rows", [1, 97, 5000])
@pytest.mark.parametrize("name", FORMATS)
def test_streamed_rows_are_the_rows(tmp_path: Path, name: str, rows: int) -> None:
    n = 40 if rows == 1 else N
    folder = tmp_path / "rows"
    folder.mkdir()
    options = FORMATS[name](folder / "a", *_made(n=n))
    (file,) = folder.iterdir()
    whole = read_data(file, **options)
    made = batches(folder, rows=rows, **options)
    found = list(made)
    assert (made.n_rows, made.n_classes, made.kind, made.classes) == (n, K, "logits", whole.classes)
    assert max(map(len, found)) <= rows
    assert [b.start for b in found] == np.cumsum([0, *map(len, found)])[:-1].tolist()
    np.testing.assert_array_equal(np.concatenate([b.scores for b in found]), whole.values)
    assert found[0].scores.dtype == whole.values.dtype
    np.testing.assert_array_equal(np.concatenate([b.y for b in found]), whole.labels())
    if whole.ids is not None:
        np.testing.assert_array_equal(np.concatenate([b.ids for b in found]), whole.ids)
    # Read in another order by others, the pieces are the same rows.
    pieces = pickle.loads(pickle.dumps(made.pieces()))
    apart = {b.start: b for piece in reversed(pieces) for b in read_piece(piece)}
    for batch in found:
        np.testing.assert_array_equal(apart[batch.start].scores, batch.scores)
