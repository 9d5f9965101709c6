"""hcal.export_onnx: files, dense outputs, and behind a network."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import hcal
from hcal.integrations import dense
from hcal.integrations.onnx import to_onnx
from helpers import synthetic


@pytest.fixture(scope="module")
def ts():
    return hcal.make_calibrator("ts").fit(*synthetic())


def run(path, name: str, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {name: x})[0]


def network(weight: np.ndarray, opset: int, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """Return x @ weight as a network, with names that clash with nothing and everything."""
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["scores", "v0"], [o]) for o in outputs],
        "net",
        [helper.make_tensor_value_info("scores", kind, ["batch", weight.shape[0]])],
        [helper.make_tensor_value_info(o, kind, ["batch", weight.shape[1]]) for o in outputs],
        [numpy_helper.from_array(weight, "v0")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_a_file_that_says_what_it_is(ts, tmp_path) -> None:
    hcal.export_onnx(ts, tmp_path / "ts.onnx")
    x = synthetic(seed=1)[0].astype(np.float32)
    np.testing.assert_allclose(run(tmp_path / "ts.onnx", "scores", x), ts.predict_proba(x), atol=1e-6)
    model = onnx.load(tmp_path / "ts.onnx")
    facts = json.loads(next(p.value for p in model.metadata_props if p.key == "hcal"))
    assert facts == {"name": "ts", "input": "logits", "preserves": "order"}
    assert model.producer_version == hcal.__version__
    assert [p.name for p in tmp_path.iterdir()] == ["ts.onnx"]  # no temporary file left


@pytest.mark.parametrize("opset", [13, 18, 20])
def test_behind_a_network_of_older_and_newer_opsets(opset, ts, tmp_path) -> None:
    weight = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    onnx.save(network(weight, opset), tmp_path / "net.onnx")
    hcal.export_onnx(ts, tmp_path / "both.onnx", after=tmp_path / "net.onnx")
    x = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32)
    expected = ts.predict_proba(run(tmp_path / "net.onnx", "scores", x))
    got = run(tmp_path / "both.onnx", "scores", x)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_dense(ts, tmp_path) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype(np.float32)
    hcal.export_onnx(ts, tmp_path / "dense.onnx", dense=True)
    np.testing.assert_allclose(
        run(tmp_path / "dense.onnx", "scores", x), dense.predict_proba(ts, x), atol=1e-6
    )


def test_what_cannot_be_joined_is_named(ts, tmp_path) -> None:
    weight = np.zeros((6, 4), dtype=np.float32)
    with pytest.raises(ValueError, match="it has 2: a, b"):
        hcal.export_onnx(ts, tmp_path / "x.onnx", after=network(weight, 18, ("a", "b")))
    with pytest.raises(ValueError, match="gives float64: say width"):
        hcal.export_onnx(ts, tmp_path / "x.onnx", after=network(weight.astype(np.float64), 18))
    with pytest.raises(ValueError, match="width must be one of"):
        to_onnx(ts, width="float16")
    assert not list(tmp_path.iterdir())


def test_only_standard_operators(ts) -> None:
    model = to_onnx(ts)
    assert {o.domain for o in model.opset_import} == {""}
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
