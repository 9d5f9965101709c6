"""The mixture of temperatures in float32 on CUDA: a row of probabilities never leaves the registers."""

# mypy: ignore-errors
# Triton compiles these functions itself: their arguments are pointers, whose types Python cannot say.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def mixture_forward(x: Tensor, slopes: Tensor, shares: Tensor) -> Tensor:
    """Return Σ v_i softmax(a_i x)."""
    probs = torch.empty_like(x)
    n, k = x.shape
    width, rows, warps = _tile(k)
    _mixture_forward[(triton.cdiv(n, rows),)](
        x, slopes, shares, probs, n, k, len(slopes), WIDTH=width, ROWS=rows, num_warps=warps
    )
    return probs


def mixture_backward(x: Tensor, slopes: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return dL/dv and (dL/da)/v: E[G] and Cov(G, x) under each member, summed over rows."""
    n, k = x.shape
    width, rows, warps = _tile(k)
    programs = triton.cdiv(n, rows)
    members = len(slopes)
    partial = torch.empty((2, members, programs), dtype=torch.float32, device=x.device)
    _mixture_backward[(programs,)](
        x, slopes, grad, partial, n, k, members, programs, WIDTH=width, ROWS=rows, num_warps=warps
    )
    by_share, by_slope = partial.sum(dim=2, dtype=torch.float64)
    return by_share.to(x.dtype), by_slope.to(x.dtype)


def _tile(k: int) -> tuple[int, int, int]:
    """Return the width of a row in registers, the rows of a program and its warps."""
    width = triton.next_power_of_2(k)
    rows = max(1, 2048 // width)
    return width, rows, 4 if width * rows <= 2048 else 8


@triton.jit
def _offsets(n, k, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row[:, None] < n) & (column[None, :] < k)
    return row[:, None] * k + column[None, :], inside


@triton.jit
def _depth(x, at, inside):
    row = tl.load(x + at, mask=inside, other=float("-inf"))
    top = tl.maximum(tl.max(row, axis=1), -1e30)
    return tl.where(inside, row - top[:, None], 0.0)


@triton.jit
def _mixture_forward(
    x, slopes, shares, probs, n, k, members, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    at, inside = _offsets(n, k, WIDTH, ROWS)
    depth = _depth(x, at, inside)
    out = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    for m in range(members):
        slope = tl.load(slopes + m)
        e = tl.where(inside, tl.exp(slope * depth), 0.0)
        total = tl.maximum(tl.sum(e, axis=1), 1e-30)
        share = tl.load(shares + m) / total
        out += e * share[:, None]
    tl.store(probs + at, out, mask=inside)


@triton.jit
def _mixture_backward(
    x, slopes, grad, partial, n, k, members, programs, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    at, inside = _offsets(n, k, WIDTH, ROWS)
    depth = _depth(x, at, inside)
    g = tl.load(grad + at, mask=inside, other=0.0)
    slot = partial + tl.program_id(0).to(tl.int64)
    for m in range(members):
        slope = tl.load(slopes + m)
        e = tl.where(inside, tl.exp(slope * depth), 0.0)
        share = 1.0 / tl.maximum(tl.sum(e, axis=1), 1e-30)
        mean = tl.sum(e * g, axis=1) * share
        spread = tl.sum(e * depth, axis=1) * share
        both = tl.sum(e * g * depth, axis=1) * share
        covariance = both - mean * spread
        tl.store(slot + m * programs, tl.sum(mean, axis=0))
        tl.store(slot + (members + m) * programs, tl.sum(covariance, axis=0))
