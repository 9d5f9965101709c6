"""Event-level kernels of the maps in float32, compiled by numba; rows lo..hi a call, GIL released.

``exp`` is a polynomial on a reduced argument, written so that the compiler vectorises it: at most 2 ulp off,
0 below e^−87, and a function of nothing but its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

_jit: Callable[[Callable[..., Any]], Callable[..., Any]] = njit(nogil=True, cache=True)
# Reassociation lets sums over a row use vector registers; everything here is finite.
_fast: Callable[[Callable[..., Any]], Callable[..., Any]] = njit(
    nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"}
)

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_LEAST = np.float32(-87.0)


@_jit
def exp_row(x: Array, bits: Array, power: Array, out: Array) -> None:
    """exp of non-positive values; ``power`` is ``bits`` seen as float32."""
    for k in range(len(x)):
        v = max(x[k], _LEAST)
        n = np.int32(v * _LOG2E - np.float32(0.5))
        bits[k] = (n + np.int32(127)) << np.int32(23)
        m = np.float32(n)
        r = (v - m * _LN2_HIGH) - m * _LN2_LOW
        y = np.float32(1.9875691500e-4)
        y = y * r + np.float32(1.3981999507e-3)
        y = y * r + np.float32(8.3334519073e-3)
        y = y * r + np.float32(4.1665795894e-2)
        y = y * r + np.float32(1.6666665459e-1)
        y = y * r + np.float32(5.0000001201e-1)
        out[k] = y * r * r + r + np.float32(1.0)
    for k in range(len(x)):
        out[k] = out[k] * power[k] if x[k] >= _LEAST else np.float32(0.0)


@_fast
def _row_sum(x: Array) -> Any:
    total = np.float32(0.0)
    for k in range(len(x)):
        total += x[k]
    return total


@_jit
def table_scores(x: Array, values: Array, inverse_step: float, out: Array) -> None:
    """−V at −x/step by linear interpolation; the last slope continues below the table."""
    cells = len(values) - 1
    inv = np.float32(inverse_step)
    for k in range(len(x)):
        t = max(-x[k] * inv, np.float32(0.0))
        c = np.int32(min(t, np.float32(cells - 1)))
        low, high = values[c], values[c + 1]
        w = low + (t - np.float32(c)) * (high - low)
        # rounding must not carry a point beyond the next knot: the map never inverts a pair
        out[k] = -(min(w, high) if c < cells - 1 else w)


@_jit
def table_forward(x: Array, values: Array, inverse_step: float, lo: int, hi: int, probs: Array) -> None:
    """P = softmax(−V(−x)) of rows lo..hi."""
    n = x.shape[1]
    bits = np.empty(n, dtype=np.int32)
    power = bits.view(np.float32)
    score = np.empty(n, dtype=np.float32)
    for i in range(lo, hi):
        table_scores(x[i], values, inverse_step, score)
        top = score.max()
        for k in range(n):
            score[k] -= top
        exp_row(score, bits, power, probs[i])
        total = np.float32(1.0) / _row_sum(probs[i])
        for k in range(n):
            probs[i, k] *= total


@_fast
def _row_dot(a: Array, b: Array) -> Any:
    total = np.float32(0.0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@_jit
def table_backward(
    x: Array, probs: Array, grad: Array, inverse_step: float, cells: int, lo: int, hi: int
) -> NDArray[np.float64]:
    """dL/dV of the table from dL/dP of rows lo..hi."""
    out = np.zeros(cells + 1)
    inv = np.float32(inverse_step)
    for i in range(lo, hi):
        mean = _row_dot(probs[i], grad[i])
        for k in range(x.shape[1]):
            p = probs[i, k]
            if p > 0:
                d = -p * (grad[i, k] - mean)
                t = max(-x[i, k] * inv, np.float32(0.0))
                c = np.int32(min(t, np.float32(cells - 1)))
                f = t - np.float32(c)
                out[c] += d * (np.float32(1.0) - f)
                out[c + 1] += d * f
    return out


@_jit
def mixture_forward(x: Array, slopes: Array, shares: Array, lo: int, hi: int, probs: Array) -> None:
    """P = Σ_i v_i softmax(a_i x) of rows lo..hi."""
    n = x.shape[1]
    bits = np.empty(n, dtype=np.int32)
    power = bits.view(np.float32)
    score, member = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    for i in range(lo, hi):
        top = x[i].max()
        probs[i] = np.float32(0.0)
        for m in range(len(slopes)):
            a = slopes[m]
            for k in range(n):
                score[k] = a * (x[i, k] - top)
            exp_row(score, bits, power, member)
            share = shares[m] / _row_sum(member)
            for k in range(n):
                probs[i, k] += share * member[k]


@_fast
def _moments(member: Array, grad: Array, x: Array, top: float) -> tuple[Any, Any, Any, Any]:
    mass, g, d, gd = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for k in range(len(member)):
        s, depth = member[k], x[k] - top
        mass += s
        g += s * grad[k]
        d += s * depth
        gd += s * grad[k] * depth
    return g / mass, d / mass, gd / mass, mass


@_jit
def mixture_backward(
    x: Array, slopes: Array, grad: Array, lo: int, hi: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """dL/dv and (dL/da)/v of the members from dL/dP of rows lo..hi."""
    n = x.shape[1]
    by_share, by_slope = np.zeros(len(slopes)), np.zeros(len(slopes))
    bits = np.empty(n, dtype=np.int32)
    power = bits.view(np.float32)
    score, member = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    for i in range(lo, hi):
        top = x[i].max()
        for m in range(len(slopes)):
            a = slopes[m]
            for k in range(n):
                score[k] = a * (x[i, k] - top)
            exp_row(score, bits, power, member)
            g, d, gd, _ = _moments(member, grad[i], x[i], top)
            by_share[m] += g
            by_slope[m] += gd - g * d
    return by_share, by_slope
