"""The rivals of the central experiment, and the scores it is judged by: torch alone, on any device.

Nothing here needs scipy, scikit-learn or numba, so that the experiment runs on a bare GPU machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from hcal.objective.loss import HCalibrationLoss
from hcal.objective.torch_loss import TorchLoss, torch_nll
from hcal.solvers.monitors import BINS, epoch_cwece_a, epoch_dece, epoch_ece_ew, epoch_nll

#: γ of the focal loss and the share of the uniform distribution in smoothed labels: the usual values.
FOCUS: Final = 3.0
SMOOTHING: Final = 0.05


def brier(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean Brier score, summed over classes; proper.

    Examples
    --------
    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0])).item()
    0.5
    """
    own = probs.gather(1, y[:, None])[:, 0]
    return ((probs * probs).sum(dim=1) - 2 * own + 1).mean()


def focal(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean focal loss −(1 − p_y)³ log p_y (Lin et al., ICCV 2017); not proper.

    Examples
    --------
    >>> round(focal(torch.tensor([[0.5, 0.5]]), torch.tensor([0])).item(), 4)
    0.0866
    """
    own = _floored(probs).gather(1, y[:, None])[:, 0]
    return -((1 - own).clamp_min(0) ** FOCUS * own.log()).mean()


def smoothed_nll(probs: Tensor, y: Tensor) -> Tensor:
    """Return the NLL of labels smoothed by 0.05; not proper for the labels themselves.

    Examples
    --------
    >>> round(smoothed_nll(torch.tensor([[0.5, 0.5]]), torch.tensor([0])).item(), 4)
    0.6931
    """
    log_probs = _floored(probs).log()
    own = log_probs.gather(1, y[:, None])[:, 0]
    return -((1 - SMOOTHING) * own + SMOOTHING * log_probs.mean(dim=1)).mean()


def _floored(probs: Tensor) -> Tensor:
    return probs.clamp_min(torch.finfo(probs.dtype).tiny)


#: Name -> a new objective.
OBJECTIVES: Final[Mapping[str, Callable[[], TorchLoss]]] = {
    "h": lambda: HCalibrationLoss(check=False),
    "nll": lambda: torch_nll,
    "brier": lambda: brier,
    "focal": lambda: focal,
    "smoothing": lambda: smoothed_nll,
}
#: The paper's robustness section: M doubled and halved, r doubled, ε up to 0.1, and all windows alike.
CONSTANTS: Final = (
    "h",
    "h:window=100",
    "h:window=400",
    "h:scale=2e5",
    "h:epsilon=1e-3",
    "h:epsilon=1e-2",
    "h:epsilon=1e-1",
    "h:weighting=uniform",
)


def new_objective(name: str) -> TorchLoss:
    """Return a new objective: one of :data:`OBJECTIVES`, or the h loss with one constant changed.

    Examples
    --------
    >>> new_objective("h:window=100").settings.window
    100
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]()
    constant, _, value = name.removeprefix("h:").partition("=")
    kind = {"window": int, "weighting": str}.get(constant, float)
    return HCalibrationLoss(check=False, **{constant: kind(value)})


def ks(probs: Tensor, y: Tensor) -> Tensor:
    """Return the Kolmogorov–Smirnov top-label error, as :func:`hcal.metrics.ks`.

    Examples
    --------
    >>> ks(torch.tensor([[0.25, 0.75]] * 2), torch.tensor([1, 1])).item()
    0.25
    """
    conf, label = probs.max(dim=1)
    conf, order = conf.double().sort(stable=True)
    gap = torch.cumsum(conf - (label == y)[order].double(), 0)
    return gap.abs().max() / len(y)


def tcwece(probs: Tensor, y: Tensor) -> Tensor:
    """Return the class-wise error of the entries above 1/K, as :func:`hcal.metrics.tcwece`.

    Examples
    --------
    >>> tcwece(torch.tensor([[0.25, 0.75]], dtype=torch.float64), torch.tensor([1])).item()
    0.125
    """
    k = probs.shape[1]
    row, column = torch.nonzero(probs > 1 / k, as_tuple=True)
    value = probs[row, column].double()
    hit = (y[row] == column).double()
    inner = torch.linspace(1 / BINS, 1 - 1 / BINS, BINS - 1, dtype=torch.float64, device=probs.device)
    cell = column * BINS + torch.bucketize(value, inner, right=True)
    gap, count = (
        torch.zeros(k * BINS, dtype=torch.float64, device=probs.device).index_add_(0, cell, v)
        for v in (value - hit, torch.ones_like(value))
    )
    listed = count.reshape(k, BINS).sum(dim=1)
    error = gap.abs().reshape(k, BINS).sum(dim=1) / listed.clamp_min(1)
    return error.mean()


def accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """Return the share of right predictions.

    Examples
    --------
    >>> accuracy(torch.tensor([[0.2, 0.8]]), torch.tensor([1])).item()
    1.0
    """
    return (probs.argmax(dim=1) == y).double().mean()


def mean_confidence(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean of the largest probabilities.

    Examples
    --------
    >>> mean_confidence(torch.tensor([[0.25, 0.75]]), torch.tensor([1])).item()
    0.75
    """
    return probs.max(dim=1).values.double().mean()


#: What is measured on the test rows, in the order of the columns.
SCORES: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "ece_ew": epoch_ece_ew,
    "dece": epoch_dece,
    "ks": ks,
    "cwece_a": epoch_cwece_a,
    "tcwece": tcwece,
    "nll": epoch_nll,
    "brier": brier,
    "accuracy": accuracy,
    "mean_confidence": mean_confidence,
}
