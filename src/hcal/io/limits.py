"""What a file may cost: only regular files are opened, and sizes are checked before memory is asked for."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final

from hcal.text import printable

#: The environment variable that sets how many bytes the arrays of one file may take.
VARIABLE: Final = "HCAL_MAX_BYTES"
#: Without it: this share of the machine's memory (or of the process's own limit, where that is less) …
SHARE: Final = 0.5
#: … and what is larger than FREE may be at most EXPANSION times the file it came from.
FREE: Final = 256 * 2**20
EXPANSION: Final = 200


class NeedsBlocksError(ValueError):
    """A file that memory does not hold was to be read whole."""


def max_bytes() -> int:
    """Return how many bytes the arrays of one file may take: ``HCAL_MAX_BYTES``, or half of the memory.

    Examples
    --------
    >>> max_bytes() > 0
    True
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return int(SHARE * _memory())
    if not text.strip().isdecimal() or int(text) <= 0:
        raise ValueError(f"{VARIABLE} must be a number of bytes, got {text!r}")
    return int(text)


def _memory() -> int:
    """Return the bytes this process may hope for: physical memory, or its own limit where that is less."""
    try:
        import resource

        own = resource.getrlimit(resource.RLIMIT_AS)[0]
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total if own == resource.RLIM_INFINITY else min(total, own)
    except (ImportError, AttributeError, ValueError, OSError):  # not a POSIX system
        return 8 * 2**30


def available_memory() -> int:
    """Return the bytes that this process can still get: of the machine and of its container."""
    found = [_memory()]
    if (free := _first_number("/proc/meminfo", "MemAvailable:")) is not None:
        found.append(1024 * free)
    group, used = (_first_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if group is not None and used is not None:
        found.append(group - used)
    return max(min(found), 1)


def _first_number(path: str, key: str = "") -> int | None:
    """Return the number that follows a key in a file of the kernel; None where there is none."""
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    words = text[text.find(key) + len(key) :].split() if key in text else []
    return int(words[0]) if words and words[0].isdecimal() else None


def check_memory(name: str, needed: int) -> None:
    """Refuse, before anything starts, what would need more memory than there is.

    ``needed`` counts bytes at the peak of the whole work. Whoever has set ``HCAL_MAX_BYTES`` is not asked.

    >>> check_memory("a.npy", 1000)
    >>> check_memory("a.npy", 10**18)
    Traceback (most recent call last):
    ...
    hcal.io.limits.NeedsBlocksError: a.npy needs about 1000000000.0 GB of memory and there are ...
    """
    there = available_memory()
    if needed > there and VARIABLE not in os.environ:
        raise NeedsBlocksError(
            f"{name} needs about {_gigabytes(needed)} of memory and there are {_gigabytes(there)}: "
            "read it by blocks"
        )


def check_bytes(name: str, wanted: int, held: int) -> None:
    """Refuse, before anything is allocated, what would take more memory than the limits allow.

    ``wanted`` are the bytes that the arrays would take, ``held`` those of the file itself.

    >>> check_bytes("a.npz", 8_000, 500)
    >>> check_bytes("a.npz", 10**18, 500)
    Traceback (most recent call last):
    ...
    ValueError: a.npz would take 1000000000.0 GB in memory, over the limit of ...
    """
    limit = max_bytes()
    if wanted > limit:
        raise ValueError(
            f"{name} would take {_gigabytes(wanted)} in memory, over the limit of {_gigabytes(limit)}; "
            f"{VARIABLE} sets another"
        )
    if wanted > FREE and wanted > EXPANSION * held and VARIABLE not in os.environ:
        raise ValueError(
            f"{name} would take {_gigabytes(wanted)} in memory, {wanted // max(held, 1):,} times the file; "
            f"if that is meant, set {VARIABLE}"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**8 else f"{count / 1e6:.1f} MB"


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; refuse pipes, devices, sockets and folders without waiting.

    >>> open_regular(Path("none.npz"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: no such file: none.npz
    """
    try:
        _check_regular(path, path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"no such file: {path}") from None
    # Not blocking: between the two checks the name may have become a pipe that nobody writes to.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
    except ValueError:
        file.close()
        raise
    return file


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a directory")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is not a regular file: pipes and devices are not read")


def size_of(file: BinaryIO) -> int:
    """Return the bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def one_line(text: object, length: int = 240) -> str:
    """Return a message on one line and of bounded length, whatever a foreign parser made of it.

    >>> one_line("first\\n   second")
    'first second'
    >>> len(one_line("x" * 10**6))
    240
    """
    cut = printable(" ".join(str(text)[: 16 * length].split()))
    return cut if len(cut) <= length else cut[: length - 1] + "…"


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what a parser of a foreign format raises into one sentence that names the file.

    Errors of hcal's own classes keep their class; all others become ValueError.

    >>> with explained("a.npz"):
    ...     raise EOFError
    Traceback (most recent call last):
    ...
    ValueError: cannot read a.npz: EOFError
    """
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        own = isinstance(error, ValueError) and type(error).__module__.startswith("hcal")
        kind = type(error) if own else ValueError
        text = "not enough memory" if isinstance(error, MemoryError) else one_line(error)
        text = text or type(error).__name__
        if not text.startswith(name):
            text = f"{name}{text[2:]}" if text.startswith("it ") else f"cannot read {name}: {text}"
        raise kind(text) from None
