"""Faults of the user: names, formats, outputs that are inputs. One line, the documented exit code.

The table in docs/reliability.md says the same in words; those of the machine are in ``test_interrupted.py``.
"""

from __future__ import annotations

import csv
import errno
import lzma
import os
import zlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors import SafetensorError

from command_line import assert_one_line, folder, prepared_folder, run

__all__ = ["folder", "prepared_folder"]


# -- the output is never an input -------------------------------------------------------------------


@pytest.mark.parametrize("way", ["same", "dotted", "symlink", "hardlink"])
@pytest.mark.parametrize(
    ("read", "command"),
    [
        ("task.npz", ("fit", "task.npz", "--method", "ts")),
        ("y.npy", ("fit", "task.npz", "--labels", "y.npy")),
        ("task.npz", ("apply", "model.hcal", "task.npz")),
        ("model.hcal", ("apply", "model.hcal", "task.npz")),
        ("task.npz", ("report", "task.npz")),
        ("model.hcal", ("report", "task.npz", "--model", "model.hcal")),
    ],
)
def test_the_output_is_never_an_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, read: str, command: tuple[str, ...], way: str
) -> None:
    monkeypatch.chdir(folder)
    output = {"same": read, "dotted": f"./{read}"}.get(way, f"other{Path(read).suffix}")
    if way == "symlink":
        os.symlink(read, output)
    elif way == "hardlink":
        os.link(read, output)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    result = run(*command, "-o", output, code=1)
    assert_one_line(result.stderr, f"the output {Path(output)} is also an input")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


# -- names are no markup ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["data[final]", "run[bold]x", "[link=file:x]a", "back\\slash[x]", "run[/x]"]
)
def test_brackets_in_names_are_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """``run[/x].npz``, which closes a tag, ended in a MarkupError after the file was written."""
    monkeypatch.chdir(folder)
    Path(f"{name}.npz").parent.mkdir(exist_ok=True)
    data = f"{name}.npz"
    model = f"{name}.hcal"
    os.link("task.npz", data)
    for command, wrote in (
        (("fit", data, "--method", "ts", "-o", model), model),
        (("apply", model, data, "-o", f"{name}.csv"), f"{name}.csv"),
        (("evaluate", data, "--model", model, "--metrics", "nll"), Path(data).name),
        (("report", data, "-o", f"{name}.html"), f"{name}.html"),
    ):
        assert wrote in run(*command).stdout


# -- a user's error is no bug -----------------------------------------------------------------------


def test_errors_of_the_world_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, message in (
        (zlib.error("Error -3 while decompressing data"), "error: Error -3"),
        (lzma.LZMAError("Corrupt input data"), "error: Corrupt input data"),
        (csv.Error("line contains NUL"), "error: line contains NUL"),
        (MemoryError(), "error: not enough memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "error: not enough memory: CUDA"),
        (OSError(errno.ENOSPC, "No space left on device"), "error: No space left on device"),
        (SafetensorError("Error while serializing: I/O error"), "error: Error while serializing"),
        (ValueError("many\nlines\n" + "x" * 10_000), "error: many lines xxx"),
    ):
        monkeypatch.setattr("hcal.io.read", Mock(side_effect=error))
        message_printed = run("evaluate", folder / "task.npz", code=1).stderr
        assert_one_line(message_printed, message)
        assert len(message_printed) < 700


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("fit", "task.npz", "-o", "/dev/null"), "/dev/null is not a regular file"),
        (("watch", "task.npz", "--state", "/dev/null"), "/dev/null is not a regular file"),
        (("watch", "task.npz", "--tolerance", "few"), "--tolerance is auto or a number, got 'few'"),
        (("watch", "task.npz", "--date", "2026-5-1"), "a day is written as 2026-05-01"),
        (("watch", "task.npz", "--since", "monday"), "a day is written as 2026-05-01"),
        (("decide", "two.npz", "--threshold", "nan"), "a threshold must lie between 0 and 1"),
        (("decide", "two.npz", "--threshold", "7"), "a threshold must lie between 0 and 1"),
        (("estimate", "two.npz", "--threshold", "nan"), "a threshold must lie between 0 and 1"),
        (("report", "two.npz", "--threshold", "nan", "-o", "r.html"), "a threshold must lie"),
        (("report", "two.npz", "--threshold", "7", "-o", "r.html"), "a threshold must lie"),
        (("evaluate", "two.npz", "--confidence", "nan"), "confidence must lie between 0 and 1"),
        (("evaluate", "two.npz", "--confidence", "0"), "confidence must lie between 0 and 1"),
    ],
)
def test_values_that_no_command_can_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    np.savez("two.npz", probs=np.full(200, 0.3), y=np.arange(200) % 10 < 3)
    with monkeypatch.context() as patch:
        # A wrong output is refused before anything is read or fitted.
        if command[-1] == "/dev/null":
            patch.setattr("hcal.io.read", Mock(side_effect=AssertionError))
        assert_one_line(run(*command, code=1).stderr, message)
