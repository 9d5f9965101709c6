"""A few lines of SVG: enough for the report's charts, coloured by the page's style sheet.

Charts carry class names, never colours, so that light, dark and print are the style sheet's business; and
every chart has a title and a description for those who cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape


def coordinate(value: float) -> str:
    """Write a coordinate with at most one decimal: a page of many charts stays small.

    >>> coordinate(3.0), coordinate(2.25), coordinate(-0.04)
    ('3', '2.2', '0')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


@dataclass(frozen=True)
class Axis:
    """From data to the share of the way along an axis, linear or logarithmic, with ticks at round numbers."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, value: float) -> float:
        """Return how far along the axis a value lies; what lies outside is put at the nearer end.

        >>> Axis(0, 2).place(0.5), round(Axis(0.01, 1, log=True).place(0.1), 9), Axis().place(7)
        (0.25, 0.5, 1.0)
        """
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return three to seven round numbers on the axis.

        >>> Axis(0, 0.137).ticks(), Axis(0.01, 1, log=True).ticks()
        ([0.0, 0.05, 0.1], [0.01, 0.1, 1.0])
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
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
class Frame:
    """A rectangle of the drawing with data coordinates: x from left to right, y from bottom to top."""

    left: float
    top: float
    width: float
    height: float
    across: Axis = Axis()
    upward: Axis = Axis()

    def x(self, value: float) -> float:
        """Return the drawing's x of a data value."""
        return self.left + self.across.place(value) * self.width

    def y(self, value: float) -> float:
        """Return the drawing's y of a data value."""
        return self.top + (1 - self.upward.place(value)) * self.height


def tag(name: str, content: str | None = None, /, **attributes: object) -> str:
    """Return an element; ``class_`` is ``class``, other underscores become hyphens, content is escaped.

    >>> tag("text", "a < b", x=3.0, class_="tick", text_anchor="end")
    '<text x="3" class="tick" text-anchor="end">a &lt; b</text>'
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{said}/>" if content is None else f"<{name}{said}>{escape(content)}</{name}>"


def _attribute(value: object) -> str:
    return coordinate(value) if isinstance(value, int | float) else escape(str(value))


def group(parts: Iterable[str], /, **attributes: object) -> str:
    """Return ``<g …>parts</g>``."""
    return tag("g", **attributes).removesuffix("/>") + ">" + "".join(parts) + "</g>"


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """Return a straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Iterable[tuple[float, float]], class_: str, *, closed: bool = False) -> str:
    """Return a line through points in drawing coordinates, or the area that it encloses."""
    found = "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)
    return tag("path", d=f"M{found}{'Z' if closed else ''}", class_=class_) if found else ""


def dots(points: Iterable[tuple[float, float]], class_: str) -> str:
    """Return many small dots as one path: a zero-length stroke with round ends each."""
    found = "".join(f"M{coordinate(x)} {coordinate(y)}h0" for x, y in points)
    return tag("path", d=found, class_=class_) if found else ""


def text(x: float, y: float, content: str, class_: str = "tick", anchor: str = "middle") -> str:
    """Return a label."""
    return tag("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def axes(frame: Frame, x_label: str, y_label: str, *, shares: str = "xy", below: float = 0.0) -> list[str]:
    """Return the ground, grid, ticks and labels of a frame; ``below`` leaves space under it for bars.

    ``shares`` names the axes whose ticks are written in per cent.
    """
    bottom = frame.top + frame.height
    ground = tag(
        "rect", x=frame.left, y=frame.top, width=frame.width, height=frame.height, class_="plot-area"
    )
    parts = [ground]
    for t in frame.across.ticks():
        parts.append(line(frame.x(t), frame.top, frame.x(t), bottom, "grid"))
        parts.append(text(frame.x(t), bottom + below + 18, tick(t, "x" in shares)))
    for t in frame.upward.ticks():
        parts.append(line(frame.left, frame.y(t), frame.left + frame.width, frame.y(t), "grid"))
        parts.append(text(frame.left - 6, frame.y(t) + 4, tick(t, "y" in shares), anchor="end"))
    parts.append(text(frame.left + frame.width / 2, bottom + below + 35, x_label, "label"))
    middle = coordinate(frame.top + frame.height / 2)
    turned = f"rotate(-90 12 {middle})"
    parts.append(
        tag("text", y_label, x="12", y=middle, class_="label", text_anchor="middle", transform=turned)
    )
    return parts


def tick(value: float, share: bool) -> str:
    """Write the number of a tick, as a share in per cent or as it is."""
    return f"{100 * value:.4g} %" if share else f"{value:,.6g}".replace("-", "−")


def drawing(
    width: float, height: float, parts: Iterable[str], *, title: str, description: str, class_: str = "chart"
) -> str:
    """Return a whole drawing that scales with its box and speaks to screen readers.

    >>> drawing(10, 5, [], title="a", description="b")
    '<svg viewBox="0 0 10 5" class="chart" role="img" aria-label="a. b"></svg>'
    """
    label = escape(f"{title}. {description}")
    head = f'<svg viewBox="0 0 {coordinate(width)} {coordinate(height)}" class="{class_}" role="img"'
    return f'{head} aria-label="{label}">' + "".join(parts) + "</svg>"
