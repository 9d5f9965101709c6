"""Deployed as it was fitted: one formula in numpy, torch, ONNX and JSON."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

import hcal
from helpers import fit_quietly, synthetic

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from hcal.integrations.torch import CalibrationHead, MapModule  # noqa: E402

NAMES = [name for name in hcal.list_calibrators() if name != "h"]
NAN = np.nan
INF = np.inf
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
    fitted = {}
    for name, k in product(NAMES, (4, 2)):
        fitted[name, k] = fit_quietly(hcal.make_calibrator(name), *synthetic(300, k))
    return fitted


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
        for runtime, p in runtimes.items():
            valid = p[~is_nan(x)]
            if not (np.isnan(p).all(axis=1) == is_nan(x)).all() or np.isnan(valid).any():
                wrong.append((name, k, runtime, p.round(3).tolist()))
            elif not np.allclose(valid.sum(axis=1), 1, atol=1e-5) or (valid < 0).any():
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
    cal = fitted[name, 4]
    path = tmp_path / f"{name}.onnx"
    hcal.export(cal, path)
    got = run_onnx(path, z)
    np.testing.assert_allclose(got, cal.predict_proba(z), atol=1e-5, err_msg=name)
    if cal.preserves is not None:
        np.testing.assert_array_equal(got.argmax(1), z.argmax(1))
    odd = rows(4).astype(np.float32)
    refused = np.isnan(run_onnx(path, odd)).all(axis=1)
    assert (refused == is_nan(odd)).all(), name
    facts = json.loads(
        onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map["hcal"]
    )
    assert facts["name"] == name
    assert facts["classes"] == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_every_method_exports_to_onnx(fitted, tmp_path) -> None:
    for (name, k), cal in fitted.items():
        path = tmp_path / f"{name}{k}.onnx"
        z = synthetic(200, k, seed=5)[0]
        hcal.export(cal, path, width="float64")
        np.testing.assert_allclose(run_onnx(path, z), cal.predict_proba(z), atol=1e-6, err_msg=name)
        odd = rows(k)
        refused = np.isnan(run_onnx(path, odd)).all(axis=1)
        assert (refused == is_nan(odd)).all(), name


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
    cal = fitted["ts", 2]
    z = np.linspace(-3, 3, 7, dtype=np.float32)
    hcal.export_onnx(cal, tmp_path / "one.onnx", one_column=True)
    probs = run_onnx(tmp_path / "one.onnx", z[:, None])
    np.testing.assert_allclose(probs, cal.predict_proba(z), atol=1e-6)
    hcal.export_onnx(fitted["ts", 4], tmp_path / "dense.onnx", dense=True)
    images = np.zeros((2, 4, 5, 6), np.float32)
    assert run_onnx(tmp_path / "dense.onnx", images).shape == images.shape


def test_numpy_and_torch_are_one_formula(fitted) -> None:
    for (name, k), cal in fitted.items():
        z = synthetic(200, k, seed=7)[0]
        module = MapModule(cal.prediction_, torch.float64)
        of_torch = module(torch.from_numpy(z)).numpy()
        np.testing.assert_allclose(of_torch, cal.predict_proba(z), atol=1e-11, err_msg=name)


def test_export_says_what_it_writes(fitted, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"writes \.onnx, .*, not '\.txt'"):
        hcal.export(fitted["ts", 4], tmp_path / "model.txt")
    with pytest.raises(ValueError, match=r"no \.py since 0\.4: write \.json"):
        hcal.export(fitted["ts", 4], tmp_path / "model.py")
    with pytest.raises(ValueError, match="TemperatureScaling is not fitted"):
        hcal.export(hcal.make_calibrator("ts"), tmp_path / "model.json")
    with pytest.raises(ValueError, match=r"width is an option of \.onnx files alone"):
        hcal.export(fitted["ts", 4], tmp_path / "model.json", width="float64")
    with pytest.raises(ValueError, match="one_column is for two classes"):
        hcal.export(fitted["ts", 4], tmp_path / "model.onnx", one_column=True)
    by = ["a", "b"] * 150
    segmented = hcal.SegmentedCalibrator("ts").fit(*synthetic(300, 2), by=by)
    for ending in ("json", "onnx"):
        with pytest.raises(ValueError, match="knows no segments, and this"):
            hcal.export(segmented, tmp_path / f"model.{ending}")
    assert not list(tmp_path.iterdir())


def test_export_of_a_wrapper_says_what_to_export(tmp_path) -> None:
    from sklearn.naive_bayes import GaussianNB

    from hcal.integrations.sklearn import CalibratedClassifier

    model = CalibratedClassifier(GaussianNB(), method="ts", cv=2).fit(*synthetic(100, 2))
    for ending in ("onnx", "json"):
        with pytest.raises(TypeError, match="of a CalibratedClassifier, export its calibrator_"):
            hcal.export(model, tmp_path / f"model.{ending}")
    with pytest.raises(TypeError, match="a fitted calibrator, got str"):
        hcal.export("model.hcal", tmp_path / "model.json")


def test_one_onnx_file_holds_everything(tmp_path) -> None:
    """A browser loads one file: weights of 1000 classes must not go to a second one."""
    cal = hcal.make_calibrator("vs").fit(*synthetic(3000, 60))
    hcal.export(cal, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    tensors = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.initializer
    assert not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in tensors)
