"""Intervals hold the truth as often as they say: few rows, rare outcomes, weights, groups, nothing that happened."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import t

import hcal
from hcal import metrics
from hcal.evaluation.assessment import knows_more
from hcal.metrics.estimates import Outcome, weighted_mean
from hcal.metrics.registry import METRICS
from hcal.metrics.resampling import dependence, intervals, mean_interval, measure
from hcal.metrics.sample import Sample

MEANS = ("nll", "brier", "accuracy")


def draw(
    n: int, k: int, rate: float, rng: np.random.Generator, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true probabilities, predictions sharper by the temperature, and labels; the last class is rare."""
    logits = 1.5 * rng.standard_normal((n, k))
    logits[:, -1] += np.log(rate / (1 - rate) * (k - 1)) / 1.3
    truth = softmax(logits, axis=1)
    y = (truth.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return truth, softmax(temperature * logits, axis=1), y


def true_means(truth: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """Return the means over all labels, from the true probabilities."""
    top = truth[np.arange(len(p)), p.argmax(axis=1)]
    return {
        "nll": float(-(truth * np.log(p)).sum(axis=1).mean()),
        "brier": float(((p**2).sum(axis=1) - 2 * (p * truth).sum(axis=1) + 1).mean()),
        "accuracy": float(top.mean()),
    }


@pytest.mark.parametrize(
    ("n", "k", "rate", "temperature"),
    [(30, 2, 0.2, 1.0), (100, 2, 0.05, 1.7), (30, 3, 0.05, 1.7), (300, 3, 0.01, 1.0)],
)
def test_means_are_covered_with_few_rows_and_rare_classes(
    n: int, k: int, rate: float, temperature: float
) -> None:
    """Percentiles of a bootstrap held the truth in 80 to 90 % of such samples."""
    rng = np.random.default_rng(n + k)
    large_truth, large_p, _ = draw(200_000, k, rate, rng, temperature)
    truth = true_means(large_truth, large_p)
    drawn = dict.fromkeys(MEANS, 0)
    covered = dict.fromkeys(MEANS, 0)
    for _ in range(600):
        _, p, y = draw(n, k, rate, rng, temperature)
        s = Sample(p, y)
        for name in MEANS:
            interval = mean_interval(METRICS[name], s, 0.95)
            if interval is not None:
                drawn[name] += 1
                covered[name] += interval.low <= truth[name] <= interval.high
    for name in MEANS:
        # Two standard errors of 600 draws are 1.8 points.
        assert 0.912 <= covered[name] / drawn[name] <= 0.988, name


def test_predictions_that_are_all_right_are_uncertain_too() -> None:
    p = np.tile([0.01, 0.99], (50, 1))
    result = hcal.evaluate(p, np.ones(50, int), metrics="score", confidence=0.95, test=False)
    low, high = result.interval("accuracy")
    assert 0.9 < low < 0.95
    assert high == 1.0
    # Whoever has seen no error knows nothing about how large the loss of one is.
    assert result.interval("nll") is None
    assert result.interval("brier") is None
    assert any("no interval of nll, brier" in note for note in result.notes)


def test_two_predictors_that_are_all_right_may_differ_on_other_rows() -> None:
    y = np.arange(40) % 2
    sure = np.eye(2)[y] * 0.8 + 0.1
    other = np.eye(2)[y] * 0.4 + 0.3
    other[0] = [0.45, 0.55]
    options = {"metrics": ["accuracy"], "confidence": 0.95, "test": False}
    change = hcal.evaluate(sure, y, baseline=other, **options).differences["accuracy"]
    assert change.low < 0 < change.high
    # Whoever predicts the same classes is right as often.
    same = hcal.evaluate(sure, y, baseline=0.5 * sure + 0.25, **options).differences["accuracy"]
    assert (same.low, same.high) == (0.0, 0.0)


def test_whole_weights_are_copies_and_other_weights_are_rows() -> None:
    rng = np.random.default_rng(0)
    _, p, y = draw(200, 3, 0.2, rng)
    copies = rng.integers(0, 4, 200)
    rows = np.repeat(np.arange(200), copies)
    plain = Sample(p, y)
    for name in MEANS:
        metric = METRICS[name]
        weighted = mean_interval(metric, Sample(p, y, copies), 0.95)
        repeated = mean_interval(metric, Sample(p[rows], y[rows]), 0.95)
        assert weighted.low == pytest.approx(repeated.low, rel=1e-9), name
        assert weighted.high == pytest.approx(repeated.high, rel=1e-9), name
        # Weights of a survey say whom a row stands for, and not how many were asked.
        survey = mean_interval(metric, Sample(p, y, np.full(200, 100.5)), 0.95)
        unweighted = mean_interval(metric, plain, 0.95)
        assert survey.low == pytest.approx(unweighted.low, rel=1e-9), name
        assert survey.high == pytest.approx(unweighted.high, rel=1e-9), name


def test_copies_of_rows_in_groups_are_no_evidence_of_errors() -> None:
    """Five copies of each row are one observation: the lower end was above 0 in two of three calibrated samples."""
    names = ["ece_ew", "ece_em", "ks", "cwece_a"]
    rng = np.random.default_rng(1)
    held = dict.fromkeys(names, 0)
    for seed in range(30):
        _, p, y = draw(80, 2, 0.4, rng)
        s = Sample(np.repeat(p, 5, axis=0), np.repeat(y, 5))
        groups = np.repeat(np.arange(80), 5)
        assert dependence(s, groups) == pytest.approx(np.sqrt(5), rel=0.01)
        values, _ = measure(s, names)
        found = intervals(s, values, 0.95, resamples=60, random_state=seed, groups=groups)
        for name in names:
            held[name] += found[name].low == 0.0
    # Nominal 97.5 %: 26 or fewer of 30 have a probability of 1 %.
    assert min(held.values()) >= 26


def test_few_groups_have_no_intervals_and_a_note() -> None:
    rng = np.random.default_rng(2)
    _, p, y = draw(300, 2, 0.4, rng)
    options = {"metrics": ["nll", "ece_ew"], "confidence": 0.95, "test": False, "resamples": 50}
    few = hcal.evaluate(p, y, groups=np.arange(300) % 8, **options)
    assert few.interval("nll") is None
    assert few.interval("ece_ew") is None
    assert any("no interval of nll, ece_ew" in note for note in few.notes)
    enough = hcal.evaluate(p, y, groups=np.arange(300) % 30, **options)
    assert enough.interval("nll") is not None
    assert enough.interval("ece_ew") is not None


@pytest.mark.parametrize("n", [60, 300])
def test_the_debiased_error_of_calibrated_predictions_may_be_zero(n: int) -> None:
    """It is positive by chance where bins hold few rows, and a bootstrap adds to that: no interval held 0."""
    rng = np.random.default_rng(3)
    held = 0
    for seed in range(40):
        _, p, y = draw(n, 2, 0.4, rng)
        s = Sample(p, y)
        interval = intervals(s, {"dece": metrics.dece(s)}, 0.95, resamples=60, random_state=seed)
        held += interval["dece"].low <= 0 <= interval["dece"].high
    assert held >= 35
    level = hcal.evaluate(p, y, metrics=["dece"], confidence=0.95, test=False).by_chance
    assert level == {}


def test_a_class_of_few_rows_leaves_the_mean_area_without_an_interval() -> None:
    rng = np.random.default_rng(4)
    _, p, _ = draw(200, 3, 0.2, rng)
    y = np.repeat([0, 1, 2], [100, 97, 3])
    few = intervals(Sample(p, y), {"auc": 0.7}, 0.95)
    assert "auc" not in few
    assert "auc" in intervals(Sample(p, np.arange(200) % 3), {"auc": 0.7}, 0.95)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_who_states_the_base_rates_does_not_know_more_than_they(classes: int) -> None:
    """The difference is 0 in exact arithmetic, and was proven to be below it by rounding."""
    for n in (30, 60, 90, 150):
        y = np.arange(n) % classes
        y[: n // 5] = 0
        rates = np.bincount(y, minlength=classes) / n
        assert knows_more(Sample(np.tile(rates, (n, 1)), y), 0.95).status == "open", n


def test_the_interval_of_a_change_of_accuracy_is_that_of_bonett_and_price() -> None:
    """Of 40 rows the first predictor alone is right in 6, and the second alone in 2."""
    y = np.ones(40, dtype=int)
    first = np.repeat([0.9, 0.2, 0.9], [6, 2, 32])
    second = np.repeat([0.2, 0.9, 0.9], [6, 2, 32])
    one, other = (Sample(p, y) for p in (first, second))
    accuracy = METRICS["accuracy"]
    interval = mean_interval(accuracy, one, 0.95, other=other)
    turned = mean_interval(accuracy, other, 0.95, other=one)

    gained = 7 / 42
    lost = 3 / 42
    deviation = np.sqrt((gained + lost - (gained - lost) ** 2) / 42)
    expected = gained - lost + 1.959964 * deviation * np.array([-1, 1])
    np.testing.assert_allclose([interval.low, interval.high], expected, rtol=1e-6)
    np.testing.assert_allclose([-turned.high, -turned.low], expected, rtol=1e-6)


def test_ten_rows_of_the_rarer_outcome_have_an_interval() -> None:
    for n_events, words in ((10, ""), (9, "9 rows with the rarer outcome, and intervals need 10")):
        event = np.arange(200) < n_events
        for happened in (event, ~event):
            rows = Outcome(risk=np.full(200, happened.mean()), event=happened.astype(float))
            assert rows.no_interval() == words


def test_scores_of_certain_predictions_are_no_shares() -> None:
    """Their Brier scores are 0 and 2: the interval is that of a mean, twice as wide as that of the share of errors."""
    y = np.zeros(100, dtype=int)
    certain = Sample(np.eye(3)[np.repeat([0, 1], [40, 60])], y)
    interval = mean_interval(METRICS["brier"], certain, 0.95)
    width = 2 * 1.96 * 2 * np.sqrt(0.6 * 0.4 / 100)
    assert interval.low < 1.2 < interval.high
    assert interval.high - interval.low == pytest.approx(width, rel=0.1)


def test_groups_of_rows_without_error_depend_on_nothing() -> None:
    certain = Sample(np.eye(2)[[0, 1, 1, 0]], [0, 1, 1, 0])
    assert dependence(certain, np.array([0, 0, 1, 1])) == 1.0


def test_the_interval_of_a_few_means_is_that_of_students_t() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0])
    estimate = weighted_mean(values, np.ones(4), None, 0.95)
    expected = t.interval(0.95, 3, loc=2.5, scale=np.std(values, ddof=1) / 2)
    assert (estimate.low, estimate.high) == pytest.approx(expected, rel=1e-9)
