"""What a reader of a file format offers; the readers are in :mod:`hcal.io.formats`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from hcal.class_names import ColumnCells
from hcal.io.request import Plan

#: Where a piece may begin: the number of a row, and its place in the unit of the format.
Cut = tuple[int, int]
#: Some rows: the cells of each column by its name.
Block = dict[str, ColumnCells]


class RowReader(Protocol):
    """What every reader offers: the names of the columns, where the file may be cut, and blocks of rows."""

    names: list[str]

    @property
    def table(self) -> bool:
        """Whether the file is a table, and does not hold arrays."""

    @property
    def scores(self) -> str:
        """The array of the scores, which says how many rows there are; empty for a table."""

    @property
    def spatial(self) -> tuple[int, ...]:
        """The shape of the pixels of dense scores."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if the file holds them beside the rows."""

    @property
    def made_by(self) -> str:
        """The calibrator that made the probabilities, if the file says so."""

    def follow(self, plan: Plan) -> None:
        """Count rows as the scores of a plan have them."""

    def count(self, columns: Sequence[str], /) -> int:
        """Return how many rows there are."""

    def beside(self, columns: Sequence[str]) -> list[str]:
        """Return the other columns."""

    def n_bytes(self, columns: Sequence[str]) -> int:
        """Return about how much memory columns take."""

    def cuts(self, columns: Sequence[str], /, step: int) -> list[Cut]:
        """Return where pieces of about ``step`` rows begin."""

    def blocks(
        self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int
    ) -> Iterator[Block]:
        """Yield the rows from ``cut`` to ``stop`` − 1, at most ``size`` at once."""
