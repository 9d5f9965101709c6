"""Pictures of reliability curves and of comparisons; the only place here that needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.extras import pyplot
from hcal.metrics import get_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hcal.evaluation.comparison_table import Cell
    from hcal.evaluation.curves import ReliabilityCurve

# The look of the HTML report (reporting/style.css): filled dots in their band, rings outside it.
_BLUE, _FILL, _GREY, _RED = "#1d5fae", "#bcd6f2", "#c3c9d2", "#a3201d"


def draw_curve(curve: ReliabilityCurve, ci: float, ax: Axes | None = None) -> Axes:
    """Draw one curve: points (red outside their band), band, diagonal, share of rows."""
    if ax is None:
        ax = pyplot().subplots(figsize=(4.6, 4.6), layout="constrained")[1]
    full = curve.weight > 0
    x, seen = curve.predicted[full], curve.observed[full]
    share = curve.weight / curve.weight.sum()
    bars: dict[str, Any] = {"align": "edge", "color": _FILL, "edgecolor": "white", "label": "share of rows"}
    ax.bar(curve.edges[:-1], share, np.diff(curve.edges), **bars)
    ax.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":")
    out, band = curve.outside[full], f"{ci:.0%} if calibrated"
    if curve.along:  # a band along the curve, as there are many points
        ax.fill_between(x, curve.low[full], curve.high[full], color=_GREY, alpha=0.6, linewidth=0, label=band)
    else:
        ax.vlines(x, curve.low[full], curve.high[full], color=_GREY, linewidth=5, label=band)
    ax.plot(x, seen, color=_BLUE, linewidth=1.6 if curve.binning == "smooth" else 1)
    size = 1.5 if curve.binning == "smooth" else 4
    ax.plot(x[~out], seen[~out], "o", color=_BLUE, markersize=size, label="inside the band")
    ring: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": _BLUE, "markeredgewidth": size / 3}
    ax.plot(x[out], seen[out], "o", markersize=size, label="outside: more than chance", **ring)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="observed frequency")
    ax.set_title(f"{curve.title}: error {curve.error:.4f}", fontsize=10)
    ax.set_aspect("equal")
    ax.legend(loc="upper left", fontsize=7, frameon=False)
    return ax


def draw_panels(curves: list[ReliabilityCurve], ci: float) -> Figure:
    """Draw one panel a curve."""
    columns = int(np.ceil(np.sqrt(len(curves))))
    rows = int(np.ceil(len(curves) / columns))
    figure: Figure
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(3.1 * columns, 3.1 * rows), squeeze=False, layout="constrained"
    )
    for i, ax in enumerate(axes.ravel()):
        if i >= len(curves):
            ax.set_visible(False)
            continue
        draw_curve(curves[i], ci, ax)
        if i:
            ax.get_legend().remove()
    return figure


def draw_comparison(results: list[Cell], metrics: list[str]) -> Figure:
    """Draw methods × metrics, three panels side by side; failed methods are left out."""
    shown = [r for r in results if r.scores]
    if not shown:
        raise ValueError("there is nothing to draw: every method failed")
    across = min(3, len(metrics))
    down = -(-len(metrics) // across)
    size = (3.4 * across + 0.8, (0.9 + 0.26 * len(shown)) * down)
    figure: Figure
    figure, axes = pyplot().subplots(
        down, across, figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for i, ax in enumerate(axes.ravel()):
        if i < len(metrics):
            _panel(ax, shown, metrics[i])
        else:
            ax.set_visible(False)
    return figure


def _panel(ax: Any, results: list[Cell], name: str) -> None:
    metric = get_metric(name)
    values = [r.scores[name] for r in results]
    sound = [v for r, v in zip(results, values, strict=True) if not r.collapsed]
    best = (min if metric.lower_is_better else max)(sound, default=None)
    colours = [
        _RED if r.collapsed else (_BLUE if v == best else _GREY) for r, v in zip(results, values, strict=True)
    ]
    places = list(range(len(results)))[::-1]
    ax.barh(places, values, color=colours, height=0.7)
    for place, value in zip(places, values, strict=True):
        ax.annotate(
            f"{value:.4f}", (value, place), (3, 0), textcoords="offset points", va="center", fontsize=7
        )
    before = next((r.scores[name] for r in results if r.label == "uncal"), None)
    if before is not None:
        ax.axvline(before, color="black", linewidth=0.8, linestyle=":")
    ax.set_yticks(places, [r.label for r in results], fontsize=8)
    # Bars begin at zero, or their lengths would lie; room for the numbers behind them.
    ax.set_xlim(min(0.0, min(values)), 1.22 * max([*values, 1e-12]))
    ax.tick_params(axis="x", labelsize=7)
    ax.set_title(f"{name} ({'lower' if metric.lower_is_better else 'higher'} is better)", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
