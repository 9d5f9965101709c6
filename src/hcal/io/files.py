"""Find, open and write files: pipes and devices are refused, and an output appears complete or not at all.

An output is written under a temporary name, and renamed when it is complete and on the disk.

A name stands for a file, for a folder with all that is below it, or is a pattern. A row must neither be lost nor
counted twice. So a folder that cannot be opened is an error, links to folders are followed, and a file that is named
twice is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import glob, has_magic
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote

from hcal.text import JsonObject, one_line

#: Compressed content is not unpacked whole where it declares more bytes than this, …
MOST_UNPACKED: Final = 2 * 2**30
#: … or more than this many times the bytes of its file, unless it is small all the same.
MOST_GROWTH: Final = 1000
GROWTH_ALLOWED: Final = 256 * 2**20
#: Files as users name them: a file, a folder or a pattern, or several of these.
FilesLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
#: The types that can be read.
TYPES: Final = (".csv", ".feather", ".jsonl", ".npy", ".npz", ".parquet")
#: Endings of files that probably hold rows, and that hcal does not read.
_UNREADABLE: Final = (
    ".arrow", ".bz2", ".gz", ".orc", ".pkl", ".tsv", ".xlsx", ".xz", ".zip", ".zst"
)  # fmt: skip
#: A folder of a partitioned table, such as ``country=DE``.
_PARTITION: Final = re.compile(r"([^=]+)=(.*)")
#: What Spark and Hive write for a partition whose value is missing.
_MISSING: Final = "__HIVE_DEFAULT_PARTITION__"


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


# -- the files that names stand for -----------------------------------------------------------------


@dataclass(frozen=True)
class NamedFiles:
    """A name that the caller gave, the files that it stands for, and the folder that their names begin in."""

    name: Path
    folder: Path
    files: list[Path]

    @property
    def is_one_file(self) -> bool:
        """Whether the name is that of a file, and neither a folder nor a pattern."""
        return self.files == [self.name]


def files_of(source: FilesLike) -> list[Path]:
    """Return the files that a name, or a list of names, stands for, in their order.

    >>> files_of("a.npz")
    [PosixPath('a.npz')]
    """
    return [file for entry in sources_of(source) for file in entry.files]


def paths_of(source: FilesLike) -> list[Path]:
    """Return the names that were passed in as paths; refuse what is no name."""
    names = [source] if isinstance(source, str | os.PathLike) else source
    is_listing = isinstance(names, list | tuple) and len(names) > 0
    if not is_listing or not all(isinstance(name, str | os.PathLike) for name in names):
        raise TypeError(
            f"expected the name of a file, or a list of names, got {type(source).__name__}"
        )
    return [Path(name) for name in names]


def sources_of(source: FilesLike) -> list[NamedFiles]:
    """Return what each name stands for; refuse files of several types, and one file that is named twice."""
    sources = [_source(path) for path in paths_of(source)]
    files = [file for entry in sources for file in entry.files]
    suffixes = sorted({file.suffix.lower() for file in files})
    if len(suffixes) > 1:
        listed = ", ".join(suffix or "none" for suffix in suffixes)
        raise ValueError(f"files of several types, {one_line(listed)}: name one with a pattern")
    _refuse_twice(files)
    return sources


def _source(name: Path) -> NamedFiles:
    """Return the files that a name stands for; hidden files in a folder are left out, and those like ``_SUCCESS``."""
    if name.is_dir():
        files = sorted(_below(name))
        _check_not_empty(files, f"is below {name}")
        return NamedFiles(name, name, files)
    if name.exists() or not has_magic(str(name)):
        return NamedFiles(name, name.parent, [name])
    matching = [Path(path) for path in glob(str(name), recursive=True)]
    files = sorted(set(_of_known_types(matching)))
    _check_not_empty(files, f"matches {name}")
    return NamedFiles(name, _fixed_folder(name), files)


def _check_not_empty(files: list[Path], words: str) -> None:
    if not files:
        raise FileNotFoundError(f"no file of a known type {words}: {', '.join(TYPES)}")


def _fixed_folder(pattern: Path) -> Path:
    """Return the folder of a pattern before the first part with a star.

    >>> _fixed_folder(Path("hive/country=*/part-0.parquet"))
    PosixPath('hive')
    """
    fixed = Path()
    for part in pattern.parts[:-1]:
        if has_magic(part):
            break
        fixed /= part
    return fixed


def _of_known_types(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of known types among paths, and those below folders among them, as with a shell."""
    for path in paths:
        if path.is_dir():
            yield from _below(path)
        elif path.suffix.lower() in TYPES:
            yield path


def _below(folder: Path) -> list[Path]:
    """Return the files of known types in a folder and below it; links to folders are followed."""
    files = list[Path]()
    unreadable = list[str]()
    entered = set[tuple[int, int]]()
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        identity = _identity(Path(place))
        if identity in entered:  # a link that leads back to a folder above it
            folders.clear()
            continue
        entered.add(identity)
        folders[:] = [name for name in folders if name[0] not in "._"]
        visible = [name for name in names if name[0] not in "._"]
        files += [Path(place, name) for name in visible if Path(name).suffix.lower() in TYPES]
        unreadable += [name for name in visible if name.lower().endswith(_UNREADABLE)]
    if files and unreadable:
        example = one_line(min(unreadable), 80)
        warnings.warn(
            f"{len(unreadable)} files below {one_line(folder, 80)} are of types that hcal does "
            f"not read, such as {example}: their rows are left out",
            stacklevel=2,
        )
    return files


def _raise(error: OSError) -> None:
    """Raise the error of a folder that cannot be listed: its files would be left out without a word."""
    raise error


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _refuse_twice(files: Iterable[Path]) -> None:
    """Refuse files of which two are the same one, by another name or through a link."""
    names = dict[tuple[int, int], Path]()
    for file in files:
        if not file.exists():  # whoever opens it says so
            continue
        first = names.setdefault(_identity(file), file)
        if first is not file:
            both = (
                f"{first} is named twice" if first == file else f"{first} and {file} are one file"
            )
            raise ValueError(f"{one_line(both)}: its rows would count twice; name it once")


def partition_values(path: Path) -> dict[str, str | None]:
    """Return the columns that the folders of a partitioned table stand for; None is a missing value.

    >>> partition_values(Path("/hive/country=S%C3%A3o/day=1/part-0.parquet"))
    {'country': 'São', 'day': '1'}
    """
    values = dict[str, str | None]()
    for part in Path(os.path.abspath(path)).parts[:-1]:
        match = _PARTITION.fullmatch(part)
        if match is not None:
            text = unquote(match[2])
            values[unquote(match[1])] = None if text == _MISSING else text
    return values


# -- outputs that are no inputs -------------------------------------------------------------------


def check_output(output: Path | None, inputs: Iterable[Path | str | None]) -> None:
    """Refuse, before the work begins, an output in a missing folder, a device, or one that would replace an input.

    An output of a type that hcal reads may not stand in a folder that is read, where the next run would read it too.
    """
    if output is None:
        return
    if not output.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {output.parent}")
    if output.exists() and not output.is_dir():
        check_regular(output)
    for entry in inputs:
        if entry is None:
            continue
        path = Path(entry)
        if path.is_dir() and (not output.suffix or output.suffix.lower() in TYPES):
            if output.resolve().is_relative_to(path.resolve()):
                raise ValueError(
                    f"the output {output} is inside the input {path}, and the next run would read "
                    "it: choose another folder"
                )
            continue
        files = [path] if path.exists() else _matching(path)
        if output.exists() and any(output.samefile(file) for file in files):
            raise ValueError(f"the output {output} is also an input: choose another name")
        if output.is_dir() and any(
            file.resolve().is_relative_to(output.resolve()) for file in files if file.is_file()
        ):
            raise ValueError(
                f"the input {path} is inside the output {output}: choose another folder"
            )


def _matching(path: Path) -> list[Path]:
    """Return the files of a pattern; none if nothing matches, which the reader of the input says."""
    try:
        return [file for source in sources_of(path) for file in source.files if file.exists()]
    except FileNotFoundError:
        return []
