"""A reader for the benchmark's numpy pickles that can build numeric arrays and nothing else.

A pickle is a program. This one runs with a vocabulary of five words, and none of them is numpy's own
code: the stand-ins below only collect dtype, shape and bytes, and ``numpy.frombuffer`` turns those into
an array. Any other global in the stream, whatever it is called, is an error before it is imported.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMERIC = re.compile(r"[<>=|]?(\?|[biuf]\d{1,2})")


class _Dtype:
    """Stands for numpy.dtype: a plain number type and its byte order."""

    def __init__(self, code: Any, *_flags: Any) -> None:
        text = code.decode("ascii", "replace") if isinstance(code, bytes) else str(code)
        if not _NUMERIC.fullmatch(text):
            raise pickle.UnpicklingError(f"only arrays of numbers are admitted, not dtype {text!r}")
        self.code = text.lstrip("<>=|")
        self.order = text[0] if text[0] in "<>=|" else "="

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "="
        order = order.decode("ascii", "replace") if isinstance(order, bytes) else order
        if order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"unknown byte order {order!r}")
        self.order = order

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.order.replace("|", "=") + self.code)


class _Array:
    """Stands for numpy.ndarray: waits for the state that the pickle's BUILD brings."""

    value: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, data = state
        self.value = _assemble(data, dtype, shape, "F" if fortran else "C")


def _assemble(data: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[Any]:
    if isinstance(data, str):  # Python 2 wrote its bytes as text
        data = data.encode("latin1")
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
        raise pickle.UnpicklingError("only arrays of numbers are admitted")
    sizes = tuple(int(s) for s in shape)
    flat: NDArray[Any] = np.frombuffer(bytes(data), dtype=dtype.numpy())
    return flat.reshape(sizes, order="F" if order == "F" else "C")


def _scalar(dtype: Any, data: Any = b"") -> Any:
    return _assemble(data, dtype, ())[()]


def _reconstruct(*_args: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("only latin1 bytes are admitted")
    return text.encode("latin1")


# numpy moved numpy.core to numpy._core in 2.0; both spellings are in the wild.
_WORDS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _assemble),
        )
    },
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _WORDS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}; only numpy arrays are admitted"
            ) from None


def _plain(value: Any) -> Any:
    """Replace stand-ins by their arrays, through tuples, lists and dicts."""
    if isinstance(value, _Array):
        if value.value is None:
            raise pickle.UnpicklingError("an array without content")
        return value.value
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_plain(v) for v in value)
    if isinstance(value, _Dtype | type) or callable(value):
        raise pickle.UnpicklingError("only numpy arrays are admitted")
    return value


def read_pickle(path: Path) -> Any:
    """Read a pickle of numeric numpy arrays in tuples, lists and dicts; refuse everything else.

    Parameters
    ----------
    path : Path

    Returns
    -------
    arrays, nested as they were

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.p"
    >>> _ = path.write_bytes(pickle.dumps((np.arange(3), np.eye(2))))
    >>> read_pickle(path)[0]
    array([0, 1, 2])
    >>> _ = path.write_bytes(pickle.dumps(print))
    >>> read_pickle(path)
    Traceback (most recent call last):
    ...
    ValueError: a.p is no pickle of arrays: it asks for builtins.print; only numpy arrays are admitted
    """
    try:
        return _plain(_ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load())
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError,
        OverflowError, MemoryError, RecursionError,
    ) as error:  # fmt: skip
        raise ValueError(f"{path.name} is no pickle of arrays: {error}") from None
