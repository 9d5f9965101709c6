"""The default's prediction compiled by numba: all steps for a few rows at a time, while they are in the cache.

The formula is :class:`hcal.pool.map.PoolMap`; a test compares the two. A block of rows is stored class by
class, (K, R), so that every inner loop runs over rows and is vectorised; loops that write to few arrays vectorise
best. Without this file prediction is slower, and nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numba import types
from numba.extending import overload

from hcal.compiled import Kernel, exponential, jit
from hcal.numerics import NumpyArray as Numbers
from hcal.numerics import in_threads, split
from hcal.pool.map import BENDS, FLOOR, Curve, Margins, PoolMap, TopCurve, TopVersusRestMap

_jit = jit(error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp", "nnan"})
#: Numbers in the float width of the scores.
Scalars = tuple[np.floating, ...]
#: Scores of a block, and its least number of rows.
_BLOCK = 8192
_ROWS = 64
#: The score of a class that is left out of a sum: e to this power is 0.
_NEVER = -1e30
_ZERO = np.array(0.0)


def predict(form: PoolMap, x: Numbers) -> Numbers:
    """Return probabilities (N, K) of finite logits (N, K), float32 or float64."""
    kind = x.dtype.type
    n, k = x.shape
    margins = form.margins
    slope, *steps, by_spread = form.top.slopes
    numbers = _as_tuple(
        kind,
        [
            margins.beta,
            margins.sharpness,
            margins.cap,
            *form.weights[:2],
            slope,
            by_spread,
            form.last.by_spread,
            FLOOR,
            1 + np.finfo(kind).eps,
        ],
    )
    matrix = np.zeros((0, k), kind)
    constants = np.zeros(k, kind)
    if form.matrix is not None:
        weighted = form.weights[2] * form.matrix
        matrix = np.ascontiguousarray(weighted[:, :-1], dtype=kind)
        constants = np.ascontiguousarray(weighted[:, -1], dtype=kind)
    fields = (
        numbers,
        _as_tuple(kind, BENDS),
        _as_tuple(kind, steps),
        constants,
        matrix,
        margins.spread,
        packed_curve(form.top.curve),
        packed_curve(form.last.curve),
        form.keep,
    )
    scores = np.ascontiguousarray(x)
    out = np.empty(x.shape, kind)
    parts = [slice(*part) for part in split(n, grain=k)]
    in_threads(lambda part: _predict(scores[part], *fields, out[part]), parts)
    return out


def compile_all() -> Iterator[tuple[str, Kernel]]:
    """Compile the kernel for each float type; yield what was compiled, and the kernel."""
    line = Curve(low=_ZERO, high=_ZERO, knots=np.zeros(0), weights=np.zeros(2))
    form = PoolMap(
        margins=Margins(
            beta=_ZERO, sharpness=_ZERO, cap=_ZERO, spread=np.array([0.0, 1.0, 0.0, 0.0])
        ),
        top=TopVersusRestMap(slopes=np.zeros(len(BENDS) + 2), curve=line),
        matrix=None,
        weights=np.zeros(3),
        last=TopCurve(curve=line, by_spread=_ZERO),
        keep=True,
    )
    for kind in (np.float32, np.float64):
        predict(form, np.zeros((1, 2), kind))
        yield f"the default's prediction in {kind.__name__}", _predict


def _as_tuple(kind: type[np.floating], numbers: Iterable[float]) -> Scalars:
    return tuple(kind(number) for number in numbers)


def packed_curve(curve: Curve) -> Numbers:
    """Return a curve as one array: low, high, constant, slope, changes of slope, knots."""
    return np.concatenate([[curve.low, curve.high], curve.weights, curve.knots])


# Globals and not closures: numba keeps a kernel on disk only if what it holds is the same in every process.
_exp_32 = exponential(np.float32)
_exp_64 = exponential(np.float64)


def _exp(v: Numbers, out: Numbers) -> None:
    raise NotImplementedError("compiled code takes the exponential of its float type")


def _exp_in_32(v: Numbers, out: Numbers) -> None:
    _exp_32(v, out)


def _exp_in_64(v: Numbers, out: Numbers) -> None:
    _exp_64(v, out)


# numba passes types, and wants the annotations of the functions that are returned.
@overload(_exp)
def _exp_of_type(v: Numbers, out: Numbers) -> Kernel:
    return _exp_in_32 if v.dtype == types.float32 else _exp_in_64


@_jit
def _add_curve(packed: Numbers, odds: Numbers, out: Numbers) -> None:
    """Add to ``out`` (R,) the values of a curve at ``odds`` (R,)."""
    low, high, constant, slope = packed[0], packed[1], packed[2], packed[3]
    n = (len(packed) - 4) // 2
    for r in range(len(odds)):
        out[r] += constant + slope * min(max(odds[r], low), high)
    for i in range(n):
        weight = packed[4 + i]
        knot = packed[4 + n + i]
        for r in range(len(odds)):
            out[r] += weight * max(min(max(odds[r], low), high) - knot, 0.0)


@_jit
def _largest(s: Numbers, top: Numbers, place: Numbers) -> None:
    """Find the largest score of every row of s (K, R), and its class."""
    for r in range(len(top)):
        top[r] = s[0, r]
        place[r] = 0
    for j in range(1, len(s)):
        for r in range(len(top)):
            v = s[j, r]
            before = top[r]
            place[r] = np.int32(j) if v > before else place[r]
            top[r] = v if v > before else before


@_jit
def _set_margins(
    s: Numbers, top: Numbers, beta: float, sharpness: float, part: Numbers, mass: Numbers
) -> None:
    """Turn scores (K, R) into margins below the top, and sum them in ``mass``.

    A class has the share max(1 − sharpness·margin, 0)·part of the top; ``part`` makes the shares of a row sum to 1.
    """
    one, zero = s.dtype.type(1), s.dtype.type(0)
    part[:] = zero
    mass[:] = zero
    for j in range(len(s)):
        for r in range(len(part)):
            s[j, r] = beta * (top[r] - s[j, r])
            mass[r] += s[j, r]
    for j in range(len(s)):
        for r in range(len(part)):
            part[r] += max(one - s[j, r] * sharpness, zero)
    for r in range(len(part)):
        part[r] = one / part[r]


@_jit
def _powers(
    s: Numbers, margin: Numbers, sharpness: float, part: Numbers, place: Numbers, most: Numbers,
    out: Numbers, mass: Numbers,
) -> None:  # fmt: skip
    """Subtract from s (K, R) the largest score below the top, ``most``; set out to e^s and mass to its sum there."""
    one, zero = s.dtype.type(1), s.dtype.type(0)
    for r in range(len(most)):
        if part[r] == one:
            s[place[r], r] = s.dtype.type(_NEVER)
        most[r] = s[0, r]
        mass[r] = zero
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


# Loops over entries instead of whole arrays: numba compiles an expression of arrays for a second or two.


@_jit
def _fill_shares(margin: Numbers, r: int, sharpness: float, share: Numbers) -> None:
    """Set ``share`` (K,) to how far the margin of each class of row r is below that of a tie, or 0."""
    one, zero = margin.dtype.type(1), margin.dtype.type(0)
    for j in range(len(share)):
        share[j] = max(one - margin[j, r] * sharpness, zero)


@_jit
def _lower(p: Numbers, share: Numbers, t: int, over: float) -> None:
    """Set what overtakes the top class t equal to it; t stays on top, if need be by the last bit of its float."""
    top = 0.0
    tied = 0.0
    for j in range(len(p)):
        top += share[j] * p[j]
        tied += share[j]
    level = top / tied
    for _ in range(4):
        mass = top
        count = tied
        for j in range(len(p)):
            if p[j] > level:
                mass += (1.0 - share[j]) * p[j]
                count += 1.0 - share[j]
        if mass / count == level:
            break
        level = mass / count
    excess = 0.0
    for j in range(len(p)):
        excess += (1.0 - share[j]) * max(p[j] - level, 0.0)
    for j in range(len(p)):
        if share[j] > 0 or p[j] > level:
            p[j] = share[j] * (top + excess) / tied + (1.0 - share[j]) * min(p[j], level)
    best = 0
    for j in range(1, len(p)):
        if p[j] > p[best]:
            best = j
    if best != t:
        p[t] = p[best] * over


@_jit
def _predict(
    x: Numbers, numbers: Scalars, bends: Scalars, steps: Scalars, constants: Numbers,
    matrix: Numbers, spread: Numbers, curve: Numbers, last: Numbers, keep: bool, out: Numbers,
) -> None:  # fmt: skip
    beta, sharpness, cap, scale, weight, slope_0, by_spread, last_by_spread, floor, over = numbers
    n, k = x.shape
    kind = x.dtype.type
    zero, one = kind(0), kind(1)
    rows = max(_ROWS, _BLOCK // k // 16 * 16)
    margin = np.empty((k, rows), kind)
    s = np.empty((k, rows), kind)
    powers = np.empty((k, rows), kind)
    capped = np.empty((k if len(matrix) else 0, rows), kind)
    share_of = np.empty(k, kind)  # of one row
    top = np.empty(rows, kind)
    most = np.empty(rows, kind)
    mass = np.empty(rows, kind)
    slope = np.empty(rows, kind)
    won = np.empty(rows, kind)
    lost = np.empty(rows, kind)
    part = np.empty(rows, kind)
    wide = np.empty(rows, kind)  # the spread of each row
    place = np.empty(rows, np.int32)
    odds = np.empty(rows)
    correction = np.empty(rows)
    for begin in range(0, n, rows):
        count = min(rows, n - begin)
        for r in range(rows):
            row = x[begin + min(r, count - 1)]
            for j in range(k):
                margin[j, r] = row[j]
        _largest(margin, top, place)
        _set_margins(margin, top, beta, sharpness, part, mass)
        for r in range(rows):
            standard = (math.log(1.0 + mass[r] / k) - spread[0]) / spread[1]
            wide[r] = kind(min(max(standard, spread[2]), spread[3]))
            slope[r] = slope_0 + by_spread * wide[r]
        for j in range(k):
            for r in range(rows):
                bent = slope[r] * margin[j, r]
                for i in range(len(bends)):
                    bent += steps[i] * max(margin[j, r] - bends[i], zero)
                s[j, r] = -bent
        _powers(s, margin, sharpness, part, place, most, powers, mass)
        for r in range(rows):
            lost[r] = math.log(mass[r])
            odds[r] = -most[r] - lost[r]
            correction[r] = odds[r]
        _add_curve(curve, odds, correction)
        for r in range(rows):
            beyond = math.log(1.0 + math.exp(-abs(correction[r])))
            won[r] = min(correction[r], 0.0) - beyond
            lost[r] = min(-correction[r], 0.0) - beyond - lost[r]
            if part[r] == one:  # its score has been _NEVER
                s[place[r], r] = zero
        for j in range(k):
            for r in range(rows):
                share = max(one - margin[j, r] * sharpness, zero) * part[r]
                log_p = share * won[r] + (one - share) * (s[j, r] + lost[r])
                temperature = constants[j] - scale * min(margin[j, r], cap)
                s[j, r] = temperature + weight * max(log_p, -floor)
        if len(matrix):
            for j in range(k):
                for r in range(rows):
                    capped[j, r] = min(margin[j, r], cap)
            np.dot(matrix, capped, powers)
            for j in range(k):
                for r in range(rows):
                    s[j, r] -= powers[j, r]
        if not keep:
            _largest(s, top, place)
            for j in range(k):
                for r in range(rows):
                    margin[j, r] = s[j, r]
            _set_margins(margin, top, one, sharpness, part, mass)
        top[:] = zero
        for j in range(k):
            for r in range(rows):
                top[r] += max(one - margin[j, r] * sharpness, zero) * part[r] * s[j, r]
        _powers(s, margin, sharpness, part, place, most, powers, mass)
        for r in range(rows):
            odds[r] = top[r] - most[r] - math.log(mass[r])
            correction[r] = last_by_spread * wide[r]
        _add_curve(last, odds, correction)
        for r in range(count):
            sure = odds[r] + correction[r]
            power = math.exp(-abs(sure))
            small = power / (1.0 + power)
            large = 1.0 / (1.0 + power)
            top_p = kind(large if sure > 0 else small)
            others = kind((small if sure > 0 else large) / mass[r])
            p = out[begin + r]
            for j in range(k):
                p[j] = powers[j, r] * others
            if part[r] == one:
                p[place[r]] = top_p
                if keep and others >= top_p:  # the likeliest of the others has e⁰ = 1
                    _fill_shares(margin, r, sharpness, share_of)
                    _lower(p, share_of, place[r], over)
            else:  # several classes share the top, and what the curve adds
                _fill_shares(margin, r, sharpness, share_of)
                total = 0.0
                for j in range(k):
                    if share_of[j] > 0:
                        p[j] *= math.exp(share_of[j] * part[r] * correction[r])
                    total += p[j]
                for j in range(k):
                    p[j] /= total
                if keep:
                    _lower(p, share_of, place[r], over)
