"""``hcal certify`` and ``hcal watch`` from files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import run
from helpers import synthetic


def _run(*arguments: object, code: int = 0) -> str:
    result = run(*arguments, code=code)
    return result.stderr if code == 1 else result.stdout


@pytest.fixture
def task(tmp_path: Path) -> tuple[Path, Path]:
    file = tmp_path / "task.npz"
    model = tmp_path / "m.hcal"
    (logits_cal, y_cal), (logits_test, y_test) = synthetic(seed=1), synthetic(3000, seed=2)
    site = np.where(np.arange(3000) < 1000, "north", "south")
    np.savez(
        file,
        logits_cal=logits_cal,
        y_cal=y_cal,
        logits_test=logits_test,
        y_test=y_test,
        site_test=site,
    )
    _run("fit", file, "-o", model, "--method", "ts", "-q")
    return file, model


def test_sentences_table_and_json(task: tuple[Path, Path]) -> None:
    file, model = task
    text = _run("certify", file, "--model", model, "--by", "site")
    assert "of the predictions is off by more than" in text
    assert "the Brier score improves by at least" in text
    assert "segment north" in text
    assert "(an assumption)" not in text
    certificate = json.loads(
        _run("certify", file, "--model", model, "--json", "--confidence", "0.9")
    )
    assert certificate["confidence"] == 0.9
    assert certificate["monotone"] is None
    for options in ((), ("--batch-rows", 500)):
        output = _run("certify", file, "--model", model, "--assume", "monotone", *options)
        assert "(an assumption), the ECE is at most" in " ".join(output.split())
    assert certificate["gain"]["at_least"] > 0


def test_rows_of_the_fit_are_refused_on_the_command_line(
    task: tuple[Path, Path], tmp_path: Path
) -> None:
    file, model = task
    with np.load(file) as f:
        np.savez(tmp_path / "same.npz", logits=f["logits_cal"], y=f["y_cal"])
        part = slice(100, 300)
        np.savez(tmp_path / "part.npz", logits=f["logits_cal"][part], y=f["y_cal"][part])
    for name in ("same.npz", "part.npz"):
        refusal = _run("certify", tmp_path / name, "--model", model, code=1)
        assert "no certificate" in refusal
        assert "used to fit" in refusal or "learned from" in refusal
    assert "off by more than" in _run("certify", tmp_path / "same.npz")  # without the model


def test_watching_batches_and_going_on_later(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = tmp_path / "watch.json"
    for name, off in (("mon", 0.0), ("tue", 0.0), ("wed", 0.15)):
        p = rng.uniform(0.5, 1, 2000)
        y = (rng.random(2000) < p - off).astype(int)
        np.savez(tmp_path / f"{name}.npz", probs=p, y=y)
    output = _run("watch", tmp_path / "mon.npz", tmp_path / "tue.npz", "--state", state)
    assert output.count("no alarm") == 2
    output = _run("watch", tmp_path / "wed.npz", "--state", state, code=3)
    assert "ALARM at row 4," in output
    assert hcal.Monitor.load(state).n == 6000
    answer = json.loads(_run("watch", tmp_path / "mon.npz", "--json"))
    assert answer["alarm"] is None


def test_the_settings_of_a_watch_are_those_of_its_state_and_its_model(tmp_path: Path) -> None:
    logits, y = synthetic(600, 3, scale=1)  # calibrated
    np.savez(tmp_path / "new.npz", logits=logits, y=y)
    hcal.save(hcal.make_calibrator("ts").fit(logits, y), tmp_path / "m.hcal")
    _run("watch", tmp_path / "new.npz", "--state", tmp_path / "plain.json", "--confidence", "0.99")
    plain = hcal.Monitor.load(tmp_path / "plain.json")
    assert plain.confidence == 0.99
    assert plain.tolerance == 0.0
    model = ("--model", tmp_path / "m.hcal")
    _run("watch", tmp_path / "new.npz", *model, "--state", tmp_path / "model.json")
    assert hcal.Monitor.load(tmp_path / "model.json").tolerance == "auto"
    for options, words in (
        (("--tolerance", "auto"), "is decided by the fit of a model: add --model"),
        (("--state", tmp_path / "plain.json", "--tolerance", "0.05"), "was begun with 0.0"),
        (("--state", tmp_path / "plain.json", "--confidence", "0.9"), "was begun with 0.99"),
    ):
        assert words in " ".join(_run("watch", tmp_path / "new.npz", *options, code=1).split())


def test_the_watch_names_the_class_whatever_the_order_of_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([2, 2, 2], size=6000)
    q = p * [1.0, 1.0, 0.4]
    shares = q / q.sum(1, keepdims=True)
    y = (rng.random((6000, 1)) > shares.cumsum(1)).sum(1)
    names = np.array(["ant", "bee", "cat"])
    for name, columns, rows in (
        ("mon", "ant,bee,cat", slice(600)),
        ("tue", "cat,ant,bee", slice(600, None)),
    ):
        order = [names.tolist().index(c) for c in columns.split(",")]
        lines = [
            f"{','.join(map(str, row[order]))},{names[k]}"
            for row, k in zip(p[rows], y[rows], strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text(
            "\n".join([f"probs_{columns.replace(',', ',probs_')},label", *lines])
        )
    files = (tmp_path / "mon.csv", tmp_path / "tue.csv")
    options = ("--input", "probs", "--label", "label", "--tolerance", "0")
    answer = json.loads(_run("watch", *files, *options, "--json", code=3))
    assert answer["alarm"]["event"] == "class cat"
    assert answer["rows"] == 6000
    monitor = hcal.Monitor().update(p, y)
    assert answer["log_evidence"] == pytest.approx(monitor.log_evidence, rel=1e-9)


@pytest.mark.parametrize("k", [2, 4])
def test_how_many_rows_would_tell_is_one_number_everywhere(k: int, tmp_path: Path) -> None:
    """Certify said 5,500 and the report 4,600, because the level was shared with whatever else was asked."""
    logits_cal, y_cal = synthetic(1500, k, seed=1)
    logits, y = synthetic(400, k, seed=2)
    file = tmp_path / "test.npz"
    model = tmp_path / "m.hcal"
    hcal.save(hcal.make_calibrator("ts").fit(logits_cal, y_cal), model)
    np.savez(file, logits=logits, y=y, site=np.arange(400) % 3)
    outputs = []
    for options in ((), ("--by", "site")):
        outputs.append(_run("certify", file, "--model", model, *options))
    report = json.loads(_run("report", file, "--model", model, "-o", tmp_path / "r.html", "--json"))
    outputs.append("\n".join([*report["sentences"], *report["chips"].values()]))
    outputs.append((tmp_path / "r.html").read_text())
    numbers = [
        set(re.findall(r"[Aa]bout ([\d,]+) (?:labelled )?rows", " ".join(text.split())))
        for text in outputs
    ]
    assert len(numbers[0]) == 1
    assert all(number == numbers[0] for number in numbers), numbers
