"""The report's charts: reliability, confidence, the map, risk against coverage, net benefit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hcal.certificates.thresholds import Tails
from hcal.evaluation.curves import ReliabilityCurve
from hcal.numerics import Float64, FloatArray
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

    Where all but one in a thousand lie below 0.2 the axis ends at the next round number; where half of them
    lie below a twentieth of it, it is logarithmic.

    >>> probability_axis(np.array([0.1, 0.9])), probability_axis(np.full(9, 0.03))
    (Axis(low=0.0, high=1.0, log=False), Axis(low=0.0, high=0.05, log=False))
    """
    p = np.concatenate([np.ravel(x) for x in probabilities]).astype(np.float64)
    largest = float(np.quantile(p, 0.999))
    if largest >= 0.2 or largest <= 0:
        return Axis()
    power = 10.0 ** math.floor(math.log10(largest))
    high = next(m * power for m in (1, 2, 5, 10) if m * power >= largest)
    low = 10.0 ** math.floor(math.log10(max(float(np.quantile(p, 0.02)), high / 1e4)))
    return Axis(low, high, log=True) if np.median(p) < high / 20 else Axis(0.0, high)


def reliability_chart(curve: ReliabilityCurve, side: str, axis: Axis, labels: tuple[str, str]) -> str:
    """Draw a reliability diagram: observed frequency against stated probability, bands, histogram."""
    frame, below = Frame(54, 10, 300, 300, axis, axis), 58.0
    bars = Frame(54, 322, 300, 46, axis)
    parts = svg.axes(frame, *labels, below=below)
    parts.append(
        svg.line(frame.x(axis.low), frame.y(axis.low), frame.x(axis.high), frame.y(axis.high), "diagonal")
    )
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
        376, 404, parts, title=f"Reliability diagram, {side} calibration", description=description
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
    bottom = bars.top + bars.height
    parts.append(svg.tag("rect", x=left + 0.5, y=bottom - height, width=max(right - left - 1, 1),
                         height=height, class_=f"bar {side}"))  # fmt: skip
    return svg.group(parts, class_="bin")


def confidence(conf: Float64, hit: NDArray[np.bool_], side: str, *, top: int) -> str:
    """Draw how many rows have which confidence, right and wrong ones apart, on a logarithmic axis.

    The axis ends at the power of ten ``top``, which two charts can share.
    """
    edges = np.linspace(0, 1, 26)
    frame = Frame(54, 10, 300, 170, Axis(), Axis(0.5, 10.0**top, log=True))
    parts = svg.axes(frame, "stated confidence", "rows", shares="x")
    for chosen, class_ in ((hit, f"area {side}"), (~hit, "area wrong")):
        counts = np.histogram(conf[chosen], edges)[0]
        points = [(frame.x(0.0), frame.y(0.5))]
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
            points += [
                (frame.x(float(low)), frame.y(max(count, 0.5))),
                (frame.x(float(high)), frame.y(max(count, 0.5))),
            ]
        parts.append(svg.path([*points, (frame.x(1.0), frame.y(0.5))], class_, closed=True))
    mean, accuracy = float(conf.mean()), float(hit.mean())
    for value, class_ in ((mean, f"mean {side}"), (accuracy, "accuracy")):
        parts.append(svg.line(frame.x(value), 10, frame.x(value), 180, f"mark {class_}"))
    description = (
        f"Mean confidence {percent(mean)}, accuracy {percent(accuracy)}. "
        f"{int((conf[~hit] > 0.9).sum()):,} wrong predictions were stated with more than 90 % confidence."
    )
    return svg.drawing(376, 220, parts, title=f"Confidence, {side} calibration", description=description)


# -- the map --------------------------------------------------------------------------------------


def probability_map(before: Float64, after: Float64, name: str) -> tuple[str, str]:
    """Draw what the calibrator makes of P(positive), P in along the bottom and P out along the side.

    Beside the drawing comes what it shows in a sentence.
    """
    axis = probability_axis(before, after)
    frame = Frame(54, 10, 300, 260, axis, axis)
    parts = svg.axes(frame, f"P({name}) in", f"P({name}) out")
    parts.append(
        svg.line(frame.x(axis.low), frame.y(axis.low), frame.x(axis.high), frame.y(axis.high), "diagonal")
    )
    order = np.argsort(before, kind="stable")
    some = order[np.unique(np.linspace(0, len(order) - 1, 400).astype(int))]
    parts.append(
        svg.path(
            [(frame.x(a), frame.y(b)) for a, b in zip(before[some], after[some], strict=True)], "line after"
        )
    )
    at = [float(t) for t in axis.ticks() if before.min() <= t <= before.max()]
    told = ", ".join(
        f"{percent(t)} becomes {percent(float(np.interp(t, before[order], after[order])))}" for t in at[:5]
    )
    words = f"{told}." if told else "The scores lie too close together to describe."
    return svg.drawing(376, 316, parts, title="The map", description=words), words


def logit_map(before: FloatArray, after: FloatArray, points: int = 1200) -> tuple[str, str]:
    """Draw what the calibrator does to logits, each measured from the logit of its row's top class.

    A class-agnostic order-preserving method is one rising curve; dots beside the curve mean that the method
    treats classes or rows differently. Beside the drawing comes what it shows in a sentence.
    """
    inside, outside = _relative_logits(before, after, points)
    span, reach = (
        max(4.0, float(np.ceil(-np.quantile(v, 0.02)))) if v.size else 4.0 for v in (inside, outside)
    )
    frame = Frame(54, 10, 300, 240, Axis(-span, 0.0), Axis(-reach, 0.0))
    keep = (inside >= -span) & (outside >= -reach) & (outside <= 0)
    x, y = inside[keep], outside[keep]
    parts = svg.axes(frame, "logit in, less that of the row's top", "logit out, less the top's", shares="")
    low = -min(span, reach)
    parts.append(svg.line(frame.x(low), frame.y(low), frame.x(0), frame.y(0), "diagonal"))
    parts.append(svg.dots([(frame.x(a), frame.y(b)) for a, b in zip(x, y, strict=True)], "cloud after"))
    if x.size >= 24:  # the running median, which ends at the fixed point (0, 0)
        order = np.argsort(x)
        bins = zip(np.array_split(x[order], 24), np.array_split(y[order], 24), strict=True)
        middle = [(float(np.median(a)), float(np.median(b))) for a, b in bins] + [(0.0, 0.0)]
        parts.append(svg.path([(frame.x(a), frame.y(b)) for a, b in middle], "line after"))
    words = "Too few events to describe."
    if x.size >= 2 and x @ x:
        slope = float(x @ y / (x @ x))
        verb = "shrinks" if slope < 0.98 else ("stretches" if slope > 1.02 else "keeps")
        words = f"On average it {verb} logit differences: one unit in, {slope:.2f} out."
    return svg.drawing(376, 296, parts, title="The map", description=words), words


def _relative_logits(before: FloatArray, after: FloatArray, points: int) -> tuple[Float64, Float64]:
    """log p_k − log p_top of a sample of events, before and after; zeros and the top itself left out."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(before))[:points]
    p, q = before[rows].astype(np.float64), after[rows].astype(np.float64)
    top, each = p.argmax(axis=1), np.arange(len(rows))
    p, q = p / p[each, top][:, None], q / np.maximum(q[each, top], 1e-300)[:, None]
    legal = (p > 0) & (q > 0)
    legal[each, top] = False
    inside, outside = np.log(p[legal]), np.log(q[legal])
    chosen = rng.permutation(inside.size)[:points]
    return inside[chosen], outside[chosen]


# -- decisions ------------------------------------------------------------------------------------


def risk_coverage_chart(tails: Tails) -> str:
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
    parts.append(svg.path([(frame.x(a), frame.y(b)) for a, b in zip(share, risk, strict=True)], "line after"))
    words = f"Of all rows {percent(float(risk[-1]))} are wrong."
    return svg.drawing(376, 256, parts, title="Risk against coverage", description=words)


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
    return svg.drawing(376, 256, parts, title="Decision curve", description=words)
