"""Every program of the gallery runs, and its numbers show what its text says."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hcal
from helpers import ROOT

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow  # run by `make test-all`

GALLERY = ROOT / "examples" / "gallery"
Names = dict[str, Any]


def reliability(names: Names) -> None:
    assert names["error_after"] < 0.3 * names["error_before"]


def whom_to_call(names: Names) -> None:
    metrics = hcal.metrics
    labels = names["labels"]
    assert metrics.nll(names["chance"], labels) < metrics.nll(names["one_for_all"], labels) - 0.005
    rule = names["rule"]
    assert rule.threshold_low < 1 / 21 < rule.threshold_high
    ends = (rule.points[0], rule.points[-1])
    assert rule.cost.value < 0.9 * min(point.cost for point in ends)
    for metric in names["expected"].metrics:
        # The interval holds the chance of these labels; the truth is one draw, so a margin is left.
        margin = 0.5 * (metric.high - metric.low)
        observed = names[metric.name]
        assert metric.low - margin < observed < metric.high + margin, metric.name


def segments(names: Names) -> None:
    excess = {name: losses.mean() for name, losses in names["excess"].items()}
    assert excess["shrunk"] < 0.5 * excess["one for each"] < 0.5 * excess["one for all"]


def ageing(names: Names) -> None:
    mean = {name: losses.mean() for name, losses in names["excess"].items()}
    assert mean["half-life of 30 days"] < 0.95 * mean["last month alone"]
    assert mean["half-life of 30 days"] < 0.5 * mean["all rows count"]


def sql_and_javascript(names: Names) -> None:
    np.testing.assert_allclose(names["in_sql"], names["in_python"], atol=1e-12)
    if names["in_javascript"] is not None:
        np.testing.assert_allclose(names["in_javascript"], names["in_python"], atol=1e-12)


def rare_positives(names: Names) -> None:
    share = names["y_test"].mean()
    assert names["before"].mean() > 3 * share
    assert names["after"].mean() == pytest.approx(share, rel=0.2)


def decomposition(names: Names) -> None:
    base_rate, naive_bayes, _ = names["repairable"]
    assert base_rate < 0.01 < 0.05 < naive_bayes


def ten_classes(names: Names) -> None:
    assert names["gap_after"].mean() < 0.6 * names["gap_before"].mean()


def how_many_rows(names: Names) -> None:
    excess = names["excess"]
    assert excess["ms"][0] > 1.2 * excess["pool"][0]
    assert excess["ms"][-1] < 0.2 * excess["ts"][-1]


def compare(names: Names) -> None:
    ranking = names["ranking"]
    p_values = {frozenset(pair): p for *pair, p in ranking.p_values}
    assert ranking.ranks["pool"] < ranking.ranks["hb"]
    assert p_values[frozenset(("pool", "hb"))] < 0.05


def certificate(names: Names) -> None:
    assert np.all(np.array(names["at_most"]) > 100 * names["true_error"])
    assert np.all(np.array(names["at_least"]) < 100 * names["true_error"])
    assert names["at_most"][-1] < 6


def monitor(names: Names) -> None:
    assert names["change"] < names["alarm"].row < names["change"] + 3000


def label_shift(names: Names) -> None:
    assert names["share"] == pytest.approx(names["new_y"].mean(), abs=0.02)
    assert names["after"].mean() == pytest.approx(names["new_y"].mean(), abs=0.02)
    assert names["before"].mean() > names["new_y"].mean() + 0.04


def clinical(names: Names) -> None:
    panel = names["panel"]
    assert panel.slope.low < 1 < panel.slope.high
    assert 0.75 < panel.auc.value < 0.9
    validation = names["validation"]
    assert validation.slope.corrected < 0.85 < validation.slope.apparent
    assert validation.auc.corrected < validation.auc.apparent - 0.02


def language_model(names: Names) -> None:
    right = names["right"]
    stated = names["before"].max(axis=1) >= 0.8
    calibrated = names["after"].max(axis=1) >= 0.8
    assert right[stated].mean() < 0.75
    assert right[calibrated].mean() > 0.8


def training(names: Names) -> None:
    plain = names["plain"][-1]
    helped = names["helped"][-1]
    assert helped[0] < 0.6 * plain[0]
    assert helped[1] > plain[1] - 0.02


def canonical(names: Names) -> None:
    assert names["class_wise"] < 0.01
    assert names["largest_gap"].mean() > 0.05
    assert names["true"].min() >= 0


def month_by_month(names: Names) -> None:
    estimate = np.array(names["estimate"])
    bound = np.array(names["bound"])
    assert np.all(estimate < bound)
    assert estimate[-1] > 5 > estimate[0] + 3


SHOWS: dict[str, Callable[[Names], None]] = {
    check.__name__: check
    for check in (
        reliability, rare_positives, decomposition, ten_classes, how_many_rows, compare,
        certificate, monitor, label_shift, clinical, language_model, training, canonical,
        month_by_month, whom_to_call, segments, ageing, sql_and_javascript,
    )
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("name", SHOWS)
def test_a_picture_shows_what_its_text_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(GALLERY)  # where sphinx-gallery runs them, beside their data
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.setattr(pyplot, "show", lambda: None)
    try:
        SHOWS[name](runpy.run_path(str(GALLERY / f"{name}.py")))
        assert pyplot.get_fignums(), "draws nothing"
    finally:
        pyplot.close("all")


def test_every_program_of_the_gallery_is_tested_and_has_a_place() -> None:
    programs = {path.stem for path in GALLERY.glob("*.py")}
    assert programs == set(SHOWS)
    style = (ROOT / "docs" / "gallery_style.py").read_text(encoding="utf-8")
    lessons = style.partition("LESSONS = [")[2].partition("]")[0]
    expected = set(lessons.replace('"', "").replace(",", " ").split())
    assert programs == expected
