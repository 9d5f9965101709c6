"""numpy's own files, ``.npy`` and ``.npz``: read whole, never mapped and never unpickled.

A mapped file that somebody cuts short kills the process that looks at it; a read one is an error.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hcal.io.columns import ANY, BARE, Columns, may_be_text
from hcal.io.limits import check_bytes, size_of

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Wish:
    """What is wanted of a file: nothing else is read.

    Attributes
    ----------
    choose : callable
        Given the names that the file holds (of a table, a mapping to the columns of each), returns those to
        read.
    labels : bool
        Whether the file holds labels: then a free column is no score, whatever it is called.
    columns : Columns
        What the caller calls the columns of a table.
    """

    choose: Callable[[Collection[str]], Sequence[str]]
    labels: bool = False
    columns: Columns = ANY


_MAGIC: Final = b"\x93NUMPY"


def read_npy(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the one array of an ``.npy`` file."""
    shape, fortran, dtype = read_header(file, text=wish.labels)
    wanted, held = math.prod(shape) * dtype.itemsize, size_of(file)
    if wanted > held - file.tell():
        raise ValueError(f"its header claims {wanted:,} bytes of numbers, the file has fewer")
    check_bytes(name, wanted, held)
    return {key: fill(file, shape, dtype, fortran=fortran) for key in wish.choose([BARE])}


def read_npz(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the wanted arrays of an ``.npz`` file; the other entries are not touched."""
    archive, entries = entries_of(file)
    with archive:
        chosen = {key: entries[key] for key in wish.choose(list(entries))}
        for entry in chosen.values():
            check_entry(entry)
        check_bytes(name, sum(e.file_size for e in chosen.values()), size_of(file))
        return {
            key: _read_entry(archive, entry, text=may_be_text(key, labels=wish.labels))
            for key, entry in chosen.items()
        }


def entries_of(file: BinaryIO) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """Open an ``.npz`` archive; return it and its entries by the names of their arrays."""
    start = file.read(len(_MAGIC))
    if start == _MAGIC:
        raise ValueError("it is a single .npy array: rename it to .npy")
    if not start.startswith(b"PK"):
        raise ValueError("it is no .npz archive: " + _what_instead(start + file.read(1000)))
    file.seek(0)
    archive = zipfile.ZipFile(file)
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        key = entry.filename.removesuffix(".npy")
        if key in entries:
            raise ValueError(f"it holds two arrays named {key!r}")
        entries[key] = entry
    return archive, entries


def _what_instead(start: bytes) -> str:
    """Say what a file holds by its first bytes, for the one who named it."""
    if not start:
        return "it is empty"
    try:
        text = start.decode("utf-8", errors="strict" if len(start) < 1000 else "ignore")
    except UnicodeDecodeError:
        return "write it with numpy.savez"
    plain = all(c.isprintable() or c in "\r\n\t" for c in text)
    return "it is text; if it is a table, rename it to .csv" if plain else "write it with numpy.savez"


def check_entry(entry: zipfile.ZipInfo) -> None:
    """Refuse an entry that is encrypted, or compressed in a way that numpy does not write."""
    if entry.flag_bits & 1:
        raise ValueError(f"{entry.filename!r} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename!r} is compressed in another way than numpy's")


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, *, text: bool) -> NDArray[Any]:
    with archive.open(entry) as file:
        shape, fortran, dtype = read_header(file, text=text)
        if file.tell() + math.prod(shape) * dtype.itemsize != entry.file_size:
            raise ValueError(f"the header of {entry.filename!r} does not fit its {entry.file_size:,} bytes")
        return fill(file, shape, dtype, fortran=fortran)


def read_header(file: Any, *, text: bool = False) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype; only plain numbers pass, and text where it is meant."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"its version {version} of the .npy format is for records, not for numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header of Python 2 is fine
        shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never unpickled; save plain numeric arrays")
    if dtype.kind not in ("biufU" if text else "biuf"):
        raise ValueError(f"it holds {dtype}, not numbers")
    if any(n < 0 for n in shape):
        raise ValueError(f"its header claims the shape {shape}")
    return shape, fortran, dtype


def fill(file: Any, shape: tuple[int, ...], dtype: np.dtype[Any], *, fortran: bool = False) -> NDArray[Any]:
    """Read exactly the bytes of one array from where the file stands.

    >>> import io
    >>> fill(io.BytesIO(b"\\x01\\x02"), (2,), np.dtype("u1"))
    array([1, 2], dtype=uint8)
    """
    flat = np.empty(math.prod(shape), dtype=dtype)
    rest = memoryview(flat.view(np.uint8)) if flat.size else memoryview(b"")
    while len(rest):
        count = file.readinto(rest[: 2**26])
        if not count:
            raise ValueError("it ends early: the file was cut short")
        rest = rest[count:]
    if dtype.kind == "U":
        flat.tolist()  # numbers that are no characters are found here, and not later
    if dtype.kind == "b":  # a byte other than 0 and 1 is no bool to numpy
        flat = flat.view(np.uint8) != 0
    return flat.reshape(shape, order="F" if fortran else "C")
