"""A reliability diagram in the terminal: accuracy as a bar, confidence as a mark, the gap between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from hcal.numerics import FloatArray


@dataclass(frozen=True)
class Bin:
    """One bin of confidences."""

    low: float
    high: float
    confidence: float
    accuracy: float
    count: int


def bins_of(probs: FloatArray, y: NDArray[np.integer], n_bins: int = 10) -> list[Bin]:
    """Return the non-empty equal-width bins (lo, hi] of the top-label confidence.

    Parameters
    ----------
    probs : array of shape (N, K)
    y : array of shape (N,)
    n_bins : int

    Returns
    -------
    list of Bin

    Examples
    --------
    >>> bins_of(np.array([[0.25, 0.75]]), np.array([1]))[0].accuracy
    1.0
    """
    conf = probs.max(axis=1).astype(np.float64)
    hit = probs.argmax(axis=1) == y
    which = np.clip(np.ceil(conf * n_bins).astype(int) - 1, 0, n_bins - 1)
    found = []
    for b in np.unique(which):
        mine = which == b
        found.append(Bin(b / n_bins, (b + 1) / n_bins, conf[mine].mean(), hit[mine].mean(), int(mine.sum())))
    return found


def draw(bins: Sequence[Bin], *, title: str = "", width: int = 40) -> Text:
    """Draw bins as text: ``█`` accuracy, ``│`` mean confidence, the gap coloured.

    Parameters
    ----------
    bins : sequence of Bin
    title : str
    width : int
        Characters from 0 to 1.

    Returns
    -------
    rich.text.Text

    Examples
    --------
    >>> print(draw([Bin(0.9, 1.0, 0.95, 0.5, 12)], width=10).plain)
    confidence  0   accuracy   1  gap     rows
    0.90–1.00   █████░░░░│    +0.450      12
    """
    text = Text()
    if title:
        text.append(title + "\n", style="bold")
    text.append(f"confidence  0{'accuracy':^{width - 2 if width > 10 else 13}}1  gap     rows", style="dim")
    for b in bins:
        gap = b.confidence - b.accuracy
        text.append(f"\n{b.low:.2f}–{b.high:.2f}   ")
        _bar(text, b, width)
        text.append(f" {gap:+.3f}", style=_colour(gap))
        text.append(f" {b.count:7,}", style="dim")
    return text


def _bar(text: Text, b: Bin, width: int) -> None:
    full = round(b.accuracy * width)
    mark = min(max(round(b.confidence * width), 0), width)
    cells = ["█" if i < full else ("░" if i < mark else " ") for i in range(width + 1)]
    if full > mark:  # under-confident: the part of the bar beyond the mark
        cells[mark:full] = ["▓"] * (full - mark)
    cells[mark] = "│"
    for i, cell in enumerate(cells):
        text.append(cell, style="bold" if i == mark else ("blue" if cell in "█▓" else "red"))


def _colour(gap: float) -> str:
    return "green" if abs(gap) < 0.03 else ("red" if gap > 0 else "yellow")
