"""Faults: what fit, apply, report and bench do when the disk, the pipe, the memory or the user gives way.

The table in docs/reliability.md says the same in words. In every case: one line on standard error, the
documented exit code, the old output untouched, no temporary file left where the process lived to see it.
"""

from __future__ import annotations

import csv
import errno
import lzma
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from typer.testing import CliRunner, Result

import hcal
from hcal.bench.store import Cell, Key, Store
from hcal.cli.app import app
from helpers import synthetic

OUTPUTS = {"fit": "m.hcal", "apply": "p.npz", "report": "r.html"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "140", "NO_COLOR": "1"})


def start(folder: Path, *arguments: str, code: str = "", **options: object) -> subprocess.Popen[str]:
    """Start the command in a process of its own, after some Python that arranges the fault."""
    program = f"{code}\nfrom hcal.cli import main\nimport sys\nsys.argv[0] = 'hcal'\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},  # type: ignore[call-overload]
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared")
    (logits_cal, y_cal), (logits_test, y_test) = synthetic(seed=1), synthetic(600, seed=2)
    np.savez(path / "task.npz", logits_cal=logits_cal, y_cal=y_cal, logits_test=logits_test, y_test=y_test)
    np.save(path / "y.npy", y_test)
    (path / "names.txt").write_text("a\nb\nc\nd\n")
    assert run("fit", path / "task.npz", "-o", path / "model.hcal", "--method", "ts", "-q").exit_code == 0
    return path


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _command(name: str, output: str | None = None) -> tuple[str, ...]:
    output = output or OUTPUTS[name]
    return {
        "fit": ("fit", "task.npz", "--method", "ts", "-o", output),
        "apply": ("apply", "model.hcal", "task.npz", "-o", output),
        "report": ("report", "task.npz", "--model", "model.hcal", "-o", output),
    }[name]


def _one_line(text: str, message: str) -> None:
    assert message in text, text
    assert text.count("\n") == 1, text
    assert "bug in hcal" not in text


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
    _one_line(result.stderr, f"the output {Path(output)} is also an input")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_model_is_no_output_of_apply(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "model.hcal").rename("model.npz")
    result = run("apply", "model.npz", "task.npz", "-o", "model.npz")
    _one_line(result.stderr, "is also an input")


@pytest.mark.parametrize("command", ["table", "export"])
def test_bench_outputs_are_never_inputs(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(folder)
    _store(folder / "r.csv")
    before = (folder / "r.csv").read_bytes()
    result = run("bench", command, "r.csv", "-o", "./r.csv")
    assert result.exit_code == 1
    _one_line(result.stderr, "is also an input")
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
def test_errors_of_the_world_are_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("hcal.data.read_data", broken)
    result = run("evaluate", folder / "task.npz")
    assert result.exit_code == 1
    _one_line(result.stderr, message)
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
    _one_line(result.stderr, f"another benchmark run is writing {path}")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_results_that_are_none(folder: Path, suffix: str) -> None:
    path = folder / f"r{suffix}"
    path.write_bytes(b"PAR1 something else\nentirely")
    result = run("bench", "table", path)
    assert result.exit_code == 1
    _one_line(result.stderr, f"r{suffix} is not a results file")


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
    _one_line(result.stderr, "error: No space left on device")
    assert (folder / "t.md").read_text() == "old"


# -- kill, full disk, read-only folder, closed pipe, Ctrl-C, low memory -------------------------------

#: The renaming that ends every output waits, so that a signal can come in the middle.
_SLOW_WRITE = """
import os, time
real = os.replace
def slow(*arguments, **options):
    print("writing", flush=True); time.sleep(60); return real(*arguments, **options)
os.replace = os.rename = slow
import pathlib
pathlib.Path.replace = slow
"""


@pytest.mark.parametrize("command", ["fit", "apply", "report"])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_signal_while_writing_leaves_the_old_output(
    folder: Path, command: str, sent: signal.Signals, code: int
) -> None:
    output = folder / OUTPUTS[command]
    output.write_text("old")
    process = start(folder, *_command(command), "-q", code=_SLOW_WRITE)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert output.read_text() == "old"
    if sent == signal.SIGINT:
        _one_line(err, "stopped: ")
        assert not [p.name for p in folder.iterdir() if p.name.startswith(f".{output.name}")]


@pytest.mark.parametrize(
    "output", ["m.hcal", "p.npz", "p.npy", "p.csv", "p.parquet", "p.safetensors", "r.html"]
)
def test_a_full_disk_is_one_line_and_leaves_the_old_output(folder: Path, output: str) -> None:
    """No file may grow beyond 256 bytes: what a full disk is, without one."""
    command = {"m.hcal": "fit", "r.html": "report"}.get(output, "apply")
    (folder / output).write_text("old")
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))"
    process = start(
        folder, *_command(command, output), "-q", code=code, env={**os.environ, "NUMBA_CACHE_DIR": ""}
    )
    _, err = process.communicate()
    assert process.returncode == 1
    assert "bug in hcal" not in err
    assert "Traceback" not in err
    assert err.count("\n") == 1, err
    assert err.startswith("error: ")
    assert (folder / output).read_text() == "old"
    assert not [p.name for p in folder.iterdir() if p.name.startswith(f".{output}")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_full_disk_behind_standard_output(folder: Path, options: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        process = start(folder, "evaluate", "task.npz", "--metrics", "nll", *options, stdout=full)
        _, err = process.communicate()
    assert process.returncode == 1
    _one_line(err, "error: No space left on device")


#: Everything that the commands load, loaded before the fault is arranged.
_LOADED = """
import encodings.cp437, os, resource, tempfile
import hcal, hcal.cli.app, hcal.cli.report, hcal.cli.evaluate, hcal.data, hcal.reporting, scipy.optimize
cal = hcal.make_calibrator("ts").fit([[0.0, 1.0]] * 4, [1, 1, 0, 1])
hcal.reporting.build_report([[2.0, 0.0], [0.0, 1.0]], [0, 1], cal)
with tempfile.TemporaryDirectory() as folder:
    hcal.save(cal, folder + "/m.hcal")
hcal.data.read_data("task.npz")
"""
# Root may write anywhere: where the tests are root's, the command goes on as nobody.
_NOBODY = _LOADED + "if os.geteuid() == 0: os.setegid(65534); os.seteuid(65534)"


@pytest.mark.parametrize("command", ["fit", "apply", "report"])
def test_a_read_only_folder_is_one_line(folder: Path, command: str) -> None:
    folder.chmod(0o555)
    try:
        process = start(folder, *_command(command), "-q", code=_NOBODY)
        _, err = process.communicate()
    finally:
        folder.chmod(0o755)
    assert process.returncode == 1
    _one_line(err, "error: Permission denied")
    assert not (folder / OUTPUTS[command]).exists()


@pytest.mark.parametrize(
    ("command", "options"), [("fit", ()), ("fit", ("--json",)), ("apply", ()), ("report", ("--json",))]
)
def test_a_closed_pipe_keeps_the_output(folder: Path, command: str, options: tuple[str, ...]) -> None:
    """As in ``hcal fit … | true``: the file is whole, and nobody complains."""
    read, write = os.pipe()
    os.close(read)
    try:
        process = start(folder, *_command(command), *options, stdout=write)
    finally:
        os.close(write)
    _, err = process.communicate()
    assert (process.returncode, err) == (1, "")
    assert (folder / OUTPUTS[command]).stat().st_size > 100


def test_json_without_standard_output(folder: Path) -> None:
    process = start(
        folder, "evaluate", "task.npz", "--metrics", "nll", "--json", code="import sys; sys.stdout = None"
    )
    _, err = process.communicate()
    assert process.returncode == 1
    _one_line(err, "error: standard output is closed")


@pytest.mark.parametrize("command", ["fit", "apply", "report"])
def test_too_little_memory_is_one_line(folder: Path, command: str) -> None:
    """The process may take what it has once the libraries are loaded and 64 MB more; the data need more."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(150_000, 40)).astype(np.float32)
    y = z.argmax(axis=1)
    np.savez(folder / "task.npz", logits_cal=z, y_cal=y, logits_test=z, y_test=y)
    model = hcal.make_calibrator("ts").fit(*synthetic(200, 40))
    hcal.save(model, folder / "model.hcal")
    code = (
        _LOADED + "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + 2**26\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size, size))"
    )
    env = {**os.environ, "HCAL_MAX_BYTES": str(2**40)}
    process = start(folder, *_command(command), "-q", code=code, env=env)
    _, err = process.communicate()
    assert process.returncode == 1, err
    assert "memory" in err
    assert "bug in hcal" not in err
    assert "Traceback" not in err
    assert not (folder / OUTPUTS[command]).exists()


def test_ctrl_c_during_a_fit_is_130(folder: Path) -> None:
    code = (
        "import time\nfrom hcal.calibrators.ts import TemperatureScaling as T\n"
        "T.fit = lambda *a, **k: (print('fitting', flush=True), time.sleep(60))"
    )
    process = start(folder, *_command("fit"), "-q", code=code)
    assert process.stdout is not None
    assert process.stdout.readline() == "fitting\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    _one_line(err, "stopped: ")
    assert not (folder / "m.hcal").exists()


def test_no_limit_of_this_process_was_touched() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
