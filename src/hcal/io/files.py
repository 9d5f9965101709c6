"""Open and write files: pipes and devices are refused, and an output appears complete or not at all.

An output is written under a temporary name, and renamed when it is complete and on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Final

from hcal.text import JsonObject, one_line

#: Compressed content is not unpacked whole where it declares more bytes than this, …
MOST_UNPACKED: Final = 2 * 2**30
#: … or more than this many times the bytes of its file, unless it is small all the same.
MOST_GROWTH: Final = 1000
GROWTH_ALLOWED: Final = 256 * 2**20


def _open_at_once(name: str, flags: int) -> int:
    """Open a file without blocking: opening a pipe that nobody writes to would wait for ever."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; refuse pipes, devices, sockets and folders without waiting.

    >>> open_regular(Path("none.npz"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: no such file: none.npz
    """
    try:
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
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


def checksum(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, which identifies the data behind a result.

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
    """Raise ValueError if ``needed`` bytes are more than this process can still allocate.

    >>> check_memory("a.npy", 1000)
    >>> check_memory("a.npy", 1e18)
    Traceback (most recent call last):
    ...
    ValueError: a.npy needs about 1000000000.0 GB of memory and there are ...
    """
    available = _available_memory()
    if needed > available:
        sizes = f"{needed / 1e9:.1f} GB of memory and there are {available / 1e9:.1f}"
        words = f"{name} needs about {sizes}"
        raise ValueError(f"{words}: read it by blocks (--batch-rows 65536)")


#: How a file is read that takes much memory.
BY_BLOCKS: Final = "if you trust it, read it by blocks (--batch-rows 65536)"


def check_unpacked(name: str, unpacked: float, packed: int, *, advice: str = BY_BLOCKS) -> None:
    """Refuse compressed content that would be unpacked to far more than a file seems to hold, before it is unpacked.

    Both sizes are in bytes: what the file declares, and what it takes on the disk.

    >>> check_unpacked("a.npz", 10_000_000, 500_000)
    >>> check_unpacked("a.npz", 3.9e9, 962)
    Traceback (most recent call last):
    ...
    ValueError: a.npz has 0.0 MB, and would be unpacked to 3,900 MB in memory: ...
    """
    is_bomb = unpacked > packed * MOST_GROWTH and unpacked > GROWTH_ALLOWED
    if unpacked <= MOST_UNPACKED and not is_bomb:
        return
    raise ValueError(
        f"{name} has {packed / 1e6:,.1f} MB, and would be unpacked to {unpacked / 1e6:,.0f} MB in "
        f"memory: {advice}"
    )


def _available_memory() -> int:
    """Return the bytes that this process can still allocate, as far as the system tells."""
    limits = [2**62]
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        limits.append(1024 * int(text.split("MemAvailable:")[1].split()[0]))
    with suppress(OSError, ValueError):  # a container without a limit says "max"
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        limits.append(limit - used)
    return max(min(limits), 1)


def parse_json(text: bytes | str, where: str) -> Any:
    """Return the value of a JSON text; an error says ``where`` it is. An object must not name a key twice.

    >>> parse_json('{"a": 1}', "line 1")
    {'a': 1}
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({one_line(error, 80)})") from None


def _unique(pairs: list[tuple[str, object]]) -> JsonObject:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("an object names a key twice")
    return entries


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn any error of a parser into a ValueError of one sentence that names the file.

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
        text = one_line(error) or type(error).__name__
        if isinstance(error, MemoryError):
            text = "not enough memory: read it by blocks (--batch-rows 65536)"
        if not text.startswith(name):
            text = f"{name}{text[2:]}" if text.startswith("it ") else f"cannot read {name}: {text}"
        raise ValueError(text) from None


# -- outputs ------------------------------------------------------------------------------------------


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name beside ``path`` and rename it over ``path`` only when all went well.

    A symbolic link is followed: the file that it points to is replaced, and the link stays. Only a new name or a
    regular file is written to. The new file gets the permissions of the old one, or those that the umask allows.
    Content and name are on the disk when this returns.

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
    # Writers look at the suffix; a very long one would make the name too long.
    temporary = target.with_name(
        f".hcal-tmp-{os.getpid()}-{secrets.token_hex(8)}{target.suffix[:32]}"
    )
    try:
        # The kernel applies the umask, which Python cannot read without changing it.
        temporary.touch(exist_ok=False)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        is_link = target != Path(os.path.abspath(path))
        link = f" (a link to {one_line(target)})" if is_link else ""
        raise OSError(f"cannot write {one_line(path)}{link}: {reason} (in its folder)") from None
    mode = temporary.stat().st_mode & 0o777 if old is None else old
    try:
        # Before anything is written: the replacement of a private file must never be readable by others.
        _set_mode(temporary, mode | stat.S_IWUSR)
        yield temporary
        _set_mode(temporary, mode)  # the writer may have created the file anew
        _sync(temporary)
        _mode(target, path)  # the target may have become something else in the meantime
        temporary.replace(target)
        with suppress(OSError):  # makes the rename durable, where folders can be opened
            _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse an output that is a folder or a device, or whose folder is missing, before any work is done.

    >>> check_regular("/dev/null")
    Traceback (most recent call last):
    ...
    ValueError: /dev/null is not a regular file: nothing was written
    """
    _mode(Path(os.path.realpath(path)), path)


def _mode(target: Path, path: str | os.PathLike[str]) -> int | None:
    """Return the permissions of the regular file at ``target``, None for a new name; refuse anything else."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {Path(path).parent}")
    if target.is_dir():
        raise ValueError(f"{path} is a directory: name a file to write to")
    if not target.exists():
        return None
    if not target.is_file():
        raise ValueError(f"{path} is not a regular file: nothing was written")
    return target.stat().st_mode & 0o777


def _set_mode(path: Path, mode: int) -> None:
    with suppress(OSError):  # file systems without permissions
        path.chmod(mode)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
