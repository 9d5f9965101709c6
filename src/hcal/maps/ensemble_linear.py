"""The paper's ensemble of temperatures: P = Σ v_i softmax(|a_i| x), v = |w|/Σ|w|."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hcal.maps.module import CalibrationMap, Init, MapState, check_init, generator, uniform
from hcal.maps.table import use_compiled, use_fused
from hcal.runtime.buffers import buffer
from hcal.runtime.threads import run_parts, split

# Members that start exactly equal would stay equal; this apart, the start is the identity to about 1e-6.
_SPREAD = 1e-3
# Slopes are at least this, so that the map is strictly increasing whatever the optimiser does.
_LEAST_SLOPE = 1e-6


class EnsembleLinear(CalibrationMap):
    """A mixture of m temperatures, each strictly increasing, so that their mixture is.

    Parameters
    ----------
    members : int
        m; the paper's sizes are 16, 32, 64, 128.
    init : {"identity", "published"}
        Published: a, w ~ U(±1/√m), which starts near the uniform distribution.
    random_state : int

    Examples
    --------
    >>> x = torch.log(torch.tensor([[0.2, 0.8]]))
    >>> EnsembleLinear(4)(x).detach()
    tensor([[0.2000, 0.8000]])
    """

    def __init__(self, members: int = 16, *, init: Init = "identity", random_state: int = 0) -> None:
        super().__init__()
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        if check_init(init) == "published":
            draw, bound = generator(random_state), 1 / math.sqrt(members)
            a, w = uniform(bound, members, draw=draw), uniform(bound, members, draw=draw)
        else:
            a = 1 + torch.linspace(-_SPREAD, _SPREAD, members, dtype=torch.float64) * (members > 1)
            w = torch.full((members,), 1 / members, dtype=torch.float64)
        self.a, self.w = torch.nn.Parameter(a), torch.nn.Parameter(w)

    def slopes(self) -> Tensor:
        """Return the positive slopes |a| (m,)."""
        return self.a.abs().clamp_min(_LEAST_SLOPE)

    def shares(self) -> Tensor:
        """Return the weights v (m,), which sum to 1."""
        size = self.w.abs()
        return size / size.sum()

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities (N, K) from log-probabilities x (N, K)."""
        slopes, shares = self.slopes().to(x.dtype), self.shares().to(x.dtype)
        probs: Tensor = _Mixture.apply(x, slopes, shares)  # type: ignore[no-untyped-call]
        return probs

    def export(self) -> MapState:
        """Return ``slopes`` and ``shares`` (m,)."""
        return {
            "slopes": self.slopes().detach().cpu().numpy(),
            "shares": self.shares().detach().cpu().numpy(),
        }


class _Mixture(torch.autograd.Function):
    """One member at a time, forward and again backward: memory for one softmax, not for m."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slopes: Tensor, shares: Tensor) -> Tensor:
        ctx.save_for_backward(x, slopes, shares)
        if use_compiled(x):
            return _compiled_forward(x, slopes, shares)
        if use_fused(x):
            from hcal.maps import _triton

            return _triton.mixture_forward(x.contiguous(), slopes, shares)
        probs = torch.zeros_like(x)
        for a, v in zip(slopes, shares, strict=True):
            probs += v * torch.softmax(a * x, dim=1)
        return probs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        x, slopes, shares = ctx.saved_tensors
        if use_compiled(x):
            by_share, by_slope = _compiled_backward(x, slopes, grad)
        elif use_fused(x):
            from hcal.maps import _triton

            by_share, by_slope = _triton.mixture_backward(x.contiguous(), slopes, grad.contiguous())
        else:
            by_share, by_slope = _plain_backward(x, slopes, grad)
        return None, shares * by_slope, by_share


def _plain_backward(x: Tensor, slopes: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return dL/dv and (dL/da)/v: Σ_rows E[G] and Cov(G, x) under each member."""
    by_share, by_slope = [], []
    for a in slopes:
        member = torch.softmax(a * x, dim=1)
        weighted = member * grad
        mean = weighted.sum(dim=1)
        by_share.append(mean.sum())
        by_slope.append(((weighted * x).sum(dim=1) - mean * (member * x).sum(dim=1)).sum())
    return torch.stack(by_share), torch.stack(by_slope)


def _compiled_forward(x: Tensor, slopes: Tensor, shares: Tensor) -> Tensor:
    from hcal.maps._compiled import mixture_forward

    out = buffer(tuple(x.shape), np.float32)
    arrays = [t.detach().contiguous().numpy() for t in (x, slopes, shares)]
    parts = split(len(x), grain=x.shape[1] * len(slopes))
    run_parts(lambda a, b: mixture_forward(*arrays, a, b, out), parts)
    return torch.from_numpy(out)


def _compiled_backward(x: Tensor, slopes: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    from hcal.maps._compiled import mixture_backward

    arrays = [t.detach().contiguous().numpy() for t in (x, slopes, grad)]
    parts = split(len(x), grain=x.shape[1] * len(slopes))
    sums = run_parts(lambda a, b: mixture_backward(*arrays, a, b), parts)
    by_share, by_slope = (np.sum(part, axis=0) for part in zip(*sums, strict=True))
    return torch.from_numpy(by_share).to(x.dtype), torch.from_numpy(by_slope).to(x.dtype)
