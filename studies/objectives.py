"""Objectives that probabilities are trained by, beside the paper's: for demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor

#: The exponent of the focal loss, and the share of a label that smoothing spreads over all classes.
FOCUS: Final = 3
SMOOTHING: Final = 0.05


def objective_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return an objective of probabilities (N, K) and labels (N,): "nll", "focal", "smoothing" or "h"."""
    from hcal.h_calibration.loss import HCalibrationLoss
    from hcal.h_calibration.training import torch_nll

    objectives: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "nll": torch_nll,
        "focal": focal,
        "smoothing": smoothed_nll,
        "h": HCalibrationLoss(),
    }
    return objectives[name]


def focal(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean focal loss −(1 − p_y)³ log p_y (Lin et al., ICCV 2017); not proper."""
    of_label = _floored(probs).gather(1, y[:, None])[:, 0]
    return -((1 - of_label).clamp_min(0) ** FOCUS * of_label.log()).mean()


def smoothed_nll(probs: Tensor, y: Tensor) -> Tensor:
    """Return the NLL of labels smoothed by 0.05; not proper for the labels themselves."""
    log_probs = _floored(probs).log()
    of_label = log_probs.gather(1, y[:, None])[:, 0]
    return -((1 - SMOOTHING) * of_label + SMOOTHING * log_probs.mean(dim=1)).mean()


def _floored(probs: Tensor) -> Tensor:
    import torch

    return probs.clamp_min(torch.finfo(probs.dtype).tiny)
