"""The study of the limit: what it measures, and that it tells a calibrated model from one that is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hcal.numerics import softmax
from studies import limit
from studies.worlds import draw_labels


def test_bins_and_classes_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]] * limit.BINS)
    parts = limit.Parts(probs)
    assert parts.sizes().tolist() == [4.0] * limit.BINS
    stated = parts.by_confidence(probs)
    assert stated[0] == pytest.approx(0.6)
    assert stated[-1] == pytest.approx(0.9)
    np.testing.assert_allclose(parts.by_class(probs), probs.mean(axis=0))
    hits = np.eye(2)[np.zeros(len(probs), dtype=int)]
    assert parts.by_confidence(hits)[-1] == 1.0  # the surest rows say class 0
    assert parts.by_confidence(hits)[0] == 0.0  # the least sure ones class 1


def made_up(task: str) -> Any:
    """A network whose logits, halved, are the truth."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(4000, 4)) + 3 * np.eye(4)[rng.integers(0, 4, 4000)]
    y = draw_labels(softmax(logits), rng)
    return 2 * logits[:2000], y[:2000], 2 * logits[2000:], y[2000:]


def z_values(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(limit, "load", made_up)
    monkeypatch.setattr(limit, "REFITS", 8)
    return limit.root_mean_square(list(limit.gaps("made up")))


def test_the_default_is_near_one_and_a_wrong_method_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.5 < z_values(monkeypatch) < 1.7

    fit = limit.fit
    monkeypatch.setattr(limit, "fit", lambda *arguments: too_sure(fit(*arguments)))
    assert z_values(monkeypatch) > 2.5


def too_sure(calibrator: Any) -> Any:
    def predict(x: np.ndarray) -> np.ndarray:
        return softmax(1.4 * np.log(calibrator.predict_proba(x)))

    return SimpleNamespace(predict_proba=predict, preserves=calibrator.preserves)


def test_drawn_labels_are_measured_beside_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "load", made_up)
    monkeypatch.setattr(limit, "DRAWS", 2)
    rows = list(limit.drawn("made up"))
    assert [row["kind"] for row in rows] == ["real", "drawn", "drawn"]
    assert all(0 < row["joint"] < 1 for row in rows)
    # The truth is in reach, so labels that the default draws itself look alike.
    assert rows[0]["score"] == pytest.approx(rows[1]["score"], abs=0.05)


def test_the_committed_rows_say_what_the_page_says() -> None:
    rows = limit.read_rows(limit.FILE)
    top = [row for row in rows if row["kind"] == "confidence"]
    assert len(top) == limit.BINS * len(limit.NETWORKS)
    assert limit.root_mean_square(top) < 1.25
    by_class = [row for row in rows if row["kind"] == "class"]
    assert limit.root_mean_square(by_class) < 1.15
    real = limit.ratio(rows, "real", "joint")
    assert limit.ratio(rows, "drawn", "joint") < real < 0.548
