"""The report's charts as data: axes, lines and bins in SVG coordinates, which the page template draws.

Lines and dots have CSS classes and no colours: the style sheet has the colours of light mode, dark mode and print.
Every chart has a title and a description in words for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.evaluation.curves import ReliabilityCurve
from hcal.numerics import Float64

#: Bins with fewer rows than this are too noisy for the line, and have small dots.
_ENOUGH: Final = 10


def percent(value: float, digits: int = 1) -> str:
    """Return a share in per cent.

    >>> percent(0.12345).replace("\\N{NO-BREAK SPACE}", "_")
    '12.3_%'
    """
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis, with ticks at round numbers."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, values: ArrayLike) -> Float64:
        """Return the positions of values on the axis, from 0 to 1; values outside are put at the nearer end.

        >>> Axis(0, 2).place([0.5, 7]), Axis(0.01, 1, log=True).place([0.1]).round(9)
        (array([0.25, 1.  ]), array([0.5]))
        """
        inside = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        if self.log:
            return np.asarray(np.log(inside / self.low) / math.log(self.high / self.low))
        return np.asarray((inside - self.low) / (self.high - self.low))

    def ticks(self) -> list[float]:
        """Return three to seven round numbers on the axis.

        >>> Axis(0, 0.137).ticks(), Axis(0.01, 1, log=True).ticks()
        ([0.0, 0.05, 0.1], [0.01, 0.1, 1.0])
        """
        if self.log:
            first, last = (
                math.ceil(math.log10(self.low) - 1e-9),
                math.floor(math.log10(self.high) + 1e-9),
            )
            found = [10.0**e for e in range(first, last + 1)]
            if len(found) < 3:
                found = sorted({m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 2, 5)})
            return [float(f"{t:.1g}") for t in found if self.low * 0.999 <= t <= self.high * 1.001]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
        start, stop = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{i * step:.10g}") for i in range(start, stop + 1)]


@dataclass(frozen=True)
class Chart:
    """A chart: axes, then marks (CSS class and SVG path) and bins in the order in which they are drawn."""

    title: str
    words: str
    labels: tuple[str, str]
    across: Axis = Axis()
    upward: Axis = Axis()
    height: float = 200.0  # of the plot area, 300 wide
    below: float = 0.0  # space under it for bars
    shares: str = "xy"  # the axes whose ticks are written in per cent
    marks: list[tuple[str, str]] = field(default_factory=list)
    bins: list[dict[str, Any]] = field(default_factory=list)

    def x(self, values: ArrayLike) -> Any:
        """Return the SVG x coordinates of data values."""
        return np.round(54 + 300 * self.across.place(values), 1)

    def y(self, values: ArrayLike) -> Any:
        """Return the SVG y coordinates of data values."""
        return np.round(10 + self.height * (1 - self.upward.place(values)), 1)

    def draw(
        self, class_: str, x: ArrayLike, y: ArrayLike, *, closed: bool = False, dots: bool = False
    ) -> None:
        """Draw a line through points, the area inside it (``closed``), or only the points (``dots``)."""
        points = [f"{a:g} {b:g}" for a, b in zip(self.x(x), self.y(y), strict=True)]
        if dots:  # a zero-length stroke with round ends each
            self.marks.append((class_, "".join(f"M{point}h0" for point in points)))
        elif points:
            self.marks.append((class_, f"M{'L'.join(points)}{'Z' if closed else ''}"))

    def draw_band(self, x: Float64, low: Float64, high: Float64) -> None:
        """Draw the area between two lines."""
        self.draw("band", np.r_[x, x[::-1]], np.r_[high, low[::-1]], closed=True)

    def draw_diagonal(self) -> None:
        """Draw the diagonal, on which both coordinates are equal."""
        ends = [self.across.low, self.across.high]
        self.draw("diagonal", ends, ends)


def tick(value: float, share: bool) -> str:
    """Format the number of a tick, as a share in per cent or as it is."""
    return f"{100 * value:.4g} %" if share else f"{value:,.6g}".replace("-", "−")


def probability_axis(*probabilities: NDArray[np.floating]) -> Axis:
    """Return an axis that suits the probabilities: from 0 to 1, or zoomed in, or logarithmic.

    If 90 % of them are below 0.2, the axis ends at the next round number above the 99.9 % quantile. If also half of
    them are below a twentieth of that number, the axis is logarithmic.

    >>> probability_axis(np.array([0.1, 0.9])), probability_axis(np.full(9, 0.03))
    (Axis(low=0.0, high=1.0, log=False), Axis(low=0.0, high=0.05, log=False))
    """
    p = np.concatenate([np.ravel(x) for x in probabilities]).astype(np.float64)
    low, middle, most, largest = (float(q) for q in np.quantile(p, [0.02, 0.5, 0.9, 0.999]))
    if most >= 0.2 or largest <= 0:
        return Axis()
    power = 10.0 ** math.floor(math.log10(largest))
    high = min(next(m * power for m in (1, 2, 5, 10) if m * power >= largest), 1.0)
    if middle >= high / 20:
        return Axis(0.0, high)
    return Axis(10.0 ** math.floor(math.log10(max(low, high / 1e4))), high, log=True)


def reliability_chart(
    curve: ReliabilityCurve, side: str, axis: Axis, labels: tuple[str, str]
) -> Chart:
    """Draw a reliability diagram: observed frequency against stated probability, bands, histogram."""
    full = np.flatnonzero(curve.weight > 0)
    kind = {"corp": "steps", "smooth": "points"}.get(curve.binning, "bins")
    gap = "smooth calibration error" if curve.binning == "smooth" else "mean gap"
    words = (
        f"{len(full)} {kind}, {int(curve.outside.sum())} outside their consistency band; {gap} "
        f"{percent(curve.error, 2)}. The numbers are in the table below."
    )
    below = 0.0 if curve.binning == "equal-mass" else 58.0  # a histogram of equal-mass bins is flat
    title = f"Reliability diagram, {side} calibration"
    chart = Chart(title, words, labels, axis, axis, height=300.0, below=below)
    chart.draw_diagonal()
    if curve.along:
        chart.draw_band(curve.predicted[full], curve.low[full], curve.high[full])
    drawn = full if curve.along else np.flatnonzero(curve.weight >= _ENOUGH)
    chart.draw(f"line {side}", curve.predicted[drawn], curve.observed[drawn])
    bars = 46 * curve.weight / curve.weight.max()
    for b in full:
        outside = bool(curve.outside[b])
        radius = 2 if curve.binning == "smooth" else (5 if curve.weight[b] >= _ENOUGH else 3)
        said, seen, low, high = curve.predicted[b], curve.observed[b], curve.low[b], curve.high[b]
        words = (
            f"stated {percent(said, 2)}, happened in {percent(seen, 2)} of {curve.weight[b]:,.0f} rows "
            f"({'outside' if outside else 'inside'} the band {percent(low)} to {percent(high)})"
        )
        point = " point" if curve.binning == "smooth" else ""
        found = {
            "words": words,
            "side": side,
            "x": chart.x(said),
            "y": chart.y(seen),
            "radius": radius,
        }
        found["class"] = f"dot {side}{' outside' if outside else ''}{point}"
        if not curve.along:
            top = chart.y(high)
            found |= {"top": top, "band": max(chart.y(low) - top, 1.5), "diagonal": chart.y(said)}
        if below:
            left, right = chart.x(curve.edges[b : b + 2])
            found |= {
                "left": left + 0.5,
                "width": max(right - left - 1, 1.0),
                "bar": max(bars[b].round(1), 0.8),
            }
        chart.bins.append(found)
    return chart


def probability_map(before: Float64, after: Float64, event: str) -> Chart:
    """Draw calibrated probabilities (vertical axis) against uncalibrated ones (horizontal axis)."""
    axis = probability_axis(before, after)
    told = []
    for t in axis.ticks()[:6]:
        near = np.abs(before - t) <= 0.05 * t
        if near.any():
            told.append(f"{100 * t:.3g} % becomes about {100 * after[near].mean():.2g} %")
    words = (
        f"{', '.join(told)}." if told else "The probabilities lie too close together to describe."
    )
    chart = Chart("The map", words, (f"{event} in", f"{event} out"), axis, axis, height=260.0)
    chart.draw_diagonal()
    order = np.argsort(before, kind="stable")
    some = order[np.unique(np.linspace(0, len(order) - 1, 600).astype(int))]
    # An increasing map is drawn as a curve, any other as the points of its rows.
    rising = bool((np.diff(after[order]) >= -1e-6).all())
    chart.draw(
        "line after" if rising else "cloud after", before[some], after[some], dots=not rising
    )
    return chart


def net_benefit_chart(at: Float64, lines: Mapping[str, Float64]) -> Chart:
    """Draw net benefit against the threshold for the model, treating all, and treating none."""
    top = max(max(float(np.nanmax(v)) for v in lines.values()), 1e-3) * 1.1
    bottom = -0.25 * top
    words = (
        "Above the other lines, decisions by the model are worth more than treating all or none."
    )
    axes = Axis(0.0, float(at.max())), Axis(bottom, top)
    chart = Chart("Decision curve", words, ("threshold", "net benefit"), *axes, shares="x")
    for name, values in lines.items():
        drawn = (values >= bottom) | (
            name != "all"
        )  # the net benefit of treating all falls without limit
        chart.draw(f"line {name}", at[drawn], values[drawn])
    return chart
