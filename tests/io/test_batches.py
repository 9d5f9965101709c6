"""Batches: streamed rows are the rows, whatever the format, the size of a block and the reader."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hcal
from hcal.cli.app import app
from hcal.io import checksum, read_piece
from shim import Columns, read_data, batches

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


def _zarr(path: Path, logits: Any, y: Any, ids: Any) -> dict[str, Any]:
    import zarr

    group = zarr.open_group(path.with_suffix(".zarr"), mode="w", zarr_format=2)
    for name, array in (("logits", logits), ("y", y)):
        group.create_array(name, data=array, chunks=(70, *array.shape[1:]))
    return {}


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
    "zarr": _zarr,
}


@pytest.mark.parametrize("rows", [1, 97, 5000])
@pytest.mark.parametrize("name", FORMATS)
def test_streamed_rows_are_the_rows(tmp_path: Path, name: str, rows: int) -> None:
    n = 40 if rows == 1 else N
    folder = tmp_path / "rows"
    folder.mkdir()
    options = FORMATS[name](folder / "a", *_made(n=n))
    (file,) = folder.iterdir()
    whole = batches(file, **options).read_all() if name == "zarr" else read_data(file, **options)
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


def test_arrays_of_a_program() -> None:
    x, y, _ = _made(n=10)
    blocks = [(x[:7], y[:7]), (x[7:], y[7:])]
    for source in (blocks, lambda: iter(blocks), (x, y), iter(blocks)):
        made = batches(source, kind="logits", rows=4)
        found = list(made)
        np.testing.assert_array_equal(np.concatenate([b.scores for b in found]), x)
        np.testing.assert_array_equal(np.concatenate([b.y for b in found]), y)
        assert (made.n_rows, made.n_classes, max(map(len, found))) == (None, K, 4)
    with pytest.raises(ValueError, match="can be read once"):
        list(made)
    with pytest.raises(ValueError, match="no pieces"):
        made.pieces()
    for wrong, message in (
        ([x, x[:, :3]], "a block has 3 classes, the first has 5"),
        ([(x, y[:4])], "4 labels for 10 rows"),
        ([], "no rows"),
    ):
        with pytest.raises(ValueError, match=message):
            list(batches(wrong, kind="logits"))
    with pytest.raises(ValueError, match="add kind"):
        batches([x])


def test_a_folder_is_one_set_of_rows(tmp_path: Path) -> None:
    """Files in sorted order, columns found by the names of the first file, rows counted through."""
    rows = _made()
    frame = _frame(*rows)
    frame.iloc[:500].to_csv(tmp_path / "a.csv", index=False)
    frame.iloc[500:, ::-1].to_csv(tmp_path / "b.csv", index=False)
    (tmp_path / "README.md").touch()
    made = batches(tmp_path, rows=300, columns=COLUMNS)
    data = made.read_all()
    np.testing.assert_allclose(data.values, rows[0], rtol=1e-6)  # CSV has the digits that pandas writes
    np.testing.assert_array_equal(data.labels(), rows[1])
    assert (made.classes, data.name) == (tuple(NAMES), "a.csv and 1 more")
    frame.loc[307, "target"] = "cow"
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ValueError, match="counting from row 300: y: row 7 is 'cow'"):
        list(batches(tmp_path / "a*", rows=300, columns=COLUMNS))
    frame[[*frame][:3]].to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(ValueError, match=r"b.csv.*3 classes, the first file 5"):
        list(batches(tmp_path, rows=900, columns=Columns(scores="logits_*")))
    np.save(tmp_path / "c.npy", rows[0])
    with pytest.raises(ValueError, match=r"several types, .csv, .npy"):
        batches(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file of a known type matches"):
        batches(tmp_path / "*.parquet")


def test_text_that_comes_late_is_refused(tmp_path: Path) -> None:
    """A block of numbers is read as numbers; that text follows says that they were names."""
    lines = ["probs_0,probs_1,y,key", *(f"0.25,0.75,1,{i}" for i in range(2000))]
    (tmp_path / "a.csv").write_text("\n".join([*lines, "0.5,0.5,cat,x7"]))
    with pytest.raises(ValueError, match="holds numbers in the first rows and text"):
        list(batches(tmp_path / "a.csv", columns=Columns(id="key")))
    # Text that looks like a number stays text, in a block where all do.
    lines = ["probs_0,probs_1,y,key", "0.25,0.75,1,007", *(f"0.25,0.75,1,{i}" for i in range(2000))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    found = [b.ids for b in batches(tmp_path / "a.csv", rows=500, columns=Columns(id="key"))]
    assert all(ids is not None and ids.dtype.kind == "U" for ids in found)


def test_a_file_cut_in_use_is_an_error(tmp_path: Path) -> None:
    x, y, _ = _made(n=1000)
    np.save(tmp_path / "a.npy", x)
    blocks = iter(batches(tmp_path / "a.npy", kind="logits", rows=100))
    next(blocks)
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(3000)
    with pytest.raises(ValueError, match=r"cannot read a.npy: it(s header claims| ends early)"):
        list(blocks)
    np.save(tmp_path / "y.npy", y[:5])
    np.save(tmp_path / "b.npy", x)
    with pytest.raises(ValueError, match=r"y.npy has 5 labels"):
        list(batches(tmp_path / "b.npy", kind="logits", labels=tmp_path / "y.npy"))


def test_zarr_codecs_that_run_code_are_refused(tmp_path: Path) -> None:
    _zarr(tmp_path / "a", *_made(n=50))
    path = tmp_path / "a.zarr" / "logits" / ".zarray"
    told = json.loads(path.read_text()) | {"filters": [{"id": "pickle"}]}
    path.write_text(json.dumps(told))
    with pytest.raises(ValueError, match=r"a.zarr: its codec 'pickle' is not read"):
        batches(tmp_path / "a.zarr")


def test_a_store_is_learned_from_and_reported_on(tmp_path: Path) -> None:
    _zarr(tmp_path / "a", *_made(n=50))
    store, model = str(tmp_path / "a.zarr"), str(tmp_path / "m.hcal")
    for command in (["fit", store, "--method", "ts", "-o", model], ["report", store, "-o", f"{model}.html"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    before = checksum(store)
    (tmp_path / "a.zarr" / "y" / "0").write_bytes(b"other")
    assert hcal.load(model).info_["fitted_on"]["sha256"] == before != checksum(store)


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("a.zarr", "zarr")])
def test_what_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    {"a.parquet": _parquet, "a.zarr": _zarr}[name](tmp_path / "a", *_made(n=50))
    for module in [m for m in sys.modules if m.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"needs {package}: pip install"):
        batches(tmp_path / name)
