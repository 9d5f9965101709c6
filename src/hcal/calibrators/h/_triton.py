"""The default's prediction on CUDA in one kernel: a row is read and written once, and stays in registers.

The same steps as :mod:`hcal.calibrators.h._compiled`. What is one number a row is computed by every thread of
the row, so in float32 too: where 1 − x would lose digits, the complement is computed instead.
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
# Where numbers stand in the array of a model: single ones first (see ``NUMBERS``), scaler and weights of the
# features, then three curves: where each begins, its scaler, how many knots, knots, weights.
STAGE_NUMBERS = (
    "beta", "kappa", "far", "floor", "tiny", "lift", "events", "refined", "cap", "scale", "lowest",
)  # fmt: skip
NUMBERS = (*STAGE_NUMBERS, "count", "curve", "final", "last")
_SCALER, _WEIGHTS = tl.constexpr(len(NUMBERS)), tl.constexpr(len(NUMBERS) + 24)
_WIDEST = tl.constexpr(30.0)
_CELLS = tl.constexpr(2.0)  # cells of the curve's table a unit of margin
_FAR = tl.constexpr(1e15)


class Form(NamedTuple):
    """A model as the kernel reads it.

    Attributes
    ----------
    rows : Tensor of float32
        What is the same for all classes.
    classes : Tensor of shape (5, K), float32
        Bias of the rest, class terms of the first and the last curve, bias of the pool, place by preference.
    order : Tensor of shape (K,), int32
        Classes by preference.
    table : Tensor of shape (2, cells), float32
        g at the start of every cell, and its rise over it.
    matrix : Tensor of shape (K, K), float32, or empty
    free : bool
        Whether the argmax may change.
    """

    rows: Tensor
    classes: Tensor
    order: Tensor
    table: Tensor
    matrix: Tensor
    free: bool


def predict(form: Form, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities (N, K) of logits, and two flags: a score is not sound, is no probability."""
    n, k = z.shape
    out, flags = torch.empty_like(z), torch.zeros(2, dtype=torch.int32, device=z.device)
    width = triton.next_power_of_2(k)
    rows = max(1, 512 // width)
    _predict[(triton.cdiv(n, rows),)](
        z, out, flags, form.rows, form.classes, form.order, form.table, form.matrix, n, k,
        form.table.shape[1] - 1,
        FREE=form.free, HAS_MATRIX=form.matrix.numel() > 0, WIDTH=width, ROWS=rows,
        num_warps=min(16, max(2, width // 256)),
    )  # fmt: skip
    return out, flags


@triton.jit
def _log1p(x):
    """ln(1 + x) of x ≥ 0 to the last digits: what 1 + x rounds away is put back."""
    one = 1.0 + x
    return tl.where(one == 1.0, x, tl.log(one) * (x / tl.where(one == 1.0, 1.0, one - 1.0)))


@triton.jit
def _correct(odds, x0, x1, x2, x3, x4, x5, rows, place, WITH_FEATURES: tl.constexpr):
    """The curve of an event without its class term."""
    at = rows + tl.load(rows + place).to(tl.int32)
    z = tl.minimum(tl.maximum((odds - tl.load(at)) / tl.load(at + 1), tl.load(at + 2)), tl.load(at + 3))
    knots = tl.load(at + 4).to(tl.int32)
    weights = at + 5 + knots
    change = tl.load(weights) + tl.load(weights + 1) * z
    for j in range(knots):
        change += tl.load(weights + 2 + j) * tl.maximum(z - tl.load(at + 5 + j), 0.0)
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
    """The next float above a positive one, in its width."""
    if p.dtype.primitive_bitwidth == 32:
        bits = p.to(tl.int32, bitcast=True)
    else:
        bits = p.to(tl.int16, bitcast=True)
    return (bits + 1).to(bits.dtype).to(p.dtype, bitcast=True)


@triton.jit
def _first(is_best, column, WIDTH: tl.constexpr):
    return tl.min(tl.where(is_best, column, WIDTH), axis=1)


@triton.jit
def _lead(p, top, inside, column, WIDTH: tl.constexpr):
    """Lift the top class by one unit in the last place where another comes first."""
    wide = p.to(tl.float32)
    most = tl.max(tl.where(inside, wide, -1.0), axis=1)
    passed = _first(inside & (wide == most[:, None]), column, WIDTH) != top
    lift = passed[:, None] & (column == top[:, None])
    return tl.where(lift, _just_above(most.to(p.dtype))[:, None], p)


@triton.jit
def _level(p, on_top, inside, column, k, WIDTH: tl.constexpr):
    """Classes that tie on top get one probability, their mean, and others are drawn to just below it."""
    tied = tl.sum(on_top.to(tl.int32), axis=1).to(tl.float32)
    lower = inside & (on_top == 0)
    level = tl.sum(tl.where(on_top, p, 0.0), axis=1) / tied
    mean = tl.sum(tl.where(lower, p, 0.0), axis=1) / tl.maximum(k - tied, 1.0)
    most = tl.max(tl.where(lower, p, 0.0), axis=1)
    w = (most - level) / tl.maximum(most - mean, 1e-30)
    w = tl.minimum(tl.maximum(w, 0.0), 1.0)
    under = mean >= level
    level, mean = tl.where(under, 1.0 / k, level), tl.where(under, 1.0 / k, mean)
    w = tl.where(under, 1.0, w)
    new = tl.where(on_top, level[:, None], p * (1.0 - w)[:, None] + (w * mean)[:, None])
    first = _first(on_top, column, WIDTH)
    best = tl.max(tl.where(inside, new, -1.0), axis=1)
    lift = _first(inside & (new == best[:, None]), column, WIDTH) != first
    new = tl.where(on_top & lift[:, None], _just_above(best)[:, None], new)
    return tl.where((tied > 1.5)[:, None], new, p)


@triton.jit
def _predict(
    z_at, out_at, flags, rows, classes, order, table, matrix, n, k, cells,
    FREE: tl.constexpr, HAS_MATRIX: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(row, n - 1)  # beyond the end the last row is made again
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row[:, None] < n) & (column < k)
    at = row[:, None] * k + column
    z = tl.load(z_at + at, mask=inside, other=0.0).to(tl.float32)
    if tl.max(tl.max((inside & ((tl.abs(z) > _FAR) | (z != z))).to(tl.int32), axis=1), axis=0) > 0:
        tl.store(flags, 1)
    if tl.max(tl.max((inside & ((z < 0.0) | (z > 1.0))).to(tl.int32), axis=1), axis=0) > 0:
        tl.store(flags + 1, 1)
    z = tl.where(inside, z, float("-inf"))
    beta, kappa, far, floor, tiny = (
        tl.load(rows), tl.load(rows + 1), tl.load(rows + 2), tl.load(rows + 3), tl.load(rows + 4)
    )  # fmt: skip
    lift, events, refined_share, cap = (
        tl.load(rows + 5), tl.load(rows + 6), tl.load(rows + 7), tl.load(rows + 8)
    )  # fmt: skip
    scale_share, lowest, count = tl.load(rows + 9), tl.load(rows + 10), tl.load(rows + 11)

    # margins, and the top class: the preferred of those that tie
    highest = tl.max(z, axis=1)
    on_top = inside & (z == highest[:, None])
    m = tl.where(inside, tl.minimum((highest[:, None] - z) * beta, far), far)
    place = tl.load(classes + 4 * k + column, mask=column < k, other=0.0).to(tl.int32)
    best = tl.min(tl.where(on_top, place, WIDTH), axis=1)
    top = tl.load(order + tl.minimum(best, k - 1))
    below = inside & (column != top[:, None])

    # features
    e = tl.where(below, tl.exp(-m), 0.0)
    half = tl.sqrt(e)
    mass = tl.sum(e, axis=1)
    log_z = _log1p(mass)
    entropy = log_z + tl.sum(e * m, axis=1) / (1.0 + mass)
    x0 = _standard(tl.log(1.0 + tl.min(tl.where(below, m, far), axis=1)), rows, 0)
    x1 = _standard(tl.log(floor + log_z), rows, 1)
    x2 = _standard(tl.log(floor + entropy), rows, 2)
    x3 = _standard(tl.log(1.0 + tl.sum(tl.where(inside, m, 0.0), axis=1) / count), rows, 3)
    x4 = _standard(_log1p(tl.sum(half, axis=1)) - 0.5 * log_z, rows, 4)
    x5 = _standard(_log1p(tl.sum(tl.sqrt(half), axis=1)) - 0.25 * log_z, rows, 5)
    w = rows + _WEIGHTS
    scale = tl.load(w) * x0 + tl.load(w + 1) * x1 + tl.load(w + 2) * x2
    scale += tl.load(w + 3) * x3 + tl.load(w + 4) * x4 + tl.load(w + 5) * x5
    scale = tl.exp(tl.minimum(tl.maximum(scale, -_WIDEST), _WIDEST))

    # stage 1: g(margin)·scale; stage 2: the top-label event, and the classes below it
    t = m * _CELLS
    cell = tl.minimum(t, cells * 1.0).to(tl.int32)
    refined = tl.load(table + cell) + tl.load(table + cells + 1 + cell) * (t - cell.to(tl.float32))
    refined = refined * scale[:, None]
    odds = -tl.log(tl.maximum(tl.sum(tl.where(below, tl.exp(-refined), 0.0), axis=1), tiny))
    odds = _correct(odds, x0, x1, x2, x3, x4, x5, rows, 12, True) + tl.load(classes + k + top)
    odds = _correct(odds, x0, x1, x2, x3, x4, x5, rows, 13, False)
    bias = tl.load(classes + column, mask=column < k, other=0.0)
    score = tl.where(below, bias - kappa * refined, float("-inf"))
    score = tl.where(below, score - tl.max(score, axis=1)[:, None], float("-inf"))
    beyond = _log1p(tl.exp(-tl.abs(odds)))
    rest = tl.minimum(-odds, 0.0) - beyond - tl.log(tl.sum(tl.exp(score), axis=1))
    event = tl.where(below, score + rest[:, None], (tl.minimum(odds, 0.0) - beyond)[:, None])

    # the pool
    x = tl.minimum(m, cap)
    pooled = tl.load(classes + 3 * k + column, mask=column < k, other=0.0) - scale_share * x
    if HAS_MATRIX:
        for j in range(k):
            one = tl.sum(tl.where(column == j, x, 0.0), axis=1)
            pooled -= one[:, None] * tl.load(matrix + column * k + j, mask=column < k, other=0.0)
    pooled += events * tl.maximum(event, lowest) + refined_share * tl.maximum(-refined, lowest)
    if FREE:
        pooled = tl.where(inside, pooled, float("-inf"))
        top = _first(pooled == tl.max(pooled, axis=1)[:, None], column, WIDTH)
        top = tl.minimum(top, k - 1)
        below = inside & (column != top[:, None])
    own = tl.sum(tl.where(column == top[:, None], pooled, 0.0), axis=1)
    others = tl.where(below, pooled, float("-inf"))
    high = tl.max(others, axis=1)
    p = tl.where(below, tl.exp(others - high[:, None]), 0.0)
    total = tl.sum(p, axis=1)
    odds = _correct(own - high - tl.log(total), x0, x1, x2, x3, x4, x5, rows, 14, False)
    odds += tl.load(classes + 2 * k + top)
    q, left = 1.0 / (1.0 + tl.exp(-odds)), 1.0 / (1.0 + tl.exp(odds))  # 1 − q would lose the digits of left

    # stage 3: the argmax is kept
    mix = q * 0.0
    if not FREE:
        even, largest = 1.0 / (count - 1.0), 1.0 / total
        is_lost = q < largest * left
        held = tl.maximum(q + lift * 0.5 * (largest * left - q), 1.0 / count)
        room = held / tl.maximum(1.0 - held, 1e-12)
        mix = tl.minimum(tl.maximum((largest - room) / tl.maximum(largest - even, 1e-12), 0.0), 1.0)
        mix = tl.where(is_lost, mix, 0.0)
        q, left = tl.where(is_lost, held, q), tl.where(is_lost, 1.0 - held, left)
    times, plus = left * (1.0 - mix) / total, left * mix / (count - 1.0)
    p = tl.where(below, p * times[:, None] + plus[:, None], q[:, None])
    if not FREE:
        p = _lead(p, top, inside, column, WIDTH)
        if tl.max(tl.sum(on_top.to(tl.int32), axis=1), axis=0) > 1:
            p = _level(p, on_top, inside, column, count, WIDTH)
    undefined = tl.max((inside & (z != z)).to(tl.int32), axis=1) > 0
    given = p.to(out_at.dtype.element_ty)
    if not FREE and out_at.dtype.element_ty != tl.float32:
        given = _lead(given, _first(on_top, column, WIDTH), inside, column, WIDTH)
    given = tl.where(undefined[:, None], float("nan"), given)
    tl.store(out_at + at, given, mask=inside)
