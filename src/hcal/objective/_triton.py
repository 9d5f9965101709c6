"""The objective of one family in float32 on CUDA: torch's radix sort and scans, the rest in a few kernels.

What plain torch operations do in thirty passes over n events, each a launch and a round trip to memory, is
done in a handful. Events that tie in probability and mark keep the order of the sort here (their sum is the
same; only the CPU shares it out evenly), because finding ties would cost as much as the rest.
"""

# mypy: ignore-errors
# Triton compiles these functions itself: their arguments are pointers, whose types Python cannot say.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hcal.objective.settings import ObjectiveSettings

_BLOCK = 1024
_PROBES = 32
# Window sums are totalled over runs of so many windows; a cluster's total is then a few loads.
_PART = 256


def family_loss(
    p: Tensor, marks: Tensor, s: ObjectiveSettings, need_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the loss (float64 scalar) of events p (n,) with marks (n,), and its gradient (n,)."""
    key, order = torch.sort((p.contiguous().view(torch.int32) << 1) | marks.to(torch.int32))
    n = len(p)
    window = min(s.window, n)
    m = n - window + 1
    mass, hits = _prefix_sums(key)
    edges, weights = _clusters(mass, window, m, s)
    blocks = triton.cdiv(m, _BLOCK)
    slope = torch.empty(m if need_grad else 1, dtype=torch.float64, device=p.device)
    partial = torch.empty(blocks, dtype=torch.float64, device=p.device)
    _windows[(blocks,)](
        mass, hits, edges, weights, slope, partial, m, window, s.epsilon,
        CLUSTERS=len(weights), SQUARED=s.norm == 2, GRAD=need_grad, BLOCK=_BLOCK,
    )  # fmt: skip
    loss = partial.sum() * s.scale
    if not need_grad:
        return loss, None
    grad = torch.empty_like(p)
    total = torch.cumsum(slope, 0)
    _spread[(triton.cdiv(n, _BLOCK),)](total, order, grad, n, m, window, s.scale / window, BLOCK=_BLOCK)
    return loss, grad


def _prefix_sums(key: Tensor) -> tuple[Tensor, Tensor]:
    """Prefix sums (n + 1,) of the sorted probabilities in float64 and of the marks, with a leading 0."""
    n = len(key)
    mass = torch.zeros(n + 1, dtype=torch.float64, device=key.device)
    hits = torch.zeros(n + 1, dtype=torch.int32, device=key.device)
    _unpack[(triton.cdiv(n, _BLOCK),)](key, mass, hits, n, BLOCK=_BLOCK)
    return torch.cumsum(mass, 0), torch.cumsum(hits, 0, dtype=torch.int32)


def _clusters(mass: Tensor, window: int, m: int, s: ObjectiveSettings) -> tuple[Tensor, Tensor]:
    """Edges (C + 1,) of the clusters of windows, and the weight of each (C,)."""
    device = mass.device
    if s.weighting == "uniform":
        edges = torch.tensor([0, m], dtype=torch.int64, device=device)
        return edges, torch.full((1,), 1 / m, dtype=torch.float64, device=device)
    parts = triton.cdiv(m, _PART)
    sums = torch.empty(parts, dtype=torch.float64, device=device)
    _part_sums[(triton.cdiv(parts, 8),)](mass, sums, m, window, parts, PART=_PART)
    lanes = triton.next_power_of_2(s.clusters)
    centres = torch.zeros(lanes + 1, dtype=torch.float64, device=device)
    edges = torch.zeros(lanes + 1, dtype=torch.int64, device=device)
    weights = torch.empty(s.clusters, dtype=torch.float64, device=device)
    _lloyd[(1,)](
        mass, torch.cumsum(sums, 0), centres, edges, weights, m, window, s.clusters, s.iterations,
        LANES=lanes, PROBES=_PROBES, PART=_PART, num_warps=8,
    )  # fmt: skip
    return edges[: s.clusters + 1], weights


@triton.jit
def _unpack(key, mass, hits, n, BLOCK: tl.constexpr):
    """Probability and mark of each sorted key, shifted by one for a leading 0."""
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = j < n
    bits = tl.load(key + j, mask=inside, other=0)
    tl.store(mass + j + 1, (bits >> 1).to(tl.float32, bitcast=True).to(tl.float64), mask=inside)
    tl.store(hits + j + 1, bits & 1, mask=inside)


@triton.jit
def _window_sum(mass, k, window, inside):
    return tl.load(mass + k + window, mask=inside, other=0.0) - tl.load(mass + k, mask=inside, other=0.0)


@triton.jit
def _part_sums(mass, sums, m, window, parts, PART: tl.constexpr):
    """Sum of the window sums over each run of PART windows."""
    part = tl.program_id(0).to(tl.int64) * 8 + tl.arange(0, 8)
    k = part[:, None] * PART + tl.arange(0, PART)[None, :]
    tl.store(sums + part, tl.sum(_window_sum(mass, k, window, k < m), axis=1), mask=part < parts)


@triton.jit
def _sum_before(mass, prefix, edge, window, PART: tl.constexpr):
    """Total of the window sums before each edge: whole parts, then the rest of one part."""
    part = edge // PART
    base = tl.load(prefix + part - 1, mask=part > 0, other=0.0)
    k = part[:, None] * PART + tl.arange(0, PART)[None, :]
    return base + tl.sum(_window_sum(mass, k, window, k < edge[:, None]), axis=1)


@triton.jit
def _lloyd(
    mass, prefix, centres, edges, weights, m, window, clusters, iterations,
    LANES: tl.constexpr, PROBES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Exactly ``iterations`` Lloyd steps on ascending window sums, by one program.

    A boundary is searched with PROBES loads at a time: five rounds for 25 million windows, not 25.
    """
    i = tl.arange(0, LANES)
    j = tl.arange(0, PROBES)
    used = i < clusters
    at = (i.to(tl.float64) + 0.5) / clusters * (m - 1)
    low = tl.minimum(at.to(tl.int64), m - 1)
    a = _window_sum(mass, low, window, used)
    b = _window_sum(mass, tl.minimum(low + 1, m - 1), window, used)
    tl.store(centres + i, a + (b - a) * (at - low.to(tl.float64)), mask=used)
    for step in range(iterations + 1):
        tl.debug_barrier()
        centre = tl.load(centres + i, mask=used, other=0.0)
        following = tl.load(centres + i + 1, mask=i + 1 < clusters, other=0.0)
        middle = (centre + following) / 2
        middle += middle * 1e-10  # HALF_WAY of the settings: rounding must not decide ties
        found = tl.zeros([LANES], dtype=tl.int64)
        width = tl.zeros([], dtype=tl.int64) + m
        while width > 0:
            stride = (width + PROBES - 1) // PROBES
            position = found[:, None] + (j[None, :] + 1) * stride - 1
            inside = position < m
            below = inside & (_window_sum(mass, position, window, inside) <= middle[:, None])
            found += tl.sum(below.to(tl.int64), axis=1) * stride
            width = stride - 1
        found = tl.where(i + 1 < clusters, found, m)
        tl.store(edges + i + 1, found, mask=used)
        tl.debug_barrier()
        start = tl.load(edges + i, mask=used, other=0)
        count = (found - start).to(tl.float64)
        if step < iterations:
            upper = _sum_before(mass, prefix, found, window, PART)
            lower = _sum_before(mass, prefix, start, window, PART)
            moved = tl.where(count > 0, (upper - lower) / tl.maximum(count, 1.0), centre)
            tl.store(centres + i, moved, mask=used)
        else:
            tl.store(weights + i, 1.0 / (clusters * tl.maximum(count, 1.0)), mask=used)


@triton.jit
def _windows(
    mass, hits, edges, weights, slope, partial, m, window, epsilon,
    CLUSTERS: tl.constexpr, SQUARED: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weighted excess of each window, summed by block, and its slope."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = k < m
    total = _window_sum(mass, k, window, inside)
    count = tl.load(hits + k + window, mask=inside, other=0) - tl.load(hits + k, mask=inside, other=0)
    error = (total - count.to(tl.float64)) / window
    weight = tl.load(weights) + tl.zeros([BLOCK], dtype=tl.float64)
    for c in tl.static_range(1, CLUSTERS):
        weight = tl.where(k >= tl.load(edges + c), tl.load(weights + c), weight)
    excess = tl.maximum(tl.abs(error) - epsilon, 0.0)
    gradient = tl.where(error > 0, weight, -weight)
    if SQUARED:
        gradient = gradient * 2 * excess
        excess = excess * excess
    active = inside & (excess > 0)
    tl.store(partial + tl.program_id(0), tl.sum(tl.where(active, weight * excess, 0.0), axis=0))
    if GRAD:
        tl.store(slope + k, tl.where(active, gradient, 0.0), mask=inside)


@triton.jit
def _spread(total, order, grad, n, m, window, factor, BLOCK: tl.constexpr):
    """Gradient at rank j: the slopes of the windows j − window + 1 .. j, as a difference of prefix sums."""
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = j < n
    upper = tl.load(total + tl.minimum(j, m - 1), mask=inside, other=0.0)
    lower = tl.load(total + j - window, mask=inside & (j >= window), other=0.0)
    where = tl.load(order + j, mask=inside, other=0)
    tl.store(grad + where, ((upper - lower) * factor).to(tl.float32), mask=inside)
