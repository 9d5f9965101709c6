"""The mixture of temperatures in float32, compiled by numba; each thread takes rows lo to hi."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hcal.compiled import Kernel, exponential, jit
from hcal.numerics import NumpyArray as Numbers
from hcal.numerics import in_threads, split

_jit = jit()

_exp = exponential(np.float32)
# Rows are handled in blocks of about this many events, which fit in the cache.
_EVENTS = 2048


# Blocks are transposed, so that the inner loops run over rows, which are many, and not over classes, which may be two.


@_jit
def _load_block(x: Numbers, lo: int, hi: int, out: Numbers) -> None:
    """Transpose rows lo..hi of x into out (K, R); rows beyond hi are 0."""
    for k in range(x.shape[1]):
        for r in range(hi - lo):
            out[k, r] = x[lo + r, k]
        for r in range(hi - lo, out.shape[1]):
            out[k, r] = np.float32(0.0)


@_jit
def _less_column_maximum(depth: Numbers, top: Numbers) -> None:
    top[:] = depth[0]
    for k in range(1, depth.shape[0]):
        for r in range(len(top)):
            top[r] = max(top[r], depth[k, r])
    for k in range(depth.shape[0]):
        for r in range(len(top)):
            depth[k, r] -= top[r]


@_jit
def _member(a: float, depth: Numbers, score: Numbers, out: Numbers, mass: Numbers) -> None:
    """Compute exp(a·depth) of a block, and 1/Σ of it over the classes."""
    flat = depth.reshape(-1)
    for k in range(len(flat)):
        score[k] = a * flat[k]
    _exp(score, out.reshape(-1))
    mass[:] = np.float32(0.0)
    for k in range(out.shape[0]):
        for r in range(len(mass)):
            mass[r] += out[k, r]
    for r in range(len(mass)):
        mass[r] = np.float32(1.0) / mass[r]


def mixture_forward(x: Numbers, slopes: Numbers, shares: Numbers) -> Numbers:
    """Return Σ v_i softmax(a_i x) of float32 arrays."""
    probs = np.empty(x.shape, np.float32)
    parts = split(len(x), grain=x.shape[1] * len(slopes))
    in_threads(lambda part: _forward(x, slopes, shares, *part, probs), parts)
    return probs


def mixture_backward(x: Numbers, slopes: Numbers, grad: Numbers) -> tuple[Numbers, Numbers]:
    """Return dL/dv and (dL/da)/v: E[G] and Cov(G, x) under each member, summed over rows."""
    parts = split(len(x), grain=x.shape[1] * len(slopes))
    sums = in_threads(lambda part: _backward(x, slopes, grad, *part), parts)
    by_share, by_slope = np.sum(sums, axis=0)
    return by_share.astype(np.float32), by_slope.astype(np.float32)


def compile_all() -> Iterator[tuple[str, Kernel]]:
    """Compile the kernels; yield what was compiled, and the kernel."""
    one = np.ones((1, 2), np.float32)
    mixture_forward(one, one[0], one[0])
    yield "a mixture of temperatures", _forward
    mixture_backward(one, one[0], one)
    yield "the gradient of a mixture of temperatures", _backward


@_jit
def _forward(
    x: Numbers, slopes: Numbers, shares: Numbers, lo: int, hi: int, probs: Numbers
) -> None:
    n = x.shape[1]
    rows = max(16, _EVENTS // n)
    score = np.empty(rows * n, dtype=np.float32)
    depth = np.empty((n, rows), dtype=np.float32)
    member = np.empty((n, rows), dtype=np.float32)
    total = np.empty((n, rows), dtype=np.float32)
    mass = np.empty(rows, dtype=np.float32)
    for i in range(lo, hi, rows):
        end = min(i + rows, hi)
        _load_block(x, i, end, depth)
        _less_column_maximum(depth, mass)
        total[:] = np.float32(0.0)
        for m in range(len(slopes)):
            _member(slopes[m], depth, score, member, mass)
            share = shares[m]
            for k in range(n):
                for r in range(rows):
                    total[k, r] += share * mass[r] * member[k, r]
        for r in range(end - i):
            for k in range(n):
                probs[i + r, k] = total[k, r]


@_jit
def _backward(
    x: Numbers, slopes: Numbers, grad: Numbers, lo: int, hi: int
) -> tuple[Numbers, Numbers]:
    n = x.shape[1]
    rows = max(16, _EVENTS // n)
    by_share = np.zeros(len(slopes))
    by_slope = np.zeros(len(slopes))
    score = np.empty(rows * n, dtype=np.float32)
    depth = np.empty((n, rows), dtype=np.float32)
    member = np.empty((n, rows), dtype=np.float32)
    slope = np.empty((n, rows), dtype=np.float32)
    mass = np.empty(rows, dtype=np.float32)
    g = np.empty_like(mass)
    d = np.empty_like(mass)
    gd = np.empty_like(mass)
    for i in range(lo, hi, rows):
        end = min(i + rows, hi)
        _load_block(x, i, end, depth)
        _less_column_maximum(depth, mass)
        _load_block(grad, i, end, slope)  # rows beyond the end have gradient 0 and add nothing
        for m in range(len(slopes)):
            _member(slopes[m], depth, score, member, mass)
            g[:] = np.float32(0.0)
            d[:] = np.float32(0.0)
            gd[:] = np.float32(0.0)
            for k in range(n):
                for r in range(rows):
                    weighted = member[k, r] * slope[k, r]
                    g[r] += weighted
                    d[r] += member[k, r] * depth[k, r]
                    gd[r] += weighted * depth[k, r]
            for r in range(rows):
                mean = g[r] * mass[r]
                by_share[m] += mean
                by_slope[m] += gd[r] * mass[r] - mean * d[r] * mass[r]
    return by_share, by_slope
