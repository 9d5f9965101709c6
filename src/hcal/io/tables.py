"""Files of columns, read some rows at a time: ``.csv`` and ``.jsonl`` by lines, Arrow's by record batches.

A row of a text file is a line. A reader offers the names of its columns, where the file may be cut, and
blocks of rows; whoever wants all of it asks for one block.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from io import StringIO
from itertools import accumulate, islice
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.extras import load_extra
from hcal.io.arrays import MODEL, Block, Cut
from hcal.io.class_names import is_number
from hcal.io.files import one_line, size_of
from hcal.io.request import Plan

_MARK_BYTES: Final = 2**22
_LONGEST_LINE: Final = 2**24
#: Cells that are text at the same time: each takes some 60 bytes.
_CELLS: Final = 2**18


class TableRows:
    """What all tables have: columns by name, and as many rows in each."""

    table = True
    spatial = ()
    made_by = ""
    names: list[str]
    n_rows: int
    #: Where pieces may begin.
    places: list[Cut]

    def follow(self, plan: Plan) -> None:
        """Do nothing: a row of a table is a row."""

    def count(self, _columns: Sequence[str]) -> int:
        """Return how many rows there are."""
        return self.n_rows

    def beside(self, columns: Sequence[str]) -> list[str]:
        """Return the other columns."""
        return [name for name in self.names if name not in columns]

    def cuts(self, _columns: Sequence[str], step: int) -> list[Cut]:
        """Return where pieces of about ``step`` rows begin."""
        found = self.places[:1]
        for place in self.places[1:]:
            found += [place] if place[0] - found[-1][0] >= step else []
        return found


class TextRows(TableRows, ABC):
    """The rows of a text file, a line each."""

    def __init__(self, file: BinaryIO, _name: str) -> None:
        self.file, self.begin = file, 0
        line = file.readline(_LONGEST_LINE)
        if not line.strip():
            raise ValueError("it is empty")
        self.names = self.head(line)

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        """How many lines there are after the names."""
        return self._marks[-1][0]

    @property
    def places(self) -> list[Cut]:  # type: ignore[override]
        """Where pieces may begin."""
        return self._marks[:-1]

    @abstractmethod
    def head(self, line: bytes) -> list[str]:
        """Return the names of the columns by the first line."""

    @abstractmethod
    def parse(self, lines: list[bytes], first: int) -> dict[str, Sequence[Any]]:
        """Return the cells of lines by column; ``first`` is the number of the first row."""

    @cached_property
    def _marks(self) -> list[Cut]:
        """Rows and where they begin, some megabytes apart; the last is the end."""
        self.file.seek(self.begin)
        found, lines, here = [(0, self.begin)], 0, self.begin
        end = found[0]
        while chunk := self.file.read(_MARK_BYTES):
            if filled := len(chunk.rstrip()):  # blank lines at the end are no rows
                end = (lines + chunk.count(b"\n", 0, filled) + 1, here + filled)
            lines += chunk.count(b"\n")
            if (cut := chunk.rfind(b"\n")) >= 0:
                found.append((lines, here + cut + 1))
            elif here + len(chunk) - found[-1][1] > _LONGEST_LINE:
                raise ValueError(f"row {lines} is longer than {_LONGEST_LINE // 2**20} MB")
            here += len(chunk)
        return [mark for mark in found if mark[1] < end[1]] + [end]

    def n_bytes(self, _columns: Sequence[str]) -> int:
        """About what columns take: a number has some eight characters."""
        return size_of(self.file)

    def blocks(self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int) -> Iterator[Block]:
        """Yield rows from ``cut`` to ``stop`` − 1, at most ``size`` at once."""
        row, place = cut
        self.file.seek(place)
        step = max(1, min(size, _CELLS // max(len(self.names), 1)))
        for a in range(row, stop, size):
            b, parts = min(a + size, stop), list[Block]()
            for c in range(a, b, step):
                lines = list(islice(self.file, min(step, b - c)))
                if len(lines) < min(step, b - c):
                    raise ValueError("it ends early: the file was cut short")
                cells = self.parse(lines, c)
                parts.append({n: list(cells[n]) if n in texts else _numbers(n, cells[n], c) for n in columns})
            yield {n: _joined([part[n] for part in parts]) for n in columns}


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
    what = f"{width} numbers" if lists else "a number"
    raise ValueError(
        f"column {one_line(repr(name), 60)} holds {one_line(repr(cells[number]), 60)} in row {first + number}, "
        f"not {what}"
    )


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], list):
        return [cell for part in parts for cell in part]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class CsvRows(TextRows):
    """Rows of a CSV file; its first line has the names."""

    def head(self, line: bytes) -> list[str]:
        """Return the names in the first line."""
        self.begin = len(line)
        (cells,) = self._cells([line.removeprefix(b"\xef\xbb\xbf")])
        names = [cell.strip() for cell in cells]
        if any(";" in name for name in names):
            raise ValueError("its cells are separated by semicolons: save it with commas, and decimal points")
        if all(map(is_number, names)):
            raise ValueError("its first line has numbers: write the names of the columns there")
        return names

    @staticmethod
    def _cells(lines: list[bytes]) -> list[list[str]]:
        try:
            text = b"".join(lines).decode()
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8 text") from None
        rows = list(csv.reader(StringIO(text, newline="\n"), strict=True))
        if len(rows) != len(lines):
            raise ValueError("it has a line break inside a cell")
        return rows

    def parse(self, lines: list[bytes], first: int) -> dict[str, Sequence[Any]]:
        """Return the cells of lines by column."""
        rows, width = self._cells(lines), len(self.names)
        for number, row in enumerate(rows, first + 2):
            if len(row) != width:
                raise ValueError(f"line {number} has {len(row)} cells, the first line {width}")
        return dict(zip(self.names, zip(*rows, strict=True), strict=True))


class JsonRows(TextRows):
    """Rows of a file with a JSON object a line, all with the keys of the first; a list is a matrix's row."""

    def head(self, line: bytes) -> list[str]:
        """Return the keys of the first object."""
        return list(_object(line, 1))

    def parse(self, lines: list[bytes], first: int) -> dict[str, Sequence[Any]]:
        """Return the values of objects by key."""
        rows = [_object(line, number) for number, line in enumerate(lines, first + 1)]
        for number, row in enumerate(rows, first + 1):
            if odd := row.keys() ^ set(self.names):
                raise ValueError(f"line {number} has other keys than the first, such as {one_line(repr(min(odd)), 60)}")
        return {name: [row[name] for row in rows] for name in self.names}


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: not JSON ({one_line(error, 80)})") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is no JSON object")
    return row


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, or refuse one that names a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object names a key twice")
    return found


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
            self.schema = self.source.schema_arrow
        else:
            self.source = load_extra("reading .feather", "pyarrow.ipc", "frames").open_file(file)
            sizes = [self.source.get_batch(g).num_rows for g in range(self.source.num_record_batches)]
            self.schema = self.source.schema
        self.names, self.n_rows = list(self.schema.names), sum(sizes)
        starts = [0, *accumulate(sizes)]
        self.places = [(starts[g], g) for g, size in enumerate(sizes) if size]
        self.made_by = (self.schema.metadata or {}).get(MODEL.encode(), b"").decode(errors="replace")

    def n_bytes(self, columns: Sequence[str]) -> int:
        """About what columns take."""
        return max(8 * self.n_rows * len(columns), size_of(self.file))

    def blocks(self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int) -> Iterator[Block]:
        """Yield rows from the group of ``cut`` to ``stop`` − 1, at most ``size`` at once."""
        import pyarrow as pa

        groups = [g for start, g in self.places if cut[0] <= start < stop]
        if self.parquet:
            batches = self.source.iter_batches(size, row_groups=groups, columns=list(columns))
        else:
            batches = (self.source.get_batch(g).select(list(columns)) for g in groups)
        one = stop - cut[0] <= size
        tables = [pa.Table.from_batches(list(batches))] if one else (pa.Table.from_batches([b]) for b in batches)
        for table in tables:
            for a in range(0, table.num_rows, size):
                part = table.slice(a, size)
                yield {n: part[n].to_pylist() if n in texts else _arrow_numbers(part[n], n) for n in columns}


def _arrow_numbers(column: Any, name: str) -> NDArray[Any]:
    """Return a column of numbers (N,), or of lists of as many numbers (N, K)."""
    flat = column.combine_chunks()
    lists = hasattr(flat.type, "value_type")
    values = flat.flatten() if lists else flat
    if missing := flat.null_count or values.null_count:
        raise ValueError(f"column {name!r} has {missing} missing values")
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind not in "biuf":
        raise ValueError(f"column {one_line(repr(name), 60)} holds {one_line(flat.type, 40)}, not numbers")
    if not lists:
        return numbers
    sizes = np.unique(np.asarray(flat.value_lengths()))
    if len(sizes) > 1:
        raise ValueError(f"the lists of column {name!r} differ in length")
    return numbers.reshape(len(flat), int(sizes[0]))


READERS: Final[dict[str, type[Any]]] = {
    ".csv": CsvRows,
    ".jsonl": JsonRows,
    ".parquet": ArrowRows,
    ".feather": ArrowRows,
}
