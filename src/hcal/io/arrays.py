"""Files of named arrays: ``.npz``, ``.npy``, ``.safetensors``, the paper's pickles.

What is not compressed is read from where it stands, some rows at a time, and never mapped: a mapped file that
somebody cuts short kills the process.
"""

from __future__ import annotations

import json
import math
import struct
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hcal.io.limits import check_bytes, one_line, size_of
from hcal.io.pickles import read_pickle

#: Where a file says which calibrator made its probabilities.
MODEL: Final = "hcal_model"
#: The name of the one array of a file that names none.
BARE: Final = "_bare"
_MOST_HEADER: Final = 2**24
_SAFE_TYPES: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "?", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """An array in an open file: rows are read when they are asked for, ``stored[10:20]``."""

    file: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    bfloat16: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of all of it."""
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self) -> NDArray[Any]:
        """Return all of it; one number has no rows."""
        return self[:] if self.shape else self._fill(0, ())

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        a, b, _ = rows.indices(self.shape[0])
        width, size = math.prod(self.shape[1:]), b - a
        if self.fortran and width > 1:
            columns = [self._fill(c * self.shape[0] + a, (size,)) for c in range(width)]
            return np.stack(columns, axis=1).reshape((size, *self.shape[1:]), order="F")
        return self._fill(a * width, (size, *self.shape[1:]))

    def _fill(self, first: int, shape: tuple[int, ...]) -> NDArray[Any]:
        self.file.seek(self.offset + first * self.dtype.itemsize)
        flat = np.empty(math.prod(shape), dtype=self.dtype)
        rest = memoryview(flat.view(np.uint8)) if flat.size else memoryview(b"")
        while len(rest):
            count = self.file.readinto(rest[: 2**26])
            if not count:
                raise ValueError("it ends early: the file was cut short")
            rest = rest[count:]
        if self.dtype.kind == "U":
            flat.tolist()  # numbers that are no characters are found here, and not later
        if self.dtype.kind == "b":  # a byte other than 0 and 1 is no bool to numpy
            flat = flat.view(np.uint8) != 0
        if self.bfloat16:
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return flat.reshape(shape)


class Packed(Stored):
    """A compressed array: all of it is read with its first row."""

    @cached_property
    def _whole(self) -> NDArray[Any]:
        flat = self._fill(0, (math.prod(self.shape),))
        return flat.reshape(self.shape, order="F" if self.fortran else "C")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._whole[rows]


Held = dict[str, Any]  # arrays, or what stands for them: shape, dtype, nbytes, [rows]


def _open_npy(file: BinaryIO, name: str) -> Held:
    found = _header(file, file, Stored)
    if found.nbytes > size_of(file) - found.offset:
        raise ValueError(f"its header claims {found.nbytes:,} bytes of numbers, the file has fewer")
    return {BARE: found}


def _header(file: Any, data: Any, kind: type[Stored], base: int = 0) -> Stored:
    """Read the header of an ``.npy``; only numbers and text pass."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"its version {version} of the .npy format is for records, not for numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header of Python 2 is fine
        shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never unpickled; save plain numeric arrays")
    if dtype.kind not in "biufU":
        raise ValueError(f"it holds {dtype}, not numbers")
    if any(n < 0 for n in shape):
        raise ValueError(f"its header claims the shape {shape}")
    return kind(data, shape, dtype, fortran, base + file.tell())


def _open_npz(file: BinaryIO, name: str) -> Held:
    start = file.read(6)
    if start == b"\x93NUMPY":
        raise ValueError("it is a single .npy array: rename it to .npy")
    if not start.startswith(b"PK"):
        raise ValueError("it is no .npz archive: " + _what_instead(start + file.read(1000)))
    file.seek(0)
    archive = zipfile.ZipFile(file)
    found: dict[str, Any] = {}
    for entry in archive.infolist():
        key = entry.filename.removesuffix(".npy")
        if key in found:
            raise ValueError(f"it holds two arrays named {key!r}")
        found[key] = _Entry(file, name, archive, entry)
    return found


def _what_instead(start: bytes) -> str:
    """Say what a file holds by its first bytes, for the one who named it."""
    text = start.decode("utf-8", errors="ignore")
    if not start:
        return "it is empty"
    plain = len(text) > 0.9 * len(start) and all(c.isprintable() or c in "\r\n\t" for c in text)
    return "it is text; if it is a table, rename it to .csv" if plain else "write it with numpy.savez"


class _Entry:
    """An array of an ``.npz``; its header is read when somebody asks, so that others cost nothing."""

    def __init__(self, file: Any, name: str, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        self.file, self.name, self.archive, self.entry = file, name, archive, entry

    @cached_property
    def _stored(self) -> Stored:
        entry = self.entry
        if entry.flag_bits & 1:
            raise ValueError(f"{entry.filename!r} is encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{entry.filename!r} is compressed in another way than numpy's")
        packed = self.archive.open(entry)
        if entry.compress_type == zipfile.ZIP_STORED:
            found = _header(packed, self.file, Stored, base := self._begin())
        else:
            found, base = _header(packed, packed, Packed), 0
            check_bytes(self.name, found.nbytes, size_of(self.file))
        if found.offset - base + found.nbytes != entry.file_size:
            raise ValueError(f"the header of {entry.filename!r} does not fit its {entry.file_size:,} bytes")
        return found

    def _begin(self) -> int:
        """Return where the bytes of the entry begin: after a header that has its own lengths."""
        self.file.seek(self.entry.header_offset)
        head = self.file.read(30)
        if len(head) < 30 or head[:4] != b"PK\3\4":
            raise zipfile.BadZipFile(f"no header where {self.entry.filename!r} should begin")
        return int(self.entry.header_offset + 30 + sum(struct.unpack("<HH", head[26:30])))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._stored[rows]


def open_safetensors(file: BinaryIO) -> tuple[dict[str, Stored], Any]:
    """Return the arrays of a safetensors file by name, not yet read, and its metadata."""
    held = size_of(file)
    length = int.from_bytes(file.read(8), "little")
    if held < 8:
        raise ValueError("no safetensors header")
    if length > min(held - 8, _MOST_HEADER):
        raise ValueError("its header is longer than the file" if length > held - 8 else "its header is huge")
    header = json.loads(file.read(length).decode(), object_pairs_hook=unique_keys)
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    found = {key: _tensor(file, key, entry, 8 + length, held) for key, entry in header.items()}
    if sum(stored.nbytes for stored in found.values()) != held - 8 - length:
        raise ValueError("its arrays are more or fewer bytes than the file has after its header")
    return found, metadata


def _tensor(file: BinaryIO, key: str, entry: Any, begin: int, held: int) -> Stored:
    """Return an array of a safetensors file; its shape, type and place checked against each other."""
    shape, (start, end), kind = entry["shape"], entry["data_offsets"], entry["dtype"]
    if kind not in _SAFE_TYPES:
        raise ValueError(f"{key!r} is of type {kind}, which is not read")
    if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
        raise ValueError(f"the header of {key!r} is broken")
    found = Stored(file, tuple(shape), np.dtype(_SAFE_TYPES[kind]), False, begin + start, kind == "BF16")
    if not start <= end <= held - begin or end - start != found.nbytes:
        raise ValueError(f"the header of {key!r} claims {found.nbytes:,} bytes that are not where it says")
    return found


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, or refuse one that names a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _open_pickle(file: BinaryIO, name: str) -> Held:
    check_bytes(name, size_of(file), size_of(file))
    return _named(read_pickle(file.read(), name))


def _named(held: Any) -> Held:
    """Return arrays by name: of a dict, one array, ``(logits, y)``, or two such pairs (cal, test)."""
    if isinstance(held, np.ndarray):
        held = {BARE: held}
    elif _is_pair(held):
        held = {"logits": held[0], "y": held[1]}
    elif isinstance(held, tuple | list) and len(held) == 2 and all(map(_is_pair, held)):
        (logits_cal, y_cal), (logits_test, y_test) = held
        held = {"logits_cal": logits_cal, "y_cal": y_cal, "logits_test": logits_test, "y_test": y_test}
    if not isinstance(held, dict):
        raise ValueError(
            "expected ((logits_cal, y_cal), (logits_test, y_test)), (logits, y) or a dict of arrays"
        )
    arrays = {str(key): np.asarray(value) for key, value in held.items()}
    for key, array in arrays.items():
        if array.dtype.kind not in "biufU":
            raise ValueError(f"{one_line(repr(key), 60)} holds {array.dtype}, not numbers")
    return arrays


def _is_pair(held: Any) -> bool:
    return isinstance(held, tuple | list) and len(held) == 2 and all(isinstance(a, np.ndarray) for a in held)


OPENERS: Final[dict[str, Callable[[BinaryIO, str], Held]]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".safetensors": lambda file, _name: dict(open_safetensors(file)[0]),
    ".p": _open_pickle,
    ".pkl": _open_pickle,
}


class ArrayRows:
    """The rows of a file of arrays: it may be cut anywhere."""

    index: tuple[str, ...] = ()
    cuts = None

    def __init__(self, file: BinaryIO, name: str) -> None:
        suffix = name[name.rfind(".") :].lower()
        self.file, self.name, self.held = file, name, OPENERS[suffix](file, name)
        self.names = list(self.held)

    @property
    def made_by(self) -> str:
        """The calibrator that made the probabilities, where the file says so."""
        return str(self.whole(MODEL)[0]) if MODEL in self.held and self.held[MODEL].shape == (1,) else ""

    def count(self, columns: Sequence[str]) -> int:
        """Return how many rows arrays have, or name two that differ."""
        lengths = {name: self.held[name].shape[0] if self.held[name].shape else 0 for name in columns}
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length != lengths[first]:
                raise ValueError(f"{first!r} has {lengths[first]:,} rows, {name!r} has {length:,}")
        return lengths[first]

    def beside(self, columns: Sequence[str], n_rows: int) -> list[str]:
        """Return the other arrays that have a value a row."""
        others = [n for n in self.names if n not in columns]
        return [n for n in others if self.held[n].shape and self.held[n].shape[0] == n_rows]

    def n_bytes(self, columns: Sequence[str]) -> int:
        """What arrays take."""
        return sum(self.held[name].nbytes for name in columns)

    def blocks(
        self, columns: Sequence[str], texts: Collection[str], cut: Any, start: int, stop: int, size: int
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield rows ``start`` to ``stop`` − 1, at most ``size`` at once."""
        for name in columns:
            if name not in texts and self.held[name].dtype.kind == "U":
                raise ValueError(f"{one_line(repr(name), 60)} holds {self.held[name].dtype}, not numbers")
        share = min(size, stop - start) / max(stop, 1)
        check_bytes(self.name, int(self.n_bytes(columns) * share), size_of(self.file))
        for a in range(start, stop, size):
            yield {name: self.held[name][a : min(a + size, stop)] for name in columns}

    def whole(self, name: str) -> NDArray[Any]:
        """Return all of one array."""
        return np.asarray(self.held[name][0 : self.held[name].shape[0]] if self.held[name].shape else [])
