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

Z, Y = synthetic()


def mean_nll(beta: float, z: np.ndarray, y: np.ndarray) -> float:
    return -float(log_softmax(beta * z)[np.arange(len(y)), y].mean())


def test_agrees_with_an_independent_minimiser_at_any_scale_and_width() -> None:
    for seed in range(3):
        z, y = synthetic(seed=seed)

        def loss(log_beta: float, z: np.ndarray = z, y: np.ndarray = y) -> float:
            return mean_nll(np.exp(log_beta), z, y)

        minimum = minimize_scalar(loss, bounds=(-5, 5), options={"xatol": 1e-10})
        one = solve_temperature(z, y)
        assert np.log(one.beta) == pytest.approx(minimum.x, abs=1e-6)
        for scale in (1e-180, 1e-30, 1e-4, 1.0, 1e4, 1e30, 1e300):
            other = solve_temperature(z * scale, y)
            assert other.converged
            assert other.beta * scale == pytest.approx(one.beta, rel=1e-9)
        narrow = solve_temperature(z.astype(np.float32), y)
        assert narrow.beta == pytest.approx(
            one.beta, rel=1e-5
        )  # the rounding of the logits themselves
    for constant in (Z * 1e-300, np.ones_like(Z)):  # nothing to scale
        solved = solve_temperature(constant, Y)
        assert solved.beta == 1.0
        assert solved.converged is True


def test_all_labels_right_or_wrong_are_said_and_stay_finite() -> None:
    for scale in (1e-6, 1.0, 1e4):
        z = Z * scale
        n = len(Z)
        right = solve_temperature(z, Z.argmax(axis=1))
        wrong = solve_temperature(z, Z.argmin(axis=1))
        assert not right.converged
        assert "every label" in right.message
        p = hcal.softmax(right.beta * z)
        assert np.isfinite(p).all()
        # Never duller than the scores themselves, and at most as sure as N right answers of N allow otherwise.
        confidence = p.max(axis=1).mean()
        assert right.beta == 1 or confidence == pytest.approx((n + 1) / (n + 2), abs=1e-8)
        assert not wrong.converged
        probs = hcal.softmax(wrong.beta * z)
        assert np.abs(probs - 1 / z.shape[1]).max() < 1e-5
        with pytest.warns(hcal.CalibrationWarning, match="carry no information"):
            hcal.make_calibrator("ts").fit(z, Z.argmin(axis=1))


def test_one_wrong_label_among_many_right_ones_is_solved() -> None:
    y = Z.argmax(axis=1)
    y[0] = Z[0].argmin()
    solved = solve_temperature(Z, y)
    assert solved.converged
    nearby = [mean_nll(solved.beta * factor, Z, y) for factor in (0.999, 1.001)]
    assert mean_nll(solved.beta, Z, y) <= min(nearby)


def test_integer_weights_equal_repetition() -> None:
    z = Z[:100]
    y = Y[:100]
    w = np.arange(100) % 4
    once = solve_temperature(z, y, w.astype(np.float64))
    repeated = solve_temperature(np.repeat(z, w, axis=0), np.repeat(y, w))
    assert once.beta == pytest.approx(repeated.beta, rel=1e-10)


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
    assert 0 < solved.beta < np.inf
    if solved.converged:
        best = mean_nll(solved.beta, z, y)
        for factor in (0.5, 0.99, 1.01, 2.0):
            assert best <= mean_nll(solved.beta * factor, z, y) + 1e-12
