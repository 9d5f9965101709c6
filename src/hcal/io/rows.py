"""The rows of one open file, some at a time: what every format offers to those who cannot hold all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from hcal.io.arrays import Arrays
from hcal.io.columns import CLASSES

#: A file is cut into at most about this many pieces, whoever reads them: answers must not depend on that.
MOST_PIECES: Final = 256


@dataclass(frozen=True)
class Span:
    """Rows ``start`` to ``stop`` − 1 of a file, which can be read alone."""

    start: int
    stop: int
    place: int = 0  # where they begin in the file, in the unit of its format


class FileRows(Protocol):
    """The wanted arrays of a file, block by block.

    ``random`` says whether any span can be read at no more cost than one that was offered.
    """

    random: bool

    @property
    def n_rows(self) -> int:
        """How many rows there are."""

    @property
    def n_bytes(self) -> int:
        """What all of them take in memory."""

    def spans(self, step: int) -> Sequence[Span]:
        """Cut the file, about every ``step`` rows, where its format allows it."""

    def blocks(self, span: Span, size: int, *, judged: bool, known: Collection[str]) -> Iterator[Arrays]:
        """Yield the arrays of a span, at most ``size`` rows at once; the rest as for ``parse_csv``."""

    def close(self) -> None:
        """Close what is open."""


def step_of(n_rows: int, size: int) -> int:
    """Return how many rows make a piece: whole blocks, and not too many pieces.

    >>> step_of(1000, 100), step_of(10**9, 65536) // 65536
    (100, 60)
    """
    return size * max(1, math.ceil(n_rows / (size * MOST_PIECES)))


def even_spans(n_rows: int, step: int) -> list[Span]:
    """Cut rows that can be read from anywhere.

    >>> [(span.start, span.stop) for span in even_spans(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    return [Span(a, min(a + step, n_rows)) for a in range(0, n_rows, step)]


def gathered_spans(sizes: Sequence[int], step: int) -> list[Span]:
    """Cut a file that can be read from where its parts begin; ``place`` is the number of the first part.

    ``sizes`` are the rows of each part.

    >>> [(span.start, span.stop, span.place) for span in gathered_spans([3, 3, 3], 5)]
    [(0, 6, 0), (6, 9, 2)]
    """
    spans, start, stop, first = [], 0, 0, 0
    for number, size in enumerate(sizes):
        stop += size
        if stop - start >= step or number == len(sizes) - 1:
            if stop > start:
                spans.append(Span(start, stop, first))
            start, first = stop, number + 1
    return spans


def rows_of(arrays: Mapping[str, Any]) -> int:
    """Return how many rows the arrays of a file have; names of classes are not among the rows."""
    return check_lengths({k: a.shape[0] if a.shape else 0 for k, a in arrays.items() if k != CLASSES})


def check_lengths(lengths: dict[str, int]) -> int:
    """Return how many rows all arrays have, or name two that differ.

    >>> check_lengths({"logits": 3, "y": 3})
    3
    """
    first = next(iter(lengths), "")
    for name, length in lengths.items():
        if length != lengths[first]:
            raise ValueError(f"{first!r} has {lengths[first]:,} rows, {name!r} has {length:,}")
    return lengths[first] if lengths else 0


class WholeRows:
    """Arrays that are in memory: of a format that can only be read whole."""

    random = True

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self.n_rows = rows_of(arrays)
        self.n_bytes = sum(a.nbytes for a in arrays.values())

    def spans(self, step: int) -> list[Span]:
        """Return one span: whoever reads a part of it has read it all."""
        return [Span(0, self.n_rows)] if self.n_rows else []

    def blocks(self, span: Span, size: int, **told: Any) -> Iterator[Arrays]:
        for a in range(span.start, span.stop, size):
            b = min(a + size, span.stop)
            yield {k: v if k == CLASSES else v[a:b] for k, v in self._arrays.items()}

    def close(self) -> None:
        """Nothing is open."""
