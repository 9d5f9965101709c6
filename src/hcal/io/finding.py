"""Find the files that names stand for: a file, a folder with all that is below it, or a pattern.

A row must neither be lost nor counted twice. So a folder that cannot be opened is an error, links to folders are
followed, and a file that is named twice is refused.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from hcal.io.files import check_regular
from hcal.text import one_line

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
