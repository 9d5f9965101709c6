"""The default is sound: the same rows give the same model, weights count, no term decides alone."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.calibrators.h.judge import Verdict
from hcal.calibrators.h.temperature import careful_temperature
from hcal.numerics import softmax
from hcal.solvers.temperature import solve_temperature
from helpers import load_task, synthetic


def quiet(*args: Any, **params: Any) -> hcal.HCalibrator:
    """Fit with warnings off: what is tested is the map."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        return hcal.HCalibrator(**params).fit(*args)


def some_rows(task: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    cal, y, test, y_test = load_task(task)
    rows = np.random.default_rng(0).permutation(len(y))[:n]
    return cal[rows].astype(np.float64), y[rows], test.astype(np.float64), y_test


def orders(z: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    loss = -np.log(softmax(z)[np.arange(len(y)), y] + 1e-300)
    return {
        "right first": np.argsort(z.argmax(axis=1) != y, kind="stable"),
        "by loss": np.argsort(loss, kind="stable"),
        "by label": np.argsort(y, kind="stable"),
        "shuffled": np.random.default_rng(5).permutation(len(y)),
    }


@pytest.mark.data
@pytest.mark.parametrize(("task", "n"), [("cifar10_resnet110", 3000), ("agnews_gpt2", 1000)])
@pytest.mark.parametrize("preserve", ["auto", None])
def test_the_order_of_rows_does_not_matter(task: str, n: int, preserve: str | None) -> None:
    z, y, test, _ = some_rows(task, n)
    base = quiet(z, y, preserve=preserve).predict_proba(test[:500])
    for name, order in orders(z, y).items():
        other = quiet(z[order], y[order], preserve=preserve).predict_proba(test[:500])
        np.testing.assert_allclose(other, base, atol=1e-9, rtol=0, err_msg=name)


def test_the_order_of_rows_does_not_matter_with_two_classes() -> None:
    z, y = synthetic(700, 2)
    base = quiet(z, y).predict_proba(z)
    for name, order in orders(z, y).items():
        other = quiet(z[order], y[order]).predict_proba(z)
        np.testing.assert_allclose(other, base, atol=1e-9, rtol=0, err_msg=name)


@pytest.mark.data
def test_weights_cost_nothing_and_spoil_nothing() -> None:
    """Written out as copies, weight 10 gave NLL 0.213, 100 gave 0.310, mean 2500 gave 0.810 in 168 s."""
    z, y, test, y_test = some_rows("cifar10_resnet50", 1000)
    quiet(z, y)  # compiled by now
    start = time.perf_counter()
    plain = hcal.metrics.nll(quiet(z, y).predict_proba(test), y_test)
    seconds = time.perf_counter() - start
    random = np.random.default_rng(0).integers(1, 5000, len(y)).astype(np.float64)
    for weight, slack in ((np.full(1000, 10.0), 1e-6), (np.full(1000, 100.0), 1e-6), (random, 0.02)):
        start = time.perf_counter()
        nll = hcal.metrics.nll(quiet(z, y, weight).predict_proba(test), y_test)
        assert nll <= plain * (1 + slack)
        assert time.perf_counter() - start < 5 * seconds + 1


@pytest.mark.parametrize("k", [2, 4])
def test_a_whole_weight_is_that_many_copies(k: int) -> None:
    z, y = synthetic(300, k)
    weight = np.random.default_rng(3).integers(0, 4, 300)
    copied = np.repeat(np.arange(300), weight)
    np.random.default_rng(4).shuffle(copied)
    weighted = quiet(z, y, weight.astype(np.float64)).predict_proba(z)
    np.testing.assert_allclose(weighted, quiet(z[copied], y[copied]).predict_proba(z), atol=1e-9, rtol=0)


def forest(n: int, trees: int = 100, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Votes of a forest: few values, each held by many rows, sure of nearly all of them and right."""
    rng = np.random.default_rng(seed)
    truth = np.clip(rng.beta(0.05, 0.4, (n, 1)), 0, 1)
    votes = rng.binomial(trees, truth) / trees
    probs = np.concatenate([1 - votes, votes * 0.7, votes * 0.3], axis=1)
    y = (rng.random((n, 1)) > probs.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return probs, y


def test_discrete_scores_are_rows_and_not_copies() -> None:
    """Dealt as one row, a thousand sure ones left 2 rows to learn from: log-loss 6.9 times as high."""
    probs, y = forest(1500)
    fresh, y_fresh = forest(5000, seed=1)
    cal = quiet(probs, y, input="probs")
    base = hcal.make_calibrator("uncal", input="probs").fit(probs, y)
    after, before = (hcal.metrics.nll(c.predict_proba(fresh), y_fresh) for c in (cal, base))
    assert after <= 1.02 * before


def test_weights_that_do_not_count_rows_are_met_with_a_sentence() -> None:
    z, y = synthetic(200, 3)
    for weight in (np.full(200, 1 / 200), np.full(200, 1000.5)):
        with pytest.warns(hcal.CalibrationWarning, match="a weight counts rows"):
            hcal.HCalibrator().fit(z, y, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hcal.HCalibrator().fit(z, y, np.full(200, 3.0))


# -- the judge --------------------------------------------------------------------------------------------

NOISE = {"noise_nll": 0.01, "noise_brier": 0.01, "noise_top": 0.01, "noise_class": 0.01}


def verdict(**values: float) -> Verdict:
    rest = {"nll": 0.2, "brier": 0.1, "h_top": 0.01, "h_class": 0.01, "accuracy": 0.9, "confidence": 0.9}
    return Verdict(**{**rest, **NOISE, **values})


def test_no_ratio_to_nothing() -> None:
    """A debiased base of 0 made ratios of 1e11."""
    base = verdict(h_top=0.0, h_class=0.0)
    assert abs(verdict(h_top=0.005, h_class=0.005).against(base)) < 1


def test_one_noisy_term_does_not_outvote_the_likelihood() -> None:
    """Seen: NLL .199 → .071 and one term from .004 to .020 kept the identity."""
    base = verdict(nll=0.199, brier=0.1, h_top=0.05, h_class=0.004)
    assert verdict(nll=0.071, brier=0.04, h_top=0.0, h_class=0.020).against(base) < 0


# -- hard numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 12])
@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-30, 1e30, 1e300])
def test_any_scale_of_logits(k: int, scale: float) -> None:
    z, y = synthetic(200, k, scale=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        probs = quiet(np.round(z, 2) * scale, y).predict_proba(np.round(z, 2) * scale)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_no_overflow_of_slopes(seed: int) -> None:
    """Labels against the scores and heavy tails drove slopes of stage 1 out of range."""
    rng = np.random.default_rng(seed)
    z = rng.standard_cauchy((60, 4)) * 10 ** rng.uniform(-3, 5)
    y = rng.integers(0, 4, 60) if seed % 2 else z.argmin(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for width in (np.float32, np.float64):
            cal = quiet(z.astype(width), y)
            assert np.isfinite(cal.predict_proba(z.astype(width))).all()


def test_far_margins_do_not_raise_the_loss() -> None:
    """The identity cut margins at 700 and so raised NLL from 16.8 to 26.2."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 3)) * 3000
    y = np.where(rng.random(400) < 0.9, z.argmax(axis=1), rng.integers(0, 3, 400))
    with warnings.catch_warnings():
        warnings.simplefilter("error", hcal.CalibrationWarning)
        hcal.HCalibrator().fit(z, y)


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("preserve", ["auto", "accuracy", "order", None])
def test_a_numbering_of_classes_does_not_matter_where_logits_tie(k: int, preserve: str | None) -> None:
    """Seen: 0.9."""
    rng = np.random.default_rng(2)
    z = rng.integers(0, 4, (500, k)).astype(np.float64)
    y = np.where(rng.random(500) < 0.6, z.argmax(axis=1), rng.integers(0, k, 500))
    order = rng.permutation(k) if k > 2 else np.array([1, 0])
    one = quiet(z, y, preserve=preserve).predict_proba(z)
    other = quiet(z[:, order], np.argsort(order)[y], preserve=preserve).predict_proba(z[:, order])
    np.testing.assert_allclose(other, one[:, order], atol=1e-8)  # sums over classes round otherwise


@pytest.mark.parametrize("k", [2, 5])
def test_one_class_is_said_in_words(k: int) -> None:
    z, _ = synthetic(100, k)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cal = hcal.HCalibrator().fit(z, np.ones(100, dtype=np.int64))
    assert any("every label is class 1" in str(w.message) for w in said)
    assert cal.info_["absent_classes"] == [c for c in range(k) if c != 1]


# -- two classes ------------------------------------------------------------------------------------------


def biased(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a model trained with class weights: 3 % positives, log-odds shifted by 3."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-5, 2, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    return np.stack([np.zeros(n), 0.8 * odds + 3], axis=1), y


def test_two_classes_keep_the_ranking_and_not_the_crossing() -> None:
    z, y = biased(3000)
    fresh, y_fresh = biased(4000, seed=1)
    cal = hcal.HCalibrator().fit(z, y)
    kept = quiet(z, y, preserve="accuracy")
    probs, at_half = cal.predict_proba(fresh), kept.predict_proba(fresh)
    assert hcal.metrics.nll(probs, y_fresh) < 0.75 * hcal.metrics.nll(at_half, y_fresh)
    assert cal.info_["promise"] == "ranking"
    assert cal.info_["changed_sides"] > 100
    assert kept.info_["changed_sides"] == 0
    order = np.argsort(fresh[:, 1])
    for p in (probs, at_half):
        assert (np.diff(p[order, 1]) > 0).all()  # nothing that was not tied is tied
    np.testing.assert_array_equal(at_half.argmax(axis=1), fresh.argmax(axis=1))


def test_the_fit_says_how_many_predictions_change_side(capfd: pytest.CaptureFixture[str]) -> None:
    z, y = biased(300)
    cal = hcal.HCalibrator(verbose=True).fit(z, y)
    changed = int((cal.predict(z) != z.argmax(axis=1)).sum())
    turn = 100 / (1 + np.exp(-cal.info_["crossing"]))
    words = f"{changed} of 300 predictions change side: class 1 is now the likelier from {turn:.1f} % on"
    assert changed > 10
    assert cal.info_["notes"] == [f"{words} instead of 50 %"]
    assert words in capfd.readouterr().err
    quietly = hcal.HCalibrator().fit(z, y)
    assert quietly.info_["notes"] == cal.info_["notes"]
    assert capfd.readouterr().err == ""


def test_a_ranking_by_either_column_is_that_of_the_log_odds() -> None:
    """Naive Bayes: P(class 1) rounds to 1 where P(class 0) still tells rows apart, and so do we."""
    z, y = biased(400)
    far = 30 * (z[:, 1] - z[:, 1].min())
    probs = np.stack([1 / (1 + np.exp(far)), 1 / (1 + np.exp(-far))], axis=1)
    assert len(np.unique(probs[:, 1])) < 50 < len(np.unique(probs[:, 0])) == 400
    order = np.argsort(far)
    after = quiet(probs, y, input="probs").predict_proba(probs)[order]
    assert (np.diff(after[:, 1]) > 0).all()
    assert (np.diff(after[:, 0]) < 0).all()


# -- few rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 5])
def test_few_rows_of_a_calibrated_model_leave_it_all_but_alone(k: int) -> None:
    """Thirty rows of chance: the median fit may cost 1 %, and no fit more than a tenth."""
    fresh, y_fresh = synthetic(2000, k, scale=1.0, seed=99)
    before = hcal.metrics.nll(softmax(fresh), y_fresh)
    cost = []
    for seed in range(5):
        z, y = synthetic(30, k, scale=1.0, seed=seed)
        cost.append(hcal.metrics.nll(quiet(z, y).predict_proba(fresh), y_fresh) / before)
    assert np.median(cost) <= 1.01
    assert max(cost) <= 1.1


def test_few_rows_of_a_model_far_off_still_mend_it() -> None:
    fresh, y_fresh = synthetic(4000, 4, scale=6.0, seed=99)
    z, y = synthetic(30, 4, scale=6.0, seed=1)
    after = hcal.metrics.nll(quiet(z, y).predict_proba(fresh), y_fresh)
    assert after < 0.5 * hcal.metrics.nll(softmax(fresh), y_fresh)
    assert after < 1.02 * hcal.metrics.nll(hcal.make_calibrator("ts").fit(z, y).predict_proba(fresh), y_fresh)


def test_enough_rows_and_errors_have_the_temperature_of_least_nll() -> None:
    z, y = synthetic(1000, 4, scale=2.5)
    weight = np.ones(1000)
    exact = solve_temperature(z, y, weight).beta
    assert careful_temperature(z, y, weight).beta == exact
    less = careful_temperature(z[:60], y[:60], weight[:60]).beta
    assert solve_temperature(z[:60], y[:60], weight[:60]).beta < less < 1
    # Scores in another unit are far from T = 1 and pay for it once, not by their unit.
    assert abs(np.log(careful_temperature(1e-4 * z[:60], y[:60], weight[:60]).beta / (1e4 * less))) < 0.2


def test_exchanging_two_classes_mirrors_the_map() -> None:
    z, y = biased(800)
    one = hcal.HCalibrator().fit(z, y).predict_proba(z)
    other = hcal.HCalibrator().fit(z[:, ::-1], 1 - y).predict_proba(z[:, ::-1])
    np.testing.assert_allclose(other[:, ::-1], one, atol=1e-7)


def test_scores_against_the_labels_are_still_ranked() -> None:
    z, y = biased(500)
    cal = quiet(-z, y)
    assert (np.diff(cal.predict_proba(-z)[np.argsort(-z[:, 1] + z[:, 0]), 1]) > 0).all()
