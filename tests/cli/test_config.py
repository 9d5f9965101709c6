"""``--config``: options of commands in a TOML file, and a report that can be repeated from what it says of its run."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

import hcal
from command_line import folder, prepared_folder, run
from hcal.cli.app import app
from hcal.cli.config import options_of

__all__ = ["folder", "prepared_folder"]

CONFIG = """
input = "logits"
quiet = true

[fit]
file = "task.npz"
output = "from-config.hcal"
method = "ts"

[evaluate]
file = ["task.npz"]
metrics = ["nll", "brier"]
require = ["nll<9", "brier<9"]
diagram = false
confidence = 0.9
"""


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "hcal.toml").write_text(CONFIG, encoding="utf-8")


def test_a_file_holds_all_options_of_a_command() -> None:
    assert run("fit", "--config", "hcal.toml").output == ""
    assert hcal.load("from-config.hcal").name == "ts"
    evaluation = json.loads(run("evaluate", "--config", "hcal.toml", "--json").stdout)
    assert list(evaluation["metrics"]) == ["nll", "brier"]
    assert evaluation["confidence"] == 0.9
    assert len(evaluation["requirements"]) == 2


def test_the_command_line_wins() -> None:
    run("fit", "--config", "hcal.toml", "--method", "platt", "-o", "other.hcal")
    assert hcal.load("other.hcal").name == "platt"
    assert not Path("from-config.hcal").exists()
    options = ("--metrics", "accuracy", "--require", "accuracy>=0", "--json")
    evaluation = json.loads(run("evaluate", "--config", "hcal.toml", *options).stdout)
    assert list(evaluation["metrics"]) == ["accuracy"]
    assert [check["name"] for check in evaluation["requirements"]] == ["accuracy"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fit]\nmetod = 'ts'", "'metod' is no option of hcal fit; did you mean 'method'?"),
        ("[fit]\nhalf-live = '9d'", "did you mean 'half-life'?"),
        ("quite = true", "'quite' is no option; did you mean 'quiet'?"),
        ("[fti]\nmethod = 'ts'", "'fti' is no command; did you mean 'fit'?"),
        ("[evaluate]\nhalf-life = '9d'", "is no option of hcal evaluate"),
        ("[fit]\nquiet = 'yes'", "quiet must be true or false, got 'yes'"),
        ("[fit]\nmethod = true", "method must be text or a number, got True"),
        ("[fit.method]\nname = 'ts'", "method must be text, a number or a list of them"),
        ("[fit]\nmethod = ts", "it is no TOML"),
        ("a." * 20_000 + "b = 1", "a key has several dots"),
        ("a = " + "[" * 30_000, "it is no TOML"),
        ("[fit]\nconfig = 'other.toml'", "'config' is no option of hcal fit"),
    ],
)
def test_a_mistake_in_the_file_is_a_wrong_command(text: str, message: str) -> None:
    Path("bad.toml").write_text(text, encoding="utf-8")
    result = run("fit", "task.npz", "-o", "m.hcal", "--config", "bad.toml", code=2)
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())
    assert message in words
    assert not Path("m.hcal").exists()


def test_a_config_that_is_no_small_file_is_refused() -> None:
    Path("large.toml").write_text("#" * (2**16 + 1), encoding="utf-8")
    for path, message in (("large.toml", "more than"), ("/dev/null", "null"), ("no.toml", "no")):
        result = run("fit", "task.npz", "-o", "m.hcal", "--config", path, code=2)
        assert message in result.stderr


def test_every_option_of_every_command_can_be_in_a_file() -> None:
    for info in app.registered_commands:
        names = options_of(info.callback)
        assert {"quiet", "json", "log_level", "format"} <= set(names), info.name
        assert "config" not in names
        assert all(name.isidentifier() for name in names)


def test_a_report_can_be_repeated_from_what_it_says_of_its_run() -> None:
    options = ("--threshold", 0.3, "--threshold", 0.6, "--require", "grade>=bad")
    command = ("report", "task.npz", "--model", "model.hcal", "-o", "r.html", *options)
    first = json.loads(run(*command, "--config", "hcal.toml", "--json").stdout)
    page = Path("r.html").read_text(encoding="utf-8")
    written = json.loads(html.unescape(re.search(r'<code id="run">(.*?)</code>', page)[1]))
    assert written == first["run"]
    assert written["sha256"]["task.npz"] == hcal.io.checksum("task.npz")
    assert written["sha256"]["model.hcal"] == hcal.io.checksum("model.hcal")
    assert written["versions"]["hcal"] == hcal.__version__

    Path("hcal.toml").unlink()
    Path("r.html").unlink()
    program, *words = written["command"]
    assert program == "hcal"
    again = json.loads(run(*words).stdout)
    assert again == first
    when = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
    assert when.sub("", Path("r.html").read_text(encoding="utf-8")) == when.sub("", page)
