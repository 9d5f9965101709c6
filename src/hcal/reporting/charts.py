"""The report's charts: reliability, confidence, the map, and one small diagram a class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hcal.evaluation.diagram import ReliabilityCurve
from hcal.reporting import svg
from hcal.reporting.svg import Frame, coordinate
from hcal.numerics import FloatArray, IntArray

_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
#: A line through bins with fewer rows than this would show noise; their dots are small.
_ENOUGH = 10


def percent(value: float, digits: int = 1) -> str:
    """Return a share in per cent.

    >>> percent(0.12345).replace("\\N{NO-BREAK SPACE}", "_")
    '12.3_%'
    """
    return f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


# -- reliability ----------------------------------------------------------------------------------


def reliability_chart(curve: ReliabilityCurve, side: str) -> str:
    """Draw a reliability diagram: observed frequency against stated probability, bands, histogram."""
    frame = Frame(44, 10, 300, 300)
    bars = Frame(44, 322, 300, 48, y_range=(0, 1))
    parts = [*square(frame, "stated confidence", "how often it was right", below=bars)]
    full = np.flatnonzero(curve.weight > 0)
    total = float(curve.weight.sum())
    tallest = float(curve.weight.max()) / total
    if curve.along:
        parts.append(_band(frame, curve, full))
    drawn = full if curve.along else _steady(curve)
    points = [(frame.x(curve.predicted[b]), frame.y(curve.observed[b])) for b in drawn]
    parts.append(svg.polyline(points, f"line {side}"))
    for b in full:
        parts.append(_bin(frame, bars, curve, int(b), total, tallest, side))
    parts.append(
        svg.text(bars.left, bars.top + 12, f"share of rows (tallest {percent(tallest, 0)})", anchor="start")
    )
    kind = {"corp": "steps", "smooth": "points"}.get(curve.binning, "bins")
    gap = "smooth calibration error" if curve.binning == "smooth" else "mean gap"
    description = (
        f"{len(full)} {kind}, {int(curve.outside.sum())} outside their consistency band; {gap} "
        f"{percent(curve.error, 2)}. The numbers are in the table below."
    )
    return svg.drawing(
        356, 402, parts, title=f"Reliability diagram, {side} calibration", description=description
    )


def _band(frame: Frame, curve: ReliabilityCurve, full: NDArray[np.intp]) -> str:
    """The consistency band of a curve without bins: an area along the diagonal."""
    upper = [(frame.x(curve.predicted[b]), frame.y(curve.high[b])) for b in full]
    lower = [(frame.x(curve.predicted[b]), frame.y(curve.low[b])) for b in full[::-1]]
    return svg.polygon([*upper, *lower], "band")


def _steady(curve: ReliabilityCurve) -> NDArray[np.intp]:
    return np.flatnonzero(curve.weight >= _ENOUGH)


def square(frame: Frame, x_label: str, y_label: str, below: Frame | None = None) -> list[str]:
    """Return grid, diagonal and labels of a square from 0 to 1 each way."""
    parts = [svg.plot_area(frame)]
    bottom = (below or frame).top + (below or frame).height
    for t in _TICKS:
        parts.append(svg.upright(frame, t))
        parts.append(svg.across(frame, t))
        parts.append(svg.text(frame.x(t), bottom + 14, f"{t:g}"))
        parts.append(svg.text(frame.left - 6, frame.y(t) + 4, f"{t:g}", anchor="end"))
    parts.append(svg.line(frame.x(0), frame.y(0), frame.x(1), frame.y(1), "diagonal"))
    parts.append(svg.below(below or frame, x_label))
    parts.append(svg.beside(y_label, frame.top + frame.height / 2))
    return parts


def _bin(
    frame: Frame, bars: Frame, curve: ReliabilityCurve, b: int, total: float, tallest: float, side: str
) -> str:
    said, seen, share = float(curve.predicted[b]), float(curve.observed[b]), float(curve.weight[b]) / total
    x, low, high = frame.x(said), frame.y(float(curve.low[b])), frame.y(float(curve.high[b]))
    outside = bool(curve.outside[b])
    point = ["point"] if curve.binning == "smooth" else []  # many, and close to each other
    left, right = bars.x(float(curve.edges[b])), bars.x(float(curve.edges[b + 1]))
    height = max(share / tallest * bars.height, 0.8)
    words = (
        f"said {percent(said)}, right {percent(seen)} of {curve.weight[b]:,.0f} rows "
        f"({'outside' if outside else 'inside'} the band {percent(curve.low[b])} to {percent(curve.high[b])})"
    )
    parts = [
        svg.tag("title", words),
        "" if curve.along else svg.tag("rect", x=x - 5, y=high, width=10, height=max(low - high, 1.5),
                                       class_="band", rx=2),
        "" if curve.along else svg.line(x, frame.y(said), x, frame.y(seen), f"gap {side}"),
        svg.tag("circle", cx=x, cy=frame.y(seen), r=_radius(curve, b),
                class_=" ".join(["dot", side, *(["outside"] if outside else []), *point])),
        svg.tag(
            "rect", x=left + 0.5, y=bars.top + bars.height - height, width=max(right - left - 1, 1),
            height=height, class_=f"bar {side}",
        ),
    ]  # fmt: skip
    return svg.group(parts, class_="bin")


def _radius(curve: ReliabilityCurve, b: int) -> float:
    if curve.binning == "smooth":
        return 2
    return 5 if curve.weight[b] >= _ENOUGH else 3


# -- confidence -----------------------------------------------------------------------------------


def confidence(conf: NDArray[np.float64], hit: NDArray[np.bool_], side: str, *, top: int) -> str:
    """Draw how many rows have which confidence, right and wrong ones apart, on a logarithmic axis.

    Confidences and hits have shape (N,); the axis ends at the power of ten ``top``, which two charts can
    share.
    """
    edges = np.linspace(0, 1, 26)
    right = np.histogram(conf[hit], edges)[0]
    wrong = np.histogram(conf[~hit], edges)[0]
    frame = Frame(44, 10, 300, 170, y_range=(-0.3, top))
    parts = [svg.plot_area(frame)]
    for power in range(top + 1):
        parts.append(svg.across(frame, power))
        parts.append(svg.text(frame.left - 6, frame.y(power) + 4, _count(10**power), anchor="end"))
    for t in _TICKS:
        parts.append(svg.text(frame.x(t), frame.top + frame.height + 14, f"{t:g}"))
    parts.append(_steps(frame, edges, right, f"area {side}"))
    parts.append(_steps(frame, edges, wrong, "area wrong"))
    mean, accuracy = float(conf.mean()), float(hit.mean())
    for value, class_ in ((mean, f"mean {side}"), (accuracy, "accuracy")):
        parts.append(svg.upright(frame, value, f"mark {class_}"))
    parts.append(svg.below(frame, "stated confidence"))
    description = (
        f"Mean confidence {percent(mean)}, accuracy {percent(accuracy)}. "
        f"{int((conf[~hit] > 0.9).sum()):,} wrong predictions were stated with more than 90 % confidence."
    )
    return svg.drawing(356, 216, parts, title=f"Confidence, {side} calibration", description=description)


def _count(value: int) -> str:
    return f"{value:,}" if value < 10_000 else f"{value // 1000}k"


def _steps(frame: Frame, edges: NDArray[np.float64], counts: NDArray[np.int64], class_: str) -> str:
    """A filled step line of counts; an empty bin lies on the floor."""
    floor = frame.y_range[0]
    points = [(frame.x(float(edges[0])), frame.y(floor))]
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        height = frame.y(math.log10(count) if count else floor)
        points += [(frame.x(float(low)), height), (frame.x(float(high)), height)]
    return svg.polygon([*points, (frame.x(float(edges[-1])), frame.y(floor))], class_)


# -- the map --------------------------------------------------------------------------------------


def mapping(before: FloatArray, after: FloatArray, *, points: int = 1200) -> tuple[str, str]:
    """Draw what the calibrator does to logits, each measured from the logit of its row's top class.

    A class-agnostic order-preserving method is one rising curve; dots beside the curve mean that the method
    treats classes or rows differently.

    ``before`` and ``after`` are probabilities (N, K), of which ``points`` dots are drawn; beside the drawing
    comes what it shows in a sentence.
    """
    inside, outside = _relative_logits(before, after, points)
    span = max(4.0, float(np.ceil(-np.quantile(inside, 0.02)))) if inside.size else 4.0
    reach = max(4.0, float(np.ceil(-np.quantile(outside, 0.02)))) if outside.size else 4.0
    frame = Frame(44, 10, 300, 240, (-span, 0.0), (-reach, 0.0))
    keep = (inside >= -span) & (outside >= -reach) & (outside <= 0)
    parts = [svg.plot_area(frame)]
    for t in _whole_ticks(span):
        parts.append(svg.upright(frame, t))
        parts.append(svg.text(frame.x(t), frame.top + frame.height + 14, f"{t}"))
    for t in _whole_ticks(reach):
        parts.append(svg.across(frame, t))
        parts.append(svg.text(frame.left - 6, frame.y(t) + 4, f"{t}", anchor="end"))
    low = -min(span, reach)
    parts.append(svg.line(frame.x(low), frame.y(low), frame.x(0), frame.y(0), "diagonal"))
    parts.append(
        svg.dots(zip(map(frame.x, inside[keep]), map(frame.y, outside[keep]), strict=True), "cloud after")
    )
    median = [(frame.x(a), frame.y(b)) for a, b in _median(inside[keep], outside[keep])]
    parts.append(svg.polyline(median, "line after"))
    parts.append(svg.below(frame, "logit in, from its row's top"))
    parts.append(svg.beside("logit out, from its row's top", 130))
    words = _slope(inside[keep], outside[keep])
    return svg.drawing(356, 286, parts, title="The map", description=words), words


def _whole_ticks(span: float) -> range:
    return range(0, -int(span) - 1, -max(1, round(span / 5)))


def _relative_logits(
    before: FloatArray, after: FloatArray, points: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """log p_k − log p_top of a sample of events, before and after; zeros and the top itself left out."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(before))[:points]
    p, q = before[rows].astype(np.float64), after[rows].astype(np.float64)
    top = p.argmax(axis=1)
    each = np.arange(len(rows))
    p, q = p / p[each, top][:, None], q / np.maximum(q[each, top], 1e-300)[:, None]
    legal = (p > 0) & (q > 0)
    legal[each, top] = False
    inside, outside = np.log(p[legal]), np.log(q[legal])
    chosen = rng.permutation(inside.size)[:points]
    return inside[chosen], outside[chosen]


def _median(x: NDArray[np.float64], y: NDArray[np.float64], bins: int = 24) -> list[tuple[float, float]]:
    """The running median: equal-mass bins along x, ending at the fixed point (0, 0)."""
    if x.size < bins:
        return []
    order = np.argsort(x)
    parts = zip(np.array_split(x[order], bins), np.array_split(y[order], bins), strict=True)
    return [(float(np.median(a)), float(np.median(b))) for a, b in parts] + [(0.0, 0.0)]


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    if x.size < 2 or not (x @ x):
        return "Too few events to describe."
    slope = float(x @ y / (x @ x))
    verb = "shrinks" if slope < 0.98 else ("stretches" if slope > 1.02 else "keeps")
    return f"On average it {verb} logit differences: one unit in, {slope:.2f} out."


# -- class counts and small multiples -------------------------------------------------------------


def class_counts(counts: IntArray, names: Sequence[str]) -> str:
    """Draw the number of rows of every class as bars."""
    frame = Frame(52, 10, 460, 100, (0, len(counts)), (0, max(float(counts.max()), 1.0)))
    width = frame.width / len(counts)
    parts = [svg.across(frame, 0, "axis")]
    for share in (0.5, 1.0):
        value = frame.y_range[1] * share
        parts.append(svg.across(frame, value))
        parts.append(svg.text(frame.left - 6, frame.y(value) + 4, _count(round(value)), anchor="end"))
    for k, count in enumerate(counts):
        inner = svg.tag("title", f"{names[k]}: {count:,} rows")
        bar = svg.tag("rect", x=frame.x(k) + width * 0.08, y=frame.y(float(count)), class_="bar neutral",
                      width=max(width * 0.84, 0.4), height=frame.y(0) - frame.y(float(count)))  # fmt: skip
        parts.append(svg.group([inner, bar]) if len(counts) <= 200 else bar)
    parts.append(svg.text(frame.left + frame.width / 2, 132, "class, in the order of its number", "label"))
    description = f"{len(counts)} classes with {int(counts.min()):,} to {int(counts.max()):,} rows each."
    return svg.drawing(520, 140, parts, title="Rows of each class", description=description, class_="wide")


def small(before: ReliabilityCurve | None, after: ReliabilityCurve, name: str) -> str:
    """Draw the reliability of one class's probability in the size of a stamp."""
    frame = Frame(4, 4, 92, 92)
    parts = ['<path class="stamp-grid" d="M4 4h92v92h-92zM4 96L96 4"/>']
    for curve, side in ((before, "before"), (after, "after")):
        if curve is None:
            continue
        steady = _steady(curve)
        points = [(frame.x(float(curve.predicted[b])), frame.y(float(curve.observed[b]))) for b in steady]
        if curve is after:
            ends = ((frame.x(float(curve.predicted[b])), curve.low[b], curve.high[b]) for b in steady)
            bars = "".join(
                f"M{coordinate(x)} {coordinate(frame.y(float(low)))}V{coordinate(frame.y(float(high)))}"
                for x, low, high in ends
            )
            parts.append(svg.tag("path", d=bars, class_="stamp-band") if bars else "")
        parts.append(svg.polyline(points, f"line {side}"))
        parts.append(svg.dots(points, f"stamp {side}"))
    description = f"Class-wise error {percent(after.error, 2)}."
    return svg.drawing(
        100, 100, parts, title=f"Reliability of {name}", description=description, class_="stamp-box"
    )
