"""Families, the fit by NLL and the optimisers, each against a plain statement of what it computes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from hcal.numerics import softmax
from hcal.solvers.nll import (
    ClassLinear,
    LineCells,
    MatrixLinear,
    MonotoneNet,
    Ridge,
    _loss_sums,
    cells_over,
    fit_nll,
    mean_nll,
    second_sums,
    select,
    unit_weight,
)
from hcal.solvers.optimise import Search, lbfgs, minimise_scalar, newton, solve_curved

CELLS = LineCells(-6.0, 0.5, 24)
FAMILIES = [
    ClassLinear(3),
    ClassLinear(3, inputs=2),
    MatrixLinear(3),
    MonotoneNet(4, CELLS, random_state=2),
]


def problem(family, n=60, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, (n, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    n_inputs = getattr(family, "inputs", 1)
    x = np.hstack([z, np.abs(z)]) if n_inputs == 2 else z
    return x, y, rng.random(n) + 0.5


def differences(function, theta, h=1e-6):
    slopes = []
    for step in h * np.eye(len(theta)):
        slopes.append((function(theta + step) - function(theta - step)) / (2 * h))
    return np.array(slopes)


def test_gradients_and_curvatures_are_derivatives():
    for family in FAMILIES:
        x, y, weight = problem(family)
        theta = family.start + np.random.default_rng(1).normal(0, 0.1, family.start.shape)
        value, gradient = _loss_sums(family, theta, x, y, weight)
        mean = mean_nll(family.vjp(theta, x)[0], y, weight)
        assert value == pytest.approx(weight.sum() * mean)
        numeric = differences(lambda t, f=family, a=(x, y, weight): _loss_sums(f, t, *a)[0], theta)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-5)
        if hasattr(family, "curvature"):
            hessian = second_sums(family, theta, x, weight)
            numeric = differences(
                lambda t, f=family, a=(x, y, weight): _loss_sums(f, t, *a)[1], theta
            )
            np.testing.assert_allclose(hessian, numeric, rtol=1e-4, atol=1e-4)
            diagonal = second_sums(family, theta, x, weight, diagonal=True)
            np.testing.assert_allclose(diagonal, np.diag(hessian), rtol=1e-9, atol=1e-12)


def test_newton_lbfgs_and_scipy_find_the_same(monkeypatch):
    for family in FAMILIES[:3]:
        x, y, weight = problem(family)
        ridge = Ridge(np.full(family.start.shape, 0.01), family.start)

        def objective(theta, family=family, x=x, y=y, weight=weight):
            loss = mean_nll(family.vjp(theta, x)[0], y, weight)
            return loss + 0.01 * ((theta - family.start) ** 2).sum()

        want = minimize(objective, family.start, method="BFGS", options={"gtol": 1e-7}).x
        by_newton = fit_nll(family, x, y, weight, penalty=ridge)
        monkeypatch.setattr("hcal.solvers.nll.NEWTON_PARAMETERS", 0)
        by_lbfgs = fit_nll(family, x, y, weight, penalty=ridge)
        monkeypatch.undo()
        for solution in (by_newton, by_lbfgs):
            assert solution.converged
            np.testing.assert_allclose(solution.theta, want, atol=2e-4)


def test_a_weight_counts_rows():
    family = FAMILIES[0]
    x, y, weight = problem(family)
    ridge = Ridge(np.full(6, 0.01), family.start)
    want = fit_nll(family, x, y, weight, penalty=ridge)
    copies = np.repeat(np.arange(60), 2)
    twice = fit_nll(family, x[copies], y[copies], weight[copies] / 2, penalty=ridge)
    np.testing.assert_allclose(twice.theta, want.theta, atol=1e-8)


def test_many_rows_are_summed_in_parts(monkeypatch):
    family = FAMILIES[0]
    x, y, weight = problem(family)
    at_once = _loss_sums(family, family.start, x, y, weight)
    monkeypatch.setattr("hcal.solvers.nll._PART_EVENTS", 30)
    monkeypatch.setattr("hcal.solvers.nll._BLOCK_ROWS", 3)
    monkeypatch.setattr("hcal.solvers.nll._BLOCK_EVENTS", 3)
    parts = _loss_sums(family, family.start, x, y, weight)
    assert parts[0] == pytest.approx(at_once[0])
    np.testing.assert_allclose(parts[1], at_once[1])


def test_a_monotone_net_learns_and_rises():
    family = FAMILIES[3]
    x, y, _ = problem(family, n=400)
    seen = []
    search = Search(watch=lambda theta: bool(seen.append(theta)))
    solution = fit_nll(family, 3 * x, y, search=search)
    start = mean_nll(family.vjp(family.start, 3 * x)[0], y)
    end = mean_nll(family.vjp(solution.theta, 3 * x)[0], y)
    assert end < start - 0.1
    assert seen
    assert (np.diff(family.table(solution.theta)) > 0).all()
    inside = np.linspace(-6, 6, 25)
    scores = family.vjp(solution.theta, inside[None])[0][0]
    table = family.table(solution.theta)
    np.testing.assert_allclose(scores, np.interp(inside, CELLS.edges, table))
    assert cells_over(x).count == 1024


def test_bounds_and_penalties_hold():
    family = FAMILIES[0]
    x, y, _ = problem(family)
    ridge = Ridge(np.full(6, 1e-3), np.zeros(6))
    free = fit_nll(family, -x, y, penalty=ridge)
    assert free.theta[:3].min() < 0
    lowest = np.array([0.0] * 3 + [-np.inf] * 3)
    bounds = lowest, np.full(6, np.inf)
    bounded = fit_nll(family, -x, y, search=Search(bounds=bounds))
    assert bounded.theta[:3] == pytest.approx(np.zeros(3))


def quadratic(theta):
    centre = np.array([1.0, -2.0])
    return float(((theta - centre) ** 2).sum()), 2 * (theta - centre)


def test_optimisers_on_a_bowl():
    by_lbfgs = lbfgs(quadratic, np.zeros(2), scale=np.array([3.0, 0.1]))
    by_newton = newton(quadratic, lambda t, gradient: (gradient, gradient / 2), np.zeros(2))
    for solution in (by_lbfgs, by_newton):
        assert solution.converged
        assert solution.theta == pytest.approx([1, -2], abs=1e-5)
    box = Search(bounds=(np.full(2, -1.5), np.full(2, 5.0)))
    bounded = lbfgs(quadratic, np.zeros(2), box, scale=np.array([3.0, 0.1]))
    assert bounded.theta == pytest.approx([1, -1.5])
    assert lbfgs(quadratic, np.zeros(2), Search(watch=lambda theta: True)).converged
    one_step = Search(max_iterations=1)
    stuck = lbfgs(lambda t: quadratic(t**3), np.full(2, 0.5), one_step)
    assert not stuck.converged
    assert "before it converged" in stuck.message


def test_newton_takes_flat_and_concave_directions():
    def valley(theta):
        value, gradient = quadratic(np.array([theta.sum(), -2.0]))
        return value, np.full(2, gradient[0])

    curvature = 2 * np.ones((2, 2))
    flat = newton(valley, lambda t, g: (g, solve_curved(curvature, g)), np.zeros(2))
    assert flat.converged
    assert flat.theta.sum() == pytest.approx(1)

    def wave(theta):
        return float(np.cos(theta[0])), -np.sin(theta)

    def curved(t: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        curvature = np.array([[-np.cos(t[0])]])
        return gradient, solve_curved(curvature, gradient)

    solution = newton(wave, curved, np.array([0.3]))
    assert np.cos(solution.theta[0]) == pytest.approx(-1)


def test_a_bumpy_curve_is_scanned():
    def bumpy(t):
        return np.cos(3 * t) + 0.1 * t**2

    assert abs(minimise_scalar(bumpy, -6, 6, points=61)) == pytest.approx(1.0237, abs=1e-3)
    assert minimise_scalar(lambda t: t, 0.0, 1.0) == pytest.approx(0.0)


def test_select_hands_the_model_before_on():
    handed = []

    def fit(candidate, side, before):
        handed.append(before)
        return candidate

    sides = [("a", "b"), ("c", "d")]
    selection = select([3, 1, 2], sides, fit, lambda model, side: abs(model - 1.2))
    assert selection.chosen == 1
    assert handed == [None, 3, 1, None, 3, 1]
    assert selection.models == [1, 1]

    def nan_of_one(model: float, side: str) -> float:
        return np.nan if model == 1 else 5.0

    assert select([1, 2], [("a", "b")], fit, nan_of_one).chosen == 2


def test_weights_of_one():
    assert unit_weight(np.array([1.0, 3.0]), 2).tolist() == [0.25, 0.75]
    scores = np.array([[0.0, 1.0], [5.0, 5.0]])
    of_true_class = softmax(scores)[[0, 1], [1, 0]]
    want = -np.log(of_true_class).mean()
    assert mean_nll(scores, np.array([1, 0])) == pytest.approx(want)
    of_first_row = mean_nll(scores, np.array([1, 0]), np.array([1.0, 0.0]))
    assert of_first_row == pytest.approx(np.log1p(np.exp(-1)))


def test_newton_stops_where_nothing_is_curved() -> None:
    """A loss that falls for ever and has lost its curvature to rounding: no step goes to 1e250."""

    def loss(theta: np.ndarray) -> tuple[float, None]:
        return float(np.exp(-theta).sum()), None

    def direction(theta: np.ndarray, _state: None) -> tuple[np.ndarray, np.ndarray]:
        return -np.exp(-theta), np.full_like(theta, -1e250)

    solved = newton(loss, direction, np.zeros(2))
    np.testing.assert_array_equal(solved.theta, np.zeros(2))
    assert not solved.converged
    assert "nothing is curved" in solved.message
