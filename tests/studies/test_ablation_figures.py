"""The figures of the ablations draw the numbers of the results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hcal.bench.catalog import GROUPS
from hcal.bench.store import Cell, Key, Results
from studies import figures
from studies.ablations import ABLATIONS, ablation_methods
from studies.paired import compared_metrics

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _close() -> object:
    yield
    plt.close("all")


@pytest.fixture
def ablations() -> Results:
    rng = np.random.default_rng(1)
    metrics = [m for group in GROUPS.values() for m in group]
    names = [m.name for s in ("objective", "robustness") for m in ablation_methods(s)]
    cells = []
    for task in ("alpha", "beta"):
        before = dict(zip(metrics, rng.uniform(0.05, 0.2, len(metrics)), strict=True))
        for name in names:
            post = {m: v * rng.uniform(0.2, 1.2) for m, v in before.items()}
            notes = {"status": {"status": "ok"}, "loss_curve": {"step": [0, 5, 9], "loss": [4.0, 2.0, 1.0]}}
            cells.append(Cell(Key(task, name, 0), before, post, notes))
    return Results(cells)


def test_objective_bars_draw_the_paper_selection(ablations: Results) -> None:
    figure = figures.objective_bars(ablations)
    heights = np.array([bar.get_height() for bar in figure.axes[0].patches]).reshape(3, -1)
    by_hand = np.mean(
        [
            ablations.value(t, "obj-nll/class", "tcwece") / ablations.before(t, "tcwece")
            for t in ablations.tasks
        ]
    )
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert heights[1][labels.index("tCWECE")] == pytest.approx(by_hand)
    by_hand = np.mean(
        [ablations.value(t, "obj-h/top", "ks") / ablations.before(t, "ks") for t in ablations.tasks]
    )
    assert heights[0][labels.index("KS")] == pytest.approx(by_hand)


def test_robustness_draws_the_mean_of_each_level(ablations: Results) -> None:
    figure = figures.robustness(ablations)
    line = figure.axes[0].lines[0].get_ydata()
    values = [
        ablations.value(t, "M=100/top", m) / ablations.before(t, m)
        for m in compared_metrics(GROUPS["top-label"], "top-label")
        for t in ablations.tasks
    ]
    assert line[list(ABLATIONS["robustness"]).index("M=100")] == pytest.approx(np.mean(values))


def test_what_the_results_allow_is_drawn(ablations: Results, results: Results, tmp_path: Path) -> None:
    assert {p.name for p in figures.draw_ablations(ablations, tmp_path)} == {
        "objectives.png",
        "robustness.png",
    }
    assert figures.draw_ablations(results, tmp_path) == []
