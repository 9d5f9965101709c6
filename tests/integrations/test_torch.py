"""CalibratedModule and collect_logits: dtypes, devices, export, dense outputs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import hcal
from hcal import inputs
from hcal.calibrators import on_device
from hcal.calibrators.on_device import predict_tensor
from hcal.integrations import dense
from hcal.integrations.torch import CalibratedModule, CalibrationHead, collect_logits, scores_of
from helpers import synthetic

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def ts():
    return hcal.make_calibrator("ts").fit(*synthetic())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_and_device_go_through_and_the_argmax_stays(dtype, device, ts) -> None:
    x = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0)).to(dtype=dtype, device=device)
    out = CalibrationHead(ts).to(device)(x)
    assert out.dtype == dtype
    assert out.device.type == device
    # argmax of numpy: the first of equal values, where torch may return any
    np.testing.assert_array_equal(out.double().cpu().numpy().argmax(1), x.double().cpu().numpy().argmax(1))
    reference = ts.predict_proba(x.double().cpu().numpy())
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    np.testing.assert_allclose(out.double().cpu().numpy(), reference, atol=tolerance)


@pytest.fixture(scope="module")
def default():
    return hcal.HCalibrator().fit(*synthetic(600, 4))


#: How a module is run -> whether the kernels of predict_proba do the work.
RUNS = {
    "plain": (lambda head, x: head(x), True),
    "no gradient": (torch.no_grad()(lambda head, x: head(x)), True),
    "gradient": (lambda head, x: head(x.clone().requires_grad_()).detach(), False),
    "batched": (lambda head, x: torch.func.vmap(lambda row: head(row[None])[0])(x), False),
    "recorded": (lambda head, x: make_fx(head)(x)(x), False),
    "one NaN": (lambda head, x: head(torch.cat([x, x[:1] * torch.nan]))[:-1], False),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_module_runs_the_kernels_where_only_numbers_are_asked_for(name, default, monkeypatch) -> None:
    run, by_kernels = RUNS[name]
    head, called = CalibrationHead(default), []
    inner = head._by_kernels
    monkeypatch.setattr(head, "_by_kernels", lambda rows: called.append(1) or inner(rows))
    x = torch.from_numpy(synthetic(500, 4, seed=3)[0]).float()
    got = run(head, x)
    assert bool(called) == by_kernels
    expected = default.predict_proba(x)
    assert torch.equal(got, expected) if by_kernels else torch.allclose(got, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["probs", "log_probs"])
def test_the_module_runs_the_kernels_on_probabilities_too(kind, monkeypatch) -> None:
    z, y = synthetic(600, 4)
    scores = hcal.softmax(z) if kind == "probs" else np.log(hcal.softmax(z))
    cal = hcal.HCalibrator(input=kind).fit(scores, y)
    head, called, x = CalibrationHead(cal), [], torch.from_numpy(scores).float()
    inner = head._by_kernels
    monkeypatch.setattr(head, "_by_kernels", lambda logits: called.append(1) or inner(logits))
    assert torch.equal(head(x), cal.predict_proba(x))
    assert called
    graph = head(x.clone().requires_grad_()).detach()
    torch.testing.assert_close(head(x), graph, atol=1e-6, rtol=0)
    called.clear()
    # predict_proba refuses these; a module inside a model computes
    assert torch.isfinite(head(x * 2)).all()
    assert not called


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_is_the_graph(default) -> None:
    module = CalibratedModule(nn.Linear(3, 4), default).eval()
    traced = torch.jit.trace(module, torch.randn(7, 3))
    fresh = torch.randn(11, 3)
    torch.testing.assert_close(traced(fresh), module(fresh), atol=1e-6, rtol=0)


@pytest.fixture(scope="module", params=[4, 10, 100])
def of_classes(request):
    return hcal.HCalibrator().fit(*synthetic(600, request.param))


@pytest.mark.parametrize("output", ["probs", "log_probs"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("graph", [False, True])
def test_halves_keep_every_argmax_of_the_default(dtype, output, graph, of_classes) -> None:
    k = of_classes.n_classes_
    x = (torch.randn(5000, k, generator=torch.Generator().manual_seed(1)) / 50).to(dtype)  # nearly tied
    out = CalibrationHead(of_classes, output)(x.clone().requires_grad_(graph)).detach()
    np.testing.assert_array_equal(out.double().numpy().argmax(1), x.double().numpy().argmax(1))
    if not graph and output == "probs":
        there = predict_tensor(of_classes, x)
        assert there is not None
        np.testing.assert_array_equal(there.double().numpy().argmax(1), x.double().numpy().argmax(1))


def test_a_tensor_of_an_accelerator_stays_there(default, monkeypatch) -> None:
    answer = torch.ones(2, 4, device="meta")  # which plays the accelerator here
    monkeypatch.setattr(on_device, "_AT_HOME", ("cpu",))
    monkeypatch.setattr(on_device, "predict_tensor", lambda calibrator, scores: answer)
    assert default.predict_proba(torch.zeros(2, 4, device="meta")) is answer
    assert default.predict_proba(torch.zeros(2, 4)) is not answer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_labels_of_an_accelerator_are_found_there(dtype, default, monkeypatch) -> None:
    x = 3 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = default.predict(x)
    monkeypatch.setattr(on_device, "_AT_HOME", ())  # now the CPU plays the accelerator

    def refuse(*_, **__):
        raise AssertionError("the scores came to the host")

    monkeypatch.setattr(inputs, "to_numpy", refuse)
    found = default.predict(x)
    assert found.dtype == np.int64
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, 1e20, None])
def test_what_the_door_speaks_of_goes_through_the_host(odd, default) -> None:
    x = torch.full((3, 4), 0.25) if odd is None else torch.tensor([[odd, 0.0, 1.0, 2.0]])
    assert predict_tensor(default, x) is None
    assert predict_tensor(default, x[:, :3]) is None
    assert predict_tensor(default, torch.ones(3, 4, dtype=torch.int64) * 2) is None


def test_half_rounds_the_model_but_not_the_map(ts) -> None:
    module = CalibratedModule(nn.Linear(3, 4), ts).half()
    assert module.model.weight.dtype == torch.float16
    assert {b.dtype for b in module.head.buffers()} == {torch.float64}
    x = torch.randn(10, 4)
    assert torch.equal(module.head(x), CalibrationHead(ts)(x))


def test_constants_are_part_of_the_state(ts) -> None:
    other = hcal.make_calibrator("ts").fit(*synthetic(scale=5))
    a, b = CalibrationHead(ts), CalibrationHead(other)
    x = torch.randn(5, 4)
    assert not torch.allclose(a(x), b(x))
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(x), b(x))


STATEFUL = {
    "h": {},
    "ts": {},
    "ets": {},
    "vs": {},
    "hb": {"bins": 7},  # goes through numpy: nothing of it is in a buffer
    "h paper": {},
}


def _two_fits(name: str) -> list[hcal.calibrators.Calibrator]:
    fits = []
    for scale, seed in ((1.0, 0), (4.0, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hcal.CalibrationWarning)
            params = {"protocol": "paper", "batch_size": 200} if name == "h paper" else STATEFUL[name]
            cal = hcal.make_calibrator(name.split()[0], **params)
            fits.append(cal.fit(*synthetic(400, 4, scale=scale, seed=seed)))
    return fits


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "h paper" else ()) for n in STATEFUL]
)
@pytest.mark.parametrize("as_file", [False, True])
def test_the_state_of_another_fit_is_that_fit(name, as_file, tmp_path) -> None:
    """Only arrays were in the state; numbers and branches stayed those of the module: off by 0.33."""
    one, two = (CalibratedModule(nn.Linear(3, 4), cal) for cal in _two_fits(name))
    x, z = torch.randn(64, 3), torch.randn(64, 4) * 3
    assert not torch.allclose(one.head(z), two.head(z), atol=1e-3)
    state = one.state_dict()
    if as_file:
        torch.save(state, tmp_path / "module.pt")
        state = torch.load(tmp_path / "module.pt", weights_only=True)
    assert str(two.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(one(x), two(x))
    assert torch.equal(one.head(z), two.head(z))
    assert two.head.calibrator.get_params() == one.head.calibrator.get_params()


def test_the_state_of_another_method_is_that_method(ts) -> None:
    """Also where the constants have other shapes, and other numbers of classes."""
    other = hcal.make_calibrator("vs").fit(*synthetic(400, 7))
    one, two = CalibrationHead(other), CalibrationHead(ts)
    two.load_state_dict(one.state_dict())
    x = torch.randn(9, 7)
    assert torch.equal(one(x), two(x))


def test_constants_without_their_structure_are_refused(ts) -> None:
    module = CalibratedModule(nn.Linear(3, 4), ts)
    state = module.state_dict()
    del state["head._extra_state"]
    for strict in (True, False):
        with pytest.raises(RuntimeError, match="not its structure"):
            module.load_state_dict(state, strict=strict)
    damaged = module.state_dict()
    damaged["head._extra_state"] = damaged["head._extra_state"][:-9]
    with pytest.raises(RuntimeError, match="not a whole hcal model"):
        module.load_state_dict(damaged)
    backbone = {k: v for k, v in module.state_dict().items() if k.startswith("model.")}
    assert module.load_state_dict(backbone, strict=False).missing_keys  # the model alone may be loaded


def test_log_probs_stand_in_for_logits(ts) -> None:
    x = torch.randn(20, 4, dtype=torch.float64)
    head = CalibrationHead(ts, output="log_probs")
    torch.testing.assert_close(head(x).softmax(dim=1), CalibrationHead(ts)(x))
    with pytest.raises(ValueError, match="output must be"):
        CalibrationHead(ts, output="logits")


def test_gradients_flow_to_the_model(ts) -> None:
    module = CalibratedModule(nn.Linear(3, 4), ts)
    torch.nn.functional.nll_loss(module(torch.randn(8, 3)).log(), torch.zeros(8, dtype=torch.long)).backward()
    assert module.model.weight.grad.abs().sum() > 0


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6),
    reason="torch.export of plain Python needs 2.6",
)
def test_torch_export_gives_the_same(ts) -> None:
    module = CalibratedModule(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)), ts).eval()
    x = torch.randn(7, 3)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(module, (x,), dynamic_shapes={"input": (batch, None)})
    fresh = torch.randn(11, 3)
    torch.testing.assert_close(exported.module()(fresh), module(fresh))


def test_methods_without_a_graph_go_through_numpy() -> None:
    z, y = synthetic()
    cal = hcal.make_calibrator("hb").fit(z, y)
    head = CalibrationHead(cal)
    assert not head.in_torch
    np.testing.assert_allclose(head(torch.from_numpy(z)).numpy(), cal.predict_proba(z))
    assert head(torch.zeros(2, 4, 3, 3)).shape == (2, 4, 3, 3)


def test_binary_scores_in_one_column() -> None:
    rng = np.random.default_rng(0)
    s = rng.normal(size=200) * 3
    cal = hcal.make_calibrator("ts").fit(s, (rng.random(200) < 1 / (1 + np.exp(-s / 2))).astype(int))
    head = CalibrationHead(cal)
    for x in (torch.from_numpy(s), torch.from_numpy(s)[:, None]):
        np.testing.assert_allclose(head(x).numpy(), cal.predict_proba(s))


def test_dense_outputs_agree_with_rows(ts) -> None:
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    out = CalibrationHead(ts)(x)
    assert out.shape == x.shape
    rows = x.movedim(1, -1).reshape(-1, 4)
    torch.testing.assert_close(out.movedim(1, -1).reshape(-1, 4), ts.predict_proba(rows))
    torch.testing.assert_close(dense.predict_proba(ts, x), out)
    np.testing.assert_allclose(dense.predict_proba(ts, x.numpy()), out.numpy())


@pytest.mark.parametrize("as_torch", [False, True])
def test_dense_fit_leaves_out_ignored_pixels(as_torch) -> None:
    z, y = synthetic(600, 3)
    image, labels = z.reshape(2, 15, 20, 3).transpose(0, 3, 1, 2), y.reshape(2, 15, 20).copy()
    hidden = np.random.default_rng(0).random(labels.shape) < 0.3
    labels[hidden] = 255
    a, b = (torch.from_numpy(image.copy()), torch.from_numpy(labels)) if as_torch else (image, labels)
    got = dense.fit(hcal.make_calibrator("ts"), a, b, ignore_index=255)
    expected = hcal.make_calibrator("ts").fit(z[~hidden.ravel()], y[~hidden.ravel()])
    assert got.info_["temperature"] == pytest.approx(expected.info_["temperature"], rel=1e-9)
    few, few_y = dense.rows(a, b, ignore_index=255, pixels=50)
    assert few.shape == (100, 3)
    assert int(few_y.max()) < 3
    with pytest.raises(ValueError, match="every pixel has the label ignore_index=255"):
        dense.fit(hcal.make_calibrator("ts"), image, np.full_like(labels, 255), ignore_index=255)
    with pytest.raises(ValueError, match="need labels of shape"):
        dense.rows(image, labels[:, 0])


class Sampler(nn.Module):
    """Returns a dict like many language models do, and would be random if left in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(3, 2), nn.Dropout(0.5)

    def forward(self, x):
        return {"logits": self.drop(self.linear(x))}


def test_collect_logits_evaluates_and_restores_the_mode() -> None:
    model = Sampler().train()
    model.drop.eval()  # one part frozen by hand stays as it was
    x, y = torch.randn(10, 3), torch.arange(10) % 2
    logits, labels = collect_logits(
        model, torch.utils.data.DataLoader(list(zip(x, y, strict=True)), batch_size=4)
    )
    assert torch.equal(labels, y)
    torch.testing.assert_close(logits, model.linear(x))
    assert model.training
    assert not model.drop.training
    assert not logits.requires_grad
    (logits * nn.Parameter(torch.ones(2))).sum().backward()  # no inference tensors leak out
    with pytest.raises(ValueError, match="loader is empty"):
        collect_logits(model, [])


def test_collect_logits_from_dict_batches_and_dense_labels() -> None:
    logits, y = collect_logits(Sampler(), [{"x": torch.randn(4, 3), "labels": [0, 1, 0, 1]}])
    assert logits.shape == (4, 2)
    assert y.tolist() == [0, 1, 0, 1]
    conv = nn.Conv2d(1, 3, 1)
    labels = torch.zeros(2, 4, 4, dtype=torch.long)
    labels[0, 0] = 255
    flat, kept = collect_logits(conv, [(torch.randn(2, 1, 4, 4), labels)], ignore_index=255)
    assert flat.shape == (28, 3)
    assert (kept == 0).all()
    with pytest.raises(ValueError, match="pair"):
        collect_logits(conv, [torch.zeros(1)])


def test_outputs_that_hold_no_scores_are_refused(ts) -> None:
    with pytest.raises(ValueError, match="must return a tensor"):
        scores_of("text")
    with pytest.raises(ValueError, match=r"shape \(N, 4\)"):
        CalibrationHead(ts)(torch.zeros(3, 5))
