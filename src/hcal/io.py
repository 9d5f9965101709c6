"""Files: calibrators as one inert, versioned, checked safetensors file. No pickle anywhere."""

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
from hcal.atomic import atomic_path
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.params import check_params
from hcal.data.class_names import ClassName, check_classes

__all__ = ["SCHEMA", "atomic_path", "load", "save"]

#: Raised when the layout of a saved calibrator changes; older numbers stay readable for ever.
#: 2: a checksum, and scalars of shape (), is new; the arrays are those of 1.
SCHEMA = 2
#: The most classes a file may speak of.
MOST_CLASSES = 10_000_000
#: The most bytes of a file's header: names, parameters, scores and facts of the fit.
MOST_HEADER = 16_000_000
# An array that stands where a method has none: the container must hold one.
_PLACEHOLDER = "_empty"
_CONTAINER, _CHECKSUM = "hcal", "sha256"

Arrays = dict[str, NDArray[Any]]


def save(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator to one file: safetensors with a JSON header and a checksum.

    Parameters
    ----------
    calibrator : Calibrator
    path : path-like

    Examples
    --------
    >>> import hcal, tempfile
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> path = Path(tempfile.mkdtemp()) / "model.hcal"
    >>> save(cal, path)
    >>> bool((load(path).predict_proba([[0.0, 1.0]]) == cal.predict_proba([[0.0, 1.0]])).all())
    True
    """
    from safetensors.numpy import save as to_bytes

    calibrator._check_fitted()
    calibrator._check_state()  # a state that could not be read again is not written
    header = {
        "schema": SCHEMA,
        "hcal": __version__,
        "name": calibrator.name,
        "params": calibrator.get_params(deep=False),
        "n_classes": calibrator.n_classes_,
        "converged": calibrator.converged_,
        "info": calibrator.info_,
        "scores": calibrator.scores_,
    }
    if calibrator.class_names_ is not None:
        header["classes"] = list(calibrator.class_names_)
    arrays = {k: np.asarray(v, order="C") for k, v in calibrator.state_.items()}
    text = json.dumps(header, default=_plain)
    if len(text) > MOST_HEADER // 2:
        raise ValueError(f"info_ and params are {len(text)} characters; the limit is {MOST_HEADER // 2}")
    metadata = {_CONTAINER: text, _CHECKSUM: digest(text, arrays)}
    with atomic_path(path) as temporary:
        # Not save_file: it writes a temporary of its own, which a killed process would leave for good.
        temporary.write_bytes(to_bytes(arrays or {_PLACEHOLDER: np.zeros(1)}, metadata=metadata))


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


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator that :func:`save` wrote, in this or any earlier version.

    The checksum, the header and every array are checked against what the method declares before anything is
    computed: a file either gives a calibrator whose probabilities are probabilities, or is refused with the
    name of what is wrong.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    Calibrator

    Examples
    --------
    >>> load("no such file")
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
        raise ValueError(f"{path} is not an hcal model file ({_short(error)})") from None
    if schema > SCHEMA:
        raise ValueError(
            f"{path} has schema {schema}; this hcal {__version__} reads up to {SCHEMA}: please upgrade"
        )
    if schema >= 2 and metadata.get(_CHECKSUM) != digest(metadata[_CONTAINER], arrays):
        raise ValueError(f"{path} is damaged: its checksum is not that of its content")
    try:
        return _rebuild(header, arrays if schema >= 2 else _from_schema_1(arrays))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a whole hcal model file ({_short(error)})") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a sound hcal model file: {_short(error)}") from None


def _short(error: BaseException) -> str:
    """Return what an error says in one line, however much of the file it repeats."""
    text = " ".join((str(error) if isinstance(error, ValueError) else repr(error)).split())
    return text if len(text) <= 300 else text[:297] + "..."


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


def _rebuild(header: dict[str, Any], state: Arrays) -> Calibrator:
    from hcal.calibrators import get_calibrator

    _check_header(header)
    method = get_calibrator(header["name"])
    calibrator = method(**check_params(method, method.upgrade_params(header["params"])))
    fitted = Fitted(state, header["converged"], "", header["info"])
    calibrator._remember(fitted, header["n_classes"], _classes(header))
    calibrator._check_state()
    calibrator.scores_ = header["scores"]
    return calibrator


def _classes(header: dict[str, Any]) -> tuple[ClassName, ...] | None:
    """Return the names of the classes; files without them, all early ones, have numbers."""
    if "classes" not in header:
        return None
    if not isinstance(header["classes"], list):
        raise ValueError("'classes' must be a list of names")
    return check_classes(header["classes"], header["n_classes"])


def _check_header(header: dict[str, Any]) -> None:
    kinds: dict[str, type] = {
        "name": str,
        "params": dict,
        "n_classes": int,
        "converged": bool,
        "info": dict,
        "scores": dict,
    }
    for name, kind in kinds.items():
        if type(header[name]) is not kind:
            raise ValueError(f"{name!r} is {type(header[name]).__name__}, declared is {kind.__name__}")
    if not 2 <= header["n_classes"] <= MOST_CLASSES:
        raise ValueError(f"'n_classes' is {header['n_classes']}, declared is 2 to {MOST_CLASSES}")
    if not isinstance(header["info"].get("fitted_on", {}), dict):
        raise ValueError("'info.fitted_on' must be an object")
    for when in ("before", "after"):
        scores = header["scores"][when]
        if not isinstance(scores, dict) or not all(isinstance(v, int | float) for v in scores.values()):
            raise ValueError(f"'scores.{when}' must be an object of numbers")
