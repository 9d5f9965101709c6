"""The paper's figures, drawn from stored results: the numbers drawn are the numbers of the tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.bench.catalog import PAPER_METRICS, PAPER_PROTOCOL, label_of
from hcal.bench.store import Key, Results
from hcal.bench.style import GREY, PALETTE, SUBJECT, save_figure, styled
from hcal.bench.tables import metric_table, overview_table

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
        figures["radar"] = lambda: radar(main)
        for metric in ("ece_s1", "tcwece", "dkde_ce"):
            if metric in main.metrics:
                figures[f"stacked-{metric}"] = partial(stacked_bars, main, metric)
        figures["reliability"] = lambda: reliability_grid(main, task or main.tasks[0])
    curves = [m for m in results.methods if _curves(results, m)]
    if curves:
        figures["loss-curves"] = lambda: loss_curves(results, curves[0])
    return [save_figure(draw(), folder / f"{name}.{suffix}") for name, draw in figures.items()]


def radar(results: Results, highlight: Sequence[str] | None = None) -> Figure:
    """Draw ARE over the metrics, one line a method; the best few in colour, the others grey.

    ``highlight``: methods in colour; by default h-calibration's and the four others with the lowest mean ARE.
    """
    table = overview_table(results)
    spokes = {label_of(m) for m in PAPER_METRICS}
    rows = [r for r in table.rows if r.label in spokes]
    values = np.array([[np.nan if v is None else v for v in r.values] for r in rows], dtype=np.float64)
    chosen = list(highlight) if highlight is not None else _best(table.columns, values)
    angle = np.linspace(0, 2 * np.pi, len(rows), endpoint=False)
    with styled() as plt:
        figure, axes = plt.subplots(figsize=(6.6, 5.4), subplot_kw={"projection": "polar"})
        colours = dict(zip(chosen, _colours(chosen), strict=True))
        for method, column in sorted(zip(table.columns, values.T, strict=True), key=lambda x: x[0] in chosen):
            _radar_line(axes, angle, column, method, colours.get(method))
        axes.set_xticks(angle, [math_title(r.label) for r in rows])
        axes.tick_params(axis="x", pad=4)
        for label, place in zip(axes.get_xticklabels(), np.cos(angle), strict=True):
            label.set_horizontalalignment("center" if abs(place) < 0.1 else "left" if place > 0 else "right")
        # Grey lines may leave the circle: a few bad methods must not squeeze the others to the centre.
        shown = values[:, [table.columns.index(m) for m in chosen]]
        axes.set_ylim(0, min(1.5, max(1.05, float(np.nanmax(shown)))))
        axes.set_rlabel_position(90 / len(rows))
        axes.tick_params(axis="y", labelsize=7, labelcolor="#666666")
        axes.set_title("Average relative error, lower is better (uncalibrated = 1)", pad=30)
        handles, labels = axes.get_legend_handles_labels()
        order = [labels.index(m) for m in chosen if m in labels]
        entries = [handles[i] for i in order], [labels[i] for i in order]
        axes.legend(*entries, loc="upper left", bbox_to_anchor=(1.2, 1.05))
    return figure  # type: ignore[no-any-return]


def _radar_line(axes: Any, angle: Any, column: Any, method: str, colour: str | None) -> None:
    closed = np.r_[angle, angle[:1]], np.r_[column, column[:1]]
    if colour is None:
        axes.plot(*closed, color="#d4d4d4", linewidth=0.8, label=f"_{method}", zorder=1, gid=method)
    else:
        axes.plot(*closed, color=colour, label=method, zorder=3, gid=method)


def _best(methods: Sequence[str], values: Any, count: int = 4) -> list[str]:
    mean = dict(zip(methods, np.nanmean(values, axis=0), strict=True))
    subjects = [m for m in _SUBJECTS if m in mean]
    others = sorted((m for m in methods if m not in subjects and m != "uncal"), key=lambda m: mean[m])
    return ["uncal", *others[:count], *subjects] if "uncal" in mean else [*others[:count], *subjects]


def _colours(methods: Sequence[str]) -> list[str]:
    rest = iter([c for c in PALETTE if c not in (SUBJECT, "#000000", "#999999")] * 4)
    fixed = {"uncal": "#000000", "h": SUBJECT, "h_top": "#8c3b00", "h_class": "#f2a36e", "h_nll": "#b5651d"}
    return [fixed.get(m) or next(rest) for m in methods]


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
        axes.set_title(
            f"{math_title(label_of(metric))}: relative error by task" + _dagger(collapsed), loc="left"
        )
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), reverse=True)
    return figure  # type: ignore[no-any-return]


def _dagger(collapsed: Sequence[bool]) -> str:
    return "  († collapsed on some task)" if any(collapsed) else ""


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
    axes.scatter(
        conf[full],
        acc[full],
        s=6 + 60 * n[full] / n.sum(),
        color=colour,
        linewidths=0,
        zorder=3,
        clip_on=False,
    )
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
