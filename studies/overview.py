"""All metrics and methods at a glance: a map of ARE beside the paper's, bars of every metric, tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from hcal.bench.catalog import PAPER_METRICS, PAPER_PROTOCOL, label_of
from hcal.bench.figures import math_title
from hcal.bench.render import render_tables
from hcal.bench.store import Results
from hcal.bench.style import GREY, SUBJECT, save_figure, styled
from hcal.bench.tables import collapsed_cells, metric_table
from studies.published import PAPER_H, PRINTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OURS: Final = ("h", PAPER_H, *PAPER_PROTOCOL)


def averages(results: Results, metric: str, *, relative: bool) -> NDArray[np.float64]:
    """Return ARE (or AE) of every method over all tasks, NaN for one that lacks some; shape (methods,).

    Parameters
    ----------
    results : Results
    metric : str
    relative : bool

    Returns
    -------
    array of shape (methods,)
    """
    values = results.table(metric, relative=relative)
    known = np.isfinite(values).any(axis=1)
    return np.asarray(values[known].mean(axis=0)) if known.any() else np.full(values.shape[1], np.nan)


def draw_overview(main: Results, paper: Results | None, folder: Path) -> list[Path]:
    """Draw the map and the bars.

    Parameters
    ----------
    main : Results
    paper : Results, optional
        The paper's numbers, drawn beside ours.
    folder : Path

    Returns
    -------
    list of Path
    """
    figures = {"overview": error_map(main, paper)}
    figures |= {f"bars-{w}": bars(main, relative=w == "relative") for w in ("relative", "absolute")}
    return [save_figure(figure, folder / f"{name}.png") for name, figure in figures.items()]


def error_map(main: Results, paper: Results | None) -> Figure:
    """Draw ARE as colour and number, methods × metrics, ours and the paper's side by side."""
    panels = [("this run", _without_printed(main))]
    if paper is not None:
        panels.append(("the paper", _without_printed(paper)))
    with styled() as plt:
        counts = [sum(_complete(r, m) for m in PAPER_METRICS if m in r.metrics) for _, r in panels]
        figure, axes = plt.subplots(
            1, len(panels), figsize=(2.2 * len(panels) + 0.42 * sum(counts), 7.4), squeeze=False,
            width_ratios=[max(c, 2) for c in counts],
        )  # fmt: skip
        for panel, (title, results) in zip(axes[0], panels, strict=True):
            metrics = [m for m in PAPER_METRICS if m in results.metrics and _complete(results, m)]
            table = np.array([averages(results, m, relative=True) for m in metrics]).T
            panel.imshow(np.log2(np.clip(table, 1 / 8, 8)), cmap="RdBu_r", vmin=-3, vmax=3, aspect="auto")
            for i, j in np.argwhere(np.isfinite(table)):
                panel.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", fontsize=6.5)
            names = [math_title(label_of(m)) for m in metrics]
            panel.set_xticks(range(len(metrics)), names, rotation=60, ha="right", rotation_mode="anchor")
            panel.set_yticks(range(len(results.methods)), results.methods)
            for label in panel.get_yticklabels():
                label.set_color(SUBJECT if label.get_text() in _OURS else "black")
            panel.grid(visible=False)
            panel.set_title(f"ARE, {title} ({len(results.tasks)} tasks)", loc="left")
        figure.tight_layout()
    return figure  # type: ignore[no-any-return]


def _complete(results: Results, metric: str) -> bool:
    """Whether a metric is known on every task; the paper's source has most of them for one task only."""
    return bool(np.isfinite(results.table(metric, relative=True)).any(axis=1).all())


def _without_printed(results: Results) -> Results:
    return results.select(tasks=[t for t in results.tasks if not t.endswith(PRINTED)])


def bars(results: Results, *, relative: bool) -> Figure:
    """Draw a panel a metric: ARE (or AE) of every method, best first."""
    metrics = [m for m in PAPER_METRICS if m in results.metrics]
    collapsed = np.atleast_1d(collapsed_cells(results).any(axis=0))
    with styled() as plt:
        figure, axes = plt.subplots(
            -(-len(metrics) // 3), 3, figsize=(11, 2.3 * -(-len(metrics) // 3)), squeeze=False
        )
        for panel in axes.ravel()[len(metrics) :]:
            panel.set_visible(False)
        for panel, metric in zip(axes.ravel(), metrics, strict=False):
            values = np.asarray(averages(results, metric, relative=relative))
            order = np.argsort(values, kind="stable")
            colours = [SUBJECT if results.methods[i] in _OURS else GREY for i in order]
            panel.bar(range(len(order)), values[order], 0.8, color=colours)
            names = [results.methods[i] + ("†" if collapsed[i] else "") for i in order]
            panel.set_xticks(range(len(order)), names, rotation=90, fontsize=6)
            panel.grid(axis="x", visible=False)
            # one method that fails badly must not hide the others
            least = float(np.nanmedian(values))
            panel.set_ylim(0, min(float(np.nanmax(values)) * 1.05, 4 * least))
            panel.set_title(math_title(label_of(metric)), loc="left")
        word = "average relative error (ARE)" if relative else "average error (AE)"
        figure.suptitle(f"{word} of every method, best first; † collapsed on some task", x=0.01, ha="left")
        figure.tight_layout()
    return figure  # type: ignore[no-any-return]


def tasks_page(main: Results, source: str) -> str:
    """Return the page of tables: every metric, every task, every method."""
    tables = [metric_table(main, m) for m in PAPER_METRICS if m in main.metrics]
    return f"""# Every task, every metric

Generated by `make pages` from `{source}`; do not edit. What the averages of
[the reproduction](reproduction.md) are made of: AE is the mean of a column, ARE the mean of the column
divided by `uncal`, task by task.

{render_tables(tables, "markdown")}"""
