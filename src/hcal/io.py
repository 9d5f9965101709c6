"""Files: calibrators as one inert, versioned safetensors file. No pickle anywhere."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hcal._version import __version__
from hcal.calibrators.base import Calibrator, Fitted

#: Raised when the layout of a saved calibrator changes; older numbers stay readable for ever.
SCHEMA = 1


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name beside ``path`` and rename it over ``path`` only when all went well.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_path(target) as tmp:
    ...     _ = tmp.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def save(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator to one file: safetensors with a JSON header.

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
    from safetensors.numpy import save_file

    calibrator._check_fitted()
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
    arrays = {k: np.asarray(v, order="C") for k, v in calibrator.state_.items()}
    text = json.dumps(header, default=_plain)
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"no such directory: {Path(path).parent}")
    with atomic_path(path) as temporary:
        save_file(arrays or {"_empty": np.zeros(1)}, temporary, metadata={"hcal": text})


def _plain(value: Any) -> Any:
    """Turn what JSON does not know into what it knows: numpy scalars and arrays, paths, devices."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path) or type(value).__module__ == "torch":
        return str(value)
    raise TypeError(f"a parameter of type {type(value).__name__} cannot be saved; use plain values")


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator that :func:`save` wrote, in this or any earlier version.

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
    from safetensors import SafetensorError, safe_open

    if not Path(path).exists():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="numpy") as f:
            metadata = f.metadata() or {}
            state = {k: f.get_tensor(k) for k in f.keys() if k != "_empty"}  # noqa: SIM118
        header: dict[str, Any] = json.loads(metadata["hcal"])
        schema = int(header["schema"])
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is not an hcal model file ({error})") from None
    if schema > SCHEMA:
        raise ValueError(
            f"{path} has schema {schema}; this hcal {__version__} reads up to {SCHEMA}: please upgrade"
        )
    try:
        return _rebuild(header, state)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a whole hcal model file ({error!r})") from None


def _rebuild(header: dict[str, Any], state: dict[str, Any]) -> Calibrator:
    from hcal.calibrators import get_calibrator, make_calibrator

    params = get_calibrator(header["name"]).upgrade_params(header["params"])
    calibrator = make_calibrator(header["name"], **params)
    calibrator._remember(Fitted(state, header["converged"], "", header["info"]), header["n_classes"])
    calibrator.scores_ = header["scores"]
    return calibrator
