"""What a pickle of numpy arrays may name: stand-ins that collect dtype, shape and bytes, and nothing else."""

from __future__ import annotations

import math
import pickle
import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_NUMERIC: Final = re.compile(r"[<>=|]?(\?|[biuf]\d{1,2})")
#: More axes than any array of scores has.
_MAX_AXES: Final = 8


class Dtype:
    """Stands for numpy.dtype: a plain number type and its byte order."""

    def __init__(self, code: Any, *_flags: Any) -> None:
        text = _short_text(code)
        if not _NUMERIC.fullmatch(text):
            raise pickle.UnpicklingError(f"only arrays of numbers are admitted, not dtype {text!r}")
        self.code = text.lstrip("<>=|")
        self.order = text[0] if text[0] in "<>=|" else "="

    def build(self, state: Any) -> None:
        """Take the byte order from the state that numpy wrote."""
        order = _short_text(state[1]) if isinstance(state, tuple) and len(state) > 1 else "="
        if order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"unknown byte order {order!r}")
        self.order = order

    def numpy(self) -> np.dtype[Any]:
        """Return the dtype that was meant."""
        return np.dtype(self.order.replace("|", "=") + self.code)


def _short_text(code: Any) -> str:
    """Return a short text; anything else is not even printed: nested tuples print for ever."""
    if isinstance(code, bytes | memoryview) and len(code) <= 8:
        return bytes(code).decode("ascii", "replace")
    if isinstance(code, str) and len(code) <= 8:
        return code
    raise pickle.UnpicklingError("only arrays of numbers are admitted")


class Array:
    """Stands for numpy.ndarray: waits for the state that the pickle's BUILD brings."""

    value: NDArray[Any] | None = None

    def __init__(self, *_arguments: Any) -> None:
        pass

    def build(self, state: Any) -> None:
        """Take dtype, shape and bytes from the state that numpy wrote."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array without its five parts")
        _version, shape, dtype, fortran, data = state
        self.value = assemble_array(data, dtype, shape, "F" if fortran is True or fortran == 1 else "C")


def assemble_array(data: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[Any]:
    """Return the array of a buffer, without a copy of it."""
    if isinstance(data, str):  # Python 2 wrote its bytes as text
        data = data.encode("latin1")
    if not isinstance(dtype, Dtype) or not isinstance(data, bytes | memoryview):
        raise pickle.UnpicklingError("only arrays of numbers are admitted")
    if not isinstance(shape, tuple) or len(shape) > _MAX_AXES or not all(type(n) is int for n in shape):
        raise pickle.UnpicklingError("an array with a shape that is none")
    kind = dtype.numpy()
    if any(n < 0 for n in shape) or math.prod(shape) * kind.itemsize != len(data):
        raise pickle.UnpicklingError("an array whose bytes do not fit its shape")
    flat: NDArray[Any] = np.frombuffer(data, dtype=kind) if len(data) else np.empty(0, dtype=kind)
    if kind.kind == "b":  # a byte other than 0 and 1 is no bool to numpy
        flat = flat.view(np.uint8) != 0
    return flat.reshape(shape, order="F" if order == "F" else "C")


def scalar(dtype: Any, data: Any = b"") -> Any:
    """Return one number."""
    return assemble_array(data, dtype, ())[()]


def encode_text(text: Any, encoding: Any = "latin1") -> bytes:
    """Return the bytes that old protocols wrote as text."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("only latin1 bytes are admitted")
    return text.encode("latin1")


# numpy moved numpy.core to numpy._core in 2.0; both spellings are in the wild.
WORDS: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
    ("_codecs", "encode"): encode_text,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", Array),
            ("multiarray", "scalar", scalar),
            ("numeric", "_frombuffer", assemble_array),
        )
    },
}


def find(module: str, name: str) -> Any:
    """Return the stand-in for a global, or refuse it before anything is imported.

    >>> find("os", "system")
    Traceback (most recent call last):
    ...
    _pickle.UnpicklingError: it asks for os.system; only numpy arrays are admitted
    """
    try:
        return WORDS[module, name]
    except KeyError:
        asked = f"{module}.{name}"[:80]
        raise pickle.UnpicklingError(f"it asks for {asked}; only numpy arrays are admitted") from None
