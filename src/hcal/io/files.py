"""Files by name: which ones a name stands for, that they are regular files, and that memory holds their rows."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob, has_magic
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Final

from hcal.text import printable

#: The types that can be read.
TYPES: Final = (".csv", ".feather", ".jsonl", ".npy", ".npz", ".p", ".parquet", ".pkl")
#: Below a folder: a name that begins with a point or an underscore.
_HIDDEN: Final = re.compile(r"/[._]")


def files_of(source: Any) -> list[Path]:
    """Return the files that a name, or a list of names, stands for, in their order.

    >>> files_of("a.npz")
    [PosixPath('a.npz')]
    """
    names = source if isinstance(source, list | tuple) else [source]
    if not names or not all(isinstance(name, str | os.PathLike) for name in names):
        raise TypeError(f"expected the name of a file, or a list of names, got {type(source).__name__}")
    found = [file for name in names for file in _named(Path(name))]
    suffixes = sorted({p.suffix.lower() for p in found})
    if len(suffixes) > 1:
        raise ValueError(f"files of several types, {one_line(', '.join(suffixes))}: name one with a pattern")
    return found


def _named(path: Path) -> list[Path]:
    """Return the files that a name stands for: one, those below a folder, or those that match a pattern.

    Of a folder, hidden files and those that engines keep for themselves are left out.
    """
    folder = path.is_dir()
    if not folder and (path.exists() or not has_magic(str(path))):
        return [path]
    if folder:
        inside = [p for p in path.rglob("*") if not _HIDDEN.search(f"/{p.relative_to(path).as_posix()}")]
    else:
        inside = [Path(name) for name in glob(str(path), recursive=True)]
    files = sorted(p for p in inside if p.suffix.lower() in TYPES and not p.is_dir())
    if not files:
        words = "is below" if folder else "matches"
        raise FileNotFoundError(f"no file of a known type {words} {path}: {', '.join(TYPES)}")
    return files


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; refuse pipes, devices, sockets and folders without waiting.

    >>> open_regular(Path("none.npz"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: no such file: none.npz
    """
    # Not blocking: a pipe that nobody writes to would keep us waiting.
    more = getattr(os, "O_NONBLOCK", 0)
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | more))  # noqa: SIM115
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a directory") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path} is not a regular file: pipes and devices are not read")
    return file


def size_of(file: BinaryIO) -> int:
    """Return the bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file, to name the data behind a result.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"")
    >>> checksum(path)[:12]
    'e3b0c44298fc'
    """
    with open_regular(Path(path)) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def check_memory(name: str, needed: float) -> None:
    """Refuse, before anything is allocated, what needs more bytes than this process can still get.

    >>> check_memory("a.npy", 1000)
    >>> check_memory("a.npy", 1e18)
    Traceback (most recent call last):
    ...
    ValueError: a.npy needs about 1000000000.0 GB of memory and there are ...
    """
    there = _available_memory()
    if needed > there:
        words = f"{name} needs about {needed / 1e9:.1f} GB of memory and there are {there / 1e9:.1f}"
        raise ValueError(f"{words}: read it by blocks (--batch-rows 65536)")


def _available_memory() -> int:
    """Return the bytes that this process can still get, as far as the system tells."""
    found = [2**62]
    with suppress(ImportError):  # not a POSIX system
        import resource

        own = resource.getrlimit(resource.RLIMIT_AS)[0]
        found += [] if own == resource.RLIM_INFINITY else [own]
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(1024 * int(text.split("MemAvailable:")[1].split()[0]))
    with suppress(OSError, ValueError):  # a container without a limit says "max"
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{n}").read_text()) for n in ("max", "current"))
        found.append(limit - used)
    return max(min(found), 1)


def one_line(text: object, length: int = 240) -> str:
    """Return a message on one line and of bounded length, whatever a foreign parser made of it.

    >>> one_line("first\\n   second")
    'first second'
    >>> len(one_line("x" * 10**6))
    240
    """
    cut = printable(" ".join(str(text)[: 16 * length].split()))
    return cut if len(cut) <= length else cut[: length - 1] + "…"


def parse_json(text: bytes | str, where: str) -> Any:
    """Return the value of a JSON text, or say where there is none; an object must not name a key twice.

    >>> parse_json('{"a": 1}', "line 1")
    {'a': 1}
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({one_line(error, 80)})") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object names a key twice")
    return found


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what a parser of a foreign format raises into one sentence that names the file.

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
        text = "not enough memory" if isinstance(error, MemoryError) else one_line(error) or type(error).__name__
        if not text.startswith(name):
            text = f"{name}{text[2:]}" if text.startswith("it ") else f"cannot read {name}: {text}"
        raise ValueError(text) from None
