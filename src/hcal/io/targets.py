"""Where outputs go: files that mirror the folders of their inputs, and never one that replaces an input.

Every target is known, and every clash is refused, before the first file is written.
"""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from hcal.io.files import TYPES, NamedFiles
from hcal.text import one_line

#: How the names of files begin that :func:`hcal.io.atomic_path` has not finished.
TEMPORARY: Final = ".hcal-tmp-"


@dataclass(frozen=True)
class Pair:
    """A file to read, and the file to write for it."""

    source: Path
    target: Path


def is_folder(output: Path, sources: Sequence[NamedFiles]) -> bool:
    """Whether an output is a folder, with a file for each input: it exists as one, or has no ending and many inputs."""
    one_file = len(sources) == 1 and sources[0].is_one_file
    return output.is_dir() or (not output.suffix and not one_file)


def relative_names(sources: Sequence[NamedFiles]) -> dict[Path, Path]:
    """Return the name of each file below the folder that all inputs have in common.

    >>> relative_names([NamedFiles(Path("a"), Path("a"), [Path("a/x=1/p.npz"), Path("a/x=2/p.npz")])])
    {PosixPath('a/x=1/p.npz'): PosixPath('x=1/p.npz'), PosixPath('a/x=2/p.npz'): PosixPath('x=2/p.npz')}
    """
    common = os.path.commonpath([os.path.abspath(source.folder) for source in sources])
    files = [file for source in sources for file in source.files]
    return {file: Path(os.path.abspath(file)).relative_to(common) for file in files}


def mirrored(sources: Sequence[NamedFiles], folder: Path) -> list[Pair]:
    """Return the file below ``folder`` for each input: of the same name, in the same folders."""
    return [Pair(file, folder / name) for file, name in relative_names(sources).items()]


def prepare_folder(folder: Path, pairs: Sequence[Pair], *, replace: bool) -> None:
    """Make the folders of the targets; refuse a folder that is not empty unless its files may be replaced."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"{folder} is a file: several inputs need a folder, or a name with an ending"
        )
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {folder.parent}")
    if not replace and not is_empty(folder):
        raise ValueError(
            f"{folder} is not empty: resume=True (--resume) goes on with an interrupted run, "
            "overwrite=True (--overwrite) replaces its files, or name a new folder"
        )
    for pair in pairs:
        pair.target.parent.mkdir(parents=True, exist_ok=True)
    _refuse_names_that_differ_in_case(folder, pairs)
    _warn_of_others(folder, pairs)


def is_empty(folder: Path) -> bool:
    """Whether a folder does not exist or holds nothing but unfinished files of a run that was killed."""
    return not folder.exists() or all(
        path.name.startswith(TEMPORARY) for path in folder.rglob("*") if not path.is_dir()
    )


def _refuse_names_that_differ_in_case(folder: Path, pairs: Iterable[Pair]) -> None:
    """Refuse targets that are one file where names do not distinguish case, or ways to write an accent."""
    first_of = dict[str, Path]()
    for pair in pairs:
        key = unicodedata.normalize("NFC", str(pair.target)).casefold()
        first = first_of.setdefault(key, pair.target)
        if first is not pair.target and _ignores_case(folder):
            raise ValueError(
                f"{first} and {pair.target} are one file in {folder}, where names do not "
                "distinguish case"
            )


def _ignores_case(folder: Path) -> bool:
    with NamedTemporaryFile(prefix=f"{TEMPORARY}case-", dir=folder) as file:
        path = Path(file.name)
        return path.with_name(path.name.upper()).exists()


def _warn_of_others(folder: Path, pairs: Iterable[Pair]) -> None:
    """Warn of other data files in a folder: whoever reads the folder would read them too."""
    targets = {pair.target.resolve() for pair in pairs}
    others = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in TYPES
        and not path.name.startswith(TEMPORARY)
        and path.is_file()
        and path.resolve() not in targets
    ]
    if others:
        warnings.warn(
            f"{folder} also holds {len(others)} files that this run does not write, such as "
            f"{one_line(min(others).name, 80)}",
            stacklevel=2,
        )
