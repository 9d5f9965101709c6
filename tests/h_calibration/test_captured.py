"""Training that replays CUDA graphs: the numbers of the eager loop, and what is not captured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hcal.h_calibration.captured import CapturedLoop, can_be_captured
from hcal.h_calibration.loss import HCalibrationLoss
from hcal.h_calibration.trainable_maps import build_trainable
from hcal.h_calibration.training import (
    MONITOR,
    SELECTORS,
    AdamSettings,
    Loop,
    epoch_cwece_a,
    epoch_ece_ew,
    torch_nll,
    train,
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SCORES = {MONITOR: epoch_ece_ew, **SELECTORS}


def problem(n_rows: int, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (n_rows, n_classes))
    y = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return torch.log_softmax(torch.tensor(logits, dtype=torch.float32), 1), torch.tensor(y)


def objective(name: str) -> torch.nn.Module:
    return HCalibrationLoss(check=False) if name == "h" else torch_nll


@needs_gpu
@pytest.mark.parametrize("loss", ["h", "nll"])
@pytest.mark.parametrize("name", ["piecewise-100", "monotonic-10", "ensemble-16"])
def test_replayed_epochs_are_those_of_the_eager_loop(name: str, loss: str) -> None:
    x, y = (tensor.cuda() for tensor in problem(2000, 10))
    settings = AdamSettings(plateau=5)
    values = []
    for loop_type in (Loop, CapturedLoop):
        module = build_trainable(name, x).cuda()
        loop = loop_type(module, x, y, objective(loss), SCORES, settings)
        epochs = []
        for _ in range(40):
            epoch = loop.step()
            loop.schedule.step(epoch[MONITOR])
            epochs.append(list(epoch.values()))
        values.append(np.array(epochs))
    # Sums on a GPU have no fixed order, and the h loss turns rounding into other windows.
    np.testing.assert_allclose(values[1], values[0], rtol=0.03, atol=2e-4)


@needs_gpu
def test_the_schedule_reaches_the_graph_and_the_best_epoch_is_kept() -> None:
    x, y = (tensor.cuda() for tensor in problem(2000, 10))
    module = build_trainable("piecewise-10", x).cuda()
    loop = CapturedLoop(module, x, y, torch_nll, SCORES, AdamSettings(learning_rate=0.1, plateau=1))
    for _ in range(4):
        loop.step()
        loop.schedule.step(1.0)
    assert float(loop.optimiser.param_groups[0]["lr"]) < 0.1
    frozen = [parameter.detach().clone() for parameter in module.parameters()]
    loop.optimiser.param_groups[0]["lr"].fill_(0.0)
    loop.step()
    for parameter, before in zip(module.parameters(), frozen, strict=True):
        torch.testing.assert_close(parameter.detach(), before, rtol=0, atol=0)

    settings = AdamSettings(epochs=60)
    module = build_trainable("piecewise-10", x).cuda()
    trained = train(
        module, x, y, torch_nll, select={"score": SELECTORS["score"]}, settings=settings
    )
    best = trained.best["score"]
    assert best.score == min(trained.history["score"])
    loss = float(torch_nll(module(x), y).detach())
    assert loss == pytest.approx(best.score, rel=1e-6)


def test_what_hcal_does_not_know_is_not_captured() -> None:
    x, _ = problem(20, 3)
    module = build_trainable("piecewise-10", x)
    assert not can_be_captured(module, x, torch_nll, SCORES)  # on the CPU
    assert HCalibrationLoss(check=False).capturable
    assert not HCalibrationLoss().capturable
    assert not HCalibrationLoss(check=False, events=[{0, 1}]).capturable


def test_a_loop_is_captured_if_all_of_it_is_known_to_hcal() -> None:
    x, _ = problem(20, 3)
    module = build_trainable("piecewise-10", x)
    on_gpu: Any = SimpleNamespace(is_cuda=True)
    known = HCalibrationLoss(check=False)

    def foreign(probs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch_nll(probs, y)

    for name in ("piecewise-10", "monotonic-5", "ensemble-4"):
        assert can_be_captured(build_trainable(name, x), on_gpu, torch_nll, SCORES)
    assert can_be_captured(module, on_gpu, known, SCORES)
    assert not can_be_captured(torch.nn.Identity(), on_gpu, known, SCORES)
    assert not can_be_captured(module, on_gpu, foreign, SCORES)
    assert not can_be_captured(module, on_gpu, HCalibrationLoss(), SCORES)
    assert not can_be_captured(module, on_gpu, known, SCORES | {"foreign": foreign})


@needs_gpu
def test_the_class_wise_error_is_that_of_the_cpu() -> None:
    """On a GPU only the 14 largest entries of a row are looked at; no others can exceed 1/15."""
    x, y = problem(300, 40)
    probs = torch.softmax(x, dim=1)
    on_gpu = epoch_cwece_a(probs.cuda(), y.cuda()).item()
    assert on_gpu == pytest.approx(epoch_cwece_a(probs, y).item(), rel=1e-9)
