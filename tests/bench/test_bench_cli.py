"""``hcal bench``: from a folder of tasks to tables and figures, by commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hcal.bench.store import read_results
from hcal.bench.synthetic import make_synthetic
from hcal.cli.app import app

RUN = CliRunner()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a small run that the command wrote."""
    folder = tmp_path_factory.mktemp("tasks")
    for i, kind in enumerate(("temperature", "class_bias")):
        t = make_synthetic(kind, n_classes=3, n_cal=300, n_test=300, random_state=i)  # type: ignore[arg-type]
        np.savez(
            folder / f"{kind}.npz",
            logits_cal=t.logits_cal,
            y_cal=t.y_cal,
            logits_test=t.logits_test,
            y_test=t.y_test,
        )
    np.savez(folder / "top1.npz", conf_test=np.ones(3), y_test=np.ones(3))
    out = folder / "results" / "run.csv"
    done = RUN.invoke(
        app, ["bench", "run", "--tasks", str(folder), "--methods", "ts,vs", "--out", str(out), "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "top-1 only" in done.output
    assert "6 cells" in done.output
    assert "6/6 " in done.output  # no terminal: one line a cell, with the time left
    assert "left" in done.output
    return out


def test_all_metrics_are_there(stored: Path) -> None:
    results = read_results(stored)
    assert results.methods == ["uncal", "ts", "vs"]
    assert len(results.metrics) >= 20
    assert np.isfinite(results.table("skce")).all()
    assert (results.table("nll", relative=True)[:, 1:] <= 1.001).all()


@pytest.mark.parametrize("format", ["terminal", "markdown", "latex", "html"])
def test_table(stored: Path, tmp_path: Path, format: str) -> None:
    shown = RUN.invoke(app, ["bench", "table", str(stored), "--format", format, "--metric", "ece_ew,tcwece"])
    assert shown.exit_code == 0, shown.output
    assert "tCWECE" in shown.output
    written = RUN.invoke(app, ["bench", "table", str(stored), "--format", format, "-o", str(tmp_path / "t")])
    assert written.exit_code == 0
    assert "Mean rank" in (tmp_path / "t").read_text()


def test_figures_and_export(stored: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = RUN.invoke(app, ["bench", "figures", str(stored), "-o", str(tmp_path), "--task", "class_bias"])
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "reliability.png").exists()
    kept = tmp_path / "kept.parquet"
    assert RUN.invoke(app, ["bench", "export", str(stored), "-o", str(kept)]).exit_code == 0
    assert read_results(kept).cells == read_results(stored).cells
    assert RUN.invoke(app, ["bench", "page", str(stored)]).exit_code == 2  # a study, not in the wheel


def test_mistakes_are_one_sentence(stored: Path, tmp_path: Path) -> None:
    for arguments, word in (
        (["run", "--tasks", "nowhere", "--out", str(tmp_path / "r.csv")], "names of the paper's tasks"),
        (
            ["run", "--tasks", "synthetic:all", "--methods", "zzz", "--out", str(tmp_path / "r.csv")],
            "unknown method",
        ),
        (["table", str(tmp_path / "none.csv")], "no such file"),
        (["table", str(stored), "--metric", "zzz"], "not in these results"),
        (["table", str(stored), "--format", "word"], "format must be one of"),
        (["figures", str(stored), "--format", "bmp"], "png, pdf or svg"),
    ):
        failed = RUN.invoke(app, ["bench", *arguments])
        assert failed.exit_code == 1, arguments
        assert word in " ".join(failed.output.split())
        assert "Traceback" not in failed.output


def test_the_command_line_stays_light() -> None:
    code = (
        "import sys, hcal.cli.app; print([m for m in ('torch', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    names = ",".join(f"synthetic:temperature-k3-n300-s{i}" for i in range(30))
    command = [sys.executable, "-m", "hcal", "bench", "run", "--tasks", names, "--methods", "ts"]
    command += ["--out", str(out), "--jobs", "1"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 300  # a loaded machine takes its time to start a process
    while time.monotonic() < deadline and (not out.exists() or not read_results(out).cells):
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 130
    assert "the same command continues" in said
    # A cell that was just being started may complain from inside multiprocessing; nothing of ours may.
    assert "KeyboardInterrupt" not in said
    assert 'hcal/cli/bench.py"' not in said
    assert 0 < len(read_results(out).cells) < 60
