"""Wrong labels and probabilities are refused by every engine, with the same words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hcal
from hcal.objective.checks import check_tensors
from hcal.objective.kernels import loss_and_grad
from hcal.objective.published import PublishedLoss
from hcal.runtime.jit import compiled

#: The meta device holds no numbers; a GPU is tested where there is one.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ENGINES = [pytest.param(True, marks=pytest.mark.skipif(not compiled(), reason="needs numba")), False]
NAN = float("nan")

CASES = {
    "a label to ignore": ([[0.5, 0.5]] * 2, [0, -100], "y must lie in 0..1; its labels range from -100 to 0"),
    "a label too large": ([[0.5, 0.5]] * 2, [7, 1], "y must lie in 0..1; its labels range from 1 to 7"),
    "NaN": ([[0.5, 0.5], [NAN, NAN]], [0, 1], r"probs must lie in \[0, 1\]; they range from nan to nan"),
    "logits": ([[0.5, 0.5], [-2.0, 3.0]], [0, 1], r"probs must lie in \[0, 1\]; they range from -2 to 3"),
    "infinite": ([[0.5, 0.5], [float("inf"), 0.0]], [0, 1], "range from 0 to inf"),
    "fractional labels": ([[0.5, 0.5]] * 2, [0.0, 1.5], "y must hold integers"),
    "nothing": (np.zeros((0, 2)), np.zeros(0, dtype=np.int64), "empty"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_by_every_engine(case, dtype, device, engine, monkeypatch) -> None:
    monkeypatch.setattr("hcal.objective.engines.compiled", lambda: engine)
    probs, y, message = CASES[case]
    tensors = torch.tensor(np.asarray(probs), dtype=dtype, device=device), torch.tensor(y, device=device)
    for loss in (hcal.HCalibrationLoss(window=2), PublishedLoss(window=2)):
        with pytest.raises(ValueError, match=message):
            loss(*tensors)


@pytest.mark.parametrize("events", ["pooled", "top-label", "class-wise", [[0, 1]]])
def test_without_numba_too(events, monkeypatch) -> None:
    monkeypatch.setattr("hcal.objective.engines.compiled", lambda: False)
    with pytest.raises(ValueError, match="labels range from -1 to 0"):
        loss_and_grad(np.full((2, 3), 1 / 3), np.array([0, -1]), events=events)


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("nothing", "fractional labels")])
def test_on_a_device_one_answer_is_read_back(case, monkeypatch) -> None:
    """The branch of a GPU, on tensors that only say that they are elsewhere: one transfer of four numbers."""

    class Elsewhere(torch.Tensor):
        device = torch.device("xpu")
        __torch_function__ = torch._C._disabled_torch_function_impl

    read = []
    plain = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda t: read.append(t.numel()) or plain(t))
    for other in ("item", "__bool__", "__int__", "__float__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, other, lambda t, other=other: pytest.fail(f"waits in {other}"))
    probs, y, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        check_tensors(torch.tensor(probs).as_subclass(Elsewhere), torch.tensor(y).as_subclass(Elsewhere))
    assert read == [4]


def test_check_false_keeps_the_cpu_safe() -> None:
    """Compiled kernels look up tables by the bits of a probability: there is no unchecked way into them."""
    with pytest.raises(ValueError, match=r"they range from 0.5 to 3e\+09"):
        hcal.HCalibrationLoss(check=False)(torch.tensor([[0.5, 3e9]]), torch.tensor([0]))
