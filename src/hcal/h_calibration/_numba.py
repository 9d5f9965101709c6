"""The objective compiled by numba, one family on the CPU: a radix sort, then one pass.

Probability, mark and position are packed into one 64-bit integer (32 + 1 + 31 bits), so one sort of integers also gives
the permutation, and the upper halves of the sorted integers are the sorted probabilities. One pass then slides the
window, computes its error and writes the gradient of each event. The kernels release the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hcal.compiled import Kernel, jit
from hcal.h_calibration.definition import EVEN, HALF_WAY, ObjectiveSettings
from hcal.numerics import Float64, in_threads, split
from hcal.numerics import NumpyArray as Numbers

# Bits of a digit of the radix sort: few enough that the counts stay in the first-level cache.
_WIDTH = 11
_DIGITS = 1 << _WIDTH
# The window sum is stored for every _BLOCK-th window. A binary search over the stored sums finds the block, and a short
# walk the window. Every _REFRESH blocks the running sum is computed afresh, which bounds its rounding error.
_BLOCK = 256
_REFRESH = 32
_MARK = np.uint32(1 << 31)
_jit = jit()
# Reassociation allows the compiler to vectorise sums.
_fast = jit(fastmath={"reassoc", "contract", "nsz"})


def families_loss(
    q: Numbers, marks: Numbers, s: ObjectiveSettings, need_grad: bool
) -> tuple[float, Numbers | None]:
    """Return the mean loss over the rows of events q (F, n), and its gradient (F, n)."""
    share = 1 / len(q)
    grad = np.empty(q.shape if need_grad else (len(q), 0), q.dtype)
    losses = []
    for probs, happened, grad_of_row in zip(q, marks, grad, strict=True):
        p = np.ascontiguousarray(probs)
        o = np.ascontiguousarray(happened)
        losses.append(_family_loss(p, o, s, grad_of_row, share))
    return sum(losses) / len(q), grad if need_grad else None


def compile_all() -> Iterator[tuple[str, Kernel]]:
    """Compile the kernels for each float type; yield what was compiled, and the last kernel."""
    for kind in (np.float32, np.float64):
        probs = np.array([[0.25, 0.75]], kind)
        marks = np.array([[False, True]])
        families_loss(probs, marks, ObjectiveSettings(window=1), need_grad=True)
        # With several threads, parts of the events are cut between runs of equal ones.
        _next_run(*_sorted_events(probs[0], marks[0]), 1)
        yield f"the loss of h-calibration in {kind.__name__}", _slide


def _family_loss(
    p: Numbers, marks: Numbers, s: ObjectiveSettings, grad: Numbers, share: float
) -> float:
    """Return the loss of one family; write ``share`` times its gradient into ``grad`` unless that is empty."""
    n = len(p)
    if n >= 1 << 31:
        raise ValueError(f"{n} events are too many for one sort (at most 2**31 - 1)")
    q, index = _sorted_events(p, marks)
    window = min(s.window, n)
    ends, weights = _clusters(q, window, s)
    factor = share * s.scale / window
    parts = split(n, partial(_next_run, q, index))
    losses = in_threads(
        lambda part: _slide(
            q, index, window, *part, ends, weights, float(s.epsilon), s.norm, factor, grad
        ),
        parts,
    )
    return float(s.scale * sum(losses))


def _sorted_events(p: Numbers, marks: Numbers) -> tuple[Numbers, Numbers]:
    """Return sorted probabilities and their positions, the mark in the top bit."""
    if p.dtype == np.float32:
        pairs, spare = np.empty((2, len(p)), np.uint64)
        in_threads(lambda part: _pack(p.view(np.uint32), marks, *part, pairs), split(len(p)))
        ordered = _radix_sort(pairs, spare)
        # numba supports only little-endian machines, where the lower half of an integer comes first
        return ordered.view(np.float32)[1::2], ordered.view(np.uint32)[::2]
    order = np.argsort((p.view(np.int64) << 1) | marks)
    top_bits = marks[order].astype(np.uint32) << np.uint32(31)
    return p[order], order.astype(np.uint32) | top_bits


@_jit
def _pack(bits: Numbers, marks: Numbers, lo: int, hi: int, pairs: Numbers) -> None:
    for i in range(lo, hi):
        value = np.uint64(bits[i] & np.uint32(0x7FFFFFFF))  # -0.0 is 0
        pairs[i] = (value << np.uint64(32)) | (np.uint64(marks[i]) << np.uint64(31)) | np.uint64(i)


@_jit
def _radix_sort(pairs: Numbers, spare: Numbers) -> Numbers:
    """Sort by the upper 33 bits in three passes, the lowest digit first; both arrays are overwritten."""
    counts = np.zeros((3, _DIGITS), dtype=np.int64)
    last = np.uint64(_DIGITS - 1)
    for i in range(len(pairs)):
        key = pairs[i] >> np.uint64(31)
        for digit in range(3):
            counts[digit, np.intp((key >> np.uint64(_WIDTH * digit)) & last)] += 1
    for digit in range(3):
        shift = np.uint64(31 + _WIDTH * digit)
        start = counts[digit]
        total = 0
        for place in range(_DIGITS):
            count = start[place]
            start[place] = total
            total += int(count)
        for i in range(len(pairs)):
            bucket = np.intp((pairs[i] >> shift) & last)
            spare[start[bucket]] = pairs[i]
            start[bucket] += 1
        pairs, spare = spare, pairs
    return pairs


def _clusters(q: Numbers, window: int, s: ObjectiveSettings) -> tuple[NDArray[np.int64], Float64]:
    """Return the end of each cluster of windows and the weight of its windows."""
    m = len(q) - window + 1
    if s.weighting == "uniform":
        return np.array([m]), np.array([1 / m])
    blocks = -(-m // _BLOCK)
    first = np.empty(blocks)
    total = np.empty(blocks)
    parts = split(blocks, grain=_BLOCK)
    in_threads(lambda part: _block_sums(q, window, m, *part, first, total), parts)
    prefix = np.concatenate([[0.0], np.cumsum(total)])
    edges = _kmeans_edges(q, window, m, first, prefix, s.clusters, s.iterations)
    counts = np.maximum(np.diff(edges), 1)
    return edges[1:], 1 / (s.clusters * counts)


@_fast
def _block_sums(
    q: Numbers, window: int, m: int, lo: int, hi: int, first: Numbers, total: Numbers
) -> None:
    """Window sum at the first window of each block, and the sum of window sums over the block."""
    running = 0.0
    for b in range(lo, hi):
        start = b * _BLOCK
        count = min(_BLOCK, m - start)
        if b == lo or b % _REFRESH == 0:
            running = 0.0
            for v in q[start : start + window]:
                running += v
        first[b] = running
        # the step from window i to i + 1 enters the sums of all later windows of the block
        entering = q[start + window : start + window + count]
        leaving = q[start : start + count]
        moved = 0.0
        ahead = 0.0
        for i in range(len(entering)):
            step = np.float64(entering[i]) - np.float64(leaving[i])
            moved += step
            ahead += step * (count - 1 - i)
        total[b] = count * running + ahead
        running += moved


@_jit
def _kmeans_edges(
    q: Numbers, window: int, m: int, first: Numbers, prefix: Numbers, clusters: int, iterations: int
) -> NDArray[np.int64]:
    """Lloyd steps from the quantiles (i + ½)/C of the window sums, until nothing moves."""
    centres = np.empty(clusters)
    for i in range(clusters):
        place = (i + 0.5) / clusters * (m - 1)
        low = int(place)
        below = _sum_at(q, window, first, low)
        above = _sum_at(q, window, first, min(low + 1, m - 1))
        centres[i] = below + (above - below) * (place - low)
    edges = np.zeros(clusters + 1, dtype=np.int64)
    edges[clusters] = m
    sums = np.zeros(clusters + 1)
    sums[clusters] = prefix[-1]
    for step in range(iterations + 1):
        moved = False  # all edges start at 0, so the first step always moves some
        for i in range(1, clusters):
            middle = HALF_WAY * (centres[i - 1] + centres[i]) / 2
            edge, sums[i] = _search(q, window, m, first, prefix, middle)
            moved |= edge != edges[i]
            edges[i] = edge
        if not moved or step == iterations:
            break
        for i in range(clusters):
            count = edges[i + 1] - edges[i]
            if count > 0:
                centres[i] = (sums[i + 1] - sums[i]) / count
    return edges


@_jit
def _sum_at(q: Numbers, window: int, first: Numbers, k: int) -> float:
    """Return the sum of window k, computed step by step from the start of its block."""
    b = k // _BLOCK
    running: float = first[b]
    for j in range(b * _BLOCK, k):
        running += np.float64(q[j + window]) - np.float64(q[j])
    return running


@_jit
def _search(
    q: Numbers, window: int, m: int, first: Numbers, prefix: Numbers, middle: float
) -> tuple[int, float]:
    """Number of windows whose sum is at most ``middle``, and the total of their sums."""
    b = int(np.searchsorted(first, middle, side="right")) - 1
    if b < 0:
        return 0, 0.0
    running = first[b]
    acc = prefix[b]
    start = b * _BLOCK
    end = min(start + _BLOCK, m)
    for k in range(start, end):
        if k > start:
            running += np.float64(q[k + window - 1]) - np.float64(q[k - 1])
        if running > middle:
            return k, acc
        acc += running
    return end, acc


@_jit
def _next_run(q: Numbers, index: Numbers, j: int) -> int:
    """Return the first rank from j on whose (probability, mark) differs from that of the rank before."""
    while 0 < j < len(q) and q[j] == q[j - 1] and (index[j] ^ index[j - 1]) < _MARK:
        j += 1
    return j


@_jit
def _slide(
    q: Numbers, index: Numbers, window: int, lo: int, hi: int, ends: Numbers, weights: Numbers,
    epsilon: float, norm: int, factor: float, grad: Numbers,
) -> float:  # fmt: skip
    """Return the weighted loss of the windows that start at ranks lo..hi, and write the gradient of the events there.

    Window k is updated from k − 1. Its slope dloss/d(mean of q) enters a ring buffer of M entries, whose sum at rank j
    is the sum over the windows j − M + 1 .. j that hold event j. Events with equal probability and mark get the mean
    of their gradients, so the order of the rows has no influence.
    """
    m = len(q) - window + 1
    share = 1.0 / window  # multiplying is three times as fast as dividing
    even = EVEN * share
    ring = np.zeros(window)
    loss = 0.0
    cluster = 0
    run = lo
    acc = 0.0
    seat = 0
    first = max(0, lo - window + 1)
    for j in range(first, hi):
        slope = 0.0
        if j < m:
            if j == first or j % (_BLOCK * _REFRESH) == 0:
                mass = 0.0
                hits = 0
                slopes = 0.0
                for i in range(j, j + window):
                    mass += q[i]
                    hits += int(index[i] >> 31)
                for i in range(window):
                    slopes += ring[i]
            else:
                mass += np.float64(q[j + window - 1]) - np.float64(q[j - 1])
                hits += int(index[j + window - 1] >> 31) - int(index[j - 1] >> 31)
            while j >= ends[cluster]:
                cluster += 1
            error = (mass - hits) * share
            excess = abs(error) - epsilon
            if excess > even * hits:
                slope = weights[cluster] if error > 0 else -weights[cluster]
                if norm == 2:
                    slope *= 2 * excess
                    excess *= excess
                if j >= lo:
                    loss += weights[cluster] * excess
        slopes += slope - ring[seat]
        ring[seat] = slope
        seat = seat + 1 if seat + 1 < window else 0
        if j < lo or len(grad) == 0:
            continue
        acc += slopes
        if j + 1 == hi or q[j + 1] != q[j] or (index[j + 1] ^ index[j]) >> 31 != 0:
            value = acc * factor / (j + 1 - run)
            for i in range(run, j + 1):
                grad[index[i] & 0x7FFFFFFF] = value
            run = j + 1
            acc = 0.0
    return loss
