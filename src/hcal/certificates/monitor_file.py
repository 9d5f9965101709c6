"""The state file of a monitor: read, checked, written, and shared by several processes.

A state is JSON. It is written under a temporary name and renamed, so a reader always sees a whole one. Processes that
add rows to the same file take turns: a lock beside it (``<name>.lock``) is held from reading to renaming.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from hcal.frames import AnyArray
from hcal.io.files import atomic_path, open_regular
from hcal.io.locks import PATIENCE, alone
from hcal.text import JsonObject, printable

if TYPE_CHECKING:
    from hcal.certificates.monitor import Monitor

Answer = TypeVar("Answer")

#: A longer file is cut off, so it is no valid JSON.
_LARGEST_FILE: Final = 1 << 28


@contextmanager
def shared_state(
    path: str | os.PathLike[str], begin: Callable[[], Monitor], *, patience: float = PATIENCE
) -> Iterator[Monitor]:
    """Open the state file of a monitor alone, and write it when the block ends without an error.

    Parameters
    ----------
    path : path-like
        The state file; ``<path>.lock`` beside it stays, and is empty.
    begin : callable
        Returns the monitor to start with if there is no file yet.
    patience : float
        How many seconds to wait for other processes.

    Examples
    --------
    >>> import tempfile
    >>> from hcal import Monitor
    >>> path = f"{tempfile.mkdtemp()}/watch.json"
    >>> with shared_state(path, Monitor) as monitor:
    ...     _ = monitor.update([0.8] * 5, [1] * 5)
    >>> Monitor.load(path).n
    5
    """
    from hcal.certificates.monitor import Monitor

    with alone(path, patience=patience):
        monitor = Monitor.load(path) if Path(path).exists() else begin()
        yield monitor
        monitor.save(path)


def update_state(  # noqa: PLR0913
    path: str | os.PathLike[str],
    probs: AnyArray,
    y: AnyArray,
    *,
    begin: Callable[[], Monitor] | None = None,
    name: str | None = None,
    digest: str = "",
    date: str = "",
) -> Monitor:
    """Add rows to the state file of a monitor, which several processes may do at the same time.

    Parameters
    ----------
    path : path-like
        The state file; it is made if it does not exist.
    probs, y, name, digest, date
        As for :meth:`hcal.Monitor.update`.
    begin : callable, optional
        Returns the monitor to start with; ``Monitor()`` by default.

    Returns
    -------
    Monitor
        As it was written.

    Examples
    --------
    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/watch.json"
    >>> update_state(path, [0.8] * 5, [1] * 5).n, update_state(path, [0.8] * 5, [1] * 5).n
    (5, 10)
    """
    from hcal.certificates.monitor import Monitor

    with shared_state(path, begin or Monitor) as monitor:
        return monitor.update(probs, y, name=name, digest=digest, date=date)


def write_state(path: str | os.PathLike[str], state: JsonObject) -> None:
    """Write a state as JSON, atomically."""
    text = json.dumps(state, allow_nan=False)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_state(path: str | os.PathLike[str], restore: Callable[[JsonObject], Answer]) -> Answer:
    """Return what ``restore`` makes of the state in a file; any other file raises ValueError with the reason."""
    with open_regular(Path(path)) as file:
        text = file.read(_LARGEST_FILE)
    try:
        return restore(json.loads(text))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        lines = printable(error).splitlines()
        reason = lines[0][:200] if lines else type(error).__name__
        raise ValueError(f"{printable(path)} is not the state of a monitor: {reason}") from None


def checked(value: object, form: object, name: str) -> Any:
    """Return ``value`` if it has the keys, types and shapes of ``form`` and finite numbers that are not below it.

    A list may have any number of entries, each of the form of the first.

    >>> checked({"n": 3}, {"n": 0}, "the state")
    {'n': 3}
    >>> checked({"n": -3}, {"n": 0}, "the state")
    Traceback (most recent call last):
    ...
    ValueError: n has the wrong type, shape or value
    """
    if isinstance(form, dict) and isinstance(value, dict) and set(value) == set(form):
        return {key: checked(value[key], form[key], key) for key in form}
    if isinstance(form, list) and isinstance(value, list):
        return [checked(entry, form[0], name) for entry in value]
    if isinstance(form, np.ndarray):
        if not _holds_numbers(value):
            raise ValueError(f"{name} holds something else than numbers")
        value = np.asarray(value, dtype=np.float64)
        is_right = value.shape == form.shape
        is_right = is_right and bool((np.isfinite(value) & (value >= form)).all())
    else:
        is_right = _is_like(value, form)
    if not is_right:
        raise ValueError(f"{name} has the wrong type, shape or value")
    return value


def _holds_numbers(value: object) -> bool:
    """Say whether lists hold nothing but numbers; text such as "1.5" is none."""
    if isinstance(value, list):
        return all(_holds_numbers(entry) for entry in value)
    return isinstance(value, np.ndarray) or type(value) in (int, float)


def _is_like(value: object, form: object) -> bool:
    """Say whether a single value has the type of another, and is no number that JSON or a counter cannot hold."""
    if form is None:
        return value is None or type(value) is int
    if type(value) is not type(form):
        return False
    if isinstance(value, str | bool):
        return True
    if isinstance(value, int):
        return 0 <= value < 2**53
    return isinstance(value, float) and -1e308 <= value < 1e308
