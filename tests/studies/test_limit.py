"""The study of the limit: what it measures, and that it tells a calibrated model from one that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hcal.numerics import softmax
from studies import limit
from studies.worlds import draw_labels


def test_bins_and_classes_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]] * limit.BINS)
    edges = limit.bin_edges(probs)
    stated, sizes = limit.by_confidence(probs, probs, edges)
    assert sizes.sum() == len(probs)
    filled = sizes > 0
    np.testing.assert_allclose(stated[filled], [0.6, 0.7, 0.8, 0.9])
    hits = np.eye(2)[np.zeros(len(probs), dtype=int)]
    observed = limit.by_confidence(probs, hits, edges)[0]
    assert observed[filled].tolist() == [0.0, 1.0, 0.0, 1.0]
    means = limit.by_class(probs, probs, edges)[0]
    np.testing.assert_allclose(means, probs.mean(axis=0))
    one_bin = (np.array([0.25]), np.array([100.0]))
    assert limit.noise(one_bin).tolist() == [0.0025]


def made_up(task: str) -> Any:
    """A network whose logits, halved, are the truth."""
    rng = np.random.default_rng(0)
    noise = 2 * rng.normal(size=(4000, 4))
    logits = noise + 3 * np.eye(4)[rng.integers(0, 4, 4000)]
    y = draw_labels(softmax(logits), rng)
    return 2 * logits[:2000], y[:2000], 2 * logits[2000:], y[2000:]


def z_values(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(limit, "load", made_up)
    return limit.root_mean_square(list(limit.gaps("made up")))


def test_the_default_is_near_one_and_a_wrong_method_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.4 < z_values(monkeypatch) < 1.5

    right = limit.fitted_probs

    def sharpened(task: str) -> list[np.ndarray]:
        return [softmax(1.4 * np.log(p)) for p in right(task)]

    monkeypatch.setattr(limit, "fitted_probs", sharpened)
    assert z_values(monkeypatch) > 2.0


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
    assert len(top) == limit.BINS * len(limit.TASKS)
    assert limit.root_mean_square(top) < 1.0
    by_class = [row for row in rows if row["kind"] == "class"]
    assert limit.root_mean_square(by_class) < 1.0
    for column in ("joint", "canonical"):
        drawn, real = (limit.ratio(rows, kind, column) for kind in ("drawn", "real"))
        assert 0.8 < drawn / real < 0.95
