"""Model files: one safetensors file with a JSON header, arrays and a checksum. Nothing in it can be executed.

This module reads and writes the header and the arrays. :mod:`hcal.methods.files` makes calibrators from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcal._version import __version__
from hcal.io.files import atomic_path, open_regular, parse_json
from hcal.numerics import NumpyArray
from hcal.text import JsonObject, one_line

#: Raised when the layout of a saved calibrator changes; every number from 4 on stays readable for ever.
#: 4: the header has the kind of the scores and the record of the fit; the arrays are the fields of a map.
SCHEMA = 4
Arrays = dict[str, NumpyArray]
#: The most bytes of a file's header: names, parameters, scores and facts about the fit.
MOST_HEADER = 16_000_000
#: The names of the header among the metadata, and of the checksum among the arrays.
_HEADER, CHECKSUM = "hcal", "sha256"


def write_model(
    path: str | os.PathLike[str], header: Mapping[str, object], arrays: Mapping[str, object]
) -> None:
    """Write a header and arrays as one file, atomically, with a checksum over both.

    Parameters
    ----------
    path : path-like
    header : mapping of str to plain values
        The schema and the version of hcal are added.
    arrays : mapping of str to array

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "model.hcal"
    >>> write_model(path, {"name": "ts"}, {"beta": np.array(0.5)})
    >>> header, arrays = read_model(path)
    >>> header["name"], arrays["beta"]
    ('ts', array(0.5))
    """
    from safetensors.numpy import save as to_bytes

    in_order = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps({"schema": SCHEMA, "hcal": __version__, **header}, default=_plain)
    if len(text) > MOST_HEADER // 2:
        raise ValueError(
            f"the record of the fit has {len(text)} characters; the limit is {MOST_HEADER // 2}"
        )
    with atomic_path(path) as temporary:
        # save_file would write a temporary file of its own, which a killed process would leave behind.
        temporary.write_bytes(
            to_bytes(in_order | {CHECKSUM: digest(text, in_order)}, metadata={_HEADER: text})
        )


def digest(text: str, arrays: Mapping[str, NumpyArray]) -> NDArray[np.uint8]:
    """Return the SHA-256 (32 bytes) of a header and of the names, types, shapes and bytes of the arrays.

    Examples
    --------
    >>> bool((digest("{}", {"a": np.zeros(2)}) == digest("{}", {"a": np.zeros((2, 1))})).all())
    False
    """
    sha256 = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha256.update(f"\0{name}\0{array.dtype.str}\0{arrays[name].shape}\0".encode())
        sha256.update(array.reshape(-1).view(np.uint8).data)
    return np.frombuffer(sha256.digest(), dtype=np.uint8)


def _plain(value: object) -> object:
    """Return numpy scalars and arrays, paths and devices as values that JSON has."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path) or type(value).__module__ == "torch":
        return str(value)
    raise TypeError(f"a parameter of type {type(value).__name__} cannot be saved; use plain values")


def read_model(path: str | os.PathLike[str]) -> tuple[JsonObject, Arrays]:
    """Return the header and the arrays of a model file; its checksum is verified.

    Returns
    -------
    (dict, dict of str to array)
        The arrays as the newest schema has them.

    Examples
    --------
    >>> read_model("no such file")
    Traceback (most recent call last):
    ...
    FileNotFoundError: no such file: no such file
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    with open_regular(Path(path)) as file:  # refuses pipes and devices, which may never end
        content = file.read()
    end = 8 + int.from_bytes(content[:8], "little")
    try:
        if end - 8 > min(len(content), MOST_HEADER):
            raise ValueError("its header is huge, or longer than the file")
        text = parse_json(content[8:end], "its header")["__metadata__"][_HEADER]
        arrays, header = load(content), json.loads(text)
        schema = header["schema"]
        if type(schema) is not int or schema < 1:
            raise ValueError(f"'schema' is {schema!r}")
    except (KeyError, ValueError, TypeError, MemoryError, RecursionError, SafetensorError) as error:
        raise ValueError(f"{path} is not an hcal model file ({reason(error)})") from None
    if schema > SCHEMA:
        raise ValueError(
            f"{path} has schema {schema}; this hcal {__version__} reads up to {SCHEMA}: please "
            "upgrade"
        )
    if schema < 4:
        raise ValueError(f"{path} was written by hcal 0.3 or before: fit again")
    if not np.array_equal(arrays.pop(CHECKSUM, np.empty(0)), digest(text, arrays)):
        raise ValueError(f"{path} is damaged: its checksum is not that of its content")
    return header, arrays


def reason(error: BaseException) -> str:
    """Return the message of an error in one line of bounded length.

    Examples
    --------
    >>> reason(KeyError("name"))
    "KeyError('name')"
    """
    return one_line(error if isinstance(error, ValueError) else repr(error), 300)
