"""The objective of many events with few marks, compiled: values alone are sorted, the gradient is looked up.

No position is carried through the sort. The gradient of an event depends on its probability and mark alone
(ties share their mean), so it is computed rank by rank and looked up: by the upper bits of the probability
where all of a bucket agrees, else by a search inside the bucket. Exact, and it pays because windows without a
mark all have the same slope: with norm 1 the gradient changes only within reach of a mark or of a cluster's
edge, and whole blocks of windows elsewhere are one product. Kernels release the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.objective.settings import EVEN, ObjectiveSettings
from hcal.runtime.buffers import buffer
from hcal.runtime.jit import jit
from hcal.numerics import Float64
from hcal.runtime.threads import run_parts, split

Array = NDArray[Any]

_jit = jit()

# Below so many events the whole problem is in cache, and carrying positions is cheap.
LEAST_EVENTS = 1 << 20
# A bucket is all probabilities that agree but for so many last bits: fine enough to be nearly always uniform,
# coarse enough that the tables of the buckets in use stay in a core's cache.
_SHIFT = 10
_BUCKETS = 1 << (30 - _SHIFT)
_REFRESH = 8192
_CHUNK = 4096
_POSITIVE = np.uint32(0x7FFFFFFF)  # all but the sign of -0.0
_LOUD = np.uint32(0x7FC00000)  # NaN: the ranks of a bucket do not agree


def suits(n: int, n_marked: int, s: ObjectiveSettings) -> bool:
    """Return whether few enough events lie within a window of a mark."""
    return s.norm == 1 and LEAST_EVENTS <= n < 1 << 31 and n >= s.window * max(n_marked, 1)


def sorted_probs(p: Array, marks: Array) -> tuple[Array, Array]:
    """Return sorted probabilities and the ranks of the marked ones, which come last among ties.

    The bits of a probability below 2 order like an integer and leave one of 32 bits for the mark.
    """
    keys = buffer(len(p), np.uint32)
    run_parts(lambda a, b: _pack(p.view(np.uint32)[a:b], marks[a:b], keys[a:b]), split(len(p)))
    keys.sort()
    ranks = np.empty(int(np.count_nonzero(marks)), dtype=np.int64)
    _unpack(keys, ranks)
    return keys.view(np.float32), ranks


def slide(
    q: Array, ranks: Array, window: int, total: Float64, size: int,
    clusters: tuple[NDArray[np.int64], Float64], epsilon: float, factor: float,
) -> tuple[float, Array]:  # fmt: skip
    """Return the weighted loss and ``factor`` times the gradient of every rank.

    ``total`` are the sums over all events of all windows, of every ``size`` windows.
    """
    out = buffer(len(q), np.float32)
    parts = split(-(-len(q) // size), grain=size)
    losses = run_parts(
        lambda a, b: _blocks(q, ranks, window, total, size, *clusters, epsilon, factor, a, b, out), parts
    )
    return float(sum(losses)), out


def read_back(p: Array, marks: Array, q: Array, ranks: Array, by_rank: Array, grad: Array) -> None:
    """Write the gradient of every event, found by its probability and mark, into ``grad``."""
    bits, ordered = p.view(np.uint32), q.view(np.uint32)
    start, value = np.empty(_BUCKETS + 1, dtype=np.int64), np.empty(_BUCKETS, dtype=np.float32)
    _tabulate(ordered, ranks, by_rank, start, value)
    # Ranks of buckets that do not agree are put side by side: the searches there stay in cache.
    loud = np.flatnonzero(value.view(np.uint32) == _LOUD)
    place = np.zeros(_BUCKETS + 1, dtype=np.int32)
    place[loud + 1] = start[loud + 1] - start[loud]
    np.cumsum(place, out=place)
    near = np.empty((place[-1], 2), dtype=np.uint32)
    _gather(loud, start, place, ordered, by_rank.view(np.uint32), near)
    gradient = grad.view(np.uint32)
    run_parts(
        lambda a, b: _look_up(bits[a:b], value.view(np.uint32), place, near, gradient[a:b]), split(len(p))
    )
    _look_up_marked(np.flatnonzero(marks), bits, ordered, ranks, by_rank, grad)


@_jit
def _pack(bits: Array, marks: Array, keys: Array) -> None:
    for i in range(len(bits)):
        keys[i] = (bits[i] << np.uint32(1)) | np.uint32(marks[i])  # the sign of -0.0 falls off


@_jit
def _unpack(keys: Array, ranks: Array) -> None:
    found = 0
    for j in range(len(keys)):
        if keys[j] & np.uint32(1):
            ranks[found] = j
            found += 1
        keys[j] >>= np.uint32(1)


@_jit
def _blocks(
    q: Array, ranks: Array, window: int, total: Array, size: int, edges: Array, weights: Array,
    epsilon: float, factor: float, lo: int, hi: int, out: Array,
) -> float:  # fmt: skip
    """Loss of the windows in blocks lo..hi, and the gradient of the ranks there.

    A block is quiet if all windows that touch it hold no mark, exceed ε and have one weight. The others are
    slid, in stretches. The first and the last block of a part are always slid: a run of ties may reach over
    the end of the part, and both sides then give it the same mean.
    """
    n, m = len(q), len(q) - window + 1
    loss, cluster, loud, done = 0.0, 0, lo * size, lo * size
    mark = np.searchsorted(ranks, lo * size - window + 1)
    for b in range(lo, hi):
        begin, end = b * size, min((b + 1) * size, n)
        reach = begin - window + 1
        while mark < len(ranks) and ranks[mark] < reach:
            mark += 1
        while cluster + 1 < len(weights) and edges[cluster + 1] <= reach:
            cluster += 1
        quiet = (
            lo < b < hi - 1 and reach >= 0 and end <= m and q[reach] > epsilon and end <= edges[cluster + 1]
        )
        if not quiet or (mark < len(ranks) and ranks[mark] < end + window - 1):
            continue
        if loud < begin:
            loss += _stretch(q, ranks, window, loud, begin, edges, weights, epsilon, factor, out)
            done = _run_end(q, ranks, begin)
        loss += weights[cluster] * (total[b] / window - epsilon * (end - begin))
        value = np.float32(factor * window * weights[cluster])
        for j in range(max(begin, done), end):
            out[j] = value
        loud = end
    last = min(hi * size, n)
    if loud < last:
        loss += _stretch(q, ranks, window, loud, last, edges, weights, epsilon, factor, out)
    return loss


@_jit
def _run_end(q: Array, ranks: Array, j: int) -> int:
    """First rank from j on where a run of equal probability and mark begins."""
    at = np.searchsorted(ranks, j)
    while 0 < j < len(q) and q[j] == q[j - 1]:
        marked = at < len(ranks) and ranks[at] == j
        if marked != (at > 0 and ranks[at - 1] == j - 1):
            break
        j += 1
        at += marked
    return j


@_jit
def _run_begin(q: Array, ranks: Array, j: int) -> int:
    """Where the run of equal probability and mark that holds rank j begins."""
    at = np.searchsorted(ranks, j)
    marked = at < len(ranks) and ranks[at] == j
    while j > 0 and q[j] == q[j - 1] and marked == (at > 0 and ranks[at - 1] == j - 1):
        j -= 1
        at -= marked
    return j


@_jit
def _stretch(
    q: Array, ranks: Array, window: int, lo: int, hi: int, edges: Array, weights: Array,
    epsilon: float, factor: float, out: Array,
) -> float:  # fmt: skip
    """Loss of the windows lo..hi one by one; the gradient there, and to the ends of the runs of ties.

    Window k is slid from k − 1; its slope dloss/d(mean of q) enters a ring, and the sum of the ring at rank j
    is the sum over the windows j − M + 1 .. j that hold event j. Ties in probability and mark get their mean.
    """
    n, m, share, even = len(q), len(q) - window + 1, 1.0 / window, EVEN / window
    from_, to = _run_begin(q, ranks, lo), _run_end(q, ranks, hi)
    first = max(0, from_ - window + 1)
    ring = np.zeros(window)
    loss, mass, slopes, seat, cluster, acc, run = 0.0, 0.0, 0.0, 0, 0, 0.0, from_
    leaving = np.searchsorted(ranks, first)
    entering = np.searchsorted(ranks, first + window)
    own = np.searchsorted(ranks, from_)
    for j in range(first, to):
        slope = 0.0
        if j < m:
            if j == first or j % _REFRESH == 0:
                mass, slopes = 0.0, 0.0
                for i in range(j, j + window):
                    mass += q[i]
                for i in range(window):
                    slopes += ring[i]
            while j >= edges[cluster + 1]:
                cluster += 1
            hits = entering - leaving
            error = (mass - hits) * share
            excess = abs(error) - epsilon
            if excess > even * hits:
                slope = weights[cluster] if error > 0 else -weights[cluster]
                if lo <= j < hi:
                    loss += weights[cluster] * excess
            if j + window < n:
                mass += np.float64(q[j + window]) - np.float64(q[j])
                entering += entering < len(ranks) and ranks[entering] == j + window
            leaving += leaving < len(ranks) and ranks[leaving] == j
        slopes += slope - ring[seat]
        ring[seat] = slope
        seat = seat + 1 if seat + 1 < window else 0
        if j < from_:
            continue
        acc += slopes
        marked = own < len(ranks) and ranks[own] == j
        own += marked
        if j + 1 == to or q[j + 1] != q[j] or marked != (own < len(ranks) and ranks[own] == j + 1):
            value = np.float32(acc * factor / (j + 1 - run))
            for i in range(run, j + 1):
                out[i] = value
            run, acc = j + 1, 0.0
    return loss


@_jit
def _tabulate(ordered: Array, ranks: Array, by_rank: Array, start: Array, value: Array) -> None:
    """First rank of each bucket; the gradient of its events without a mark, or NaN where they do not agree.

    Those with a mark are looked up one by one: with ties, theirs alone would make a bucket loud.
    """
    bucket, same, seen, mark = np.int64(0), np.float32(0.0), False, 0
    start[0] = 0
    value[:] = np.float32(0.0)
    for j in range(len(ordered)):
        own = np.int64(ordered[j] >> np.uint32(_SHIFT))
        if own != bucket:
            value[bucket] = same
            for b in range(bucket + 1, own + 1):
                start[b] = j
            bucket, same, seen = own, np.float32(0.0), False
        if mark < len(ranks) and ranks[mark] == j:
            mark += 1
        elif not seen:
            same, seen = by_rank[j], True
        elif by_rank[j] != same:
            same = np.float32(np.nan)
    value[bucket] = same
    start[bucket + 1 :] = len(ordered)


@_jit
def _gather(loud: Array, start: Array, place: Array, ordered: Array, by_rank: Array, near: Array) -> None:
    for b in loud:
        for j in range(start[b + 1] - start[b]):
            near[place[b] + j, 0] = ordered[start[b] + j]
            near[place[b] + j, 1] = by_rank[start[b] + j]


@_jit
def _rank_of(bits: Any, ordered: Array) -> int:
    """First rank whose probability is not below."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) >> 1
        if ordered[middle] < bits:
            low = middle + 1
        else:
            high = middle
    return low


@_jit
def _look_up(bits: Array, value: Array, place: Array, near: Array, grad: Array) -> None:
    """Gradients by bucket; in a loud one by a search: by halves, as ties may fill it."""
    open_ = np.empty(_CHUNK, dtype=np.int64)
    for begin in range(0, len(bits), _CHUNK):  # the first loop over a chunk is vectorised, the rest is rare
        some, out = bits[begin : begin + _CHUNK], grad[begin : begin + _CHUNK]
        for i in range(len(some)):
            out[i] = value[(some[i] & _POSITIVE) >> np.uint32(_SHIFT)]
        count = 0
        for i in range(len(some)):
            open_[count] = i
            count += out[i] == _LOUD
        for i in open_[:count]:
            own = some[i] & _POSITIVE
            bucket = np.int64(own >> np.uint32(_SHIFT))
            low, high = np.int64(place[bucket]), np.int64(place[bucket + 1])
            out[i] = near[low + _rank_of(own, near[low:high, 0]), 1]


@_jit
def _look_up_marked(
    events: Array, bits: Array, ordered: Array, ranks: Array, by_rank: Array, grad: Array
) -> None:
    for i in events:
        own = bits[i] & _POSITIVE
        rank = _rank_of(own, ordered)
        grad[i] = by_rank[ranks[np.searchsorted(ranks, rank)]]  # among ties the marked ones come last
