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
# What is the same for all classes stands in one array: single numbers, then lines of LANES floats (the six
# features: mean, deviation, low, high, weight, and weight in the first curve), then for each of three curves
# a line of numbers (mean, deviation, low, high, constant, slope), one of knots and one of their weights.
NUMBERS = ("beta", "kappa", "far", "floor", "tiny", "lift", "events", "refined", "cap", "scale", "lowest")
LANES = 16
_LANES = tl.constexpr(LANES)
_WIDEST = tl.constexpr(30.0)
_CELLS = tl.constexpr(2.0)  # cells of the curve's table a unit of margin
_FAR = tl.constexpr(1e15)


class Form(NamedTuple):
    """A model as the kernel reads it.

    Attributes
    ----------
    rows : Tensor of shape (16, LANES), float32
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
    rows = max(1, 128 // width)
    _predict[(triton.cdiv(n, rows),)](
        z, out, flags, form.rows, form.classes, form.order, form.table, form.matrix, n, k,
        form.table.shape[1] - 1,
        FREE=form.free, HAS_MATRIX=form.matrix.numel() > 0, WIDTH=width, ROWS=rows,
        num_warps=min(16, max(1, width // 1024)),  # every thread of a row computes the row's numbers: few
    )  # fmt: skip
    return out, flags


@triton.jit
def _correct(odds, rows, lane, line: tl.constexpr):
    """The curve of an event without features and class term; its hinges are lanes of one vector."""
    at = rows + line * _LANES
    z = tl.minimum(tl.maximum((odds - tl.load(at)) / tl.load(at + 1), tl.load(at + 2)), tl.load(at + 3))
    knots, weights = tl.load(at + _LANES + lane), tl.load(at + 2 * _LANES + lane)
    hinges = weights[None, :] * tl.maximum(z[:, None] - knots[None, :], 0.0)
    return odds + tl.load(at + 4) + tl.load(at + 5) * z + tl.sum(hinges, axis=1)


@triton.jit
def _just_above(p):
    """The next float above a positive one, in its width."""
    if p.dtype.primitive_bitwidth == 32:  # noqa: SIM108 (both branches of an expression would be compiled)
        bits = p.to(tl.int32, bitcast=True)
    else:
        bits = p.to(tl.int16, bitcast=True)
    return (bits + 1).to(bits.dtype).to(p.dtype, bitcast=True)


@triton.jit
def _first(is_best, column, WIDTH: tl.constexpr):
    return tl.min(tl.where(is_best, column, WIDTH), axis=1)


@triton.jit
def _level(p, on_top, tied, inside, k):
    """Classes that tie on top get one probability, their mean, and others are drawn to just below it."""
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
    return tl.where((tied > 1.5)[:, None], new, p)


@triton.jit
def _lead_all(p, on_top, inside, column, WIDTH: tl.constexpr):
    """Lift the classes on top by one unit in the last place where another comes first."""
    wide = tl.where(inside, p.to(tl.float32), -1.0)
    best = tl.max(wide, axis=1)
    passed = _first(wide == best[:, None], column, WIDTH) != _first(on_top, column, WIDTH)
    return tl.where(on_top & passed[:, None], _just_above(best.to(p.dtype))[:, None], p)


@triton.jit
def _predict(
    z_at, out_at, flags, rows, classes, order, table, matrix, n, k, cells,
    FREE: tl.constexpr, HAS_MATRIX: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(row, n - 1)  # beyond the end the last row is made again
    column, lane = tl.arange(0, WIDTH)[None, :], tl.arange(0, _LANES)
    inside = (row[:, None] < n) & (column < k)
    at = row[:, None] * k + column
    z = tl.load(z_at + at, mask=inside, other=float("-inf")).to(tl.float32)
    beta, kappa, far, floor = tl.load(rows), tl.load(rows + 1), tl.load(rows + 2), tl.load(rows + 3)
    tiny, lift, events, refined_share = (
        tl.load(rows + 4), tl.load(rows + 5), tl.load(rows + 6), tl.load(rows + 7)
    )  # fmt: skip
    cap, scale_share, lowest, count = tl.load(rows + 8), tl.load(rows + 9), tl.load(rows + 10), k * 1.0

    # what is no logit: a NaN or an infinity makes the sum one; all in [0, 1] may be probabilities
    highest = tl.max(z, axis=1)
    least = tl.min(tl.where(inside, z, highest[:, None]), axis=1)
    total_z = tl.sum(tl.where(inside, z, 0.0), axis=1)
    undefined = total_z != total_z
    odd = undefined | (highest > _FAR) | (least < -_FAR)
    if tl.max(odd.to(tl.int32), axis=0) > 0:
        tl.store(flags, 1)
    if tl.max(((least < 0.0) | (highest > 1.0)).to(tl.int32), axis=0) > 0:
        tl.store(flags + 1, 1)

    # margins, and the top class: the preferred of those that tie
    on_top = z == highest[:, None]
    m = tl.minimum((highest[:, None] - z) * beta, far)
    place = tl.load(classes + 4 * k + column, mask=column < k, other=0.0).to(tl.int32)
    top = tl.load(order + tl.minimum(tl.min(tl.where(on_top, place, k - 1), axis=1), k - 1))
    below = inside & (column != top[:, None])

    # the six features, in lanes of one vector
    e = tl.where(below, tl.exp(-m), 0.0)
    half = tl.sqrt(e)
    mass = tl.sum(e, axis=1)
    one = 1.0 + mass  # ln(1 + mass) to the last digits: what one rounds away is put back
    log_z = tl.where(one == 1.0, mass, tl.log(one) * (mass / tl.where(one == 1.0, 1.0, one - 1.0)))
    entropy = log_z + tl.sum(e * m, axis=1) / one
    runner_up = tl.min(tl.where(below, m, far), axis=1)
    mean_m = tl.sum(tl.where(inside, m, 0.0), axis=1) / count
    by_half, by_quarter = tl.sum(half, axis=1), tl.sum(tl.sqrt(half), axis=1)
    which = lane[None, :]
    x = tl.where(which == 0, 1.0 + runner_up[:, None], 1.0)
    x = tl.where(which == 1, floor + log_z[:, None], x)
    x = tl.where(which == 2, floor + entropy[:, None], x)
    x = tl.where(which == 3, 1.0 + mean_m[:, None], x)
    x = tl.where(which == 4, 1.0 + by_half[:, None], x)
    x = tl.where(which == 5, 1.0 + by_quarter[:, None], x)
    share = tl.where(which == 4, 0.5, tl.where(which == 5, 0.25, 0.0))
    x = tl.log(x) - share * log_z[:, None]
    x = (x - tl.load(rows + _LANES + which)) / tl.load(rows + 2 * _LANES + which)
    x = tl.minimum(tl.maximum(x, tl.load(rows + 3 * _LANES + which)), tl.load(rows + 4 * _LANES + which))
    scale = tl.sum(x * tl.load(rows + 5 * _LANES + which), axis=1)
    scale = tl.exp(tl.minimum(tl.maximum(scale, -_WIDEST), _WIDEST))
    by_features = tl.sum(x * tl.load(rows + 6 * _LANES + which), axis=1)

    # stage 1: g(margin)·scale; stage 2: the top-label event, and the classes below it
    t = m * _CELLS
    cell = tl.minimum(t, cells * 1.0).to(tl.int32)
    refined = tl.load(table + cell) + tl.load(table + cells + 1 + cell) * (t - cell.to(tl.float32))
    refined = refined * scale[:, None]
    odds = -tl.log(tl.maximum(tl.sum(tl.where(below, tl.exp(-refined), 0.0), axis=1), tiny))
    odds = _correct(odds, rows, lane, 7) + by_features + tl.load(classes + k + top)
    odds = _correct(odds, rows, lane, 10)
    bias = tl.load(classes + column, mask=column < k, other=0.0)
    score = tl.where(below, bias - kappa * refined, float("-inf"))
    score -= tl.max(score, axis=1)[:, None]
    small = tl.exp(-tl.abs(odds))
    one = 1.0 + small
    beyond = tl.where(one == 1.0, small, tl.log(one) * (small / tl.where(one == 1.0, 1.0, one - 1.0)))
    won = tl.maximum(tl.minimum(odds, 0.0) - beyond, lowest)
    rest = tl.minimum(-odds, 0.0) - beyond - tl.log(tl.sum(tl.exp(score), axis=1))
    event = tl.where(below, tl.maximum(score + rest[:, None], lowest), won[:, None])

    # the pool
    x = tl.minimum(m, cap)
    pooled = tl.load(classes + 3 * k + column, mask=column < k, other=0.0) - scale_share * x
    if HAS_MATRIX:
        for j in range(k):
            one_x = tl.sum(tl.where(column == j, x, 0.0), axis=1)
            pooled -= one_x[:, None] * tl.load(matrix + column * k + j, mask=column < k, other=0.0)
    pooled += events * event + refined_share * tl.maximum(-refined, lowest)
    if FREE:
        pooled = tl.where(inside, pooled, float("-inf"))
        own = tl.max(pooled, axis=1)
        top = tl.minimum(_first(pooled == own[:, None], column, WIDTH), k - 1)
        below = inside & (column != top[:, None])
    else:
        own = tl.sum(tl.where(column == top[:, None], pooled, 0.0), axis=1)
    others = tl.where(below, pooled, float("-inf"))
    high = tl.max(others, axis=1)
    p = tl.exp(others - high[:, None])
    total = tl.sum(p, axis=1)
    odds = _correct(own - high - tl.log(total), rows, lane, 13) + tl.load(classes + 2 * k + top)
    q, left = 1.0 / (1.0 + tl.exp(-odds)), 1.0 / (1.0 + tl.exp(odds))  # 1 − q would lose the digits of left

    # stage 3: the argmax is kept; the largest of the others is times + plus
    mix = q * 0.0
    if not FREE:
        largest = 1.0 / total
        is_lost = q < largest * left
        held = tl.maximum(q + lift * 0.5 * (largest * left - q), 1.0 / count)
        room = held / tl.maximum(1.0 - held, 1e-12)
        mix = (largest - room) / tl.maximum(largest - 1.0 / (count - 1.0), 1e-12)
        mix = tl.where(is_lost, tl.minimum(tl.maximum(mix, 0.0), 1.0), 0.0)
        q, left = tl.where(is_lost, held, q), tl.where(is_lost, 1.0 - held, left)
    times, plus = left * (1.0 - mix) / total, left * mix / (count - 1.0)
    if not FREE:
        q = tl.where(q <= times + plus, _just_above(times + plus), q)
    p = tl.where(below, p * times[:, None] + plus[:, None], q[:, None])
    if FREE:
        given = p.to(out_at.dtype.element_ty)
    else:
        tied = tl.sum(on_top.to(tl.int32), axis=1).to(tl.float32)
        is_tied = tl.max(tied, axis=0) > 1.5
        if is_tied:
            p = _lead_all(_level(p, on_top, tied, inside, count), on_top, inside, column, WIDTH)
        given = p.to(out_at.dtype.element_ty)
        if out_at.dtype.element_ty != tl.float32:
            given = _lead_all(given, on_top, inside, column, WIDTH)
    given = tl.where(undefined[:, None], float("nan"), given)
    tl.store(out_at + at, given, mask=inside)
