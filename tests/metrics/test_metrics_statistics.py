"""The statistical promises on synthetic sets of known truth: bias, coverage, level, power.

The study itself is studies/metric_coverage.py (N = 2000, K = 10): here a small part of it, and its stored figures.
"""

from __future__ import annotations

import json

import pytest

from studies import metric_coverage as coverage


def test_a_few_sets() -> None:
    coverage_found = coverage.study(1.2, 8, resamples=60)
    assert coverage_found["rejected"]["ks"] >= 7 / 8  # a power near 1
    assert coverage_found["rejected"]["skce"] >= 5 / 8  # a power near 0.955
    for name, share in coverage_found["coverage"].items():
        assert share >= 5 / 8, name  # a nominal 95 % falls below with a probability of 4e-4
    h = coverage_found["hce_squared"]
    assert abs(h["mean"] - h["truth"]) < 5 * h["mc_se"]


def test_stored_figures_keep_the_promises_and_are_those_of_the_page() -> None:
    stored = json.loads(coverage.RESULTS.read_text())
    assert coverage.tables() in coverage.PAGE.read_text()
    check(stored["study"]["1"], coverage.SCORES, power=None)
    check(stored["study"]["1.2"], (*coverage.SCORES, "dece", "hce_pooled"))
    check(stored["study"]["2"], (*coverage.SCORES, "dece", "skce", "hce_pooled"))
    for result in stored["plug_in"].values():
        # Conservative by construction: they may cover more than 95 %, not less (binomial error of the study).
        for name, share in result["coverage"].items():
            assert share >= 0.95 - 3 * (0.95 * 0.05 / result["sets"]) ** 0.5, name


def check(r: dict, names: tuple[str, ...], power: float | None = 0.9) -> None:
    """Coverage near 95 %, an unbiased hce, and a test that holds its level or has its power."""
    assert min(r["sets"], *r["tested"].values()) >= 2000
    for name in names:
        most = (
            0.99 if name == "dece" else 0.97
        )  # its interval allows for a bias, so it is conservative
        assert 0.93 <= r["coverage"][name] <= most, name
    for share in r["rejected"].values():
        assert 0.035 <= share <= 0.065 if power is None else share >= power
    h = r["hce_squared"]
    assert abs(h["mean"] - h["truth"]) < 4 * h["mc_se"]
    assert power is not None or 0.02 <= h["above_noise"] <= 0.08


@pytest.mark.slow
def test_all_sets() -> None:
    check(coverage.study(1.0, 2000, seed=7), coverage.SCORES, power=None)
    check(coverage.study(1.2, 2000, seed=7), (*coverage.SCORES, "dece"))
    check(coverage.study(2.0, 2000, seed=7), ("dece", "skce", "hce_pooled"))
