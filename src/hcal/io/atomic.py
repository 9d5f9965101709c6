"""Files appear whole or not at all: written under another name, made durable, then renamed."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name beside ``path`` and rename it over ``path`` only when all went well.

    A symbolic link is followed: what it points to is replaced, the link stays. Only a new name or a regular
    file is written to. The new file has the permissions of the old one, or those that the umask leaves.
    Content and rename reach the disk before this returns.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic_path(target) as tmp:
    ...     _ = tmp.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(os.path.realpath(path))
    old = _mode(target, path)
    # Writers look at the suffix; a very long one would not fit beside the rest of the name.
    temporary = target.with_name(f".hcal-tmp-{os.getpid()}-{secrets.token_hex(8)}{target.suffix[:32]}")
    temporary.touch(exist_ok=False)  # the kernel applies the umask: to ask for it is to set it, for every thread
    mode = temporary.stat().st_mode & 0o777 if old is None else old
    try:
        # Before anything is in it: what replaces a private file must not be readable for a moment.
        _set_mode(temporary, mode | stat.S_IWUSR)
        yield temporary
        _set_mode(temporary, mode)  # a writer may have made a new file of it
        _sync(temporary)
        _mode(target, path)  # the target may have become something else in the meantime
        temporary.replace(target)
        with suppress(OSError):  # makes the rename durable, where folders can be opened
            _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


class Terminated(SystemExit):
    """The program was asked to end by SIGTERM."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the program like an error: temporaries are removed, the exit status is 143.

    For the main thread of a command; elsewhere, and where somebody has set a handler, nothing changes.
    """

    def end(_signal: int, _frame: Any) -> None:
        raise Terminated(128 + signal.SIGTERM)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def check_new_folder(path: Path) -> None:
    """Raise where a folder cannot be written because something is there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {path.parent}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists: name a new or an empty folder")


def _mode(target: Path, asked: str | os.PathLike[str]) -> int | None:
    """Return the permissions of the regular file at ``target``, None for a new name; refuse all else."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {Path(asked).parent}")
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise ValueError(f"{asked} is a directory: name a file to write to")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{asked} is not a regular file: nothing was written")
    return mode & 0o777


def _set_mode(path: Path, mode: int) -> None:
    with suppress(OSError):  # file systems without permissions
        path.chmod(mode)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
