"""Map × objective × solver: ONE table of all pairs, and every solver against another."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from hcal.calibrators._critics import critic_gain
from hcal.calibrators._latent_gp import TabulatedElbo, line_centres, start_parameters
from hcal.calibrators.ets import simplex_quadratic
from hcal.maps import EnsembleLinear, MonotonicNet, PiecewiseLinear, TemperatureMap, scaling
from hcal.maps.lookup import Cells, apply_cells, cells_over
from hcal.maps.monotone import monotone_net
from hcal.maps.protocol import Map
from hcal.maps.torch_engine import as_map
from hcal.objective import class_weighted, consistency, proper, soft_binned
from hcal.objective.h import h
from hcal.objective.protocol import Objective
from hcal.numerics import log_softmax
from hcal.solvers.adam import Adam, AdamSettings
from hcal.solvers.fit_map import Ridge, Solver, fit_map, hessian_of, loss_of
from hcal.solvers.lbfgs import lbfgs
from hcal.solvers.methods import Lbfgs, Newton, NewtonOrLbfgs, Proximal
from hcal.solvers.newton import newton
from hcal.solvers.proximal import group_lasso_prox, lasso_prox, mcp_prox, proximal_gradient
from hcal.solvers.scan import minimise_scalar
from helpers import synthetic

N, K = 60, 4
#: Every family of maps there is: numpy's, and torch modules by their adapter.
MAPS: dict[str, Map] = {
    "temperature": scaling.temperature(),
    "vector": scaling.vector(K),
    "matrix": scaling.matrix(K),
    "beta": scaling.beta(K),
    "ensemble": scaling.ensemble(K),
    "monotone_net": monotone_net(3, Cells(-8.0, 0.25, 64), random_state=1),
    "torch temperature": as_map(TemperatureMap()),
    "torch piecewise": as_map(PiecewiseLinear(20)),
    "torch monotonic": as_map(MonotonicNet(3, mean=-3.0, std=2.0, lowest=-20.0, random_state=1, cells=64)),
    "torch ensemble": as_map(EnsembleLinear(3)),
}
#: k-means weights and the order of events move without a gradient: h by norm 2 and uniform weights.
SMOOTH_H = {"window": 12, "norm": 2, "weighting": "uniform", "epsilon": 0.0, "scale": 1.0}
OBJECTIVES = {
    "nll": proper.log_loss(),
    "brier": proper.brier_loss(),
    "soft_binned": soft_binned.soft_binned(),
    "soft_binned sharp": soft_binned.soft_binned(bins=10, tau=1e-3),
    "consistency": consistency.consistency(),
    "h": h(**SMOOTH_H),
    "h top-label": h(**SMOOTH_H, events="top-label"),
    "h class-wise": h(**SMOOTH_H, events="class-wise"),
    "h subsets": h(**SMOOTH_H, events=[[0, 1], [2]]),
}
#: Their gradient leaves out that weights move (of classes, of windows): fitted, not differenced.
FIELDS = {"class_weighted_nll": class_weighted.class_weighted_nll(), "h paper": h(window=20, scale=1.0)}


def scores(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2 * K if name == "beta" else K)) * 2
    return (log_softmax(x) if name.startswith("torch") else x), rng.integers(0, K, N), rng.random(N)


@cache
def miscalibrated(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores twice too sure of themselves, in the form that the map takes."""
    z, y = synthetic(100, K)
    x = log_softmax(2 * z)
    if name != "beta":
        return x, y
    return np.hstack([x, -np.log1p(-np.minimum(np.exp(x), 1 - 1e-9))]), y


def differences(f, theta: np.ndarray, h: float = 1e-6) -> np.ndarray:
    return np.array([(f(theta + h * e)[0] - f(theta - h * e)[0]) / (2 * h) for e in np.eye(theta.size)])


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", MAPS)
def test_any_objective_with_any_map_has_the_right_gradient(name: str, objective: str) -> None:
    family, (x, y, w) = MAPS[name], scores(name)
    weight = None if objective.startswith("h") else w
    theta = family.start + 0.1 * np.random.default_rng(1).random(family.start.size)
    ridge = Ridge(np.full(theta.size, 0.1), family.start)
    loss = loss_of(family, OBJECTIVES[objective], x, y, weight, ridge)
    _, gradient = loss(theta)
    assert gradient == pytest.approx(differences(loss, theta), abs=2e-7 * (1 + np.abs(gradient).max()))


#: Few steps: what is shown is that they go down, of 110 pairs.
SOLVERS: dict[str, Solver] = {
    "lbfgs": Lbfgs(max_iterations=4),
    "adam": Adam(AdamSettings(learning_rate=0.01, epochs=4)),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("objective", {**OBJECTIVES, **FIELDS})
@pytest.mark.parametrize("name", MAPS)
def test_any_solver_lowers_any_objective_of_any_map(name: str, objective: str, solver: str) -> None:
    family, (x, y) = MAPS[name], miscalibrated(name)
    goal = {**OBJECTIVES, **FIELDS}[objective]
    solved = fit_map(family, goal, SOLVERS[solver], x, y)
    value = loss_of(family, goal, x, y)
    assert solved.theta.shape == family.start.shape
    assert value(solved.theta)[0] < value(family.start)[0]
    assert np.isfinite(solved.theta).all()


@pytest.mark.parametrize("name", ["vector", "torch ensemble"])
@pytest.mark.parametrize("goal", [proper.log_loss(), h(window=20)], ids=["nll", "h"])
def test_mini_batches_and_newton_or_lbfgs(name: str, goal: Objective) -> None:
    family, (x, y) = MAPS[name], miscalibrated(name)
    value = loss_of(family, goal, x, y)
    for solver in (Adam(AdamSettings(0.01, epochs=6, batch_size=40)), NewtonOrLbfgs(lbfgs=Lbfgs(None, 5))):
        assert value(fit_map(family, goal, solver, x, y).theta)[0] < value(family.start)[0]


@pytest.mark.parametrize("name", MAPS)
def test_proximal_gradient_lowers_and_shrinks(name: str) -> None:
    family, (x, y) = MAPS[name], miscalibrated(name)
    strength = np.full(family.start.size, 0.02)
    solved = fit_map(family, proper.brier_loss(), Proximal(lasso_prox(strength), 8), x, y)
    value = loss_of(family, proper.brier_loss(), x, y)
    away = np.abs(solved.theta - family.start)
    assert value(solved.theta)[0] + strength @ away < value(family.start)[0]


def test_adam_and_lbfgs_agree_with_weights_and_a_penalty() -> None:
    (x, y), w = miscalibrated("vector"), np.random.default_rng(0).random(100)
    ridge = Ridge(np.full(2 * K, 0.1), scaling.vector(K).start)
    adam = Adam(AdamSettings(learning_rate=0.05, epochs=400))
    found = [
        fit_map(scaling.vector(K), goal, solver, x, y, w, penalty=ridge)
        for goal in (proper.log_loss(), proper.brier_loss())
        for solver in (Lbfgs(), adam)
    ]
    assert found[1].theta == pytest.approx(found[0].theta, abs=1e-4)
    assert found[3].theta == pytest.approx(found[2].theta, abs=1e-4)
    assert found[1].record.epochs == found[1].iterations


def test_one_map_as_module_and_as_formula_is_one_map() -> None:
    """The paper's temperature in torch and the scaling map in numpy: the same fit of the same objective."""
    x, y = miscalibrated("temperature")
    for goal in (proper.log_loss(), h(**SMOOTH_H)):
        one = fit_map(scaling.temperature(), goal, Lbfgs(), x, y)
        two = fit_map(as_map(TemperatureMap()), goal, Lbfgs(), x, y)
        assert two.theta == pytest.approx(one.theta, abs=1e-6)


def test_the_module_behind_a_map_is_not_changed_and_float32_is_near() -> None:
    x, y = miscalibrated("temperature")
    family = as_map(PiecewiseLinear(20))
    before = family.start.copy()
    settings = AdamSettings(epochs=20)
    wide, narrow = (fit_map(family, h(), Adam(settings, dtype=d), x, y) for d in ("float64", "float32"))
    assert narrow.theta == pytest.approx(wide.theta, abs=1e-3)
    assert torch.equal(family.module.theta.data, torch.from_numpy(before))


def test_newton_says_what_it_does_not_suit() -> None:
    x, y = miscalibrated("vector")
    with pytest.raises(ValueError, match="'brier' has no second derivative"):
        fit_map(scaling.vector(K), proper.brier_loss(), Newton(), x, y)
    with pytest.raises(ValueError, match="'temperature' has no curvature"):
        fit_map(scaling.temperature(), proper.log_loss(), Newton(), x, y)


def test_h_on_a_class_wise_map_corrects_what_a_temperature_cannot() -> None:
    """Two classes whose scores were shifted: vector scaling by h finds the shift."""
    z, y = synthetic(2000, 2)
    x = log_softmax(z + np.array([0.0, 1.5]))
    goal = h(window=100, scale=1.0, events="class-wise")
    start = loss_of(scaling.vector(2), goal, x, y)(scaling.vector(2).start)[0]
    by_class = fit_map(scaling.vector(2), goal, Adam(AdamSettings(0.05, epochs=150)), x, y)
    one_slope = fit_map(scaling.temperature(), goal, Adam(AdamSettings(0.05, epochs=150)), x, y)
    assert by_class.value < 0.3 * one_slope.value
    assert one_slope.value < start


@pytest.mark.parametrize("name", ["vector", "matrix", "beta"])
def test_second_derivatives(name: str) -> None:
    family, (x, y, w) = MAPS[name], scores(name)
    ridge = Ridge(np.full(family.start.size, 0.3), family.start)
    theta = family.start + 0.1 * np.random.default_rng(1).random(family.start.size)
    loss = loss_of(family, proper.log_loss(), x, y, w, ridge)
    h = 1e-5
    expected = [(loss(theta + h * e)[1] - loss(theta - h * e)[1]) / (2 * h) for e in np.eye(theta.size)]
    full = hessian_of(family, x, w, ridge)(theta)
    assert full == pytest.approx(np.array(expected), abs=1e-8)
    assert family.diagonal is not None
    assert family.diagonal(theta, x, w / w.sum()) + 0.6 == pytest.approx(np.diag(full), abs=1e-10)


def test_a_map_without_curvature_is_refused_by_newton() -> None:
    with pytest.raises(ValueError, match="no curvature"):
        hessian_of(scaling.temperature(), np.zeros((1, 2)))


def test_the_weight_of_a_class_is_a_constant_in_the_gradient() -> None:
    x, y, w = scores("vector")
    objective = class_weighted.class_weighted_nll(alpha=0.7, beta=1.8)
    log_probs = scaling.temperature().log_probs(np.zeros(1), x)
    _, gradient = objective.value_and_grad(log_probs, y, w)
    rows = class_weighted.row_weights(-log_probs[np.arange(N), y], y, w, 0.7, 1.8)
    assert gradient.dense(K)[np.arange(N), y] == pytest.approx(-rows)  # type: ignore[union-attr]
    assert rows.sum() == pytest.approx(K, rel=0.5)  # K class means, each of weight about 1


def test_newton_and_lbfgs_find_the_same_minimum() -> None:
    x, y = synthetic(300, K)
    family, ridge = scaling.matrix(K), Ridge(np.full(K * K + K, 0.01), scaling.matrix(K).start)
    loss = loss_of(family, proper.log_loss(), x, y, None, ridge)
    by_newton = newton(loss, hessian_of(family, x, None, ridge), family.start)
    by_lbfgs = lbfgs(loss, family.start, tolerance=1e-9, gain=1e-15)
    assert by_newton.converged
    assert by_lbfgs.converged
    assert by_newton.theta == pytest.approx(by_lbfgs.theta, abs=1e-5)
    assert by_newton.iterations < 20


def test_newton_does_not_care_about_units() -> None:
    x, y = synthetic(300, K)
    values = [
        fit_map(
            scaling.vector(K), proper.log_loss(), Newton(), c * x, y, start=scaling.vector(K).start / c
        ).value
        for c in (1e-6, 1.0, 1e6)
    ]
    assert values == pytest.approx([values[1]] * 3, abs=1e-9)


def test_lbfgs_says_when_it_stops_early_and_obeys_bounds_and_watch() -> None:
    def rosenbrock(t: np.ndarray) -> tuple[float, np.ndarray]:
        a, b = t
        return (1 - a) ** 2 + 100 * (b - a * a) ** 2, np.array(
            [-2 * (1 - a) - 400 * a * (b - a * a), 200 * (b - a * a)]
        )

    early = lbfgs(rosenbrock, np.zeros(2), max_iterations=3)
    assert not early.converged
    assert "3 iterations" in early.message
    assert lbfgs(rosenbrock, np.zeros(2)).theta == pytest.approx([1, 1], abs=1e-4)
    assert lbfgs(rosenbrock, np.zeros(2), bounds=[(None, 0.5), (None, None)]).theta[0] == pytest.approx(0.5)
    seen: list[np.ndarray] = []
    watched = lbfgs(rosenbrock, np.zeros(2), watch=lambda t: seen.append(t) is None and len(seen) == 2)
    assert (len(seen), watched.iterations, watched.converged) == (2, 2, True)


@pytest.mark.parametrize("make", [lasso_prox, mcp_prox, lambda s: group_lasso_prox(s, 2)])
def test_proximal_maps_are_what_they_say(make) -> None:
    rng = np.random.default_rng(0)
    strength = np.array([0.3, 0.5, 0.5, 0.3, 0.2, 0.2])
    prox = make(strength)
    theta = rng.normal(size=6) * 2
    found = prox.step(theta, 1.0)

    def value(u: np.ndarray) -> float:
        return 0.5 * float(((u - theta) ** 2).sum()) + prox.penalty(u)

    near = found + 1e-3 * rng.normal(size=(200, 6))
    assert value(found) <= min(value(u) for u in near) + 1e-12


def test_proximal_gradient_solves_the_lasso() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 5)), rng.normal(size=30)
    strength = np.full(5, 4.0)

    def square(t: np.ndarray) -> tuple[float, np.ndarray]:
        r = a @ t - b
        return 0.5 * float(r @ r), a.T @ r

    found = proximal_gradient(square, np.zeros(5), lasso_prox(strength), tolerance=1e-9)
    assert found.converged
    slope = square(found.theta)[1]
    zero = found.theta == 0
    assert zero.any()
    assert (np.abs(slope[zero]) <= 4 + 1e-6).all()
    assert slope[~zero] == pytest.approx(-4 * np.sign(found.theta[~zero]), abs=1e-5)


def test_simplex_quadratic_agrees_with_a_general_solver() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        root, c = rng.normal(size=(3, 3)), rng.normal(size=3)
        gram = root @ root.T
        found = simplex_quadratic(gram, c)
        general = minimize(
            lambda w, g=gram, c=c: w @ g @ w - 2 * c @ w,
            np.full(3, 1 / 3),
            method="SLSQP",
            bounds=[(0, 1)] * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14},
        )
        assert found.sum() == pytest.approx(1)
        assert (found >= 0).all()
        assert found @ gram @ found - 2 * c @ found <= general.fun + 1e-9


def test_scan_finds_the_global_valley() -> None:
    def bumpy(t: float) -> float:
        return np.cos(5 * t) + 0.1 * (t - 2) ** 2

    grid = np.linspace(-4, 6, 200001)
    assert minimise_scalar(bumpy, -4, 6, points=41) == pytest.approx(grid[np.argmin(bumpy(grid))], abs=1e-4)


def test_monotone_table_never_inverts_a_pair() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)) * 10
    cells = cells_over(x)
    values = np.concatenate([[0.0], np.cumsum(rng.exponential(size=cells.count) ** 4)])
    near = np.sort(
        np.concatenate([np.nextafter(cells.edges, -np.inf), cells.edges, rng.normal(size=500) * 20])
    )
    assert (np.diff(apply_cells(near, cells, values)) >= 0).all()


def test_gradient_of_a_critic_and_of_the_elbo() -> None:
    x, y, w = scores("vector")
    p = np.exp(scaling.temperature().log_probs(np.zeros(1), x))
    gain = critic_gain(p, np.eye(K)[y] - p, w / w.sum())
    v = np.random.default_rng(2).normal(size=K)
    assert gain(v)[1] == pytest.approx(differences(gain, v), abs=1e-8)
    elbo = TabulatedElbo(x, y, w / w.sum(), 50.0, Cells(-10.0, 0.1, 200), 5)
    theta = start_parameters(line_centres(x, 5)) + 0.1 * np.random.default_rng(3).normal(size=18)
    assert elbo(theta)[1] == pytest.approx(differences(elbo, theta, 1e-5), abs=1e-7)
