"""The statistical promises on synthetic sets of known truth: bias, coverage, level, power.

The study itself is benchmarks/metric_coverage.py (N = 2000, K = 10); here a small part of it by default, all
of it with ``-m slow``, and the check that the documentation shows the stored figures.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType

import pytest

from conftest import ROOT


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


coverage = load("metric_coverage")


def test_a_few_sets() -> None:
    found = coverage.study(1.2, 12, n_resamples=60)
    assert found["rejected"]["ks"] >= 11 / 12  # a power near 1
    assert found["tested"] == {"ks": 12, "skce": 3}
    assert found["rejected"]["skce"] >= 1 / 3  # a power near 0.96
    for name, share in found["coverage"].items():
        assert share >= 9 / 12, name  # a nominal 95 % falls below with a probability of 2e-3
    h = found["hce_squared"]
    assert abs(h["mean"] - h["truth"]) < 4.5 * h["mc_se"]


def test_documentation_shows_the_stored_figures() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert coverage.tables() in page
    assert load("metrics").table() in page


def test_stored_figures_keep_the_promises() -> None:
    stored = json.loads(coverage.RESULTS.read_text())
    check_calibrated(stored["study"]["1"])
    check_miscalibrated(stored["study"]["1.2"], (*coverage.SCORES, "dece"))
    check_miscalibrated(stored["study"]["2"], ("dece", "skce", "hce"))
    for t in ("1", "1.2"):
        # Conservative by construction: they may cover more than 95 %, not less (binomial error of the study).
        sets = stored["plug_in"][t]["sets"]
        for name, share in stored["plug_in"][t]["coverage"].items():
            assert share >= 0.95 - 3 * (0.95 * 0.05 / sets) ** 0.5, (t, name)


def check_calibrated(r: dict) -> None:
    assert r["sets"] >= 500
    assert min(r["judged"][name] for name in coverage.SCORES) >= 2000
    for name in coverage.SCORES:
        assert 0.93 <= r["coverage"][name] <= 0.97, name
    for test, share in r["rejected"].items():
        assert 0.035 <= share <= 0.065, test
    h = r["hce_squared"]
    assert abs(h["mean"] - h["truth"]) < 4 * h["mc_se"]
    assert 0.02 <= h["above_noise"] <= 0.08


def check_miscalibrated(r: dict, names: tuple[str, ...]) -> None:
    assert r["sets"] >= 500
    for name in names:
        assert 0.93 <= r["coverage"][name] <= 0.97, name
    assert min(r["rejected"].values()) >= 0.9
    h = r["hce_squared"]
    assert abs(h["mean"] - h["truth"]) < 4 * h["mc_se"]


@pytest.mark.slow
def test_all_sets_calibrated() -> None:
    check_calibrated(coverage.study(1.0, 2000, seed=7))


@pytest.mark.slow
def test_all_sets_miscalibrated() -> None:
    check_miscalibrated(coverage.study(1.2, 2000, seed=7), (*coverage.SCORES, "dece"))
    check_miscalibrated(coverage.study(2.0, 2000, seed=7), ("dece", "skce", "hce"))
