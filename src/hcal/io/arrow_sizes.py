"""What an Arrow file (.feather) declares to hold, read without unpacking anything.

pyarrow unpacks a whole record batch to tell how many rows it has. This module reads the few numbers of the file's
footer and of the batches' headers that declare the rows and the bytes of every buffer; they are FlatBuffers
(https://arrow.apache.org/docs/format/Columnar.html), in which a table lists the places of its fields.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, Final

#: How an Arrow file begins and ends.
_MAGIC: Final = b"ARROW1"
#: What stands before the header of a batch: a mark, and the length of the header.
_BEFORE_HEADER: Final = 8
#: Numbers of fields: dictionaries and record batches in the footer; the content of a message; the batch of a
#: dictionary; rows, buffers and compression of a batch.
_DICTIONARIES, _BATCHES, _CONTENT = 2, 3, 2
_OF_DICTIONARY = 1
_ROWS, _BUFFERS, _COMPRESSION = 0, 2, 3
#: The bytes of an entry of the lists: of a batch in the footer, and of a buffer in a batch.
_BATCH_BYTES, _BUFFER_BYTES = 24, 16


@dataclass(frozen=True)
class Declared:
    """The rows of a record batch, and the bytes that its buffers take when they are unpacked."""

    rows: int
    n_bytes: int


def declared_batches(file: BinaryIO) -> list[Declared]:
    """Return what each record batch of an Arrow file declares.

    >>> import io, pyarrow
    >>> buffer = io.BytesIO()
    >>> table = pyarrow.table({"a": [0.5] * 100_000})
    >>> options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    >>> with pyarrow.ipc.new_file(buffer, table.schema, options=options) as writer:
    ...     writer.write_table(table)
    >>> len(buffer.getvalue()) < 2000, declared_batches(buffer)
    (True, [Declared(rows=100000, n_bytes=800000)])
    """
    return _declared_entries(file, _BATCHES)


def declared_dictionaries(file: BinaryIO) -> list[Declared]:
    """Return what the dictionaries of an Arrow file declare, in which texts that many rows repeat stand once.

    >>> import io, pyarrow
    >>> buffer = io.BytesIO()
    >>> table = pyarrow.table({"a": pyarrow.array(["x" * 1000] * 5).dictionary_encode()})
    >>> with pyarrow.ipc.new_file(buffer, table.schema) as writer:
    ...     writer.write_table(table)
    >>> declared_dictionaries(buffer)[0].rows
    1
    """
    return _declared_entries(file, _DICTIONARIES)


def _declared_entries(file: BinaryIO, listing: int) -> list[Declared]:
    try:
        return [_declared(file, *place, listing) for place in _places(file, listing)]
    except (struct.error, OSError, OverflowError):
        raise ValueError("it is no Arrow file, or damaged") from None


def _places(file: BinaryIO, listing: int) -> list[tuple[int, int]]:
    """Return where the batches of a list in the footer begin, and how long their headers are."""
    file.seek(-(len(_MAGIC) + 4), 2)
    (length,) = struct.unpack("<i", file.read(4))
    if length < 0 or file.read() != _MAGIC:
        raise ValueError("it is no Arrow file")
    file.seek(-(len(_MAGIC) + 4 + length), 2)
    footer = _FlatTable.root(file.read(length))
    blocks = [
        struct.unpack_from("<qi4xq", footer.content, place)
        for place in footer.entries(listing, _BATCH_BYTES)
    ]
    return [(offset, header_bytes) for offset, header_bytes, _ in blocks]


def _declared(file: BinaryIO, offset: int, header_bytes: int, listing: int) -> Declared:
    """Return what the record batch at a place of the file declares."""
    file.seek(offset + _BEFORE_HEADER)
    message = _FlatTable.root(file.read(max(header_bytes - _BEFORE_HEADER, 0)))
    batch = message.table(_CONTENT)
    if listing == _DICTIONARIES:
        batch = batch.table(_OF_DICTIONARY)
    is_packed = batch.place_of(_COMPRESSION) is not None
    body = offset + header_bytes
    n_bytes = 0
    for place in batch.entries(_BUFFERS, _BUFFER_BYTES):
        start, length = struct.unpack_from("<qq", batch.content, place)
        n_bytes += _unpacked(file, body + start, length) if is_packed and length else length
    rows = batch.place_of(_ROWS)
    return Declared(
        0 if rows is None else struct.unpack_from("<q", batch.content, rows)[0], n_bytes
    )


def _unpacked(file: BinaryIO, start: int, length: int) -> int:
    """Return the bytes of a compressed buffer: they stand before it, or −1 where it is not compressed after all."""
    file.seek(start)
    (declared,) = struct.unpack("<q", file.read(8))
    return length if declared < 0 else int(declared)


@dataclass(frozen=True)
class _FlatTable:
    """A table of a FlatBuffer: its bytes, and where it begins in them."""

    content: bytes
    start: int

    @classmethod
    def root(cls, content: bytes) -> _FlatTable:
        """Return the table that a buffer begins with."""
        return cls(content, struct.unpack_from("<I", content, 0)[0])

    def place_of(self, number: int) -> int | None:
        """Return where a field stands; None if the table does not have it."""
        (back,) = struct.unpack_from("<i", self.content, self.start)
        listing = self.start - back
        (size,) = struct.unpack_from("<H", self.content, listing)
        entry = 4 + 2 * number
        if entry >= size:
            return None
        (offset,) = struct.unpack_from("<H", self.content, listing + entry)
        return self.start + offset if offset else None

    def table(self, number: int) -> _FlatTable:
        """Return the table in a field."""
        return _FlatTable(self.content, self._target(number))

    def entries(self, number: int, size: int) -> list[int]:
        """Return where the entries of the list in a field stand, each of so many bytes."""
        if self.place_of(number) is None:
            return []
        start = self._target(number)
        (count,) = struct.unpack_from("<I", self.content, start)
        if count * size > len(self.content):
            raise ValueError("it is damaged: a list is longer than the file")
        return [start + 4 + size * entry for entry in range(count)]

    def _target(self, number: int) -> int:
        place = self.place_of(number)
        if place is None:
            raise ValueError("it is damaged: a part is missing")
        return place + int(struct.unpack_from("<I", self.content, place)[0])
