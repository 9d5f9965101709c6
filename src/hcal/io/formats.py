"""Readers of the file formats: named arrays (.npz, .npy), text (.csv, .jsonl) and Arrow (.parquet, .feather).

A reader has the names of the columns or arrays, says where a file may be cut into pieces, and yields blocks of rows. A
row of a text file is a line. Arrays are read from their place in the file and never memory-mapped: a mapped file that
another program cuts short would kill the process. Dense scores (N, K, H, W) have one row per pixel.
"""

from __future__ import annotations

import csv
import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from io import BufferedReader
from itertools import accumulate, islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hcal.class_names import is_number
from hcal.extras import load_extra
from hcal.io.arrow_sizes import declared_batches, declared_dictionaries
from hcal.io.files import GROWTH_ALLOWED, check_memory, check_unpacked, parse_json, size_of
from hcal.io.request import BARE, CLASSES, Plan
from hcal.io.row_reader import Block, Cut, RowReader
from hcal.numerics import NumpyArray
from hcal.text import JsonObject, one_line, quoted, text_of_spreadsheet

if TYPE_CHECKING:
    from pyarrow import Array as ArrowArray
    from pyarrow import DataType, RecordBatch
    from pyarrow.parquet import ColumnChunkMetaData, FileMetaData, ParquetFile, RowGroupMetaData

#: Where a file says which calibrator made its probabilities.
MODEL: Final = "hcal_model"
#: By name, a function that returns an array in an open file.
Openers = dict[str, Callable[[], "Stored"]]
#: A column of a text file: texts, or values of JSON.
TextCells = Sequence[Any]
_MARK_BYTES: Final = 2**22
_LONGEST_LINE: Final = 2**24
#: The longest text of a cell of a parquet or feather file, in bytes.
_LONGEST_TEXT: Final = 2**16
#: About how many bytes of a parquet file are decoded at a time, where its rows are longer than a thousand bytes.
_DECODED: Final = 2**26
_WIDE_ROW: Final = 1000
#: What to do about content that is refused, where reading by blocks does not help.
_SHORTER_TEXTS: Final = "shorten its texts, or leave it out"
_NOT_COMPRESSED: Final = "if you trust it, save it without compression (np.savez)"
_SMALLER_BATCHES: Final = "if you trust it, write it again in smaller batches, or as .parquet"
#: The most cells that are held as text at the same time: each takes some 60 bytes.
_CELLS: Final = 2**20


# -- arrays -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """An array in an open file, of which ``stored[10:20]`` reads some rows."""

    file: BufferedReader | zipfile.ZipExtFile
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    offset: int
    #: The bytes that it takes in the file where it is compressed: then reading some rows reads all before them too.
    packed: int | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def _columns(self) -> NumpyArray:
        """The whole of a compressed array that is stored column by column."""
        check_memory("it", self.nbytes)
        return self._read(0, math.prod(self.shape)).reshape(self.shape, order="F")

    def __getitem__(self, rows: slice) -> NumpyArray:
        first, stop, _ = rows.indices(self.shape[0])
        n_rows = stop - first
        width = math.prod(self.shape[1:])
        shape = (n_rows, *self.shape[1:])
        if not self.fortran or width < 2:
            return self._read(first * width, n_rows * width).reshape(shape)
        if self.packed is not None:
            return self._columns[rows]
        columns = [self._read(column * self.shape[0] + first, n_rows) for column in range(width)]
        return np.stack(columns, axis=1).reshape(shape, order="F")

    def _read(self, first: int, count: int) -> NumpyArray:
        """Return some of the numbers in the order of the file."""
        n_bytes = count * self.dtype.itemsize
        if self.packed is not None:
            check_unpacked("it", n_bytes, self.packed, advice=_NOT_COMPRESSED)
        self.file.seek(self.offset + first * self.dtype.itemsize)
        raw = bytearray(n_bytes)
        if self.file.readinto(raw) < len(raw):
            raise ValueError("it ends early: the file was cut short")
        flat = np.frombuffer(raw, dtype=self.dtype) if count else np.empty(0, dtype=self.dtype)
        if self.dtype.kind == "U":
            flat.tolist()  # raises ValueError for numbers that are no characters
        # numpy's bool knows the bytes 0 and 1 only
        return flat.view(np.uint8) != 0 if self.dtype.kind == "b" else flat


def _header(
    file: BufferedReader | zipfile.ZipExtFile, size: int, packed: int | None = None
) -> Stored:
    """Read the header of an ``.npy`` of ``size`` bytes; only numbers and text are accepted."""
    is_first_version = npy.read_magic(file) == (1, 0)
    read = npy.read_array_header_1_0 if is_first_version else npy.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers that Python 2 wrote are fine
        try:
            shape, fortran, dtype = read(file)
        except Exception as error:
            # The errors of Python's parser speak of memory, and one of numpy's of an option.
            if isinstance(error, ValueError) and "max_header_size" not in str(error):
                raise
            raise ValueError("it is damaged: its header is no description of an array") from None
    stored = Stored(file, shape, dtype, fortran, file.tell(), packed)
    if dtype.hasobject:
        raise ValueError(
            "it holds Python objects, which are never unpickled; save plain numeric arrays"
        )
    if dtype.kind not in "biufU":
        raise ValueError(f"it holds {dtype}, not numbers")
    if any(n < 0 for n in shape) or stored.nbytes > size - stored.offset:
        raise ValueError(
            f"the header of an array claims the shape {shape}, for which there are too few bytes"
        )
    return stored


def _open_npy(file: BufferedReader) -> Openers:
    return {BARE: cache(partial(_header, file, size_of(file)))}


def _open_npz(file: BufferedReader) -> Openers:
    archive = zipfile.ZipFile(file)
    openers = Openers()
    for entry in archive.infolist():
        key = entry.filename.removesuffix(".npy")
        if key in openers:
            raise ValueError(f"it holds two arrays named {key!r}")
        openers[key] = cache(partial(_open_entry, file, archive, entry))
    return openers


def _open_entry(file: BufferedReader, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Stored:
    """Return an array of an ``.npz``; one that is not compressed is read from its place in the file."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Python's zipfile unpacks these in one step, however much comes out.
        raise ValueError("it is compressed in another way than numpy does: use np.savez_compressed")
    stream = archive.open(entry)
    assert isinstance(stream, zipfile.ZipExtFile)
    # zipfile has just read the entry's own header, so that the array begins here.
    begin = file.tell()
    is_packed = entry.compress_type != zipfile.ZIP_STORED or file.read(6) != npy.MAGIC_PREFIX
    if is_packed:
        return _header(stream, entry.file_size, packed=entry.compress_size)
    stored = _header(stream, entry.file_size)
    return replace(stored, file=file, offset=begin + stored.offset)


OPENERS: Final = {".npy": _open_npy, ".npz": _open_npz}


class ArrayRows:
    """The rows of a file of arrays, which can be cut anywhere unless it is compressed."""

    table: ClassVar[bool] = False

    def __init__(self, file: BufferedReader, name: str) -> None:
        self._openers = OPENERS[name[name.rfind(".") :].lower()](file)
        self.names = list(self._openers)
        self.scores = ""
        self.spatial: tuple[int, ...] = ()
        self.pixels = 1

    def array(self, name: str) -> Stored:
        """Return an array, without opening the others."""
        return self._openers[name]()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if the file holds them."""
        if CLASSES not in self.names:
            return None
        return tuple(map(str, self.array(CLASSES)[:].ravel().tolist()))

    @property
    def made_by(self) -> str:
        """The calibrator that made the probabilities, if the file says so."""
        names_its_model = MODEL in self.names and self.array(MODEL).shape == (1,)
        return str(self.array(MODEL)[:][0]) if names_its_model else ""

    def follow(self, plan: Plan) -> None:
        """Count rows as the scores of a plan have them: one per pixel if they are dense."""
        self.scores = plan.scores[0]
        self.spatial = self.array(self.scores).shape[2:]
        self.pixels = math.prod(self.spatial)
        if not self.pixels:
            raise ValueError("it has no rows: its scores have no pixels")
        if self.spatial and "label" in plan.roles:
            check_mask(self.array(plan.roles["label"]).shape, self.spatial)

    def count(self, columns: Sequence[str]) -> int:
        """Return how many rows the arrays have; raise ValueError if two differ."""
        lengths = {name: (*self.array(name).shape, 0)[0] for name in columns}
        first = columns[0]
        if odd := [name for name in columns if lengths[name] != lengths[first]]:
            raise ValueError(
                f"{first!r} has {lengths[first]:,} rows, {odd[0]!r} has {lengths[odd[0]]:,}"
            )
        return int(lengths[first]) * self.pixels

    def beside(self, columns: Sequence[str]) -> list[str]:
        """Return the other arrays with one value per row."""
        length = self.array(self.scores).shape[:1]
        others = [n for n in self.names if n not in (*columns, CLASSES, MODEL)]
        return [n for n in others if self.array(n).shape[:1] == length]

    def n_bytes(self, columns: Sequence[str]) -> int:
        """Return the memory that columns take; refuse compressed ones that declare far more than the file holds."""
        for array in map(self.array, columns):
            packed = getattr(array, "packed", None)
            if packed is not None:
                check_unpacked("it", array.nbytes, packed)
        return sum(self.array(name).nbytes for name in columns)

    def cuts(self, columns: Sequence[str], step: int) -> list[Cut]:
        """Return where pieces of about ``step`` rows begin."""
        if any(getattr(self.array(name), "packed", None) is not None for name in columns):
            return [(0, 0)]
        return [
            (row, 0) for row in range(0, self.count(columns), -(-step // self.pixels) * self.pixels)
        ]

    def blocks(
        self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int
    ) -> Iterator[Block]:
        """Yield the rows from ``cut`` to ``stop`` − 1, at most ``size`` at once, but whole images."""
        for name in columns:
            if name not in texts and self.array(name).dtype.kind == "U":
                raise ValueError(f"{quoted(name)} holds {self.array(name).dtype}, not numbers")
        items, end = max(size // self.pixels, 1), stop // self.pixels
        for first in range(cut[0] // self.pixels, end, items):
            rows = slice(first, min(first + items, end))
            yield {name: self._flat(name, self.array(name)[rows]) for name in columns}

    def _flat(self, name: str, items: NumpyArray) -> NumpyArray:
        """Return the rows of some items: their pixels, if the scores are dense."""
        if not self.spatial:
            return items
        if name == self.scores:
            return np.moveaxis(items, 1, -1).reshape(-1, items.shape[1])
        return np.repeat(items, self.pixels) if items.ndim == 1 else items.reshape(-1)


def check_mask(mask: tuple[int, ...], spatial: tuple[int, ...]) -> None:
    """Refuse labels whose shape does not fit dense scores (N, K, *spatial).

    >>> check_mask((8, 1, 32, 32), (32, 32))
    """
    if mask[1:] not in (spatial, (1, *spatial)):
        shape = ", ".join(map(str, ("N", *spatial)))
        raise ValueError(f"it has dense scores, which need labels of shape ({shape}), got {mask}")


# -- tables -------------------------------------------------------------------------------------------


class TableRows:
    """What all tables have in common: columns by name, each with a value in every row."""

    table: ClassVar[bool] = True
    spatial: ClassVar[tuple[int, ...]] = ()
    classes: ClassVar[tuple[str, ...] | None] = None
    scores: ClassVar[str] = ""
    made_by: str = ""
    file: BufferedReader
    names: list[str]
    #: Rows that pieces may begin with, each with its place in the unit of the format; the last is the end.
    marks: list[Cut]

    def follow(self, plan: Plan) -> None:
        """Do nothing: only arrays can have several rows in an item."""

    def count(self, _columns: Sequence[str]) -> int:
        """Return how many rows there are."""
        return self.marks[-1][0]

    def beside(self, columns: Sequence[str]) -> list[str]:
        """Return the other columns."""
        return [name for name in self.names if name not in columns]

    def n_bytes(self, columns: Sequence[str]) -> int:
        """Return about how much memory columns take; refuse far more than the file can hold."""
        n_bytes = 8 * self.marks[-1][0] * len(columns)
        check_unpacked("it", n_bytes, size_of(self.file))
        return max(n_bytes, size_of(self.file))

    def cuts(self, _columns: Sequence[str], step: int) -> list[Cut]:
        """Return where pieces of about ``step`` rows begin."""
        cuts = list[Cut]()
        for mark in self.marks[:-1]:
            if not cuts or mark[0] - cuts[-1][0] >= step:
                cuts.append(mark)
        return cuts


class TextRows(TableRows):
    """The rows of a text file, one per line: cells below a line of names, or JSON objects with the same keys."""

    def __init__(self, file: BufferedReader, name: str) -> None:
        self.file, self.csv = file, name.lower().endswith(".csv")
        line = file.readline(_LONGEST_LINE)
        if not line.strip():
            raise ValueError("it is empty")
        self.names = _csv_names(line) if self.csv else list(_objects([line], 0)[0])
        self.begin = len(line) if self.csv else 0

    @cached_property
    def marks(self) -> list[Cut]:  # type: ignore[override]
        """Rows, some megabytes apart, and the bytes at which they begin."""
        self.file.seek(self.begin)
        row, place = end = (0, self.begin)
        marks = [end]
        while line := self.file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"row {row} is longer than {_LONGEST_LINE // 2**20} MB")
            row, place = row + 1, place + len(line)
            if place - marks[-1][1] > _MARK_BYTES:
                marks.append((row, place))
            if not line.isspace():  # blank lines at the end are no rows
                end = (row, place)
        return [mark for mark in marks if mark < end] + [end]

    def blocks(
        self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int
    ) -> Iterator[Block]:
        """Yield the rows from ``cut`` to ``stop`` − 1, at most ``size`` at once."""
        self.file.seek(cut[1])
        step = max(1, min(size, _CELLS // max(len(self.names), 1)))
        for row in range(cut[0], stop, step):
            if not (lines := list(islice(self.file, min(step, stop - row)))):
                return
            cells = (_csv_cells if self.csv else _json_cells)(lines, row, self.names)
            yield {
                name: self._texts(cells[name])
                if name in texts
                else _numbers(name, cells[name], row)
                for name in columns
            }

    def _texts(self, cells: TextCells) -> list[object]:
        return list(map(text_of_spreadsheet, cells)) if self.csv else list(cells)


def _numbers(name: str, cells: TextCells, first: int) -> NDArray[np.float64]:
    """Return the cells of a column as numbers (N,), or lists as (N, K); raise ValueError for other cells."""
    lists = isinstance(cells[0], list)
    try:
        return np.array(
            [[*map(float, cell)] for cell in cells] if lists else [*map(float, cells)],
            dtype=np.float64,
        )
    except (ValueError, TypeError):
        width = len(cells[0]) if lists else 1
    rows = [cell if isinstance(cell, list) else [cell] for cell in cells]
    bad = next(i for i, row in enumerate(rows) if len(row) != width or not all(map(is_number, row)))
    what = f"{width} numbers" if lists else "a number"
    raise ValueError(
        f"column {quoted(name)} holds {quoted(cells[bad])} in row {first + bad}, not {what}"
    )


def _csv_names(line: bytes) -> list[str]:
    cells = _split([line.removeprefix(b"\xef\xbb\xbf")])[0]
    names = [text_of_spreadsheet(cell.strip()) for cell in cells]
    if _has_semicolons(names):
        raise ValueError(
            "its cells are separated by semicolons: save it with commas, and decimal points"
        )
    if all(map(is_number, names)):
        raise ValueError("its first line has numbers: write the names of the columns there")
    return names


def _has_semicolons(names: Sequence[str]) -> bool:
    """Return whether semicolons separate the cells of a first line: one cell, or decimal commas between them.

    A semicolon in the name of one of several columns is a part of that name.
    """
    if len(names) == 1:
        return ";" in names[0]
    pieces = [piece for name in names for piece in name.split(";")]
    return len(pieces) > len(names) and all(map(is_number, pieces))


def _csv_cells(lines: list[bytes], first: int, names: Sequence[str]) -> dict[str, TextCells]:
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


def _json_cells(lines: list[bytes], first: int, names: Sequence[str]) -> dict[str, TextCells]:
    rows = _objects(lines, first)
    for number, row in enumerate(rows, first + 1):
        if odd := row.keys() ^ set(names):
            raise ValueError(
                f"line {number} has other keys than the first, such as {quoted(min(odd))}"
            )
    return {name: [row[name] for row in rows] for name in names}


def _objects(lines: list[bytes], first: int) -> list[JsonObject]:
    rows = [parse_json(line, f"line {number}") for number, line in enumerate(lines, first + 1)]
    for number, row in enumerate(rows, first + 1):
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object")
    return rows


class ArrowRows(TableRows):
    """The rows of a parquet or feather file, which can be cut between row groups or record batches."""

    def __init__(self, file: BufferedReader, name: str) -> None:
        self.file, self.parquet = file, name.lower().endswith(".parquet")
        if self.parquet:
            self.source = _open_parquet(file)
            schema = self.source.schema_arrow
            groups = _row_groups(self.source.metadata)
            sizes = [group.num_rows for group in groups]
        else:
            declared = declared_batches(file)
            dictionaries = declared_dictionaries(file)
            file.seek(0)
            self.source = load_extra("reading .feather", "pyarrow.ipc", "frames").open_file(file)
            schema = self.source.schema
            sizes = [batch.rows for batch in declared]
            # One batch is unpacked at a time, whatever the size of a block, and all dictionaries stay.
            largest = max((batch.n_bytes for batch in declared), default=0)
            largest += sum(dictionary.n_bytes for dictionary in dictionaries)
            check_unpacked("a batch of it", largest, size_of(file), advice=_SMALLER_BATCHES)
        self.names = list(schema.names)
        starts = [0, *accumulate(sizes)]
        self.marks = [(starts[g], g) for g, size in enumerate(sizes) if size]
        self.marks.append((starts[-1], len(sizes)))
        self.made_by = (schema.metadata or {}).get(MODEL.encode(), b"").decode(errors="replace")

    def n_bytes(self, columns: Sequence[str]) -> int:
        """Return about how much memory columns take; refuse far more than the file can hold."""
        if self.parquet:
            declared = _declared_bytes(self.source, columns)
            check_unpacked("it", declared, size_of(self.file))
        return super().n_bytes(columns)

    def blocks(
        self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int
    ) -> Iterator[Block]:
        """Yield the rows from the group of ``cut`` to ``stop`` − 1, at most ``size`` at once."""
        groups = [g for start, g in self.marks[:-1] if cut[0] <= start < stop]
        if self.parquet:
            step = min(size, _rows_at_once(self.source, columns))
            batches = self.source.iter_batches(step, row_groups=groups, columns=list(columns))
        else:
            batches = (_checked_batch(self.source.get_batch(g), columns) for g in groups)
        for batch in batches:
            for row in range(0, batch.num_rows, size):
                yield arrow_block(batch.slice(row, size), columns, texts, size_of(self.file))


def _checked_batch(batch: RecordBatch, columns: Sequence[str]) -> RecordBatch:
    """Return some columns of a record batch of a feather file.

    pyarrow takes the places of texts and lists from the file as they are: wrong ones would end the process.
    """
    chosen = batch.select(list(columns))
    chosen.validate(full=True)
    return chosen


def arrow_block(
    batch: RecordBatch, columns: Sequence[str], texts: Collection[str], n_bytes: int
) -> Block:
    """Return columns of an Arrow batch: ``texts`` as Python values, the others as numbers.

    ``n_bytes`` is the size of what the batch was unpacked from.

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"p": [0.25, 0.5], "y": ["a", "b"]})
    >>> arrow_block(batch, ["p", "y"], ["y"], 100)
    {'p': array([0.25, 0.5 ]), 'y': ['a', 'b']}
    """
    block = Block()
    for name in columns:
        column = batch.column(name)
        if name in texts:
            block[name] = _arrow_cells(column, name, n_bytes)
        else:
            block[name] = _arrow_numbers(column, name)
    return block


def _row_groups(metadata: FileMetaData) -> list[RowGroupMetaData]:
    return [metadata.row_group(number) for number in range(metadata.num_row_groups)]


def _declared_bytes(source: ParquetFile, columns: Sequence[str]) -> int:
    """Return the bytes that columns of a parquet file take when they are unpacked, as far as the file says it.

    Texts that many rows repeat count once here, and :func:`_arrow_cells` counts them again.
    """
    groups = _row_groups(source.metadata)
    n_bytes = sum(group.total_byte_size for group in groups)
    types = load_extra("reading .parquet", "pyarrow.types", "frames")
    has_lists = any(types.is_nested(source.schema_arrow.field(name).type) for name in columns)
    if n_bytes <= GROWTH_ALLOWED and not has_lists:
        return int(n_bytes)
    return sum(
        max(chunk.total_uncompressed_size, 8 * chunk.num_values)
        for group in groups
        for chunk in _chunks(group, columns)
    )


def _rows_at_once(source: ParquetFile, columns: Sequence[str]) -> int:
    """Return how many rows of a parquet file are decoded at a time, so that long texts do not fill the memory."""
    widest = 1.0
    for group in _row_groups(source.metadata):
        n_rows = max(group.num_rows, 1)
        if group.total_byte_size > _WIDE_ROW * n_rows:
            n_bytes = sum(chunk.total_uncompressed_size for chunk in _chunks(group, columns))
            widest = max(widest, n_bytes / n_rows)
    return max(int(_DECODED / widest), 1)


def _chunks(group: RowGroupMetaData, columns: Sequence[str]) -> list[ColumnChunkMetaData]:
    """Return the parts of a row group that hold some columns."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    return [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns]


def _open_parquet(file: BufferedReader) -> ParquetFile:
    """Open a parquet file whose texts stay in dictionaries, where one that many rows repeat stands once."""
    parquet = load_extra("reading .parquet", "pyarrow.parquet", "frames")
    types = load_extra("reading .parquet", "pyarrow.types", "frames")
    fields = parquet.read_schema(file)
    texts = [field.name for field in fields if _is_text(types, field.type)]
    file.seek(0)
    # Pages are read as they are needed: one row group may be the whole file.
    return parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**16, read_dictionary=texts)


def _is_text(types: ModuleType, kind: DataType) -> bool:
    """Whether an Arrow type is one of text or bytes, of any length."""
    kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return _is_view(types, kind) or any(is_kind(kind) for is_kind in kinds)


def _is_view(types: ModuleType, kind: DataType) -> bool:
    """Whether an Arrow type is one of texts that may share their bytes; older versions have none."""
    names = ("is_string_view", "is_binary_view")
    return any(getattr(types, name)(kind) for name in names if hasattr(types, name))


def _text_lengths(values: ArrowArray, types: ModuleType) -> NumpyArray:
    """Return how many bytes each text of an Arrow array has."""
    if _is_view(types, values.type):
        views = np.frombuffer(values.buffers()[1], dtype=np.int32).reshape(-1, 4)
        lengths = views[values.offset : values.offset + len(values), 0].astype(np.int64)
    else:
        compute = load_extra("reading columns", "pyarrow.compute", "frames")
        lengths = np.array(compute.fill_null(compute.binary_length(values), 0))
    lengths[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths


def _arrow_cells(column: ArrowArray, name: str, packed: int) -> list[object]:
    """Return a column as Python values; long texts that many rows repeat are refused before each row gets a copy."""
    has_dictionary = hasattr(column, "dictionary")
    values = column.dictionary if has_dictionary else column
    types = load_extra("reading columns", "pyarrow.types", "frames")
    if _is_text(types, values.type):
        lengths = _text_lengths(values, types)
        longest = int(lengths.max(initial=0))
        if longest > _LONGEST_TEXT:
            raise ValueError(f"column {quoted(name)} holds a text of {longest:,} characters")
        if has_dictionary:
            texts = column.indices.drop_null().to_numpy()
            lengths = lengths[texts]
        n_bytes = int(lengths.sum())
        check_unpacked(f"column {quoted(name)}", n_bytes, packed, advice=_SHORTER_TEXTS)
    cells: list[object] = column.to_pylist()
    return cells


def _arrow_numbers(column: ArrowArray, name: str) -> NumpyArray:
    """Return a column of numbers (N,), or of lists of equally many numbers (N, K)."""
    if hasattr(column, "dictionary"):
        raise ValueError(f"column {quoted(name)} holds string, not numbers")
    lists = hasattr(column.type, "value_type")
    values = column.flatten() if lists else column
    missing = column.null_count or values.null_count
    if missing:
        raise ValueError(f"column {name!r} has {missing} missing values")
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind not in "biuf":
        raise ValueError(f"column {quoted(name)} holds {one_line(column.type, 40)}, not numbers")
    if lists and len(np.unique(column.value_lengths())) > 1:
        raise ValueError(f"the lists of column {name!r} differ in length")
    return numbers.reshape(len(column), -1) if lists else numbers


READERS: Final[dict[str, Callable[[BufferedReader, str], RowReader]]] = {
    **dict.fromkeys(OPENERS, ArrayRows),
    **dict.fromkeys((".csv", ".jsonl"), TextRows),
    **dict.fromkeys((".parquet", ".feather"), ArrowRows),
}
