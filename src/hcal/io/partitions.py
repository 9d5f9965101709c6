"""Columns that stand in the names of folders: ``hive/country=DE/part-0.parquet`` has a column ``country``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from hcal.class_names import ColumnCells, is_number
from hcal.io.request import Plan
from hcal.io.row_reader import Block, Cut, RowReader
from hcal.text import quoted


class PartitionedRows:
    """The rows of a file with the columns that the names of its folders add; all else is the file's own reader.

    A column of the file that has the same name is the one that counts.
    """

    def __init__(self, rows: RowReader, values: Mapping[str, str | None]) -> None:
        self._rows = rows
        self._values = {name: text for name, text in values.items() if name not in rows.names}
        self.names = [*rows.names, *self._values]

    @property
    def table(self) -> bool:
        """Whether the file is a table."""
        return self._rows.table

    @property
    def scores(self) -> str:
        """The array of the scores."""
        return self._rows.scores

    @property
    def spatial(self) -> tuple[int, ...]:
        """The shape of the pixels of dense scores."""
        return self._rows.spatial

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if the file holds them."""
        return self._rows.classes

    @property
    def made_by(self) -> str:
        """The calibrator that made the probabilities, if the file says so."""
        return self._rows.made_by

    def follow(self, plan: Plan) -> None:
        """Count rows as the scores of a plan have them."""
        self._rows.follow(plan)

    def count(self, columns: Sequence[str]) -> int:
        """Return how many rows there are."""
        return self._rows.count(self._in_file(columns))

    def beside(self, columns: Sequence[str]) -> list[str]:
        """Return the other columns."""
        added = [name for name in self._values if name not in columns]
        return [*self._rows.beside(self._in_file(columns)), *added]

    def n_bytes(self, columns: Sequence[str]) -> int:
        """Return about how much memory columns take."""
        return self._rows.n_bytes(self._in_file(columns))

    def cuts(self, columns: Sequence[str], step: int) -> list[Cut]:
        """Return where pieces of about ``step`` rows begin."""
        return self._rows.cuts(self._in_file(columns), step)

    def blocks(
        self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int
    ) -> Iterator[Block]:
        """Yield the rows from ``cut`` to ``stop`` − 1, at most ``size`` at once."""
        in_file = self._in_file(columns)
        added = [name for name in columns if name in self._values]
        for block in self._rows.blocks(in_file, texts, cut, stop, size):
            n_rows = len(block[in_file[0]])
            for name in added:
                block[name] = self._cells(name, n_rows, as_text=name in texts)
            yield block

    def _in_file(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that are read from the file; one of them at least, because it has the number of rows."""
        in_file = [name for name in columns if name not in self._values]
        return in_file or [self._rows.scores or self._rows.names[0]]

    def _cells(self, name: str, n_rows: int, *, as_text: bool) -> ColumnCells:
        value = self._values[name]
        if as_text:
            return [value] * n_rows
        if value is None or not is_number(value):
            raise ValueError(f"the folder {name}={value} holds {quoted(value)}, not a number")
        return np.full(n_rows, float(value))
