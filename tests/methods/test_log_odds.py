"""Curves of the log-odds and their relatives: platt, quadratic, smooth_spline, cir, venn_abers."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.interpolate import CubicSpline
from scipy.special import expit, logit
from sklearn.isotonic import isotonic_regression

import hcal
from hcal.methods import cir, venn_abers
from hcal.methods._log_odds import log_odds
from hcal.methods.base import by_content
from hcal.methods.folds import deal_folds
from hcal.methods.smooth_spline import (
    _bending,
    _columns,
    _Counts,
    _increasing,
    _knots,
    _left_out_loss,
)
from hcal.rows import Rows
from hcal.solvers.regression import fit_logistic
from helpers import DATA, fit_quietly, synthetic

NEW = ["platt", "quadratic", "smooth_spline", "cir", "venn_abers"]


def fit(name: str, z: Any, y: Any, **params: Any) -> Any:
    return fit_quietly(hcal.make_calibrator(name, **params), z, y)


def binary(n: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are too steep and shifted."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n) * 3
    return score, (rng.random(n) < expit(0.6 * score - 0.5)).astype(int)


# -- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEW)
def test_the_two_classes_are_one_event(name: str) -> None:
    """Swapping the names of the classes swaps the columns."""
    z, y = synthetic(300, 2)
    p = fit(name, z, y).predict_proba(z)
    turned = z[:, ::-1]
    swapped = fit(name, turned, 1 - y).predict_proba(turned)
    np.testing.assert_allclose(p, swapped[:, ::-1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["platt", "quadratic", "smooth_spline"])
def test_a_binary_ranking_is_kept_strictly(name: str) -> None:
    """Also where the labels say nothing, and far outside the calibration rows; floats may tie, not invert."""
    for seed in range(3):
        score, y = binary(200, seed=seed)
        y = np.where(np.random.default_rng(seed).random(200) < 0.4, 1 - y, y)
        grid = np.linspace(-30, 30, 601)
        p = fit(name, score, y).predict_proba(grid)
        odds = np.log(p[:, 1]) - np.log(p[:, 0])
        assert (np.diff(odds) > 0).all()


@pytest.mark.parametrize("name", NEW)
def test_one_class_only_leaves_two_classes_as_they_are(name: str) -> None:
    z, _ = synthetic(50, 2)
    options = {"floor": 0} if name == "cir" else {}
    p = fit(name, z, np.ones(50, dtype=int), **options).predict_proba(z)
    if name != "cir":  # its curve of the class that is there is the constant 1
        np.testing.assert_allclose(p, hcal.softmax(z), atol=1e-12)
    assert np.isfinite(p).all()


def test_log_odds_lose_nothing_near_one() -> None:
    z = np.array([[0.0, 40.0, 1.0], [-1e4, 1e4, 0.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
    odds = log_odds(z)
    expected = 40 - np.logaddexp(0, 1)
    np.testing.assert_allclose(odds[0, 1], expected, rtol=1e-14)
    np.testing.assert_allclose(odds[1], [-2e4, 1e4, -1e4])
    np.testing.assert_allclose(odds[2], np.log(0.5))
    expected = logit(hcal.softmax(z)[3])
    np.testing.assert_allclose(odds[3], expected)


# -- platt ----------------------------------------------------------------------------------------


def test_platt_is_the_logistic_regression_of_the_log_odds() -> None:
    from sklearn.linear_model import LogisticRegression

    score, y = binary(500)
    cal = fit("platt", score, y, smooth=False)
    reference = LogisticRegression(C=1e10, tol=1e-10).fit(score[:, None], y)
    assert cal.map_.slope[0] == pytest.approx(reference.coef_[0, 0], rel=1e-5)
    assert cal.map_.intercept[0] == pytest.approx(reference.intercept_[0], rel=1e-4)
    assert fit("platt", score, 1 - y).map_.slope[0] == 0  # a ranking is never turned around


def test_platt_targets_keep_separable_rows_finite() -> None:
    low = np.linspace(-3, -1, 20)
    high = np.linspace(1, 3, 20)
    score = np.concatenate([low, high])
    y = (score > 0).astype(int)
    cal = fit("platt", score, y)
    p = cal.predict_proba(score)[:, 1]
    target = np.where(y == 1, 21 / 22, 1 / 22)
    assert p.mean() == pytest.approx(0.5, abs=1e-6)
    assert score @ p == pytest.approx(
        score @ target, rel=1e-6
    )  # the equation of the slope has a root


# -- quadratic ------------------------------------------------------------------------------------


def test_quadratic_finds_the_log_odds_of_two_gaussians() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 20000)
    score = np.where(y == 1, rng.normal(2, 1.5, 20000), rng.normal(-1, 1, 20000))
    log_density_of_1 = -np.log(1.5) - (score - 2) ** 2 / (2 * 1.5**2)
    log_density_of_0 = -((score + 1) ** 2) / 2
    true = log_density_of_1 - log_density_of_0
    nll = {m: -fit(m, score, y).score(score, y) for m in ("platt", "quadratic")}
    best = float(np.mean(np.logaddexp(0, true) - y * true))
    # Below −2.2 the true parabola falls and ours must not: 1 % of the rows of class 0.
    assert best - 1e-3 < nll["quadratic"] < best + 2e-3 < nll["platt"]


def test_quadratic_goes_on_straight_outside_its_rows() -> None:
    score, y = binary(400)
    cal = fit("quadratic", score, y)
    for edge, slope in ((score.max(), "high_slope"), (score.min(), "low_slope")):
        side = np.sign(edge)
        p = cal.predict_proba(edge + side * np.array([1.0, 2.0, 3.0]))[:, 1]
        expected = side * getattr(cal.map_, slope)[0]
        np.testing.assert_allclose(np.diff(logit(p)), expected, rtol=1e-6)


# -- smooth_spline --------------------------------------------------------------------------------


def test_left_out_loss_is_the_one_of_refits() -> None:
    score, y = binary(60)
    hits = y.astype(float)
    ones = np.ones(60)
    knots = _knots(score, ones, 6)
    design = _columns(score, knots)
    penalty = 60 * 0.05 * _bending(knots)
    on_all_rows = fit_logistic(design, hits, penalty=penalty)
    quick = _left_out_loss(design, on_all_rows, _Counts(score, ones, hits, np.array([0.0, 1.0])))
    losses = []
    for i in range(60):
        without = fit_logistic(design, hits, ones * (np.arange(60) != i), penalty=penalty).theta
        score_of_row = design[i] @ without
        losses.append(np.logaddexp(0, score_of_row) - hits[i] * score_of_row)
    excess = np.sum(losses) - on_all_rows.value
    assert quick == pytest.approx(np.sum(losses), abs=0.1 * excess)


def test_the_columns_are_natural_cubic_splines_and_bending_is_their_squared_second_derivative() -> (
    None
):
    rng = np.random.default_rng(0)
    knots = np.sort(rng.normal(size=7))
    theta = rng.normal(size=7)
    spline = CubicSpline(knots, _columns(knots, knots) @ theta, bc_type="natural")
    fine = np.linspace(knots[0], knots[-1], 200001)
    np.testing.assert_allclose(_columns(fine, knots) @ theta, spline(fine), atol=1e-10)
    expected = trapezoid(spline(fine, 2) ** 2, fine)
    assert theta @ _bending(knots) @ theta == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_rounding_does_not_move_the_spline(n_classes: int) -> None:
    """Neither of scores that all differ, nor of votes that tie by the hundred and are 0 or 1 at the ends."""
    rng = np.random.default_rng(n_classes)
    y = rng.integers(0, n_classes, 600)
    signal = 1.5 * np.eye(n_classes)[y]
    smooth = hcal.softmax(rng.normal(size=(600, n_classes)) + signal)
    votes = np.stack([rng.multinomial(10, row) for row in smooth]) / 10
    for probs in (smooth, votes):
        base = fit("smooth_spline", probs, y, input="probs").predict_proba(probs)
        noisy = probs * (1 + 1e-6 * rng.normal(size=probs.shape))
        noisy /= noisy.sum(axis=1, keepdims=True)
        moved = fit("smooth_spline", noisy, y, input="probs").predict_proba(probs)
        np.testing.assert_allclose(moved, base, rtol=0, atol=1e-5)
        narrow = probs.astype(np.float32)
        moved = fit("smooth_spline", narrow, y, input="probs").predict_proba(narrow)
        np.testing.assert_allclose(moved, base, rtol=0, atol=1e-3)


def test_the_correction_of_a_falling_curve_sets_in_at_nothing() -> None:
    """Where a curve turns from rising a little to falling a little, its correction changes as little."""
    x = np.linspace(0.0, 1.0, 101)
    half = np.full(101, 0.5)
    counts = _Counts(x, np.ones(101), half, np.array([0.0, 1.0]))
    knots = np.linspace(0.0, 1.0, 5)
    curves = []
    for bend in np.linspace(-1.05, -0.95, 1001):
        bent = np.array([0.0, 1.0, 0.0, bend, 0.0])
        values = _increasing(knots, bent, counts, least=1e-3)[1]
        assert (np.diff(values) > 0).all()
        curves.append(values)
    bent = np.array([0.0, 1.0, 0.0, -1.05, 0.0])
    uncorrected = _columns(np.array([0.9, 1.0]), knots) @ bent
    assert uncorrected[1] < uncorrected[0]
    assert np.abs(np.diff(curves, axis=0)).max() < 1e-4


def test_spline_follows_a_curve_and_leaves_a_line_alone() -> None:
    rng = np.random.default_rng(1)
    score = rng.normal(size=4000) * 3
    new = np.linspace(-6, 6, 200)
    for truth in (lambda s: 2 * np.tanh(s), lambda s: 0.5 * s + 0.3):
        y = (rng.random(4000) < expit(truth(score))).astype(int)
        p = fit("smooth_spline", score, y).predict_proba(new)[:, 1]
        assert np.abs(p - expit(truth(new))).mean() < 0.02


# -- cir ------------------------------------------------------------------------------------------


def test_cir_shrinks_flat_stretches_to_their_centres() -> None:
    p = np.array([0.1, 0.2, 0.4, 0.6, 0.9])
    hit = np.array([0.0, 1.0, 0.0, 1.0, 1.0])
    knots, values = cir._centered(p, hit, None)
    # 0 | 1 0 pooled to ½ at .3 | 1 1, which stays flat
    np.testing.assert_allclose(knots, [0.1, 0.3, 0.6, 0.9])
    np.testing.assert_allclose(values, [0.0, 0.5, 1.0, 1.0])


def test_cir_weighs_the_centre_and_passes_the_isotonic_means() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(400)
    weight = rng.integers(1, 4, 400).astype(float)
    hit = (rng.random(400) < p).astype(float)
    knots, values = cir._centered(p, hit, weight)
    order = np.argsort(p)
    level = isotonic_regression(hit[order], sample_weight=weight[order])
    for value in np.unique(level[(level > 0) & (level < 1)]):
        block = level == value
        centre = np.average(p[order][block], weights=weight[order][block])
        assert np.interp(centre, knots, values) == pytest.approx(value)
    inside = (values > 0) & (values < 1)
    assert (np.diff(values[inside]) > 0).all()


# -- venn_abers -----------------------------------------------------------------------------------


def test_bridges_are_the_isotonic_fits_with_a_hit_added() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        size = rng.integers(1, 30)
        mass = rng.integers(1, 4, size).astype(float)
        hits = np.minimum(rng.integers(0, 4, size), mass).astype(float)
        bridge = venn_abers.with_a_hit(mass, hits)
        for j in range(size):
            mass_with_hit = mass + (np.arange(size) == j)
            rate = (hits + (np.arange(size) == j)) / mass_with_hit
            assert bridge[j] == pytest.approx(
                isotonic_regression(rate, sample_weight=mass_with_hit)[j], abs=1e-12
            )


def test_the_interval_holds_the_probability() -> None:
    for k, folds in ((2, 1), (2, 4), (3, 1), (3, 4)):
        z, y = synthetic(300, k)
        cal = fit("venn_abers", z, y, folds=folds)
        low, high = cal.predict_interval(z)
        assert low.shape == high.shape == z.shape
        assert ((low >= 0) & (low < high) & (high <= 1)).all()
        p = cal.predict_proba(z)
        assert k > 2 or ((low <= p) & (p <= high)).all()


def test_the_interval_meets_what_the_probability_meets() -> None:
    """Logits of any size, cut alike; other class frequencies, under which no interval is known."""
    z, y = synthetic(100, 3)
    cal = fit("venn_abers", z, y)
    huge = np.array([[1e150, -1e150, 3.0], [0.0, 1e140, -1e140]])
    for far, near in zip(
        cal.predict_interval(huge), cal.predict_interval(huge / 1e100), strict=True
    ):
        np.testing.assert_array_equal(far, near)
    with pytest.raises(ValueError, match="class frequencies of the fit"):
        cal.with_prior([0.2, 0.3, 0.5]).predict_interval(z)


def test_the_interval_between_rows_is_that_of_a_new_row() -> None:
    score, y = binary(40)
    new = np.linspace(-9, 9, 37)
    low, high = fit("venn_abers", score, y).predict_interval(new)
    for i, s in enumerate(new):
        order = np.argsort(np.append(score, s))
        at = int(np.flatnonzero(order == 40)[0])
        for label, edge in ((0, low), (1, high)):
            value = isotonic_regression(np.append(y, label).astype(float)[order])[at]
            assert edge[i, 1] == pytest.approx(value, abs=1e-12)


def test_cross_merges_by_geometric_means() -> None:
    score, y = binary(90)
    got = fit("venn_abers", score, y, folds=3).predict_proba(score)[:, 1]
    z = np.stack([np.zeros(90), score], axis=1)
    rows = by_content(Rows.of(z, y, input="logits"))
    x = rows.scores
    labels = rows.labels
    fold = deal_folds(x, 3)
    parts = []
    for f in range(3):
        of_fold = fit("venn_abers", x[fold == f], labels[fold == f])
        parts.append(of_fold.predict_interval(score))
    log_hit = np.mean([np.log(high[:, 1]) for _, high in parts], axis=0)
    hit = np.exp(log_hit)
    log_miss = np.mean([np.log1p(-low[:, 1]) for low, _ in parts], axis=0)
    miss = np.exp(log_miss)
    np.testing.assert_allclose(got, hit / (hit + miss), rtol=1e-12)


@pytest.mark.data
@pytest.mark.parametrize("task", ["bank_lgbm", "magic_mlp", "credit_hgb", "pima_logreg", "oil_svc"])
def test_venn_abers_scores_as_the_stored_reference(task: str) -> None:
    path = DATA / "tabular" / f"{task}.npz"
    if not path.exists():
        pytest.skip(
            f"needs the shared data: tabular/{path.name} is not in ../shared/data or HCAL_DATA"
        )
    with np.load(path) as f:
        p = fit("venn_abers", f["probs_cal"], f["y_cal"], input="probs").predict_proba(
            f["probs_test"]
        )
        brier = hcal.metrics.brier(p, f["y_test"])
    with (path.parent / "peers.csv").open(newline="") as f:
        stored = {r["method"]: r for r in csv.DictReader(f) if r["task"] == task}
    assert brier == pytest.approx(float(stored["venn-abers"]["brier"]), abs=1e-6)


def test_seven_times_the_rows_make_the_interval_narrower() -> None:
    """Issue 28: weights that are all 7 are seven copies of each row, beside which the new row is one."""
    score, y = binary(100)
    one = fit("venn_abers", score, y)
    seven = fit("venn_abers", np.tile(score, 7), np.tile(y, 7))
    weighted = fit_quietly(
        hcal.make_calibrator("venn_abers"), score, y, sample_weight=np.full(100, 7.0)
    )
    np.testing.assert_allclose(
        weighted.predict_proba(score), seven.predict_proba(score), atol=1e-12
    )
    widths = []
    for cal in (one, seven):
        low, high = cal.predict_interval(score)
        widths.append(np.mean(high - low))
    assert widths[1] < 0.3 * widths[0]
