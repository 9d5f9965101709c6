"""Objectives as torch losses of probabilities: native ones, and any other through its numpy gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from hcal.objective.protocol import Objective
from hcal.runtime.gradients import dense_gradient

#: (probabilities (N, K), labels (N,), optionally weights (N,)) to a differentiable scalar.
TorchLoss = Callable[..., Tensor]
_TINY = float(np.finfo(np.float64).tiny)


def as_loss(objective: Objective) -> TorchLoss:
    """Return an objective as (probabilities, labels, weights=None) ↦ differentiable scalar tensor.

    It is the objective's own engine, where there is one (weights then may not be given), else a
    :class:`NumpyLoss`.

    >>> from hcal.objective import proper
    >>> as_loss(proper.brier_loss())(torch.tensor([[0.5, 0.5]]), torch.tensor([1])).item()
    0.5
    """
    return NumpyLoss(objective) if objective.torch_loss is None else objective.torch_loss()


class NumpyLoss:
    """Any objective in torch: value and gradient are computed by numpy, on the CPU, in float64.

    >>> from hcal.objective import proper
    >>> probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64, requires_grad=True)
    >>> NumpyLoss(proper.log_loss())(probs, torch.tensor([1])).backward()
    >>> probs.grad
    tensor([[ 0.0000, -1.3333]], dtype=torch.float64)
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def __call__(self, probs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the objective; weights are scaled to sum to 1."""
        labels = y.cpu().numpy()
        w = np.ones(len(labels)) if weight is None else weight.detach().cpu().numpy().astype(np.float64)

        def function(p: NDArray[Any]) -> tuple[float, NDArray[Any]]:
            kept = np.maximum(p.astype(np.float64), _TINY)
            value, gradient = self.objective.value_and_grad(np.log(kept), labels, w / w.sum())
            return value, dense_gradient(gradient, p.shape[1]) / kept

        return numpy_value(probs, function)


def numpy_value(x: Tensor, function: Callable[[NDArray[Any]], tuple[float, NDArray[Any]]]) -> Tensor:
    """Return a scalar that numpy computes of x, differentiable by the gradient that numpy gives.

    ``function`` is an array ↦ (value, gradient of its shape); the scalar has the dtype of x.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> numpy_value(x, lambda v: (float(v @ v), 2 * v)).backward()
    >>> x.grad
    tensor([6.])
    """
    out: Tensor = _NumpyValue.apply(x, function)  # type: ignore[no-untyped-call]
    return out


class _NumpyValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Any) -> Tensor:
        value, gradient = function(x.detach().cpu().numpy())
        ctx.save_for_backward(torch.as_tensor(np.asarray(gradient)).to(x))
        return x.new_tensor(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * upstream, None


def torch_nll(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean NLL, differentiable.

    >>> torch_nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])).item()
    0.6931471824645996
    """
    own = probs.gather(1, y[:, None])
    return -own.clamp_min(torch.finfo(probs.dtype).tiny).log().mean()


def torch_brier(probs: Tensor, y: Tensor) -> Tensor:
    """Return the Brier score, differentiable.

    >>> torch_brier(torch.tensor([[0.5, 0.5]]), torch.tensor([1])).item()
    0.5
    """
    own = probs.gather(1, y[:, None])[:, 0]
    return ((probs * probs).sum(dim=1) - 2 * own + 1).mean()
