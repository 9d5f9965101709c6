"""The demo trains a real network, and the network is over-confident by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import run
from hcal.cli.demo import train_digits


def test_the_network_is_real_over_confident_and_repeatable() -> None:
    digits = train_digits()
    probs = hcal.softmax(digits["logits_test"])
    accuracy = hcal.metrics.accuracy(probs, digits["y_test"])
    assert 0.75 < accuracy < 0.9
    assert probs.max(axis=1).mean() - accuracy > 0.05
    np.testing.assert_array_equal(train_digits()["logits_test"], digits["logits_test"])


def test_demo_shows_the_result_and_writes_files_that_the_other_commands_read(
    tmp_path: Path,
) -> None:
    output = run("demo", "--method", "ts", "-o", tmp_path).output
    for text in (
        "over-confident by",
        "before",
        "after",
        "█",
        "Not one prediction changed",
        "next:",
    ):
        assert text in output
    assert {p.name for p in tmp_path.iterdir()} == {
        "digits.npz",
        "model.hcal",
        "reliability.png",
        "report.html",
    }
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")
    command = (
        "evaluate",
        tmp_path / "digits.npz",
        "--model",
        tmp_path / "model.hcal",
        "--metrics",
        "ece_ew,nll,accuracy",
    )
    evaluation = json.loads(run(*command, "--json").stdout)
    metrics = evaluation["metrics"]
    assert metrics["ece_ew"]["value"] < metrics["ece_ew"]["baseline"]
    assert metrics["nll"]["value"] < metrics["nll"]["baseline"]
    assert metrics["accuracy"]["value"] == pytest.approx(metrics["accuracy"]["baseline"])


def test_copies_of_a_digit_are_one_group_wherever_the_demo_measures(tmp_path: Path) -> None:
    run("demo", "-o", tmp_path, "-q")
    record = hcal.load(tmp_path / "model.hcal").fit_
    assert record.effective_rows < 0.5 * record.rows

    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "2,788 rows in 697 groups" in page
    assert "The class frequencies of these rows differ" not in page
    assert "digits.npz --groups digit" in page

    files = (tmp_path / "digits.npz", "--model", tmp_path / "model.hcal")
    report = json.loads(run("report", *files, "-o", tmp_path / "own.html", "--json").stdout)
    assert report["headline"] in page
    assert report["alarms"] == []
    assert "697 groups" in run("certify", *files).output
