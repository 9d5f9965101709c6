"""``-`` is standard input and output, for files that have to be files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import hcal
from command_line import folder, prepared_folder, run
from hcal.cli.app import app

__all__ = ["folder", "prepared_folder"]


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run("apply", "model.hcal", "task.npz", "-o", "probs.csv", "-q")


def pipe(content: bytes, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments, input=content, env={"NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result


def test_standard_input_is_read_as_a_file() -> None:
    content = Path("probs.csv").read_bytes()
    options = ("--metrics", "nll,brier", "--json")
    piped = json.loads(pipe(content, "evaluate", "-", "--format", "csv", *options).stdout)
    direct = json.loads(run("evaluate", "probs.csv", *options).stdout)
    assert piped.pop("file") == "-"
    assert direct.pop("file") == "probs.csv"
    assert piped == direct


def test_a_fit_and_an_apply_in_a_pipe() -> None:
    task = Path("task.npz").read_bytes()
    fitted = pipe(task, "fit", "-", "--format", "npz", "--method", "ts", "-o", "-")
    Path("piped.hcal").write_bytes(fitted.stdout_bytes)
    assert hcal.load("piped.hcal").name == "ts"
    assert "wrote -" in fitted.stderr

    applied = pipe(fitted.stdout_bytes, "apply", "-", "task.npz", "-o", "-", "--format", "csv")
    assert applied.stdout_bytes == Path("probs.csv").read_bytes()


def test_the_page_and_the_rule_go_to_standard_output() -> None:
    page = pipe(b"", "report", "task.npz", "--model", "model.hcal", "-o", "-")
    assert page.stdout.startswith("<!doctype html>") or page.stdout.startswith("<!DOCTYPE html>")
    assert "hcal-stream" not in page.output
    gated = ("report", "task.npz", "-o", "-", "--require", "grade>=good")
    failed = pipe(b"", *gated, code=3)
    assert failed.stdout.rstrip().endswith("</html>")
    assert "failed: required grade>=good" in failed.stderr
    rows = np.random.default_rng(0).uniform(size=200)
    np.savez("two.npz", probs=rows, y=(rows > 0.5).astype(int))
    rule = pipe(b"", "decide", "two.npz", "--cost", "fn=2,fp=1", "--save", "-")
    assert json.loads(rule.stdout)["schema"] == "hcal/thresholds/1"
    decided = pipe(rule.stdout_bytes, "decide", "two.npz", "--rule", "-", "--json")
    assert sum(json.loads(decided.stdout)["decided"].values()) == 200


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("watch", "two.npz", "--state", "-"), 1, "--state needs a file"),
        (("evaluate", "-"), 1, "add --format csv, jsonl, parquet or npz"),
        (("evaluate", "-", "--format", "docx"), 2, "docx"),
        (("apply", "-", "-", "-o", "p.csv", "--format", "csv"), 1, "- stands for one file"),
        (("fit", "-", "-o", "-", "--format", "csv", "--json"), 1, "both write to standard output"),
        (("fit", "-", "-o", "m.hcal", "--format", "npz"), 1, "stdin.npz"),
    ],
)
def test_what_cannot_be_piped_is_a_sentence(
    arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = pipe(b"no data", *arguments, code=code)
    assert message in result.stderr
    assert result.stdout == ""
    assert not Path("m.hcal").exists()


def test_a_command_that_fails_writes_nothing_to_standard_output() -> None:
    result = pipe(b"", "apply", "model.hcal", "none.csv", "-o", "-", "--format", "csv", code=1)
    assert result.stdout == ""
    assert "no such file" in result.stderr
