"""The windows of the definition and their weights."""

from __future__ import annotations

import numpy as np
import pytest

from hcal.objective.definition import sliding_means
from hcal.objective.weights import kmeans_ranges, window_weights


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
