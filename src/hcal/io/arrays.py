"""Files of named arrays: ``.npz``, ``.npy`` and the paper's pickles.

Rows are read from where they stand, some at a time, and never mapped: a mapped file that somebody cuts short
kills the process. Dense scores (N, K, H, W) count a row a pixel.
"""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hcal.io.files import check_memory, quoted, size_of
from hcal.io.pickles import read_pickle
from hcal.io.request import BARE, CLASSES, Plan

#: Where a file says which calibrator made its probabilities.
MODEL: Final = "hcal_model"
#: Where a piece may begin: the number of a row, and its place in the unit of the format.
Cut = tuple[int, int]
Block = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """An array in an open file: rows are read when they are asked for, ``stored[10:20]``."""

    file: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    #: Whether it is compressed: then all that stands before some rows is read with them.
    packed: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of all of it."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def _columns(self) -> NDArray[Any]:
        """All of a compressed array that stands column by column."""
        check_memory("it", self.nbytes)
        return self._read(0, math.prod(self.shape)).reshape(self.shape, order="F")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        a, b, _ = rows.indices(self.shape[0])
        width, shape = math.prod(self.shape[1:]), (b - a, *self.shape[1:])
        if not self.fortran or width < 2:
            return self._read(a * width, (b - a) * width).reshape(shape)
        if self.packed:
            return self._columns[rows]
        columns = [self._read(c * self.shape[0] + a, b - a) for c in range(width)]
        return np.stack(columns, axis=1).reshape(shape, order="F")

    def _read(self, first: int, count: int) -> NDArray[Any]:
        """Return some of the numbers in the order of the file."""
        self.file.seek(self.offset + first * self.dtype.itemsize)
        flat = np.empty(count, dtype=self.dtype)
        rest = memoryview(flat.view(np.uint8)) if count else memoryview(b"")
        while len(rest):
            filled = self.file.readinto(rest[: 2**26])
            if not filled:
                raise ValueError("it ends early: the file was cut short")
            rest = rest[filled:]
        if self.dtype.kind == "U":
            flat.tolist()  # numbers that are no characters are found here, and not later
        if self.dtype.kind == "b":  # a byte other than 0 and 1 is no bool to numpy
            flat = flat.view(np.uint8) != 0
        return flat


def _header(file: Any, size: int, **options: Any) -> Stored:
    """Read the header of an ``.npy`` of ``size`` bytes; only numbers and text pass."""
    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header of Python 2 is fine
        shape, fortran, dtype = read(file)
    found = Stored(file, shape, dtype, fortran, file.tell(), **options)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never unpickled; save plain numeric arrays")
    if dtype.kind not in "biufU":
        raise ValueError(f"it holds {dtype}, not numbers")
    if any(n < 0 for n in shape) or found.nbytes > size - found.offset:
        raise ValueError(f"the header of an array claims the shape {shape}, for which there are too few bytes")
    return found


#: By name, what returns an array, or what stands for one: shape, dtype, nbytes, [rows].
Openers = dict[str, Callable[[], Any]]


def _open_npy(file: BinaryIO) -> Openers:
    found = _header(file, size_of(file))
    return {BARE: lambda: found}


def _open_npz(file: BinaryIO) -> Openers:
    archive, found = zipfile.ZipFile(file), Openers()
    for entry in archive.infolist():
        key = entry.filename.removesuffix(".npy")
        if key in found:
            raise ValueError(f"it holds two arrays named {key!r}")
        found[key] = cache(partial(_open_entry, file, archive, entry))
    return found


def _open_entry(file: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Stored:
    """Return an array of an ``.npz``: one that is not compressed is read from where it stands."""
    found = _header(archive.open(entry), entry.file_size, packed=entry.compress_type != zipfile.ZIP_STORED)
    if found.packed:
        return found
    file.seek(entry.header_offset)
    head = file.read(30)  # of the entry, with its own lengths of a name and of more
    if len(head) < 30 or head[:4] != b"PK\3\4":
        raise ValueError(f"it has no header where {entry.filename!r} should begin")
    begin = entry.header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
    return replace(found, file=file, offset=begin + found.offset)


def _open_pickle(file: BinaryIO) -> Openers:
    return {name: partial(np.asarray, array) for name, array in read_pickle(file.read()).items()}


OPENERS: Final = {".npy": _open_npy, ".npz": _open_npz, ".p": _open_pickle, ".pkl": _open_pickle}


class ArrayRows:
    """The rows of a file of arrays: it may be cut anywhere, unless it is compressed."""

    table = False

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._openers = OPENERS[name[name.rfind(".") :].lower()](file)
        self.names = list(self._openers)
        self.scores, self.spatial, self.pixels = "", tuple[int, ...](), 1

    def array(self, name: str) -> Any:
        """Return an array, or what stands for it until its rows are read; others cost nothing."""
        return self._openers[name]()

    @property
    def made_by(self) -> str:
        """The calibrator that made the probabilities, where the file says so."""
        said = MODEL in self.names and self.array(MODEL).shape == (1,)
        return str(self.array(MODEL)[:][0]) if said else ""

    def follow(self, plan: Plan) -> None:
        """Count rows as the scores have them: a pixel each where they are dense."""
        self.scores = plan.scores[0]
        self.spatial = self.array(self.scores).shape[2:]
        self.pixels = math.prod(self.spatial)
        if self.spatial and "label" in plan.roles:
            check_mask(self.array(plan.roles["label"]).shape, self.spatial)

    def count(self, columns: Sequence[str]) -> int:
        """Return how many rows arrays have, or name two that differ."""
        lengths = {name: (*self.array(name).shape, 0)[0] for name in columns}
        first = columns[0]
        for name, length in lengths.items():
            if length != lengths[first]:
                raise ValueError(f"{first!r} has {lengths[first]:,} rows, {name!r} has {length:,}")
        return int(lengths[first]) * self.pixels

    def beside(self, columns: Sequence[str]) -> list[str]:
        """Return the other arrays that have a value a row."""
        length = self.array(self.scores).shape[:1]
        others = [n for n in self.names if n not in (*columns, CLASSES, MODEL)]
        return [n for n in others if self.array(n).shape[:1] == length]

    def n_bytes(self, columns: Sequence[str]) -> int:
        """What arrays take."""
        return sum(self.array(name).nbytes for name in columns)

    def cuts(self, columns: Sequence[str], step: int) -> list[Cut]:
        """Return where pieces of about ``step`` rows begin."""
        if any(getattr(self.array(name), "packed", False) for name in columns):
            return [(0, 0)]
        return [(row, 0) for row in range(0, self.count(columns), -(-step // self.pixels) * self.pixels)]

    def blocks(self, columns: Sequence[str], texts: Collection[str], cut: Cut, stop: int, size: int) -> Iterator[Block]:
        """Yield rows from ``cut`` to ``stop`` − 1, at most ``size`` at once, but whole images."""
        for name in columns:
            if name not in texts and self.array(name).dtype.kind == "U":
                raise ValueError(f"{quoted(name)} holds {self.array(name).dtype}, not numbers")
        items, end = max(size // self.pixels, 1), stop // self.pixels
        for first in range(cut[0] // self.pixels, end, items):
            rows = slice(first, min(first + items, end))
            yield {name: self._flat(name, self.array(name)[rows]) for name in columns}

    def _flat(self, name: str, items: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of some items: their pixels, where scores are dense."""
        if not self.spatial:
            return items
        if name == self.scores:
            return np.moveaxis(items, 1, -1).reshape(-1, items.shape[1])
        return np.repeat(items, self.pixels) if items.ndim == 1 else items.reshape(-1)


def check_mask(mask: tuple[int, ...], spatial: tuple[int, ...]) -> None:
    """Refuse the shape of labels that does not fit dense scores (N, K, *spatial).

    >>> check_mask((8, 1, 32, 32), (32, 32))
    """
    if mask[1:] not in (spatial, (1, *spatial)):
        shape = ", ".join(map(str, ("N", *spatial)))
        raise ValueError(f"it has dense scores, which need labels of shape ({shape}), got {mask}")
