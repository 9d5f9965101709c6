"""The container of a model file: one inert, versioned, checked safetensors file. No pickle anywhere.

It knows a header (JSON) and arrays, and nothing of methods: those are built again in
:mod:`hcal.calibrators.files`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal._version import __version__
from hcal.io.arrays import Arrays
from hcal.io.atomic import atomic_path
from hcal.io.limits import one_line

#: Raised when the layout of a saved calibrator changes; older numbers stay readable for ever.
#: 2: a checksum, and scalars of shape (), is new; the arrays are those of 1.
SCHEMA = 2
#: The most bytes of a file's header: names, parameters, scores and facts of the fit.
MOST_HEADER = 16_000_000
# An array that stands where a method has none: the container must hold one.
_PLACEHOLDER = "_empty"
_CONTAINER, _CHECKSUM = "hcal", "sha256"


def write_model(path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
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

    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps({"schema": SCHEMA, "hcal": __version__, **header}, default=_plain)
    if len(text) > MOST_HEADER // 2:
        raise ValueError(f"info_ and params are {len(text)} characters; the limit is {MOST_HEADER // 2}")
    metadata = {_CONTAINER: text, _CHECKSUM: digest(text, contiguous)}
    with atomic_path(path) as temporary:
        # Not save_file: it writes a temporary of its own, which a killed process would leave for good.
        content = to_bytes(contiguous or {_PLACEHOLDER: np.zeros(1)}, metadata=metadata)
        temporary.write_bytes(_in_order(content))


def _in_order(content: bytes) -> bytes:
    """Return the file with its metadata by name: the library leaves their order to chance."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)  # arrays begin at a multiple of eight
    return b"".join([len(head).to_bytes(8, "little"), head, memoryview(content)[end:]])


def digest(text: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of a header and of the names, types, shapes and bytes of the arrays.

    Examples
    --------
    >>> digest("{}", {"a": np.zeros(2)}) == digest("{}", {"a": np.zeros((2, 1))})
    False
    """
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"\0{name}\0{array.dtype.str}\0{arrays[name].shape}\0".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _plain(value: Any) -> Any:
    """Turn what JSON does not know into what it knows: numpy scalars and arrays, paths, devices."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path) or type(value).__module__ == "torch":
        return str(value)
    raise TypeError(f"a parameter of type {type(value).__name__} cannot be saved; use plain values")


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Arrays]:
    """Return the header and the arrays of a model file of this schema or an earlier one, checksum verified.

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
    if not Path(path).exists():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        metadata, arrays = _read(path)
        header = _parse(metadata[_CONTAINER])
        schema = header["schema"]
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is not an hcal model file ({reason(error)})") from None
    if schema > SCHEMA:
        raise ValueError(
            f"{path} has schema {schema}; this hcal {__version__} reads up to {SCHEMA}: please upgrade"
        )
    if schema >= 2 and metadata.get(_CHECKSUM) != digest(metadata[_CONTAINER], arrays):
        raise ValueError(f"{path} is damaged: its checksum is not that of its content")
    return header, arrays if schema >= 2 else _from_schema_1(arrays)


def reason(error: BaseException) -> str:
    """Return what an error says in one line, however much of the file it repeats.

    Examples
    --------
    >>> reason(KeyError("name"))
    "KeyError('name')"
    """
    return one_line(error if isinstance(error, ValueError) else repr(error), 300)


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, str], Arrays]:
    """Return the metadata and the arrays of a safetensors file.

    The whole file is read before anything in it is believed: nothing changes under our hands, and memory is
    in proportion to what is really there.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as to_arrays

    # Not a pipe or a device, which would never end: opening one may already wait for ever.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("not a regular file")
    with open(path, "rb") as f:
        start = f.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(MOST_HEADER, os.fstat(f.fileno()).st_size):
            raise ValueError("no safetensors header")
        head = f.read(length)
        metadata = _parsed(head.decode())["__metadata__"]
        try:
            arrays = to_arrays(start + head + f.read())
        except SafetensorError as error:
            raise ValueError(str(error)) from None
        except MemoryError:
            raise ValueError("it does not fit into memory") from None
    arrays.pop(_PLACEHOLDER, None)
    return metadata, {name: a if a.flags.writeable else a.copy() for name, a in arrays.items()}


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("its header is not a JSON object")
    return found


def _parse(text: str) -> dict[str, Any]:
    """Return the header of a model; what it must hold to be one at all is checked here."""
    header = _parsed(text)
    schema = header["schema"]
    if type(schema) is not int or schema < 1:
        raise ValueError(f"'schema' is {schema!r}")
    return header


def _from_schema_1(arrays: Arrays) -> Arrays:
    """Return the arrays as schema 2 has them: early files hold a scalar β as an array of one."""
    old = arrays.get("beta")
    return arrays if old is None or old.shape != (1,) else arrays | {"beta": old.reshape(())}
