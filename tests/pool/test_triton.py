"""The default's prediction in one launch on a GPU equals the formula.

Without a GPU, Triton's interpreter runs the kernel.
"""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

import hcal
from hcal.integrations.torch import CalibratedModule, CalibrationHead, predict_on_device
from hcal.maps.base import LEAST_PROBABILITY
from hcal.pool.map import BinaryPoolMap

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
if not HAS_GPU:
    # Read when Triton is first imported, which nothing else does without a GPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
# A class with −inf is 1e30 below the top; products with that overflow as they do on a GPU, where nothing warns.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")

needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")


def fitted(n_classes: int, preserve: str | None = "accuracy") -> hcal.PooledCalibrator:
    rng = np.random.default_rng(n_classes)
    logits = rng.normal(0, 2, (1500, n_classes))
    y = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return hcal.PooledCalibrator(preserve=preserve).fit(logits, y)


def scores(n_rows: int, n_classes: int) -> torch.Tensor:
    """Return logits of many scales, with ties, rows of equal scores, infinities and missing values."""
    rng = np.random.default_rng(1)
    scale = np.exp(rng.normal(0, 1.5, (n_rows, 1)))
    logits = (rng.normal(0, 1, (n_rows, n_classes)) * scale).astype(np.float32)
    logits[0] = 0.0
    logits[1, :2] = logits[1].max() + 1
    logits[2, 0] = -np.inf
    logits[3, 0] = np.inf
    logits[4, 1] = np.nan
    logits[5] = -np.inf
    logits[6] = np.linspace(0, 0.01, n_classes)
    return torch.from_numpy(logits)


def kernel_of(cal: hcal.PooledCalibrator, least: float = LEAST_PROBABILITY) -> torch.nn.Module:
    keeps_argmax = cal.prediction_.preserves is not None
    kernel = cal.prediction_.map.device_kernel(keeps_argmax=keeps_argmax, least=least)
    return kernel.to(DEVICE)


def by_formula(cal: hcal.PooledCalibrator, x: torch.Tensor) -> torch.Tensor:
    """Return what the formula gives in float64."""
    head = CalibrationHead(cal)
    return head(x.double()).float()


@pytest.mark.parametrize("preserve", ["accuracy", None, "order"])
@pytest.mark.parametrize("n_classes", [2, 3, 10, 32, 40])
def test_the_kernel_computes_the_formula(n_classes: int, preserve: str | None) -> None:
    cal = fitted(n_classes, preserve)
    x = scores(77, n_classes)
    expected = by_formula(cal, x)
    probs = kernel_of(cal)(x.to(DEVICE)).cpu()
    torch.testing.assert_close(probs, expected, rtol=2e-4, atol=1e-5, equal_nan=True)
    assert torch.isnan(probs[3:6]).all()
    assert not torch.isnan(probs[6:]).any()
    if preserve is not None:
        valid = ~torch.isnan(probs).any(dim=1)
        tops = x[valid].argmax(1)
        torch.testing.assert_close(probs[valid].argmax(1), tops, rtol=0, atol=0)


def test_the_kernel_states_no_less_than_the_least_probability() -> None:
    cal = fitted(5)
    x = scores(40, 5)
    probs = kernel_of(cal, least=0.01)(x.to(DEVICE)).cpu()
    expected = by_formula(cal, x).clamp_min(0.01)
    assert torch.isnan(expected).any()
    assert (expected == 0.01).any()
    torch.testing.assert_close(probs, expected, rtol=2e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("n_rows", [0, 1, 33, 300])
def test_any_number_of_rows(n_rows: int, n_classes: int) -> None:
    cal = fitted(n_classes)
    x = scores(300, n_classes)[:n_rows]
    probs = kernel_of(cal)(x.to(DEVICE)).cpu()
    torch.testing.assert_close(probs, by_formula(cal, x), rtol=2e-4, atol=1e-5, equal_nan=True)


def test_a_kept_module_is_no_part_of_the_state() -> None:
    """A calibrator that has predicted on a device is pickled without its module, and a new fit has a new one."""
    cal = fitted(4)
    x = scores(20, 4)[7:]
    first = predict_on_device(cal, x)
    head = cal.device_head
    predict_on_device(cal, x)
    assert cal.device_head is head
    assert pickle.loads(pickle.dumps(cal)).device_head is None
    shifted = cal.with_prior([0.4, 0.3, 0.2, 0.1])
    assert not torch.equal(predict_on_device(shifted, x), first)


def test_a_table_of_one_point_is_a_constant() -> None:
    constant = BinaryPoolMap(knots=np.array([1.0]), values=np.array([0.5]))
    kernel = constant.device_kernel(keeps_argmax=False, least=0.0).to(DEVICE)
    x = torch.tensor([[0.0, 3.0], [2.0, -4.0]], device=DEVICE)
    expected = torch.sigmoid(torch.tensor([[-0.5, 0.5]] * 2))
    torch.testing.assert_close(kernel(x).cpu(), expected)


@needs_gpu
@pytest.mark.parametrize("n_classes", [2, 10])
def test_other_shapes_reach_the_kernel(n_classes: int) -> None:
    """Images have their classes on axis 1; a binary score may have one column or none."""
    cal = fitted(n_classes)
    head = CalibrationHead(cal).cuda()
    x = scores(70, n_classes)[7:]
    images = x.reshape(3, 21, n_classes).movedim(-1, 1)
    expected = by_formula(cal, x).reshape(3, 21, n_classes).movedim(-1, 1)
    torch.testing.assert_close(head(images.cuda()).cpu(), expected, rtol=2e-4, atol=1e-5)
    if n_classes == 2:
        column = (x[:, 1:] - x[:, :1]).cuda()
        expected = by_formula(cal, x)
        torch.testing.assert_close(head(column).cpu(), expected, rtol=2e-4, atol=1e-5)
        torch.testing.assert_close(head(column[:, 0]).cpu(), expected, rtol=2e-4, atol=1e-5)


@needs_gpu
@pytest.mark.parametrize("n_classes", [2, 10])
def test_users_reach_the_kernel(n_classes: int) -> None:
    cal = fitted(n_classes)
    x = scores(500, n_classes)[7:].cuda()
    expected = by_formula(cal, x.cpu())
    module = CalibratedModule(torch.nn.Identity(), cal).cuda()
    with torch.inference_mode():
        inferred = module(x)
    torch.testing.assert_close(inferred.cpu(), expected, rtol=2e-4, atol=1e-5)
    torch.testing.assert_close(cal.predict_proba(x), inferred, rtol=1e-5, atol=1e-6)

    differentiable = x.clone().requires_grad_()
    module(differentiable).square().sum().backward()
    assert differentiable.grad is not None

    graph = torch.cuda.CUDAGraph()
    static = x.clone()
    module(static)
    with torch.cuda.graph(graph):
        captured = module(static)
    static.copy_(x.flip(0))
    graph.replay()
    torch.testing.assert_close(captured, inferred.flip(0), rtol=1e-5, atol=1e-6)


@needs_gpu
def test_a_capture_of_scores_that_look_like_probabilities() -> None:
    """The check of the kind reads values, which a capture does not allow."""
    cal = fitted(4)
    module = CalibratedModule(torch.nn.Identity(), cal).cuda()
    static = torch.full((3, 4), 0.25, device="cuda")
    expected = module.head.kernel[0](static)  # Triton compiles before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = module(static)
    graph.replay()
    torch.testing.assert_close(captured, expected)


@needs_gpu
@pytest.mark.parametrize("n_classes", [2, 10])
def test_transforms_of_functions_use_the_formula(n_classes: int) -> None:
    head = CalibrationHead(fitted(n_classes)).cuda()
    x = scores(63, n_classes)[7:].cuda()
    batches = x.reshape(4, 14, n_classes)
    mapped = torch.vmap(head)(batches).reshape(x.shape)
    torch.testing.assert_close(mapped, head(x), rtol=2e-4, atol=1e-5)

    def total(scores: torch.Tensor) -> torch.Tensor:
        return head(scores).square().sum()

    differentiable = x.clone().requires_grad_()
    total(differentiable).backward()
    torch.testing.assert_close(torch.func.grad(total)(x), differentiable.grad)
