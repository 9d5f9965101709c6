"""Files of columns, read some rows at a time: ``.csv`` and ``.jsonl`` by lines, Arrow's by record batches.

A row of a text file is a line. A reader offers the names of its columns, where the file may be cut, and
blocks of rows.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.extras import load_extra
from hcal.io.arrays import MODEL, Block, Cut
from hcal.io.class_names import is_number
from hcal.io.files import one_line, parse_json, quoted, size_of
from hcal.io.request import Plan

_MARK_BYTES: Final = 2**22
_LONGEST_LINE: Final = 2**24
#: Cells that are text at the same time: each takes some 60 bytes.
_CELLS: Final = 2**20


class TableRows:
    """What all tables have: columns by name, and as many rows in each."""

    table = True
    spatial = ()
    made_by = ""
    names: list[str]
    #: Rows that pieces may begin with, each with its place in the unit of the format; the last is the end.
    marks: list[Cut]

    def follow(self, plan: Plan) -> None:
        """Do nothing: a row of a table is a row."""

    def count(self, _columns: Sequence[str]) -> int:
        """Return how many rows there are."""
        return self.marks[-1][0]

    def beside(self, columns: Sequence[str]) -> list[str]:
        """Return the other columns."""
        return [name for name in self.names if name not in columns]

    def cuts(self, _columns: Sequence[str], step: int) -> list[Cut]:
        """Return where pieces of about ``step`` rows begin."""
        found = list[Cut]()
        for mark in self.marks[:-1]:
            if not found or mark[0] - found[-1][0] >= step:
                found.append(mark)
        return found


class TextRows(TableRows):
    """Rows of a text file, a line each: cells below a line of names, or JSON objects with the same keys."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.csv = file, name.lower().endswith(".csv")
        line = file.readline(_LONGEST_LINE)
        if not line.strip():
            raise ValueError("it is empty")
        self.names = _csv_names(line) if self.csv else list(_object(line, 1))
        self.begin = len(line) if self.csv else 0

    @cached_property
    def marks(self) -> list[Cut]:  # type: ignore[override]
        """Rows and where they begin, some megabytes apart."""
        self.file.seek(self.begin)
        row, place = end = (0, self.begin)
        found = [end]
        while line := self.file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"row {row} is longer than {_LONGEST_LINE // 2**20} MB")
            row, place = row + 1, place + len(line)
            if place - found[-1][1] > _MARK_BYTES:
                found.append((row, place))
            if not line.isspace():  # blank lines at the end are no rows
                end = (row, place)
        return [mark for mark in found if mark < end] + [end]

    def n_bytes(self, _columns: Sequence[str]) -> int:
        """About what columns take: a number has some eight characters."""
        return size_of(self.file)

    def blocks(self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int) -> Iterator[Block]:
        """Yield rows from ``cut`` to ``stop`` − 1, at most ``size`` at once."""
        self.file.seek(cut[1])
        step = max(1, min(size, _CELLS // max(len(self.names), 1)))
        for row in range(cut[0], stop, step):
            if not (lines := list(islice(self.file, min(step, stop - row)))):
                return
            cells = (_csv_cells if self.csv else _json_cells)(lines, row, self.names)
            yield {n: list(cells[n]) if n in texts else _numbers(n, cells[n], row) for n in columns}


def _numbers(name: str, cells: Sequence[Any], first: int) -> NDArray[np.float64]:
    """Return the cells of a column as numbers, or say which of them is none."""
    lists = isinstance(cells[0], list)
    try:
        if not lists:
            return np.fromiter(map(float, cells), np.float64, len(cells))
        found = np.array(cells, dtype=np.float64)
        if not np.isnan(found).any() or not any(None in cell for cell in cells):
            return found
    except (ValueError, TypeError):
        pass
    width = len(cells[0]) if lists else 1
    rows = [cell if isinstance(cell, list) else [cell] for cell in cells]
    bad = [len(row) != width or not all(is_number(str(part)) for part in row) for row in rows]
    number = bad.index(True) if any(bad) else 0
    held, what = quoted(cells[number]), f"{width} numbers" if lists else "a number"
    raise ValueError(f"column {quoted(name)} holds {held} in row {first + number}, not {what}")


def _csv_names(line: bytes) -> list[str]:
    names = [cell.strip() for cell in _split([line.removeprefix(b"\xef\xbb\xbf")])[0]]
    if any(";" in name for name in names):
        raise ValueError("its cells are separated by semicolons: save it with commas, and decimal points")
    if all(map(is_number, names)):
        raise ValueError("its first line has numbers: write the names of the columns there")
    return names


def _csv_cells(lines: list[bytes], first: int, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    rows = _split(lines)
    for number, row in enumerate(rows, first + 2):
        if len(row) != len(names):
            raise ValueError(f"line {number} has {len(row)} cells, the first line {len(names)}")
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _split(lines: list[bytes]) -> list[list[str]]:
    try:
        rows = list(csv.reader(map(bytes.decode, lines), strict=True))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if len(rows) != len(lines):
        raise ValueError("it has a line break inside a cell")
    return rows


def _json_cells(lines: list[bytes], first: int, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    rows = [_object(line, number) for number, line in enumerate(lines, first + 1)]
    for number, row in enumerate(rows, first + 1):
        if odd := row.keys() ^ set(names):
            raise ValueError(f"line {number} has other keys than the first, such as {quoted(min(odd))}")
    return {name: [row[name] for row in rows] for name in names}


def _object(line: bytes, number: int) -> dict[str, Any]:
    row = parse_json(line, f"line {number}")
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is no JSON object")
    return row


class ArrowRows(TableRows):
    """Rows of a parquet or feather file; it may be cut between its row groups or record batches."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.parquet = file, name.lower().endswith(".parquet")
        if self.parquet:
            module = load_extra("reading .parquet", "pyarrow.parquet", "frames")
            # Pages are read as they are needed: a row group may be the whole file.
            self.source = module.ParquetFile(file, pre_buffer=False, buffer_size=2**16)
            groups = self.source.metadata
            sizes = [groups.row_group(g).num_rows for g in range(groups.num_row_groups)]
            schema = self.source.schema_arrow
        else:
            self.source = load_extra("reading .feather", "pyarrow.ipc", "frames").open_file(file)
            sizes = [self.source.get_batch(g).num_rows for g in range(self.source.num_record_batches)]
            schema = self.source.schema
        self.names, starts = list(schema.names), [0, *accumulate(sizes)]
        self.marks = [(starts[g], g) for g, size in enumerate(sizes) if size] + [(starts[-1], len(sizes))]
        self.made_by = (schema.metadata or {}).get(MODEL.encode(), b"").decode(errors="replace")

    def n_bytes(self, columns: Sequence[str]) -> int:
        """About what columns take."""
        return max(8 * self.marks[-1][0] * len(columns), size_of(self.file))

    def blocks(self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int) -> Iterator[Block]:
        """Yield rows from the group of ``cut`` to ``stop`` − 1, at most ``size`` at once."""
        groups = [g for start, g in self.marks[:-1] if cut[0] <= start < stop]
        if self.parquet:
            batches = self.source.iter_batches(size, row_groups=groups, columns=list(columns))
        else:
            batches = (self.source.get_batch(g).select(list(columns)) for g in groups)
        for batch in batches:
            for row in range(0, batch.num_rows, size):
                held = {name: batch.column(name).slice(row, size) for name in columns}
                yield {n: part.to_pylist() if n in texts else _arrow_numbers(part, n) for n, part in held.items()}


def _arrow_numbers(column: Any, name: str) -> NDArray[Any]:
    """Return a column of numbers (N,), or of lists of as many numbers (N, K)."""
    lists = hasattr(column.type, "value_type")
    values = column.flatten() if lists else column
    if missing := column.null_count or values.null_count:
        raise ValueError(f"column {name!r} has {missing} missing values")
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind not in "biuf":
        raise ValueError(f"column {quoted(name)} holds {one_line(column.type, 40)}, not numbers")
    if not lists:
        return numbers
    if len(np.unique(column.value_lengths())) > 1:
        raise ValueError(f"the lists of column {name!r} differ in length")
    return numbers.reshape(len(column), -1)
