"""Thm 7 as a checkable statement, and the fast window statistics against it."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from hcal.objective.definition import sliding_means
from studies.theory_windows import exact_statistics

pytestmark = pytest.mark.slow

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
    p, o = np.sort(rng.random(40)), rng.random(40) < 0.5
    fast = sliding_means(p, 7) - sliding_means(o, 7)
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
