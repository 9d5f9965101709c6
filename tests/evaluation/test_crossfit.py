"""hcal.cross_fit: what belongs to rows reaches every fit, and the words say whose optimism is corrected."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import hcal
from helpers import synthetic


def copies(n: int, times: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every row several times, and the group of each row."""
    z, y = synthetic(n, 3, seed=seed)
    copies = np.repeat(z, times, axis=0)
    return copies, np.repeat(y, times), np.repeat(np.arange(n), times)


def test_groups_reach_the_inner_fits_and_the_returned_calibrator() -> None:
    """Folds inside of the fit shared copies of a row, so a method with neighbours copied its own labels."""
    z, y, groups = copies(100, 6, 0)
    fresh, truth = synthetic(4000, 3, seed=1)
    crossed = hcal.cross_fit("lece", z, y, groups=groups, resamples=0)
    direct = hcal.make_calibrator("lece").fit(z, y, groups=groups)
    np.testing.assert_array_equal(
        crossed.calibrator.predict_proba(fresh), direct.predict_proba(fresh)
    )
    blind = hcal.make_calibrator("lece").fit(z, y)
    nll = hcal.metrics.nll
    held_back = nll(crossed.calibrator.predict_proba(fresh), truth)
    assert held_back < nll(blind.predict_proba(fresh), truth) - 0.05
    # The folds' fits know the groups too: their rows are predicted by fits with groups.
    for number in np.unique(crossed.fold):
        left_out = crossed.fold == number
        kept = ~left_out
        fit = hcal.make_calibrator("lece").fit(z[kept], y[kept], groups=groups[kept])
        expected = fit.predict_proba(z[left_out])
        np.testing.assert_allclose(crossed.probs[left_out], expected, rtol=1e-9, atol=1e-12)


def test_compare_passes_groups_to_the_fits_with_and_without_a_test_part() -> None:
    z, y, groups = copies(80, 5, 2)
    test = synthetic(500, 3, seed=3)
    expected = hcal.make_calibrator("lece").fit(z, y, groups=groups).predict_proba(test[0])
    table = hcal.compare(z, y, *test, methods=["lece"], groups=groups, resamples=0)
    assert table["lece"]["nll"] == pytest.approx(hcal.metrics.nll(expected, test[1]))
    folded = hcal.compare(z, y, methods=["lece"], groups=groups, folds=4, resamples=0)
    crossed = hcal.cross_fit("lece", z, y, groups=groups, folds=4, resamples=0)
    expected = hcal.metrics.nll(crossed.probs, y)
    assert folded["lece"]["nll"] == pytest.approx(expected)


def test_weights_reach_every_fit() -> None:
    z, y = synthetic(200, 3, seed=4)
    times = np.random.default_rng(0).integers(1, 4, 200)
    test = synthetic(300, 3, seed=5)
    crossed = hcal.cross_fit("ts", z, y, times, resamples=0)
    direct = hcal.make_calibrator("ts").fit(z, y, times).predict_proba(test[0])
    np.testing.assert_allclose(crossed.calibrator.predict_proba(test[0]), direct)
    copies = np.repeat(z, times, axis=0)
    rows = np.repeat(range(200), times)
    copied = hcal.cross_fit("ts", copies, np.repeat(y, times), groups=rows)
    np.testing.assert_allclose(copied.calibrator.predict_proba(test[0]), direct, rtol=1e-6)
    table = hcal.compare(z, y, *test, methods=["ts"], sample_weight=times, resamples=0)
    expected = hcal.metrics.nll(direct, test[1])
    assert table["ts"]["nll"] == pytest.approx(expected)
    weight = np.arange(300) % 3
    table = hcal.compare(z, y, *test, methods=["ts"], test_weight=weight, resamples=20)
    plain = hcal.make_calibrator("ts").fit(z, y).predict_proba(test[0])
    weighted = hcal.metrics.nll(plain, test[1], sample_weight=weight)
    assert table["ts"]["nll"] == pytest.approx(weighted)


def test_names_of_classes_reach_the_returned_calibrator() -> None:
    z, y = synthetic(150, 3, seed=6)
    names = np.array(["ant", "bee", "cow"])
    crossed = hcal.cross_fit("ts", z, names[y], classes=list(names), resamples=0)
    assert list(crossed.calibrator.classes_) == list(names)
    frame = pd.DataFrame(z, columns=names)
    of_frame = hcal.cross_fit("ts", frame, names[y], resamples=0)
    assert list(of_frame.calibrator.classes_) == list(names)
    codes = np.array([30, 10, 20])
    numbers = hcal.cross_fit("ts", z, codes[y], classes=[30, 10, 20], resamples=5)
    assert list(numbers.calibrator.classes_) == [30, 10, 20]
    np.testing.assert_allclose(numbers.probs, crossed.probs)


@pytest.mark.parametrize(
    "groups",
    [
        np.r_[np.nan, np.arange(59)],
        [None, *"a" * 59],
        ["", *"a" * 59],
        ["a", float("nan"), *"b" * 58],
        pd.Series([None, *range(59)], dtype="Int64"),
        pd.Series([pd.NaT, *pd.date_range("2020", periods=59)]),
    ],
)
def test_a_missing_group_is_refused(groups: object) -> None:
    """NaN was a group of its own: all rows of unknown patients depended on each other."""
    z, y = synthetic(60, 3, seed=7)
    calls = (
        lambda: hcal.cross_fit("ts", z, y, groups=groups, resamples=0),
        lambda: hcal.compare(z, y, folds=3, methods=["ts"], groups=groups),
        lambda: hcal.make_calibrator("pool").fit(z, y, groups=groups),
    )
    for call in calls:
        with pytest.raises(ValueError, match="groups has no value in 1 of 60 rows, first at row"):
            call()


def test_the_words_say_whose_optimism_is_corrected() -> None:
    z, y = synthetic(250, 2, seed=8)
    text = str(hcal.cross_fit("platt", z, y, resamples=20))
    assert "rows that the model was not trained on" in text
    assert "optimism of the calibrator alone, and not that of the model" in text
    assert "hcal.validate" in text


def test_few_groups_give_no_correction_and_never_a_better_one() -> None:
    """Two resampled clusters could turn an apparent slope of 0.9 into a corrected one of 1.05."""
    z, y = synthetic(240, 2, seed=9)
    crossed = hcal.cross_fit("iso", z, y, groups=np.arange(240) % 4, resamples=20)
    assert crossed.slope is None
    assert crossed.brier is None
    assert "cannot be estimated from 4 groups" in str(crossed)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        groups = rng.integers(0, 24, 240)
        crossed = hcal.cross_fit("platt", z, y, groups=groups, resamples=6, random_state=seed)
        assert crossed.brier.corrected >= crossed.brier.apparent
        assert crossed.slope.corrected <= crossed.slope.apparent


def test_a_draw_without_a_slope_does_not_lose_the_slope() -> None:
    z, y = synthetic(40, 2, scale=1.0, seed=10)
    y[:] = 0
    by_score = np.argsort(z[:, 1] - z[:, 0])
    y[by_score[[12, 25, 39]]] = 1  # many draws hold no event
    crossed = hcal.cross_fit("platt", z, y, resamples=40)
    assert np.isfinite(crossed.slope.corrected)
    assert "had no slope" in str(crossed)


def test_fits_of_bootstrap_samples_are_silent() -> None:
    """A fit that leaves a bootstrap sample worse says nothing about the calibrator that is returned."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 8))
    rate = 1 / (1 + np.exp(1 - x[:, 0] - 0.6 * x[:, 1]))
    y = (rng.random(300) < rate).astype(int)
    score = LogisticRegression(C=100).fit(x, y).decision_function(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hcal.cross_fit("pool", score, y)
