"""Windows of sorted events, summed: what the h-calibration error is made of, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.sample import BLOCK, Sample, Vector
from hcal.numerics import FloatArray, IntArray, prefix_sums


class SortedEvents(Protocol):
    """Events in ascending order of probability, decoded a stretch at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice | IntArray) -> tuple[Vector, Vector, IntArray]:
        """Return the probabilities, the marks and the rows of some events."""


@dataclass(frozen=True)
class ListedEvents:
    """One event a row, held as sorted arrays."""

    probability: Vector
    mark: Vector
    row: IntArray

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, where: slice | IntArray) -> tuple[Vector, Vector, IntArray]:
        return self.probability[where], self.mark[where], self.row[where]


class PooledRuns:
    """All N·K atomic events; only the sorted keys are held, 8 bytes an event for float32."""

    def __init__(self, s: Sample) -> None:
        self.k, self.y = s.k, s.y
        self.flat = np.ascontiguousarray(s.data.probs).ravel()
        self.packed = self.flat.dtype == np.float32 and self.flat.size < 2**32
        self.key: NDArray[Any]
        self.key = _packed_sort(self.flat) if self.packed else np.argsort(self.flat, kind="stable")

    def __len__(self) -> int:
        return self.flat.size

    def places(self, where: slice | IntArray) -> IntArray:
        """Return the row-major places of some sorted events."""
        key = self.key[where]
        return np.asarray((key & np.uint64(0xFFFFFFFF)).view(np.int64) if self.packed else key)

    def __getitem__(self, where: slice | IntArray) -> tuple[Vector, Vector, IntArray]:
        place = self.places(where)
        row = place // self.k
        mark = (self.y[row] == place - row * self.k).astype(np.float64)
        if self.packed:
            bits = (self.key[where] >> np.uint64(32)).astype(np.uint32)
            return bits.view(np.float32).astype(np.float64), mark, row
        return self.flat[place].astype(np.float64), mark, row


def _packed_sort(flat: FloatArray) -> NDArray[np.uint64]:
    """Return ascending keys: the bits of a float32 above, its place below.

    Bits of non-negative floats sort like the floats, so one sort of integers does what a stable argsort
    does, several times faster.
    """
    key = np.empty(flat.size, dtype=np.uint64)
    for i in range(0, flat.size, BLOCK):
        part = flat[i : i + BLOCK] + np.float32(0)  # turns −0.0, whose bits sort last, into 0.0
        key[i : i + BLOCK] = part.view(np.uint32)
        key[i : i + BLOCK] <<= np.uint64(32)
        key[i : i + BLOCK] |= np.arange(i, i + len(part), dtype=np.uint64)
    key.sort()
    return key


@dataclass
class WindowSums:
    """Sums over all windows of one sorted list of events."""

    pairs: float  # ordered pairs of different rows
    products: float  # Σ d_a d_b over them
    squares: float  # Σ_windows (mean d)², chance included
    windows: int
    null_variance: float  # of ``products``, if labels were drawn from the probabilities
    row_products: Vector | None  # the part of ``products`` in which each row takes part
    row_pairs: Vector | None


def sum_windows(events: SortedEvents, n_rows: int, window: int, se: bool) -> WindowSums:
    """Sum over the windows of sorted events, a stretch of about ``BLOCK/4`` events at a time."""
    n = len(events)
    m = min(window, n)
    count = n - m + 1
    by_place = shared_squares(n, m)
    found = WindowSums(float(count) * m * (m - 1), 0.0, 0.0, count, 0.0, None, None)
    if se:
        found.row_products, found.row_pairs = np.zeros(n_rows), np.zeros(n_rows)
    for first in range(0, n, BLOCK // 4):
        last = min(first + BLOCK // 4, n)
        # Every window that contains one of these events, and every event of those windows.
        start, stop = max(first - m + 1, 0), min(last, count)
        q, mark, row = events[start : stop + m - 1]
        d = q - mark
        prefix = prefix_sums(d)
        sums = prefix[m:] - prefix[:-m]
        own = slice(first - start, last - start)
        cover = cover_of(first, last, n, m)
        begun = sums[first - start :]  # windows that begin in this stretch: each is counted once
        square = float(np.dot(begun, begun))
        found.squares += square / m**2
        found.products += square - float(np.dot(cover, d[own] ** 2))
        # Within a window the variance hardly changes: v_a·v_b is taken as v_a².
        variance = q[own] * (1 - q[own])
        edge = np.minimum(np.arange(first, last), n - 1 - np.arange(first, last))
        found.null_variance += 2 * float(np.dot(variance**2, by_place[np.minimum(edge, len(by_place) - 1)]))
        if found.row_products is not None and found.row_pairs is not None:
            total = prefix_sums(sums)
            place = np.arange(first, last)
            around = total[np.minimum(place, n - m) + 1 - start] - total[np.maximum(place - m + 1, 0) - start]
            found.row_products += _by_row(row[own], d[own] * (around - cover * d[own]), n_rows)
            found.row_pairs += _by_row(row[own], cover * (m - 1), n_rows)
    return found


def _by_row(rows: IntArray, values: Vector, n_rows: int) -> Vector:
    return np.bincount(rows, weights=values, minlength=n_rows).astype(np.float64, copy=False)


def cover_of(first: int, last: int, n: int, m: int) -> Vector:
    """Return how many of the n − m + 1 windows contain each of the events first..last−1."""
    place = np.arange(first, last, dtype=np.float64)
    return np.minimum(np.minimum(place + 1, n - place), min(m, n - m + 1))


def shared_squares(n: int, m: int) -> Vector:
    """Return Σ_{b ≠ a} (number of windows that hold both a and b)² by the distance of a to the nearer end.

    The last entry holds for every larger distance.
    """
    n = min(n, 2 * m + 1)  # further inside, nothing changes any more
    a = np.arange((n + 1) // 2)[:, None]
    b = np.arange(n)[None, :]
    low, high = np.minimum(a, b), np.maximum(a, b)
    shared = np.minimum(low, n - m) - np.maximum(high - m + 1, 0) + 1
    squares = np.where(a == b, 0, np.maximum(shared, 0)).astype(np.float64) ** 2
    return np.asarray(squares.sum(axis=1))


def influence_of(members: list[WindowSums], n_rows: int) -> Vector | None:
    """Return how much each row moves the sum of the members' mean products, (N,); None where not known."""
    influence = np.zeros(n_rows)
    for x in members:
        if x.row_products is None or x.row_pairs is None:
            return None
        if x.pairs > 0:
            influence += 2 * (x.row_products - x.products / x.pairs * x.row_pairs) / x.pairs
    return influence


def sum_class_windows(s: Sample, window: int, se: bool) -> tuple[list[WindowSums], Vector | None]:
    """Sum over the windows of every class; of two classes one says all, being the mirror of the other.

    Return also the influence of every row on the sums.
    """
    if s.data.tensor is not None:
        from hcal.metrics.device_windows import class_windows_on_device

        return class_windows_on_device(s, window, se)
    out = _class_windows(s, window, se)
    return out, influence_of(out, s.n)


def sum_pooled_windows(s: Sample, window: int, se: bool) -> WindowSums:
    """Sum over the windows of all classes sorted together, without pairs of events of the same row."""
    if s.data.tensor is not None:
        from hcal.metrics.device_windows import pooled_windows_on_device

        return pooled_windows_on_device(s, window)
    events = PooledRuns(s)
    found = sum_windows(events, s.n, window, se)
    remove_same_rows(found, events, s, min(window, len(events)))
    return found


def _class_windows(s: Sample, window: int, se: bool) -> list[WindowSums]:
    out = []
    if s.k == 2:
        column = np.ascontiguousarray(s.data.probs[:, 1], dtype=np.float64)
        order = np.argsort(column, kind="stable")
        return [
            sum_windows(
                ListedEvents(column[order], (s.y[order] == 1).astype(np.float64), order), s.n, window, se
            )
        ]
    step = max(1, BLOCK // s.n)
    for first in range(0, s.k, step):
        columns = np.ascontiguousarray(s.data.probs[:, first : first + step].T, dtype=np.float64)
        for k, column in enumerate(columns, start=first):
            order = np.argsort(column, kind="stable")
            mark = (s.y[order] == k).astype(np.float64)
            out.append(sum_windows(ListedEvents(column[order], mark, order), s.n, window, se))
    return out


def remove_same_rows(found: WindowSums, events: PooledRuns, s: Sample, m: int) -> None:
    """Take pairs of events of the same row, less than a window apart, out of the sums."""
    n = len(events)
    position: NDArray[Any] = np.empty(n, dtype=np.int32 if n < 2**31 else np.int64)
    for i in range(0, n, BLOCK):
        places = events.places(slice(i, i + BLOCK))
        position[places] = np.arange(i, i + len(places), dtype=position.dtype)
    table = position.reshape(s.n, s.k)
    table.sort(axis=1)
    step = max(1, BLOCK // s.k)
    for first in range(0, s.n, step):
        block = table[first : first + step]
        for lag in range(1, min(s.k, m)):
            row, column = np.nonzero(block[:, lag:] - block[:, :-lag] < m)
            if row.size == 0:
                break  # a larger lag is a larger distance
            a, b = (block[row, c].astype(np.int64) for c in (column, column + lag))
            _remove_pairs(found, events, first + row, a, b, m)


def _remove_pairs(
    found: WindowSums, events: PooledRuns, row: IntArray, a: IntArray, b: IntArray, m: int
) -> None:
    n = len(events)
    (q_a, mark_a, _), (q_b, mark_b, _) = events[a], events[b]
    shared = np.minimum(a, n - m) - np.maximum(b - m + 1, 0) + 1.0
    product = shared * (q_a - mark_a) * (q_b - mark_b)
    found.products -= 2 * float(product.sum())
    found.pairs -= 2 * float(shared.sum())
    if found.row_products is not None and found.row_pairs is not None:
        n_rows = len(found.row_pairs)
        found.row_products -= 2 * _by_row(row, product, n_rows)
        found.row_pairs -= 2 * _by_row(row, shared, n_rows)
