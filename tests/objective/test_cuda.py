"""CUDA against the CPU; skipped where there is no GPU (benchmarks/speed_gpu.py checks the same there)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hcal
from hcal.maps import build_map
from hcal.numerics import log_softmax

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def problem(n=2000, k=30):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(log_softmax(rng.normal(0, 3, (n, k)).astype(np.float32)))
    return x, torch.from_numpy(rng.integers(0, k, n))


@pytest.mark.parametrize("digits", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("events", ["pooled", "top-label", "class-wise", [[0, 1], [2]]])
@pytest.mark.parametrize("keywords", [{}, {"norm": 2}, {"weighting": "uniform"}, {"window": 10_000_000}])
def test_loss(dtype, events, keywords, digits):
    """Equal to the CPU's, ties or not: test_engines.py has the table of single families."""
    x, y = problem()
    p = x.exp() if digits is None else x.exp().round(decimals=digits)
    results = []
    for device in ("cpu", "cuda"):
        probs = p.detach().clone().to(device, dtype).requires_grad_()
        loss = hcal.HCalibrationLoss(events=events, **keywords)(probs, y.to(device))
        loss.backward()
        results.append((loss.item(), probs.grad.cpu().double()))
    (value, grad), (device_value, device_grad) = results
    assert device_value == pytest.approx(value, rel=1e-5, abs=1e-3)
    np.testing.assert_allclose(device_grad, grad, rtol=1e-5, atol=1e-6 * float(grad.abs().max()) + 1e-9)


def test_the_order_of_rows_does_not_matter():
    x, y = problem()
    moved = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    grads = []
    for rows in (torch.arange(len(y)), moved):
        probs = x.exp().round(decimals=3)[rows].cuda().requires_grad_()
        hcal.HCalibrationLoss()(probs, y[rows].cuda()).backward()
        grads.append(probs.grad.cpu())
    assert torch.equal(grads[0][moved], grads[1])


@pytest.mark.parametrize("name", ["temperature", "piecewise-100", "monotonic-10", "ensemble-16"])
def test_maps(name):
    x, _ = problem()
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", "cuda"):
        new = build_map(name, x, init="published", random_state=1).to(device)
        probs = new(x.to(device))
        (probs * direction.to(device)).sum().backward()
        results.append((probs.detach().cpu(), [p.grad.cpu() for p in new.parameters()]))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=2e-6)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3 * float(a.abs().max()))


def test_recorded_batches_are_what_single_ones_are():
    """The second batch of a shape is recorded, later ones replay it; each has its own numbers and memory."""
    from hcal.objective.replayed import recordings

    loss, kept = hcal.HCalibrationLoss(check=False), []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        p = torch.softmax(torch.randn(500, 7, generator=generator) * 3, 1)
        y = torch.randint(0, 7, (500,), generator=generator)
        here, there = p.clone().requires_grad_(), p.cuda().requires_grad_()
        (2 * loss(there, y.cuda())).backward()
        (2 * loss(here, y)).backward()
        kept.append((here.grad, there.grad))
    assert any(recording is not None for recording in recordings._found.values())
    for here, there in kept:  # looked at in the end: a later batch must not have written into an earlier one
        np.testing.assert_allclose(there.cpu(), here, rtol=1e-5, atol=1e-6 * float(here.abs().max()))
