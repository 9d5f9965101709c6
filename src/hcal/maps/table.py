"""softmax of a piecewise linear function of x, at the level of events: the engine of all scalar maps.

A function of ONE scalar is a table: knot c lies at x = −c·step and has the value −V_c with V_0 = 0 and V
increasing; below the last knot its last slope continues. Evaluating it costs a look-up an event, whatever
produced the table; the backward pass is a sum over the events of each cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hcal.maps._order import Order, OrderCache
from hcal.runtime.buffers import buffer
from hcal.runtime.fused import takes_fused
from hcal.runtime.jit import compiled
from hcal.runtime.threads import run_parts, split

#: Rows wider than this go through plain torch operations.
_FUSED_CLASSES = 8192


def table_of_slopes(slopes: Tensor, step: float) -> Tensor:
    """Return V (G + 1,) from the positive slopes (G,) of the cells, the first one next to x = 0.

    >>> table_of_slopes(torch.tensor([1.0, 2.0]), 0.5)
    tensor([0.0000, 0.5000, 1.5000])
    """
    return torch.nn.functional.pad(torch.cumsum(slopes, 0) * step, (1, 0))


def table_softmax(x: Tensor, values: Tensor, step: float) -> Tensor:
    """Return softmax (N, K) of the tabulated map of x (N, K), not positive; ``values`` (G + 1,) rise from 0.

    Differentiable in ``values``, not in x.

    >>> x = torch.log(torch.tensor([[0.25, 0.75]]))
    >>> table_softmax(x, torch.tensor([0.0, 1.0, 2.0]), 1.0)
    tensor([[0.2500, 0.7500]])
    """
    probs: Tensor = _TableSoftmax.apply(x, values.to(x.dtype), step)  # type: ignore[no-untyped-call]
    return probs


class _TableSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, step: float) -> Tensor:
        if use_compiled(x):
            probs = _compiled_forward(x, values, step)
        elif use_fused(x):
            from hcal.maps import _triton

            probs = _triton.table_forward(x.contiguous(), values.contiguous(), step)
        else:
            probs = torch.softmax(interpolate(x, values, step), dim=1)
        ctx.save_for_backward(x, probs)
        ctx.step, ctx.cells = step, len(values) - 1
        return probs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        x, probs = ctx.saved_tensors
        if use_compiled(x):
            return None, _compiled_backward(x, probs, grad, ctx.step, ctx.cells), None
        if use_fused(x):
            from hcal.maps import _triton

            inner = _triton.table_inner(probs, grad.contiguous())
        else:
            inner = probs * (grad - (probs * grad).sum(dim=1, keepdim=True))
        return None, -cell_sums(x, inner, ctx.step, ctx.cells).to(x.dtype), None


def interpolate(x: Tensor, values: Tensor, step: float) -> Tensor:
    """Return −V(−x), the map before its softmax, in the dtype of x.

    >>> interpolate(torch.tensor([[-0.5, -3.0]]), torch.tensor([0.0, 2.0, 3.0]), 1.0)
    tensor([[-1., -4.]])
    """
    cell, part = locate(x, step, len(values) - 1)
    low, high = values[cell], values[cell + 1]
    depth = low + part * (high - low)
    # rounding must not carry a point beyond the next knot: the map never inverts a pair
    return -torch.where(cell < len(values) - 2, torch.minimum(depth, high), depth)


def locate(x: Tensor, step: float, cells: int) -> tuple[Tensor, Tensor]:
    """Return the cell of each event and how far into it (beyond 1 only in the last cell).

    >>> locate(torch.tensor([-0.25, -9.0]), 0.5, 4)
    (tensor([0, 3]), tensor([ 0.5000, 15.0000]))
    """
    t = (x * (-1 / step)).clamp_min(0)
    cell = t.clamp_max(cells - 1).long()
    return cell, t - cell


def cell_sums(x: Tensor, inner: Tensor, step: float, cells: int) -> Tensor:
    """Return Σ inner·∂w/∂V_c over events (G + 1,), w the interpolation of V.

    The events are put in the order of their cells and summed by prefix sums: no scatter-add into a few cells,
    which serialises on a GPU. The order depends on x alone and is kept while x lives and stays the same.
    """
    order, edges, part = orders(x, step, cells)
    flat = inner.reshape(-1)[order].to(torch.float64)
    upper = flat * part
    total, high = (range_sums(v, edges) for v in (flat, upper))
    out = torch.zeros(cells + 1, dtype=torch.float64, device=x.device)
    out[:-1] += total - high
    out[1:] += high
    return out


def range_sums(values: Tensor, edges: Tensor) -> Tensor:
    """Return the sums (C,) of values (n,) between neighbouring edges (C + 1,).

    >>> range_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 3]))
    tensor([3., 4.])
    """
    return torch.nn.functional.pad(torch.cumsum(values, 0), (1, 0))[edges].diff()


def _cell_order(x: Tensor, step: float, cells: int) -> Order:
    """Return events in the order of their cells, the edges of the cells, and the part of each event."""
    cell, part = locate(x, step, cells)
    ordered, order = cell.reshape(-1).to(torch.int32).sort()
    edges = torch.searchsorted(ordered, torch.arange(cells + 1, device=x.device, dtype=torch.int32))
    return order, edges, part.reshape(-1)[order]


orders = OrderCache(_cell_order)


def use_fused(x: Tensor) -> bool:
    """Return whether Triton kernels take this tensor."""
    return x.shape[1] <= _FUSED_CLASSES and takes_fused(x)


def use_compiled(x: Tensor) -> bool:
    """Return whether numba's kernels take this tensor."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and compiled()


def _compiled_forward(x: Tensor, values: Tensor, step: float) -> Tensor:
    from hcal.maps._compiled import table_forward

    # numpy's memory: it asks for huge pages, and the first touch of small ones would cost half as much again
    source, out = x.detach().contiguous().numpy(), buffer(tuple(x.shape), np.float32)
    table = values.detach().contiguous().numpy()
    parts = split(len(x), grain=x.shape[1])
    run_parts(lambda a, b: table_forward(source, table, 1 / step, a, b, out), parts)
    return torch.from_numpy(out)


def _compiled_backward(x: Tensor, probs: Tensor, grad: Tensor, step: float, cells: int) -> Tensor:
    from hcal.maps._compiled import table_backward

    arrays = [t.detach().contiguous().numpy() for t in (x, probs, grad)]
    parts = split(len(x), grain=x.shape[1])
    sums = run_parts(lambda a, b: table_backward(*arrays, 1 / step, cells, a, b), parts)
    return torch.from_numpy(np.sum(sums, axis=0)).to(x.dtype)
