"""The theory checks themselves are checked: they pass on the truth and fail on a falsehood."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hcal.h_calibration.definition import sliding_means
from studies import theory, theory_norm, theory_page, theory_windows
from studies.theory import World

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs() -> list[theory_norm.Draws]:
    return theory_norm.all_draws(draws=12)


def test_every_theorem_holds() -> None:
    for check in (
        theory.check_theorem_1(worlds=60),
        theory.check_counterexample(),
        theory.check_theorem_2(),
        theory.check_theorem_4(worlds=60),
        theory_windows.check_theorem_5(draws=8),
        theory_windows.check_theorem_6(),
        theory_windows.check_theorem_7(cases=5),
        theory_windows.check_densities(n=20_000),
    ):
        assert check.holds, check.label


def test_theorem_1_bound_is_reached_and_can_be_missed() -> None:
    # One atom a level set: the error equals |true - predicted|, so K = 2 reaches h exactly.
    true = np.array([[0.2, 0.8]])
    predicted = np.array([[0.5, 0.5]])
    world = World(np.ones(1), true, predicted)
    assert theory.conditional_error(world, predicted, true, predicted) == pytest.approx(world.h)
    # Two atoms that err in opposite directions on one level set cancel: calibrated, not h-calibrated.
    true = np.array([[0.2, 0.8], [0.8, 0.2]])
    predicted = np.full((2, 2), 0.5)
    world = World(np.full(2, 0.5), true, predicted)
    assert theory.conditional_error(world, predicted, true, predicted) == pytest.approx(0)
    assert world.h == pytest.approx(0.3)


def test_h_is_the_largest_error_of_any_event() -> None:
    world = theory.random_world(np.random.default_rng(3), n_classes=5)
    gaps = []
    for event in theory.events_of(5):
        of_event = world.true[:, event].sum(axis=1) - world.predicted[:, event].sum(axis=1)
        gaps.append(np.abs(of_event).max())
    by_events = max(gaps)
    assert world.h == pytest.approx(by_events)


def test_exact_tail_agrees_with_simulation() -> None:
    rng = np.random.default_rng(0)
    p = np.linspace(0.3, 0.7, 50)
    rates = (rng.random((40_000, 50)) < p).mean(1)
    simulated = (np.abs(rates - p.mean()) >= 0.1 - 1e-12).mean()
    assert theory_windows.tail_probability(p, 0.1) == pytest.approx(
        simulated, abs=0.01
    )  # 4 standard errors


def test_norm_is_the_definition_on_a_small_case() -> None:
    p = np.array([0.4, 0.1, 0.9, 0.6])
    norm = theory_norm._Norm.of(p, 2, "fixed")
    difference = np.array([1.0, 2.0, 3.0, 4.0])
    # sorted order is 1, 0, 3, 2: windows (2, 1), (1, 4), (4, 3)
    assert norm(difference) == pytest.approx((1.5 + 2.5 + 3.5) / 3)


def test_propositions_hold_and_say_where_they_are_vacuous(runs: list[theory_norm.Draws]) -> None:
    error = theory_norm.check_proposition_error(runs)
    against = theory_norm.check_proposition_psr(runs)
    assert error.holds
    assert against.holds
    for check, factor in ((error, 1), (against, 2)):
        for alpha, bound, _, word in check.rows:
            assert bound == pytest.approx(factor / (alpha * np.sqrt(200)))
            assert (word == "says nothing") == (bound >= 1)
    for r in runs:  # the triangle inequality that both proofs rest on, draw by draw
        assert (r.h <= r.noise + r.loss + 1e-12).all()


def test_the_minimiser_minimises(runs: list[theory_norm.Draws]) -> None:
    fixed = [r for r in runs if r.omega == "fixed"]
    assert all((r.loss <= r.noise + r.h + 1e-12).all() for r in fixed)


def test_comparison_says_what_its_numbers_say(runs: list[theory_norm.Draws]) -> None:
    check = theory_norm.compare_with_scores(runs)
    for row in check.rows:
        for low, high, word in (row[5:8], row[8:11]):
            assert word == (
                "h closer" if high < 0 else "score closer" if low > 0 else "no difference"
            )
    assert not check.holds  # the likelihood wins where the family contains the truth


def test_page_has_every_claim_and_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = theory_page.write_theory_page(tmp_path / "theory.md", draws=3)
    text = written[0].read_text()
    for label in (
        "Theorem 1",
        "Theorem 2",
        "Theorem 4",
        "Theorem 5",
        "Theorem 6",
        "Theorem 7",
        "Proposition",
    ):
        assert f"## {label}" in text
    assert all(path.stat().st_size > 5000 for path in written[1:])
    for path in written[1:]:
        assert f"assets/theory/{path.name}" in text


def test_plots_draw_the_numbers_of_the_table(runs: list[theory_norm.Draws]) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    checks = {
        c.label: c
        for c in (theory_windows.check_theorem_6(), theory_norm.compare_with_scores(runs))
    }
    figure = theory_page.plot_theorem_6(checks)
    drawn = figure.axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(drawn, checks["Theorem 6"].column("exact probability"))
    figure = theory_page.plot_distances(checks)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    table = checks["h against proper scores"]
    expected = table.column("h") + table.column("NLL") + table.column("Brier")
    np.testing.assert_array_equal(heights, expected)
    plt.close("all")


def test_theorem_7_on_every_small_case() -> None:
    """Both conditions hold for exactly the same ε, on all multisets of up to three events on a grid."""
    for n in (1, 2, 3):
        predictions = product((0.0, 0.25, 0.5, 0.75, 1.0), repeat=n)
        outcomes = list(product((False, True), repeat=n))
        for p, o in product(predictions, outcomes):
            case = np.array(p), np.array(o)
            left = theory_windows.smallest_epsilon_rate(*case)
            right = theory_windows.smallest_epsilon_windows(*case)
            assert left == pytest.approx(right, abs=1e-9), case


def test_fast_statistics_are_the_exact_ones_of_the_open_interval():
    """T̃ over [R₁, R₂] is T over the interval widened by an infinitesimal: no event on its boundary."""
    rng = np.random.default_rng(0)
    p = np.sort(rng.random(40))
    o = rng.random(40) < 0.5
    fast = sliding_means(p, 7) - sliding_means(o, 7)
    for k, error in enumerate(fast):
        run = np.arange(k, k + 7)
        nu = 1e-9
        ends = (p[k] - nu, p[k + 6] + nu)
        exact = theory_windows.exact_statistics(p, o, ends, run)
        assert exact.t3 == 14
        assert exact.error == pytest.approx(abs(error), abs=1e-12)


def test_boundary_events_count_half():
    s = theory_windows.exact_statistics([0.25, 0.5, 0.75], [1, 1, 0], (0.25, 0.75))
    assert s.t1 == 0.75 + 2 * 0.5
    assert s.t2 == 0.75
    assert s.t3 == 4


def test_statistics_refuse_a_subset_outside_the_interval():
    with pytest.raises(ValueError, match="inside the interval"):
        theory_windows.exact_statistics([0.1, 0.9], [0, 1], (0.5, 1.0), [0])
    with pytest.raises(ValueError, match="R1 < R2"):
        theory_windows.exact_statistics([0.1], [0], (0.5, 0.5))
