"""The study of small sets: its measures by hand, and what the committed rows promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from studies import small_sets as study


def test_the_largest_change_is_averaged_over_rows() -> None:
    before = np.array([[0.5, 0.5], [0.9, 0.1]])
    after = np.array([[0.4, 0.6], [0.6, 0.4]])
    assert study.largest_change(before, after) == pytest.approx(0.2)


def network(name: str) -> Any:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 2000)
    logits = 3 * np.eye(3)[y] + rng.normal(size=(2000, 3))
    return logits[:1000], y[:1000], logits[1000:], y[1000:]


def test_a_network_is_left_with_few_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "load", network)
    cal, y, test, y_test = study.thinned("made up", 0)
    before = network("made up")
    assert (cal.argmax(axis=1) != y).sum() == round(study.FEW_ERRORS / 5)
    right = (cal.argmax(axis=1) == y).sum()
    expected = (before[0].argmax(axis=1) == before[1]).sum()
    assert right == expected
    # The test rows have as small a share of the errors.
    rates = []
    for probs, labels in ((cal, y), (test, y_test)):
        rates.append((probs.argmax(axis=1) != labels).mean())
    assert rates[1] == pytest.approx(rates[0], rel=0.5)
    comparison = study.compared("made up", (cal, y, test, y_test), "logits")
    assert comparison["errors"] == round(study.FEW_ERRORS / 5)
    assert 0.5 < comparison["ratio"] < 1.1


def test_the_committed_rows_say_what_the_page_says() -> None:
    rows = study.read_rows(study.FILE)
    moves = {}
    for row in rows:
        if row["kind"] == "dropped" and row["method"] == "pool":
            moves[row["task"]] = float(row["mean"])
    assert len(moves) == 96
    assert {task for task, mean in moves.items() if mean > 3e-3} <= {"yeast_gnb"}
    assert max(moves.values()) < 5e-3
    losses = [row for row in rows if row["kind"] == "errors"]
    assert not any(float(row["ratio"]) > 1.005 and float(row["z"]) > 3 for row in losses)
    thinned = [float(row["ratio"]) for row in losses if "few errors" in row["task"]]
    assert len(thinned) == 12
    assert max(thinned) < 1.005
