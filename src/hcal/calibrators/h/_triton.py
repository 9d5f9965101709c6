"""The default's prediction in float32 on CUDA: one kernel, and a row never leaves the registers.

The same steps as :mod:`hcal.calibrators.h._compiled`; what is one number a row is computed in float64.
"""

# mypy: ignore-errors
# Triton compiles these functions itself: their arguments are pointers, whose types Python cannot say.

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Rows wider than this go through plain torch operations.
MAX_CLASSES = 8192
# Where the parameters of a row stand in one array of float64.
_SCALER, _WEIGHTS = tl.constexpr(4), tl.constexpr(28)
_WIDEST = tl.constexpr(30.0)
_CELLS = tl.constexpr(2.0)  # cells of the curve's table a unit of margin
_FAR = tl.constexpr(1e15)


class Form(NamedTuple):
    """A model as the kernel reads it.

    Attributes
    ----------
    rows : Tensor of float64
        Four numbers that float32 (what Triton takes single numbers for) would round, scaler and weights of the
        features, then three curves: scaler, how many knots, knots, weights.
    classes : Tensor of shape (5, K), float64
        Bias of the rest, class terms of the first and of the last curve, bias of the pool, place by preference.
    order : Tensor of shape (K,), int32
        Classes by preference.
    table : Tensor of shape (2, cells), float32
        Intercept and slope of g.
    matrix : Tensor of shape (K, K), float32, or empty
    curves : (int, int, int)
        Where the curves begin in ``rows``.
    numbers : dict
        Single numbers.
    """

    rows: Tensor
    classes: Tensor
    order: Tensor
    table: Tensor
    matrix: Tensor
    curves: tuple[int, int, int]
    numbers: dict[str, float]


def predict(form: Form, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities (N, K) of logits (N, K), and two flags: a score that is not sound, or no probability."""
    n, k = z.shape
    out, flags = torch.empty_like(z), torch.zeros(2, dtype=torch.int32, device=z.device)
    width = triton.next_power_of_2(k)
    rows = max(1, 1024 // width)
    _predict[(triton.cdiv(n, rows),)](
        z, out, flags, form.rows, form.classes, form.order, form.table, form.matrix, n, k,
        form.table.shape[1] - 1, *form.curves,
        **form.numbers,
        HAS_MATRIX=form.matrix.numel() > 0, WIDTH=width, ROWS=rows, num_warps=min(16, max(4, width // 256)),
    )  # fmt: skip
    return out, flags


@triton.jit
def _correct(odds, x0, x1, x2, x3, x4, x5, rows, at, WITH_FEATURES: tl.constexpr):
    """The curve of an event without its class term."""
    mean, deviation = tl.load(rows + at), tl.load(rows + at + 1)
    z = tl.minimum(tl.maximum((odds - mean) / deviation, tl.load(rows + at + 2)), tl.load(rows + at + 3))
    knots = tl.load(rows + at + 4).to(tl.int32)
    weights = rows + at + 5 + knots
    change = tl.load(weights) + tl.load(weights + 1) * z
    for j in range(knots):
        change += tl.load(weights + 2 + j) * tl.maximum(z - tl.load(rows + at + 5 + j), 0.0)
    if WITH_FEATURES:
        more = weights + 2 + knots
        change += tl.load(more) * x0 + tl.load(more + 1) * x1 + tl.load(more + 2) * x2
        change += tl.load(more + 3) * x3 + tl.load(more + 4) * x4 + tl.load(more + 5) * x5
    return odds + change


@triton.jit
def _standard(x, rows, j: tl.constexpr):
    mean, deviation = tl.load(rows + _SCALER + j), tl.load(rows + _SCALER + 6 + j)
    low, high = tl.load(rows + _SCALER + 12 + j), tl.load(rows + _SCALER + 18 + j)
    return tl.minimum(tl.maximum((x - mean) / deviation, low), high)


@triton.jit
def _just_above(p):
    """The next float32 above a positive one."""
    return (p.to(tl.int32, bitcast=True) + 1).to(tl.float32, bitcast=True)


@triton.jit
def _first(value, is_best, column, WIDTH: tl.constexpr):
    return tl.min(tl.where(is_best, column, WIDTH), axis=1)


@triton.jit
def _level(p, on_top, inside, column, k, just_below, WIDTH: tl.constexpr):
    """Classes that tie on top get one probability, their mean, and others are drawn below it."""
    tied = tl.sum(on_top.to(tl.int32), axis=1).to(tl.float64)
    lower = inside & (on_top == 0)
    level = tl.sum(tl.where(on_top, p, 0.0), axis=1).to(tl.float64) / tied
    mean = tl.sum(tl.where(lower, p, 0.0), axis=1).to(tl.float64) / tl.maximum(k - tied, 1.0)
    most = tl.max(tl.where(lower, p, 0.0), axis=1).to(tl.float64)
    w = (most - level * just_below) / tl.maximum(most - mean, 1e-300)
    w = tl.minimum(tl.maximum(w, 0.0), 1.0)
    flat = 1.0 / (tied + (k - tied) * just_below)
    under = mean >= level * just_below
    level, mean = tl.where(under, flat, level), tl.where(under, flat * just_below, mean)
    w = tl.where(under, 1.0, w)
    keep, plus = (1.0 - w).to(tl.float32), (w * mean).to(tl.float32)
    new = tl.where(on_top, level.to(tl.float32)[:, None], p * keep[:, None] + plus[:, None])
    new = tl.where(inside, new, 0.0)
    best = tl.max(new, axis=1)
    first = _first(new, on_top, column, WIDTH)
    lift = _first(new, new == best[:, None], column, WIDTH) != first
    new = tl.where(on_top & lift[:, None], _just_above(best)[:, None], new)
    return tl.where((tied > 1.5)[:, None], new, p)


@triton.jit
def _predict(
    z_at, out_at, flags, rows, classes, order, table, matrix, n, k, cells, curve, final, last,
    beta, kappa, far, lift, events, refined_share, cap, scale_share, lowest,
    HAS_MATRIX: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(row, n - 1)  # beyond the end the last row is made again
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row[:, None] < n) & (column < k)
    just_below, floor, classes_n, tiny = (
        tl.load(rows),
        tl.load(rows + 1),
        tl.load(rows + 2),
        tl.load(rows + 3),
    )
    at = row[:, None] * k + column
    z = tl.load(z_at + at, mask=inside, other=0.0)
    odd = inside & ((z > _FAR) | (z < -_FAR) | (z != z))
    if tl.max(tl.max(odd.to(tl.int32), axis=1), axis=0) > 0:
        tl.store(flags, 1)
    if tl.max(tl.max((inside & ((z < 0.0) | (z > 1.0))).to(tl.int32), axis=1), axis=0) > 0:
        tl.store(flags + 1, 1)
    z = tl.where(inside, z, float("-inf"))

    # margins, and the top class: the preferred of those that tie
    highest = tl.max(z, axis=1)
    on_top = inside & (z == highest[:, None])
    m = tl.where(inside, tl.minimum((highest[:, None] - z) * beta, far), far)
    place = tl.load(classes + 4 * k + column, mask=column < k, other=0.0).to(tl.int32)
    best = tl.min(tl.where(on_top, place, WIDTH - 1), axis=1)
    top = tl.load(order + tl.minimum(best, k - 1))
    is_top = column == top[:, None]
    below = inside & (column != top[:, None])

    # features
    e = tl.where(inside, tl.exp(-m), 0.0)
    half = tl.sqrt(e)
    mass = tl.sum(e, axis=1).to(tl.float64)
    log_z = tl.log(mass)
    weighted = tl.sum(e * m, axis=1).to(tl.float64)
    total_m = tl.sum(tl.where(inside, m, 0.0), axis=1).to(tl.float64)
    x0 = tl.log(1.0 + tl.min(tl.where(below, m, far), axis=1).to(tl.float64))
    x1 = tl.log(floor + log_z)
    x2 = tl.log(floor + log_z + weighted / mass)
    x3 = tl.log(1.0 + total_m / classes_n)
    x4 = tl.log(tl.sum(half, axis=1).to(tl.float64)) - 0.5 * log_z
    x5 = tl.log(tl.sum(tl.sqrt(half), axis=1).to(tl.float64)) - 0.25 * log_z
    x0, x1, x2 = _standard(x0, rows, 0), _standard(x1, rows, 1), _standard(x2, rows, 2)
    x3, x4, x5 = _standard(x3, rows, 3), _standard(x4, rows, 4), _standard(x5, rows, 5)
    w = rows + _WEIGHTS
    scale = tl.load(w) * x0 + tl.load(w + 1) * x1 + tl.load(w + 2) * x2
    scale += tl.load(w + 3) * x3 + tl.load(w + 4) * x4 + tl.load(w + 5) * x5
    scale = tl.exp(tl.minimum(tl.maximum(scale, -_WIDEST), _WIDEST))

    # stage 1: g(margin)·scale; stage 2: the top-label event, and the classes below it
    cell = tl.minimum(m * _CELLS, cells * 1.0).to(tl.int32)
    refined = tl.load(table + cell) + tl.load(table + cells + 1 + cell) * m
    refined = refined * scale.to(tl.float32)[:, None]
    odds = -tl.log(tl.maximum(tl.sum(tl.where(below, tl.exp(-refined), 0.0), axis=1).to(tl.float64), tiny))
    odds = _correct(odds, x0, x1, x2, x3, x4, x5, rows, curve, True) + tl.load(classes + k + top)
    odds = _correct(odds, x0, x1, x2, x3, x4, x5, rows, final, False)
    bias = tl.load(classes + column, mask=column < k, other=0.0).to(tl.float32)
    score = tl.where(below, bias - kappa * refined, float("-inf"))
    score = tl.where(below, score - tl.max(score, axis=1)[:, None], float("-inf"))
    beyond = tl.log(1.0 + tl.exp(-tl.abs(odds)))
    won, lost = tl.minimum(odds, 0.0) - beyond, tl.minimum(-odds, 0.0) - beyond
    rest = lost - tl.log(tl.sum(tl.exp(score), axis=1).to(tl.float64))
    event = tl.where(is_top, won.to(tl.float32)[:, None], score + rest.to(tl.float32)[:, None])

    # the pool
    x = tl.minimum(m, cap)
    pooled = tl.load(classes + 3 * k + column, mask=column < k, other=0.0).to(tl.float32) - scale_share * x
    if HAS_MATRIX:
        for j in range(k):
            one = tl.sum(tl.where(column == j, x, 0.0), axis=1)
            pooled -= one[:, None] * tl.load(matrix + column * k + j, mask=column < k, other=0.0)
    pooled += events * tl.maximum(event, lowest) + refined_share * tl.maximum(-refined, lowest)
    if lift < 0:
        pooled = tl.where(inside, pooled, float("-inf"))
        top = _first(pooled, pooled == tl.max(pooled, axis=1)[:, None], column, WIDTH)
        top = tl.minimum(top, k - 1)
        is_top = column == top[:, None]
        below = inside & (column != top[:, None])
    own = tl.sum(tl.where(is_top & inside, pooled, 0.0), axis=1).to(tl.float64)
    others = tl.where(below, pooled, float("-inf"))
    high = tl.max(others, axis=1)
    p = tl.where(below, tl.exp(others - high[:, None]), 0.0)
    total = tl.sum(p, axis=1).to(tl.float64)
    odds = own - high.to(tl.float64) - tl.log(total)
    odds = _correct(odds, x0, x1, x2, x3, x4, x5, rows, last, False) + tl.load(classes + 2 * k + top)
    q = 1.0 / (1.0 + tl.exp(-odds))

    # stage 3: the argmax is kept
    even = 1.0 / (classes_n - 1.0)
    largest = 1.0 / total
    is_lost = (q < just_below * largest * (1.0 - q)) & (lift >= 0)
    middle = 0.5 * (q + largest * (1.0 - q))
    lifted = tl.maximum(q + lift * (middle - q), 1.0 / classes_n / just_below)
    held = tl.where(is_lost, lifted, q)
    room = just_below * held / (1.0 - held)
    mix = (largest - room) / tl.maximum(largest - even, 1e-12)
    mix = tl.where(is_lost, tl.minimum(tl.maximum(mix, 0.0), 1.0), 0.0)
    times = ((1.0 - held) * (1.0 - mix) / total).to(tl.float32)
    plus = ((1.0 - held) * mix * even).to(tl.float32)
    p = tl.where(below, p * times[:, None] + plus[:, None], 0.0)
    first_p = held.to(tl.float32)
    if lift >= 0:
        most = tl.max(p, axis=1)
        earlier = _first(p, below & (p == most[:, None]), column, WIDTH) < top
        passed = (most > first_p) | ((most == first_p) & earlier)
        first_p = tl.where(passed, _just_above(most), first_p)
    p = tl.where(is_top, first_p[:, None], p)
    if lift >= 0:
        if tl.max(tl.sum(on_top.to(tl.int32), axis=1), axis=0) > 1:
            p = _level(p, on_top, inside, column, classes_n, just_below, WIDTH)
    tl.store(out_at + at, p, mask=inside)
