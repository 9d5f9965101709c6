"""The default's prediction compiled by numba: all steps for a few rows at a time, while they are in the cache.

The formula is :class:`hcal.pool.map.PoolMap`; a test compares the two. A block of rows is stored class by
class, (K, R), so that every inner loop runs over rows and is vectorised; loops that write to few arrays vectorise
best. Without this file prediction is slower, and nothing else changes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hcal.compiled import each, exponential, jit, split
from hcal.pool.map import BENDS, FLOOR

if TYPE_CHECKING:
    from hcal.pool.map import Curve, PoolMap

Array = NDArray[Any]
_jit = jit(error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp", "nnan"})
#: Scores of a block, and its least number of rows.
_BLOCK, _ROWS = 8192, 64
#: The score of a class that is left out of a sum: e to this power is 0.
_NEVER = -1e30


def predict(form: PoolMap, x: Array) -> Array:
    """Return probabilities (N, K) of finite logits (N, K), float32 or float64."""
    events, kind, k = form.events, x.dtype.type, x.shape[1]
    matrix = np.zeros((0, 1)) if form.matrix is None else form.weights[2] * form.matrix
    bias = np.zeros(k) if form.matrix is None else matrix[:, -1]
    slope, *steps, by_spread = events.rest.slopes
    numbers = (
        form.beta,
        form.sharpness,
        form.cap,
        *form.weights[:2],
        slope,
        by_spread,
        FLOOR,
        1 + np.finfo(kind).eps,
    )
    tuples = [tuple(kind(number) for number in each) for each in (numbers, BENDS, steps)]
    arrays = [
        np.ascontiguousarray(each, dtype=kind)
        for each in (events.rest.bias, events.bias, bias, matrix[:, :-1])
    ]
    curves = [_packed(curve) for curve in (events.by_odds, events.by_gap, form.last)]
    x, out = np.ascontiguousarray(x), np.empty(x.shape, kind)
    fields = (*tuples, *arrays, events.rest.spread, *curves, form.keep)
    each(lambda part: _predict(x[slice(*part)], *fields, out[slice(*part)]), split(len(x), grain=k))
    return out


def _packed(curve: Curve) -> Array:
    return np.concatenate([[curve.low, curve.high], curve.weights, curve.knots])


# Globals and not closures: numba keeps a kernel on disk only if what it holds is the same in every process.
_exp_32, _exp_64 = exponential(np.float32), exponential(np.float64)


@_jit
def _exp(v: Array, out: Array) -> None:
    if v.itemsize == 4:
        _exp_32(v, out)
    else:
        _exp_64(v, out)


@_jit
def _add_curve(packed: Array, at: Array, out: Array) -> None:
    """Add to ``out`` (R,) the values of a curve at ``at`` (R,)."""
    low, high, constant, slope = packed[0], packed[1], packed[2], packed[3]
    n = (len(packed) - 4) // 2
    for r in range(len(at)):
        out[r] += constant + slope * min(max(at[r], low), high)
    for i in range(n):
        weight, knot = packed[4 + i], packed[4 + n + i]
        for r in range(len(at)):
            out[r] += weight * max(min(max(at[r], low), high) - knot, 0.0)


@_jit
def _largest(s: Array, top: Array, second: Array, at: Array) -> None:
    """Find the largest score of every row of s (K, R), the second largest, and the class of the largest."""
    for r in range(len(top)):
        top[r], second[r], at[r] = s[0, r], -np.inf, 0
    for j in range(1, len(s)):
        for r in range(len(top)):
            v, before = s[j, r], top[r]
            second[r] = max(second[r], min(v, before))
            at[r] = np.int32(j) if v > before else at[r]
            top[r] = v if v > before else before


@_jit
def _set_margins(
    s: Array, top: Array, beta: Any, sharpness: Any, own: Array, part: Array, mass: Array
) -> Array:
    """Turn scores (K, R) into margins below the top, and sum them in ``mass``; return the mean of ``own`` at the top.

    A class has the share max(1 − sharpness·margin, 0)·part of the top; ``part`` makes the shares of a row sum to 1.
    """
    one, zero = s.dtype.type(1), s.dtype.type(0)
    mean = np.zeros_like(part)
    part[:], mass[:] = zero, zero
    for j in range(len(s)):
        for r in range(len(part)):
            s[j, r] = beta * (top[r] - s[j, r])
            mass[r] += s[j, r]
    for j in range(len(s)):
        for r in range(len(part)):
            share = max(one - s[j, r] * sharpness, zero)
            part[r] += share
            mean[r] += share * own[j]
    for r in range(len(part)):
        part[r] = one / part[r]
        mean[r] *= part[r]
    return mean


@_jit
def _powers(
    s: Array,
    margin: Array,
    sharpness: Any,
    part: Array,
    at: Array,
    most: Array,
    out: Array,
    mass: Array,
) -> None:
    """Subtract from s (K, R) the largest score below the top, ``most``; set out to e^s and mass to its sum there."""
    one, zero = s.dtype.type(1), s.dtype.type(0)
    for r in range(len(most)):
        if part[r] == one:
            s[at[r], r] = s.dtype.type(_NEVER)
        most[r], mass[r] = s[0, r], zero
    for j in range(1, len(s)):
        for r in range(len(most)):
            most[r] = max(most[r], s[j, r])
    for j in range(len(s)):
        for r in range(len(most)):
            s[j, r] -= most[r]
    _exp(s.reshape(-1), out.reshape(-1))
    for j in range(len(s)):
        for r in range(len(most)):
            mass[r] += (one - max(one - margin[j, r] * sharpness, zero) * part[r]) * out[j, r]


@_jit
def _lower(p: Array, share: Array, t: int, over: Any) -> None:
    """Set what overtakes the top class t equal to it; t stays on top, if need be by the last bit of its float."""
    own, held, more = (share * p).sum(), share.sum(), 0.0
    level = own / held
    for _ in range(4):
        mass, many = own, held
        for j in range(len(p)):
            if p[j] > level:
                mass += (1.0 - share[j]) * p[j]
                many += 1.0 - share[j]
        if mass / many == level:
            break
        level = mass / many
    for j in range(len(p)):
        more += (1.0 - share[j]) * max(p[j] - level, 0.0)
    for j in range(len(p)):
        if share[j] > 0 or p[j] > level:
            p[j] = share[j] * (own + more) / held + (1.0 - share[j]) * min(p[j], level)
    best = p.argmax()
    if best != t:
        p[t] = p[best] * over


@_jit
def _predict(
    x: Array, numbers: Any, bends: Any, steps: Any, rest_bias: Array, top_bias: Array, bias: Array, matrix: Array,
    spread: Array, by_odds: Array, by_gap: Array, last: Array, keep: bool, out: Array,
) -> None:  # fmt: skip
    beta, sharpness, cap, scale, weight, slope_0, by_spread, floor, over = numbers
    n, k = x.shape
    kind = x.dtype.type
    zero, one = kind(0), kind(1)
    rows = max(_ROWS, _BLOCK // k // 16 * 16)
    margin, s, powers = (
        np.empty((k, rows), kind),
        np.empty((k, rows), kind),
        np.empty((k, rows), kind),
    )
    top, second, most, mass = (
        np.empty(rows, kind),
        np.empty(rows, kind),
        np.empty(rows, kind),
        np.empty(rows, kind),
    )
    slope, won, lost, part = (
        np.empty(rows, kind),
        np.empty(rows, kind),
        np.empty(rows, kind),
        np.empty(rows, kind),
    )
    at, odds, correction = np.empty(rows, np.int32), np.empty(rows), np.empty(rows)
    for begin in range(0, n, rows):
        count = min(rows, n - begin)
        for r in range(rows):
            row = x[begin + min(r, count - 1)]
            for j in range(k):
                margin[j, r] = row[j]
        _largest(margin, top, second, at)
        correction[:] = _set_margins(margin, top, beta, sharpness, top_bias, part, mass)
        for r in range(rows):
            value = (math.log(1.0 + mass[r] / k) - spread[0]) / spread[1]
            slope[r] = slope_0 + by_spread * kind(min(max(value, spread[2]), spread[3]))
            odds[r] = beta * (top[r] - second[r])
        _add_curve(by_gap, odds, correction)
        for j in range(k):
            base = rest_bias[j]
            for r in range(rows):
                bent = slope[r] * margin[j, r]
                for i in range(len(bends)):
                    bent += steps[i] * max(margin[j, r] - bends[i], zero)
                s[j, r] = base - bent
        _powers(s, margin, sharpness, part, at, most, powers, mass)
        for r in range(rows):
            lost[r] = math.log(mass[r])
            odds[r] = -most[r] - lost[r]
            correction[r] += odds[r]
        _add_curve(by_odds, odds, correction)
        for r in range(rows):
            beyond = math.log(1.0 + math.exp(-abs(correction[r])))
            won[r] = min(correction[r], 0.0) - beyond
            lost[r] = min(-correction[r], 0.0) - beyond - lost[r]
            if part[r] == one:  # its score has been _NEVER
                s[at[r], r] = zero
        for j in range(k):
            base = bias[j]
            for r in range(rows):
                share = max(one - margin[j, r] * sharpness, zero) * part[r]
                event = share * won[r] + (one - share) * (s[j, r] + lost[r])
                s[j, r] = base - scale * min(margin[j, r], cap) + weight * max(event, -floor)
        if len(matrix):
            np.dot(matrix, np.minimum(margin, cap), powers)
            for j in range(k):
                for r in range(rows):
                    s[j, r] -= powers[j, r]
        if not keep:
            _largest(s, top, second, at)
            margin[:] = s
            _set_margins(margin, top, one, sharpness, top_bias, part, mass)
        top[:] = zero
        for j in range(k):
            for r in range(rows):
                top[r] += max(one - margin[j, r] * sharpness, zero) * part[r] * s[j, r]
        _powers(s, margin, sharpness, part, at, most, powers, mass)
        for r in range(rows):
            odds[r], correction[r] = top[r] - most[r] - math.log(mass[r]), 0.0
        _add_curve(last, odds, correction)
        for r in range(count):
            sure = odds[r] + correction[r]
            power = math.exp(-abs(sure))
            less, more = power / (1.0 + power), 1.0 / (1.0 + power)
            own, others = (
                kind(more if sure > 0 else less),
                kind((less if sure > 0 else more) / mass[r]),
            )
            p, alone = out[begin + r], part[r] == one
            for j in range(k):
                p[j] = powers[j, r] * others
            if alone:
                p[at[r]] = own
                if keep and others >= own:  # the likeliest of the others has e⁰ = 1
                    _lower(p, np.maximum(one - margin[:, r] * sharpness, zero), at[r], over)
            else:  # several classes share the top, and what the curve adds
                share = np.maximum(one - margin[:, r] * sharpness, zero)
                for j in range(k):
                    if share[j] > 0:
                        p[j] *= math.exp(share[j] * part[r] * correction[r])
                p /= p.sum()
                if keep:
                    _lower(p, share, at[r], over)
