"""The default's prediction compiled by numba: a few rows at a time, all steps while they are in the cache.

The formula is :class:`hcal.calibrators.pool.map.PoolMap`; a test compares the two. Scores of a block of rows lie
class by class, (K, R): every loop runs over rows, which are many, and is vectorised. Deleting this file makes
prediction slower, nothing else.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.pool.map import BENDS, FLOOR
from hcal.compiled import each, exponential, jit, split

if TYPE_CHECKING:
    from hcal.calibrators.pool.map import Curve, PoolMap

Array = NDArray[Any]
_jit = jit(error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp", "nnan"})
#: Scores, and least rows, of a block.
_BLOCK, _ROWS = 8192, 64
#: The score of what has no chance: its power is 0.
_NEVER = -1e30


def predict(form: PoolMap, x: Array) -> Array:
    """Return probabilities (N, K) of finite logits (N, K), float32 or float64."""
    events, kind = form.events, x.dtype.type
    matrix = np.zeros((0, 0)) if form.matrix is None else form.matrix
    numbers = [form.beta, form.sharpness, form.cap, form.scale, form.weight, FLOOR, 1 + np.finfo(kind).eps]
    narrow: list[Any] = [numbers, BENDS, events.rest.slopes, events.rest.bias, events.bias, form.bias, matrix]
    arrays = [np.asarray(each, dtype=kind) for each in narrow]
    curves = [_packed(curve) for curve in (events.by_odds, events.by_gap, form.last)]
    x, out = np.ascontiguousarray(x), np.empty(x.shape, kind)
    fields = (tuple(arrays[:-1]), arrays[-1], (events.rest.spread, *curves), form.keep)
    each(lambda part: _predict(x[slice(*part)], *fields, out[slice(*part)]), split(len(x), grain=x.shape[1]))
    return out


def _packed(curve: Curve) -> Array:
    return np.concatenate([[curve.low, curve.high], curve.weights, curve.knots])


@_jit
def _curve(packed: Array, value: float) -> Any:
    v = min(max(value, packed[0]), packed[1])
    n = (len(packed) - 4) // 2
    out = packed[2] + packed[3] * v
    for i in range(n):
        out += packed[4 + i] * max(v - packed[4 + n + i], 0.0)
    return out


@_jit
def _largest(s: Array, top: Array, second: Array, at: Array) -> None:
    """Find the largest score of every row of s (K, R), the next one, and the class of the largest."""
    for r in range(len(top)):
        top[r], second[r], at[r] = s[0, r], -np.inf, 0
    for j in range(1, len(s)):
        for r in range(len(top)):
            v, before = s[j, r], top[r]
            second[r] = max(second[r], min(v, before))
            at[r] = np.int32(j) if v > before else at[r]
            top[r] = v if v > before else before


@_jit
def _shift_below_zero(s: Array, most: Array) -> None:
    """Subtract from s (K, R) the largest score of every row."""
    for r in range(len(most)):
        most[r] = s[0, r]
    for j in range(1, len(s)):
        for r in range(len(most)):
            most[r] = max(most[r], s[j, r])
    for j in range(len(s)):
        for r in range(len(most)):
            s[j, r] -= most[r]


@_jit
def _sum_below(e: Array, share: Array, mass: Array) -> None:
    """Add up e (K, R) of every row, each class as far as it is not the top."""
    mass[:] = 0
    for j in range(len(e)):
        for r in range(len(mass)):
            mass[r] += (e.dtype.type(1) - share[j, r]) * e[j, r]


@_jit
def _lower(p: Array, share: Array, held: Any, t: int, over: Any) -> None:
    """Set what overtakes the top equal to it; its class t stays on top, if need be by a last bit."""
    own, more = 0.0, 0.0
    for j in range(len(p)):
        own += held * share[j] * p[j]
    level = own / held
    for _ in range(4):
        mass, many = own, float(held)
        for j in range(len(p)):
            if p[j] > level:
                mass += (1.0 - held * share[j]) * p[j]
                many += 1.0 - held * share[j]
        level = mass / many
    for j in range(len(p)):
        more += (1.0 - held * share[j]) * max(p[j] - level, 0.0)
    for j in range(len(p)):
        part = held * share[j]
        if part > 0 or p[j] > level:
            p[j] = part * (own + more) / held + (1.0 - part) * min(p[j], level)
    best = p.argmax()
    if best != t:
        p[t] = p[best] * over


# Globals and not closures: numba keeps a kernel on disk only if what it holds is the same in every process.
_exp_32, _exp_64 = exponential(np.float32), exponential(np.float64)


@_jit
def _exp(v: Array, out: Array) -> None:
    if v.itemsize == 4:
        _exp_32(v, out)
    else:
        _exp_64(v, out)


@_jit
def _predict(x: Array, narrow: Any, matrix: Array, wide: Any, keep: bool, out: Array) -> None:
    numbers, bends, slopes, rest_bias, top_bias, bias = narrow
    spread, by_odds, by_gap, last = wide
    n, k = x.shape
    kind = x.dtype.type
    zero, one, never = kind(0), kind(1), kind(_NEVER)
    beta, sharpness, cap, scale, weight, floor, over = numbers
    a, b, c, d, e, f = bends
    slope_0, slope_a, slope_b, slope_c, slope_d, slope_e, slope_f, by_spread = slopes
    rows = max(_ROWS, _BLOCK // k // 16 * 16)
    size = (k, rows)
    z, s, powers, share = np.empty(size, kind), np.empty(size, kind), np.empty(size, kind), np.empty(size, kind)
    top, second, most, mass = np.empty(rows, kind), np.empty(rows, kind), np.empty(rows, kind), np.empty(rows, kind)
    slope, won, lost, held = np.empty(rows, kind), np.empty(rows, kind), np.empty(rows, kind), np.empty(rows, kind)
    at, correction = np.empty(rows, np.int32), np.empty(rows)
    for begin in range(0, n, rows):
        count = min(rows, n - begin)
        for r in range(rows):
            row = x[begin + min(r, count - 1)]
            for j in range(k):
                z[j, r] = row[j]
        _largest(z, top, second, at)
        mass[:] = zero
        held[:] = zero
        for j in range(k):
            for r in range(rows):
                z[j, r] = beta * (top[r] - z[j, r])
                share[j, r] = max(one - z[j, r] * sharpness, zero)
                mass[r] += z[j, r]
                held[r] += share[j, r]
        for r in range(rows):
            value = (math.log1p(mass[r] / k) - spread[0]) / spread[1]
            slope[r] = slope_0 + by_spread * kind(min(max(value, spread[2]), spread[3]))
            correction[r] = _curve(by_gap, beta * (top[r] - second[r]))
        for j in range(k):
            base, own = rest_bias[j], top_bias[j]
            for r in range(rows):
                v = z[j, r]
                share[j, r] /= held[r]
                bent = slope[r] * v + slope_a * max(v - a, zero) + slope_b * max(v - b, zero)
                bent += slope_c * max(v - c, zero) + slope_d * max(v - d, zero)
                bent += slope_e * max(v - e, zero) + slope_f * max(v - f, zero)
                s[j, r] = base - bent if share[j, r] < one else never
                z[j, r] = -min(v, cap)
                correction[r] += share[j, r] * own
        _shift_below_zero(s, most)
        _exp(s.reshape(-1), powers.reshape(-1))
        _sum_below(powers, share, mass)
        for r in range(rows):
            log_mass = math.log(mass[r])
            odds = -most[r] - log_mass
            odds += _curve(by_odds, odds) + correction[r]
            beyond = math.log1p(math.exp(-abs(odds)))
            won[r] = min(odds, 0.0) - beyond
            lost[r] = min(-odds, 0.0) - beyond - log_mass
        for j in range(k):
            base = bias[j]
            for r in range(rows):
                below = s[j, r] + lost[r] if share[j, r] < one else zero
                event = share[j, r] * won[r] + (one - share[j, r]) * below
                s[j, r] = base + scale * z[j, r] + weight * max(event, -floor)
        if len(matrix):
            np.dot(matrix, z, powers)
            for j in range(k):
                for r in range(rows):
                    s[j, r] += powers[j, r]
        if not keep:
            _largest(s, top, second, at)
            held[:] = zero
            for j in range(k):
                for r in range(rows):
                    share[j, r] = max(one - (top[r] - s[j, r]) * sharpness, zero)
                    held[r] += share[j, r]
            for j in range(k):
                for r in range(rows):
                    share[j, r] /= held[r]
        top[:] = zero
        for j in range(k):
            for r in range(rows):
                top[r] += share[j, r] * s[j, r]
                s[j, r] = s[j, r] if share[j, r] < one else never
        _shift_below_zero(s, most)
        _exp(s.reshape(-1), powers.reshape(-1))
        _sum_below(powers, share, mass)
        for r in range(rows):
            odds = top[r] - most[r] - math.log(mass[r])
            correction[r] = _curve(last, odds)
            odds += correction[r]
            power = math.exp(-abs(odds))
            less, more = power / (1.0 + power), 1.0 / (1.0 + power)
            won[r] = more if odds > 0 else less
            lost[r] = (less if odds > 0 else more) / mass[r]
        for r in range(count):
            p, alone = out[begin + r], held[r] == one
            for j in range(k):
                p[j] = powers[j, r] * lost[r]
            if alone:
                p[at[r]] = won[r]
            else:  # several classes share the top, and what the curve adds
                for j in range(k):
                    if share[j, r] > 0:
                        p[j] *= math.exp(share[j, r] * correction[r])
                p /= p.sum()
            if keep and (lost[r] >= won[r] or not alone):  # the likeliest of the others has e⁰ = 1
                _lower(p, share[:, r], held[r], at[r], over)
