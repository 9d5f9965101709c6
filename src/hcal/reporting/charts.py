"""The report's charts as data: axes, lines and bins in SVG coordinates, which the page template draws.

Lines and dots have CSS classes and no colours: the style sheet has the colours of light mode, dark mode and print.
Every chart has a title and a description in words for screen readers.

The page's slider (:class:`WhatIf`) computes what every threshold decides, catches and costs. Its curve is that of
:func:`hcal.thresholds`, at no more than some hundreds of cuts. Every figure of the slider is a function of three means
over rows: whether an event happened, whether the row is decided, and whether both are true. So their covariance at each
cut gives every interval, for all costs. Rows of one group count together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from hcal.decisions.threshold_curve import LeastCost, ThresholdCurve, check_costs, coarse_cuts
from hcal.evaluation.axes import Axis, probability_axis
from hcal.evaluation.curves import ENOUGH, ReliabilityCurve
from hcal.numerics import Float64, IntArray
from hcal.reporting.content import Content
from hcal.reporting.sentences import number, percent
from hcal.text import JsonObject

#: Bins of the calibration error (ECE).
_ECE_BINS: Final = 15
#: The most points of a drawn map.
_MAP_POINTS: Final = 600
#: At how many places a line can be read.
_READ: Final = 30
#: An axis of probabilities.
_UNIT: Final = Axis()


@dataclass(frozen=True)
class Chart:
    """A chart: axes, then marks (CSS class and SVG path) and bins in the order in which they are drawn."""

    title: str
    words: str
    labels: tuple[str, str]
    across: Axis = _UNIT
    upward: Axis = _UNIT
    height: float = 200.0  # of the plot area, 300 wide
    below: float = 0.0  # space under it for bars
    shares: str = "xy"  # the axes whose ticks are written in per cent
    marks: list[tuple[str, str]] = field(default_factory=list)
    bins: list[JsonObject] = field(default_factory=list)

    def x(self, values: ArrayLike) -> Float64:
        """Return the SVG x coordinates of data values."""
        return np.round(54 + 300 * self.across.place(values), 1)

    def y(self, values: ArrayLike) -> Float64:
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

    def read(self, x: float, y: float, words: str, side: str) -> None:
        """Add a point of a line that says its numbers when it is pointed at, or reached by the arrow keys."""
        place = {"x": self.x(x), "y": self.y(y), "radius": 4}
        self.bins.append({**place, "words": words, "side": side, "class": f"dot {side} quiet"})

    def widen(self) -> None:
        """Give every point of the chart a strip of the plot area, so that it can be pointed at."""
        if not self.bins:
            return
        middles = [(a["x"] + b["x"]) / 2 for a, b in pairwise(self.bins)]
        edges = [54.0, *middles, 354.0]
        for point, (left, right) in zip(self.bins, pairwise(edges), strict=True):
            point["strip"] = round(left, 1)
            point["strip_width"] = round(max(right - left, 0.0), 1)

    def draw_diagonal(self) -> None:
        """Draw the diagonal, on which both coordinates are equal."""
        ends = [self.across.low, self.across.high]
        self.draw("diagonal", ends, ends)


def reliability_chart(
    curve: ReliabilityCurve,
    side: str,
    axis: Axis,
    labels: tuple[str, str],
    *,
    sampled: bool = False,
) -> Chart:
    """Draw a reliability diagram: observed frequency against stated probability, bands, histogram.

    Of a sample the error in words is called so: it is not that of all rows.
    """
    full = np.flatnonzero(curve.weight > 0)
    below = 0.0 if curve.binning == "equal-mass" else 58.0  # a histogram of equal-mass bins is flat
    title = f"Reliability diagram, {side} calibration"
    words = _curve_words(curve, full, " of the sample" if sampled else "")
    chart = Chart(title, words, labels, axis, axis, height=300.0, below=below)
    chart.draw_diagonal()
    if curve.along:
        chart.draw_band(curve.predicted[full], curve.low[full], curve.high[full])
    drawn = full if curve.along else np.flatnonzero(curve.weight >= ENOUGH)
    chart.draw(f"line {side}", curve.predicted[drawn], curve.observed[drawn])
    for b in full.tolist():
        chart.bins.append(_bin(chart, curve, b, side))
    return chart


def _curve_words(curve: ReliabilityCurve, full: IntArray, of: str) -> str:
    """Return the chart in words; only fifteen bins of equal width give the calibration error (ECE)."""
    points = {"corp": "steps", "smooth": "points"}.get(curve.binning, "bins")
    error = f"the mean gap of these {points}"
    if curve.binning == "smooth":
        error = "the smooth calibration error (smECE)"
    elif curve.binning == "equal-width" and len(curve.weight) == _ECE_BINS:
        error = "the calibration error (ECE)"
    by_chance = ""
    if curve.by_chance is not None:
        by_chance = f", and {number(curve.by_chance, True)} by chance"
    return (
        f"{len(full)} {points}, {int(curve.outside.sum())} outside their consistency band; "
        f"{error}{of} is {number(curve.error, True)}{by_chance}. The numbers are in the table "
        "below."
    )


def _bin(chart: Chart, curve: ReliabilityCurve, b: int, side: str) -> JsonObject:
    """Return a dot with its band and its bar of the histogram; ``b`` is the number of the bin."""
    stated = curve.predicted[b]
    observed = curve.observed[b]
    low = curve.low[b]
    high = curve.high[b]
    outside = bool(curve.outside[b])
    smooth = curve.binning == "smooth"
    where = "outside" if outside else "inside"
    radius = 5 if curve.weight[b] >= ENOUGH else 3
    dot = {
        "words": (
            f"stated {percent(stated, 2)}, happened in {percent(observed, 2)} of "
            f"{curve.weight[b]:,.0f} rows ({where} the band {percent(low)} to {percent(high)})"
        ),
        "side": side,
        "class": f"dot {side}{' outside' if outside else ''}{' point' if smooth else ''}",
        "x": chart.x(stated),
        "y": chart.y(observed),
        "radius": 2 if smooth else radius,
    }
    if not curve.along:
        top = chart.y(high)
        dot["top"] = top
        dot["band"] = max(chart.y(low) - top, 1.5)
        dot["diagonal"] = chart.y(stated)
    if chart.below:
        left, right = chart.x(curve.edges[b : b + 2])
        bar = 46 * curve.weight[b] / curve.weight.max()
        dot["left"] = left + 0.5
        dot["width"] = max(right - left - 1, 1.0)
        dot["bar"] = max(round(float(bar), 1), 0.8)
    return dot


def probability_map(before: Float64, after: Float64, event: str) -> Chart:
    """Draw calibrated probabilities (vertical axis) against uncalibrated ones (horizontal axis)."""
    axis = probability_axis(before, after)
    examples = []
    for level in axis.ticks()[:6]:
        near = np.abs(before - level) <= 0.05 * level
        if near.any():
            # On average they are not at the level: near 100 %, for one, all are below.
            stated, calibrated = (_rounded(float(p[near].mean())) for p in (before, after))
            examples.append(f"{stated} becomes {calibrated}")
    words = "The probabilities lie too close together to describe."
    if examples:
        words = f"On average, {', '.join(examples)}."
    chart = Chart("The map", words, (f"{event} in", f"{event} out"), axis, axis, height=260.0)
    chart.draw_diagonal()
    order = np.argsort(before, kind="stable")
    places = np.linspace(0, len(order) - 1, _MAP_POINTS).astype(int)
    drawn = order[np.unique(places)]
    # What lies outside the axes would stand at their ends, as if the map jumped there.
    drawn = drawn[axis.holds(before[drawn]) & axis.holds(after[drawn])]
    # An increasing map is drawn as a curve, any other as the points of its rows.
    rising = bool((np.diff(after[order]) >= -1e-6).all())
    class_ = "line after" if rising else "cloud after"
    chart.draw(class_, before[drawn], after[drawn], dots=not rising)
    _read_map(chart, before[order], after[order])
    return chart


def _rounded(share: float) -> str:
    """Return a share in per cent with two digits, or three from 10 % on.

    >>> _rounded(0.0000999).replace("\\N{NO-BREAK SPACE}", "_"), _rounded(0.984)[:4]
    ('0.01_%', '98.4')
    """
    value = 100 * share
    return f"{value:.2g}\N{NO-BREAK SPACE}%" if value < 10 else f"{value:.3g}\N{NO-BREAK SPACE}%"


def _read_map(chart: Chart, before: Float64, after: Float64) -> None:
    """Let a map be read at some places across: what the probabilities near it become on average."""
    edges = 54 + 300 * np.arange(_READ + 1) / _READ
    place = np.searchsorted(edges, chart.x(before), side="right") - 1
    for strip in range(_READ):
        inside = place == strip
        if not inside.any():
            continue
        stated = float(before[inside].mean())
        calibrated = float(after[inside].mean())
        words = f"{percent(stated, 2)} becomes {percent(calibrated, 2)} on average"
        chart.read(stated, calibrated, f"{words} ({inside.sum():,} rows)", "after")
    chart.widen()


def net_benefit_chart(levels: Float64, lines: Mapping[str, Float64]) -> Chart:
    """Draw net benefit against the threshold for the model, treating all, and treating none."""
    highest = max(float(np.nanmax(values)) for values in lines.values())
    top = 1.1 * max(highest, 1e-3)
    bottom = -0.25 * top
    words = (
        "Above the other lines, decisions by the model are worth more than treating all or none."
    )
    across = Axis(0.0, float(levels.max()))
    labels = ("threshold", "net benefit")
    chart = Chart("Decision curve", words, labels, across, Axis(bottom, top), shares="x")
    for name, values in lines.items():
        # The net benefit of treating all falls without limit.
        drawn = (values >= bottom) | (name != "all")
        chart.draw(f"line {name}", levels[drawn], values[drawn])
    _read_benefit(chart, levels, lines)
    return chart


def _read_benefit(chart: Chart, levels: Float64, lines: Mapping[str, Float64]) -> None:
    """Let the net benefit of the model and of treating all be read at some thresholds."""
    [side] = [name for name in lines if name not in ("all", "none")]
    for i in np.linspace(0, len(levels) - 1, _READ).astype(int).tolist():
        model = float(lines[side][i])
        everyone = float(lines["all"][i])
        words = f"at a threshold of {percent(levels[i], 2)}: model {model:.4f}, all {everyone:.4f}"
        chart.read(float(levels[i]), model, words.replace("-", "−"), side)
    chart.widen()


# -- the slider of the threshold --------------------------------------------------------------------


@dataclass(frozen=True)
class WhatIf:
    """The data of the slider.

    Attributes
    ----------
    event, unit : str
        What happens or not, and which probability the threshold is about.
    threshold, decided, caught : array of shape (C,)
        Ascending thresholds; rows at or above each, and events among them.
    lowest : array of shape (C - 1,)
        The lowest probability at or above each threshold but the last.
    covariance : array of shape (C, 5)
        Variances and covariances of the totals: decided, caught, decided with caught, event with decided, event with
        caught. The variance of the events alone is ``event_variance``.
    event_variance : float
    first : int
        The cut that the slider starts at.
    cost : dict of float
    z, confidence : float
        Of the intervals.
    sampled : str
        The size of the sample in words; empty if these are all rows.
    """

    event: str
    unit: str
    threshold: Float64
    decided: Float64
    caught: Float64
    lowest: Float64
    covariance: Float64
    event_variance: float
    first: int
    cost: dict[str, float]
    z: float
    confidence: float
    sampled: str = ""

    @property
    def data(self) -> str:
        """The numbers as JSON, for an attribute of the page."""
        numbers: JsonObject = {"d": _as_whole(self.decided), "c": _as_whole(self.caught)}
        numbers["t"] = _with_digits(self.threshold, 7)
        numbers["p"] = _with_digits(self.lowest, 7)
        numbers["v"] = [_with_digits(row, 5) for row in self.covariance]
        numbers["e"] = float(f"{self.event_variance:.5g}")
        numbers["z"] = self.z
        return json.dumps(numbers, separators=(",", ":"))


def what_if(content: Content) -> WhatIf | None:
    """Return the data of the slider; None where all rows have the same outcome."""
    positive = content.options.positive
    probs = content.final.probs
    if content.binary:
        risk = probs[:, positive].astype(np.float64)
        event = (content.y == positive).astype(np.float64)
    else:
        risk = probs.max(axis=1).astype(np.float64)
        event = (probs.argmax(axis=1) == content.y).astype(np.float64)
    if not 0 < event.sum() < len(event):
        return None
    curve = ThresholdCurve.of_rows(risk, event)
    costs = LeastCost(*check_costs(content.options.cost or {"fn": 1, "fp": 1}))
    best = int(costs.choose(curve.counts))
    chosen = [curve.cut_of(threshold) for threshold in content.options.threshold]
    start = chosen[0] if chosen else best
    cuts = coarse_cuts(curve, best, *chosen)
    counts = curve.counts.at(cuts)
    covariance, event_variance = _covariance(curve, cuts, risk, event, content.rows.groups)
    sampled = ""
    if content.sampled:
        sampled = f"a sample of {len(content.rows):,} of {content.n:,} rows"
    return WhatIf(
        event=content.names[positive] if content.binary else "right",
        unit=content.event if content.binary else "confidence",
        threshold=np.array([curve.threshold(int(cut)) for cut in cuts]),
        decided=counts.decided,
        caught=counts.caught,
        lowest=curve.value[cuts[:-1]],
        covariance=covariance,
        event_variance=event_variance,
        first=int(np.searchsorted(cuts, start)),
        cost={"fn": costs.fn, "fp": costs.fp},
        z=float(ndtri((1 + content.options.confidence) / 2)),
        confidence=content.options.confidence,
        sampled=sampled,
    )


def _covariance(
    curve: ThresholdCurve, cuts: IntArray, risk: Float64, event: Float64, groups: IntArray | None
) -> tuple[Float64, float]:
    """Return the variances and covariances of the totals at each cut (C, 5), and the variance of the events."""
    counts = curve.counts.at(cuts)
    n_rows = float(counts.decided[0])
    events = float(counts.caught[0])
    decided = counts.decided
    caught = counts.caught
    if groups is None:
        rate = decided / n_rows
        columns = [
            decided * (1 - rate),
            caught * (1 - caught / n_rows),
            caught * (1 - rate),
            caught - events * rate,
            caught * (1 - events / n_rows),
        ]
        return np.stack(columns, axis=1), events * (1 - events / n_rows)
    cell = np.searchsorted(curve.value[cuts[:-1]], risk, side="right") - 1
    return _covariance_of_groups(cell, event, groups, len(cuts) - 1)


def _covariance_of_groups(
    cell: IntArray, event: Float64, groups: IntArray, n_cells: int
) -> tuple[Float64, float]:
    """Return the same from the totals of whole groups; ``cell`` says between which two cuts each row lies."""
    group = np.unique(groups, return_inverse=True)[1]
    count = int(group.max()) + 1
    share = np.bincount(group) / len(group)
    order = np.argsort(cell, kind="stable")
    ends = np.searchsorted(cell[order], np.arange(n_cells + 1))
    decided = np.bincount(group).astype(np.float64)
    caught = np.bincount(group, event)
    events = caught - share * caught.sum()
    rows = []
    for i in range(n_cells):
        # A group is compared with what its share of the rows would decide and catch.
        d = decided - share * decided.sum()
        c = caught - share * caught.sum()
        rows.append([d @ d, c @ c, d @ c, events @ d, events @ c])
        passed = order[ends[i] : ends[i + 1]]
        decided -= np.bincount(group[passed], minlength=count)
        caught -= np.bincount(group[passed], event[passed], minlength=count)
    rows.append([0.0] * 5)
    inflation = count / max(count - 1, 1)
    return inflation * np.array(rows), float(inflation * (events @ events))


def _with_digits(values: Float64, digits: int) -> list[float]:
    """Return numbers with so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in values]


def _as_whole(values: Float64) -> list[float | int]:
    return [int(value) if float(value).is_integer() else float(value) for value in values]
