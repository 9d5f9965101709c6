"""Several labels a row: one calibrator a label, rare labels drawn to the common one, files, errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import hcal


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    rarity = np.array([0.0, 0.5, 1.0, 6.0])
    z = rng.normal(size=(1500, 4)) * 1.5 - rarity
    rate = 1 / (1 + np.exp(-z))
    y = (rng.random(z.shape) < rate).astype(int)
    y[:, 3] = 0
    y[:3, 3] = 1  # a rare label
    return 3 * z, y


def test_every_label_gets_better(task) -> None:
    z, y = task
    cal = hcal.MultilabelCalibrator("platt").fit(z[:1000], y[:1000])
    after = cal.evaluate(z[1000:], y[1000:])
    raw = 1 / (1 + np.exp(-z[1000:]))
    assert list(after) == ["0", "1", "2", "3", "mean"]
    for j in range(3):
        before = hcal.metrics.nll(raw[:, j], y[1000:, j])
        assert after[str(j)]["nll"] < before
    assert cal.own_weight_[3] < 0.2 < 0.8 < cal.own_weight_[0]


def test_a_label_that_never_occurs_is_calibrated_as_all_are(task) -> None:
    z, y = task
    last_never = np.where(np.arange(4) == 3, 0, y)
    cal = hcal.MultilabelCalibrator("ts").fit(z, last_never)
    assert "3" not in cal.members_
    p = cal.predict_proba(z)
    assert np.isfinite(p).all()
    common = cal.members_["common"].predict_proba(z[:, 3])[:, 1]
    np.testing.assert_allclose(p[:, 3], common, atol=1e-12)


def test_it_saves_loads_and_keeps_names(task, tmp_path) -> None:
    z, y = task
    frame = pd.DataFrame(1 / (1 + np.exp(-z)), columns=list("abcd"))
    cal = hcal.MultilabelCalibrator("platt", input="probs").fit(frame, y)
    hcal.save(cal, tmp_path / "m.hcal")
    again = hcal.load(tmp_path / "m.hcal")
    assert again.label_names_ == ("a", "b", "c", "d")
    out = again.predict_proba(frame)
    assert list(out.columns) == list("abcd")
    np.testing.assert_array_equal(out, cal.predict_proba(frame))


def test_errors_say_what_is_wrong(task) -> None:
    z, y = task
    cal = hcal.MultilabelCalibrator("ts")
    for scores, labels, message in (
        (z, y[:, 0], "one column of 0 and 1 for each label"),
        (z, y + 1, "y must hold 0 and 1"),
        (z[:, 0], y[:, 0], r"shape \(N, L\)"),
        (np.where(z > 0, np.nan, z), y, "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            cal.fit(scores, labels)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        hcal.MultilabelCalibrator("ts", input="probs").fit(z, y)
    with pytest.raises(ValueError, match="for 4 labels"):
        cal.fit(z, y).predict_proba(z[:, :2])


def test_other_calibrators_name_it_when_they_see_an_indicator_matrix(task) -> None:
    """0.2 told such users to take the argmax, which fits nonsense."""
    z, y = task
    with pytest.raises(ValueError, match=r"hcal\.MultilabelCalibrator"):
        hcal.make_calibrator("ts").fit(z, y)
