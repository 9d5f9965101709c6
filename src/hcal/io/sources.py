"""Which files a name stands for: itself, a folder, or a pattern."""

from __future__ import annotations

import os
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from hcal.io.limits import one_line
from hcal.io.reading import TYPES
from hcal.io.zarr_rows import is_zarr


def files_of(source: Any) -> list[Path] | None:
    """Return the files of a source in their order; None where it is no name.

    >>> files_of("a.npz"), files_of([[1.0, 2.0]])
    ([PosixPath('a.npz')], None)
    """
    if isinstance(source, str | os.PathLike):
        found = _named(Path(source))
    elif (
        isinstance(source, list | tuple) and source and all(isinstance(p, str | os.PathLike) for p in source)
    ):
        found = [file for path in source for file in _named(Path(path))]
    else:
        return None
    _check_one_type(found)
    return found


def is_many(path: Path) -> bool:
    """Whether a name stands for several files: a folder that is no store, or a pattern.

    >>> is_many(Path("scores/*.npy")), is_many(Path("a.npy"))
    (True, False)
    """
    if path.exists():
        return path.is_dir() and not is_zarr(path)
    return has_magic(str(path))


def _named(path: Path) -> list[Path]:
    if not is_many(path):
        return [path]
    if not path.is_dir():
        found = [Path(name) for name in sorted(glob(str(path), recursive=True))]
        files = [p for p in found if _is_data(p)]
        if not files:
            raise FileNotFoundError(f"no file of a known type matches {path}")
        return files
    files = sorted(_inside(path))
    if not files:
        raise FileNotFoundError(f"{path} holds no file of a known type: {', '.join(TYPES)}")
    return files


def _inside(folder: Path) -> Iterable[Path]:
    """Yield the data files below a folder; hidden ones, and those that engines keep for themselves, not."""
    for path in folder.iterdir():
        if path.name.startswith((".", "_")):
            continue
        if _is_data(path):
            yield path
        elif path.is_dir():
            yield from _inside(path)


def _is_data(path: Path) -> bool:
    return is_zarr(path) or (path.suffix.lower() in TYPES and not path.is_dir())


def _check_one_type(paths: Iterable[Path]) -> None:
    types = sorted({".zarr" if is_zarr(p) else p.suffix.lower() for p in paths})
    if len(types) > 1:
        raise ValueError(f"files of several types, {one_line(', '.join(types))}: name one with a pattern")
