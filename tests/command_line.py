"""Commands in a folder where a task and a model are ready, for the tests of commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from hcal.cli.app import app
from helpers import synthetic

OUTPUTS = {"fit": "m.hcal", "apply": "p.npz", "report": "r.html"}


def run(*arguments: object, code: int = 0) -> Result:
    """Run a command in this process, which ends with that code."""
    terminal = {"COLUMNS": "140", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [str(a) for a in arguments], env=terminal)
    assert result.exit_code == code, result.output
    return result


def start(
    folder: Path, *arguments: str, code: str = "", **options: object
) -> subprocess.Popen[str]:
    """Start the command in a process of its own, after some Python that arranges the fault."""
    program = f"{code}\nfrom hcal.cli import main\nimport sys\nsys.argv[0] = 'hcal'\nmain()"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", program, *arguments]
    settings: Any = pipes | options
    return subprocess.Popen(command, cwd=folder, text=True, **settings)


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared")
    logits_cal, y_cal = synthetic(seed=1)
    logits_test, y_test = synthetic(600, seed=2)
    np.savez(
        path / "task.npz",
        logits_cal=logits_cal,
        y_cal=y_cal,
        logits_test=logits_test,
        y_test=y_test,
    )
    np.save(path / "y.npy", y_test)
    run("fit", path / "task.npz", "-o", path / "model.hcal", "--method", "ts", "-q")
    return path


@pytest.fixture
def folder(prepared_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path


def command_of(name: str, output: str | None = None) -> tuple[str, ...]:
    output = output or OUTPUTS.get(name, "")
    return {
        "fit": ("fit", "task.npz", "--method", "ts", "-o", output),
        "apply": ("apply", "model.hcal", "task.npz", "-o", output),
        "report": ("report", "task.npz", "--model", "model.hcal", "-o", output),
        "evaluate": ("evaluate", "task.npz", "--metrics", "nll"),
    }[name]


def assert_one_line(text: str, message: str) -> None:
    assert message in text, text
    assert text.count("\n") == 1, text
    assert "bug in hcal" not in text
