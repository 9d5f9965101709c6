"""Files that several processes change: they take turns by a lock beside the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from filelock import FileLock, Timeout

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
    lock = FileLock(f"{os.fspath(path)}.lock")
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
