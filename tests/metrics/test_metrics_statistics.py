"""The statistical promises on synthetic sets of known truth: bias, coverage, level, power.

The study itself is studies/metric_coverage.py (N = 2000, K = 10); here a small part of it by default, all
of it with ``-m slow``, and the check that the documentation shows the stored figures.
"""

from __future__ import annotations

import json

import pytest

from helpers import ROOT
from studies import metric_coverage as coverage


def test_a_few_sets() -> None:
    found = coverage.study(1.2, 12, n_resamples=60)
    assert found["rejected"]["ks"] >= 11 / 12  # a power near 1
    assert found["tested"] == {"ks": 12, "skce": 12}
    assert found["rejected"]["skce"] >= 8 / 12  # a power near 0.955: less has a probability of 2e-4
    for name, share in found["coverage"].items():
        assert share >= 9 / 12, name  # a nominal 95 % falls below with a probability of 2e-3
    h = found["hce_squared"]
    assert abs(h["mean"] - h["truth"]) < 4.5 * h["mc_se"]


def test_documentation_shows_the_stored_figures() -> None:
    assert coverage.tables() in coverage.PAGE.read_text()


def test_the_summary_of_the_page_is_that_of_the_tables() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    stored = json.loads(coverage.RESULTS.read_text())
    study, plug_in = stored["study"], stored["plug_in"]
    scores = [r["coverage"][n] for r in study.values() for n in coverage.SCORES]
    debiased = [
        study[t]["coverage"][n]
        for t in ("1.2", "2")
        for n in study[t]["coverage"]
        if n not in coverage.SCORES
    ]
    aware = [share for r in plug_in.values() for share in r["coverage"].values()]
    for text in (
        f"scores cover {min(scores):.1%}–{max(scores):.1%}",
        f"`hce_pooled` {min(debiased):.1%}–{max(debiased):.1%}",
        f"bias-aware ones {min(aware):.1%}–{max(aware):.0%}",
        f"(ks {study['1']['rejected']['ks']:.1%}, skce {study['1']['rejected']['skce']:.1%})",
        f"{study['1.2']['rejected']['ks']:.2f} (ks) and {study['1.2']['rejected']['skce']:.3f} (skce)",
        f"its mean is {study['1']['dece']['mean']:.4f}",
        f"`ece_em` has {plug_in['1']['mean']['ece_em']:.4f}",
        f"it is {study['1.2']['dece']['truth'] - study['1.2']['dece']['mean']:.4f} too low",
    ):
        flat = " ".join(page.split()).replace(" %", "%")
        assert text.replace("%–", "–") in flat or text in flat, text
    said = f"{study['1']['dece']['mean']:.4f} where `ece_em` has {plug_in['1']['mean']['ece_em']:.4f}"
    assert said in " ".join((ROOT / "docs" / "faq.md").read_text().split())


def test_stored_figures_keep_the_promises() -> None:
    stored = json.loads(coverage.RESULTS.read_text())
    check_calibrated(stored["study"]["1"])
    check_miscalibrated(stored["study"]["1.2"], (*coverage.SCORES, "dece", "hce_pooled"))
    check_miscalibrated(stored["study"]["2"], (*coverage.SCORES, "dece", "skce", "hce_pooled"))
    for t in ("1", "1.2"):
        # Conservative by construction: they may cover more than 95 %, not less (binomial error of the study).
        sets = stored["plug_in"][t]["sets"]
        for name, share in stored["plug_in"][t]["coverage"].items():
            assert share >= 0.95 - 3 * (0.95 * 0.05 / sets) ** 0.5, (t, name)


def check_calibrated(r: dict) -> None:
    assert r["sets"] >= 2000
    assert min(r["judged"].values()) >= 2000
    assert min(r["tested"].values()) >= 2000
    for name in coverage.SCORES:
        assert 0.93 <= r["coverage"][name] <= 0.97, name
    for test, share in r["rejected"].items():
        assert 0.035 <= share <= 0.065, test
    h = r["hce_squared"]
    assert abs(h["mean"] - h["truth"]) < 4 * h["mc_se"]
    assert 0.02 <= h["above_noise"] <= 0.08


def check_miscalibrated(r: dict, names: tuple[str, ...]) -> None:
    assert r["sets"] >= 2000
    assert min(r["tested"].values()) >= 2000
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
    check_miscalibrated(coverage.study(2.0, 2000, seed=7), ("dece", "skce", "hce_pooled"))
