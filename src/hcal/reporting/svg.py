"""A few lines of SVG: enough for the report's charts, coloured by the page's style sheet.

Charts carry class names, never colours, so that light, dark and print are the style sheet's business; and
every chart has a title and a description for those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape


def coordinate(value: float) -> str:
    """Write a coordinate with at most one decimal: a page of a thousand charts stays small.

    >>> coordinate(3.0), coordinate(2.25), coordinate(-0.04)
    ('3', '2.2', '0')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


@dataclass(frozen=True)
class Frame:
    """A rectangle of the drawing with data coordinates: x from left to right, y from bottom to top."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float] = (0.0, 1.0)
    y_range: tuple[float, float] = (0.0, 1.0)

    def x(self, value: float) -> float:
        """Return the drawing's x of a data value."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * self.width

    def y(self, value: float) -> float:
        """Return the drawing's y of a data value."""
        low, high = self.y_range
        return self.top + (high - value) / (high - low) * self.height


def tag(name: str, content: str | None = None, /, **attributes: object) -> str:
    """Return one element; ``class_`` becomes ``class`` and ``a_b`` becomes ``a-b``.

    >>> tag("rect", x=1.0, class_="bar")
    '<rect x="1" class="bar"/>'
    >>> tag("title", "a & b")
    '<title>a &amp; b</title>'
    """
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{text}/>" if content is None else f"<{name}{text}>{escape(content)}</{name}>"


def _value(value: object) -> str:
    return coordinate(value) if isinstance(value, int | float) else escape(str(value))


def group(parts: Iterable[str], /, **attributes: object) -> str:
    """Return ``<g …>parts</g>``."""
    return tag("g", **attributes).removesuffix("/>") + ">" + "".join(parts) + "</g>"


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """Return a straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def polyline(points: Iterable[tuple[float, float]], class_: str) -> str:
    """Return an open line through points in drawing coordinates."""
    path = "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)
    return tag("path", d=f"M{path}", class_=class_) if path else ""


def polygon(points: Iterable[tuple[float, float]], class_: str) -> str:
    """Return a closed area through points in drawing coordinates."""
    path = "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)
    return tag("path", d=f"M{path}Z", class_=class_) if path else ""


def dots(points: Iterable[tuple[float, float]], class_: str) -> str:
    """Return many small dots as one path: a zero-length stroke with round ends each."""
    path = "".join(f"M{coordinate(x)} {coordinate(y)}h0" for x, y in points)
    return tag("path", d=path, class_=class_) if path else ""


def text(x: float, y: float, content: str, class_: str = "tick", anchor: str = "middle") -> str:
    """Return a label."""
    return tag("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def plot_area(frame: Frame) -> str:
    """Return the ground that a chart is drawn on."""
    return tag("rect", x=frame.left, y=frame.top, width=frame.width, height=frame.height, class_="plot-area")


def across(frame: Frame, value: float, class_: str = "grid") -> str:
    """Return a line from side to side at a data value."""
    return line(frame.left, frame.y(value), frame.left + frame.width, frame.y(value), class_)


def upright(frame: Frame, value: float, class_: str = "grid") -> str:
    """Return a line from top to bottom at a data value."""
    return line(frame.x(value), frame.top, frame.x(value), frame.top + frame.height, class_)


def below(frame: Frame, content: str) -> str:
    """Return the label of the axis that runs across."""
    return text(frame.left + frame.width / 2, frame.top + frame.height + 29, content, "label")


def beside(content: str, middle: float) -> str:
    """Return the label of the upward axis."""
    turned = f"rotate(-90 12 {coordinate(middle)})"
    return tag("text", content, x=12, y=middle, class_="label", text_anchor="middle", transform=turned)


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
