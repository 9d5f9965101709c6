"""Similar rows of two classes are merged before they are resampled: the intervals stay, and the cost does not grow."""

from __future__ import annotations

import numpy as np
import pytest

from hcal.metrics import resampling, testing
from hcal.metrics.registry import METRICS, list_metrics
from hcal.metrics.sample import Sample
from hcal.numerics import Float64, IntArray

RESAMPLED = [name for name in list_metrics() if METRICS[name].ends is None]


def draw(rows: int, seed: int, *, middle: float = -1.0, slope: float = 0.9) -> Sample:
    """Return overconfident predictions of two classes."""
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(middle, 1.5, rows)
    happened = rng.random(rows) < 1 / (1 + np.exp(-slope * log_odds))
    return Sample(1 / (1 + np.exp(-log_odds)), happened.astype(int))


@pytest.mark.parametrize("middle", [-1.0, -6.0])
def test_intervals_are_those_of_all_rows(middle: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = draw(24_000, 0, middle=middle)
    values, _ = resampling.measure(sample, RESAMPLED)
    merged = resampling.intervals(sample, values, 0.9, resamples=200)
    monkeypatch.setattr(resampling, "MOST_ROWS", 10**9)
    plain = resampling.intervals(sample, values, 0.9, resamples=200)

    assert merged.keys() == plain.keys()
    for name, interval in plain.items():
        width = interval.high - interval.low
        # Two bootstraps of 100 resamples differ by about a tenth of the width.
        assert merged[name].low == pytest.approx(interval.low, abs=0.25 * width), name
        assert merged[name].high == pytest.approx(interval.high, abs=0.25 * width), name
        if interval.chance is not None:
            assert merged[name].chance == pytest.approx(interval.chance, rel=0.2), name


def test_the_values_of_merged_rows_are_those_of_all_rows() -> None:
    sample = draw(60_000, 1)
    small = resampling.merged_samples([sample])[0]
    exact, _ = resampling.measure(sample, RESAMPLED)
    for name, interval in resampling.intervals(sample, exact, 0.9, resamples=50).items():
        value = METRICS[name].function(small)
        assert value == pytest.approx(exact[name], abs=0.05 * (interval.high - interval.low)), name


def test_impossible_and_certain_rows_are_not_merged_with_others() -> None:
    never = np.zeros(5)
    hardly = np.full(5, 1e-12)
    positive = np.concatenate([never, hardly, np.linspace(0.1, 0.9, 29_990)])
    small = resampling.merged_samples([Sample(positive, np.arange(30_000) % 2)])[0]
    assert small.data.column(1)[:4].tolist() == [0.0, 0.0, 1e-12, 1e-12]
    assert small.w[:4].tolist() == [3.0, 2.0, 2.0, 3.0]


def test_two_predictors_are_merged_together() -> None:
    before = draw(30_000, 2)
    after = Sample(before.data.column(1) ** 2, before.y)
    small = resampling.merged_samples([before, after])
    assert small is not None
    assert small[0].weight.tolist() == small[1].weight.tolist()
    for exact, merged in zip((before, after), small, strict=True):
        expected = exact.mean(exact.data.conf)
        assert merged.mean(merged.data.conf) == pytest.approx(expected)
    # Rows that are near each other in one of two unrelated predictors are far apart in the other.
    unrelated = Sample(np.random.default_rng(0).random(30_000), before.y)
    assert resampling.merged_samples([before, unrelated]) is None


@pytest.mark.parametrize("weight", [None, np.full(30_000, 2.0)])
def test_what_is_merged(weight: Float64 | None) -> None:
    rng = np.random.default_rng(3)
    labels: IntArray = rng.integers(0, 2, 30_000)
    sample = Sample(rng.random(30_000), labels, weight)
    assert (resampling.merged_samples([sample]) is None) == (weight is not None)
    three_classes = Sample(rng.dirichlet([1, 1, 1], 30_000), labels)
    assert resampling.merged_samples([three_classes]) is None
    assert resampling.merged_samples([Sample(rng.random(20_000), labels[:20_000])]) is None


def test_calibrated_predictions_are_rejected_as_often_as_the_level_says() -> None:
    p_values = []
    for seed in range(60):
        sample = draw(20_500, seed, slope=1.0)
        p_values.append(testing.calibration_test(sample, resamples=99).p_value)
    assert np.mean(np.array(p_values) <= 0.1) < 0.25
    assert 0.3 < np.mean(p_values) < 0.7


def test_the_clusters_of_a_replicate_are_those_of_its_weighted_sample() -> None:
    """They were those of the rows without weights, so that copies of rows had another interval than weights."""
    rng = np.random.default_rng(4)
    probs = rng.dirichlet([1, 1, 1], 60)
    y = rng.integers(0, 3, 60)
    weight = rng.integers(1, 4, 60).astype(float)
    rows = np.repeat(np.arange(60), weight.astype(int))
    copied = Sample(probs[rows], y[rows])
    weighted = Sample(probs, y, weight)
    resampling.measure(copied, ["tcwece_k"])
    half = np.where(np.arange(60) % 2, weight, 0.0)
    replicate = METRICS["tcwece_k"].function(weighted.replicate(half))
    of_copies = copied.replicate((rows % 2).astype(float))
    assert replicate == pytest.approx(METRICS["tcwece_k"].function(of_copies))
