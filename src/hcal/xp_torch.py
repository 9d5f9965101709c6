"""The operations of :mod:`hcal.xp` on torch tensors: eager, compiled, traced and exported to ONNX alike."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hcal.xp import SearchSide, bent, interp, log_sigmoid, log_sum_exp, rounded

exp, log, log1p, sqrt, abs = torch.exp, torch.log, torch.log1p, torch.sqrt, torch.abs
expm1, zeros_like = torch.expm1, torch.zeros_like
where, take, astype = torch.where, torch.take, Tensor.type_as
row_sum = partial(torch.sum, dim=-1, keepdim=True)
row_max, row_min = (
    partial(torch.amax, dim=-1, keepdim=True),
    partial(torch.amin, dim=-1, keepdim=True),
)
argmax = partial(torch.argmax, dim=-1, keepdim=True)
cumsum, stack, concat = (
    partial(torch.cumsum, dim=-1),
    partial(torch.stack, dim=-1),
    partial(torch.cat, dim=-1),
)
log_softmax, softmax = partial(torch.log_softmax, dim=-1), partial(torch.softmax, dim=-1)


def take_along(x: Tensor, index: Tensor) -> Tensor:
    """Return the values of each row at the row's own indices: x (N, K), index (N, J) → (N, J)."""
    return x.gather(
        -1, index
    )  # torch.take_along_dim would fix the number of rows in an exported graph


def _tensor(value: Tensor | float, like: Tensor) -> Tensor:
    return (
        value
        if isinstance(value, Tensor)
        else torch.full((), float(value), dtype=like.dtype, device=like.device)
    )


def maximum(x: Tensor, y: Tensor | float) -> Tensor:
    """Return the larger of two; NaN where one is."""
    return torch.maximum(x, _tensor(y, x))


def minimum(x: Tensor, y: Tensor | float) -> Tensor:
    """Return the smaller of two; NaN where one is."""
    return torch.minimum(x, _tensor(y, x))


def clip(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Return x cut to [low, high]; NaN stays."""
    return minimum(maximum(x, low), high)


def eps(x: Tensor) -> float:
    """Return the distance from 1 to the next larger number of x's float width."""
    return torch.finfo(x.dtype).eps


def tiny(x: Tensor) -> float:
    """Return the smallest positive normal number of x's float width."""
    return torch.finfo(x.dtype).tiny


def floor_index(x: Tensor) -> Tensor:
    """Return numbers ≥ 0, rounded down, as indices; NaN becomes 0, which every table has."""
    return torch.where(x > 0, x, 0.0).long()


def put_along(x: Tensor, index: Tensor, values: Tensor | float) -> Tensor:
    """Return x with the values of each row at the row's own indices replaced: by a tensor (N, J), or by one number."""
    return x.scatter(-1, index, values)


def sum_by(values: Tensor, group: Tensor) -> Tensor:
    """Return for each row the sums of its values by group: values (N, K), group numbers 0..K−1 (N, K) → sums (N, K)."""
    return torch.zeros_like(values).scatter_add(-1, group, values)


def kth_smallest(x: Tensor, k: Tensor) -> Tensor:
    """Return the k-th smallest value of each row, (N, 1); k is a whole number that counts from 1."""
    falling, _ = sort_rows(-x)
    return -falling.gather(-1, (k - 1).expand(x.shape[0], 1))


def one_hot(index: Tensor, n: int, like: Tensor) -> Tensor:
    """Return 1 at each index and 0 elsewhere, index (N,) → (N, n), in the float width of ``like``."""
    return (index[:, None] == torch.arange(n, device=index.device)).to(like.dtype)


def sort_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row in falling order, and the indices that sort it; ties keep their order."""
    if torch.compiler.is_exporting():  # ONNX can only sort by TopK, which keeps the order of ties
        return torch.topk(x, x.shape[-1], dim=-1)
    return torch.sort(x, dim=-1, descending=True, stable=True)


def searchsorted(edges: Tensor, x: Tensor, side: SearchSide = "left") -> Tensor:
    """Return how many of the ascending edges (G,) are smaller than each x; with ``side="right"``, smaller or equal."""
    if not torch.compiler.is_exporting():
        return torch.searchsorted(edges, x.contiguous(), right=side == "right")
    return _halving(edges, 0, edges.shape[0], x, side)


def segment_search(knots: Tensor, offsets: Tensor, x: Tensor, side: SearchSide = "left") -> Tensor:
    """Return for each x (N, E) how many knots of its column are smaller; with ``side="right"``, smaller or equal."""
    return _halving(knots, offsets[:-1], offsets[1:] - offsets[:-1], x, side)


def _halving(
    knots: Tensor, start: Tensor | int, length: Tensor | int, x: Tensor, side: SearchSide
) -> Tensor:
    """Search segments of the knots for each x by bisection, since ONNX has no search."""
    at = torch.zeros_like(x, dtype=torch.int64)
    count = knots.shape[0]
    for bit in reversed(range(count.bit_length())):
        further = at + (1 << bit)
        edge = knots[(further + (start - 1)).clamp(max=count - 1)]
        below = (edge <= x) if side == "right" else (edge < x)
        at = torch.where(below & (further <= length), further, at)
    return at
