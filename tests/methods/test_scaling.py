"""What the scaling and non-linear methods do at their edges, beyond the common table."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

import hcal
from hcal.methods import lece
from hcal.methods.base import by_content
from hcal.methods.dec import CriticError, train_critic
from hcal.methods.folds import deal_folds, fold_sides
from hcal.methods.softbin import soft_binned_error
from hcal.rows import Rows
from hcal.solvers.temperature import top_probability
from helpers import fit_quietly, synthetic


def fit(name: str, z: np.ndarray, y: np.ndarray, **params):
    return hcal.make_calibrator(name, **params).fit(z, y)


def test_ec_matches_confidence_to_accuracy_at_any_scale() -> None:
    z, y = synthetic(500)
    for scale in (1e-3, 1.0, 1e3):
        cal = fit("ec", z * scale, y)
        accuracy = (z.argmax(axis=1) == y).mean()
        confidence = cal.predict_proba(z * scale).max(axis=1).mean()
        assert confidence == pytest.approx(accuracy, abs=1e-9)


def test_ec_without_a_root_takes_an_end_of_the_bracket_and_warns() -> None:
    z, _ = synthetic(100)
    always_right = (z.argmax(axis=1), 0.01, 0.0101)
    always_wrong = (z.argmin(axis=1), 10, np.inf)
    for y, least, most in (always_right, always_wrong):
        with pytest.warns(hcal.CalibrationWarning, match="no temperature gives"):
            assert least * (1 - 1e-9) <= fit("ec", z, y).fit_.details["temperature"] <= most


def test_ets_mixes_in_the_uniform_where_labels_are_noisy() -> None:
    """A tenth of the labels replaced at random is what w₃ is for: no temperature can express it."""
    rng = np.random.default_rng(0)
    z, _ = synthetic(4000, scale=1)
    z = 8 * z
    is_random = rng.random(4000) < 0.3
    y = np.where(is_random, rng.integers(0, 4, 4000), z.argmax(axis=1))
    cal = fit("ets", z, y)
    w = cal.fit_.details["weights"]
    assert sum(w) == pytest.approx(1)
    assert w[2] > 0.05
    brier = hcal.metrics.brier
    of_ts = brier(fit("ts", z, y).predict_proba(z), y)
    assert brier(cal.predict_proba(z), y) < of_ts


def test_sctl_is_ts_when_all_classes_fare_alike() -> None:
    z, y = synthetic(200)
    # Every class gets the same rows with its name rotated: all class losses are equal, all weights 1.
    rotated = np.concatenate([np.roll(z, s, axis=1) for s in range(4)])
    labels = np.concatenate([(y + s) % 4 for s in range(4)])
    ts = fit("ts", rotated, labels)
    sctl = fit("sctl", rotated, labels)
    assert sctl.fit_.details["temperature"] == pytest.approx(
        ts.fit_.details["temperature"], rel=1e-6
    )


def test_softbin_minimises_what_it_says() -> None:
    z, y = synthetic(800)
    cal = fit("softbin", z, y)
    hit = (z.argmax(axis=1) == y).astype(float)
    w = np.full(800, 1 / 800)
    beta = 1 / cal.fit_.details["temperature"]
    betas = beta * np.linspace(0.4, 2.5, 200)
    errors = [soft_binned_error(top_probability(z, b), hit, w) for b in betas]
    assert cal.fit_.details["error"] <= min(errors) + 1e-6


def test_vs_and_beta_keep_absent_classes_and_what_they_maximise() -> None:
    """At the maximum likelihood of a free offset, mean probability and frequency of every class agree."""
    z, y = synthetic(400)
    for name in ("vs", "beta", "offset"):
        cal = fit(name, z[y != 2], y[y != 2])
        unchanged = pytest.approx(hcal.softmax(z)[:, 2], rel=1e-9)
        assert cal.predict_proba(z)[:, 2] == unchanged
    for name in ("vs", "offset"):
        means = fit(name, z, y).predict_proba(z).mean(axis=0)
        expected = np.bincount(y) / len(y)
        assert means == pytest.approx(expected, abs=1e-6)
    assert fit("beta", -z, y).map_.slopes.min() >= 0  # scores turned around ask for negative slopes


def test_offset_of_two_classes_is_the_intercept_of_a_logistic_regression_with_slope_one() -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(-1, 1.5, 500)
    rate = 1 / (1 + np.exp(1.2 - odds))
    y = (rng.random(500) < rate).astype(int)

    def excess(intercept: float) -> float:
        return (1 / (1 + np.exp(-odds - intercept)) - y).mean()

    intercept = brentq(excess, -10, 10, xtol=1e-12)
    probs = fit("offset", odds, y).predict_proba(odds)
    change = np.log(probs[:, 1] / probs[:, 0]) - odds
    np.testing.assert_allclose(change, intercept, atol=1e-6)


def test_structured_scaling_fades_to_temperature_scaling() -> None:
    z, y = synthetic(300)
    ts = fit("ts", z, y).predict_proba(z)
    for name in ("svs", "sms"):
        strong = fit(name, z, y, strength=1e6).predict_proba(z)
        assert np.abs(strong - ts).max() < 2 / 300  # the mixed uniform, ε = 1/(N + 1)
        weak = fit(name, z, y, strength=0.05)
        assert hcal.metrics.nll(weak.predict_proba(z), y) < hcal.metrics.nll(ts, y)


def test_refusals_of_the_matrix_methods() -> None:
    z, y = synthetic(60)
    with pytest.raises(ValueError, match="folds=1"):
        fit("ms", z, y, folds=1)
    wide = np.random.default_rng(0).normal(size=(2000, 1200)).astype(np.float32)
    with pytest.raises(ValueError, match=r"the limit for ten minutes .* use 'sms'"):
        fit("dir", wide, np.zeros(2000, dtype=int))


def test_one_pair_on_all_rows_is_the_plain_penalised_fit() -> None:
    z, y = synthetic(200)
    cal = fit("ms", z, y, penalty=(0.5, 0.5), folds=1)
    assert cal.map_.matrix.shape == (1, 4, 4)
    matrix = cal.map_.matrix[0]
    off = matrix - np.diag(np.diag(matrix))
    p = cal.predict_proba(z)
    # Stationary: gradient of the mean NLL in W plus 2 lambda W is zero off the diagonal.
    centred = z - z.mean(axis=1, keepdims=True)
    of_loss = (p - np.eye(4)[y]).T @ centred / 200
    gradient = of_loss + 2 * 0.5 * off
    assert gradient[~np.eye(4, dtype=bool)] == pytest.approx(0, abs=1e-5)


def test_gp_averages_over_draws_that_its_map_holds() -> None:
    z, y = synthetic(200)
    cal = fit("gp", z, y)
    assert cal.map_.draws.shape == (50, 4)
    mean = fit("gp", z, y, samples=0)
    assert np.abs(mean.predict_proba(z) - cal.predict_proba(z)).max() < 0.1


def test_dec_lowers_the_largest_violation_of_its_critics() -> None:
    z, y = synthetic(600, scale=3.0)
    marks = np.eye(4)[y]
    w = np.full(600, 1 / 600)

    def violation(p: np.ndarray) -> float:
        rng = np.random.RandomState(5)
        error = CriticError(p, marks - p, w)
        critics = [train_critic(error, rng.uniform(-1, 1, 4)) for _ in range(5)]
        return max(-error.negative(critic)[0] for critic in critics)

    with_critics = fit("dec", z, y, critics=30).predict_proba(z)
    assert violation(with_critics) < 0.5 * violation(fit("dec", z, y, critics=0).predict_proba(z))


def test_dec_without_critics_is_temperature_scaling() -> None:
    z, y = synthetic(300)
    dec = fit("dec", z, y, critics=0, floor=0.0)
    ts = fit("ts", z, y)
    # dec sees logits on a grid of 2e-10 of their spread
    assert dec.predict_proba(z) == pytest.approx(ts.predict_proba(z), abs=1e-9)


def test_diag_beats_temperature_scaling_where_the_truth_is_not_linear() -> None:
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        u = rng.normal(size=(n, 4)) * 2
        # an increasing distortion of the true logits, and their labels
        labels = (u + rng.gumbel(size=u.shape)).argmax(axis=1)
        return np.sign(u) * np.abs(u) ** 2.5, labels

    task = draw(1500)
    new = draw(5000)
    of_ts = fit("ts", *task).score(*new)
    assert fit("diag", *task, hidden=(10,)).score(*new) > of_ts + 0.02


def test_mean_confidence_rises_with_beta() -> None:
    z, _ = synthetic(50)
    curve = [top_probability(z, b).mean() for b in np.geomspace(1e-6, 1e6, 25)]
    assert curve[0] == pytest.approx(1 / 4, abs=1e-4)
    assert (np.diff(curve) >= 0).all()


# -- lece and ts_lece against a loop over rows ------------------------------------------------------


def shift(
    q: np.ndarray, p: np.ndarray, y: np.ndarray, fraction: float, threshold: float
) -> np.ndarray:
    """The definition, a row at a time."""
    out = []
    for row in q:
        divergence = (row * np.log(row / p)).sum(axis=1)
        size = max(1, int(fraction * len(p)))
        near = np.argsort(divergence, kind="stable")[:size]
        frequencies = np.eye(p.shape[1])[y[near]].mean(axis=0)
        error = p[near].mean(axis=0) - frequencies
        error[row <= threshold] = 0
        error[row - error <= threshold] = 0
        out.append((row - error) / (row - error).sum())
    return np.array(out)


def test_lece_row_by_row() -> None:
    z, y = synthetic(200, seed=8)
    new = synthetic(60, seed=9)[0]
    for fraction in (0.05, 0.2, 1.0):
        for threshold in (0.0, 0.04, 1.0):
            cal = fit_quietly(
                hcal.make_calibrator("lece", fraction=fraction, threshold=threshold), z, y
            )
            expected = shift(hcal.softmax(new), hcal.softmax(z), y, fraction, threshold)
            np.testing.assert_allclose(cal.predict_proba(new), expected, atol=1e-12)
    assert cal.map_.probs.size == 0  # a threshold of 1 moves nothing and keeps no row


def test_lece_chooses_the_lowest_mean_held_out_nll() -> None:
    rows = by_content(Rows.of(*synthetic(80, seed=8), input="logits"))
    z = rows.scores
    y = rows.labels
    p = hcal.softmax(z)
    sides = fold_sides(deal_folds(z, 4))
    best = np.inf
    choice = (0.0, 0.0)
    for fraction in lece.FRACTIONS:
        for threshold in lece.ERROR_THRESHOLDS:
            held_out = []
            for rows, held_out_rows in sides:
                new = p[held_out_rows]
                shifted = shift(new, p[rows], y[rows], fraction, threshold)
                held_out.append(hcal.metrics.nll(shifted, y[held_out_rows]))
            if np.mean(held_out) < best - 1e-12:
                best = float(np.mean(held_out))
                choice = (fraction, threshold)
    info = fit_quietly(hcal.make_calibrator("lece", folds=4), z, y).fit_.details
    assert (info["fraction"], info["threshold"]) == choice
    assert info["held_out_nll"] == pytest.approx(best, rel=1e-9)


def test_ts_lece_is_lece_after_ts() -> None:
    z, y = synthetic(200, seed=8)
    both = fit("ts_lece", z, y)
    ts = fit("ts", z, y)
    chosen = {name: both.fit_.details[name] for name in ("fraction", "threshold")}
    after = fit_quietly(
        hcal.make_calibrator("lece", input="probs", **chosen), ts.predict_proba(z), y
    )
    one_after_the_other = after.predict_proba(ts.predict_proba(z))
    np.testing.assert_allclose(both.predict_proba(z), one_after_the_other, atol=1e-9)


def test_rows_at_the_distance_of_the_last_neighbour_share_its_place() -> None:
    """Five equal rows, two neighbours: each counts 2/5, whatever stands first."""
    p = np.array([[0.5, 0.5]] * 5 + [[0.01, 0.99]] * 3)
    y = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    for order in (np.arange(8), np.arange(8)[::-1]):
        distance = lece.distances(np.array([[0.5, 0.5]]), p[order])
        limit = np.sort(distance, axis=1)[:, 1:2]
        gaps = p[order] - np.eye(2)[y[order]]
        errors = lece.mean_errors(distance, limit, np.array(2), gaps)
        np.testing.assert_allclose(errors, [[-0.1, 0.1]], atol=1e-15)


def test_lece_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = synthetic(60)
    monkeypatch.setattr(lece, "_MAX_WORK", 1000.0)
    with pytest.raises(ValueError, match="compares all pairs of rows: 60 rows of 4 classes"):
        fit("ts_lece", z, y)
