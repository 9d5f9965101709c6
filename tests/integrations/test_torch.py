"""CalibratedModule and collect_logits: every way that torch runs a module, dtypes, files, dense outputs."""

from __future__ import annotations

import numpy as np
import pytest

import hcal
from helpers import synthetic

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from hcal.integrations import dense  # noqa: E402
from hcal.integrations.torch import (  # noqa: E402
    CalibratedModule,
    CalibrationHead,
    collect_logits,
    predict_on_device,
    scores_of,
)


@pytest.fixture(scope="module")
def ts():
    return hcal.make_calibrator("ts").fit(*synthetic())


@pytest.fixture(scope="module")
def default():
    return hcal.PooledCalibrator(preserve="accuracy").fit(*synthetic(600, 4))


def test_dtype_goes_through_and_the_argmax_stays(ts, default) -> None:
    """Half floats round the top two together: the promise holds in the floats that come out."""
    tolerance = {
        torch.float64: 1e-11,
        torch.float32: 1e-5,
        torch.float16: 1e-3,
        torch.bfloat16: 8e-3,
    }
    for cal in (ts, default):
        for output in ("probs", "log_probs"):
            for dtype, atol in tolerance.items():
                x = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
                x = torch.cat([x, x / 50])  # nearly tied
                out = CalibrationHead(cal, output)(x)
                assert out.dtype == dtype
                wide = out.double().numpy()
                expected = x.double().numpy().argmax(1)
                np.testing.assert_array_equal(wide.argmax(1), expected)
                if output == "probs":
                    expected = cal.predict_proba(x.double().numpy())
                    np.testing.assert_allclose(wide, expected, atol=atol)


def test_a_second_fit_is_what_a_device_predicts_with() -> None:
    """The module of the first fit stays with the calibrator; it must not answer for the second one."""
    logits, y = synthetic(600, 4)
    cal = hcal.make_calibrator("ts").fit(logits, y)
    x = torch.from_numpy(logits)
    first = predict_on_device(cal, x)
    cal.fit(3 * logits, y)
    second = predict_on_device(cal, x)
    assert not torch.allclose(first, second, atol=0.01)
    np.testing.assert_allclose(second.numpy(), cal.predict_proba(logits), atol=1e-9)


def test_a_module_keeps_the_fit_that_it_was_made_of() -> None:
    """What it computes, and what its state dict holds, are the same calibrator."""
    logits, y = synthetic(600, 4)
    cal = hcal.make_calibrator("ts").fit(logits, y)
    head = CalibrationHead(cal)
    x = torch.from_numpy(logits)
    before = head(x)
    cal.fit(3 * logits, y)
    restored = CalibrationHead()
    restored.load_state_dict(head.state_dict())
    assert torch.equal(head(x), before)
    assert torch.equal(restored(x), before)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning", "ignore::FutureWarning"
)
def test_every_way_that_torch_runs_a_module(default) -> None:
    module = CalibratedModule(nn.Linear(3, 4), default).eval()
    x = torch.randn(7, 3)
    other = torch.randn(11, 3)
    with torch.no_grad():
        expected = default.predict_proba(module.model(other).numpy())
    with torch.inference_mode():
        np.testing.assert_allclose(module(other).numpy(), expected, atol=1e-5)
    traced = torch.jit.trace(module, x)
    np.testing.assert_allclose(traced(other).detach().numpy(), expected, atol=1e-5)
    shapes = {"args": ({0: torch.export.Dim("n", min=2)},)}
    exported = torch.export.export(module, (x,), dynamic_shapes=shapes).module()
    np.testing.assert_allclose(exported(other).detach().numpy(), expected, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(module(other)).all()
    leaf = other.clone().requires_grad_()
    module(leaf)[:, 0].sum().backward()
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad.abs().max() > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_whole_and_once(default) -> None:
    """0.2 failed under inference_mode, and took 107 s otherwise."""
    head = CalibrationHead(default).eval()
    z = torch.from_numpy(synthetic(300, 4, seed=2)[0]).float()
    seen = []

    def backend(graph, inputs):
        seen.append(1)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(head, fullgraph=True, dynamic=True, backend=backend)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            for n in (300, 17, 128):  # a view of a longer tensor would be compiled anew
                rows = z[:n]
                expected = default.predict_proba(rows.numpy())
                np.testing.assert_allclose(compiled(rows.clone()).numpy(), expected, atol=1e-5)
    assert len(seen) <= 2  # one graph a grad mode, none for another batch size


def test_an_exported_program_is_saved_and_loaded(default, tmp_path) -> None:
    """A curve without knots was a buffer with strides of 0, which torch.export.save refuses."""
    head = CalibrationHead(default).eval()
    shapes = ({0: torch.export.Dim("n", min=2)},)
    program = torch.export.export(head, (torch.zeros(3, 4),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "head.pt2")
    again = torch.export.load(tmp_path / "head.pt2").module()
    x = torch.randn(7, 4)
    assert torch.equal(again(x), head(x))


def test_half_rounds_the_model_but_not_the_map(ts) -> None:
    module = CalibratedModule(nn.Linear(3, 4), ts).half()
    assert module.model.weight.dtype == torch.float16
    assert {b.dtype for b in module.head.buffers()} == {torch.float32, torch.float64}
    x = torch.randn(10, 4)
    assert torch.equal(module.head(x), CalibrationHead(ts)(x))


def test_a_state_dict_of_other_classes_is_refused() -> None:
    """A module that predicted cat, dog, fox took a calibrator of fox, cat, dog without a word."""
    z, y = synthetic(200, 3)
    one = hcal.make_calibrator("vs").fit(z, y, classes=["cat", "dog", "fox"])
    other = hcal.make_calibrator("vs").fit(z, y, classes=["fox", "cat", "dog"])
    state = CalibrationHead(other).state_dict()
    with pytest.raises(ValueError, match=r"classes fox, cat, dog, and .* has cat, dog, fox"):
        CalibrationHead(one).load_state_dict(state)
    with pytest.raises(ValueError, match=r"classes 0, 1, 2, 3, and .* has cat, dog, fox"):
        CalibrationHead(one).load_state_dict(
            CalibrationHead(hcal.make_calibrator("ts").fit(*synthetic(200, 4))).state_dict()
        )
    empty = CalibrationHead()
    empty.load_state_dict(state)
    assert empty.calibrator.classes_.tolist() == ["fox", "cat", "dog"]


def test_a_state_dict_is_the_calibrator(ts, default, tmp_path) -> None:
    """Also into a module that was made without one."""
    x = torch.randn(64, 3)
    one = CalibratedModule(nn.Linear(3, 4), default)
    torch.save(one.state_dict(), tmp_path / "module.pt")
    state = torch.load(tmp_path / "module.pt", weights_only=True)
    for other in (CalibratedModule(nn.Linear(3, 4), ts), CalibratedModule(nn.Linear(3, 4))):
        assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
        assert torch.equal(one(x), other(x))
    with pytest.raises(ValueError, match="no calibrator yet"):
        CalibratedModule(nn.Linear(3, 4))(x)
    broken = state | {"head._extra_state": torch.zeros(100, dtype=torch.uint8)}
    with pytest.raises(ValueError, match="not a whole hcal model"):
        CalibratedModule(nn.Linear(3, 4), ts).load_state_dict(broken)


def test_two_classes_take_one_score(ts) -> None:
    cal = hcal.make_calibrator("ts").fit(*synthetic(k=2))
    z = torch.linspace(-3, 3, 7)
    expected = cal.predict_proba(z.numpy())
    for shape in ((7,), (7, 1)):
        probs = CalibrationHead(cal)(z.reshape(shape)).numpy()
        np.testing.assert_allclose(probs, expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"shape \(N, 4\)"):
        CalibrationHead(ts)(torch.zeros(3, 5))


def test_a_tensor_on_a_device_is_predicted_there(default, monkeypatch) -> None:
    """The CPU plays the device: nothing comes to the host, NaN stays NaN, blocks do not matter."""
    from hcal.integrations import torch as integration
    from hcal.methods import base

    x = torch.from_numpy(synthetic(200, 4, seed=3)[0]).float()
    expected = default.predict_proba(x)
    monkeypatch.setattr(base, "is_on_accelerator", lambda x: True)
    monkeypatch.setattr(integration, "_BLOCK_SCORES", 100)
    torch.testing.assert_close(default.predict_proba(x), expected, atol=1e-5, rtol=0)
    assert torch.isnan(predict_on_device(default, x * torch.nan)).all()
    with pytest.raises(ValueError, match=r"shape \(N, 4\)"):
        default.predict_proba(x[:, :3])


def test_dense_outputs(ts) -> None:
    logits = torch.randn(2, 4, 5, 6)
    flat = ts.predict_proba(logits.movedim(1, -1).reshape(-1, 4))
    expected = flat.reshape(2, 5, 6, 4).movedim(-1, 1)
    torch.testing.assert_close(CalibrationHead(ts)(logits), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(dense.predict_proba(ts, logits), expected, atol=1e-6, rtol=0)
    masks = torch.randint(0, 4, (2, 5, 6))
    masks[0, 0] = 255
    for y in (masks, masks[:, None]):  # (N, H, W) and (N, 1, H, W)
        rows, labels = dense.rows(logits, y, ignore_index=255)
        assert rows.shape == (54, 4)
        assert labels.shape == (54,)
    assert len(dense.rows(logits, masks, ignore_index=255, pixels=3)[1]) == 6
    with pytest.raises(ValueError, match="need labels of shape"):
        dense.rows(logits, masks[:, :2])


def test_collect_logits(ts) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)).train()
    labels = [0, 1, 2, 3, 0]
    batches = [(torch.randn(5, 3), torch.tensor(labels)) for _ in range(3)]
    logits, _ = collect_logits(net, batches)
    assert logits.shape == (15, 4)
    assert net[1].training  # put back
    first_batch = batches[0][0]
    torch.testing.assert_close(logits[:5], net.eval()(first_batch).detach())
    dicts = [{"input": x, "labels": y} for x, y in batches]
    again, _ = collect_logits(net, dicts)
    torch.testing.assert_close(again, logits)
    with pytest.raises(ValueError, match="loader is empty"):
        collect_logits(net, [])
    assert scores_of({"logits": logits}) is logits
    assert scores_of((logits, None)) is logits
    with pytest.raises(ValueError, match="must return a tensor"):
        scores_of("text")
