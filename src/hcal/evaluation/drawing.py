"""Pictures of reliability curves; the only place here that needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.extras import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hcal.evaluation.curves import ReliabilityCurve

# The look of the HTML report (reporting/style.css): filled dots in their band, rings outside it.
_BLUE, _FILL, _GREY = "#1d5fae", "#bcd6f2", "#c3c9d2"


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
    figure: Figure = pyplot().figure(figsize=(3.1 * columns, 3.1 * rows), layout="constrained")
    for i, curve in enumerate(curves):
        ax: Any = draw_curve(curve, ci, figure.add_subplot(rows, columns, i + 1))
        if i:
            ax.get_legend().remove()
    return figure
