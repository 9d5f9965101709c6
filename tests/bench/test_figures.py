"""Every figure is rendered, and the numbers drawn are those of the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hcal.bench import figures
from hcal.bench.ablations import ABLATIONS, ablation_methods
from hcal.bench.catalog import GROUPS, PAPER_METRICS, compared_metrics, label_of
from hcal.bench.store import Cell, Key, Results
from hcal.bench.tables import metric_table, overview_table

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


def test_radar_draws_the_overview_table(results: Results) -> None:
    figure = figures.radar(results)
    table = overview_table(results)
    rows = [r for r in table.rows if r.label in {label_of(m) for m in PAPER_METRICS}]
    assert len(rows) == len(PAPER_METRICS)
    lines = {line.get_gid(): line.get_ydata() for line in figure.axes[0].lines}
    assert set(lines) == set(table.columns)
    for i, method in enumerate(table.columns):
        expected = [r.values[i] for r in rows]
        np.testing.assert_array_equal(lines[method], [*expected, expected[0]])


def test_stacked_bars_draw_the_metric_table_relative_to_before(results: Results) -> None:
    figure = figures.stacked_bars(results, "tcwece")
    table = metric_table(results, "tcwece")
    axes = figure.axes[0]
    order = [label.get_text().strip("†") for label in axes.get_xticklabels()]
    heights = np.array([bar.get_height() for bar in axes.patches]).reshape(3, len(order))
    for task, drawn in zip(results.tasks, heights, strict=True):
        values = dict(zip(table.columns, table.row(task).values, strict=True))
        expected = [values[m] / results.before(task, "tcwece") for m in order]
        np.testing.assert_allclose(drawn, expected)
    total = heights.sum(0)
    assert (np.diff(total) >= 0).all()
    assert "h_class†" in [label.get_text() for label in axes.get_xticklabels()]


def test_reliability_draws_the_stored_bins(results: Results) -> None:
    figure = figures.reliability_grid(results, "beta")
    for axes, method in zip(figure.axes, results.methods, strict=False):
        bins = results.good[Key("beta", method, 0)].notes["reliability"]
        drawn = axes.collections[-1].get_offsets()
        np.testing.assert_allclose(drawn, np.column_stack([bins["conf"], bins["acc"]]))
        assert f"{100 * results.value('beta', method, 'ece_ew'):.2f}" in axes.get_title()
    with pytest.raises(ValueError, match="no results for task"):
        figures.reliability_grid(results, "nowhere")


def test_loss_curves_draw_the_stored_curve(results: Results) -> None:
    figure = figures.loss_curves(results, "h")
    assert len(figure.axes[0].lines) == 3
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [1.0, 2 / 3, 0.5])
    with pytest.raises(ValueError, match="no loss curve"):
        figures.loss_curves(results, "ts")


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


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_draw_all_writes_every_figure(
    results: Results, ablations: Results, tmp_path: Path, suffix: str
) -> None:
    both = Results([*results.cells.values(), *ablations.cells.values()])
    names = {p.stem for p in figures.draw_all(both, tmp_path, suffix=suffix)}
    assert names == {
        "radar",
        "stacked-ece_s1",
        "stacked-tcwece",
        "stacked-dkde_ce",
        "reliability",
        "loss-curves",
        "objectives",
        "robustness",
    }
    assert all(p.stat().st_size > 3000 for p in tmp_path.iterdir())


def test_no_text_is_cut_off(results: Results) -> None:
    for figure in (figures.radar(results), figures.stacked_bars(results, "ks")):
        figure.canvas.draw()
        box = figure.get_tightbbox()
        assert box.width < 12  # inches: fits a page once scaled, nothing runs away
        for axes in figure.axes:
            assert axes.get_title(loc="left") or axes.get_title()


def test_bad_requests_are_refused(results: Results, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="png, pdf or svg"):
        figures.draw_all(results, tmp_path, suffix="bmp")
    with pytest.raises(ValueError, match="no finished cell"):
        figures.draw_all(Results([]), tmp_path)
