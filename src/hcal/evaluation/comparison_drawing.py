"""The picture of a comparison: one panel a metric, one bar a method, the state before as a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hcal.evaluation.drawing import _BLUE, _GREY, _RED
from hcal.metrics import get_metric
from hcal.extras import pyplot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Panels side by side.
_ACROSS = 3


def draw_comparison(results: list[Any], metrics: list[str]) -> Figure:
    """Draw methods × metrics; failed methods are left out."""
    plt = pyplot()
    shown = [r for r in results if r.scores]
    if not shown:
        raise ValueError("there is nothing to draw: every method failed")
    across = min(_ACROSS, len(metrics))
    down = -(-len(metrics) // across)
    size = (3.4 * across + 0.8, (0.9 + 0.26 * len(shown)) * down)
    figure: Figure
    figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for i, ax in enumerate(axes.ravel()):
        if i < len(metrics):
            _panel(ax, shown, metrics[i])
        else:
            ax.set_visible(False)
    return figure


def _panel(ax: Any, results: list[Any], name: str) -> None:
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
    ax.axvline(values[0], color="black", linewidth=0.8, linestyle=":")  # uncal stands first
    ax.set_yticks(places, [r.label for r in results], fontsize=8)
    # Bars begin at zero, or their lengths would lie; room for the numbers behind them.
    ax.set_xlim(min(0.0, min(values)), 1.22 * max([*values, 1e-12]))
    ax.tick_params(axis="x", labelsize=7)
    ax.set_title(f"{name} ({'lower' if metric.lower_is_better else 'higher'} is better)", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
