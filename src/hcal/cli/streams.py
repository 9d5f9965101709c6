"""``-`` as a file: standard input is put into a temporary file first, and standard output written from one.

Readers and writers need files: they look at sizes before they read, and rename what is complete. A temporary file has
the type that ``--format`` names, or the only one that the option can have.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final, Protocol, TextIO, TypeVar

from hcal.cli.console import STANDARD, STREAMS

C = TypeVar("C", bound="Streaming")
#: The options that read a file, and the type of the file where there is one alone.
_INPUTS: Final = {
    "file": None, "labels": None, "test": None, "reference": None, "model": "hcal", "rule": "json",
}  # fmt: skip
#: The options that write a file.
_OUTPUTS: Final = {"output": None, "save": "json", "prometheus": "prom"}


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
def standard_streams(command: C, names: Collection[str]) -> Iterator[C]:
    """Yield the command with temporary files in the place of ``-``; then write standard output."""
    reading = [name for name in _INPUTS if name in names]
    writing = [name for name in _OUTPUTS if name in names]
    others = [name for name in names if name not in (*reading, *writing)]
    if others:
        raise ValueError(f"--{others[0]} needs a file, and - is standard input or output")
    if len(reading) > 1 or len(writing) > 1:
        raise ValueError("- stands for one file: name the others")
    if writing and command.json:
        raise ValueError("--json and - both write to standard output: name a file")
    with tempfile.TemporaryDirectory(prefix=STREAMS) as folder:
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
        try:
            # Standard output is the file's alone: what the command says goes to standard error.
            with redirect_stdout(sys.stderr):
                yield command
        finally:
            # A file is there if it is complete, also where a requirement is not met.
            if path.exists():
                _copy_output(path, stream)


def _copy_output(path: Path, stream: TextIO) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, stream.buffer)
    stream.flush()


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
    paths: Path | list[Path] = path
    if isinstance(value, list):
        paths = [path if entry == STANDARD else entry for entry in value]
    return replace(command, **{name: paths})  # type: ignore[type-var]
