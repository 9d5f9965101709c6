"""The paper's figures, drawn from stored results: the numbers drawn are the numbers of the tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.bench.catalog import PAPER_METRICS, PAPER_PROTOCOL, label_of
from hcal.bench.store import Key, Results
from hcal.bench.style import GREY, PALETTE, SUBJECT, save_figure, styled
from hcal.bench.tables import metric_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUBJECTS = ("h", *PAPER_PROTOCOL)


def math_title(metric: str) -> str:
    """Return a metric's name as matplotlib sets it, with its indices.

    >>> math_title("ECE^em"), math_title("CWECE_a")
    ('ECE$^{em}$', 'CWECE$_{a}$')
    """
    return re.sub(r"([\^_])(\w+)", r"$\1{\2}$", metric)


def draw_all(results: Results, folder: Path, *, task: str | None = None, suffix: str = "png") -> list[Path]:
    """Draw every figure that the results allow.

    ``task`` is that of the reliability diagrams, by default the first; ``suffix`` is png, pdf or svg.
    """
    if suffix not in ("png", "pdf", "svg"):
        raise ValueError(f"format must be png, pdf or svg, got {suffix!r}")
    if not results.good:
        raise ValueError("there is no finished cell in these results")
    main = results.select(methods=[m for m in results.methods if "/" not in m])
    figures: dict[str, Callable[[], Figure]] = {}
    if len(main.methods) > 1 and any(m in main.metrics for m in PAPER_METRICS):
        for metric in ("ece_s1", "tcwece", "dkde_ce"):
            if metric in main.metrics:
                figures[f"stacked-{metric}"] = partial(stacked_bars, main, metric)
        figures["reliability"] = lambda: reliability_grid(main, task or main.tasks[0])
    curves = [m for m in results.methods if _curves(results, m)]
    if curves:
        figures["loss-curves"] = lambda: loss_curves(results, curves[0])
    return [save_figure(draw(), folder / f"{name}.{suffix}") for name, draw in figures.items()]


def stacked_bars(results: Results, metric: str) -> Figure:
    """Draw the relative error of every method as a bar of tasks, best method first."""
    table = metric_table(results, metric)
    tasks = [r for r in table.rows if r.kind == "task"]
    values = np.array([[np.nan if v is None else v for v in r.values] for r in tasks], dtype=np.float64)
    values /= np.array([[results.before(r.label, metric)] for r in tasks])
    complete = np.flatnonzero(np.isfinite(values).all(axis=0))
    order = complete[np.argsort(values[:, complete].sum(axis=0), kind="stable")]
    collapsed = [any(flags) for flags in zip(*(r.flags for r in tasks), strict=True)]
    with styled() as plt:
        figure, axes = plt.subplots(figsize=(max(4.5, 0.3 * len(order) + 1.2), 3.6))
        bottom = np.zeros(len(order))
        shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.92, len(tasks)))
        for row, heights, shade in zip(tasks, values[:, order], shades, strict=True):
            axes.bar(range(len(order)), heights, 0.8, bottom=bottom, color=shade, label=row.label)
            bottom += heights
        names = [table.columns[i] + ("†" if collapsed[i] else "") for i in order]
        axes.set_xticks(range(len(order)), names, rotation=60, ha="right", rotation_mode="anchor")
        for label, i in zip(axes.get_xticklabels(), order, strict=True):
            label.set_color(SUBJECT if table.columns[i] in _SUBJECTS else "black")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("sum over tasks of error / uncalibrated")
        top = float(np.nanmax(bottom, initial=1.0))
        # One method that fails badly must not hide the others: bars beyond twice uncalibrated are cut.
        axes.set_ylim(0, min(top * 1.05, 2.0 * len(tasks)))
        dagger = "  († collapsed on some task)" if any(collapsed) else ""
        axes.set_title(f"{math_title(label_of(metric))}: relative error by task{dagger}", loc="left")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), reverse=True)
    return figure  # type: ignore[no-any-return]


def reliability_grid(results: Results, task: str) -> Figure:
    """Draw the reliability diagram of every method on one task: accuracy against confidence in 15 bins."""
    shown = [m for m in results.methods if results.seeds(task, m)]
    if not shown:
        raise ValueError(f"no results for task {task!r}; there are: {', '.join(results.tasks)}")
    columns = min(6, len(shown))
    rows = -(-len(shown) // columns)
    with styled() as plt:
        size = (1.55 * columns + 0.5, 1.7 * rows + 0.6)
        figure, grid = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
        for axes, method in zip(grid.flat, shown, strict=False):
            _reliability(axes, results, task, method)
        for axes in grid.flat[len(shown) :]:
            axes.set_axis_off()
        for axes in grid.flat[max(0, len(shown) - columns) : len(shown)]:
            axes.tick_params(labelbottom=True)  # the lowest of its column, also where the last row is short
        figure.supxlabel("confidence", fontsize=9)
        figure.supylabel("accuracy", fontsize=9)
        title = f"{task}: reliability and ECE$^{{ew}}$; the area of a point is its share of the rows"
        figure.suptitle(title, fontsize=10)
        figure.tight_layout()
    return figure  # type: ignore[no-any-return]


def _reliability(axes: Any, results: Results, task: str, method: str) -> None:
    bins = results.good[Key(task, method, results.seeds(task, method)[0])].notes["reliability"]
    n, conf, acc = (np.array(bins[k], dtype=np.float64) for k in ("n", "conf", "acc"))
    full = n > 0
    colour = SUBJECT if method in _SUBJECTS else PALETTE[0]
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, zorder=1)
    axes.vlines(conf[full], conf[full], acc[full], color=colour, linewidth=1)
    area = 6 + 60 * n[full] / n.sum()
    axes.scatter(conf[full], acc[full], s=area, color=colour, linewidths=0, zorder=3, clip_on=False)
    ece = results.value(task, method, "ece_ew")
    axes.set_title(f"{method}  {100 * ece:.2f} %" if np.isfinite(ece) else method, fontsize=8, pad=3)
    axes.set(xlim=(0, 1.03), ylim=(0, 1.03), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")
    axes.tick_params(labelsize=7)


def _curves(results: Results, method: str) -> dict[str, dict[str, list[float]]]:
    """Return the loss curve of the first seed on every task that has one."""
    out = {}
    for task in results.tasks:
        for seed in results.seeds(task, method)[:1]:
            curve = results.good[Key(task, method, seed)].notes.get("loss_curve")
            if curve:
                out[task] = curve
    return out


def loss_curves(results: Results, method: str) -> Figure:
    """Draw the loss against the step on every task, relative to its start."""
    curves = _curves(results, method)
    if not curves:
        raise ValueError(f"no loss curve of {method!r} is in these results")
    with styled() as plt:
        figure, axes = plt.subplots(figsize=(6.0, 3.4))
        shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.92, len(curves)))
        for (task, curve), shade in zip(curves.items(), shades, strict=True):
            loss = np.array(curve["loss"])
            axes.plot(curve["step"], loss / loss[0], color=shade, label=task)
        axes.set(xlabel="epoch", ylabel="loss / loss at the start", yscale="log")
        axes.set_title(f"Loss curves of {method}", loc="left")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure  # type: ignore[no-any-return]
