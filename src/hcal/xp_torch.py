"""The operations of :mod:`hcal.xp` on torch tensors: eager, compiled, traced and exported to ONNX alike."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

exp, log, log1p, expm1, sqrt, tanh = torch.exp, torch.log, torch.log1p, torch.expm1, torch.sqrt, torch.tanh
abs, isnan, where = torch.abs, torch.isnan, torch.where
row_sum = partial(torch.sum, dim=-1, keepdim=True)
row_max, row_min = partial(torch.amax, dim=-1, keepdim=True), partial(torch.amin, dim=-1, keepdim=True)
argmax = partial(torch.argmax, dim=-1, keepdim=True)
cumsum, stack, concat = (partial(torch.cumsum, dim=-1), partial(torch.stack, dim=-1), partial(torch.cat, dim=-1))
log_softmax, softmax = partial(torch.log_softmax, dim=-1), partial(torch.softmax, dim=-1)


def take_along(x: Tensor, index: Tensor) -> Tensor:
    """Return from each row the values at its indices: x (N, K), index (N, J) → (N, J)."""
    return x.gather(-1, index)


def take(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index] for a table (G,) and indices of any shape."""
    return table[index]


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((), float(value), dtype=like.dtype, device=like.device)


def maximum(x: Tensor, y: Any) -> Tensor:
    """Return the larger of two; NaN where one is."""
    return torch.maximum(x, _tensor(y, x))


def minimum(x: Tensor, y: Any) -> Tensor:
    """Return the smaller of two; NaN where one is."""
    return torch.minimum(x, _tensor(y, x))


def clip(x: Tensor, low: Any, high: Any) -> Tensor:
    """Return x cut to [low, high]; NaN stays."""
    return minimum(maximum(x, low), high)


def asarray(values: Any, like: Tensor) -> Tensor:
    """Return numbers as a tensor of the float width and device of ``like``."""
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)


def astype(x: Tensor, like: Tensor) -> Tensor:
    """Return x in the float width of ``like``."""
    return x.to(like.dtype)


def eps(x: Tensor) -> float:
    """Return the spacing of x's floats at 1."""
    return torch.finfo(x.dtype).eps


def tiny(x: Tensor) -> float:
    """Return the smallest positive number of x's floats that is computed with in full width."""
    return torch.finfo(x.dtype).tiny


def log_sum_exp(x: Tensor) -> Tensor:
    """Return ln Σ e^x of each row, (N, 1)."""
    top = row_max(x)  # not torch.logsumexp: onnxruntime's gives NaN where all but the top are far below
    return top + torch.log(row_sum(torch.exp(x - top)))


def floor_index(x: Tensor) -> Tensor:
    """Return numbers ≥ 0, rounded down, as indices; NaN, which no table holds, as 0."""
    return torch.where(x > 0, x, 0.0).long()


def put_along(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Return x with each row's values at its indices replaced; x may be overwritten."""
    return x.scatter(-1, index, values)


def replaced(x: Tensor, index: Tensor, value: float) -> Tensor:
    """Return a copy of x in which each row has this value at its index (N, 1)."""
    return x.scatter(-1, index, torch.full_like(index, value, dtype=x.dtype))


def sum_by(values: Tensor, group: Tensor) -> Tensor:
    """Return the sums of each row's values by group: values and groups 0..K−1 (N, K) → sums (N, K) of the groups."""
    return torch.zeros_like(values).scatter_add(-1, group, values)


def kth_smallest(x: Tensor, k: Tensor) -> Tensor:
    """Return the k-th smallest value of each row, (N, 1); k is a whole number that counts from 1."""
    falling, _ = sort_rows(-x)
    return -falling.gather(-1, (k - 1).expand(x.shape[0], 1))


def one_hot(index: Tensor, n: int, like: Tensor) -> Tensor:
    """Return 1 at each index and 0 elsewhere, index (N,) → (N, n), in the float width of ``like``."""
    return (index[:, None] == torch.arange(n, device=index.device)).to(like.dtype)


def rounded(x: Tensor) -> Tensor:
    """Return float64 numbers rounded to 34 bits, ten digits; narrower ones as they are."""
    if x.dtype != torch.float64:
        return x
    big = x * (2.0**19 + 1)
    return big - (big - x)


def sort_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row from its largest value down, and the order that sorts it (stable)."""
    if torch.compiler.is_exporting():  # ONNX has TopK alone, which keeps the order of ties
        values, order = torch.topk(x, x.shape[-1], dim=-1)
        return values, order
    values, order = torch.sort(x, dim=-1, descending=True, stable=True)
    return values, order


def searchsorted(edges: Tensor, x: Tensor, *, right: bool = False) -> Tensor:
    """Return how many of the ascending edges (G,) lie below each x; with ``right``, below or at it."""
    if not torch.compiler.is_exporting():
        return torch.searchsorted(edges, x.contiguous(), right=right)
    return _halving(edges, 0, edges.shape[0], x, right=right)


def segment_search(knots: Tensor, offsets: Tensor, x: Tensor, *, right: bool = False) -> Tensor:
    """Return how many knots of its own column's segment lie below each x (N, E); with ``right``, below or at it."""
    return _halving(knots, offsets[:-1], offsets[1:] - offsets[:-1], x, right=right)


def _halving(knots: Tensor, start: Any, length: Any, x: Tensor, *, right: bool) -> Tensor:
    """Search segments of the knots for each x, the range of answers halved once a bit: ONNX has no search."""
    at = torch.zeros_like(x, dtype=torch.int64)
    count = knots.shape[0]
    for bit in reversed(range(count.bit_length())):
        further = at + (1 << bit)
        edge = knots[(further + (start - 1)).clamp(max=count - 1)]
        below = (edge <= x) if right else (edge < x)
        at = torch.where(below & (further <= length), further, at)
    return at


def interp(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Return the piecewise linear function through (knots, values) at x; outside it goes straight on."""
    if knots.shape[0] < 2:
        return values[0] + x * 0
    cell = (searchsorted(knots, x, right=True) - 1).clamp(0, knots.shape[0] - 2)
    low, start = knots[cell], values[cell]
    width = knots[cell + 1] - low
    # Knots may coincide: their cell has no inside.
    slope = torch.where(width > 0, (values[cell + 1] - start) / torch.where(width > 0, width, 1.0), 0.0)
    return start + slope * (x - low)
