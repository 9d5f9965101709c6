"""The clinical panel against formulas written out, other implementations and simulated truths."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

import hcal


def risks(n: int, seed: int, slope: float = 0.8, intercept: float = 0.2) -> tuple[np.ndarray, ...]:
    """Predicted risks, outcomes and true risks."""
    rng = np.random.default_rng(seed)
    z = rng.normal(-1.0, 1.2, n)
    truth = 1 / (1 + np.exp(-(slope * z + intercept)))
    return 1 / (1 + np.exp(-z)), (rng.random(n) < truth).astype(int), truth


def test_slope_intercept_and_calibration_in_the_large() -> None:
    p, y, _ = risks(600, 0)
    found = hcal.clinical(p, y)
    x = np.log(p / (1 - p))
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x[:, None], y)
    design, risk = np.stack([np.ones_like(x), x], axis=1), model.predict_proba(x[:, None])[:, 1]
    se = np.sqrt(np.diag(np.linalg.inv(design.T @ (design * (risk * (1 - risk))[:, None]))))
    for ours, value, error in zip(
        (found.intercept, found.slope), (model.intercept_[0], model.coef_[0, 0]), se, strict=True
    ):
        expected = (value, value - 1.959964 * error, value + 1.959964 * error)
        assert (ours.value, ours.low, ours.high) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    # At its solution the shifted risks sum to the number of outcomes.
    shifted = 1 / (1 + np.exp(-(x + found.in_the_large.value)))
    assert shifted.sum() == pytest.approx(y.sum())
    error = 1 / np.sqrt((shifted * (1 - shifted)).sum())
    assert found.in_the_large.high - found.in_the_large.value == pytest.approx(
        1.959964 * error, rel=1e-5
    )


def test_numbers_that_have_formulas() -> None:
    p, y, _ = risks(500, 1)
    p = p.round(2).clip(0.01, 0.99)  # ties
    found = hcal.clinical(p, y, confidence=0.9, thresholds=[0.1, 0.25, 0.995])
    assert found.observed_expected.value == pytest.approx(y.sum() / p.sum())
    reach = 1.644854 * np.sqrt((1 - y.mean()) / y.sum())
    assert np.log(found.observed_expected.high / found.observed_expected.value) == pytest.approx(
        reach, rel=1e-5
    )
    assert found.brier.value == pytest.approx(brier_score_loss(y, p))
    assert found.scaled_brier.value == pytest.approx(
        1 - found.brier.value / (y.mean() * (1 - y.mean()))
    )
    # The area and its variance by all pairs: a pair counts 1, or 1/2 where it ties.
    yes, no = p[y == 1], p[y == 0]
    wins = (yes[:, None] > no) + 0.5 * (yes[:, None] == no)
    assert found.auc.value == pytest.approx(wins.mean()) == pytest.approx(roc_auc_score(y, p))
    se = np.sqrt(wins.mean(1).var(ddof=1) / len(yes) + wins.mean(0).var(ddof=1) / len(no))
    assert found.auc.high - found.auc.value == pytest.approx(1.644854 * se, rel=1e-5)
    z = ((y - p) * (1 - 2 * p)).sum() / np.sqrt(((1 - 2 * p) ** 2 * p * (1 - p)).sum())
    assert found.spiegelhalter_z == pytest.approx(z)
    for i, t in enumerate([0.1, 0.25, 0.995]):
        treated = p >= t
        true, false = (treated & (y == 1)).mean(), (treated & (y == 0)).mean()
        assert found.net_benefit.model[i] == pytest.approx(true - false * t / (1 - t))
        assert found.net_benefit.treat_all[i] == pytest.approx(
            y.mean() - (1 - y.mean()) * t / (1 - t)
        )
    cuts = [-1.0, *np.quantile(p, np.arange(1, 10) / 10), 2.0]
    groups = [(p > a) & (p <= b) for a, b in itertools.pairwise(cuts)]
    chi = sum(
        (y[g].sum() - p[g].sum()) ** 2 / (p[g].sum() * (1 - p[g].mean())) for g in groups if g.any()
    )
    assert found.hosmer_lemeshow == pytest.approx(chi)
    # χ² of 10 degrees of freedom. One group expects fewer than 5 events, so the p-value is the
    # rank among 999 drawn sets, whose standard deviation is 0.015.
    tail = np.exp(-chi / 2) * sum((chi / 2) ** k / np.prod(np.arange(1, k + 1)) for k in range(5))
    assert found.hosmer_lemeshow_p == pytest.approx(float(tail), abs=0.05)


def test_distances_to_the_smooth_curve_are_those_of_the_truth() -> None:
    p, y, truth = risks(20_000, 2)
    found = hcal.clinical(p, y)
    gap = np.abs(truth - p)
    expected = gap.mean(), np.median(gap), np.quantile(gap, 0.9), gap.max()
    for name, value in zip(("ici", "e50", "e90", "e_max"), expected, strict=True):
        estimate = getattr(found, name)
        assert estimate.value == pytest.approx(value, abs=0.03 if name == "e_max" else 0.01), name
        assert estimate.low <= value <= estimate.high, name
    at = np.interp(found.curve.predicted, np.sort(p), truth[np.argsort(p)])
    assert np.abs(found.curve.observed - at).max() < 0.04
    assert 0.02 < (found.curve.high - found.curve.low).max() < 0.2
    assert ((found.curve.low <= at) & (at <= found.curve.high)).mean() > 0.8


def test_intervals_cover_and_calibrated_predictions_are_not_accused() -> None:
    covered, clean = np.zeros(4), np.zeros(4)
    for seed in range(40):
        p, y, truth = risks(400, seed)
        r = hcal.clinical(p, y)
        ends = ((r.slope, 0.8), (r.intercept, 0.2), (r.ici, np.abs(truth - p).mean()))
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
    assert np.isnan(
        hcal.clinical([0.6, 0.3, 0.3], [0, 0, 1]).slope.value
    )  # separated, but for a tie
    edges = hcal.clinical(np.where(np.arange(200) < 5, [0.0, 1.0] * 100, p), y)
    assert np.isfinite(edges.slope.value)
    certain = hcal.clinical(
        np.round(p), y
    )  # 0 and 1: log-odds of ±18, where a full Newton step overflows
    assert (
        1 / (1 + np.exp(-(np.where(p > 0.5, 1, -1) * 18.420680744 + certain.in_the_large.value)))
    ).sum() == (pytest.approx(y.sum(), rel=1e-6))
    for arguments, options, message in (
        ((p, np.zeros(200, int)), {}, "needs rows with and without class 1; 0 of 200"),
        ((p, y), {"positive": 2}, r"positive must be a class 0\.\.1, got 2"),
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
    one, alone = hcal.clinical(p, y, positive=2), hcal.clinical(p[:, 2], y == 2)
    assert one.slope.value == pytest.approx(alone.slope.value, rel=1e-6)
    assert one.auc.value == alone.auc.value
    mirror = hcal.clinical(p[:, 2], y == 2, positive=0)
    assert mirror.slope.value == pytest.approx(alone.slope.value, rel=1e-6)
    assert mirror.intercept.value == pytest.approx(-alone.intercept.value, rel=1e-6)
    text, content = str(one), json.loads(json.dumps(one.to_dict()))
    assert text.startswith("300 rows, ")
    assert "calibration slope" in text
    assert "Do not rely on this test" in text
    assert set(content["slope"]) == {"value", "low", "high"}
    assert len(content["net_benefit"]["thresholds"]) == 99
