"""Faults of the machine: what fit, apply and report do when disk, pipe or memory give way, or are stopped.

The table in docs/reliability.md says the same in words. In every case: one line on standard error, the
documented exit code, the old output untouched, no temporary file left where the process lived to see it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import OUTPUTS, assert_one_line, command_of, folder, prepared_folder, start
from helpers import synthetic

__all__ = ["folder", "prepared_folder"]

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("command", OUTPUTS)
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_while_writing_leaves_the_old_output(
    folder: Path, command: str, sent: signal.Signals, code: int
) -> None:
    output = folder / OUTPUTS[command]
    output.write_text("old")
    process = start(folder, *command_of(command), "-q", code=_SLOW_WRITE)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert output.read_text() == "old"
    if sent != signal.SIGKILL:
        assert_one_line(err, "stopped: ")
        assert not list(folder.glob(".*"))


@pytest.mark.parametrize("output", ["m.hcal", "p.csv", "p.npz", "p.npy", "p.parquet", "r.html"])
def test_a_full_disk_is_one_line_and_leaves_the_old_output(folder: Path, output: str) -> None:
    """No file may grow beyond 256 bytes: what a full disk is, without one."""
    command = {"m.hcal": "fit", "r.html": "report"}.get(output, "apply")
    (folder / output).write_text("old")
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))"
    words = command_of(command, output)
    process = start(folder, *words, "-q", code=code, env={**os.environ, "NUMBA_CACHE_DIR": ""})
    _, err = process.communicate()
    assert process.returncode == 1
    assert_one_line(err, "error: ")
    assert (folder / output).read_text() == "old"
    assert not list(folder.glob(".*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_full_disk_behind_standard_output(folder: Path, options: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        process = start(folder, "evaluate", "task.npz", "--metrics", "nll", *options, stdout=full)
        _, err = process.communicate()
    assert process.returncode == 1
    assert_one_line(err, "error: No space left on device")


#: Everything that the commands load, loaded before the fault is arranged.
_LOADED = """
import encodings.ascii, encodings.cp437, mmap, os, resource, tempfile
import hcal, hcal.cli.app, hcal.cli.models, hcal.cli.measure, hcal.io, hcal.reporting
import scipy.optimize
cal = hcal.make_calibrator("ts").fit([[0.0, 1.0]] * 4, [1, 1, 0, 1])
hcal.reporting.build_report([[2.0, 0.0], [0.0, 1.0]], [0, 1], cal)
with tempfile.TemporaryDirectory() as folder:
    hcal.save(cal, folder + "/m.hcal")
from typer.testing import CliRunner
CliRunner().invoke(hcal.cli.app.app, ["info", "model.hcal"])
hcal.io.read("task.npz")
"""
# Root may write anywhere: where the tests are root's, the command goes on as nobody.
_NOBODY = _LOADED + "if os.geteuid() == 0: os.setegid(65534); os.seteuid(65534)"


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_read_only_folder_is_one_line(folder: Path, command: str) -> None:
    folder.chmod(0o555)
    try:
        process = start(folder, *command_of(command), "-q", code=_NOBODY)
        _, err = process.communicate()
    finally:
        folder.chmod(0o755)
    assert process.returncode == 1
    assert_one_line(err, "error: Permission denied")
    assert not (folder / OUTPUTS[command]).exists()


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("fit", ("--json",)),
        ("fit", ()),
        ("apply", ()),
        ("report", ("--json",)),
        ("evaluate", ()),
        ("evaluate", ("--json",)),
    ],
)
def test_a_closed_pipe_keeps_the_output(
    folder: Path, command: str, options: tuple[str, ...]
) -> None:
    """As in ``hcal fit … | true``: the file is whole, and nobody complains."""
    read, write = os.pipe()
    os.close(read)
    try:
        process = start(folder, *command_of(command), *options, stdout=write)
    finally:
        os.close(write)
    _, err = process.communicate()
    assert process.returncode == 1
    assert err == ""
    assert command == "evaluate" or (folder / OUTPUTS[command]).stat().st_size > 100


def test_json_without_standard_output(folder: Path) -> None:
    process = start(
        folder,
        "evaluate",
        "task.npz",
        "--metrics",
        "nll",
        "--json",
        code="import sys; sys.stdout = None",
    )
    _, err = process.communicate()
    assert process.returncode == 1
    assert_one_line(err, "error: standard output is closed")


@pytest.mark.parametrize("command", OUTPUTS)
def test_too_little_memory_is_one_line(folder: Path, command: str) -> None:
    """The process may take what it has once the libraries are loaded and 16 MB more; the data need more."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(150_000, 40)).astype(np.float32)
    y = z.argmax(axis=1)
    np.savez(folder / "task.npz", logits_cal=z, y_cal=y, logits_test=z, y_test=y)
    model = hcal.make_calibrator("ts").fit(*synthetic(200, 40))
    hcal.save(model, folder / "model.hcal")
    code = (
        _LOADED + "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "size = pages * resource.getpagesize() + 2**24\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size, size))"
    )
    process = start(folder, *command_of(command), "-q", code=code)
    _, err = process.communicate()
    assert process.returncode == 1, err
    assert "memory" in err
    assert "bug in hcal" not in err
    assert "Traceback" not in err
    assert not (folder / OUTPUTS[command]).exists()


def test_ctrl_c_during_a_fit_is_130(folder: Path) -> None:
    code = (
        "import time\nfrom hcal.methods.ts import TemperatureScaling as T\n"
        "T.fit = lambda *a, **k: (print('fitting', flush=True), time.sleep(60))"
    )
    process = start(folder, *command_of("fit"), "-q", code=code)
    assert process.stdout is not None
    assert process.stdout.readline() == "fitting\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert_one_line(err, "stopped: ")
    assert not (folder / "m.hcal").exists()


def test_ctrl_c_between_the_files_of_a_folder_leaves_whole_files(folder: Path) -> None:
    (folder / "days").mkdir()
    for name in ("1-mon", "2-tue", "3-wed"):
        (folder / "days" / f"{name}.npz").write_bytes((folder / "task.npz").read_bytes())
    code = (
        "import time, hcal.operation.applying as module\nreal = module._Job._write\ndef slow(self, "
        "write, data, *rest):\n    if '2-tue' in str(data.path): print('writing', flush=True); "
        "time.sleep(60)\n    return real(self, write, data, *rest)\nmodule._Job._write = slow"
    )
    process = start(folder, "apply", "model.hcal", "days", "-o", "out", "-q", code=code)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert_one_line(err, "stopped: ")
    assert [path.name for path in (folder / "out").rglob("*")] == ["1-mon.npz"]
    again = start(folder, "apply", "model.hcal", "days", "-o", "out", "--resume")
    out, _ = again.communicate(timeout=60)
    assert "1 file was complete already" in out
    assert len(list((folder / "out").iterdir())) == 3


def test_ctrl_c_in_a_comparison_keeps_the_finished_results(folder: Path) -> None:
    code = (
        "import time\nfrom hcal.methods.iso import IsotonicRegression as Iso\n"
        "Iso._fit = lambda *a: (print('fitting', flush=True), time.sleep(60))"
    )
    command = ("compare", "task.npz", "--methods", "ts,iso", "--metrics", "nll", "--jobs", "1")
    process = start(folder, *command, "--out", "cells.jsonl", "-q", code=code)
    assert process.stdout is not None
    assert process.stdout.readline() == "fitting\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert_one_line(err, "stopped: ")
    finished = (folder / "cells.jsonl").read_text().splitlines()
    # The uncalibrated scores are always a row of the table.
    assert [json.loads(line)["cell"]["name"] for line in finished] == ["uncal", "ts"]
    again = start(folder, *command, "--out", "cells.jsonl", "--json")
    out, _ = again.communicate(timeout=60)
    assert set(json.loads(out)["methods"]) == {"uncal", "ts", "iso"}
    assert (folder / "cells.jsonl").read_text().splitlines()[:2] == finished
