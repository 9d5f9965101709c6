"""The events of a certificate: the headline, every class and every segment, as tables of claims and marks.

Rows in memory are grouped by their claims. Rows that come in blocks are counted in fine fixed bins of the probability
(64 per power of two, towards 0 and towards 1), so that O(bins·K) memory is enough for any number of rows. The edges of
the bins do not depend on the labels. A certificate from them is therefore as valid as one from the rows, and as tight
up to the width of a bin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from hcal.certificates.windows import BINS, EventTable, Marks, bin_of
from hcal.metrics.sample import Data
from hcal.numerics import Float64, IntArray
from hcal.row_segments import Segments


@dataclass(frozen=True)
class Events:
    """The tables of claims and marks of every event.

    Attributes
    ----------
    k : int
        Number of classes.
    positive : int
        With two classes, the class whose probability is certified.
    main : EventTable
        The headline's event: P(positive) with two classes, else the top label.
    classes : iterable of EventTable
        One by one, to save memory.
    subgroups : dict of EventTable
        The headline's event in every segment.
    """

    k: int
    positive: int
    main: EventTable
    classes: Iterator[EventTable]
    subgroups: dict[str, EventTable]


def events_of_rows(
    data: Data, positive: int, by: Segments | None, groups: IntArray | None = None
) -> Events:
    """Return the events of rows in memory; rows of one group depend on each other."""
    claims, marks = main_event(data, positive)
    subgroups = {
        name: EventTable.of_rows(claims[rows], marks[rows], _some(groups, rows))
        for name, rows in _rows_of_segments(by)
    }
    return Events(
        data.k,
        positive,
        EventTable.of_rows(claims, marks, groups),
        (EventTable.of_rows(data.column(k), data.y == k, groups) for k in range(data.k)),
        subgroups,
    )


class EventCounts:
    """The events of rows that come in blocks: their counts in fine bins, which can be added up.

    Examples
    --------
    >>> data = Data([[0.2, 0.8]] * 3, [1, 1, 0])
    >>> both = EventCounts(2, 1).update(data, None).merge(EventCounts(2, 1).update(data, None))
    >>> both.events().main.count
    array([6.])
    """

    def __init__(self, k: int, positive: int) -> None:
        self.k = k
        self.positive = positive
        # Rows, the sum of their claims, and how often the event happened.
        self.main = np.zeros((3, BINS))
        self.classes = np.zeros((k, 3, BINS))
        self.segments = _SegmentCounts()

    def update(self, data: Data, by: Segments | None) -> Self:
        """Add the rows of a block."""
        claims, marks = main_event(data, self.positive)
        self.main += _counts(claims, marks)
        for k in range(self.k):
            self.classes[k] += _counts(data.column(k), data.y == k)
        if by is not None:
            self.segments.update(claims, marks, by)
        return self

    def merge(self, other: EventCounts) -> Self:
        """Add the counts of other rows."""
        self.main += other.main
        self.classes += other.classes
        self.segments.merge(other.segments)
        return self

    def events(self) -> Events:
        """Return the events of all rows added so far."""
        return Events(
            self.k,
            self.positive,
            EventTable.of_bins(*self.main),
            (EventTable.of_bins(*counts) for counts in self.classes),
            self.segments.tables(),
        )


class _SegmentCounts:
    """The counts of the headline's event in the bins of every segment that hold rows."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        #: The number of a segment times BINS, plus that of the bin; ascending.
        self.cells = np.zeros(0, dtype=np.int64)
        self.sums = np.zeros((3, 0))

    def update(self, claims: Float64, marks: Marks, by: Segments) -> None:
        cells = self._numbers_of(by.names)[by.codes] * BINS + bin_of(claims)
        self._add(cells, np.stack([np.ones(len(claims)), claims, marks]))

    def merge(self, other: _SegmentCounts) -> None:
        """Add the counts of other rows; a segment is recognised by its name."""
        number, place = np.divmod(other.cells, BINS)
        self._add(self._numbers_of(tuple(other.numbers))[number] * BINS + place, other.sums)

    def tables(self) -> dict[str, EventTable]:
        """Return the table of every segment, in the order of the names."""
        number, place = np.divmod(self.cells, BINS)
        first = np.searchsorted(number, np.arange(len(self.numbers) + 1))
        tables = {}
        for name in sorted(self.numbers):
            bins = slice(first[self.numbers[name]], first[self.numbers[name] + 1])
            tables[name] = EventTable.of_some_bins(place[bins], *self.sums[:, bins])
        return tables

    def _numbers_of(self, names: tuple[str, ...]) -> IntArray:
        numbers = [self.numbers.setdefault(name, len(self.numbers)) for name in names]
        return np.array(numbers, dtype=np.int64)

    def _add(self, cells: IntArray, sums: Float64) -> None:
        joined = np.concatenate([self.cells, cells])
        values = np.concatenate([self.sums, sums], axis=1)
        self.cells, which = np.unique(joined, return_inverse=True)
        self.sums = np.stack([np.bincount(which, row, len(self.cells)) for row in values])


def _some(values: IntArray | None, rows: IntArray) -> IntArray | None:
    return None if values is None else values[rows]


def _rows_of_segments(by: Segments | None) -> list[tuple[str, IntArray]]:
    """Return the name of every segment that has rows, and the numbers of these.

    >>> [(name, rows.tolist()) for name, rows in _rows_of_segments(Segments.of(["b", "a", "b"], 3))]
    [('a', [1]), ('b', [0, 2])]
    """
    if by is None:
        return []
    order = np.argsort(by.codes, kind="stable").astype(np.int64)
    sizes = np.bincount(by.codes, minlength=len(by.names))
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return [(name, rows) for name, rows in zip(by.names, parts, strict=True) if len(rows)]


def main_event(data: Data, positive: int) -> tuple[Float64, Marks]:
    """Return claims and marks of the headline's event: P(positive) with two classes, else the top label."""
    if data.k == 2:
        return data.column(positive), data.y == positive
    return data.conf, data.hit


def _counts(claims: Float64, marks: Marks) -> Float64:
    """Return the number of rows, the sum of claims and the sum of marks in every fine bin, shape (3, BINS)."""
    which = bin_of(claims)
    columns = (np.ones(len(claims)), claims, marks)
    return np.stack([np.bincount(which, weights=values, minlength=BINS) for values in columns])
