"""The default protocol of HCalibrator: its stages, its judge, its promises on real data."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import approx_fprime

import hcal
from hcal.calibrators import make_calibrator
from hcal.calibrators.h.candidates import blend, fit_candidates, new_setting, scores
from hcal.calibrators.h.fit import out_of_fold
from hcal.calibrators.h.judge import judge
from hcal.calibrators.h.keep import join
from hcal.calibrators.h.model import from_state, model_of, pooled_scores, to_state
from hcal.calibrators.h.pool import log_linear_weights
from hcal.calibrators.h.refine import _compress, _sum_rows, apply_refined, fit_refined
from hcal.calibrators.h.refine_problem import RefineProblem
from hcal.calibrators.h.rows import fit_scaler
from hcal.calibrators.h.temperature import careful_temperature
from hcal.numerics import softmax
from helpers import load_task, synthetic
from studies.joint import TASKS

# -- promises on real data ------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("task", ["cifar10_resnet110", "cifar100_resnet50", "cifar100_resnet110"])
def test_better_than_temperature_scaling_with_every_argmax_kept(task: str) -> None:
    cal, y, test, y_test = load_task(task)
    ours = hcal.HCalibrator().fit(cal, y).predict_proba(test)
    theirs = make_calibrator("ts").fit(cal, y).predict_proba(test)
    assert hcal.metrics.ece_ew(ours, y_test) < hcal.metrics.ece_ew(theirs, y_test)
    assert hcal.metrics.nll(ours, y_test) <= 1.02 * hcal.metrics.nll(theirs, y_test)
    assert (ours.argmax(axis=1) == test.argmax(axis=1)).all()


def near_uniform(logits: np.ndarray) -> np.ndarray:
    """The untrained ensemble-128 of the paper in effect: inverse temperatures of at most 0.09."""
    return 0.05 * logits


@pytest.mark.data
@pytest.mark.parametrize("task", TASKS)
def test_a_collapsed_candidate_gets_no_weight(task: str) -> None:
    cal, y, _, _ = load_task(task)
    rows = np.random.default_rng(0).permutation(len(y))[:1500]
    z, labels, weight = cal[rows].astype(np.float64), y[rows], np.ones(1500)
    setting = new_setting(z, labels, weight, classes=True)
    held = out_of_fold(z, labels, weight, setting)
    flat = np.log(softmax(near_uniform(held.logits)))
    share = log_linear_weights(np.concatenate([held.scores, flat[None]]), held.y, held.weight)
    # A log-linear pool may lean on a flat candidate as on a temperature, but not to be flat itself.
    pooled = np.tensordot(share, np.concatenate([held.scores, flat[None]]), 1)
    after = judge(softmax(pooled), held.y, held.weight)
    assert after.nll <= judge(softmax(held.logits), held.y, held.weight).nll
    assert abs(after.confidence - after.accuracy) < 0.1


def test_the_trap_is_real() -> None:
    """On many classes a near-uniform predictor has the lower class-wise error; the pool is not fooled."""
    z, y = synthetic(4000, 100, scale=1.5)
    flat = softmax(near_uniform(z))
    assert hcal.metrics.cwece_a(flat, y) < hcal.metrics.cwece_a(softmax(z), y)
    probs = hcal.HCalibrator().fit(z, y).predict_proba(z)
    assert hcal.metrics.nll(probs, y) < hcal.metrics.nll(softmax(z), y) < hcal.metrics.nll(flat, y)


# -- the stages -----------------------------------------------------------------------------------------


def test_the_gradient_of_stage_one_is_the_derivative() -> None:
    z, y = synthetic(60, 40)
    weight = np.linspace(0.5, 2, 60)
    scaler = fit_scaler(_compress(z, y, 0.7)[3], weight)
    sums = partial(_sum_rows, 0.7, scaler, logits=z, y=y, weight=weight)
    problem = RefineProblem(sums, float(weight.sum()), 20.0)
    theta = np.random.default_rng(0).normal(0, 0.2, problem.size)
    numeric = approx_fprime(theta, lambda t: problem(t)[0], 1e-6)
    np.testing.assert_allclose(problem(theta)[1], numeric, atol=1e-5)


def test_grouping_far_classes_keeps_their_mass_at_the_temperature() -> None:
    z, y = synthetic(50, 300)
    seen, _, counts, _ = _compress(z, y, 0.5)
    assert counts.sum() == 300
    assert seen.shape[1] < 60
    exact = np.exp(0.5 * (z - z.max(1, keepdims=True))).sum(axis=1)
    np.testing.assert_allclose((counts * np.exp(-seen)).sum(axis=1), exact, rtol=1e-12)


def test_stage_one_never_changes_the_order() -> None:
    z, y = synthetic(800, 6)
    stage = fit_refined(z, y, np.ones(800))[0]
    margin = apply_refined(stage, z)[1]
    order = np.argsort(-z, axis=1)
    assert (np.diff(np.take_along_axis(margin, order, axis=1), axis=1) >= 0).all()


shares = arrays(np.float64, (3, 5), elements=st.floats(0, 1)).filter(lambda r: (r.sum(axis=1) > 0.1).all())


@settings(max_examples=60, deadline=None)
@given(shares, arrays(np.float64, 3, elements=st.floats(0, 1)), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_top_class_stays_on_top(rest: np.ndarray, q: np.ndarray, lift: float) -> None:
    top = np.zeros(3, dtype=np.int64)
    rest[:, 0] = 0.0
    rest[:, 1] += 1e-3
    rest /= rest.sum(axis=1, keepdims=True)
    probs = join(q, rest, top, lift)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    assert (probs >= 0).all()
    assert (probs[:, 0] >= probs.max(axis=1) - 1e-15).all()
    if lift == 0.0:  # the top-label event keeps its probability wherever 1/K allows
        np.testing.assert_allclose(probs[:, 0], np.maximum(q, 0.2), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("preserve", ["accuracy", "order", None])
def test_a_state_is_the_model(preserve: str | None) -> None:
    z, y = synthetic(300, 5)
    cal = hcal.HCalibrator(preserve=preserve).fit(z, y)
    again = to_state(from_state(cal.state_))
    assert model_of(cal.state_) is model_of(dict(cal.state_))  # made once for the same arrays
    assert set(again) == set(cal.state_)
    for key, value in cal.state_.items():
        np.testing.assert_array_equal(again[key], value)


def test_what_is_pooled_is_what_is_predicted() -> None:
    """The blend, one set of scores, against the candidates multiplied."""
    z, y = synthetic(300, 5)
    weight = np.ones(300)
    for classes in (True, False):
        setting = new_setting(z, y, weight, classes=classes)
        fitted = fit_candidates(z, y, weight, setting)
        share = np.linspace(0.1, 0.4, len(setting.names))
        together = np.tensordot(share, scores(fitted, z), 1)
        alone = pooled_scores(fitted.model._replace(blend=blend(fitted, share)), z)[1]
        np.testing.assert_allclose(softmax(alone), softmax(together), atol=1e-13)


def test_candidates_are_what_they_say() -> None:
    z, y = synthetic(300, 5)
    setting = new_setting(z, y, np.ones(300), classes=True)
    found = dict(zip(setting.names, scores(fit_candidates(z, y, np.ones(300), setting), z), strict=True))
    near = z - z.max(axis=1, keepdims=True) > -3  # margins that no cap touches
    careful = careful_temperature(z, y, np.ones(300)).beta * z
    for name, truth in (("identity", z), ("temperature", careful)):
        gap = found[name] - truth
        gap -= gap[np.arange(300), z.argmax(axis=1)][:, None]
        assert np.abs(gap[near]).max() < 1e-8, name


# -- hard cases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 50])
@pytest.mark.parametrize("labels", ["all right", "all wrong", "one class", "random"])
@pytest.mark.parametrize("n", [12, 200])
def test_degenerate_labels(k: int, labels: str, n: int) -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(n, k)) * 3
    top = z.argmax(axis=1)
    y = {
        "all right": top,
        "all wrong": (top + 1) % k,
        "one class": np.zeros(n, dtype=np.int64),
        "random": rng.integers(0, k, n),
    }[labels]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        probs = hcal.HCalibrator().fit(z, y).predict_proba(z)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)
    if k > 2:
        assert (probs.argmax(axis=1) == top).all()
    else:
        assert (np.diff(probs[np.argsort(z[:, 1] - z[:, 0]), 1]) >= 0).all()  # sure rows may round to 1


def test_calibrated_scores_are_left_nearly_alone() -> None:
    """Labels drawn from the scores themselves: nothing to gain, and little may be lost."""
    worse = []
    for seed in range(5):
        z, y = synthetic(4000, 10, scale=1.0, seed=seed)
        fresh, y_fresh = synthetic(20_000, 10, scale=1.0, seed=100 + seed)
        probs = hcal.HCalibrator().fit(z, y).predict_proba(fresh)
        worse.append(hcal.metrics.nll(probs, y_fresh) / hcal.metrics.nll(softmax(fresh), y_fresh))
    assert np.median(worse) < 1.005


def test_it_says_when_keeping_the_argmax_costs_accuracy() -> None:
    z, y = synthetic(3000, 4, scale=1.0)
    biased = z + np.array([2.5, 0.0, 0.0, 0.0])
    with pytest.warns(hcal.CalibrationWarning, match="preserve=None"):
        cal = hcal.HCalibrator().fit(biased, y)
    advice = cal.info_["argmax_advice"]
    assert advice["recommended"]
    assert "preserve=None" in advice["words"]
    free = hcal.HCalibrator(preserve=None).fit(biased, y)
    assert free.scores_["after"]["accuracy"] > cal.scores_["after"]["accuracy"] + 0.05
    fair = hcal.HCalibrator().fit(3 * z, y)
    assert not fair.info_["argmax_advice"]["recommended"]


@pytest.mark.parametrize("preserve", ["auto", "accuracy", "order", None])
@pytest.mark.parametrize("k", [2, 6])
def test_every_promise_has_a_calibrator(preserve: str | None, k: int) -> None:
    z, y = synthetic(600, k)
    cal = hcal.HCalibrator(preserve=preserve).fit(z, y)
    expected = {"auto": None if k == 2 else "accuracy"}.get(str(preserve), preserve)
    assert cal.preserves == expected
    assert cal.scores_["after"]["nll"] < cal.scores_["before"]["nll"]


def test_fractional_weights_count() -> None:
    z, y = synthetic(400, 3)
    light = np.where(y == 0, 0.25, 1.5)
    plain = hcal.HCalibrator(preserve=None).fit(z, y).predict_proba(z)
    weighted = (
        hcal.HCalibrator(preserve=None).fit(z, y, sample_weight=light * 400 / light.sum()).predict_proba(z)
    )
    assert weighted[:, 0].mean() < plain[:, 0].mean()


def test_long_fits_show_how_far_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    logits, y = synthetic(200)
    hcal.HCalibrator(verbose=True).fit(logits, y)
    assert "7/7" in capfd.readouterr().err  # five folds, the choice, the fit
    hcal.HCalibrator().fit(logits, y)
    assert capfd.readouterr().err == ""
