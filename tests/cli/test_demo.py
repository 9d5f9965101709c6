"""The demo trains a real network, and the network is over-confident by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hcal
from hcal.cli.app import app
from hcal.cli.demo import train_digits


def test_the_network_is_real_over_confident_and_repeatable() -> None:
    digits = train_digits()
    probs = hcal.softmax(digits["logits_test"])
    accuracy = hcal.metrics.accuracy(probs, digits["y_test"])
    assert 0.75 < accuracy < 0.9
    assert probs.max(axis=1).mean() - accuracy > 0.05
    np.testing.assert_array_equal(train_digits()["logits_test"], digits["logits_test"])


def test_demo_writes_files_that_the_other_commands_read(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = CliRunner().invoke(app, ["demo", "--method", "ts", "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["after"]["ece_ew"] < found["before"]["ece_ew"]
    assert found["after"]["nll"] < found["before"]["nll"]
    assert found["after"]["accuracy"] == found["before"]["accuracy"]
    assert sorted(p.name for p in out.iterdir()) == sorted(found["files"])
    assert {"digits.npz", "model.hcal", "reliability.png"} <= set(found["files"])
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")
    again = CliRunner().invoke(app, ["evaluate", str(out / "digits.npz"), "--model", str(out / "model.hcal"), "--json"])
    measured = json.loads(again.stdout)
    assert measured["metrics"]["ece_ew"] == pytest.approx(found["after"]["ece_ew"])


def test_demo_tells_the_story(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = CliRunner().invoke(app, ["demo", "--method", "ts", "-o", str(out)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for text in ("over-confident by", "before", "after", "█", "Not one prediction changed", "next:"):
        assert text in result.output
