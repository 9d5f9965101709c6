"""Deployed as it was fitted: one formula in numpy, torch, ONNX, JSON and a file that needs numpy alone."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import hcal
from hcal.integrations.export import as_python
from helpers import fit_quietly, synthetic

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from hcal.integrations.torch import CalibrationHead, MapModule  # noqa: E402

NAMES = [name for name in hcal.list_calibrators() if name != "h"]
NAN, INF = np.nan, np.inf
#: Scores of one row -> whether every probability of it is NaN.
ODD_ROWS = {
    "a NaN": ([NAN, 0.0, 1.0, 2.0], True),
    "only NaN": ([NAN] * 4, True),
    "+inf": ([INF, 0.0, 1.0, 2.0], True),
    "two +inf": ([INF, INF, 1.0, 2.0], True),
    "only -inf": ([-INF] * 4, True),
    "one -inf": ([-INF, 0.0, 1.0, 2.0], False),
    "large": ([1e4, -1e4, 0.0, 5.0], False),
    "plain": ([0.3, 0.1, -2.0, 1.0], False),
}


@pytest.fixture(scope="module")
def fitted():
    return {
        (name, k): fit_quietly(hcal.make_calibrator(name), *synthetic(300, k))
        for name in NAMES
        for k in (4, 2)
    }


def rows(k: int) -> np.ndarray:
    table = np.array([row for row, _ in ODD_ROWS.values()])
    return table if k == 4 else table[:, [0, 3]]


def is_nan(table: np.ndarray) -> np.ndarray:
    top = table.max(axis=1)
    return ~np.isfinite(top)


def test_odd_rows_are_nan_in_every_runtime(fitted, tmp_path) -> None:
    """NaN scores gave finite probabilities in 0.2's module and ONNX graph, two classes [1, 1]."""
    wrong = []
    for (name, k), cal in fitted.items():
        x = rows(k)
        runtimes = {"torch float64": CalibrationHead(cal)(torch.from_numpy(x)).numpy()}
        runtimes["torch float32"] = CalibrationHead(cal)(torch.from_numpy(x).float()).numpy()
        scope: dict = {}
        exec(as_python(cal), scope)
        runtimes["file"] = scope["predict_proba"](x)
        for runtime, p in runtimes.items():
            if not (np.isnan(p).all(axis=1) == is_nan(x)).all() or np.isnan(p[~is_nan(x)]).any():
                wrong.append((name, k, runtime, p.round(3).tolist()))
            elif (
                not np.allclose(p[~is_nan(x)].sum(axis=1), 1, atol=1e-5)
                or (p[~is_nan(x)] < 0).any()
            ):
                wrong.append((name, k, runtime, "sums"))
    assert not wrong


def run_onnx(path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path))
    return session.run(None, {session.get_inputs()[0].name: x})[0]


@pytest.mark.parametrize(
    "name", ["ts", *(pytest.param(n, marks=pytest.mark.slow) for n in ("pool", "iso", "platt"))]
)
def test_onnx_is_what_predict_proba_gives(name, fitted, tmp_path) -> None:
    z = synthetic(500, 4, seed=5)[0].astype(np.float32)
    cal, path = fitted[name, 4], tmp_path / f"{name}.onnx"
    hcal.export(cal, path)
    got = run_onnx(path, z)
    np.testing.assert_allclose(got, cal.predict_proba(z), atol=1e-5, err_msg=name)
    if cal.preserves is not None:
        np.testing.assert_array_equal(got.argmax(1), z.argmax(1))
    odd = rows(4).astype(np.float32)
    assert (np.isnan(run_onnx(path, odd)).all(axis=1) == is_nan(odd)).all(), name
    facts = json.loads(
        onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map["hcal"]
    )
    assert facts["name"] == name
    assert facts["classes"] == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_every_method_exports_to_onnx(fitted, tmp_path) -> None:
    for (name, k), cal in fitted.items():
        path, z = tmp_path / f"{name}{k}.onnx", synthetic(200, k, seed=5)[0]
        hcal.export(cal, path, width="float64")
        np.testing.assert_allclose(run_onnx(path, z), cal.predict_proba(z), atol=1e-6, err_msg=name)
        odd = rows(k)
        assert (np.isnan(run_onnx(path, odd)).all(axis=1) == is_nan(odd)).all(), name


@pytest.mark.slow
def test_the_default_graph_is_small_and_keeps_every_argmax(fitted, tmp_path) -> None:
    path = tmp_path / "pool.onnx"
    hcal.export(fitted["pool", 4], path)
    assert len(onnx.load(path).graph.node) <= 200
    cal = hcal.PooledCalibrator(preserve="accuracy").fit(*synthetic(300, 4))
    hcal.export(cal, path)
    z = np.random.default_rng(0).normal(size=(100_000, 4)).astype(np.float32)
    np.testing.assert_array_equal(run_onnx(path, z).argmax(1), z.argmax(1))


@pytest.mark.slow
def test_one_column_and_dense_graphs(fitted, tmp_path) -> None:
    cal, z = fitted["ts", 2], np.linspace(-3, 3, 7, dtype=np.float32)
    hcal.export_onnx(cal, tmp_path / "one.onnx", one_column=True)
    np.testing.assert_allclose(
        run_onnx(tmp_path / "one.onnx", z[:, None]), cal.predict_proba(z), atol=1e-6
    )
    hcal.export_onnx(fitted["ts", 4], tmp_path / "dense.onnx", dense=True)
    assert run_onnx(tmp_path / "dense.onnx", np.zeros((2, 4, 5, 6), np.float32)).shape == (
        2,
        4,
        5,
        6,
    )


def test_numpy_and_torch_are_one_formula(fitted) -> None:
    for (name, k), cal in fitted.items():
        z = synthetic(200, k, seed=7)[0]
        module = MapModule(cal.prediction_, torch.float64)
        np.testing.assert_allclose(
            module(torch.from_numpy(z)).numpy(), cal.predict_proba(z), atol=1e-11, err_msg=name
        )


def test_the_python_file_and_the_json_predict_the_same(fitted, tmp_path) -> None:
    for (name, k), cal in fitted.items():
        z = synthetic(100, k, seed=9)[0]
        scope: dict = {}
        exec(as_python(cal), scope)
        np.testing.assert_allclose(
            scope["predict_proba"](z), cal.predict_proba(z), atol=1e-9, err_msg=name
        )
        hcal.export(cal, tmp_path / "m.json")
        told = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
        scores, probs = (np.array(told["example"][key]) for key in ("scores", "probs"))
        np.testing.assert_allclose(cal.predict_proba(scores), probs, atol=1e-9, err_msg=name)
        assert told["schema"] == 1
        assert ("curve" in told) == (k == 2)


def test_ten_lines_that_read_the_json(fitted, tmp_path) -> None:
    """What the how-to for R, Julia and JavaScript does, in Python."""
    hcal.export(fitted["platt", 2], tmp_path / "platt.json")
    hcal.export(fitted["ts", 4], tmp_path / "ts.json")
    ts = json.loads((tmp_path / "ts.json").read_text())
    x = np.array(ts["example"]["scores"]) * ts["map"]["beta"]["value"]
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p, ts["example"]["probs"], atol=1e-12)
    platt = json.loads((tmp_path / "platt.json").read_text())
    z = np.array(platt["example"]["scores"])
    odds = (z[:, 1] - z[:, 0]) * platt["map"]["slope"]["value"][0] + platt["map"]["intercept"][
        "value"
    ][0]
    np.testing.assert_allclose(
        1 / (1 + np.exp(-odds)), np.array(platt["example"]["probs"])[:, 1], atol=1e-12
    )


@pytest.mark.slow
def test_the_python_file_needs_numpy_alone(fitted, tmp_path) -> None:
    hcal.export(fitted["pool", 4], tmp_path / "model.py")
    code = (
        "import sys, model; print(model.predict_proba([[0, 1, 2, 3]]).shape, 'hcal' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "(1, 4) False"


def test_export_says_what_it_writes(fitted, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"\.onnx, \.json or \.py, not '\.txt'"):
        hcal.export(fitted["ts", 4], tmp_path / "model.txt")
    with pytest.raises(ValueError, match=r"options of \.onnx files alone"):
        hcal.export(fitted["ts", 4], tmp_path / "model.json", width="float64")
    with pytest.raises(ValueError, match="one_column is for two classes"):
        hcal.export(fitted["ts", 4], tmp_path / "model.onnx", one_column=True)
    assert not list(tmp_path.iterdir())
