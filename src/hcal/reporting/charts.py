"""The report's charts: reliability, confidence, the map, risk against coverage, net benefit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hcal.certificates.windows import Tails
from hcal.evaluation.curves import ReliabilityCurve
from hcal.numerics import Float64
from hcal.reporting import svg
from hcal.reporting.svg import Axis, Frame

#: A line through bins with fewer rows than this would show noise; their dots are small.
_ENOUGH = 10


def percent(value: float, digits: int = 1) -> str:
    """Return a share in per cent.

    >>> percent(0.12345).replace("\\N{NO-BREAK SPACE}", "_")
    '12.3_%'
    """
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def probability_axis(*probabilities: NDArray[np.floating]) -> Axis:
    """Return the axis on which probabilities can be told apart: 0 to 1, or zoomed, or logarithmic.

    Where nine of ten lie below 0.2 the axis ends at the round number that all but one in a thousand reach;
    where half of them lie below a twentieth of it, it is logarithmic.

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


def reliability_chart(curve: ReliabilityCurve, side: str, axis: Axis, labels: tuple[str, str]) -> str:
    """Draw a reliability diagram: observed frequency against stated probability, bands, histogram."""
    frame = Frame(54, 10, 300, 300, axis, axis)
    below = 0.0 if curve.binning == "equal-mass" else 58.0  # bars of equal mass say nothing
    bars = Frame(54, 322, 300, 46, axis)
    parts = svg.axes(frame, *labels, below=below)
    parts.append(_diagonal(frame))
    full = np.flatnonzero(curve.weight > 0)
    share = curve.weight / curve.weight.sum()
    if curve.along:
        upper = [(frame.x(curve.predicted[b]), frame.y(curve.high[b])) for b in full]
        lower = [(frame.x(curve.predicted[b]), frame.y(curve.low[b])) for b in full[::-1]]
        parts.append(svg.path([*upper, *lower], "band", closed=True))
    drawn = full if curve.along else np.flatnonzero(curve.weight >= _ENOUGH)
    points = [(frame.x(curve.predicted[b]), frame.y(curve.observed[b])) for b in drawn]
    parts.append(svg.path(points, f"line {side}"))
    parts += [_bin(frame, bars, curve, int(b), share, side) for b in full]
    kind = {"corp": "steps", "smooth": "points"}.get(curve.binning, "bins")
    gap = "smooth calibration error" if curve.binning == "smooth" else "mean gap"
    description = (
        f"{len(full)} {kind}, {int(curve.outside.sum())} outside their consistency band; {gap} "
        f"{percent(curve.error, 2)}. The numbers are in the table below."
    )
    return svg.drawing(
        376, 350 + below, parts, title=f"Reliability diagram, {side} calibration", description=description
    )


def _bin(frame: Frame, bars: Frame, curve: ReliabilityCurve, b: int, share: Float64, side: str) -> str:
    said, seen = float(curve.predicted[b]), float(curve.observed[b])
    x, low, high = frame.x(said), frame.y(float(curve.low[b])), frame.y(float(curve.high[b]))
    state = " outside" if curve.outside[b] else ""
    left, right = bars.x(float(curve.edges[b])), bars.x(float(curve.edges[b + 1]))
    height = max(float(share[b] / share.max()) * bars.height, 0.8)
    words = (
        f"stated {percent(said, 2)}, happened in {percent(seen, 2)} of {curve.weight[b]:,.0f} rows "
        f"({'outside' if state else 'inside'} the band {percent(curve.low[b])} to {percent(curve.high[b])})"
    )
    parts = [svg.tag("title", words)]
    radius = 2 if curve.binning == "smooth" else (5 if curve.weight[b] >= _ENOUGH else 3)
    if not curve.along:
        height_of_band = max(low - high, 1.5)
        parts.append(svg.tag("rect", x=x - 5, y=high, width=10, height=height_of_band, class_="band", rx=2))
        parts.append(svg.line(x, frame.y(said), x, frame.y(seen), f"gap {side}"))
    point = " point" if curve.binning == "smooth" else ""
    parts.append(svg.tag("circle", cx=x, cy=frame.y(seen), r=radius, class_=f"dot {side}{state}{point}"))
    if curve.binning == "equal-mass":
        return svg.group(parts, class_="bin")
    bottom = bars.top + bars.height
    parts.append(svg.tag("rect", x=left + 0.5, y=bottom - height, width=max(right - left - 1, 1),
                         height=height, class_=f"bar {side}"))  # fmt: skip
    return svg.group(parts, class_="bin")


# -- the map --------------------------------------------------------------------------------------


def probability_map(before: Float64, after: Float64, event: str) -> tuple[str, str]:
    """Draw what the calibrator makes of probabilities, in along the bottom and out along the side.

    Beside the drawing comes what it shows in a sentence.
    """
    axis = probability_axis(before, after)
    frame = Frame(54, 10, 300, 260, axis, axis)
    parts = svg.axes(frame, f"{event} in", f"{event} out")
    parts.append(_diagonal(frame))
    order = np.argsort(before, kind="stable")
    some = order[np.unique(np.linspace(0, len(order) - 1, 600).astype(int))]
    points = [(frame.x(a), frame.y(b)) for a, b in zip(before[some], after[some], strict=True)]
    # Increasing is one curve; what is not is drawn as the rows that it is.
    rising = bool((np.diff(after[order]) >= -1e-6).all())
    parts.append(svg.path(points, "line after") if rising else svg.dots(points, "cloud after"))
    told = []
    for t in axis.ticks()[:6]:
        near = np.abs(before - t) <= 0.05 * t
        if near.any():
            told.append(f"{100 * t:.3g} % becomes about {100 * after[near].mean():.2g} %")
    words = f"{', '.join(told)}." if told else "The probabilities lie too close together to describe."
    return svg.drawing(376, 320, parts, title="The map", description=words), words


def _diagonal(frame: Frame) -> str:
    low, high = max(frame.across.low, frame.upward.low), min(frame.across.high, frame.upward.high)
    return svg.line(frame.x(low), frame.y(low), frame.x(high), frame.y(high), "diagonal")


# -- decisions ------------------------------------------------------------------------------------


def risk_coverage_chart(tails: Tails, side: str) -> str:
    """Draw how often the most confident rows are wrong, against their share, with its certified band."""
    order = np.argsort(tails.share)
    share, risk, low, high = (
        v[order] for v in (tails.share, 1 - tails.observed, 1 - tails.high, 1 - tails.low)
    )
    top = max(float(np.ceil(20 * min(high[-1] * 1.5, 1.0)) / 20), 0.05)
    frame = Frame(54, 10, 300, 200, Axis(), Axis(0.0, top))
    parts = svg.axes(frame, "share of rows kept, most confident first", "wrong among them")
    band = [
        (frame.x(a), frame.y(b))
        for a, b in [*zip(share, high, strict=True), *zip(share[::-1], low[::-1], strict=True)]
    ]
    parts.append(svg.path(band, "band", closed=True))
    parts.append(
        svg.path([(frame.x(a), frame.y(b)) for a, b in zip(share, risk, strict=True)], f"line {side}")
    )
    words = f"Of all rows {percent(float(risk[-1]))} are wrong."
    return svg.drawing(376, 260, parts, title="Risk against coverage", description=words)


def net_benefit_chart(at: Float64, lines: Sequence[tuple[str, Float64]]) -> str:
    """Draw net benefit against the threshold for the model, treating all, and treating none."""
    top = max(float(np.nanmax([np.nanmax(v) for _, v in lines])), 1e-3) * 1.1
    bottom = -0.25 * top
    frame = Frame(54, 10, 300, 200, Axis(0.0, float(at.max())), Axis(bottom, top))
    parts = svg.axes(frame, "threshold", "net benefit", shares="x")
    for class_, values in lines:
        shown = [
            (frame.x(float(a)), frame.y(float(v))) for a, v in zip(at, values, strict=True) if v >= bottom
        ]
        parts.append(svg.path(shown, f"line {class_}"))
    words = "Above the other lines, decisions by the model are worth more than treating all or none."
    return svg.drawing(376, 260, parts, title="Decision curve", description=words)
