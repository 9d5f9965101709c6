"""Every figure is rendered, and the numbers drawn are those of the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hcal.bench import figures
from hcal.bench.store import Key, Results
from hcal.bench.tables import metric_table

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _close() -> object:
    yield
    plt.close("all")


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


@pytest.mark.parametrize(
    "suffix", ["svg", *(pytest.param(s, marks=pytest.mark.slow) for s in ("png", "pdf"))]
)
def test_draw_all_writes_every_figure(results: Results, tmp_path: Path, suffix: str) -> None:
    names = {p.stem for p in figures.draw_all(results, tmp_path, suffix=suffix)}
    assert names == {
        "stacked-ece_s1",
        "stacked-tcwece",
        "stacked-dkde_ce",
        "reliability",
        "loss-curves",
    }
    assert all(p.stat().st_size > 3000 for p in tmp_path.iterdir())


def test_no_text_is_cut_off(results: Results) -> None:
    for figure in (figures.loss_curves(results, "h"), figures.stacked_bars(results, "ks")):
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
