"""Rows of ``.npy`` and ``.npz``, read from where they stand: never mapped, as a file may be cut in use."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Arrays, Wish, check_entry, entries_of, fill, read_header
from hcal.io.columns import BARE, CLASSES, may_be_text
from hcal.io.limits import check_bytes, size_of
from hcal.io.rows import Span, even_spans, rows_of


@dataclass(frozen=True)
class _Stored:
    """An array of a file: its form, and where its numbers begin."""

    file: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows ``start`` to ``stop`` − 1."""
        width = math.prod(self.shape[1:])
        if self.fortran and width > 1:
            columns = [self._fill(c * self.shape[0] + start, (stop - start,)) for c in range(width)]
            flat = np.stack(columns, axis=1)
            return flat.reshape((stop - start, *self.shape[1:]), order="F")
        return self._fill(start * width, (stop - start, *self.shape[1:]))

    def _fill(self, first: int, shape: tuple[int, ...]) -> NDArray[Any]:
        self.file.seek(self.offset + first * self.dtype.itemsize)
        return fill(self.file, shape, self.dtype)


class _Unpacked(_Stored):
    """An array that is compressed, and so comes from its beginning to its end."""

    def _fill(self, first: int, shape: tuple[int, ...]) -> NDArray[Any]:
        here = self.offset + first * self.dtype.itemsize
        if self.file.tell() != here:
            self.file.seek(here)
        return fill(self.file, shape, self.dtype)


class _Held(_Unpacked):
    """An array that is compressed column after column: only all of it can be read."""

    @cached_property
    def _whole(self) -> NDArray[Any]:
        self.file.seek(self.offset)
        return fill(self.file, self.shape, self.dtype, fortran=True)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._whole[start:stop]


class NumpyRows:
    """Rows of the wanted arrays of an ``.npy`` or ``.npz`` file."""

    def __init__(self, file: BinaryIO, name: str, wish: Wish) -> None:
        self._name, self._held = name, size_of(file)
        archive = file.read(2) == b"PK" or name.lower().endswith(".npz")
        file.seek(0)
        self._open: list[Any] = [file]
        self._arrays = self._members(file, wish) if archive else self._only(file, wish)
        self.random = not any(isinstance(a, _Unpacked) for a in self._arrays.values())
        self.n_rows = rows_of(self._arrays)
        self.n_bytes = sum(a.n_bytes for a in self._arrays.values())

    def _only(self, file: BinaryIO, wish: Wish) -> dict[str, _Stored]:
        shape, fortran, dtype = read_header(file, text=wish.labels)
        found = _Stored(file, shape, dtype, fortran, file.tell())
        if found.n_bytes > self._held - found.offset:
            raise ValueError(f"its header claims {found.n_bytes:,} bytes of numbers, the file has fewer")
        return dict.fromkeys(wish.choose([BARE]), found)

    def _members(self, file: BinaryIO, wish: Wish) -> dict[str, _Stored]:
        archive, entries = entries_of(file)
        self._open.append(archive)
        return {
            key: self._member(file, archive, entries[key], text=may_be_text(key, labels=wish.labels))
            for key in wish.choose(list(entries))
        }

    def _member(
        self, file: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, *, text: bool
    ) -> _Stored:
        check_entry(entry)
        packed = archive.open(entry)
        self._open.append(packed)
        shape, fortran, dtype = read_header(packed, text=text)
        found = _Unpacked(packed, shape, dtype, fortran, packed.tell())
        if found.offset + found.n_bytes != entry.file_size:
            raise ValueError(f"the header of {entry.filename!r} does not fit its {entry.file_size:,} bytes")
        if entry.compress_type == zipfile.ZIP_STORED:
            return _Stored(file, shape, dtype, fortran, _data_offset(file, entry) + found.offset)
        if fortran and math.prod(shape[1:]) > 1:  # a row is all over it
            check_bytes(self._name, found.n_bytes, self._held)
            return _Held(packed, shape, dtype, fortran, found.offset)
        return found

    def spans(self, step: int) -> list[Span]:
        """Cut anywhere; not at all where something is compressed."""
        return even_spans(self.n_rows, step if self.random else max(self.n_rows, 1))

    def blocks(self, span: Span, size: int, **told: Any) -> Iterator[Arrays]:
        each = self.n_bytes // max(self.n_rows, 1)
        check_bytes(self._name, each * min(size, span.stop - span.start), self._held)
        for a in range(span.start, span.stop, size):
            b = min(a + size, span.stop)
            yield {
                key: array.read(0, array.shape[0]) if key == CLASSES else array.read(a, b)
                for key, array in self._arrays.items()
            }

    def close(self) -> None:
        for opened in reversed(self._open):
            opened.close()


def _data_offset(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Return where the bytes of an entry begin: after a header that has its own lengths."""
    file.seek(entry.header_offset)
    head = file.read(30)
    if len(head) < 30 or head[:4] != b"PK\3\4":
        raise zipfile.BadZipFile(f"no header where {entry.filename!r} should begin")
    name, extra = struct.unpack("<HH", head[26:30])
    return int(entry.header_offset + 30 + name + extra)
