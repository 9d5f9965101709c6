"""Files that several processes change: they take turns by a lock beside the file.

A symbolic link and the file that it points to have one lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from filelock import FileLock, Timeout

from hcal.io.files import check_regular
from hcal.text import printable

#: How long a process waits for the others, in seconds.
PATIENCE: Final = 600.0


@contextmanager
def alone(path: str | os.PathLike[str], *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of a file, ``<path>.lock``, which stays beside it and is empty.

    Examples
    --------
    >>> import tempfile
    >>> with alone(f"{tempfile.mkdtemp()}/state.json"):
    ...     pass
    """
    check_regular(path)
    name = f"{os.path.realpath(path)}.lock"
    _make(name, path)
    lock = FileLock(name)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise TimeoutError(
            f"another process has held {printable(path)}.lock for {patience:g} seconds: try again, "
            "or end that process"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _make(name: str, path: str | os.PathLike[str]) -> None:
    """Make the file of a lock; where it cannot be made, waiting for it would never end."""
    if os.path.lexists(name):
        return
    try:
        os.close(os.open(name, os.O_CREAT | os.O_RDWR, 0o666))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OSError(f"cannot lock {printable(path)}: {reason} (in its folder)") from None
