"""Partial results as bytes of JSON and arrays, so that another machine's answer is read and never executed.

The receiver makes an empty partial result of its own and fills in what the bytes say. The types of its parts are
therefore chosen by the receiver, and the bytes can only name the types of rows.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Final, TypeVar

import numpy as np

from hcal.ageing import Times
from hcal.numerics import NumpyArray
from hcal.row_segments import Segments
from hcal.rows import Rows
from hcal.text import JsonObject

P = TypeVar("P")

#: What a sample holds, and an empty one does not show.
_ROW_TYPES: Final = {"Rows": Rows, "Segments": Segments, "Times": Times}
#: What the receiver knows: how the partial result was asked for, and in which library rows were passed in.
_LEFT_OUT: Final = frozenset({"plan", "origin"})
#: Kinds of arrays that are stored as bytes; others are texts, or values of several types.
_NUMBERS: Final = "biuf"
_JSON: Final = "state"


def state_bytes(partial: object) -> bytes:
    """Return what a partial result has added up so far.

    Examples
    --------
    >>> from hcal.metrics import StreamingMetrics
    >>> seen = StreamingMetrics(2, ["brier"]).update([[0.2, 0.8]], [1])
    >>> restored(state_bytes(seen), StreamingMetrics(2, ["brier"])).result() == seen.result()
    True
    """
    from safetensors.numpy import save

    arrays: dict[str, NumpyArray] = {}
    text = json.dumps(_described(partial, arrays))
    return save(arrays, metadata={_JSON: text})


def restored(content: bytes, empty: P) -> P:
    """Return the partial result that :func:`state_bytes` wrote; ``empty`` is one of no rows, which is filled."""
    from safetensors.numpy import load

    end = 8 + int.from_bytes(content[:8], "little")
    description = json.loads(json.loads(content[8:end])["__metadata__"][_JSON])
    _fill(empty, description, load(content))
    return empty


def _described(value: object, arrays: dict[str, NumpyArray]) -> object:
    """Return a value as JSON has it; its arrays are added to ``arrays``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _described_array(value, arrays)
    if isinstance(value, list | tuple):
        entries = [_described(entry, arrays) for entry in value]
        return {"type": type(value).__name__, "entries": entries}
    if isinstance(value, dict):
        pairs = [[key, _described(entry, arrays)] for key, entry in value.items()]
        return {"type": "dict", "entries": pairs}
    parts = {name: _described(part, arrays) for name, part in _parts(value).items()}
    return {"type": type(value).__name__, "parts": parts}


def _described_array(array: NumpyArray, arrays: dict[str, NumpyArray]) -> JsonObject:
    if array.dtype.kind not in _NUMBERS:
        # Texts, and what a column of several types holds; a date becomes its text.
        cells = [cell if _is_plain(cell) else str(cell) for cell in array.tolist()]
        return {"type": "cells", "entries": cells, "text": array.dtype.kind == "U"}
    name = str(len(arrays))
    arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    return {"type": "array", "name": name}


def _is_plain(cell: object) -> bool:
    return cell is None or isinstance(cell, bool | int | float | str)


def _parts(value: object) -> JsonObject:
    """Return the attributes that an object consists of."""
    if is_dataclass(value):
        parts = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    else:
        parts = dict(vars(value))
    return {name: part for name, part in parts.items() if name not in _LEFT_OUT}


def _value(description: object, arrays: dict[str, NumpyArray], like: object) -> object:
    """Return the value that a description stands for; ``like`` is what the receiver has in its place."""
    if not isinstance(description, dict):
        return description
    kind = description["type"]
    if kind == "array":
        return np.array(arrays[description["name"]])
    if kind == "cells":
        return np.array(description["entries"], dtype=np.str_ if description["text"] else object)
    if kind == "dict":
        likes = like if isinstance(like, dict) else {}
        pairs = description["entries"]
        return {key: _value(entry, arrays, likes.get(key)) for key, entry in pairs}
    if kind in ("list", "tuple"):
        entries = [_value(entry, arrays, None) for entry in description["entries"]]
        return entries if kind == "list" else tuple(entries)
    is_alike = like is not None and type(like).__name__ == kind
    own = like if is_alike else _empty_of_rows(kind)
    _fill(own, description, arrays)
    return own


def _empty_of_rows(kind: str) -> object:
    """Return an object of a type of rows, with nothing in it."""
    if kind not in _ROW_TYPES:
        raise _unexpected(kind)
    empty: object = object.__new__(_ROW_TYPES[kind])
    for entry in fields(_ROW_TYPES[kind]):
        object.__setattr__(empty, entry.name, None)
    return empty


def _fill(like: object, description: JsonObject, arrays: dict[str, NumpyArray]) -> None:
    """Put the parts that a description names into an object of the same type."""
    kind = description["type"]
    if type(like).__name__ != kind:
        raise _unexpected(kind)
    # Frozen dataclasses have no other way to be filled.
    parts = vars(like)
    for name, part in description["parts"].items():
        if name not in parts:
            raise ValueError(f"{kind} has no {name[:40]!r}: another version of hcal wrote it")
        parts[name] = _value(part, arrays, parts[name])


def _unexpected(kind: str) -> ValueError:
    return ValueError(f"a partial result holds {kind[:40]!r}, which is not expected here")
