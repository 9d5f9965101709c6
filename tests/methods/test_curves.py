"""hb, iso, bbq, enir, scabin, imax and spline against oracles written another way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

import hcal
from hcal.methods import enir
from hcal.methods._curves import default_floor
from hcal.methods._log_odds import log_odds
from hcal.methods.bbq import bic_weights, elbow_weights
from hcal.methods.imax import maximise_information, seed_centres
from helpers import fit_quietly, synthetic


def fit(name: str, logits: np.ndarray, y: np.ndarray, **params: Any) -> Any:
    return fit_quietly(hcal.make_calibrator(name, **params), logits, y)


@pytest.fixture(scope="module")
def task() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits, y = synthetic(700, 4, seed=3)
    return logits[:500], y[:500], logits[500:]


def test_hb_row_by_row(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_new = task
    p = hcal.softmax(z)
    q = hcal.softmax(z_new)
    expected = np.empty_like(q)
    for k in range(4):
        for i, value in enumerate(q[:, k]):
            low = np.ceil(value * 10) / 10 - 0.1
            inside = (p[:, k] >= low) & (p[:, k] < low + 0.1)
            expected[i, k] = (y[inside] == k).mean() if inside.any() else low + 0.05
    expected /= expected.sum(axis=1, keepdims=True)
    probs = fit("hb", z, y, floor=0).predict_proba(z_new)
    np.testing.assert_allclose(probs, expected, atol=1e-12)


def test_iso_is_that_of_scikit_learn(task: tuple[np.ndarray, ...]) -> None:
    from sklearn.isotonic import IsotonicRegression

    z, y, z_new = task
    p = hcal.softmax(z)
    q = hcal.softmax(z_new)
    columns = []
    for k in range(4):
        isotonic = IsotonicRegression(out_of_bounds="clip").fit(p[:, k], y == k)
        columns.append(isotonic.predict(q[:, k]))
    raw = np.stack(columns, axis=1)
    raw /= raw.sum(axis=1, keepdims=True)
    probs = fit("iso", z, y, floor=0).predict_proba(z_new)
    np.testing.assert_allclose(probs, raw, atol=1e-12)


def test_iso_keeps_apart_what_float32_would_pool() -> None:
    """Probabilities of 1e-8 and 3e-8 are different scores, whatever a tolerance of 1e-6 thinks."""
    small = np.repeat([1e-8, 3e-8], 50)
    probs = np.stack([small, 1 - small], axis=1)
    y = np.where(small > 2e-8, np.arange(100) % 2, 1)
    p = fit("iso", probs, y, input="probs", floor=0).predict_proba(probs)
    assert p[0, 0] < 1e-30  # the least that any method states
    assert p[-1, 0] == pytest.approx(0.5)


def test_bbq_is_the_average_of_its_histograms(task: tuple[np.ndarray, ...]) -> None:
    z, y, z_new = task
    p = hcal.softmax(z)
    q = hcal.softmax(z_new)
    fewest = max(1, int(500 ** (1 / 3) / 10))
    most = min(100, int(np.ceil(10 * 500 ** (1 / 3))))
    counts = np.arange(fewest, most + 1)
    raw = np.zeros_like(q)
    for k in range(4):
        entropy, predicted = [], []
        for b in counts:
            edges = np.linspace(0, 1, b + 1)
            values = []
            for lo, hi in pairwise(edges):
                inside = (p[:, k] >= lo) & (p[:, k] < hi)
                values.append((y[inside] == k).mean() if inside.any() else (lo + hi) / 2)
            values = np.array(values)
            value_of_bin = values[np.ceil(p[:, k] * b).astype(int) - 1]
            with np.errstate(divide="ignore"):
                chance = np.where(y == k, np.log(value_of_bin), np.log1p(-value_of_bin))
            entropy.append(-np.maximum(chance, -100).sum())
            predicted.append(values[np.ceil(q[:, k] * b).astype(int) - 1])
        raw[:, k] = bic_weights(np.array(entropy), counts, 500) @ np.array(predicted)
    raw /= raw.sum(axis=1, keepdims=True)
    probs = fit("bbq", z, y, floor=0).predict_proba(z_new)
    np.testing.assert_allclose(probs, raw, atol=1e-10)


def test_elbow_passes_over_equal_scores_and_stops_where_flat() -> None:
    assert np.count_nonzero(elbow_weights(np.ones(5))) == 5
    assert elbow_weights(np.array([1.0])).tolist() == [1.0]
    # Two equal leaders, one clear drop, then a flat tail.
    scores = np.array([1e-9, 1.0, 0.4, 1.0, 2e-9])
    np.testing.assert_allclose(elbow_weights(scores)[[1, 3]], 1 / 2.4, rtol=1e-6)


def test_enir_path_solves_the_near_isotonic_problem() -> None:
    """Optimality of ½Σ(y − β)² + λΣ(β_i − β_{i+1})₊: prefix sums of β − y are 0 at rises, −λ at falls."""
    rng = np.random.default_rng(3)
    p = rng.random(60)
    _, start = enir.start_groups(p, (rng.random(60) < p).astype(float))
    models = list(enir.path(start))
    assert len(models) > 3
    for model in models:
        spread = np.repeat(model.beta, model.width)
        prefix = np.cumsum(start.mass * spread - start.hits)
        ends = np.cumsum(model.width)[:-1] - 1
        falls = model.beta[:-1] > model.beta[1:]
        strength = -prefix[ends[falls]].mean() if falls.any() else -prefix.min()
        expected = np.where(falls, -strength, 0)
        np.testing.assert_allclose(prefix[ends], expected, atol=1e-9)
        assert prefix.min() >= -strength - 1e-9
        assert prefix.max() <= 1e-9
    assert (np.diff(models[-1].beta) > 0).all()


def test_enir_refuses_what_would_take_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enir, "_MAX_WORK", 100.0)
    logits, y = synthetic(300, 2)
    with pytest.raises(ValueError, match="fit it on a subset of the rows"):
        hcal.make_calibrator("enir").fit(logits, y)


def test_scabin_platt_is_the_unpenalised_logistic_regression(task: tuple[np.ndarray, ...]) -> None:
    from sklearn.linear_model import LogisticRegression

    z, y, _ = task
    cal = fit("scabin", z, y)
    for k in range(4):
        within = np.clip(hcal.softmax(z)[:, k], 1e-12, 1 - 1e-12)
        x = logit(within)[:, None]
        theirs = LogisticRegression(C=1e10, tol=1e-10, max_iter=1000).fit(x, y == k)
        slope = cal.map_.slope[k]
        intercept = cal.map_.intercept[k]
        assert slope == pytest.approx(theirs.coef_[0, 0], rel=1e-4)
        assert intercept == pytest.approx(theirs.intercept_[0], rel=1e-3, abs=1e-3)


def test_scabin_bin_returns_the_mean_of_the_curve() -> None:
    logits, y = synthetic(60, 2)
    cal = fit("scabin", logits, y, bins=4, floor=0)
    slope = cal.map_.slope[1]
    intercept = cal.map_.intercept[1]
    score = np.sort(expit(slope * logit(hcal.softmax(logits)[:, 1]) + intercept))
    values = cal.map_.values[cal.map_.offsets[1] :]
    expected = score.reshape(4, 15).mean(axis=1)
    np.testing.assert_allclose(values, expected)


def test_scabin_default_keeps_accuracy_where_the_published_bins_lose_it() -> None:
    logits, y = synthetic(3000, 30, scale=2)
    ours = fit("scabin", logits, y, bins=None).predict(logits)
    published = fit("scabin", logits, y, bins=15).predict(logits)
    assert (ours == y).mean() > (published == y).mean() + 0.01


def test_imax_keeps_more_information_than_equal_width_bins() -> None:
    logits, _ = synthetic(2000, 5, scale=1)
    odds = np.sort(log_odds(logits).ravel())
    edges = maximise_information(odds, seed_centres(odds, 8, 0))

    def information(cut: np.ndarray) -> float:
        which = np.searchsorted(cut, odds, side="right")
        mass = np.bincount(which, minlength=len(cut) + 1)
        sums = np.bincount(which, weights=expit(odds), minlength=len(cut) + 1)
        mass_used = mass[mass > 0]
        p = sums[mass > 0] / mass_used
        information_of_bins = p * np.log(p) + (1 - p) * np.log1p(-p)
        return float(mass_used @ information_of_bins)

    assert len(edges) == 7
    assert information(edges) > information(logit(np.linspace(0, 1, 9)[1:-1]))
    equal_mass = np.quantile(odds, np.linspace(0, 1, 9)[1:-1])
    assert information(edges) > information(equal_mass)


def test_imax_bin_value_is_the_label_frequency() -> None:
    logits, y = synthetic(300, 3)
    cal = fit("imax", logits, y, bins=6, floor=0)
    odds = log_odds(logits)
    which = np.searchsorted(cal.map_.edges, odds, side="right")
    marks = np.eye(3)[y]
    for b in np.unique(which):
        expected = marks[which == b].mean()
        assert cal.map_.values[b] == pytest.approx(expected)


def test_spline_of_rank_one_follows_its_definition() -> None:
    """Against a least-squares natural spline in the truncated-power basis."""
    logits, y = synthetic(200, 3)
    p = hcal.softmax(logits)
    s = p.max(axis=1)
    h = p.argmax(axis=1) == y
    order = np.argsort(s)
    u = np.linspace(0, 1, 200)
    knots = np.linspace(0, 1, 6)
    gap = np.cumsum(h[order]) / 200 - np.cumsum(s[order]) / 200

    def cubes(j: int) -> np.ndarray:
        above_knot = np.maximum(u - knots[j], 0) ** 3
        above_last = np.maximum(u - knots[5], 0) ** 3
        return (above_knot - above_last) / (knots[5] - knots[j])

    curved = [cubes(j) - cubes(4) for j in range(4)]
    basis = np.stack([np.ones(200), u, *curved], axis=1)
    fitted = basis @ np.linalg.lstsq(basis, gap, rcond=None)[0]
    expected = s[order] + np.gradient(fitted, u, edge_order=2)
    curves = fit("spline", logits, y).map_
    of_class = slice(curves.offsets[0], curves.offsets[1])
    np.testing.assert_allclose(curves.knots[of_class], s[order])
    # The oracle differentiates numerically: second-order error on 200 points.
    np.testing.assert_allclose(curves.values[of_class], expected, atol=2e-3)


def test_floor_is_the_documented_one() -> None:
    """A zero bin is mixed with the uniform row at weight 1/(N + 1); a class without rows keeps its p_k."""
    assert float(default_floor(None, 5000, 10)) == 1 / 50_000
    probs = np.array([[0.05, 0.95]] * 20 + [[0.95, 0.05]] * 20)
    half_right = np.repeat([1, 0], 20)
    p = fit("hb", probs, half_right, input="probs").predict_proba(probs)
    np.testing.assert_allclose(p[0, 0], 1 / 41 / 2)
    all_right = np.ones(20, dtype=int)
    p = fit("hb", probs[:20], all_right, input="probs", floor=0).predict_proba(probs[:1])
    np.testing.assert_allclose(p[0, 0], 0.05 / (0.05 + 1))


def test_bad_floors_and_sizes_are_refused() -> None:
    for params in ({"floor": -1e-3}, {"bins": 0}, {"knots": 1}):
        for name in ("hb", "iso", "bbq", "enir", "scabin", "imax", "spline", "smooth_spline"):
            if params.keys() <= hcal.make_calibrator(name).get_params().keys():
                with pytest.raises(
                    ValueError, match=f"parameter '{next(iter(params))}' of '{name}' must be"
                ):
                    hcal.make_calibrator(name, **params).fit(*synthetic(40, 3))
