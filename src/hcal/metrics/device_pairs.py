"""Metrics that compare all pairs of rows, on the device of the data: blocks of matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hcal.metrics.canonical import ROUNDING
from hcal.metrics.device import DEVICE_BLOCK, on

if TYPE_CHECKING:
    from hcal.metrics.sample import Sample, Vector
    from hcal.numerics import IntArray


def _row_blocks(n: int) -> list[slice]:
    step = max(1, DEVICE_BLOCK // n)
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def pair_blocks_on_device(s: Sample, bandwidth: float) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, h of these rows with all rows), with 0 on the diagonal."""
    p, y = s.data.tensor.double(), on(s.data, s.y)
    squares = p.square().sum(dim=1)
    for rows in _row_blocks(s.n):
        gram = p[rows] @ p.T
        distance = (squares[rows, None] - ROUNDING + squares[None, :] - 2 * gram).clamp_(min=0).sqrt_()
        gram -= p[rows][:, y]
        gram -= p[:, y[rows]].T
        gram += y[rows, None] == y[None, :]
        gram *= torch.exp_(distance.mul_(-1 / bandwidth))
        gram.diagonal(rows.start).zero_()
        yield rows, gram


def pair_sums_on_device(s: Sample, bandwidth: float) -> tuple[Vector, float]:
    """Return Σ_{j ≠ i} w_j·h_ij for every row, shape (N,), and Σ_{i ≠ j} h_ij²."""
    w = on(s.data, s.w)
    sums, squares = zip(
        *((h @ w, h.square().sum()) for _, h in pair_blocks_on_device(s, bandwidth)), strict=True
    )
    return np.asarray(torch.cat(sums).cpu().numpy()), float(torch.stack(squares).sum())


def signed_sums_on_device(s: Sample, bandwidth: float, signs: Vector) -> Vector:
    """Return Σ_ij a_i h_ij a_j for every column a of signs (N, S), shape (S,)."""
    a = on(s.data, signs)
    total = torch.stack([(a[rows] * (h @ a)).sum(dim=0) for rows, h in pair_blocks_on_device(s, bandwidth)])
    return np.asarray(total.sum(dim=0).cpu().numpy())


def _kernel_blocks(s: Sample, bandwidth: float, floor: float) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows, their probabilities, Dirichlet kernel to all rows, weighted and of sum 1)."""
    p, w = s.data.tensor.double().clamp(min=floor), on(s.data, s.w)
    shape = p / bandwidth
    constant = torch.lgamma(shape + 1).sum(dim=1) - torch.lgamma(shape.sum(dim=1) + s.k)
    offset = torch.log(w) - constant
    fewer = torch.where(w > 1, torch.log((w - 1).clamp(min=0)) - torch.log(w), -torch.inf)
    for rows in _row_blocks(s.n):
        kernel = torch.log(p[rows]) @ shape.T
        kernel += offset
        kernel.diagonal(rows.start).add_(fewer[rows])
        yield rows, p[rows], torch.softmax(kernel, dim=1)


def dkde_rows_on_device(s: Sample, bandwidth: float, floor: float) -> Vector:
    """Return ‖π_i − p_i‖² of every row, shape (N,)."""
    one_hot = torch.nn.functional.one_hot(on(s.data, s.y), s.k).double()
    blocks = _kernel_blocks(s, bandwidth, floor)
    return np.asarray(torch.cat([(k @ one_hot - p).square().sum(dim=1) for _, p, k in blocks]).cpu().numpy())


def dkde_groups_on_device(s: Sample, group: IntArray, groups: int) -> tuple[Vector, float]:
    """Return what :func:`hcal.metrics.dirichlet.dkde_spread` sums: of every group left out, and the noise."""
    members = [on(s.data, np.flatnonzero(group == i)) for i in range(groups)]
    g, y = on(s.data, group), on(s.data, s.y)
    one_hot = torch.nn.functional.one_hot(y, s.k).double()
    spread = 1 - on(s.data, s.data.squares)
    sums = torch.zeros(groups, dtype=torch.float64, device=spread.device)
    noise = torch.zeros((), dtype=torch.float64, device=spread.device)
    for rows, p, kernel in _kernel_blocks(s, 1.0, 1e-25):
        noise += (kernel.square() @ spread).sum()
        mass = [kernel[:, m] @ one_hot[m] for m in members]
        whole = torch.stack(mass).sum(dim=0)
        for i, part in enumerate(mass):
            rest = whole - part
            gap = (rest / rest.sum(dim=1, keepdim=True) - p).square().sum(dim=1)
            sums[i] += torch.where(g[rows] != i, gap, 0.0).sum()
    return np.asarray(sums.cpu().numpy()), float(noise)
