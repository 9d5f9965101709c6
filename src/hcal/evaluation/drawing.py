"""Reliability diagrams in matplotlib: curves, bands or intervals, and the share of the rows below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from hcal.evaluation.axes import Axis, tick
from hcal.evaluation.curves import ENOUGH, HISTOGRAM_CELLS, ReliabilityCurve
from hcal.metrics.sample import Vector

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import ColorType

#: Colours that colour-blind readers can tell apart (Okabe and Ito), on a light and on a dark background.
COLOURS: Final = ("#1d5fae", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#a06a00", "#6a51a3")
_ON_DARK: Final = ("#6cb0f5", "#f5863a", "#2fc79b", "#e39ac4", "#a5dcff", "#e6b422", "#b5a3e6")
#: The grey of bands and of the diagonal is seen on both backgrounds.
_GREY: Final = "#8c959f"


def is_dark(ax: Axes) -> bool:
    """Say whether the axes have a dark background."""
    from matplotlib.colors import to_rgba

    red, green, blue, opaque = to_rgba(ax.get_facecolor())
    if opaque < 0.5:
        red, green, blue, opaque = to_rgba(ax.figure.get_facecolor())
    return opaque > 0.5 and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.4


def colours_on(ax: Axes) -> list[str]:
    """Return the colours of curves for the background of the axes."""
    return list(_ON_DARK if is_dark(ax) else COLOURS)


def _enough(curve: ReliabilityCurve) -> NDArray[np.bool_]:
    """Say which of the bins with rows have enough of them for the line."""
    weight = curve.weight[curve.full]
    return np.asarray((weight >= ENOUGH) | curve.along)


@dataclass
class Panel:
    """One panel of a diagram: matplotlib axes that show the part of [0, 1] where the probabilities are."""

    ax: Axes
    axis: Axis
    confidence: float
    below: Axes = field(init=False)

    def prepare(self) -> None:
        """Set the limits and draw the diagonal."""
        ax = self.ax
        if self.axis.log:
            ax.set(xscale="log", yscale="log")
        ends = (self.axis.low, self.axis.high)
        ticks = self.axis.ticks()
        names = [tick(value, share=True) for value in ticks]
        ax.set_xticks(ticks, names)
        ax.set_yticks(ticks, names)
        ax.minorticks_off()
        ax.set(xlim=ends, ylim=ends)
        ax.set_box_aspect(1)
        ax.plot(ends, ends, color=_GREY, linewidth=1, linestyle=":", label="perfectly calibrated")

    def draw_alone(self, curve: ReliabilityCurve, colour: ColorType) -> None:
        """Draw a single curve with its consistency band; points outside the band are rings."""
        full = curve.full
        x = self._inside(curve.predicted[full])
        y = self._inside(curve.observed[full])
        low = self._inside(curve.low[full])
        high = self._inside(curve.high[full])
        label = f"{self.confidence:.0%} if calibrated"
        if curve.along:  # a band along the curve, as there are many points
            self.ax.fill_between(x, low, high, color=_GREY, alpha=0.35, linewidth=0, label=label)
        else:
            self.ax.vlines(x, low, high, color=_GREY, alpha=0.45, linewidth=5, label=label)

        smooth = curve.binning == "smooth"
        size = 1.5 if smooth else 4.5
        out = curve.outside[full]
        enough = _enough(curve)
        self.ax.plot(x[enough], y[enough], color=colour, linewidth=1.6 if smooth else 1)
        self.ax.plot(x[~out], y[~out], "o", color=colour, markersize=size, clip_on=False,
                     label="inside the band")  # fmt: skip
        self.ax.plot(x[out], y[out], "o", markersize=size, clip_on=False,
                     markerfacecolor=self._background(), markeredgecolor=colour,
                     markeredgewidth=size / 3, label="outside: more than chance")  # fmt: skip

    def draw_beside(self, curve: ReliabilityCurve, colour: ColorType) -> None:
        """Draw one of several curves, with the confidence interval of each point where it has one."""
        full = curve.full
        x = self._inside(curve.predicted[full])
        y = self._inside(curve.observed[full])
        enough = _enough(curve)
        label = f"{curve.label} ({curve.error:.3f})"
        marker = "" if curve.along else "o"
        self.ax.plot(x[enough], y[enough], color=colour, marker=marker, markersize=4,
                     linewidth=1.6, label=label, clip_on=False)  # fmt: skip
        self.ax.plot(x[~enough], y[~enough], "o", color=colour, markersize=2, clip_on=False)
        if curve.interval_low is not None and curve.interval_high is not None:
            low = self._inside(curve.interval_low[full])
            high = self._inside(curve.interval_high[full])
            self.ax.vlines(x, low, high, color=colour, alpha=0.6, linewidth=1.2)

    def note(self, words: str) -> None:
        """Add a line of text to the legend."""
        self.ax.plot([], [], linestyle="none", label=words)

    def draw_shares(self, shares: Sequence[Vector], colours: Sequence[ColorType]) -> None:
        """Draw the share of the rows below the panel, on an axis that fits it."""
        self.below = self.ax.inset_axes((0, -0.24, 1, 0.2), sharex=self.ax)
        edges = self.axis.edges(HISTOGRAM_CELLS)
        for share, colour in zip(shares, colours, strict=False):
            alone = len(shares) == 1
            self.below.stairs(share, edges, fill=alone, color=colour, alpha=0.55 if alone else 0.9,
                              linewidth=1.2)  # fmt: skip
        highest = max(float(share.max()) for share in shares)
        self.below.set_ylim(0, 1.08 * highest if highest > 0 else 1)
        self.below.set_yticks([highest], [f"{100 * highest:.2g} %"])
        self.below.spines[["top", "right"]].set_visible(False)
        self.below.tick_params(labelsize="small")

    def finish(self, title: str | None, *, legend: bool) -> None:
        """Write the title, what the axes mean, and the legend."""
        self.ax.set_ylabel("observed frequency")
        self.ax.tick_params(axis="x", labelbottom=False)
        self.below.set_xlabel("predicted probability")
        self.below.set_ylabel("rows", fontsize="small")
        if title:
            self.ax.set_title(title, fontsize=10)
        if legend:
            self.ax.legend(loc="upper left", fontsize=8, frameon=False)

    def _inside(self, values: Vector) -> Vector:
        """Return values with those outside the axes put at their edge."""
        return np.clip(values, self.axis.low, self.axis.high)

    def _background(self) -> ColorType:
        from matplotlib.colors import to_rgba

        face = to_rgba(self.ax.get_facecolor())
        return face if face[3] > 0 else "white"
