"""Rows of a Zarr store on disk: a group with arrays of the usual names, or one bare array."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Arrays, Wish
from hcal.io.columns import BARE, CLASSES, may_be_text
from hcal.io.limits import check_bytes, one_line, open_regular
from hcal.io.rows import Span, even_spans, rows_of
from hcal.extras import load_extra

#: What a chunk may pass through. Others exist that run code: numcodecs can unpickle.
_CODECS: Final = {
    "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "endian", "fixedscaleoffset", "gzip", "lz4", "lzma",
    "sharding_indexed", "shuffle", "transpose", "vlen-utf8", "zlib", "zstd",
}  # fmt: skip
#: Metadata are small; what is larger is no metadata.
_LARGEST_METADATA: Final = 2**24
_METADATA: Final = (".zarray", ".zgroup", "zarr.json")


def is_zarr(path: Path) -> bool:
    """Whether a folder is a Zarr store."""
    return any((path / name).is_file() for name in _METADATA)


class ZarrRows:
    """Rows of the wanted arrays of a Zarr store."""

    random = True

    def __init__(self, path: Path, wish: Wish) -> None:
        load_extra("reading Zarr", "zarr", "zarr")
        _refuse_codecs(path)
        held = _arrays_of(path)
        self._name = path.name
        self._arrays = {key: held[key] for key in wish.choose(list(held))}
        for key, array in self._arrays.items():
            _check_type(key, array, text=may_be_text(key, labels=wish.labels))
        self.n_rows = rows_of(self._arrays)
        self.n_bytes = sum(int(a.nbytes) for a in self._arrays.values())

    def spans(self, step: int) -> list[Span]:
        """Cut between chunks of the first array."""
        first = next(iter(self._arrays.values()), None)
        chunk = 1 if first is None else max(int(first.chunks[0]), 1)
        return even_spans(self.n_rows, -(-step // chunk) * chunk)

    def blocks(self, span: Span, size: int, **told: Any) -> Iterator[Arrays]:
        chunk = max((int(np.prod(a.chunks)) * a.dtype.itemsize for a in self._arrays.values()), default=0)
        check_bytes(self._name, chunk + self.n_bytes * min(size, self.n_rows) // max(self.n_rows, 1), 0)
        for a in range(span.start, span.stop, size):
            b = min(a + size, span.stop)
            yield {key: _slice(array, key, a, b) for key, array in self._arrays.items()}

    def close(self) -> None:
        """Nothing stays open."""


def _arrays_of(path: Path) -> dict[str, Any]:
    """Return the arrays of a store by name. Consolidated metadata are a copy that nobody has looked at."""
    import zarr

    told = path / "zarr.json"
    kind = json.loads(told.read_bytes()).get("node_type") if told.is_file() else ""
    if kind == "array" or (path / ".zarray").is_file():
        return {BARE: zarr.open_array(str(path), mode="r")}
    return dict(zarr.open_group(str(path), mode="r", use_consolidated=False).arrays())


def _slice(array: Any, key: str, start: int, stop: int) -> NDArray[Any]:
    found = np.asarray(array[:] if key == CLASSES else array[start:stop])
    return found.astype(np.str_) if found.dtype.kind in "OT" else found


def _check_type(key: str, array: Any, *, text: bool) -> None:
    """Refuse what is not plain numbers, or text where it is meant."""
    kind = np.dtype(array.dtype).kind
    # Text of any length reads as objects or as numpy's strings: the codecs have been looked at.
    if kind not in ("biufUOT" if text else "biuf"):
        raise ValueError(f"{one_line(repr(key), 60)} holds {array.dtype}, not numbers")


def _refuse_codecs(path: Path) -> None:
    """Refuse, before anything is decoded, codecs that are not known to be harmless."""
    for found in (*path.glob("*"), *path.glob("*/*")):
        if found.name not in (".zarray", "zarr.json"):
            continue
        with open_regular(found) as file:
            told = json.loads(file.read(_LARGEST_METADATA))
        for name in sorted(_codecs_of(told)):
            if name.removeprefix("numcodecs.") not in _CODECS:
                raise ValueError(f"its codec {one_line(repr(name), 60)} is not read")


def _codecs_of(told: Any) -> set[str]:
    """Return the names of all codecs in the metadata of an array, those inside of others too."""
    found: set[str] = set()
    if not isinstance(told, dict):
        return found
    listed = [*(told.get("codecs") or ()), *(told.get("filters") or ()), told.get("compressor")]
    for codec in listed:
        if isinstance(codec, dict):
            found.add(str(codec.get("name", codec.get("id"))))
            inner = codec.get("configuration")
            found |= _codecs_of(inner) if isinstance(inner, dict) else set()
    return found | _codecs_of({"codecs": told["index_codecs"]} if "index_codecs" in told else None)
