"""``.safetensors``: a length, a JSON header, bytes. Read here, because the library maps the file."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Arrays, Wish, fill
from hcal.io.limits import check_bytes, size_of

#: A data file names a handful of arrays; a header beyond this is no such file.
MAX_HEADER: Final = 2**24
_TYPES: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "?",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
}  # fmt: skip


def read_safetensors(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the wanted arrays of a safetensors file; bfloat16 comes as float32, which holds it exactly."""
    held = size_of(file)
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(held - 8, MAX_HEADER):
        raise ValueError("its header is longer than the file" if length > held - 8 else "its header is huge")
    header = json.loads(file.read(length).decode(), object_pairs_hook=_unique)
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    chosen = {key: header[key] for key in wish.choose([k for k in header if k != "__metadata__"])}
    places = {key: _place(key, entry, held - 8 - length) for key, entry in chosen.items()}
    check_bytes(name, sum(end - start for start, end, *_ in places.values()), held)
    return {key: _read(file, 8 + length + start, *rest) for key, (start, _, *rest) in places.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header names something twice")
    return found


def _place(key: str, entry: Any, room: int) -> tuple[int, int, tuple[int, ...], str]:
    """Return where an array starts and ends, its shape and its type, all checked against each other."""
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    if entry["dtype"] not in _TYPES:
        raise ValueError(f"{key!r} is of type {entry['dtype']}, which is not read")
    if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
        raise ValueError(f"the header of {key!r} is broken")
    size = math.prod(shape) * np.dtype(_TYPES[entry["dtype"]]).itemsize
    if not start <= end <= room or end - start != size:
        raise ValueError(f"the header of {key!r} claims {size:,} bytes that are not where it says")
    return start, end, tuple(shape), entry["dtype"]


def _read(file: BinaryIO, start: int, shape: Any, kind: Any) -> NDArray[Any]:
    file.seek(start)
    values = fill(file, shape, np.dtype(_TYPES[kind]))
    if kind != "BF16":
        return values
    wide: NDArray[Any] = (values.astype(np.uint32) << 16).view(np.float32)
    return wide
