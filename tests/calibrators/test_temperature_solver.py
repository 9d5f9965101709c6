"""The temperature solver cannot fail silently: any scale, either float width, any labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import hcal
from hcal.numerics import log_softmax
from hcal.solvers.temperature import solve_increasing, solve_temperature
from helpers import synthetic


def mean_nll(beta: float, z: np.ndarray, y: np.ndarray) -> float:
    return -float(log_softmax(beta * z)[np.arange(len(y)), y].mean())


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_an_independent_minimiser(seed: int) -> None:
    z, y = synthetic(seed=seed)
    found = minimize_scalar(lambda t: mean_nll(np.exp(t), z, y), bounds=(-5, 5), options={"xatol": 1e-10})
    assert np.log(solve_temperature(z, y).beta) == pytest.approx(found.x, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-180, 1e-30, 1e-4, 1.0, 1e4, 1e30, 1e300])
def test_the_scale_of_the_logits_does_not_matter(scale: float) -> None:
    z, y = synthetic()
    one = solve_temperature(z, y)
    other = solve_temperature(z * scale, y)
    assert other.converged
    assert other.beta * scale == pytest.approx(one.beta, rel=1e-9)


def test_logits_too_small_for_any_temperature_are_constant() -> None:
    z, y = synthetic()
    assert solve_temperature(z * 1e-300, y).beta == 1.0


def test_both_float_widths_agree() -> None:
    z, y = synthetic()
    wide, narrow = solve_temperature(z, y), solve_temperature(z.astype(np.float32), y)
    assert narrow.beta == pytest.approx(wide.beta, rel=1e-5)  # the rounding of the logits themselves


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_all_labels_right_says_so_and_stays_finite(scale: float) -> None:
    z, _ = synthetic()
    solved = solve_temperature(z * scale, z.argmax(axis=1))
    assert not solved.converged
    assert "every label" in solved.message
    p = hcal.softmax(solved.beta * z * scale)
    assert np.isfinite(p).all()
    # Never duller than the scores themselves, and at most as sure as N right answers of N allow otherwise.
    n = len(z)
    assert solved.beta == 1 or p.max(axis=1).mean() == pytest.approx((n + 1) / (n + 2), abs=1e-8)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_all_labels_wrong_gives_uniform_and_says_so(scale: float) -> None:
    z, _ = synthetic()
    solved = solve_temperature(z * scale, z.argmin(axis=1))
    assert not solved.converged
    assert np.abs(hcal.softmax(solved.beta * z * scale) - 1 / z.shape[1]).max() < 1e-5
    with pytest.warns(hcal.CalibrationWarning, match="carry no information"):
        hcal.make_calibrator("ts").fit(z * scale, z.argmin(axis=1))


def test_constant_rows_leave_the_scores_alone() -> None:
    solved = solve_temperature(np.ones((5, 3)), np.array([0, 1, 2, 0, 1]))
    assert (solved.beta, solved.converged) == (1.0, True)


def test_one_wrong_label_among_many_right_ones_is_solved() -> None:
    z, _ = synthetic()
    y = z.argmax(axis=1)
    y[0] = z[0].argmin()
    solved = solve_temperature(z, y)
    assert solved.converged
    assert mean_nll(solved.beta, z, y) <= min(mean_nll(solved.beta * f, z, y) for f in (0.999, 1.001))


def test_integer_weights_equal_repetition() -> None:
    z, y = synthetic(100)
    w = np.arange(100) % 4
    once = solve_temperature(z, y, w.astype(np.float64))
    assert once.beta == pytest.approx(solve_temperature(np.repeat(z, w, axis=0), np.repeat(y, w)).beta, rel=1e-10)


def test_a_function_without_a_root_is_reported() -> None:
    assert not solve_increasing(lambda beta: beta + 1).converged
    assert not solve_increasing(lambda beta: -1 / beta).converged


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(2, 6), st.floats(-8, 8), st.integers(0, 10**6))
def test_no_input_beats_the_solution(n: int, k: int, log_scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * 10**log_scale
    y = rng.integers(0, k, n)
    solved = solve_temperature(z, y)
    assert np.isfinite(solved.beta)
    assert solved.beta > 0
    if solved.converged:
        best = mean_nll(solved.beta, z, y)
        assert all(best <= mean_nll(solved.beta * f, z, y) + 1e-12 for f in (0.5, 0.99, 1.01, 2.0))
