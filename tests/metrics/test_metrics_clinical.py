"""The clinical panel against formulas written out, other implementations and simulated truths."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

import hcal
from hcal.metrics.estimates import Outcome, brier_scores


def risks(n: int, seed: int, slope: float = 0.8, intercept: float = 0.2) -> tuple[np.ndarray, ...]:
    """Predicted risks, outcomes and true risks."""
    rng = np.random.default_rng(seed)
    z = rng.normal(-1.0, 1.2, n)
    truth = 1 / (1 + np.exp(-(slope * z + intercept)))
    y = (rng.random(n) < truth).astype(int)
    return 1 / (1 + np.exp(-z)), y, truth


def test_slope_and_intercept_are_those_of_a_logistic_regression() -> None:
    p, y, _ = risks(600, 0)
    panel = hcal.clinical(p, y)
    x = np.log(p / (1 - p))
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x[:, None], y)
    assert panel.intercept.value == pytest.approx(model.intercept_[0], rel=1e-4, abs=1e-5)
    assert panel.slope.value == pytest.approx(model.coef_[0, 0], rel=1e-4)

    # The standard error is the larger of those by the model and by the residuals (HC3).
    design = np.stack([np.ones_like(x), x], axis=1)
    risk = model.predict_proba(x[:, None])[:, 1]
    curvature = risk * (1 - risk)
    by_model = np.linalg.inv(design.T @ (design * curvature[:, None]))
    leverage = np.einsum("nc,cd,nd->n", design, by_model, design) * curvature
    scores = design * ((y - risk) / (1 - leverage))[:, None]
    by_residuals = by_model @ scores.T @ scores @ by_model
    variance = np.maximum(np.diag(by_model), np.diag(by_residuals))
    margins = (panel.intercept.high - panel.intercept.value, panel.slope.high - panel.slope.value)
    expected = tuple(1.959964 * np.sqrt(variance))
    assert margins == pytest.approx(expected, rel=1e-4)


def test_calibration_in_the_large_has_a_variance_that_needs_no_slope_of_one() -> None:
    p, y, _ = risks(600, 0)
    panel = hcal.clinical(p, y)
    x = np.log(p / (1 - p))
    # At its solution the shifted risks sum to the number of outcomes.
    shifted = 1 / (1 + np.exp(-(x + panel.in_the_large.value)))
    assert shifted.sum() == pytest.approx(y.sum())
    curvature = shifted * (1 - shifted)
    residuals = (y - shifted) / (1 - curvature / curvature.sum())
    error = np.sqrt((residuals**2).sum()) / curvature.sum()
    margin = panel.in_the_large.high - panel.in_the_large.value
    assert margin == pytest.approx(1.959964 * error, rel=1e-5)


def test_numbers_that_have_formulas() -> None:
    p, y, _ = risks(500, 1)
    p = p.round(2).clip(0.01, 0.99)  # ties
    panel = hcal.clinical(p, y, confidence=0.9, thresholds=[0.1, 0.25, 0.995])
    ratio = y.sum() / p.sum()
    assert panel.observed_expected.value == pytest.approx(ratio)
    squares = ((y - ratio * p) ** 2).sum() * 500 / 499
    error = np.sqrt(squares) / y.sum()
    factor = panel.observed_expected.high / panel.observed_expected.value
    assert np.log(factor) == pytest.approx(1.644854 * error, rel=1e-5)
    assert panel.brier.value == pytest.approx(brier_score_loss(y, p))
    null_score = y.mean() * (1 - y.mean())
    assert panel.scaled_brier.value == pytest.approx(1 - panel.brier.value / null_score)

    statistic = ((y - p) * (1 - 2 * p)).sum()
    variance = ((1 - 2 * p) ** 2 * p * (1 - p)).sum()
    z = statistic / np.sqrt(variance)
    assert panel.spiegelhalter_z == pytest.approx(z)
    for i, t in enumerate([0.1, 0.25, 0.995]):
        treated = p >= t
        true = (treated & (y == 1)).mean()
        false = (treated & (y == 0)).mean()
        odds = t / (1 - t)
        assert panel.net_benefit.model[i] == pytest.approx(true - false * odds)
        everybody = y.mean() - (1 - y.mean()) * odds
        assert panel.net_benefit.treat_all[i] == pytest.approx(everybody)

    cuts = [-1.0, *np.quantile(p, np.arange(1, 10) / 10), 2.0]
    chi = 0.0
    for low, high in itertools.pairwise(cuts):
        tenth = (p > low) & (p <= high)
        if tenth.any():
            variance = p[tenth].sum() * (1 - p[tenth].mean())
            chi += (y[tenth].sum() - p[tenth].sum()) ** 2 / variance
    assert panel.hosmer_lemeshow == pytest.approx(chi)
    # χ² of 10 degrees of freedom. One group expects fewer than 5 events, so the p-value is the
    # rank among 999 drawn sets, whose standard deviation is 0.015.
    factorials = [np.prod(np.arange(1, k + 1)) for k in range(5)]
    terms = [(chi / 2) ** k / factorial for k, factorial in enumerate(factorials)]
    p_value = float(np.exp(-chi / 2) * sum(terms))
    assert panel.hosmer_lemeshow_p == pytest.approx(p_value, abs=0.05)


def test_the_area_is_that_of_all_pairs() -> None:
    p, y, _ = risks(500, 1)
    p = p.round(2).clip(0.01, 0.99)  # ties
    panel = hcal.clinical(p, y, confidence=0.9)
    yes = p[y == 1]
    no = p[y == 0]
    # A pair counts 1, or 1/2 where it ties.
    wins = (yes[:, None] > no) + 0.5 * (yes[:, None] == no)
    assert panel.auc.value == pytest.approx(wins.mean())
    assert panel.auc.value == pytest.approx(roc_auc_score(y, p))
    # With many rows the interval is that of DeLong's variance.
    of_yes = wins.mean(1).var(ddof=1) / len(yes)
    of_no = wins.mean(0).var(ddof=1) / len(no)
    error = np.sqrt(of_yes + of_no)
    assert panel.auc.high - panel.auc.low == pytest.approx(2 * 1.644854 * error, rel=0.02)


def test_an_area_of_one_is_uncertain_too() -> None:
    p = np.linspace(0.01, 0.99, 100)
    panel = hcal.clinical(p, p > 0.7)
    assert panel.auc.value == panel.auc.high == 1.0
    assert 0.9 < panel.auc.low < 0.99


def test_few_outcomes_have_no_intervals_and_a_reason() -> None:
    p, y, _ = risks(300, 5)
    few = hcal.clinical(p, np.where(y.cumsum() <= 4, y, 0))
    assert np.isnan([few.auc.low, few.slope.low, few.ici.low, few.brier.high]).all()
    assert few.notes == ("no intervals: 4 rows with the rarer outcome, and intervals need 10",)
    of_15_events = hcal.clinical(p, np.where(y.cumsum() <= 15, y, 0))
    assert not np.isnan(of_15_events.auc.low)
    assert np.isnan(of_15_events.scaled_brier.low)
    assert "no interval of the scaled Brier score: 15 rows" in of_15_events.notes[0]


def test_groups_widen_the_intervals_and_are_as_many_copies_of_a_row() -> None:
    p, y, _ = risks(400, 6)
    once = hcal.clinical(p, y)
    copies = hcal.clinical(np.repeat(p, 3), np.repeat(y, 3))
    groups = np.repeat(np.arange(400), 3)
    grouped = hcal.clinical(np.repeat(p, 3), np.repeat(y, 3), groups=groups)
    for name in ("in_the_large", "slope", "observed_expected", "brier", "scaled_brier", "auc"):
        estimates = [getattr(panel, name) for panel in (once, copies, grouped)]
        width, narrow, wide = (estimate.high - estimate.low for estimate in estimates)
        assert narrow < 0.65 * width, name
        assert wide == pytest.approx(width, rel=0.02), name
    assert np.isnan([grouped.spiegelhalter_p, grouped.hosmer_lemeshow_p]).all()
    assert "no tests" in grouped.notes[0]
    few = hcal.clinical(p, y, groups=np.arange(400) % 7)
    assert few.notes[0] == "no intervals: 7 groups of dependent rows, and intervals need 20"
    with pytest.raises(ValueError, match="groups has no value in 1 of 400 rows"):
        hcal.clinical(p, y, groups=[None, *range(399)])


def test_segments_have_panels_of_their_own() -> None:
    p, y, _ = risks(600, 7)
    country = np.array(["DE", "FR", "DE"] * 200)
    y = np.where(np.arange(600) < 5, 0, y)
    country[:5] = "XX"
    panel = hcal.clinical(p, y, by=country)
    assert list(panel.subgroups) == ["DE", "FR"]
    assert panel.notes == ("XX: all 5 rows have the same outcome, so it has no panel",)
    alone = hcal.clinical(p[country == "DE"], y[country == "DE"])
    assert panel.subgroups["DE"].slope == alone.slope
    assert panel.slope == hcal.clinical(p, y).slope
    assert f"DE{' ' * 23}" in str(panel)
    frame = panel.to_frame()
    slope = frame[(frame.segment == "FR") & (frame.estimate == "slope")]
    assert slope.high.item() == panel.subgroups["FR"].slope.high


def test_distances_to_the_smooth_curve_are_those_of_the_truth() -> None:
    p, y, truth = risks(20_000, 2)
    panel = hcal.clinical(p, y)
    gap = np.abs(truth - p)
    expected = gap.mean(), np.median(gap), np.quantile(gap, 0.9), gap.max()
    for name, value in zip(("ici", "e50", "e90", "e_max"), expected, strict=True):
        estimate = getattr(panel, name)
        assert estimate.value == pytest.approx(value, abs=0.03 if name == "e_max" else 0.01), name
        assert estimate.low <= value <= estimate.high, name
    order = np.argsort(p)
    at = np.interp(panel.curve.predicted, p[order], truth[order])
    assert np.abs(panel.curve.observed - at).max() < 0.04
    assert 0.02 < (panel.curve.high - panel.curve.low).max() < 0.2
    assert ((panel.curve.low <= at) & (at <= panel.curve.high)).mean() > 0.8


def test_intervals_cover_and_calibrated_predictions_are_not_accused() -> None:
    covered = np.zeros(4)
    clean = np.zeros(4)
    for seed in range(40):
        p, y, truth = risks(400, seed)
        r = hcal.clinical(p, y)
        distance = np.abs(truth - p).mean()
        ends = ((r.slope, 0.8), (r.intercept, 0.2), (r.ici, distance))
        ends += ((r.observed_expected, truth.sum() / p.sum()),)
        covered += [e.low <= value <= e.high for e, value in ends]
        p, y, _ = risks(400, seed, slope=1.0, intercept=0.0)
        r = hcal.clinical(p, y)
        clean += [
            r.ici.low == 0,
            r.e_max.low == 0,
            r.spiegelhalter_p > 0.05,
            r.in_the_large.low < 0 < r.in_the_large.high,
        ]
    # 33 or fewer of 40 at a nominal 95 % have a probability below 1e-3.
    assert covered.min() >= 34
    assert clean.min() >= 34


def test_cases_without_an_answer_say_so() -> None:
    p, y, _ = risks(200, 3)
    for y_apart, area in ((p > 0.3, 1.0), (p < 0.3, 0.0)):
        separated = hcal.clinical(p, y_apart)
        assert np.isnan(separated.slope.value)
        assert separated.to_dict()["notes"] == [
            "the predictions separate the outcomes: the slope is not finite"
        ]
        assert separated.auc.value == area
    flat = hcal.clinical(np.full(200, 0.25), y)
    assert flat.notes == ("all predictions are equal: there is no slope",)
    assert flat.ici.value == pytest.approx(abs(y.mean() - 0.25))
    separated_but_for_a_tie = hcal.clinical([0.6, 0.3, 0.3], [0, 0, 1])
    assert np.isnan(separated_but_for_a_tie.slope.value)
    with_0_and_1 = np.where(np.arange(200) < 5, [0.0, 1.0] * 100, p)
    edges = hcal.clinical(with_0_and_1, y)
    assert np.isfinite(edges.slope.value)
    certain = hcal.clinical(
        np.round(p), y
    )  # 0 and 1: log-odds of ±18, where a full Newton step overflows
    log_odds = np.where(p > 0.5, 1, -1) * 18.420680744
    moved = 1 / (1 + np.exp(-(log_odds + certain.in_the_large.value)))
    assert moved.sum() == pytest.approx(y.sum(), rel=1e-6)
    for arguments, options, message in (
        ((p, np.zeros(200, int)), {}, "needs rows with and without class 1; 0 of 200"),
        ((p, y), {"positive": 2}, "positive must be 0 or 1, the number of a class, got 2"),
        ((p, y), {"confidence": 95}, "confidence must lie"),
        ((p, y), {"thresholds": [0.0]}, "thresholds must be risks between 0 and 1"),
        ((p, y), {"thresholds": [1.0]}, "thresholds must be risks between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            hcal.clinical(*arguments, **options)


def test_a_class_of_many_and_the_other_class_of_two() -> None:
    rng = np.random.default_rng(4)
    p = rng.dirichlet([1, 2, 3], 300)
    y = (p.cumsum(1) > rng.random((300, 1))).argmax(1)
    one = hcal.clinical(p, y, positive=2)
    alone = hcal.clinical(p[:, 2], y == 2)
    assert one.slope.value == pytest.approx(alone.slope.value, rel=1e-6)
    assert one.auc.value == alone.auc.value
    mirror = hcal.clinical(p[:, 2], y == 2, positive=0)
    assert mirror.slope.value == pytest.approx(alone.slope.value, rel=1e-6)
    assert mirror.intercept.value == pytest.approx(-alone.intercept.value, rel=1e-6)
    text = str(one)
    content = json.loads(json.dumps(one.to_dict()))
    assert text.startswith("300 rows, ")
    assert "calibration slope" in text
    assert "Do not rely on this test" in text
    assert set(content["slope"]) == {"value", "low", "high"}
    assert len(content["net_benefit"]["thresholds"]) == 99


def test_the_scaled_brier_score_is_covered_where_outcomes_are_few() -> None:
    """Samples were chosen by their observed outcomes, and those with many held the truth in 78 % of cases.

    With 20 expected outcomes the intervals still missed in 11 to 14 %, so that there are none below 40.
    """
    from studies.coverage_clinical import World

    world = World.of("too timid", 0.05)
    truth = world.truths()["scaled_brier"]
    rng = np.random.default_rng(5)
    intervals = []
    for _ in range(600):
        risk, event = world.draw(1000, rng)
        interval = brier_scores(Outcome(risk, event))[1]
        if not np.isnan(interval.low):
            intervals.append((interval.low, interval.high))
    low, high = np.array(intervals).T
    assert len(low) > 300
    assert 0.92 <= np.mean((low <= truth) & (truth <= high)) <= 0.98
