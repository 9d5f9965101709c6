"""Saved calibrators and data files: what is written can be read, what is broken says so."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal import io as readers
from shim import read_data
from hcal.calibrators import files
from hcal.io import model_file, pickles
from hcal.io.atomic import atomic_path
from helpers import ROOT, synthetic, wait_for_release

HERE = ROOT / "tests"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.hcal"
    files.save(hcal.make_calibrator("ts").fit(*synthetic()), path)
    return path


# -- calibrators ----------------------------------------------------------------------------------


def test_a_loaded_calibrator_is_the_saved_one(model: Path) -> None:
    logits, y = synthetic()
    fitted = hcal.make_calibrator("ts").fit(logits, y)
    loaded = files.load(model)
    assert np.array_equal(loaded.predict_proba(logits), fitted.predict_proba(logits))
    assert loaded.get_params() == fitted.get_params()
    assert loaded.scores_ == fitted.scores_
    assert loaded.info_ == fitted.info_
    assert (loaded.n_classes_, loaded.converged_) == (4, True)


def test_an_unfitted_calibrator_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not fitted"):
        files.save(hcal.make_calibrator("ts"), tmp_path / "m.hcal")
    assert not list(tmp_path.iterdir())


def _write_half(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        1 / 0


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(model: Path) -> None:
    before = model.read_bytes()
    broken = files.load(model)
    broken.info_ = {"not json": object()}
    with pytest.raises(TypeError, match="cannot be saved"):
        files.save(broken, model)
    with pytest.raises(ZeroDivisionError):
        _write_half(model)
    assert model.read_bytes() == before
    assert [p.name for p in model.parent.iterdir()] == ["model.hcal"]


def test_a_written_file_has_ordinary_permissions(model: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert model.stat().st_mode & 0o777 == 0o666 & ~umask


def _with_header(path: Path, **changes: object) -> Path:
    """Change the header and make the checksum anew, as one who means harm would."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(path, framework="numpy") as f:
        header = json.loads(f.metadata()["hcal"])
        state = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    text = json.dumps({k: v for k, v in (header | changes).items() if v is not None})
    save_file(state, path, metadata={"hcal": text, "sha256": model_file.digest(text, state)})
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 99}, "schema 99.*please upgrade"),
        ({"name": "gone"}, "'gone', which is not registered here: import"),
        ({"params": {"gone": 1}}, "no parameter 'gone'"),
        ({"params": None}, "not a whole hcal model file"),
        ({"schema": "one"}, "not an hcal model file"),
    ],
)
def test_a_header_that_does_not_fit_says_so(model: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        files.load(_with_header(model, **changes))


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", pickle.dumps({"a": 1})])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.hcal"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not an hcal model file"):
        files.load(path)


def test_a_truncated_model_is_refused(model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-4])
    with pytest.raises(ValueError, match="not an hcal model file"):
        files.load(model)


# -- golden: files of this version that every later one must read ---------------------------------

GOLDEN = sorted((HERE / "golden").glob("v*/*.hcal"))


@pytest.mark.parametrize("schema", range(1, model_file.SCHEMA + 1))
def test_there_are_golden_models_of_every_schema(schema: int) -> None:
    names = {path.stem for path in GOLDEN if path.parent.name == f"v{schema}"}
    assert {n for n in names if n.startswith("h-")} == {
        "h-order",
        "h-none",
        *(f"h-paper-{m}" for m in ("ensemble-16", "piecewise-100", "monotonic-10")),
    }
    if schema == model_file.SCHEMA:  # new methods have no old file
        wait_for_release(set(hcal.list_calibrators()) - names, "a golden model: python tests/golden/make.py")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_golden_models_are_read_for_ever(path: Path) -> None:
    with np.load(path.parent / "expected.npz") as expected:
        got = files.load(path).predict_proba(expected["logits"])
        np.testing.assert_allclose(got, expected[path.stem], atol=1e-12)


# -- data files: round trips ----------------------------------------------------------------------

PROBS = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
Y = np.array([1, 0, 1])


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet", ".safetensors"])
def test_probabilities_written_are_probabilities_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    readers.write_probs(path, PROBS, Y)
    data = read_data(path)
    assert data.kind == "probs"
    assert data.part == ""
    np.testing.assert_array_equal(data.values, PROBS)
    np.testing.assert_array_equal(data.labels(), Y)


def test_npy_holds_one_array_and_must_be_told_what(tmp_path: Path) -> None:
    readers.write_probs(tmp_path / "p.npy", PROBS, Y)
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(ValueError, match="does not say what its numbers are"):
        read_data(tmp_path / "p.npy")
    data = read_data(tmp_path / "p.npy", kind="probs", labels=tmp_path / "y.npy")
    np.testing.assert_array_equal(data.values, PROBS)
    np.testing.assert_array_equal(data.labels(), Y)
    with pytest.raises(ValueError, match="has no labels"):
        read_data(tmp_path / "p.npy", kind="probs").labels()


def test_task_files_have_two_parts(tmp_path: Path) -> None:
    path = tmp_path / "task.npz"
    np.savez(path, logits_cal=PROBS, y_cal=Y, logits_test=PROBS[:2], y_test=Y[:2, None])
    cal, test = (read_data(path, part=part) for part in ("cal", "test"))
    assert (cal.part, len(cal.values), test.part, len(test.values)) == ("cal", 3, "test", 2)
    assert test.labels().shape == (2,)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.npz"
    np.savez(path, logits_test=PROBS, y_test=Y)
    with pytest.raises(ValueError, match=r"half.npz has no logits, probs or log_probs .* calibration part"):
        read_data(path, part="cal")


def test_two_kinds_in_one_file_need_a_choice(tmp_path: Path) -> None:
    path = tmp_path / "both.npz"
    np.savez(path, logits=np.log(PROBS), probs=PROBS, y=Y)
    with pytest.raises(ValueError, match="holds logits and probs: choose one"):
        read_data(path)
    assert read_data(path, kind="probs").kind == "probs"


def test_a_wrong_kind_lists_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, probs=PROBS, y=Y)
    with pytest.raises(ValueError, match=r"has no logits .* it holds: probs, y"):
        read_data(path, kind="logits")
    with pytest.raises(ValueError, match="must be one of"):
        read_data(path, kind="scores")


def test_free_column_names_are_classes_in_order_once_the_kind_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('"cat","dog",y\n0.25,0.75,1\n0.5,0.5,0\n')
    with pytest.raises(ValueError, match="does not say"):
        read_data(path)
    data = read_data(path, kind="probs")
    np.testing.assert_array_equal(data.values, PROBS[:2])
    np.testing.assert_array_equal(data.labels(), Y[:2])


def test_columns_are_ordered_by_number_not_by_place(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("y,logits_10,logits_9," + ",".join(f"logits_{k}" for k in range(9)) + "\n")
    with path.open("a") as f:
        f.write("3," + ",".join(str(v) for v in (10, 9, *range(9))) + "\n")
    np.testing.assert_array_equal(read_data(path).values, [np.arange(11.0)])
    path.write_text("y,logits_0,logits_2\n0,1,2\n")
    with pytest.raises(ValueError, match="have gaps"):
        read_data(path)


def test_a_headless_csv_is_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("0.25,0.75\n0.5,0.5\n")
    np.testing.assert_array_equal(read_data(path, kind="probs").values, PROBS[:2])


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("logits_0,logits_1,y\n1,two,0\n", "cannot read t.csv: could not convert")],
)
def test_a_broken_csv_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_data(path)


def test_parquet_may_hold_a_column_of_lists(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"probs": PROBS.tolist(), "y": Y, "id": ["a", "b", "c"]}), path)
    np.testing.assert_array_equal(read_data(path).values, PROBS)
    parquet.write_table(pa.table({"probs_0": [0.5, None], "probs_1": [0.5, 0.5]}), path)
    with pytest.raises(ValueError, match="'probs_0' has 1 missing"):
        read_data(path)


def test_bfloat16_safetensors_are_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    path = tmp_path / "t.safetensors"
    save_file({"probs": torch.from_numpy(PROBS).bfloat16(), "y": torch.from_numpy(Y)}, path)
    np.testing.assert_array_equal(read_data(path).values.astype(np.float64), PROBS)


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.parquet", "a.safetensors", "a.p"])
def test_garbage_in_any_format_is_a_value_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00garbage" * 20)
    with pytest.raises(ValueError, match=name):
        read_data(tmp_path / name, kind="probs")


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_object_arrays_are_never_unpickled(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as f:
        held = np.array([{}], dtype=object)
        np.savez(f, logits=held) if name.endswith("z") else np.save(f, held)
    with pytest.raises(ValueError, match="never unpickled"):
        read_data(tmp_path / name, kind="logits")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_data(tmp_path / "a.npz")
    (tmp_path / "d.npz").mkdir()
    with pytest.raises(ValueError, match="is a directory"):
        read_data(tmp_path / "d.npz")
    with pytest.raises(FileNotFoundError, match="no such directory"):
        readers.write_probs(tmp_path / "no" / "p.npz", PROBS)
    with pytest.raises(ValueError, match=r"cannot write p\.doc"):
        readers.write_probs(tmp_path / "p.doc", PROBS)


# -- pickles: arrays and nothing else --------------------------------------------------------------

TASK = ((PROBS.astype(np.float32), Y[:, None]), (np.asfortranarray(PROBS), Y.astype(">i4")))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_benchmark_pickles_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "task.p"
    path.write_bytes(pickle.dumps(TASK, protocol=protocol))
    cal, test = (read_data(path, part=part) for part in ("cal", "test"))
    assert cal.values.dtype == np.float32
    np.testing.assert_array_equal(cal.values, TASK[0][0])
    np.testing.assert_array_equal(test.values, PROBS)
    np.testing.assert_array_equal(cal.labels(), Y)
    np.testing.assert_array_equal(test.labels(), Y)


def test_a_pickle_of_python_2_and_old_numpy(tmp_path: Path) -> None:
    path = tmp_path / "old.p"
    text = pickle.dumps((np.float32([[1, 2]]), np.int64([1])), protocol=2)
    path.write_bytes(text.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    np.testing.assert_array_equal(read_data(path).values, [[1, 2]])


def test_dicts_pairs_and_bare_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.p"
    path.write_bytes(pickle.dumps({"probs": PROBS, "y": Y}))
    assert read_data(path).kind == "probs"
    path.write_bytes(pickle.dumps(PROBS))
    assert read_data(path, kind="probs").values.shape == (3, 2)
    path.write_bytes(pickle.dumps([1, 2, 3]))
    with pytest.raises(ValueError, match="expected"):
        read_data(path)


class _Evil:
    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


@pytest.mark.parametrize(
    "held",
    [
        _Evil(os.system, "touch owned"),
        _Evil(eval, "open('owned', 'w')"),
        _Evil(getattr, "text", "format"),
        _Evil(np.load, "owned"),
        _Evil(np.fromfile, "owned"),
        (PROBS, _Evil(os.system, "touch owned")),
        np.array([_Evil(os.system, "touch owned")], dtype=object),
        np.array([None], dtype=object),
        np.zeros(2, dtype=[("a", "f8")]),
        np.dtype("O"),
        np.dtype("f8"),
        np.array(["text"]),
        np.ndarray,
        complex(1, 2),
    ],
    ids=lambda h: type(h).__name__,
)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_nothing_but_numeric_arrays_leaves_a_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: object, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("evil.p")
    path.write_bytes(pickle.dumps(held, protocol=protocol))
    with pytest.raises(ValueError, match=r"evil.p is no pickle of arrays"):
        pickles.read_pickle(path.read_bytes(), path.name)
    assert [p.name for p in tmp_path.iterdir()] == ["evil.p"]


def test_random_bytes_in_a_pickle_never_escape_as_another_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = pickle.dumps(TASK)
    path = tmp_path / "fuzz.p"
    for _ in range(300):
        broken = bytearray(whole)
        for place in rng.integers(0, 250, size=3):
            broken[place] = rng.integers(256)
        path.write_bytes(bytes(broken))
        try:
            pickles.read_pickle(path.read_bytes(), path.name)
        except ValueError as error:
            assert "fuzz.p" in str(error)  # noqa: PT017


def test_checksums_name_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert readers.checksum(tmp_path / "a").startswith("ba7816bf8f01cfea")
