"""``-`` as a file: standard input is put into a temporary file first, and standard output written from one.

Readers and writers need files: they look at sizes before they read, and rename what is complete. A temporary file has
the type that ``--format`` names, or the only one that the option can have.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

C = TypeVar("C", bound="Streaming")
#: The options that read a file, and the type of the file where there is one alone.
_INPUTS: Final = {
    "file": None, "labels": None, "test": None, "reference": None, "model": "hcal", "rule": "json",
}  # fmt: skip
#: The options that write a file.
_OUTPUTS: Final = {"output": None, "save": "json", "prometheus": "prom"}
#: How the names of the folders of temporary files begin.
_FOLDER: Final = "hcal-stream-"
_STANDARD: Final = Path("-")


class Streaming(Protocol):
    """A command, as far as its standard streams are concerned."""

    #: The type of its ``--output`` where there is one alone.
    output_type: ClassVar[str | None]

    @property
    def format(self) -> str | None:
        """The type of ``-``."""

    @property
    def json(self) -> bool:
        """Whether JSON is printed."""


@contextmanager
def standard_streams(command: C) -> Iterator[C]:
    """Yield the command with temporary files in the place of ``-``; then write standard output."""
    reading = [name for name in _INPUTS if _is_standard(getattr(command, name, None))]
    writing = [name for name in _OUTPUTS if _is_standard(getattr(command, name, None))]
    if not reading and not writing:
        yield command
        return
    if len(reading) > 1 or len(writing) > 1:
        raise ValueError("- stands for one file: name the others")
    if writing and command.json:
        raise ValueError("--json and - both write to standard output: name a file")
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        for name in reading:
            path = Path(folder, f"stdin.{_type_of(command, name, _INPUTS[name])}")
            _copy_input(path)
            command = _replaced(command, name, path)
        if not writing:
            yield command
            return
        name = writing[0]
        kind = command.output_type if name == "output" else _OUTPUTS[name]
        path = Path(folder, f"stdout.{_type_of(command, name, kind)}")
        command = _replaced(command, name, path)
        stream = sys.stdout
        # Standard output is the file's alone: what the command says goes to standard error.
        with redirect_stdout(sys.stderr):
            yield command
        if path.exists():
            with path.open("rb") as file:
                shutil.copyfileobj(file, stream.buffer)
            stream.flush()


def title_of(path: Path | str) -> str:
    """Return the name of a file for a person: ``-`` for standard input and output.

    >>> title_of(Path("days/monday.csv"))
    'days/monday.csv'
    """
    parent = Path(path).parent.name
    return "-" if parent.startswith(_FOLDER) else str(path)


def _is_standard(value: Any) -> bool:
    """Whether an option is ``-``, or a list of files that has it."""
    return value == _STANDARD or (isinstance(value, list) and _STANDARD in value)


def _type_of(command: Streaming, name: str, kind: str | None) -> str:
    """Return the type of a standard stream."""
    if kind is not None:
        return kind
    if command.format is None:
        raise ValueError(
            f"- has no name that says its type (of {name}): add --format csv, jsonl, parquet or npz"
        )
    return command.format


def _copy_input(path: Path) -> None:
    if sys.stdin is None:
        raise OSError("standard input is closed: there is nothing to read")
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)


def _replaced(command: C, name: str, path: Path) -> C:
    """Return the command with another path in the place of ``-``."""
    value = getattr(command, name)
    if isinstance(value, list):
        paths: Any = [path if entry == _STANDARD else entry for entry in value]
    else:
        paths = path
    return replace(command, **{name: paths})  # type: ignore[type-var]
