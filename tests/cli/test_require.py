"""``--require`` in commands: exit code 3 and a line for each requirement that is not met."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import folder, prepared_folder, run
from hcal.operation.gates import GRADES

__all__ = ["folder", "prepared_folder"]

MODEL = ("--model", "model.hcal")


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_requirements_that_are_met_change_nothing() -> None:
    requirements = ("--require", "ece_ew<0.5", "--require", "change(nll)<0")
    plain = run("evaluate", "task.npz", *MODEL).stdout
    assert run("evaluate", "task.npz", *MODEL, *requirements).stdout == plain


def test_every_requirement_that_fails_has_a_line_and_the_exit_code_is_3() -> None:
    requirements = ("--require", "ece_ew<0", "--require", "nll<9", "--require", "change(nll)>0")
    result = run("evaluate", "task.npz", *MODEL, *requirements, "--quiet", code=3)
    lines = result.stderr.splitlines()
    assert [line[:24] for line in lines] == ["failed: required ece_ew<", "failed: required change("]
    assert result.stdout == ""


def test_json_has_every_check() -> None:
    result = run("evaluate", "task.npz", "--json", "--require", "accuracy>=1", code=3)
    [check] = json.loads(result.stdout)["requirements"]
    assert check["requirement"] == "accuracy>=1"
    assert check["met"] is False


def test_the_report_is_written_before_its_requirements_are_checked(folder: Path) -> None:
    command = ("report", "task.npz", *MODEL, "-o", "r.html", "--json")
    grade = json.loads(run(*command).stdout)["grade"]
    (folder / "r.html").unlink()
    better = [name for name in GRADES if GRADES.index(name) > GRADES.index(grade)]
    for name in GRADES:
        code = 3 if name in better else 0
        run(*command, "--require", f"grade>={name}", code=code)
    assert (folder / "r.html").exists()
    verdict = run(*command, "--require", "change(nll)<0", "--require", "nll<0", code=3)
    assert "required nll<0" in verdict.stderr


def test_certificates_have_bounds_and_no_change() -> None:
    run("certify", "task.npz", *MODEL, "--require", "smooth<1")
    failed = run("certify", "task.npz", *MODEL, "--require", "smooth<0.0001", code=3)
    assert "required smooth<0.0001, but smooth is 0." in failed.stderr
    absent = run("certify", "task.npz", *MODEL, "--require", "change(nll)<0", code=1)
    assert "there is no value 'change(nll)'; there are smooth" in absent.stderr
    run("certify", "task.npz", "--out-of-fold", "ts", "--require", "smooth<1")


def test_blocks_and_cross_fits_are_checked_too(folder: Path) -> None:
    with np.load("task.npz") as task:
        (folder / "parts").mkdir()
        np.savez(folder / "parts" / "a.npz", logits=task["logits_test"], y=task["y_test"])
        two_columns = task["logits_cal"][:, :2]
        np.savez(folder / "small.npz", logits=two_columns, y=task["y_cal"] % 2)
    run("evaluate", "parts", *MODEL, "--require", "ece_ew<0", code=3)
    run("report", "parts", *MODEL, "-o", "r.html", "--require", "ece_ew<0", code=3)
    run("certify", "parts", *MODEL, "--require", "smooth<0.0001", code=3)
    cross = ("report", "small.npz", "--cross-fit", "--method", "platt", "-o", "r.html")
    run(*cross, "--require", "change(nll)<-9", code=3)


@pytest.mark.parametrize(
    ("requirement", "code", "words"),
    [
        ("nll", 2, "a requirement is NAME<NUMBER"),
        ("nll<nan", 2, "nothing can be compared with NaN"),
        ("grade>=perfect", 2, "the grades are bad < few < care < good"),
        ("grade>=good", 1, "'grade' is a value of the report alone"),
        ("change(nll)<0", 1, "pass a calibrator (--model)"),
        ("no_such_metric<1", 1, "there is no value 'no_such_metric'; there are"),
    ],
)
def test_what_cannot_be_checked_is_never_a_success(requirement: str, code: int, words: str) -> None:
    result = run("evaluate", "task.npz", "--require", requirement, code=code)
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_nan_meets_nothing(folder: Path) -> None:
    np.savez(folder / "one.npz", logits=np.array([[1.0, 0.0]]), y=np.array([0]))
    for comparison in ("<", ">="):
        result = run("evaluate", "one.npz", "--require", f"skce{comparison}0", code=3)
        assert "skce is NaN: these rows do not tell" in result.stderr


def test_a_value_is_never_shown_as_if_it_met_the_requirement() -> None:
    almost_half = [[0.5 - 1e-7, 0.5 + 1e-7]] * 4
    result = hcal.evaluate(almost_half, [1] * 4, metrics=["brier"])
    [failure] = hcal.require(result, ["brier>=0.5"]).failures
    assert failure == f"required brier>=0.5, but brier is {result['brier']!r}"


def test_a_model_of_several_labels_has_no_single_result(folder: Path) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(200, 2))
    rate = 1 / (1 + np.exp(-scores))
    y = (rng.random((200, 2)) < rate).astype(int)
    hcal.save(hcal.MultilabelCalibrator("platt").fit(scores, y), folder / "several.hcal")
    np.savez(folder / "several.npz", logits=scores, y=y)
    command = ("evaluate", "several.npz", "--model", "several.hcal")
    run(*command)
    assert "has one for each label" in run(*command, "--require", "nll<9", code=1).stderr


def test_a_file_that_was_watched_before_ends_with_the_present_alarm(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name, off in (("good", 0.0), ("bad", 0.2)):
        p = rng.uniform(0.5, 1, 2000)
        y = (rng.random(2000) < p - off).astype(int)
        np.savez(folder / f"{name}.npz", probs=p, y=y)
    watch = ("watch", "--state", "watch.json")
    run(*watch, "good.npz")
    again = run(*watch, "good.npz")
    assert "good.npz was added before, as good.npz" in again.stderr
    run(*watch, "bad.npz", code=3)
    run(*watch, "bad.npz", code=3)
    run(*watch, "good.npz", "bad.npz", code=3)
    assert hcal.Monitor.load("watch.json").n == 4000
