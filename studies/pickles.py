"""A reader for pickles of numpy arrays that can build arrays of numbers and nothing else.

A pickle is a program. Before Python runs it, every instruction is checked: only those that build arrays, tuples, lists
and dicts are admitted, no memo index is larger than the program, and no container and no long text is used twice
(a small file could otherwise describe an endless structure). The names that the program may ask for are mapped to
functions of this file, not to numpy's code.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal.text import one_line

#: The name of an array that has none.
_ONLY: Final = "scores"
#: The most instructions of one pickle; every part of what it holds takes at least one.
MAX_INSTRUCTIONS: Final = 2_000_000
_ALLOWED: Final = {
    "PROTO", "FRAME", "MARK", "STOP", "POP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG",
    "BININT", "BININT1", "BININT2", "LONG1", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "LIST", "EMPTY_LIST", "DICT", "EMPTY_DICT", "APPEND", "APPENDS", "SETITEM",
    "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET",
    "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
}  # fmt: skip
_NUMERIC: Final = re.compile(r"([<>=|]?)(\?|[biuf]\d{1,2})")


def read_pickle(data: bytes) -> dict[str, NDArray[Any]]:
    """Read the numeric numpy arrays of a pickle by name; refuse everything else.

    It holds ``((logits_cal, y_cal), (logits_test, y_test))``, ``(logits, y)``, a dict of arrays, or one array.

    >>> read_pickle(pickle.dumps((np.eye(2), np.arange(2))))["y"]
    array([0, 1])
    >>> read_pickle(pickle.dumps(print))
    Traceback (most recent call last):
    ...
    ValueError: it is no pickle of arrays: it asks for builtins.print; only numpy arrays are admitted
    """
    try:
        _scan(data)
        return _named(_ArrayUnpickler(io.BytesIO(data), encoding="latin1").load())
    except Exception as error:
        raise ValueError(f"it is no pickle of arrays: {one_line(error)}") from None


def _named(content: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of an unpickled object by name."""
    named = content if isinstance(content, dict) else {_ONLY: content}
    least = 1
    if isinstance(content, tuple | list) and len(content) == 2:
        named = _two_parts(content) if all(map(_is_pair, content)) else _one_part(content)
        least = len(named)
    arrays = {}
    for name, value in named.items():
        array = value.value if isinstance(value, _Array) else value
        if isinstance(name, str) and isinstance(array, np.ndarray):
            arrays[name] = array
    if len(arrays) < least:
        raise ValueError(
            "expected ((logits_cal, y_cal), (logits_test, y_test)), (logits, y) or a dict of arrays"
        )
    return arrays


def _is_pair(part: Any) -> bool:
    return isinstance(part, tuple | list) and len(part) == 2


def _one_part(content: Any) -> dict[str, Any]:
    logits, y = content
    return {"logits": logits, "y": y}


def _two_parts(content: Any) -> dict[str, Any]:
    calibration, test = content
    return {
        "logits_cal": calibration[0],
        "y_cal": calibration[1],
        "logits_test": test[0],
        "y_test": test[1],
    }


def _scan(data: bytes) -> None:
    """Refuse a program with an instruction, an index or a repetition that arrays do not need."""
    has_no_parts = False  # the top of the stack: a short text, a name, or the result of a call
    reusable: set[int] = set()
    stored = 0
    for count, (code, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
        name = code.name
        if name not in _ALLOWED:
            raise ValueError(f"the instruction {name} is not one that arrays need")
        index = int(argument) if name.endswith(("PUT", "GET")) else stored  # type: ignore[arg-type]
        if index > len(data) or count > MAX_INSTRUCTIONS:
            raise ValueError("more instructions, or a larger memory index, than arrays need")
        if name.endswith("GET") and index not in reusable:
            raise ValueError(
                "a container or a long text that is used twice: the same parts again and again"
            )
        if name.endswith(("PUT", "MEMOIZE")):
            stored += 1
            if has_no_parts:
                reusable.add(index)
            else:
                reusable.discard(index)
        is_short = isinstance(argument, str | bytes) and len(argument) <= 1000
        has_no_parts = is_short or name in ("STACK_GLOBAL", "REDUCE")


class _ArrayUnpickler(pickle.Unpickler):
    """Python's unpickler, which finds the names in ``_REPLACEMENTS`` and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the function that replaces one of numpy's, or refuse the name before anything is imported."""
        replacement = _REPLACEMENTS.get((module.replace("numpy._core.", "numpy.core."), name))
        if replacement is None:
            raise ValueError(
                f"it asks for {module[:60]}.{name[:60]}; only numpy arrays are admitted"
            )
        return replacement


class _Dtype:
    """Replaces numpy.dtype: the type of a number and its byte order."""

    def __init__(self, code: str, *_flags: Any) -> None:
        match = _NUMERIC.fullmatch(code)
        if match is None:
            raise ValueError(f"only arrays of numbers are admitted, not dtype {code[:20]!r}")
        self.order = match[1] or "="
        self.code = match[2]

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def numpy(self) -> np.dtype[Any]:
        if self.order not in ("<", ">", "=", "|"):
            raise ValueError("an unknown byte order")
        return np.dtype(self.order.replace("|", "=") + self.code)


class _Array:
    """Replaces numpy.ndarray: is created empty, and gets type, shape and bytes later."""

    value: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, data = state
        order = "F" if fortran is True or fortran == 1 else "C"
        self.value = _assemble(data, dtype, shape, order)


def _assemble(data: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[Any]:
    """Return the array of a buffer without a copy; numpy refuses a shape that its bytes do not fill."""
    is_buffer = isinstance(data, bytes | bytearray | str)
    if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple) or not is_buffer:
        raise ValueError("only arrays of numbers are admitted")
    kind = dtype.numpy()
    raw = data.encode("latin1") if isinstance(data, str) else data
    if not raw:
        flat: NDArray[Any] = np.empty(0, dtype=kind)
    else:
        flat = np.frombuffer(raw, dtype=kind)
    if kind.kind == "b":  # numpy's bool knows the bytes 0 and 1 only
        flat = flat.view(np.uint8) != 0
    return flat.reshape(shape, order="F" if order == "F" else "C")


_REPLACEMENTS: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    # bytes, as old protocols write them
    ("_codecs", "encode"): lambda text, _encoding: text.encode("latin1"),
    ("numpy.core.multiarray", "_reconstruct"): lambda *_placeholders: _Array(),
    ("numpy.core.multiarray", "scalar"): lambda dtype, data: _assemble(data, dtype, ()),
    ("numpy.core.numeric", "_frombuffer"): _assemble,
}
