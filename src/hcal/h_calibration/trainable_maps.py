"""The paper's three families of maps as torch modules, and the twelve that it trains.

A module takes x, the log-softmax of the logits or the logits minus the largest of their row, and gives probabilities.
After training, :meth:`TrainableMap.fitted` returns the map that predicts without torch, one of
:mod:`hcal.h_calibration.paper_maps`.
Mixtures in float32 are computed by the kernels of ``_numba`` (CPU) and ``_triton`` (CUDA) if these are installed,
otherwise by the formula of the map in torch.
"""

from __future__ import annotations

import importlib
import math
from abc import abstractmethod
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hcal.h_calibration.engines import TRITON_EVENTS, has_kernel
from hcal.h_calibration.loss import Context
from hcal.h_calibration.paper_maps import MixtureMap, Reference, TableMap, mixture, table_scores
from hcal.maps.base import Map
from hcal.xp import Array

Init = Literal["identity", "published"]

#: Names of the paper's candidates, cheapest family first.
PAPER_MAPS: tuple[str, ...] = (
    *(f"piecewise-{z}" for z in (1, 10, 100, 500)),
    *(f"monotonic-{h}" for h in (2, 10, 20, 50)),
    *(f"ensemble-{m}" for m in (16, 32, 64, 128)),
)

_SPAN = 100.0  # the piecewise map divides [−100, 0]
_SOFTNESS = 0.02
_CELLS = 2048  # of a MonotonicNet's table; the error of the probabilities is about 1e-6
# Members that start exactly equal would stay equal. With this difference the start is the identity to about 1e-6.
_SPREAD = 1e-3
# The least slope, so that the map is strictly increasing whatever the optimiser does.
_LEAST_SLOPE = 1e-6
_TRITON_CLASSES = 8192


class CellOrder(NamedTuple):
    """Events sorted by cell: their order, where each cell begins and ends, and each event's position in its cell."""

    order: Tensor
    edges: Tensor
    part: Tensor


class TrainableMap(torch.nn.Module):
    """A strictly increasing map of x followed by a softmax, or a mixture of such maps."""

    #: Whether a CUDA graph can hold both passes: no step waits for the device or depends on values.
    capturable: bool = False

    @abstractmethod
    def forward(self, x: Tensor, order: CellOrder | None = None) -> Tensor:
        """Return probabilities (N, K) of x ≤ 0 (N, K); ``order`` is the result of :meth:`cell_order` for x."""

    @abstractmethod
    def fitted(self, reference: Reference) -> Map:
        """Return the map that predicts; ``reference`` says how x is computed from logits."""

    def cell_order(self, x: Tensor) -> CellOrder | None:
        """Return an order of the events that makes the backward pass fast on a GPU; it is computed once a training."""
        return None


class ScalarMap(TrainableMap):
    """softmax of a function of one scalar that is given by its values at knots with distance ``step``."""

    step: float
    capturable = True

    @abstractmethod
    def slopes(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the positive slopes of the cells, beginning at x = 0; costly parts are computed in ``dtype``."""

    def values(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the negative of the map at the knots, which increases from 0; summed in float64."""
        slopes = self.slopes(dtype).double()
        return torch.nn.functional.pad(torch.cumsum(slopes, 0) * self.step, (1, 0))

    def forward(self, x: Tensor, order: CellOrder | None = None) -> Tensor:
        """Return probabilities (N, K) of x ≤ 0 (N, K)."""
        values = self.values(x.dtype).to(x.dtype)
        if order is None:
            return torch.softmax(table_scores(x, values, self.step), dim=1)
        arguments = (x, values, self.step, order)
        probs: Tensor = _TableSoftmax.apply(*arguments)  # type: ignore[no-untyped-call]
        return probs

    def cell_order(self, x: Tensor) -> CellOrder | None:
        """Return the events in the order of their cells, so that sums over cells are differences of prefix sums.

        On a GPU, a scatter-add into a few cells would run one after the other.
        """
        cells = len(self.values()) - 1
        cell, part = _locate(x, self.step, cells)
        ordered, order = cell.reshape(-1).to(torch.int32).sort()
        numbers = torch.arange(cells + 1, device=x.device, dtype=torch.int32)
        edges = torch.searchsorted(ordered, numbers)
        return CellOrder(order, edges, part.reshape(-1)[order])

    def fitted(self, reference: Reference) -> Map:
        """Return the table as a map."""
        table = self.values().detach().cpu().numpy()
        return TableMap(table=table, step=np.array(self.step), reference=reference)


class PiecewiseLinear(ScalarMap):
    """softmax of g(x), g continuous with z slopes over [−100, 0], g(0) = 0; the last slope continues below.

    The published code's formula is discontinuous once slopes leave 1; this is the map that the paper
    describes (its appendix on maps). The parameters are the slopes themselves, as published, through a
    smooth positive part (θ + √(θ² + δ²))/2 that differs from θ by less than 1e-4 where slopes are usual, so
    they are positive whatever the optimiser does. Slopes of 1 are the published start, and the identity.

    >>> x = torch.log(torch.tensor([[0.2, 0.8]]))
    >>> PiecewiseLinear(10)(x).detach()
    tensor([[0.2000, 0.8000]])
    """

    def __init__(self, segments: int = 100) -> None:
        super().__init__()
        start = torch.full((segments,), 1 - _SOFTNESS**2 / 4, dtype=torch.float64)
        self.theta = torch.nn.Parameter(start)
        self.step = _SPAN / segments

    def slopes(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the positive slopes (z,)."""
        return (self.theta + torch.sqrt(self.theta**2 + _SOFTNESS**2)) / 2


class MonotonicNet(ScalarMap):
    """softmax of g(u) = ∫₀ᵘ (ELU(f(v)) + 1) dv on standardised x, f an MLP with two hidden layers and ReLU.

    After Wehenkel and Louppe (NeurIPS 2019). g is a function of one scalar, so the network is evaluated at the
    midpoints of a grid over the range of the data, never at the events (the midpoint rule). Below the range the last
    slope continues.

    Parameters
    ----------
    hidden : int
        Width of both hidden layers: 2, 10, 20 or 50 in the paper.
    mean, std : float
        Of all training values of x; ``std`` is positive.
    lowest : float
        The lowest x that the table covers, below 0.
    init : {"identity", "published"}
        Identity: g(x) = x. Published: the default start of a linear layer, and no multiplication by std.
    random_state : int

    Examples
    --------
    >>> x = torch.log(torch.tensor([[0.2, 0.8]]))
    >>> MonotonicNet(2, mean=-1.0, std=0.5)(x).detach()
    tensor([[0.2000, 0.8000]])
    """

    def __init__(
        self,
        hidden: int = 10,
        *,
        mean: float,
        std: float,
        lowest: float = -100.0,
        init: Init = "identity",
        random_state: int = 0,
    ) -> None:
        super().__init__()
        self.step = -float(lowest) / _CELLS
        # The slope in x is the slope in u times 1/std; for the identity it must be 1 where the network is 0.
        self.scale = 1.0 if init == "identity" else 1 / std
        self.layers = torch.nn.ParameterList()
        draw = torch.Generator().manual_seed(random_state)
        for fan_in, fan_out in pairwise((1, hidden, hidden, 1)):
            bound = 1 / math.sqrt(fan_in)
            matrix = _uniform(bound, fan_out, fan_in, draw=draw)
            offset = _uniform(bound, fan_out, draw=draw)
            self.layers.append(torch.nn.Parameter(matrix))
            self.layers.append(torch.nn.Parameter(offset))
        if init == "identity":
            for last in list(self.layers)[-2:]:
                last.data.zero_()
        middle = -(torch.arange(_CELLS, dtype=torch.float64) + 0.5) * self.step
        self.register_buffer("grid", ((middle - mean) / std)[:, None])

    def slopes(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return dg/dx at the midpoints of the cells."""
        w1, b1, w2, b2, w3, b3 = (layer.to(dtype) for layer in self.layers)
        grid = self.get_buffer("grid").to(dtype)
        first = torch.relu(grid @ w1.T + b1)
        second = torch.relu(first @ w2.T + b2)
        f = (second @ w3.T + b3)[:, 0]
        return (torch.nn.functional.elu(f) + 1) * self.scale


class EnsembleLinear(TrainableMap):
    """Σ v_i softmax(|a_i| x), v = |w|/Σ|w|: a mixture of m temperatures.

    Parameters
    ----------
    members : int
        m: 16, 32, 64 or 128 in the paper.
    init : {"identity", "published"}
        Published: a, w ~ U(±1/√m), which starts near the uniform distribution.
    random_state : int

    Examples
    --------
    >>> x = torch.log(torch.tensor([[0.2, 0.8]]))
    >>> EnsembleLinear(4)(x).detach()
    tensor([[0.2000, 0.8000]])
    """

    capturable = True

    def __init__(
        self, members: int = 16, *, init: Init = "identity", random_state: int = 0
    ) -> None:
        super().__init__()
        if init == "published":
            draw = torch.Generator().manual_seed(random_state)
            bound = 1 / math.sqrt(members)
            a = _uniform(bound, members, draw=draw)
            w = _uniform(bound, members, draw=draw)
        else:
            apart = torch.linspace(-_SPREAD, _SPREAD, members, dtype=torch.float64)
            a = 1 + apart * (members > 1)
            w = torch.full((members,), 1 / members, dtype=torch.float64)
        self.a = torch.nn.Parameter(a)
        self.w = torch.nn.Parameter(w)

    def slopes(self) -> Tensor:
        """Return the positive slopes |a| (m,)."""
        return self.a.abs().clamp_min(_LEAST_SLOPE)

    def shares(self) -> Tensor:
        """Return the weights v (m,), which sum to 1."""
        size = self.w.abs()
        return size / size.sum()

    def forward(self, x: Tensor, order: CellOrder | None = None) -> Tensor:
        """Return probabilities (N, K) of x (N, K)."""
        slopes = self.slopes().to(x.dtype)
        shares = self.shares().to(x.dtype)
        formula = mixture if kernels_for(x) is None else _Mixture.apply
        return torch.as_tensor(formula(x, slopes, shares))

    def fitted(self, reference: Reference) -> Map:
        """Return the mixture; ``reference`` does not matter, since a constant added to a row of x changes nothing."""
        slopes = self.slopes().detach().cpu().numpy()
        shares = self.shares().detach().cpu().numpy()
        return MixtureMap(slopes=slopes, shares=shares)


def build_trainable(
    name: str, x: Tensor, *, init: Init = "identity", random_state: int = 0
) -> TrainableMap:
    """Return a map by family and size, e.g. ``"monotonic-50"``; any size, not only the paper's.

    Parameters
    ----------
    name : str
        ``piecewise-z``, ``monotonic-h`` or ``ensemble-m``.
    x : tensor of shape (N, K)
        Training values: a MonotonicNet is standardised by them.
    init : {"identity", "published"}
    random_state : int

    Examples
    --------
    >>> len(PAPER_MAPS), build_trainable("piecewise-10", torch.zeros(1, 2)).step
    (12, 10.0)
    """
    if init not in ("identity", "published"):
        raise ValueError(f"init must be 'identity' or 'published', got {init!r}")
    family, _, size = name.partition("-")
    if family not in ("piecewise", "monotonic", "ensemble") or not size.isdigit() or int(size) < 1:
        raise ValueError(
            f"unknown map {name!r}: use {', '.join(PAPER_MAPS)}, or another size of these families"
        )
    if family == "piecewise":
        return PiecewiseLinear(int(size))
    if family == "ensemble":
        return EnsembleLinear(int(size), init=init, random_state=random_state)
    std, mean = (float(moment) for moment in torch.std_mean(x.double()))
    return MonotonicNet(
        int(size),
        mean=mean,
        std=std
        if std > 0
        else 1.0,  # it is 0 if all logits are identical; any positive number will do
        lowest=min(float(x.min()), -1e-6),
        init=init,
        random_state=random_state,
    )


def _uniform(bound: float, *shape: int, draw: torch.Generator) -> Tensor:
    unit = torch.rand(*shape, generator=draw, dtype=torch.float64)
    return (unit * 2 - 1) * bound


class MixtureKernels(Protocol):
    """A module of kernels; they take contiguous tensors on a GPU, and arrays on the CPU."""

    def mixture_forward(self, x: Array, slopes: Array, shares: Array) -> Array:
        """Return the probabilities of the mixture."""

    def mixture_backward(self, x: Array, slopes: Array, grad: Array) -> tuple[Array, Array]:
        """Return the gradients by the shares, and by the slopes of members with a share of 1."""


def kernels_for(x: Tensor) -> MixtureKernels | None:
    """Return the module of kernels for x (float32; numba on the CPU, Triton on CUDA), or None if there is none."""
    if x.is_cuda:
        module = "hcal.h_calibration._mixture_triton"
        fits = x.shape[1] <= _TRITON_CLASSES and x.numel() < TRITON_EVENTS
    else:
        module = "hcal.h_calibration._mixture_numba"
        fits = x.device.type == "cpu"
    if x.dtype != torch.float32 or not fits or not has_kernel(module):
        return None
    kernels: MixtureKernels = importlib.import_module(module)
    return kernels


def _locate(x: Tensor, step: float, cells: int) -> tuple[Tensor, Tensor]:
    """Return the cell of each event and its position in it, from 0 to 1 (above 1 only in the last cell)."""
    t = (x * (-1 / step)).clamp_min(0)
    cell = t.clamp_max(cells - 1).long()
    return cell, t - cell


class _TableContext(Context, Protocol):
    """What the backward pass of a table needs beside tensors."""

    cells: int
    order: CellOrder


class _TableSoftmax(torch.autograd.Function):
    """softmax of the table; the gradient in its values is a sum over ordered events, which is fast on a GPU."""

    @staticmethod
    def forward(
        ctx: _TableContext, x: Tensor, values: Tensor, step: float, order: CellOrder
    ) -> Tensor:
        probs = torch.softmax(table_scores(x, values, step), dim=1)
        ctx.save_for_backward(x, probs)
        ctx.cells = len(values) - 1
        ctx.order = order
        return probs

    @staticmethod
    @once_differentiable
    def backward(ctx: _TableContext, grad: Tensor) -> tuple[None, Tensor, None, None]:
        x, probs = ctx.saved_tensors
        inner = probs * (grad - (probs * grad).sum(dim=1, keepdim=True))
        by_value = -_cell_sums(inner, ctx.order, ctx.cells).to(x.dtype)
        return None, by_value, None, None


def _cell_sums(inner: Tensor, order: CellOrder, cells: int) -> Tensor:
    """Return Σ inner·∂w/∂V_c over events (G + 1,), w the interpolation of V."""
    flat = inner.reshape(-1)[order.order].to(torch.float64)
    total = range_sums(flat, order.edges)
    high = range_sums(flat * order.part, order.edges)
    out = torch.zeros(cells + 1, dtype=torch.float64, device=inner.device)
    out[:-1] += total - high
    out[1:] += high
    return out


def range_sums(values: Tensor, edges: Tensor) -> Tensor:
    """Return the sums (C,) of values (n,) between neighbouring edges (C + 1,).

    >>> range_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 3]))
    tensor([3., 4.])
    """
    prefix = torch.nn.functional.pad(torch.cumsum(values, 0), (1, 0))
    return prefix[edges].diff()


class _Mixture(torch.autograd.Function):
    """The mixture, one member at a time in both passes, so that memory holds one softmax and not m."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, slopes: Tensor, shares: Tensor) -> Tensor:
        kernels = kernels_for(x)
        assert kernels is not None, "without kernels, the formula itself is called"
        ctx.save_for_backward(x, slopes, shares)
        arguments = _for_kernels(x, slopes, shares)
        return torch.as_tensor(kernels.mixture_forward(*arguments))

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        x, slopes, shares = ctx.saved_tensors
        kernels = kernels_for(x)
        assert kernels is not None, "the forward pass had some"
        arguments = _for_kernels(x, slopes, grad)
        gradients = kernels.mixture_backward(*arguments)
        by_share, by_slope = map(torch.as_tensor, gradients)
        return None, shares * by_slope, by_share


def _for_kernels(*tensors: Tensor) -> list[Array]:
    """Return contiguous tensors on a GPU, arrays on the CPU."""
    contiguous = [tensor.detach().contiguous() for tensor in tensors]
    return [tensor if tensor.is_cuda else tensor.numpy() for tensor in contiguous]
