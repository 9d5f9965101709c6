"""The objective of one family in float32 on CUDA: torch's radix sort and scans, the rest in a few kernels.

What plain torch operations do in thirty passes over n events, each a launch and a round trip to memory, is
done in a handful. Events that tie in probability and mark share their mean gradient, as on every engine: a
run of ties is found by a search in the sorted keys, only where there is one, and its mean is a difference of
prefix sums.
"""

# mypy: ignore-errors
# Triton compiles these functions itself: their arguments are pointers, whose types Python cannot say.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hcal.h_calibration.definition import ObjectiveSettings

_BLOCK = 1024
_PROBES = 256
# Window sums are totalled over runs of so many windows; a cluster's total is then a few loads.
_PART = 256


def families_loss(
    q: Tensor, marks: Tensor, s: ObjectiveSettings, need_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the loss (float64 scalar) of ONE row of events q (1, n) with marks, and its gradient (1, n)."""
    p = q.reshape(-1).contiguous()
    o = marks.reshape(-1).contiguous().view(torch.int8)
    n = len(p)
    key = torch.empty(n, dtype=torch.int32, device=p.device)
    _pack[(triton.cdiv(n, _BLOCK),)](p, o, key, n, BLOCK=_BLOCK)
    loss, grad = _keyed_loss(key, s, need_grad)
    return loss, None if grad is None else grad[None]


def _keyed_loss(key: Tensor, s: ObjectiveSettings, need_grad: bool) -> tuple[Tensor, Tensor | None]:
    """Loss and gradient of events given as (bits of the probability, mark) in one integer."""
    key, order = torch.sort(key)
    n = len(key)
    window = min(s.window, n)
    m = n - window + 1
    mass, hits = _prefix_sums(key)
    edges, weights = _clusters(mass, window, m, s)
    blocks = triton.cdiv(n, _BLOCK)
    size = n if need_grad else 1
    ranked = torch.empty(size, dtype=torch.float32, device=key.device)
    prefix = torch.empty(size, dtype=torch.float64, device=key.device)
    partial = torch.empty(blocks, dtype=torch.float64, device=key.device)
    total_of = torch.zeros(blocks + 1, dtype=torch.float64, device=key.device)
    _windows[(blocks,)](
        mass, hits, edges, weights, ranked, prefix, total_of, partial, n, m, window,
        s.scale / window, EPSILON=s.epsilon,
        CLUSTERS=len(weights), LANES=triton.next_power_of_2(len(weights)), SQUARED=s.norm == 2,
        GRAD=need_grad, BLOCK=_BLOCK, BEFORE=min(_BLOCK, triton.next_power_of_2(window)),
    )  # fmt: skip
    loss = partial.sum() * s.scale
    if not need_grad:
        return loss, None
    grad = torch.empty_like(ranked)
    leap = 1 << (n.bit_length() - 1)
    _mean_over_ties[(blocks,)](
        key, order, ranked, prefix, torch.cumsum(total_of, 0), grad, n, leap, BLOCK=_BLOCK
    )
    return loss, grad


def _prefix_sums(key: Tensor) -> tuple[Tensor, Tensor]:
    """Prefix sums (n + 1,) of the sorted probabilities in float64 and of the marks, with a leading 0.

    By blocks: their totals, the prefix sums of those, then every block again from where it starts. That
    reads the keys twice, which costs half of what unpacking them to float64 and scanning that would.
    """
    n = len(key)
    device = key.device
    blocks = triton.cdiv(n, _BLOCK)
    mass_of = torch.zeros(blocks + 1, dtype=torch.float64, device=device)
    hits_of = torch.zeros(blocks + 1, dtype=torch.int32, device=device)
    _block_totals[(blocks,)](key, mass_of, hits_of, n, BLOCK=_BLOCK)
    mass = torch.empty(n + 1, dtype=torch.float64, device=device)
    hits = torch.empty(n + 1, dtype=torch.int32, device=device)
    mass_start = torch.cumsum(mass_of, 0)
    hits_start = torch.cumsum(hits_of, 0, dtype=torch.int32)
    _prefix_of_block[(blocks,)](key, mass_start, hits_start, mass, hits, n, BLOCK=_BLOCK)
    return mass, hits


def _clusters(mass: Tensor, window: int, m: int, s: ObjectiveSettings) -> tuple[Tensor, Tensor]:
    """Edges (C + 1,) of the clusters of windows, and the weight of each (C,)."""
    device = mass.device
    if s.weighting == "uniform":
        edges = torch.arange(2, dtype=torch.int64, device=device) * m
        return edges, torch.full((1,), 1 / m, dtype=torch.float64, device=device)
    parts = triton.cdiv(m, _PART)
    sums = torch.empty(parts, dtype=torch.float64, device=device)
    _part_sums[(triton.cdiv(parts, 8),)](mass, sums, m, window, parts, PART=_PART)
    lanes = triton.next_power_of_2(s.clusters)
    centres = torch.zeros(lanes + 1, dtype=torch.float64, device=device)
    edges = torch.zeros(lanes + 1, dtype=torch.int64, device=device)
    weights = torch.empty(s.clusters, dtype=torch.float64, device=device)
    _kmeans_edges[(1,)](
        mass, torch.cumsum(sums, 0), centres, edges, weights, m, window, s.clusters, s.iterations,
        LANES=lanes, PROBES=_PROBES, PART=_PART, num_warps=8,
    )  # fmt: skip
    return edges[: s.clusters + 1], weights


@triton.jit
def _pack(p, marks, key, n, BLOCK: tl.constexpr):
    """The bits of each probability with its mark below them; the sign of -0.0 falls off."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = j < n
    mark = tl.load(marks + j, mask=inside, other=0).to(tl.int32)
    bits = tl.load(p + j, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    tl.store(key + j, (bits << 1) | mark, mask=inside)


@triton.jit
def _unpack(key, j, inside):
    bits = tl.load(key + j, mask=inside, other=0)
    p = (bits >> 1).to(tl.float32, bitcast=True)
    return p.to(tl.float64), bits & 1


@triton.jit
def _block_totals(key, mass_of, hits_of, n, BLOCK: tl.constexpr):
    """Totals of each block, shifted by one for a leading 0."""
    block = tl.program_id(0)
    j = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    p, mark = _unpack(key, j, j < n)
    tl.store(mass_of + block + 1, tl.sum(p, axis=0))
    tl.store(hits_of + block + 1, tl.sum(mark, axis=0))


@triton.jit
def _prefix_of_block(key, mass_start, hits_start, mass, hits, n, BLOCK: tl.constexpr):
    """Prefix sums of each block from its start, shifted by one for a leading 0."""
    block = tl.program_id(0)
    j = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = j < n
    p, mark = _unpack(key, j, inside)
    mass_so_far = tl.load(mass_start + block) + tl.cumsum(p, axis=0)
    hits_so_far = tl.load(hits_start + block) + tl.cumsum(mark, axis=0)
    tl.store(mass + j + 1, mass_so_far, mask=inside)
    tl.store(hits + j + 1, hits_so_far, mask=inside)
    if block == 0:
        tl.store(mass, 0.0)
        tl.store(hits, 0)


@triton.jit
def _window_sum(mass, k, window, inside):
    upto = tl.load(mass + k + window, mask=inside, other=0.0)
    before = tl.load(mass + k, mask=inside, other=0.0)
    return upto - before


@triton.jit
def _part_sums(mass, sums, m, window, parts, PART: tl.constexpr):
    """Sum of the window sums over each run of PART windows."""
    part = tl.program_id(0).to(tl.int64) * 8 + tl.arange(0, 8)
    k = part[:, None] * PART + tl.arange(0, PART)[None, :]
    total = tl.sum(_window_sum(mass, k, window, k < m), axis=1)
    tl.store(sums + part, total, mask=part < parts)


@triton.jit
def _sum_before(mass, prefix, edge, window, PART: tl.constexpr):
    """Total of the window sums before each edge: whole parts, then the rest of one part."""
    part = edge // PART
    base = tl.load(prefix + part - 1, mask=part > 0, other=0.0)
    k = part[:, None] * PART + tl.arange(0, PART)[None, :]
    rest = _window_sum(mass, k, window, k < edge[:, None])
    return base + tl.sum(rest, axis=1)


@triton.jit
def _kmeans_edges(
    mass, prefix, centres, edges, weights, m, window, clusters, iterations,
    LANES: tl.constexpr, PROBES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Exactly ``iterations`` Lloyd steps on ascending window sums, by one program.

    A boundary is searched with PROBES loads at a time: five rounds for 25 million windows, not 25.
    """
    i = tl.arange(0, LANES)
    j = tl.arange(0, PROBES)
    used = i < clusters
    has_next = i + 1 < clusters
    place = (i.to(tl.float64) + 0.5) / clusters * (m - 1)
    low = tl.minimum(place.to(tl.int64), m - 1)
    below = _window_sum(mass, low, window, used)
    above = _window_sum(mass, tl.minimum(low + 1, m - 1), window, used)
    start_centre = below + (above - below) * (place - low.to(tl.float64))
    tl.store(centres + i, start_centre, mask=used)
    for step in range(iterations + 1):
        tl.debug_barrier()
        centre = tl.load(centres + i, mask=used, other=0.0)
        following = tl.load(centres + i + 1, mask=has_next, other=0.0)
        middle = (centre + following) / 2
        middle += middle * 1e-10  # HALF_WAY of the settings: rounding must not decide ties

        edge = tl.zeros([LANES], dtype=tl.int64)
        width = tl.zeros([], dtype=tl.int64) + m
        while width > 0:
            stride = (width + PROBES - 1) // PROBES
            position = edge[:, None] + (j[None, :] + 1) * stride - 1
            inside = position < m
            sums = _window_sum(mass, position, window, inside)
            is_below = inside & (sums <= middle[:, None])
            edge += tl.sum(is_below.to(tl.int64), axis=1) * stride
            width = stride - 1
        edge = tl.where(has_next, edge, m)
        tl.store(edges + i + 1, edge, mask=used)
        tl.debug_barrier()

        start = tl.load(edges + i, mask=used, other=0)
        count = (edge - start).to(tl.float64)
        size = tl.maximum(count, 1.0)
        if step < iterations:
            upper = _sum_before(mass, prefix, edge, window, PART)
            lower = _sum_before(mass, prefix, start, window, PART)
            moved = tl.where(count > 0, (upper - lower) / size, centre)
            tl.store(centres + i, moved, mask=used)
        else:
            tl.store(weights + i, 1.0 / (clusters * size), mask=used)


@triton.jit
def _weight(edges, weights, k, first, last, CLUSTERS: tl.constexpr, LANES: tl.constexpr):
    """Weight of each window k, all of them in first..last: nearly always that of ONE cluster."""
    c = tl.arange(0, LANES)
    edge = tl.load(edges + c, mask=(c >= 1) & (c < CLUSTERS), other=1 << 62)
    low = tl.sum((edge <= first).to(tl.int32), axis=0)
    high = tl.sum((edge <= last).to(tl.int32), axis=0)
    weight = k.to(tl.float64) * 0.0 + tl.load(weights + low)
    for cluster in range(low + 1, high + 1):
        start = tl.load(edges + cluster)
        of_cluster = tl.load(weights + cluster)
        weight = tl.where(k >= start, of_cluster, weight)
    return weight


@triton.jit
def _slopes(
    mass, hits, edges, weights, first, window, m, EPSILON: tl.constexpr,
    CLUSTERS: tl.constexpr, LANES: tl.constexpr, SQUARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weighted excess of the windows first .. first + BLOCK − 1, and their slopes; 0 where there is none."""
    k = first + tl.arange(0, BLOCK)
    inside = (k >= 0) & (k < m)
    total = _window_sum(mass, k, window, inside)
    hits_upto = tl.load(hits + k + window, mask=inside, other=0)
    hits_before = tl.load(hits + k, mask=inside, other=0)
    count = (hits_upto - hits_before).to(tl.float64)
    share = tl.full([], 1.0, tl.float64) / window  # a bare 1.0 would be float32
    error = (total - count) * share
    weight = _weight(edges, weights, k, first, first + BLOCK - 1, CLUSTERS, LANES)
    weight = tl.where(inside, weight, 0.0)
    excess = tl.abs(error) - tl.full([], EPSILON, tl.float64)  # an argument would be float32
    # EVEN of the settings: a sum that equals its count up to rounding has no sign
    excess = tl.where(excess > count * share * 1e-9, excess, 0.0)
    signed_weight = tl.where(error > 0, weight, -weight)
    slope = tl.where(excess > 0, signed_weight, 0.0)
    if SQUARED:
        slope = slope * 2 * excess
        excess = excess * excess
    return weight * excess, slope


@triton.jit
def _windows(
    mass, hits, edges, weights, ranked, prefix, total_of, partial, n, m, window, factor,
    EPSILON: tl.constexpr, CLUSTERS: tl.constexpr, LANES: tl.constexpr, SQUARED: tl.constexpr,
    GRAD: tl.constexpr, BLOCK: tl.constexpr, BEFORE: tl.constexpr,
):  # fmt: skip
    """Loss of the windows of a block of ranks; the gradient at those ranks, its prefix sums and its total.

    The gradient at rank j is the sum of the slopes of windows j − window + 1 .. j. Slopes are computed again
    where they are needed, from prefix sums that are in the cache by then: writing them out, scanning them
    and reading them back would cost three times the traffic.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    j = start + tl.arange(0, BLOCK)
    excess, entering = _slopes(
        mass, hits, edges, weights, start, window, m, EPSILON, CLUSTERS, LANES, SQUARED, BLOCK
    )
    tl.store(partial + tl.program_id(0), tl.sum(excess, axis=0))
    if GRAD:
        _other, leaving = _slopes(
            mass, hits, edges, weights, start - window, window, m, EPSILON,
            CLUSTERS, LANES, SQUARED, BLOCK,
        )  # fmt: skip
        before = tl.zeros([BEFORE], dtype=tl.float64)
        for first in range(0, window, BEFORE):
            _excess, slope = _slopes(
                mass, hits, edges, weights, start - window + first, window, m, EPSILON,
                CLUSTERS, LANES, SQUARED, BEFORE,
            )  # fmt: skip
            is_before = first + tl.arange(0, BEFORE) < window
            before += tl.where(is_before, slope, 0.0)
        inside = j < n
        change = tl.cumsum(entering - leaving, axis=0)
        total = tl.sum(before, axis=0) + change
        total = tl.where(inside, total * factor, 0.0)
        tl.store(ranked + j, total.to(tl.float32), mask=inside)
        tl.store(prefix + j, tl.cumsum(total, axis=0), mask=inside)
        tl.store(total_of + tl.program_id(0) + 1, tl.sum(total, axis=0))


@triton.jit
def _mean_over_ties(key, order, ranked, prefix, start_of, grad, n, leap, BLOCK: tl.constexpr):
    """Hand every event its gradient: that of its rank, or the mean over the ranks that tie with it.

    ``prefix`` begins anew in each block, ``start_of`` says where: a run within a block loses no digits.
    """
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = j < n
    at_j = tl.load(key + j, mask=inside, other=-1)
    at_previous = tl.load(key + j - 1, mask=inside & (j > 0), other=-1)
    at_next = tl.load(key + j + 1, mask=j + 1 < n, other=-1)
    tied = inside & ((at_j == at_previous) | (at_j == at_next))
    value = tl.load(ranked + j, mask=inside, other=0.0)
    if tl.sum(tied.to(tl.int32), axis=0) > 0:
        first = tl.zeros([BLOCK], dtype=tl.int64)
        end = tl.zeros([BLOCK], dtype=tl.int64)
        step = tl.zeros([], dtype=tl.int64) + leap
        while step > 0:  # how many keys are below that of an event, and how many are not above it
            low = first + step
            high = end + step
            at_low = tl.load(key + low - 1, mask=tied & (low <= n), other=0x7FFFFFFF)
            at_high = tl.load(key + high - 1, mask=tied & (high <= n), other=0x7FFFFFFF)
            first = tl.where(at_low < at_j, low, first)
            end = tl.where(at_high <= at_j, high, end)
            step = step // 2

        last = end - 1
        ahead = first - 1
        has_ahead = tied & (first > 0)
        within_last = tl.load(prefix + last, mask=tied, other=0.0)
        within_ahead = tl.load(prefix + ahead, mask=has_ahead, other=0.0)
        start_of_last = tl.load(start_of + last // BLOCK, mask=tied, other=0.0)
        start_of_ahead = tl.load(start_of + ahead // BLOCK, mask=has_ahead, other=0.0)
        total = (start_of_last - start_of_ahead) + (within_last - within_ahead)
        mean = total / tl.maximum(end - first, 1).to(tl.float64)
        value = tl.where(tied, mean.to(tl.float32), value)
    position = tl.load(order + j, mask=inside, other=0)
    tl.store(grad + position, value, mask=inside)
