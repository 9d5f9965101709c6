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

import pytest
from safetensors import SafetensorError

from command_line import assert_one_line, folder, prepared_folder, run, start
from hcal.bench.store import Cell, Key, Store

__all__ = ["folder", "prepared_folder"]


# -- the output is never an input -------------------------------------------------------------------


@pytest.mark.parametrize("way", ["same", "dotted", "symlink", "hardlink"])
@pytest.mark.parametrize(
    ("read", "command"),
    [
        ("task.npz", ("fit", "task.npz", "--method", "ts")),
        ("y.npy", ("fit", "task.npz", "--labels", "y.npy")),
        ("task.npz", ("apply", "model.hcal", "task.npz")),
        ("task.npz", ("report", "task.npz")),
        ("model.hcal", ("report", "task.npz", "--model", "model.hcal")),
        ("names.txt", ("report", "task.npz", "--names", "names.txt")),
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
    result = run(*command, "-o", output)
    assert result.exit_code == 1
    assert_one_line(result.stderr, f"the output {Path(output)} is also an input")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_model_is_no_output_of_apply(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "model.hcal").rename("model.npz")
    result = run("apply", "model.npz", "task.npz", "-o", "model.npz")
    assert_one_line(result.stderr, "is also an input")


@pytest.mark.parametrize("command", ["table", "export"])
def test_bench_outputs_are_never_inputs(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(folder)
    _store(folder / "r.csv")
    before = (folder / "r.csv").read_bytes()
    result = run("bench", command, "r.csv", "-o", "./r.csv")
    assert result.exit_code == 1
    assert_one_line(result.stderr, "is also an input")
    assert (folder / "r.csv").read_bytes() == before


# -- names are no markup ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data[final]", "run[bold]x[/]", "[link=file:x]a", "back\\slash[x]"])
def test_brackets_in_names_are_printed(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(folder)
    name = name.replace("/", "")  # no folder of that name
    data, model = f"{name}.npz", f"{name}.hcal"
    os.link("task.npz", data)
    for command, wrote in (
        (("fit", data, "--method", "ts", "-o", model), model),
        (("apply", model, data, "-o", f"{name}.csv"), f"{name}.csv"),
        (("evaluate", data, "--model", model, "--metrics", "nll"), data),
        (("report", data, "-o", f"{name}.html"), f"{name}.html"),
    ):
        result = run(*command)
        assert result.exit_code == 0, result.output
        assert wrote in result.stdout


def test_a_name_that_closes_a_tag(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``run[/x].npz`` ended in a MarkupError after the file was written."""
    monkeypatch.chdir(folder)
    (folder / "run[").mkdir()
    os.link("task.npz", "run[/x].npz")
    result = run("fit", "run[/x].npz", "--method", "ts", "-o", "run[/m].hcal")
    assert result.exit_code == 0, result.output
    assert "wrote run[/m].hcal" in result.stdout


# -- a user's error is no bug -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (zlib.error("Error -3 while decompressing data"), "error: Error -3"),
        (lzma.LZMAError("Corrupt input data"), "error: Corrupt input data"),
        (csv.Error("line contains NUL"), "error: line contains NUL"),
        (MemoryError(), "error: not enough memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "error: not enough memory: CUDA"),
        (OSError(errno.ENOSPC, "No space left on device"), "error: No space left on device"),
        (SafetensorError("Error while serializing: I/O error"), "error: Error while serializing"),
        (ValueError("many\nlines\n" + "x" * 10_000), "error: many lines xxx"),
    ],
)
def test_errors_of_the_world_areassert_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("hcal.io.read", broken)
    result = run("evaluate", folder / "task.npz")
    assert result.exit_code == 1
    assert_one_line(result.stderr, message)
    assert len(result.stderr) < 700


def _store(path: Path) -> None:
    with Store(path) as store:
        for method in ("uncal", "a[b]|c_{d}$\\<i>"):
            store.append(
                Cell(
                    Key("task [x]|{y}$\\<b>", method, 0),
                    {"nll": 1.0},
                    {"nll": 0.5},
                    {"status": {"status": "ok"}},
                )
            )


def test_a_second_writer_is_told_so(folder: Path) -> None:
    path = folder / "r.csv"
    with Store(path):
        result = run("bench", "run", "--tasks", folder / "task.npz", "--methods", "uncal", "--out", path)
    assert result.exit_code == 1
    assert_one_line(result.stderr, f"another benchmark run is writing {path}")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_results_that_are_none(folder: Path, suffix: str) -> None:
    path = folder / f"r{suffix}"
    path.write_bytes(b"PAR1 something else\nentirely")
    result = run("bench", "table", path)
    assert result.exit_code == 1
    assert_one_line(result.stderr, f"r{suffix} is not a results file")


# -- bench table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "task", "method"),
    [
        ("markdown", r"task \[x]\|{y}$\\&lt;b>", r"a\[b]\|c_{d}$\\&lt;i>"),
        (
            "latex",
            r"task [x]|\{y\}\$\textbackslash{}\textless{}b\textgreater{}",
            r"a[b]|c\_\{d\}\$\textbackslash{}",
        ),
        ("html", "task [x]|{y}$\\&lt;b&gt;", "a[b]|c_{d}$\\&lt;i&gt;"),
        ("terminal", "task [x]|{y}$\\<b>", "a[b]|c_{d}$\\<i>"),
    ],
)
def test_tables_escape_what_they_are_given(folder: Path, format: str, task: str, method: str) -> None:
    _store(folder / "r.csv")
    result = run("bench", "table", folder / "r.csv", "--metric", "nll", "--format", format)
    assert result.exit_code == 0, result.output
    assert task in result.stdout
    assert method in result.stdout


def test_a_table_is_written_whole_in_utf8_in_any_locale(folder: Path) -> None:
    _store(folder / "r.csv")
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for arguments in (
        ("bench", "table", "r.csv", "-o", "t.md"),
        ("evaluate", "task.npz", "--metrics", "nll"),
    ):
        process = start(folder, *arguments, env=env)
        _, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    assert "¹" in (folder / "t.md").read_text(encoding="utf-8")
    process = start(folder, "evaluate", "task.npz", "--metrics", "nll", "--json", env=env)
    assert '"nll"' in process.communicate()[0]


def test_a_table_that_fails_leaves_the_old_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _store(folder / "r.csv")
    (folder / "t.md").write_text("old")
    real = Path.write_text

    def full(self: Path, text: str, **options: object) -> int:
        real(self, text[:10], **options)  # type: ignore[arg-type]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = run("bench", "table", folder / "r.csv", "-o", folder / "t.md")
    assert result.exit_code == 1
    assert_one_line(result.stderr, "error: No space left on device")
    assert (folder / "t.md").read_text() == "old"
