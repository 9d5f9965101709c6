"""The inequalities against independent root finders and against exact tails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binom

from hcal.certificates.bounds import bennett, certify_gain, kl, kl_interval, kl_upper, lower_mean


@example(0.0, 0.05)
@example(0.996, 1e-4)  # Newton's method started next to 1, where its steps vanish: the bound was 1
@given(st.floats(0, 0.9999), st.floats(1e-7, 15))
def test_kl_upper_is_the_root(c: float, divergence: float) -> None:
    q = float(kl_upper(c, divergence))
    assert q >= c
    if q < 1 - 1e-9:
        assert float(kl(c, q)) == pytest.approx(divergence, rel=1e-6, abs=1e-12)
    else:  # 1 is an answer only where the root is next to it
        assert float(kl(c, 1 - 2e-9)) <= divergence


def test_a_root_that_is_rounded_to_one_is_one() -> None:
    assert kl_upper([0.5, 0.999], [50.0, 0.1]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("c", "m"), [(0.0, 50), (0.02, 50), (0.5, 50), (1.0, 50)])
def test_the_interval_is_the_chernoff_interval(c: float, m: int) -> None:
    low, high = kl_interval(c, np.log(40) / m)
    if c == 0:
        assert low == 0
        assert high == pytest.approx(1 - 40 ** (-1 / m))  # (1 − q)^m = 1/40
    if c == 1:
        assert high == 1
        assert low == pytest.approx(40 ** (-1 / m))
    # Chernoff is never optimistic: the exact binomial tail at the ends is below 1/40.
    hits = round(c * m)
    assert c == 1 or binom.cdf(hits, m, float(high)) <= 1 / 40 + 1e-12
    assert c == 0 or binom.sf(hits - 1, m, float(low)) <= 1 / 40 + 1e-12


@given(st.floats(1e-6, 1e6), st.floats(0.5, 40))
def test_bennett_is_the_root(v: float, log_failure: float) -> None:
    x = float(bennett(v, log_failure))
    u = x / v
    information = (1 + u) * np.log1p(u) - u
    assert v * information == pytest.approx(log_failure, rel=1e-6)


def test_the_betting_bound_covers_and_shrinks() -> None:
    rng = np.random.default_rng(0)
    bounds = [lower_mean(rng.beta(2, 2, 300), 0.1) for _ in range(400)]
    misses = sum(bound > 0.5 for bound in bounds)
    assert (
        misses <= 56
    )  # 40 expected at most; 56 has probability 0.004 in a binomial of 400 and 0.1
    draws = rng.beta(2, 2, 30000)
    wide = draws[:300].mean() - lower_mean(draws[:300], 0.1)
    narrow = draws[:30000].mean() - lower_mean(draws[:30000], 0.1)
    assert narrow < wide / 5


def test_a_file_sorted_by_label_does_not_help_the_gambler() -> None:
    rng = np.random.default_rng(1)
    better = 0
    for seed in range(100):
        ascending = np.sort(rng.normal(0, 0.3, 500).clip(-2, 2))
        difference = ascending[::-1]  # the good rows first, mean 0
        gain = certify_gain(1 + difference / 2, 1 - difference / 2, 0.1, random_state=seed)
        better += gain.at_least > 0
    assert better <= 14  # 5 expected at most (one side); 0.0005 in a binomial of 100 and 0.05
