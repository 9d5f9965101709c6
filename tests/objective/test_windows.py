"""Thm 7 as a checkable statement, and the fast window statistics against it."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from hcal.objective.weights import kmeans_ranges, window_weights
from hcal.objective.windows import (
    event_probs,
    exact_statistics,
    sliding_means,
    sort_events,
    window_errors,
)

GRID = (0.0, 0.25, 0.5, 0.75, 1.0)
INTERVALS = [(a, b) for a, b in product(GRID, GRID) if a < b]


def subsets(items):
    return [list(c) for size in range(1, len(items) + 1) for c in combinations(items, size)]


def smallest_epsilon_of_definition(p, o):
    """Smallest ε of eq:rm-exp over all a, δ with edges on the grid and all subsets Q."""
    worst = 0.0
    for low, high in INTERVALS:
        centre, delta = (low + high) / 2, (high - low) / 2
        inside = [i for i, v in enumerate(p) if low <= v <= high]
        for q in subsets(inside):
            worst = max(worst, abs(centre - o[q].mean()) - delta)
    # δ → 0 around an event: B_δ(a) holds that value alone
    for value in set(p):
        for q in subsets([i for i, v in enumerate(p) if v == value]):
            worst = max(worst, abs(value - o[q].mean()))
    return worst


def smallest_epsilon_of_statistics(p, o):
    """Smallest ε of eq:thm7regterm over all intervals on the grid and all subsets Q."""
    worst = 0.0
    for low, high in INTERVALS:
        inside = [i for i, v in enumerate(p) if low <= v <= high]
        for q in subsets(inside):
            worst = max(worst, exact_statistics(p, o, (low, high), q).error)
    return worst


def test_theorem_7_on_every_small_case():
    """Both conditions hold for exactly the same ε, on all 30 × 30 × … multisets of up to three events."""
    for n in (1, 2, 3):
        for p in product(GRID, repeat=n):
            for o in product((0, 1), repeat=n):
                p_, o_ = np.array(p), np.array(o)
                left, right = smallest_epsilon_of_definition(p_, o_), smallest_epsilon_of_statistics(p_, o_)
                assert left == pytest.approx(right, abs=1e-12), (p, o)


def test_fast_statistics_are_the_exact_ones_of_the_open_interval():
    """T̃ over [R₁, R₂] is T over the interval widened by an infinitesimal: no event on its boundary."""
    rng = np.random.default_rng(0)
    p, o = sort_events(rng.random(40), rng.random(40) < 0.5)
    fast = window_errors(p, o, 7)
    for k, error in enumerate(fast):
        run = np.arange(k, k + 7)
        nu = 1e-9
        exact = exact_statistics(p, o, (p[k] - nu, p[k + 6] + nu), run)
        assert exact.t3 == 14
        assert exact.error == pytest.approx(abs(error), abs=1e-12)


def test_boundary_events_count_half():
    s = exact_statistics([0.25, 0.5, 0.75], [1, 1, 0], (0.25, 0.75))
    assert (s.t1, s.t2, s.t3) == (0.75 + 2 * 0.5, 0.75, 4)


def test_statistics_refuse_a_subset_outside_the_interval():
    with pytest.raises(ValueError, match="inside the interval"):
        exact_statistics([0.1, 0.9], [0, 1], (0.5, 1.0), [0])
    with pytest.raises(ValueError, match="R1 < R2"):
        exact_statistics([0.1], [0], (0.5, 0.5))


def test_events_of_subsets():
    p, o = event_probs([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], [2, 0], [1, 2])
    assert p == pytest.approx([0.8, 0.4])
    assert o.tolist() == [True, False]


def test_fewer_values_than_the_window_give_one_window():
    assert sliding_means([1.0, 3.0], 10).tolist() == [2.0]


def test_prefix_sums_keep_the_tail_exact():
    """Windows of values near 1e-12 beside a million near 1: float32 prefix sums would return 0."""
    q = np.concatenate([np.full(1000, 1e-12), np.ones(100_000)])
    assert sliding_means(q, 200)[0] == pytest.approx(1e-12, rel=1e-9)


def lloyd_by_hand(x, clusters, iterations):
    centres = np.quantile(x, (np.arange(clusters) + 0.5) / clusters)
    for _ in range(iterations):
        nearest = np.abs(x[:, None] - centres).argmin(1)
        centres = np.array(
            [x[nearest == c].mean() if (nearest == c).any() else centres[c] for c in range(clusters)]
        )
    return centres, np.abs(x[:, None] - centres).argmin(1)


@pytest.mark.parametrize("iterations", [1, 25])
def test_kmeans_is_lloyd_from_quantiles(iterations):
    x = np.sort(np.random.default_rng(1).random(500) ** 4)
    centres, edges = kmeans_ranges(x, 15, iterations)
    by_hand, nearest = lloyd_by_hand(x, 15, iterations)
    assert centres == pytest.approx(by_hand)
    assert np.diff(edges).tolist() == np.bincount(nearest, minlength=15).tolist()


def test_an_empty_cluster_counts_zero():
    w = window_weights(np.zeros(4), clusters=3)
    assert w.sum() == pytest.approx(1 / 3)
    assert w == pytest.approx(np.full(4, 1 / 12))
