"""Model files: one safetensors file with a JSON header, arrays and a checksum. Nothing in it can be executed.

This module reads and writes the header and the arrays. :mod:`hcal.methods.files` makes calibrators from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal._version import __version__
from hcal.io.files import atomic_path, open_regular, parse_json
from hcal.io.request import Request
from hcal.text import one_line

#: Raised when the layout of a saved calibrator changes; every number from 3 on stays readable for ever.
#: 3: the arrays are the fields of a map; the header has the map's options and the request of the fit.
SCHEMA = 3
Arrays = dict[str, NDArray[Any]]
#: The most bytes of a file's header: names, parameters, scores and facts about the fit.
MOST_HEADER = 16_000_000
#: The names of the header among the metadata, and of the checksum among the arrays.
_HEADER, CHECKSUM = "hcal", "sha256"


def write_model(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, Any]
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

    held = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps({"schema": SCHEMA, "hcal": __version__, **header}, default=_plain)
    if len(text) > MOST_HEADER // 2:
        raise ValueError(
            f"info_ and params are {len(text)} characters; the limit is {MOST_HEADER // 2}"
        )
    with atomic_path(path) as temporary:
        # save_file would write a temporary file of its own, which a killed process would leave behind.
        temporary.write_bytes(
            to_bytes(held | {CHECKSUM: digest(text, held)}, metadata={_HEADER: text})
        )


def digest(text: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Return the SHA-256 (32 bytes) of a header and of the names, types, shapes and bytes of the arrays.

    Examples
    --------
    >>> bool((digest("{}", {"a": np.zeros(2)}) == digest("{}", {"a": np.zeros((2, 1))})).all())
    False
    """
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"\0{name}\0{array.dtype.str}\0{arrays[name].shape}\0".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return np.frombuffer(found.digest(), dtype=np.uint8)


def _plain(value: Any) -> Any:
    """Return numpy scalars and arrays, paths and devices as values that JSON has."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path) or type(value).__module__ == "torch":
        return str(value)
    raise TypeError(f"a parameter of type {type(value).__name__} cannot be saved; use plain values")


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Arrays]:
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
            f"{path} has schema {schema}; this hcal {__version__} reads up to {SCHEMA}: please upgrade"
        )
    if schema < 3:
        raise ValueError(f"{path} was written by hcal 0.2 or before: fit again")
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


# -- what a header says about the fit -----------------------------------------------------------------

#: The deepest nesting and the longest text of what a header says about the fit.
MOST_LEVELS: Final = 8
MOST_CHARACTERS: Final = 10_000


def check_info(info: Any, n_classes: int) -> dict[str, Any]:
    """Return what a header says about the fit; refuse it if it is too long or too deep.

    The entries that hcal itself uses (the frequencies of the classes, the notes, the file and the request) must have
    the right types; all others are only shown.

    Parameters
    ----------
    info : dict
        Plain values, as JSON has them.
    n_classes : int

    Examples
    --------
    >>> check_info({"class_frequencies": [0.25, 0.75]}, 2)
    {'class_frequencies': [0.25, 0.75]}
    >>> check_info({"class_frequencies": [0.25, 0.25]}, 2)
    Traceback (most recent call last):
    ...
    ValueError: 'info.class_frequencies' must be K numbers that sum to 1
    """
    if not isinstance(info, dict):
        raise ValueError("'info' must be an object")
    _check_values(info, MOST_LEVELS)
    shares, notes, origin = (
        info.get("class_frequencies", []),
        info.get("notes", []),
        info.get("fitted_on", {}),
    )
    numbers = (
        isinstance(shares, list)
        and len(shares) == n_classes
        and {type(v) for v in shares} <= {int, float}
    )
    if not numbers or min(shares) < 0 or not abs(sum(shares) - 1) < 1e-6:
        raise ValueError("'info.class_frequencies' must be K numbers that sum to 1")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise ValueError("'info.notes' must be a list of texts")
    if not isinstance(origin, dict) or type(origin.get("rows", 0)) is not int:
        raise ValueError("'info.fitted_on' must be an object with the rows and the file")
    Request.from_json(info.get("request", {}))
    return info


def _check_values(value: Any, levels: int) -> None:
    """Refuse deeper nesting, or longer texts, than a fit writes."""
    if not levels:
        raise ValueError(f"'info' is nested in more than {MOST_LEVELS} levels")
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise ValueError(f"'info' holds a text of more than {MOST_CHARACTERS:,} characters")
    inner = (
        [*value, *value.values()]
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else ()
    )
    for each in inner:
        _check_values(each, levels - 1)
