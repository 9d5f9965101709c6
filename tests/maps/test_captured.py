"""Recorded epochs (CUDA graphs) train as epochs step by step do, and nothing is recorded without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hcal.maps import build_map
from hcal.objective.loss import HCalibrationLoss
from hcal.solvers import monitors
from hcal.solvers.adam import AdamSettings, train
from hcal.solvers.captured import MAX_EVENTS, can_capture

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def problem(n: int = 800, k: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    z = rng.normal(0, 2, (n, k)).astype(np.float32)
    z[np.arange(n), y] += 4
    return torch.log_softmax(torch.from_numpy(z), 1), torch.from_numpy(y)


class Plain(torch.nn.Module):
    """The objective without the word that it can be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = HCalibrationLoss(window=50)

    def forward(self, probs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.inner(probs, y)


def test_only_what_can_be_recorded_is() -> None:
    x, _ = problem()
    assert not can_capture(x, HCalibrationLoss())  # on the CPU
    assert not HCalibrationLoss(events="top-label").capturable  # makes tensors on the host
    assert not hasattr(Plain(), "capturable")
    assert MAX_EVENTS >= 5000 * 100


@needs_cuda
@pytest.mark.parametrize("name", ["piecewise-100", "monotonic-10", "ensemble-16"])
def test_recorded_epochs_train_alike(name: str) -> None:
    x, y = (t.cuda() for t in problem())
    runs = []
    for objective in (HCalibrationLoss(window=50), Plain()):
        new = build_map(name, x, init="published", random_state=3).cuda()
        settings = AdamSettings(epochs=60, plateau=5)  # the learning rate falls on the way
        runs.append(
            train(
                new,
                x,
                y,
                objective,
                monitor=monitors.epoch_ece_ew,
                select=monitors.SELECTORS,
                settings=settings,
            )
        )
    # atomics add in any order: a last digit may differ, and sixty steps carry it on
    np.testing.assert_allclose(runs[0].losses, runs[1].losses, rtol=2e-3)
    for select, best in runs[0].best.items():
        assert best.score == pytest.approx(runs[1].best[select].score, rel=0.05, abs=1e-4)


@needs_cuda
def test_scores_on_the_gpu_are_those_of_the_cpu() -> None:
    x, y = problem()
    probs = x.exp()
    for score in (monitors.epoch_ece_ew, *monitors.SELECTORS.values()):
        assert score(probs.cuda(), y.cuda()).item() == pytest.approx(score(probs, y).item(), rel=1e-9)
