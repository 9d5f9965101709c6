"""The default's prediction compiled by numba: a few rows at a time, all steps while they are in the cache.

The formula is :class:`hcal.calibrators.pool.map.PoolMap`; a test compares the two. Rows whose top is shared by several
classes are few and are left to it. Deleting this file makes prediction slower and changes nothing else.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.pool.map import BENDS, FLOOR
from hcal.compiled import jit
from hcal.numerics import row_blocks

if TYPE_CHECKING:
    from hcal.calibrators.pool.map import Curve, PoolMap

Array = NDArray[Any]
_jit = jit(error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp", "nnan"})
#: Scores in a block of rows.
_BLOCK = 4096
_A, _B, _C, _D, _E, _F = (float(bend) for bend in BENDS)


def predict(form: PoolMap, x: Array) -> Array:
    """Return probabilities (N, K) of finite logits (N, K), float32 or float64."""
    events, kind = form.events, x.dtype.type
    matrix = np.zeros((0, 0)) if form.matrix is None else form.matrix
    numbers = np.array([form.beta, form.sharpness, form.cap, form.scale, form.weight], dtype=np.float64)
    arrays = [
        events.rest.bias.astype(kind),
        form.bias.astype(kind),
        np.ascontiguousarray(matrix.T, dtype=kind),
    ]
    row_arrays = [events.rest.slopes, events.rest.spread, events.bias]
    curves = [_packed(curve) for curve in (events.by_odds, events.by_gap, form.last)]
    x = np.ascontiguousarray(x)
    out = np.empty_like(x)
    shared = np.zeros(len(x), dtype=np.bool_)
    _predict(x, numbers, *arrays, *row_arrays, *curves, form.keep, out, shared)
    rows = np.flatnonzero(shared)
    for part in row_blocks((len(rows), x.shape[1]), 1_000_000):
        out[rows[part]] = np.exp(form(x[rows[part]]))
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
def _exp(v: Array, out: Array) -> None:
    """Return e^v of values that are not above 0, at most 2 ulp of float32 off, in loops that can be vectorised."""
    for i in range(len(v)):
        u = max(v[i], np.float32(-87.0))
        n = np.int32(u * np.float32(1.4426950408889634) - np.float32(0.5))
        m = np.float32(n)
        r = (u - m * np.float32(0.693359375)) - m * np.float32(-2.12194440e-4)
        y = np.float32(1.9875691500e-4)
        y = y * r + np.float32(1.3981999507e-3)
        y = y * r + np.float32(8.3334519073e-3)
        y = y * r + np.float32(4.1665795894e-2)
        y = y * r + np.float32(1.6666665459e-1)
        y = y * r + np.float32(5.0000001201e-1)
        power = np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32)
        out[i] = (y * r * r + r + np.float32(1.0)) * power


@_jit
def _exp_wide(v: Array, out: Array) -> None:
    """The same in float64, by the series of e^r."""
    for i in range(len(v)):
        u = max(v[i], -708.0)
        n = np.int32(u * 1.4426950408889634 - 0.5)
        m = np.float64(n)
        r = (u - m * 0.6931471803691238) - m * 1.9082149292705877e-10
        y = 1 / 479001600
        y = y * r + 1 / 39916800
        y = y * r + 1 / 3628800
        y = y * r + 1 / 362880
        y = y * r + 1 / 40320
        y = y * r + 1 / 5040
        y = y * r + 1 / 720
        y = y * r + 1 / 120
        y = y * r + 1 / 24
        y = y * r + 1 / 6
        y = y * r + 0.5
        power = np.int64((np.int64(n) + np.int64(1023)) << np.int64(52)).view(np.float64)
        out[i] = (y * r * r + r + 1.0) * power


@_jit
def _exponentials(v: Array, out: Array) -> None:
    if v.itemsize == 4:
        _exp(v, out)
    else:
        _exp_wide(v, out)


@_jit
def _largest(row: Array) -> Any:
    most = row[0]
    for k in range(1, len(row)):
        most = row[k] if row[k] > most else most  # a form that is vectorised
    return most


@_jit
def _first(row: Array, value: Any) -> int:
    """Return where a value is found first."""
    k = 0
    while row[k] != value:
        k += 1
    return k


@_jit
def _predict(
    x: Array,
    numbers: Array,
    rest_bias: Array,
    bias: Array,
    matrix: Array,
    slopes: Array,
    spread: Array,
    top_bias: Array,
    by_odds: Array,
    by_gap: Array,
    last: Array,
    keep: bool,
    out: Array,
    shared: Array,
) -> None:
    n, k = x.shape
    beta, sharpness, cap, scale, weight = numbers
    kind = x.dtype.type
    a, b, c, d = kind(slopes[1]), kind(slopes[2]), kind(slopes[3]), kind(slopes[4])
    f, g, none = kind(slopes[5]), kind(slopes[6]), kind(0)
    rows = max(1, _BLOCK // k)
    margin, score, e = (
        np.empty((rows, k), x.dtype),
        np.empty((rows, k), x.dtype),
        np.empty((rows, k), x.dtype),
    )
    linear = np.zeros((rows, k), x.dtype)
    top, highest, gap = np.empty(rows, np.int64), np.empty(rows), np.empty(rows)
    for begin in range(0, n, rows):
        count = min(rows, n - begin)
        for i in range(count):
            z, m, s = x[begin + i], margin[i], score[i]
            own = _largest(z)
            t = _first(z, own)
            top[i] = t
            total = none
            for j in range(k):
                m[j] = kind(beta) * (own - z[j])
                total += m[j]
            m[t] = np.inf
            least = m[0]
            for j in range(1, k):
                least = m[j] if m[j] < least else least
            m[t] = none
            gap[i] = least
            value = (math.log1p(total / k) - spread[0]) / spread[1]
            slope = kind(slopes[0] + slopes[7] * min(max(value, spread[2]), spread[3]))
            for j in range(k):
                v = m[j]
                bent = slope * v + a * max(v - kind(_A), none) + b * max(v - kind(_B), none)
                bent += c * max(v - kind(_C), none) + d * max(v - kind(_D), none)
                s[j] = rest_bias[j] - bent - f * max(v - kind(_E), none) - g * max(v - kind(_F), none)
            s[t] = -np.inf
            most = _largest(s)
            highest[i] = most
            s[t] = most
            for j in range(k):
                s[j] -= most
                m[j] = -min(m[j], kind(cap))
        _exponentials(score[:count].reshape(-1), e[:count].reshape(-1))
        if len(matrix):
            linear[:count] = np.dot(margin[:count], matrix)
        for i in range(count):
            m, s, t = margin[i], score[i], top[i]
            log_mass = math.log(e[i].sum() - 1.0)
            odds = -highest[i] - log_mass
            odds += _curve(by_odds, odds) + _curve(by_gap, gap[i]) + top_bias[t]
            beyond = math.log1p(math.exp(-abs(odds)))
            won, lost = min(odds, 0.0) - beyond, kind(min(-odds, 0.0) - beyond - log_mass)
            floor = kind(-FLOOR)
            for j in range(k):
                s[j] = linear[i, j] + kind(scale) * m[j] + bias[j] + kind(weight) * max(s[j] + lost, floor)
            s[t] = linear[i, t] + bias[t] + kind(weight * max(won, -FLOOR))
            if not keep:
                t = _first(s, _largest(s))
                top[i] = t
            own = s[t]
            s[t] = -np.inf
            most = _largest(s)
            gap[i] = sharpness * (gap[i] if keep else min(gap[i], own - most))
            highest[i] = own - most
            s[t] = most
            for j in range(k):
                s[j] -= most
        _exponentials(score[:count].reshape(-1), e[:count].reshape(-1))
        for i in range(count):
            p, t, q = out[begin + i], top[i], e[i]
            mass = q.sum() - 1.0
            odds = highest[i] - math.log(mass)
            odds += _curve(last, odds)
            power = math.exp(-abs(odds))
            less, more = power / (1.0 + power), 1.0 / (1.0 + power)
            won, lost = (more, kind(less / mass)) if odds > 0 else (less, kind(more / mass))
            for j in range(k):
                p[j] = q[j] * lost
            p[t] = won
            shared[begin + i] = gap[i] < 1.0
            if keep and lost > won:  # the likeliest of the others has e = 1
                _lower(p, t)


@_jit
def _lower(p: Array, t: int) -> None:
    """Set what overtakes the top class equal to it."""
    own, level = float(p[t]), float(p[t])
    for _ in range(4):
        mass, many = own, 1
        for j in range(len(p)):
            if j != t and p[j] > level:
                mass += p[j]
                many += 1
        level = mass / many
    for j in range(len(p)):
        if j != t and p[j] > level:
            own += p[j] - level
            p[j] = level
    p[t] = own
