"""Rows of a CSV file, line by line: a row is a line, so a line break inside a cell is refused."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import BinaryIO, Final

from hcal.io.arrays import Arrays, Wish
from hcal.io.limits import check_bytes, size_of
from hcal.io.rows import Span
from hcal.io.tables import WIDEST, csv_text, is_number, parse_csv

_CHUNK: Final = 2**20
#: A first line may be as long as this many bytes.
_LONGEST_LINE: Final = 2**26


class CsvRows:
    """Rows of the wanted columns of a CSV file."""

    random = False

    def __init__(self, file: BinaryIO, name: str, wish: Wish) -> None:
        self._file, self._name, self._wish = file, name, wish
        first = file.readline(_LONGEST_LINE)
        text = csv_text(first)
        if "\r" in text.rstrip("\r\n"):
            raise ValueError("its lines end with a carriage return alone: write them with a line feed")
        if len(first) == _LONGEST_LINE:
            raise ValueError(f"its first line is longer than {_LONGEST_LINE:,} bytes")
        cells = next(csv.reader(io.StringIO(text)), [])
        self._bare = bool(cells) and all(is_number(cell) for cell in cells)
        self._begin = 0 if self._bare else len(first)
        # The same names that a table without any has when it is read whole.
        self._head = ",".join(f"column {i}" for i in range(len(cells))) + "\n" if self._bare else text
        second = csv_text(file.readline(_LONGEST_LINE))
        parse_csv(text + second, wish, judged=True)  # chooses, and refuses what cannot be read at all

    @cached_property
    def _lines(self) -> list[tuple[int, int]]:
        """How many lines end before a byte where one begins, about a chunk apart; the last is the end."""
        self._file.seek(self._begin)
        found, lines, here, last = [(0, self._begin)], 0, self._begin, (0, self._begin)
        while chunk := self._file.read(_CHUNK):
            filled = len(chunk.rstrip())
            if filled:  # blank lines at the end are no rows
                inside = chunk.count(b"\n", 0, filled)
                last = (lines + inside + 1, here + filled)
            lines += chunk.count(b"\n")
            cut = chunk.rfind(b"\n")
            if cut >= 0:
                found.append((lines, here + cut + 1))
            here += len(chunk)
        return [mark for mark in found if mark[1] < last[1]] + [last]

    @property
    def n_rows(self) -> int:
        """How many lines there are after the names."""
        return self._lines[-1][0]

    @property
    def n_bytes(self) -> int:
        """At most: the shortest cell takes two bytes, a float eight."""
        return WIDEST * size_of(self._file)

    def spans(self, step: int) -> Sequence[Span]:
        """Cut at the beginnings of lines."""
        marks = self._lines
        kept = [marks[0]]
        for mark in marks[1:-1]:
            if mark[0] - kept[-1][0] >= step:
                kept.append(mark)
        stops = [row for row, _ in kept[1:]] + [self.n_rows]
        return [Span(row, stop, place) for (row, place), stop in zip(kept, stops, strict=True) if stop > row]

    def blocks(
        self, span: Span, size: int, *, judged: bool = False, known: Collection[str] = ()
    ) -> Iterator[Arrays]:
        self._file.seek(span.place or self._begin)
        for a in range(span.start, span.stop, size):
            lines = list(islice(self._file, min(size, span.stop - a)))
            raw = b"".join(lines)
            check_bytes(self._name, WIDEST * len(raw), size_of(self._file))
            arrays = parse_csv(self._head + csv_text(raw), self._wish, judged=judged, known=known)
            if any(len(array) != len(lines) for array in arrays.values()):
                raise ValueError("an empty line among the rows, or a line break inside a cell")
            if len(lines) < min(size, span.stop - a):
                raise ValueError("it ends early: the file was cut short")
            yield arrays

    def close(self) -> None:
        self._file.close()
