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
from itertools import accumulate
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.extras import load_extra
from hcal.io.arrays import MODEL, unique_keys
from hcal.io.limits import check_bytes, one_line, size_of
from hcal.io.tables import is_number, typed

#: Where a piece may begin: the number of a row, and its place in the unit of the format.
Cut = tuple[int, int]
_MARK_BYTES: Final = 2**22
_LONGEST_LINE: Final = 2**24
#: Cells that are text at the same time: each takes some 60 bytes.
_CELLS: Final = 2**18
#: A float takes this many times the bytes of the shortest cell, ``0,``.
_WIDEST: Final = 4


class TableRows:
    """What all tables have: columns by name, and as many rows in each."""

    names: list[str]
    n_rows: int
    made_by = ""

    def count(self, _columns: Sequence[str]) -> int:
        """Return how many rows there are."""
        return self.n_rows

    def beside(self, columns: Sequence[str], _n_rows: int) -> list[str]:
        """Return the other columns."""
        return [name for name in self.names if name not in columns]


class TextRows(TableRows, ABC):
    """The rows of a text file, a line each."""

    index: tuple[str, ...] = ()

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name, self.begin, self.names = file, name, 0, list[str]()
        if not file.read(4096).strip():
            raise ValueError("it is empty")
        file.seek(0)
        self.head = self._line(0)

    @cached_property
    def _marks(self) -> list[Cut]:
        """Rows that end before a byte where one begins, some megabytes apart; the last is the end."""
        self.file.seek(self.begin)
        found, lines, here, last = [(0, self.begin)], 0, self.begin, (0, self.begin)
        while chunk := self.file.read(_MARK_BYTES):
            filled = len(chunk.rstrip())
            if filled:  # blank lines at the end are no rows
                last = (lines + chunk.count(b"\n", 0, filled) + 1, here + filled)
            lines += chunk.count(b"\n")
            if (cut := chunk.rfind(b"\n")) >= 0:
                found.append((lines, here + cut + 1))
            here += len(chunk)
        return [mark for mark in found if mark[1] < last[1]] + [last]

    @cached_property
    def n_rows(self) -> int:  # type: ignore[override]
        """How many lines there are after the names."""
        return self._marks[-1][0]

    @property
    def cuts(self) -> list[Cut]:
        """Where a piece may begin."""
        return self._marks[:-1] or [(0, self.begin)]

    def n_bytes(self, _columns: Sequence[str]) -> int:
        """At most: the shortest cell takes two bytes, a float eight."""
        return _WIDEST * size_of(self.file)

    def blocks(
        self, columns: Sequence[str], texts: Collection[str], cut: Cut, start: int, stop: int, size: int
    ) -> Iterator[dict[str, Any]]:
        """Yield rows ``start`` to ``stop`` − 1, at most ``size`` at once; ``cut`` lies before them."""
        row, place = cut
        self.file.seek(place or self.begin)
        for _ in range(start - row):
            self._line(row)
        step = max(1, min(size, _CELLS // max(len(self.names), 1)))
        for a in range(start, stop, size):
            b = min(a + size, stop)
            parts = []
            for c in range(a, b, step):
                lines = [self._line(i) for i in range(c, min(c + step, b))]
                check_bytes(self.name, _WIDEST * sum(map(len, lines)), size_of(self.file))
                rows = self.parse(lines, c)
                parts.append({n: _cells(n, rows[n], c, text=n in texts) for n in columns})
            yield {n: _joined(n, [part[n] for part in parts]) for n in columns}

    def _line(self, row: int) -> str:
        line = self.file.readline(_LONGEST_LINE + 1)
        if not line:
            raise ValueError("it ends early: the file was cut short")
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"row {row} is longer than {_LONGEST_LINE // 2**20} MB")
        try:
            text = line.decode().removeprefix("\ufeff")
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8 text") from None
        if "\0" in text:
            raise ValueError("it is not text: it has bytes of zero")
        return text

    @abstractmethod
    def parse(self, lines: list[str], first: int) -> dict[str, Sequence[Any]]:
        """Return the cells of lines by column; ``first`` is the number of the first row."""


def _cells(name: str, cells: Sequence[Any], first: int, *, text: bool) -> Any:
    """Return the cells of a column: as they are where they may be text, else as numbers."""
    if text:
        return list(cells)
    try:
        if not isinstance(cells[0], list):
            return np.fromiter(map(float, cells), np.float64, len(cells))
        found = np.array(cells, dtype=np.float64)
        if np.isnan(found).any() and any(None in cell for cell in cells):
            raise ValueError("a missing value")
    except (ValueError, TypeError):
        raise ValueError(_no_numbers(name, cells, first)) from None
    return found


def _no_numbers(name: str, cells: Sequence[Any], first: int) -> str:
    """Say which cell of a column of scores is no number."""
    width = len(cells[0]) if isinstance(cells[0], list) else None
    for row, cell in enumerate(cells, first):
        parts = cell if isinstance(cell, list) else [cell]
        bad = [p for p in parts if p is None or p == "" or not is_number(str(p))]
        if bad:
            what = "a missing value" if bad[0] in (None, "") else one_line(repr(bad[0]), 60)
            return f"column {one_line(repr(name), 60)} holds {what} in row {row}, not a number"
        if isinstance(cell, list) and len(cell) != width:
            return f"row {row} of {name!r} has {len(cell)} numbers, the first row {width}"
    return f"column {one_line(repr(name), 60)} holds something that is no number"


def _joined(name: str, parts: list[Any]) -> Any:
    if isinstance(parts[0], list):
        return [cell for part in parts for cell in part]
    if len({part.shape[1:] for part in parts}) > 1:
        raise ValueError(f"the lists of column {name!r} differ in length")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class CsvRows(TextRows):
    """Rows of a CSV file; its first line has names unless all its cells are numbers."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(file, name)
        line = self.head
        if "\r" in line.rstrip("\r\n"):
            raise ValueError("its lines end with a carriage return alone: write them with a line feed")
        head = [cell.strip() for cell in next(csv.reader([line]), [])]
        if any("\n" in cell for cell in head):
            raise ValueError("a column name with a line break")
        if any(";" in cell for cell in head):
            raise ValueError("its cells are separated by semicolons: save it with commas, and decimal points")
        self.bare = bool(head) and all(map(is_number, head))
        counted = head in ([str(i) for i in range(len(head))], [str(i + 1) for i in range(len(head))])
        if self.bare and counted and len(head) > 1:
            raise ValueError(
                f"its first line {one_line(','.join(head), 40)} may be column names or scores: "
                "name the columns logits_0, logits_1, …, or write the numbers with a decimal point"
            )
        self.names = [f"column {i}" for i in range(len(head))] if self.bare else head
        self.begin = 0 if self.bare else file.tell()
        if not self.n_rows:
            raise ValueError("it has column names and no rows")

    def parse(self, lines: list[str], first: int) -> dict[str, Sequence[Any]]:
        """Return the cells of lines by column."""
        rows = list(csv.reader(lines, strict=True))
        width = len(self.names)
        if len(rows) != len(lines):
            raise ValueError("a line break inside a cell")
        for number, row in enumerate(rows, first + (1 if self.bare else 2)):
            if not row:
                raise ValueError(f"an empty line among the rows (line {number})")
            if len(row) != width:
                raise ValueError(f"line {number} has {len(row)} cells, the first line {width}")
        return dict(zip(self.names, zip(*rows, strict=True), strict=True))


class JsonRows(TextRows):
    """Rows of a file with a JSON object a line, all with the keys of the first; a list is a matrix's row."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(file, name)
        self.names = list(_object(self.head, 1))

    def parse(self, lines: list[str], first: int) -> dict[str, Sequence[Any]]:
        """Return the values of objects by key."""
        rows = [_object(line, number) for number, line in enumerate(lines, first + 1)]
        for number, row in enumerate(rows, first + 1):
            if row.keys() != set(self.names):
                odd = sorted(row.keys() ^ set(self.names))[0]
                raise ValueError(
                    f"line {number} has other keys than the first, such as {one_line(repr(odd), 60)}"
                )
        return {name: [row[name] for row in rows] for name in self.names}


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: not JSON ({one_line(error, 80)})") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is no JSON object")
    return row


class ArrowRows(TableRows):
    """Rows of a parquet or feather file; it may be cut between its row groups or record batches."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name = file, name
        self.parquet = name.lower().endswith(".parquet")
        if self.parquet:
            module = load_extra("reading .parquet", "pyarrow.parquet", "frames")
            # Pages are read as they are needed: a row group may be the whole file.
            self.source = module.ParquetFile(file, pre_buffer=False, buffer_size=2**16)
            groups = self.source.metadata
            self.sizes = [groups.row_group(g).num_rows for g in range(groups.num_row_groups)]
            self.schema = self.source.schema_arrow
        else:
            self.source = load_extra("reading .feather", "pyarrow.ipc", "frames").open_file(file)
            self.schema = self.source.schema
            self.sizes = [self._batch(g).num_rows for g in range(self.source.num_record_batches)]
        self.names = list(self.schema.names)
        self.made_by = (self.schema.metadata or {}).get(MODEL.encode(), b"").decode(errors="replace")
        self.n_rows = sum(self.sizes)

    def _batch(self, number: int) -> Any:
        batch = self.source.get_batch(number)
        check_bytes(self.name, batch.nbytes, size_of(self.file))
        return batch

    @property
    def index(self) -> list[str]:
        """The columns that pandas wrote down as the index."""
        try:
            told = json.loads((self.schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []
        return [c for c in told if isinstance(c, str)] if isinstance(told, list) else []

    @property
    def cuts(self) -> list[Cut]:
        """Where groups begin, and their numbers."""
        starts = [0, *accumulate(self.sizes)][:-1]
        return [(start, g) for g, start in enumerate(starts) if self.sizes[g]] or [(0, 0)]

    def n_bytes(self, columns: Sequence[str]) -> int:
        """What columns will take, by what the file declares: a list counts by its numbers."""
        if not self.parquet:
            return 8 * self.n_rows * len(columns)
        metadata, total = self.source.metadata, 0
        wanted = set(columns)
        for c in range(metadata.num_columns if metadata.num_row_groups else 0):
            if metadata.schema.column(c).path.split(".")[0] in wanted:
                values = sum(metadata.row_group(g).column(c).num_values for g in range(len(self.sizes)))
                width = {"FLOAT": 4, "INT32": 4, "BOOLEAN": 1}.get(metadata.schema.column(c).physical_type, 8)
                total += width * max(values, self.n_rows)
        return total

    def blocks(
        self, columns: Sequence[str], texts: Collection[str], cut: Cut, start: int, stop: int, size: int
    ) -> Iterator[dict[str, Any]]:
        """Yield rows ``start`` to ``stop`` − 1, at most ``size`` at once, from the group of ``cut`` on."""
        pa = load_extra("reading this file", "pyarrow", "frames")
        for name in columns:
            self._check_type(name, text=name in texts)
        share = min(size, stop - start) / max(self.n_rows, 1)
        check_bytes(self.name, int(self.n_bytes(columns) * share), size_of(self.file))
        groups = [g for a, g in self.cuts if a < stop and a + self.sizes[g] > start]
        row = sum(self.sizes[: groups[0]]) if groups else 0
        batches: Iterator[Any]
        if self.parquet:
            batches = self.source.iter_batches(size, row_groups=groups, columns=list(columns))
        else:
            batches = (self._batch(g).select(list(columns)) for g in groups)
        kept: list[Any] = []
        for batch in batches:
            part = batch.slice(max(start - row, 0), max(stop - max(start, row), 0))
            row += batch.num_rows
            while part.num_rows:
                room = size - sum(k.num_rows for k in kept)
                kept.append(part.slice(0, room))
                part = part.slice(room)
                if sum(k.num_rows for k in kept) == size:
                    yield self._arrays(pa.Table.from_batches(kept), columns, texts)
                    kept = []
        if kept:
            yield self._arrays(pa.Table.from_batches(kept), columns, texts)

    def _arrays(self, table: Any, columns: Sequence[str], texts: Collection[str]) -> dict[str, Any]:
        return {n: table[n].to_pylist() if n in texts else _numbers_of(table[n], n) for n in columns}

    def _check_type(self, name: str, *, text: bool) -> None:
        """Refuse a column that is neither numbers nor, where it is meant, text."""
        from pyarrow import types

        kind = self.schema.field(name).type
        nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        item = kind.value_type if nested else kind
        if not (text or types.is_integer(item) or types.is_floating(item) or types.is_boolean(item)):
            raise ValueError(f"the column {one_line(repr(name), 60)} holds {one_line(kind, 40)}, not numbers")


def _numbers_of(column: Any, name: str) -> NDArray[Any]:
    """Return a column of numbers (N,), or of lists of as many numbers (N, K)."""
    flat = column.combine_chunks()
    lists = hasattr(flat.type, "value_type")
    values = flat.flatten() if lists else flat
    if flat.null_count or values.null_count:
        raise ValueError(f"column {name!r} has {flat.null_count or values.null_count} missing values")
    if not lists:
        return np.asarray(values.to_numpy(zero_copy_only=False))
    sizes = np.asarray(flat.value_lengths()) if len(flat) else np.zeros(1)
    if (sizes != sizes[0]).any():
        raise ValueError(f"the lists of column {name!r} differ in length")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(flat), int(sizes[0]))


def text_column(cells: Any, *, text: bool = False, ids: bool = False) -> NDArray[Any]:
    """Return the cells of a label, id or group column; a matrix of numbers stays one."""
    if isinstance(cells, np.ndarray):
        return cells
    if cells and isinstance(cells[0], list):
        return np.array(cells)
    return typed(cells, text=text, ids=ids)


READERS: Final[dict[str, type[Any]]] = {
    ".csv": CsvRows,
    ".jsonl": JsonRows,
    ".parquet": ArrowRows,
    ".feather": ArrowRows,
    ".arrow": ArrowRows,
    ".ipc": ArrowRows,
}
