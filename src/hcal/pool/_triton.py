"""The default's prediction on a GPU in one launch: a program computes a few rows from scores to probabilities.

The formulas are :class:`hcal.pool.map.PoolMap`, and for two classes :class:`hcal.pool.map.BinaryPoolMap`; a test
compares them. On a GPU the formulas take dozens to two hundred launches, which is all that a service with few rows
waits for. Without this file nothing changes but the time.
"""

# mypy: ignore-errors
# Triton compiles these functions itself: their arguments are pointers, whose types Python cannot say.

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from hcal.pool.map import BENDS, FLOOR, BinaryPoolMap, Curve, PoolMap

#: A program computes so many scores, or one row. Few scores a thread hide the latency of sums over a row.
_TILE = 64
#: With two classes, a program computes so many rows.
_ROWS_OF_TWO = 128
#: Places in the array of constants.
_BETA = tl.constexpr(0)
_SHARPNESS = tl.constexpr(1)
_CAP = tl.constexpr(2)
_SPREAD = tl.constexpr(3)
_WEIGHTS = tl.constexpr(7)
_BY_SPREAD = tl.constexpr(9)
_LEAST = tl.constexpr(10)
_SLOPES = tl.constexpr(11)
_N_BENDS = tl.constexpr(len(BENDS))
_BEND_POINTS = tl.constexpr(13 + len(BENDS))
_CURVES = tl.constexpr(13 + 2 * len(BENDS))
_FLOOR = tl.constexpr(FLOOR)
#: Scores further below the top count as this far below, as in :class:`hcal.maps.base.Prediction`.
_LOWEST = tl.constexpr(-1e30)
_EPS = tl.constexpr(float(np.finfo(np.float32).eps))
_ROUNDS = tl.constexpr(4)


class PoolKernel(nn.Module):
    """The constants of a fitted default, packed for the kernel."""

    def __init__(self, form: PoolMap, *, keeps_argmax: bool, least: float) -> None:
        super().__init__()
        self.register_buffer("constants", _float32(_packed(form, least)), persistent=False)
        self.first_knots = len(form.top.curve.knots)
        self.last_knots = len(form.last.curve.knots)
        self.matrix_classes = 0 if form.matrix is None else len(form.matrix)
        self.keep = form.keep
        self.keeps_argmax = keeps_argmax

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities of float32 logits (..., K) on a GPU."""
        n_classes = x.shape[-1]
        rows = x.reshape(-1, n_classes).contiguous()
        probs = torch.empty_like(rows)
        # The next power of two and a division upwards; Triton's own functions take a microsecond each.
        width = 1 << (n_classes - 1).bit_length()
        rows_of_tile = max(1, _TILE // width)
        programs = -(-len(rows) // rows_of_tile)
        if programs:
            _predict[(programs,)](
                rows, probs, self.constants, len(rows), n_classes,
                FIRST=self.first_knots, LAST=self.last_knots, MATRIX=self.matrix_classes,
                KEEP=self.keep, KEEP_ARGMAX=self.keeps_argmax, ROWS=rows_of_tile, WIDTH=width,
                num_warps=_warps(rows_of_tile * width),
            )  # fmt: skip
        return probs.reshape(x.shape)


class BinaryPoolKernel(nn.Module):
    """The lines of a fitted default of two classes, packed for the kernel."""

    def __init__(self, form: BinaryPoolMap, *, keeps_argmax: bool, least: float) -> None:
        super().__init__()
        self.register_buffer("lines", _float32(_lines(form)), persistent=False)
        self.n_lines = self.lines.shape[1]
        self.keeps_argmax = keeps_argmax
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities of float32 logits (..., 2) on a GPU."""
        rows = x.reshape(-1, 2).contiguous()
        probs = torch.empty_like(rows)
        programs = -(-len(rows) // _ROWS_OF_TWO)
        if programs:
            _predict_two[(programs,)](
                rows, probs, self.lines, len(rows), LINES=self.n_lines,
                HALVINGS=self.n_lines.bit_length(), KEEP_ARGMAX=self.keeps_argmax,
                LEAST=self.least, ROWS=_ROWS_OF_TWO,
            )  # fmt: skip
        return probs.reshape(x.shape)


def _lines(form: BinaryPoolMap) -> np.ndarray:
    """Return where each line of the table starts, its value there, its slope and its highest value, (4, lines)."""
    if len(form.knots) < 2:
        return np.array([[0.0], form.values[:1], [0.0], [np.inf]])
    widths = np.diff(form.knots)
    rises = np.diff(form.values)
    slopes = np.divide(rises, widths, out=np.zeros_like(widths), where=widths > 0)
    highest = np.append(form.values[1:-1], np.inf)
    return np.stack([form.knots[:-1], form.values[:-1], slopes, highest])


def _warps(size: int) -> int:
    """Return the warps of a program: at most eight scores a thread."""
    return int(min(max(size // 256, 1), 16))


def _float32(values: np.ndarray) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32)


def _packed(form: PoolMap, least: float) -> np.ndarray:
    """Return the constants in the order of the places above, then both curves, then the matrix times its weight."""
    margins = form.margins
    scalars = [margins.beta, margins.sharpness, margins.cap, *margins.spread, *form.weights[:2]]
    parts = [scalars, [form.last.by_spread, least], form.top.slopes, BENDS]
    curves = [_packed_curve(form.top.curve), _packed_curve(form.last.curve)]
    matrix = [] if form.matrix is None else [np.ravel(form.weights[2] * form.matrix)]
    return np.concatenate([*(np.ravel(part) for part in parts), *curves, *matrix])


def _packed_curve(curve: Curve) -> np.ndarray:
    """Return low, high, constant, slope, then the knots, then the changes of slope."""
    ends = [curve.low, curve.high, *curve.weights[:2]]
    return np.concatenate([np.ravel(ends), curve.knots, curve.weights[2:]])


@triton.jit
def _log_sigmoid(odds):
    return tl.minimum(odds, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(odds)))


@triton.jit
def _curve(constants, place, KNOTS: tl.constexpr, odds):
    """The curve whose constants begin at ``place``, at odds (ROWS,)."""
    low = tl.load(constants + place)
    high = tl.load(constants + place + 1)
    inside = tl.minimum(tl.maximum(odds, low), high)
    total = tl.load(constants + place + 2) + tl.load(constants + place + 3) * inside
    for i in tl.static_range(KNOTS):
        knot = tl.load(constants + place + 4 + i)
        weight = tl.load(constants + place + 4 + KNOTS + i)
        total += weight * tl.maximum(inside - knot, 0.0)
    return total


@triton.jit
def _shares(margin, sharpness, inside):
    """The share of the top that each class has."""
    share = tl.where(inside, tl.maximum(1.0 - margin * sharpness, 0.0), 0.0)
    return share / tl.sum(share, axis=1)[:, None]


@triton.jit
def _rest_mass(scores, outside):
    """ln Σ e^score of the classes below the top, (ROWS,)."""
    most = tl.max(tl.where(outside > 0, scores, float("-inf")), axis=1)
    mass = tl.sum(tl.where(outside > 0, outside * tl.exp(scores - most[:, None]), 0.0), axis=1)
    return most + tl.log(mass)


@triton.jit
def _lower_others(probs, shares, inside):
    """keep_top of hcal.pool.map: what overtakes the top class is set equal to it."""
    tied = 1.0 / tl.max(shares, axis=1)
    share = shares * tied[:, None]
    outside = tl.where(inside, 1.0 - share, 0.0)
    mass = tl.sum(share * probs, axis=1)
    level = mass / tied
    overtaken = tl.where((probs > level[:, None]) & (outside > 0), 1, 0)
    if tl.max(tl.max(overtaken, axis=1), axis=0) > 0:
        for _ in tl.static_range(_ROUNDS):
            over = tl.where(probs > level[:, None], outside, 0.0)
            level = (mass + tl.sum(over * probs, axis=1)) / (tied + tl.sum(over, axis=1))
    lowered = outside * tl.minimum(probs, level[:, None])
    excess = tl.sum(outside * probs - lowered, axis=1)
    # Without ties and without a class above the top this gives back the probabilities.
    return shares * (mass + excess)[:, None] + lowered


@triton.jit
def _predict(
    x, out, constants, n, k,
    FIRST: tl.constexpr, LAST: tl.constexpr, MATRIX: tl.constexpr, KEEP: tl.constexpr,
    KEEP_ARGMAX: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < n)[:, None] & (column < k)[None, :]
    place = row[:, None] * k + column[None, :]
    scores = tl.load(x + place, mask=inside, other=float("-inf"))
    # A row beyond the end is computed as zeros and never stored.
    scores = tl.where((row < n)[:, None] | (column >= k)[None, :], scores, 0.0)
    inside = (column < k)[None, :] & (row >= 0)[:, None]

    beta = tl.load(constants + _BETA)
    sharpness = tl.load(constants + _SHARPNESS)
    cap = tl.load(constants + _CAP)

    invalid = tl.sum(tl.where(inside & (scores != scores), 1, 0), axis=1) > 0
    top = tl.max(scores, axis=1)
    invalid = invalid | (tl.abs(top) == float("inf"))
    scores = tl.where(invalid[:, None], 0.0, scores)
    top = tl.where(invalid, 0.0, top)
    below = tl.where(inside, tl.maximum(scores - top[:, None], _LOWEST), 0.0)
    margin = -beta * below

    # How widely the scores of the row are spread.
    log_mean = tl.log(1.0 + tl.sum(margin, axis=1) / k)
    standard = (log_mean - tl.load(constants + _SPREAD)) / tl.load(constants + _SPREAD + 1)
    standard = tl.maximum(standard, tl.load(constants + _SPREAD + 2))
    spread = tl.minimum(standard, tl.load(constants + _SPREAD + 3))

    # Top versus rest.
    shares = _shares(margin, sharpness, inside)
    outside = tl.where(inside, 1.0 - shares, 0.0)
    slope = tl.load(constants + _SLOPES)
    slope += tl.load(constants + _SLOPES + 1 + _N_BENDS) * spread
    rest = -slope[:, None] * margin
    for i in tl.static_range(_N_BENDS):
        change = tl.load(constants + _SLOPES + 1 + i)
        bend = tl.load(constants + _BEND_POINTS + i)
        rest -= change * tl.maximum(margin - bend, 0.0)
    log_mass = _rest_mass(rest, outside)
    odds = _curve(constants, _CURVES, FIRST, -log_mass) - log_mass
    lost = rest + (_log_sigmoid(-odds) - log_mass)[:, None]
    joined = outside * lost + shares * _log_sigmoid(odds)[:, None]

    # The members, weighed.
    capped = tl.minimum(margin, cap)
    pooled = -tl.load(constants + _WEIGHTS) * capped
    pooled += tl.load(constants + _WEIGHTS + 1) * tl.maximum(joined, -_FLOOR)
    if MATRIX > 0:
        line = constants + _CURVES + 8 + 2 * (FIRST + LAST) + column * (MATRIX + 1)
        pooled += tl.load(line + MATRIX, mask=column < MATRIX, other=0.0)[None, :]
        for j in tl.static_range(MATRIX):
            of_class = tl.sum(tl.where((column == j)[None, :], capped, 0.0), axis=1)
            coefficient = tl.load(line + j, mask=column < MATRIX, other=0.0)
            pooled -= of_class[:, None] * coefficient[None, :]

    # The top is corrected.
    if not KEEP:
        likeliest = tl.max(tl.where(inside, pooled, float("-inf")), axis=1)
        shares = _shares(likeliest[:, None] - pooled, sharpness, inside)
        outside = tl.where(inside, 1.0 - shares, 0.0)
    top_odds = tl.sum(shares * pooled, axis=1) - _rest_mass(pooled, outside)
    correction = _curve(constants, _CURVES + 4 + 2 * FIRST, LAST, top_odds)
    correction += tl.load(constants + _BY_SPREAD) * spread
    pooled += shares * correction[:, None]

    pooled = tl.where(inside, pooled, float("-inf"))
    powers = tl.exp(pooled - tl.max(pooled, axis=1)[:, None])
    probs = powers / tl.sum(powers, axis=1)[:, None]
    if KEEP:
        probs = _lower_others(probs, shares, inside)
    if KEEP_ARGMAX:
        wanted = tl.argmax(tl.where(inside, scores, float("-inf")), axis=1, tie_break_left=True)
        likeliest = tl.argmax(tl.where(inside, probs, -1.0), axis=1, tie_break_left=True)
        best = tl.max(probs, axis=1) * (1.0 + _EPS)
        moved = (column[None, :] == wanted[:, None]) & (wanted != likeliest)[:, None]
        probs = tl.where(moved, best[:, None], probs)
    probs = tl.maximum(probs, tl.load(constants + _LEAST))
    probs = tl.where(invalid[:, None], float("nan"), probs)
    tl.store(out + place, probs, mask=(row < n)[:, None] & (column < k)[None, :])


@triton.jit
def _predict_two(
    x, out, lines, n,
    LINES: tl.constexpr, HALVINGS: tl.constexpr, KEEP_ARGMAX: tl.constexpr, LEAST: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    first = tl.load(x + 2 * row, mask=inside, other=0.0)
    second = tl.load(x + 2 * row + 1, mask=inside, other=0.0)

    top = tl.maximum(first, second)
    invalid = (first != first) | (second != second) | (tl.abs(top) == float("inf"))
    first = tl.where(invalid, 0.0, first)
    second = tl.where(invalid, 0.0, second)
    top = tl.where(invalid, 0.0, top)
    odds = tl.maximum(second - top, _LOWEST) - tl.maximum(first - top, _LOWEST)

    # The last line that starts at or below the log-odds.
    line = tl.zeros([ROWS], dtype=tl.int32)
    for i in tl.static_range(HALVINGS):
        ahead = line + (1 << (HALVINGS - 1 - i))
        start_ahead = tl.load(lines + ahead, mask=ahead < LINES, other=float("inf"))
        line = tl.where(start_ahead <= odds, ahead, line)
    start = tl.load(lines + line)
    value = tl.load(lines + LINES + line)
    slope = tl.load(lines + 2 * LINES + line)
    highest = tl.load(lines + 3 * LINES + line)
    calibrated = tl.minimum(value + slope * (odds - start), highest)

    power = tl.exp(-tl.abs(calibrated))
    larger = 1.0 / (1.0 + power)
    smaller = power / (1.0 + power)
    prob = tl.where(calibrated > 0, larger, smaller)
    other_prob = tl.where(calibrated > 0, smaller, larger)
    if KEEP_ARGMAX:
        is_second = second > first
        above_other = other_prob * (1.0 + _EPS)
        above_prob = prob * (1.0 + _EPS)
        raised = tl.where(is_second & (prob <= other_prob), above_other, prob)
        other_prob = tl.where((second <= first) & (prob > other_prob), above_prob, other_prob)
        prob = raised

    missing = float("nan")
    tl.store(out + 2 * row, tl.where(invalid, missing, tl.maximum(other_prob, LEAST)), mask=inside)
    tl.store(out + 2 * row + 1, tl.where(invalid, missing, tl.maximum(prob, LEAST)), mask=inside)
