"""Progress and notes: bars after two seconds on a terminal alone, messages of the logger ``hcal``."""

from __future__ import annotations

import logging
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal import progress as module
from hcal.progress import progress, silent


def test_the_logger_is_silent_and_hears_what_runs(caplog: pytest.LogCaptureFixture) -> None:
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("hcal").handlers)
    with caplog.at_level("DEBUG", "hcal"), progress("counting", 3) as advance:
        advance(3)
    assert [record.message.split(":")[0] for record in caplog.records] == ["counting"] * 2
    assert "3 steps" in caplog.text


def test_rows_that_were_left_out_are_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.csv").write_text("probs,y\n0.5,1\n0.25,\n0.75,0\n", encoding="utf-8")
    with caplog.at_level("INFO", "hcal"):
        hcal.io.read(
            tmp_path / "t.csv", hcal.io.Request(unlabelled="drop", scores="probs", input="probs")
        )
    assert "1 row without a label was dropped" in caplog.text


def test_nothing_is_shown_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("waiting", 2) as advance:
        advance(1)
    assert capfd.readouterr().err == ""


def in_terminal(code: str, *, stop_after: float | None = None) -> tuple[str, int]:
    """Run Python on a pseudo-terminal; return what it shows, and its exit code."""
    main, side = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment)
    os.close(side)
    output = b""
    sent = False
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
        if stop_after is not None and not sent and b"slow work" in output:
            time.sleep(stop_after)
            process.send_signal(signal.SIGINT)
            sent = True
    os.close(main)
    return output.decode(errors="replace"), process.wait(timeout=60)


STEPS = """
import time
from hcal import progress
progress.PATIENCE
token = progress._patience.set(0.2)
with progress.progress("slow work", 40) as advance:
    with progress.progress("inner part") as _:
        for _ in range(40):
            time.sleep(0.02)
            advance(1)
print("done")
"""


def test_a_bar_says_what_runs_and_what_runs_inside() -> None:
    output, code = in_terminal(STEPS)
    assert code == 0
    assert "slow work" in output
    assert "inner part" in output
    assert "left:" in output


def test_short_work_and_silent_work_show_no_bar() -> None:
    short, _ = in_terminal(STEPS.replace("0.2)", "60.0)"))
    assert "slow work" not in short
    quiet, _ = in_terminal(
        STEPS.replace(
            'with progress.progress("slow', 'with progress.silent(), progress.progress("slow'
        )
    )
    assert "slow work" not in quiet


def test_ctrl_c_takes_the_bar_away() -> None:
    output, code = in_terminal(STEPS.replace("0.02", "0.5"), stop_after=0.1)
    assert "KeyboardInterrupt" in output
    assert code != 0
    assert output.rstrip().endswith("KeyboardInterrupt")
    assert "\x1b[?25h" in output  # the cursor is shown again


def test_bars_of_other_threads_do_not_interfere() -> None:
    with silent(), progress("quiet", 1) as advance:
        advance(1)
    assert module._bars.get() is None
    assert np.isfinite(module.PATIENCE)
