"""A reliability diagram in the terminal: accuracy as a bar, confidence as a mark, the gap between them."""

from __future__ import annotations

import numpy as np
from rich.text import Text

from hcal.evaluation.curves import ReliabilityCurve


def draw_text(curve: ReliabilityCurve, *, title: str = "", width: int = 40) -> Text:
    """Draw a curve as text: ``█`` accuracy, ``│`` mean confidence; a gap beyond chance is coloured.

    ``width`` is in characters from 0 to 1.

    >>> import hcal
    >>> curve = hcal.reliability([[0.05, 0.95]] * 12, [1] * 6 + [0] * 6, bins=10).curves[0]
    >>> print(draw_text(curve, width=20).plain)
    confidence  0     accuracy     1     gap     rows
    0.90–1.00   ██████████░░░░░░░░░│  +0.450*      12
    """
    text = Text()
    if title:
        text.append(title + "\n", style="bold")
    text.append(f"confidence  0{'accuracy':^{width - 2}}1     gap     rows", style="dim")
    beyond = curve.outside
    for b in np.flatnonzero(curve.weight > 0):
        gap = float(curve.predicted[b] - curve.observed[b])
        text.append(f"\n{curve.edges[b]:.2f}–{curve.edges[b + 1]:.2f}   ")
        _bar(text, float(curve.observed[b]), float(curve.predicted[b]), width)
        style = ("red" if gap > 0 else "yellow") if beyond[b] else "green"
        text.append(f" {gap:+.3f}{'*' if beyond[b] else ' '}", style=style)
        text.append(f" {curve.weight[b]:7,.0f}", style="dim")
    return text


LEGEND = "bar: accuracy, │: mean confidence; ░ over-confident, ▓ under-confident, * beyond chance (95 %)"


def _bar(text: Text, accuracy: float, confidence: float, width: int) -> None:
    full, mark = round(accuracy * width), round(confidence * width)
    cells = ["█" if i < full else ("░" if i < mark else " ") for i in range(width + 1)]
    cells[mark:full] = ["▓"] * max(full - mark, 0)  # under-confident: the part of the bar beyond the mark
    cells[mark] = "│"
    for i, cell in enumerate(cells):
        text.append(cell, style="bold" if i == mark else ("blue" if cell in "█▓" else "red"))
