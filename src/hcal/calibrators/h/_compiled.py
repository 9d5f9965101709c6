"""Prediction of the default calibrator compiled by numba: all stages of a few rows while they are in cache.

The same formulas as :mod:`hcal.calibrators.h.model`, stage by stage; tests compare the two. Values of
a class have the width of the logits; sums over many of them, and everything that exists once a row, are
float64. What a row gets depends on that row alone, to the last bit. Kernels release the GIL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from hcal.runtime.jit import jit

Array = NDArray[Any]

# As it is written: a class's logit becomes a probability by sums, products with positive numbers and minima,
# each rounded, which invert no pair of classes, and by exponentials that were tried one by one.
_jit = jit(error_model="numpy")
# Reassociation lets sums over a row use vector registers.
_fast = jit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
_LEAST = np.float32(-87.0)
# Rows are handled in blocks of about this many events: long enough for vector loops at any K, and in cache.
_EVENTS = 4096
# Sums of so many values are added up in float64: float32 alone would lose digits over very many classes.
_CHUNK = 4096
# What ln of a row's scale is kept to, as in :mod:`hcal.calibrators.h.refine`.
_WIDEST = 30.0
#: All knots of g are multiples of this: the cell of a margin is a product and a truncation, no search.
CELL = 0.5


class Stages(NamedTuple):
    """A model as the kernel reads it: what meets every class in the width of the logits, the rest float64."""

    start: Array  # g in a cell is start + slope·(how far into it); the last cell goes on for ever
    slope: Array
    bias: Array
    beta: Any
    kappa: Any
    far: Any
    scaler: Array  # (4, 6): mean, deviation, low, high of the features
    weights: Array
    knots: Array
    odds_scaler: Array
    odds_weights: Array
    classes: Array
    final_knots: Array
    final_scaler: Array
    final_weights: Array
    floor: float  # inside the logarithms of the features
    tiny: float  # the least Σ e^−refined
    lift: float  # below 0 lets the argmax change
    just_below: float
    pooled: bool  # whether what follows is used
    events: float
    refined: Any
    cap: Any
    matrix: Array
    scale: Any
    offset: Array
    prefer: Array
    last_knots: Array
    last_scaler: Array
    last_weights: Array
    last_classes: Array
    lowest: Any  # candidates do not say less than e^ this


# -- one float; here and not shared, because numba's cache notices changes of this file only ---------------


def exp(v: Any) -> Any:
    """Return e^v of a non-positive value."""
    raise NotImplementedError("compiled code only")


def ordered_exp(v: Any) -> Any:
    """Return e^v of a non-positive value, never less for a higher one."""
    raise NotImplementedError("compiled code only")


def rank(v: Any) -> Any:
    """Return an integer that orders like the float; maxima of integers are vectorised, of floats not."""
    raise NotImplementedError("compiled code only")


def unrank(v: Any) -> Any:
    """Return the float of a rank."""
    raise NotImplementedError("compiled code only")


def _exp32(v: Any) -> Any:
    """A polynomial on a reduced argument: at most 2 ulp off, 0 below e^−87; rising over all float32."""
    u = max(v, _LEAST)
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
    return (y * r * r + r + np.float32(1.0)) * power if v >= _LEAST else np.float32(0.0)


def _exp64(v: Any) -> Any:
    """The same with the series of e^r: at most 2 ulp off, 0 below e^−708."""
    u = max(v, -708.0)
    n = np.int32(u * 1.4426950408889634 - 0.5)
    m = np.float64(n)
    r = (u - m * 0.6931471803691238) - m * 1.9082149292705877e-10
    y = 1 / 6227020800
    y = y * r + 1 / 479001600
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
    return (y * r * r + r + 1.0) * power if v >= -708.0 else 0.0


def _on_grid64(v: Any) -> Any:
    """On a grid of at least 2⁻⁴⁸, 16 ulp of the result: 2 ulp cannot put its points in another order."""
    return exp((v + 48.0) - 48.0)


def _rank32(v: Any) -> Any:
    bits = np.float32(v).view(np.int32)
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))  # numba widens integers


def _rank64(v: Any) -> Any:
    bits = np.float64(v).view(np.int64)
    return bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))


def _unrank32(v: Any) -> Any:
    return np.int32(v ^ ((v >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


def _unrank64(v: Any) -> Any:
    return np.int64(v ^ ((v >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))).view(np.float64)


def _by_width(function: Callable[..., Any], narrow: Any, wide: Any, **options: Any) -> None:
    """Let a function be another one in float32 and in float64."""

    def choose(v: Any) -> Any:
        return narrow if v.bitwidth == 32 else wide

    overload(function, **options)(choose)


_by_width(exp, _exp32, _exp64, jit_options={"fastmath": {"contract"}})
_by_width(ordered_exp, _exp32, _on_grid64)
_by_width(rank, _rank32, _rank64)
_by_width(unrank, _unrank32, _unrank64)


@_jit
def _log(v: float) -> float:
    """Logarithm of a positive, normal float64, 1 ulp off: the library's is not vectorised."""
    bits = np.float64(v).view(np.int64)
    e = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)  # the bits of √½: the rest lies in [√½, √2)
    m = np.int64(bits - (e << np.int64(52))).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    t = s * s
    y = 1 / 21  # 2 artanh s
    for odd in (19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        y = y * t + 1.0 / odd
    return np.float64(e) * 0.6931471805599453 + (2.0 * s + 2.0 * s * t * y)


@_jit
def predict_rows(logits: Array, form: Stages, lo: int, hi: int, out: Array) -> None:
    """Probabilities of rows lo..hi, a block of rows at a time."""
    n = logits.shape[1]
    rows = max(1, _EVENTS // n)
    margin = np.empty((rows, n), logits.dtype)
    e, half = np.empty_like(margin), np.empty_like(margin)
    linear = np.empty((rows if form.pooled else 0, n), logits.dtype)
    top, x, odds, q = np.empty(rows, np.int32), np.empty((6, rows)), np.empty(rows), np.empty(rows)
    tied, won, rest, totals = np.empty(rows, np.int32), np.empty(rows), np.empty(rows), np.empty(rows)
    for begin in range(lo, hi, rows):
        count = min(rows, hi - begin)
        z, p, m = logits[begin : begin + count], out[begin : begin + count], margin[:count]
        flat, flat_e = m.reshape(-1), e[:count].reshape(-1)
        _margins(z, form.beta, form.far, m, top, tied)
        if form.pooled:
            _prefer(z, top, tied, form.prefer)
            _linear(m, form.cap, form.scale, form.matrix, form.offset, linear)
        _roots(flat, flat_e, half.reshape(-1))
        _sums(m, e, half, top, form.far, x)
        _features(x, count, n, form.floor)
        _curve(flat, form.start, form.slope)
        _scales(x, count, form.scaler, form.weights, q)
        _scores(m, q, form.kappa, form.bias, p)
        _exponentials(flat, flat_e)
        _odds(e, count, top, form.tiny, odds)
        _correct(odds, count, x, form.knots, form.odds_scaler, form.odds_weights)
        for i in range(count):
            odds[i] += form.classes[top[i]]
        _correct(odds, count, x, form.final_knots, form.final_scaler, form.final_weights)
        _below_highest(p, top)
        if form.pooled:
            _exponentials(p.reshape(-1), flat_e)
            _log_parts(e, odds, count, top, won, rest)
            _blend(p, m, linear, won, rest, top, form)
            _split_top(p, top, form.lift, odds)
        _replace_by_exponentials(p.reshape(-1))
        _row_sums(p, count, top, totals)
        if form.pooled:
            for i in range(count):
                odds[i] -= _log(totals[i])
            _correct(odds, count, x, form.last_knots, form.last_scaler, form.last_weights)
            for i in range(count):
                odds[i] += form.last_classes[top[i]]
        _sigmoids(odds, count, q)
        _held(q, count, n, totals, form.lift, form.just_below, won, rest)
        _join(p, top, q, won, rest, form.lift)
        if form.pooled and form.lift >= 0:
            for i in range(count):
                if tied[i] > 1:
                    _level(z[i], p[i], z[i, top[i]], tied[i], form.just_below)


# -- the pool -----------------------------------------------------------------------------------------------


@_jit
def _prefer(logits: Array, top: Array, tied: Array, prefer: Array) -> None:
    """Of classes that tie on top take the preferred one."""
    for i in range(len(logits)):
        if tied[i] > 1:
            row, highest = logits[i], logits[i, top[i]]
            for k in range(len(row)):
                if row[k] == highest and prefer[k] > prefer[top[i]]:
                    top[i] = k


@_jit
def _linear(margin: Array, cap: Any, scale: Any, matrix: Array, offset: Array, out: Array) -> None:
    """See :func:`hcal.calibrators.h.blend.linear_scores`."""
    for i in range(len(margin)):
        m, s = margin[i], out[i]
        for k in range(len(m)):
            s[k] = offset[k] - scale * min(m[k], cap)
    if len(matrix):
        _less_product(margin, cap, matrix, out)


@_jit
def _less_product(margin: Array, cap: Any, matrix: Array, out: Array) -> None:
    """Take from the scores what the matrix makes of the margins: few classes, so loops run over rows."""
    count, n = margin.shape
    x, product = np.empty((n, count), margin.dtype), np.zeros((n, count), margin.dtype)
    for k in range(n):
        for i in range(count):
            x[k, i] = min(margin[i, k], cap)
    for k in range(n):
        total = product[k]
        for j in range(n):
            times, row = matrix[k, j], x[j]
            for i in range(count):
                total[i] += times * row[i]
    for i in range(count):
        for k in range(n):
            out[i, k] -= product[k, i]


@_jit
def _log_parts(e: Array, odds: Array, count: int, top: Array, won: Array, rest: Array) -> None:
    """ln P of the top classes, and what a score below the top, less the highest, lacks to be ln P."""
    _row_sums(e, count, top, rest)
    for i in range(count):
        beyond = _log(1.0 + exp(-abs(odds[i])))
        won[i] = min(odds[i], 0.0) - beyond
        rest[i] = min(-odds[i], 0.0) - beyond - _log(rest[i])


@_jit
def _blend(
    p: Array, negative: Array, linear: Array, won: Array, rest: Array, top: Array, form: Stages
) -> None:
    """Scores of the events below the top, less their highest, become those of the pool."""
    kind = p.dtype.type
    for i in range(len(p)):
        s, r, u = p[i], negative[i], linear[i]
        plus, weight, lowest = kind(rest[i]), kind(form.events), form.lowest
        s[top[i]] = kind(won[i]) - plus
        for k in range(len(s)):
            s[k] = u[k] + weight * max(s[k] + plus, lowest) + form.refined * max(r[k], lowest)


@_jit
def _split_top(scores: Array, top: Array, lift: float, odds: Array) -> None:
    """The top class's score above the highest other one, which the others are then measured from."""
    for i in range(len(scores)):
        s = scores[i]
        if lift < 0:
            top[i] = _argmax(s)
        own = s[top[i]]
        odds[i] = np.float64(own) - np.float64(_less_highest(s, top[i]))


@_jit
def _level(z: Array, p: Array, highest: Any, tied: int, just_below: float) -> None:
    """Classes that tie on top get one probability; see :func:`hcal.calibrators.h.blend.level_ties`."""
    n, on_top, below, most, first = len(z), 0.0, 0.0, 0.0, -1
    for k in range(n):
        if z[k] == highest:
            on_top += p[k]
            first = k if first < 0 else first
        else:
            below += p[k]
            most = max(most, np.float64(p[k]))
    level, mean = on_top / tied, below / max(n - tied, 1)
    w = min(max((most - level * just_below) / max(most - mean, 1e-300), 0.0), 1.0)
    if mean >= level * just_below:
        level = 1.0 / (tied + (n - tied) * just_below)
        mean, w = level * just_below, 1.0
    for k in range(n):
        p[k] = level if z[k] == highest else (1.0 - w) * p[k] + w * mean
    best = _argmax(p)
    if best != first:
        above = np.nextafter(p[best], p.dtype.type(2.0))
        for k in range(n):
            if z[k] == highest:
                p[k] = above


# -- all events of a block ----------------------------------------------------------------------------------


@_jit
def _roots(margin: Array, e: Array, half: Array) -> None:
    """e^−margin and its square root."""
    for k in range(len(margin)):
        v = exp(-margin[k])
        e[k] = v
        half[k] = math.sqrt(v)


@_jit
def _curve(margin: Array, start: Array, slope: Array) -> None:
    """The piecewise linear g, in place."""
    last, inverse = np.float32(len(slope) - 1), margin.dtype.type(1 / CELL)
    for k in range(len(margin)):
        t = margin[k] * inverse
        cell = np.int32(t if t < last else last)  # so written, NaN too stays inside the table
        at = np.uint32(cell)  # 32 bits: as many look-ups at once as floats
        margin[k] = start[at] + slope[at] * (t - margin.dtype.type(cell))


@_jit
def _exponentials(v: Array, out: Array) -> None:
    for k in range(len(v)):
        out[k] = exp(v[k])


@_jit
def _replace_by_exponentials(v: Array) -> None:
    for k in range(len(v)):  # given the same array twice, the function above would not be vectorised
        v[k] = ordered_exp(v[k])


# -- row by row -------------------------------------------------------------------------------------------


@_jit
def _margins(z: Array, beta: Any, far: Any, margin: Array, top: Array, tied: Array) -> None:
    """Margins below the top class, which that is (the first with the highest logit), and how many tie."""
    nowhere = np.int32(0x7FFFFFFF)
    for i in range(len(z)):
        row, m = z[i], margin[i]
        best = rank(row[0])
        for k in range(len(row)):
            best = max(best, rank(row[k]))
        highest, first, equal = unrank(best), nowhere, np.int32(0)
        for k in range(len(row)):
            m[k] = min((highest - row[k]) * beta, far)
            first = min(first, np.int32(k) if row[k] == highest else nowhere)
            equal += np.int32(1) if row[k] == highest else np.int32(0)
        top[i], tied[i] = min(first, np.int32(len(row) - 1)), equal


@_fast
def _sums(margin: Array, e: Array, half: Array, top: Array, far: Any, x: Array) -> None:
    """Runner-up's margin and sums over each row of e, e·margin, margin and the roots of e."""
    for i in range(len(margin)):
        m = margin[i]
        zero = m[top[i]]
        m[top[i]] = far
        least = rank(far)
        for k in range(len(m)):
            least = min(least, rank(m[k]))
        m[top[i]] = zero
        x[:, i] = 0.0
        x[0, i] = unrank(least)
        for begin in range(0, len(m), _CHUNK):
            u, v, w = m[begin : begin + _CHUNK], e[i, begin : begin + _CHUNK], half[i, begin : begin + _CHUNK]
            a, b, c, d, t = zero, zero, zero, zero, zero
            for k in range(len(u)):
                a += v[k]
                b += v[k] * u[k]
                c += w[k]
                d += math.sqrt(w[k])
                t += u[k]
            x[1, i] += a
            x[2, i] += b
            x[3, i] += t
            x[4, i] += c
            x[5, i] += d


@_jit
def _features(x: Array, count: int, n_classes: int, floor: float) -> None:
    """Sums become the six features; see :func:`hcal.calibrators.h.rows.features`."""
    for i in range(count):
        log_z = _log(x[1, i])
        x[0, i] = _log(1.0 + x[0, i])
        x[2, i] = _log(floor + log_z + x[2, i] / x[1, i])
        x[1, i] = _log(floor + log_z)
        x[3, i] = _log(1.0 + x[3, i] / n_classes)
        x[4, i] = _log(x[4, i]) - 0.5 * log_z
        x[5, i] = _log(x[5, i]) - 0.25 * log_z


@_jit
def _scales(x: Array, count: int, scaler: Array, weights: Array, scale: Array) -> None:
    """Standardise the features; the factor of each row's margins."""
    scale[:] = 0.0
    for j in range(len(weights)):
        mean, deviation, low, high = scaler[0, j], scaler[1, j], scaler[2, j], scaler[3, j]
        for i in range(count):
            x[j, i] = min(max((x[j, i] - mean) / deviation, low), high)
            scale[i] += weights[j] * x[j, i]
    for i in range(count):
        s = min(max(scale[i], -_WIDEST), _WIDEST)
        e = exp(-abs(s))
        scale[i] = e if s < 0 else 1.0 / e


@_jit
def _sigmoids(odds: Array, count: int, q: Array) -> None:
    for i in range(count):
        e = exp(-abs(odds[i]))
        q[i] = (e if odds[i] < 0 else 1.0) / (1.0 + e)


@_jit
def _scores(margin: Array, scale: Array, kappa: Any, bias: Array, scores: Array) -> None:
    """Margins become minus the refined ones; scores of the classes below the top."""
    for i in range(len(margin)):
        m, s, factor = margin[i], scores[i], margin.dtype.type(scale[i])
        for k in range(len(m)):
            refined = m[k] * factor
            m[k] = -refined
            s[k] = bias[k] - kappa * refined


@_fast
def _sum(values: Array, zero: Any) -> float:
    total = 0.0
    for begin in range(0, len(values), _CHUNK):
        chunk, part = values[begin : begin + _CHUNK], zero
        for k in range(len(chunk)):
            part += chunk[k]
        total += part
    return total


@_jit
def _row_sums(values: Array, count: int, top: Array, totals: Array) -> None:
    """Sums over the rows of values that are 0 at the top class."""
    for i in range(count):
        totals[i] = _sum(values[i], values[i, top[i]])


@_jit
def _odds(e: Array, count: int, top: Array, tiny: float, odds: Array) -> None:
    """Log-odds of the top classes from e^−refined."""
    for i in range(count):
        e[i, top[i]] = 0.0  # left out of the sum, not taken from it: 1 − 1 would lose all digits
    _row_sums(e, count, top, odds)
    for i in range(count):
        odds[i] = -_log(max(odds[i], tiny))


@_jit
def _correct(odds: Array, count: int, x: Array, knots: Array, scaler: Array, weights: Array) -> None:
    """The curve of :class:`hcal.calibrators.h.events.Curve` without its class term, in place."""
    z, change = np.empty(count), np.empty(count)
    mean, deviation, low, high = scaler[0], scaler[1], scaler[2], scaler[3]
    for i in range(count):
        z[i] = min(max((odds[i] - mean) / deviation, low), high)
        change[i] = weights[0] + weights[1] * z[i]
    for j in range(len(knots)):
        knot, weight = knots[j], weights[2 + j]
        for i in range(count):
            change[i] += weight * max(z[i] - knot, 0.0)
    for j in range(len(weights) - 2 - len(knots)):
        weight = weights[2 + len(knots) + j]
        for i in range(count):
            change[i] += weight * x[j, i]
    for i in range(count):
        odds[i] += change[i]


@_jit
def _below_highest(scores: Array, top: Array) -> None:
    """Scores less the highest but the top's own, which becomes −∞."""
    for i in range(len(scores)):
        _less_highest(scores[i], top[i])


@_jit
def _less_highest(s: Array, top: int) -> Any:
    """Take the highest score but the top's own from all, in place, and return it."""
    s[top] = -np.inf
    best = rank(s[0])
    for k in range(len(s)):
        best = max(best, rank(s[k]))
    highest = unrank(best)
    for k in range(len(s)):
        s[k] -= highest
    return highest


@_jit
def _held(
    q: Array, count: int, n: int, totals: Array, lift: float, just_below: float, times: Array, plus: Array
) -> None:
    """P(top), in place, and the line that makes probabilities of the others' exponentials.

    See :mod:`hcal.calibrators.h.keep`: where the top would be lost it is lifted, and the others are mixed
    with their even share.
    """
    even, lowest = 1.0 / max(n - 1, 1), 1.0 / n / just_below
    for i in range(count):
        total, old = totals[i], q[i]
        largest = 1.0 / total
        kept = lift < 0 or old >= just_below * largest * (1.0 - old)
        middle = 0.5 * (old + largest * (1.0 - old))
        lifted = old + lift * (middle - old)
        held = old if kept else max(lifted, lowest)
        room = just_below * held / max(1.0 - held, 1e-300)
        mixed = min(max((largest - room) / max(largest - even, 1e-12), 0.0), 1.0)
        w = 0.0 if kept or n == 2 else (1.0 if lifted < lowest else mixed)
        q[i], times[i], plus[i] = held, (1.0 - held) * (1.0 - w) / total, (1.0 - held) * w * even


@_jit
def _join(probs: Array, top: Array, q: Array, times: Array, plus: Array, lift: float) -> None:
    """Shares of the rest, unnormalised with largest 1, become probabilities; the argmax is kept."""
    kind = probs.dtype.type
    for i in range(len(probs)):
        p, slope, start = probs[i], kind(times[i]), kind(plus[i])
        for k in range(len(p)):
            p[k] = p[k] * slope + start
        p[top[i]] = q[i]
        if lift >= 0 and kind(q[i]) <= slope + start:
            _keep_first(p, top[i])


@_jit
def _keep_first(p: Array, top: int) -> None:
    """Where rounding made the top class tie with an earlier one, lift it by one unit in the last place."""
    best = _argmax(p)
    if best != top:
        p[top] = np.nextafter(p[best], p.dtype.type(2.0))


@_jit
def _argmax(values: Array) -> int:
    best = 0
    for k in range(len(values)):
        if values[k] > values[best]:
            best = k
    return best
