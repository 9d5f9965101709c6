"""numpy, torch and onnxruntime agree, over random and hostile scores, for every method with a graph."""

from __future__ import annotations

import warnings

import numpy as np
import onnxruntime
import pytest
import torch

import hcal
from hcal.calibrators import get_calibrator
from hcal.calibrators.on_device import predict_tensor
from hcal.calibrators.program import is_portable, program
from hcal.integrations.onnx import to_onnx
from hcal.integrations.torch import CalibrationHead
from hcal.runtime.ops import NumpyOps
from helpers import synthetic

PORTABLE = [name for name in hcal.list_calibrators() if hasattr(get_calibrator(name), "_graph")]
#: The promise of the documentation: every order-preserving method and the scaling family.
SCALING = {"vs", "ms", "dir", "beta", "svs", "sms"}


def test_every_order_preserving_method_and_the_scaling_family_has_a_graph() -> None:
    for name in hcal.list_calibrators():
        if get_calibrator(name).preserves is not None or name in SCALING:
            assert name in PORTABLE, name


def hostile(k: int, dtype: str) -> np.ndarray:
    """Scores that break careless arithmetic: huge, tied, one unit in the last place apart."""
    rng = np.random.default_rng(1)
    plain = rng.normal(size=(200, k)) * 4
    huge = rng.choice([-1e4, -1.0, 0.0, 1e4], size=(200, k))
    near = np.repeat(rng.normal(size=(200, 1)) * 30, k, axis=1).astype(dtype)
    up = np.nextafter(near, np.array(np.inf, dtype))
    near = np.where(rng.random((200, k)) < 0.3, up, near)
    tied = rng.integers(-2, 3, size=(200, k)).astype(float)
    far = rng.normal(size=(50, k)) + 1e4
    return np.concatenate([plain, huge, near, tied, far, np.zeros((1, k))]).astype(dtype)


@pytest.fixture(scope="module")
def fitted():
    cache: dict[tuple[str, int, str], hcal.calibrators.Calibrator] = {}

    def get(name: str, k: int = 4, kind: str = "logits"):
        if (name, k, kind) not in cache:
            z, y = synthetic(240, k)
            x = {"logits": z, "probs": hcal.softmax(z), "log_probs": np.log(hcal.softmax(z))}[kind]
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", hcal.CalibrationWarning
                )  # 240 rows are few; not the point here
                cache[name, k, kind] = hcal.make_calibrator(name, input=kind).fit(x, y)
        return cache[name, k, kind]

    return get


def run_onnx(cal, x: np.ndarray, **kwargs) -> np.ndarray:
    model = to_onnx(cal, width=str(x.dtype), **kwargs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"scores": x})[0]


def run_torch(cal, x: np.ndarray) -> np.ndarray:
    # a gradient is asked for: without it the module calls the kernels of predict_proba
    return CalibrationHead(cal)(torch.from_numpy(x).requires_grad_()).detach().numpy()


def run_device(cal, x: np.ndarray) -> np.ndarray:
    """What a tensor on an accelerator gets, here on the CPU."""
    found = predict_tensor(cal, torch.from_numpy(x))
    assert (found is None) == (cal.input != "logits")  # other kinds go through the host
    return cal.predict_proba(x) if found is None else found.numpy()


RUNTIMES = {"torch": run_torch, "onnx": run_onnx, "device": run_device}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("name", PORTABLE)
def test_runtimes_agree_and_keep_the_argmax(name, k, dtype, runtime, fitted) -> None:
    cal = fitted(name, k)
    x = hostile(k, dtype)
    expected = cal.predict_proba(x)
    got = RUNTIMES[runtime](cal, x)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, expected, atol=1e-6 if dtype == "float32" else 1e-12, rtol=0)
    if cal.preserves is not None:
        np.testing.assert_array_equal(got.argmax(axis=1), x.argmax(axis=1))


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
@pytest.mark.parametrize("kind", ["probs", "log_probs"])
@pytest.mark.parametrize("name", PORTABLE)
def test_probabilities_as_input(name, kind, runtime, fitted) -> None:
    cal = fitted(name, 4, kind)
    probs = hcal.softmax(hostile(4, "float64") / 3).astype(np.float32)
    with np.errstate(divide="ignore"):
        x = probs if kind == "probs" else np.log(probs)
    got = RUNTIMES[runtime](cal, x)
    # 2e-6: numpy takes the logarithm in float32, the graphs in float64
    np.testing.assert_allclose(got, cal.predict_proba(x), atol=2e-6, rtol=0)
    if cal.preserves is not None:
        np.testing.assert_array_equal(got.argmax(axis=1), x.argmax(axis=1))


@pytest.mark.parametrize("name", PORTABLE)
def test_the_reference_runtime_is_predict_proba(name, fitted) -> None:
    cal = fitted(name)
    x = hostile(4, "float64")
    got = program(cal, NumpyOps(), x, eps=2.0**-52, smallest=5e-324)
    np.testing.assert_allclose(got, cal.predict_proba(x), atol=1e-10, rtol=0)


def test_a_map_through_many_knots() -> None:
    """The binary search that ONNX lacks, against numpy's, at and between the knots and beyond the ends."""
    rng = np.random.default_rng(0)
    for n_knots in (2, 3, 4, 5, 8, 9, 501):
        knots = np.sort(rng.normal(size=n_knots) * 10)
        values = np.cumsum(rng.random(n_knots))
        x = np.concatenate([knots, knots[:-1] + np.diff(knots) / 3, [-1e4, 1e4]])
        got = run_graph(lambda ops, v, t=knots, u=values: ops.piecewise(v, t, u), x)
        np.testing.assert_allclose(got, NumpyOps().piecewise(x, knots, values), rtol=1e-12)


def run_graph(build, x: np.ndarray) -> np.ndarray:
    """Run an expression of one float64 input through onnxruntime, optimised as by default."""
    from hcal.integrations.onnx import OnnxOps, Value, helper, onnx

    ops = OnnxOps("float64")
    out = build(ops, Value(ops, "x"))
    kind = onnx.TensorProto.DOUBLE
    ends = [helper.make_tensor_value_info(name, kind, ["N"]) for name in ("x", out.name)]
    graph = helper.make_graph(ops.nodes, "g", ends[:1], ends[1:], ops.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("tiny", [1e-8, 1e-9, 2.0**-50])
def test_onnxruntime_keeps_factors_near_one(tiny) -> None:
    """Between inner nodes (hence the exp) its optimiser takes y · (1 − 1e-8) for y."""
    x = np.array([0.0, 1.0, 3.0])
    y = np.exp(x)
    for got, expected in (
        (run_graph(lambda ops, v: ops.exp(v) * (1 - tiny) - ops.exp(v), x), y * (1 - tiny) - y),
        (run_graph(lambda ops, v: ops.exp(v) / (1 + tiny) - ops.exp(v), x), y / (1 + tiny) - y),
    ):
        assert (got < 0).all()
        np.testing.assert_allclose(got, expected, atol=1e-14)


def test_onnxruntime_keeps_the_guard_of_a_logarithm() -> None:
    """It takes y + 1e-300 for y: the number is 0 in float32."""
    x = np.array([0.0, 1.0])
    got = run_graph(lambda ops, v: ops.log(ops.exp(v) * 0.0 + 1e-300), x)
    np.testing.assert_allclose(got, np.log(1e-300), rtol=1e-12)


def test_methods_without_a_graph_are_refused_by_onnx_and_named() -> None:
    cal = hcal.make_calibrator("hb").fit(*synthetic())
    assert not is_portable(cal)
    with pytest.raises(ValueError, match=r"'hb' cannot run outside numpy; methods that can: .*ts"):
        to_onnx(cal)


def test_an_unfitted_calibrator_is_refused() -> None:
    with pytest.raises(ValueError, match="not fitted"):
        to_onnx(hcal.make_calibrator("ts"))


@pytest.mark.parametrize("name", [n for n in PORTABLE if n != "h"])
def test_a_class_absent_from_calibration(name) -> None:
    z, y = synthetic(240, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        cal = hcal.make_calibrator(name).fit(z[y != 3], y[y != 3])
    x = hostile(5, "float32")
    for run in RUNTIMES.values():
        np.testing.assert_allclose(run(cal, x), cal.predict_proba(x), atol=1e-6, rtol=0)


def test_the_maps_of_the_paper_as_graphs() -> None:
    from hcal.maps.predict import graph_map, predict_map

    rng = np.random.default_rng(0)
    x = hostile(4, "float64")
    states = [
        {"table": np.concatenate([[0], np.cumsum(rng.random(n))]), "step": np.array(100 / n)}
        for n in (1, 10, 500)
    ]
    states.append({"slopes": rng.random(16) * 3, "shares": rng.dirichlet(np.ones(16))})
    for state in states:
        np.testing.assert_allclose(graph_map(state, NumpyOps(), x), predict_map(state, x), atol=1e-12, rtol=0)
