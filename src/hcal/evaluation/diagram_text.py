"""A reliability diagram in plain text: what ``print(hcal.reliability(...))`` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from hcal.evaluation.diagram import Reliability, ReliabilityCurve

#: Curves of a class-wise diagram that are printed, the worst first.
_SHOWN: Final = 5
#: Characters from 0 to 1.
_WIDTH: Final = 30


def diagram_text(diagram: Reliability) -> str:
    """Return the diagram as lines of text: every bin with rows, its probability, frequency and band."""
    order = np.argsort([-c.error for c in diagram.curves], kind="stable")[:_SHOWN]
    parts = [_curve(diagram.curves[i]) for i in order]
    if len(diagram) > len(parts):
        parts.append(f"… and {len(diagram) - len(parts)} classes with smaller errors")
    head = f"Reliability of {diagram.n:,} rows ({diagram.level}); * outside the {diagram.ci:.0%} band"
    return "\n\n".join([head, *parts])


def _curve(curve: ReliabilityCurve) -> str:
    lines = [
        f"{curve.title}: error {curve.error:.4f}",
        f"{'probability':<12} {'stated':>7} {'happened':>9}  {'if calibrated':>14} {'rows':>9}",
    ]
    full = np.flatnonzero(curve.weight > 0)
    for b in full:
        mark = "*" if curve.outside[b] else " "
        band = f"{curve.low[b]:.3f}–{curve.high[b]:.3f}"
        lines.append(
            f"{curve.edges[b]:.3f}–{curve.edges[b + 1]:.3f}  {curve.predicted[b]:>7.3f} "
            f"{curve.observed[b]:>8.3f}{mark}  {band:>14} {curve.weight[b]:>9,.0f}  {_bar(curve, int(b))}"
        )
    return "\n".join(lines)


def _bar(curve: ReliabilityCurve, b: int) -> str:
    """Return the frequency as a bar and the stated probability as a mark on it."""
    length, mark = round(curve.observed[b] * _WIDTH), round(curve.predicted[b] * _WIDTH)
    cells = ["█" if i < length else " " for i in range(_WIDTH + 1)]
    cells[mark] = "│"
    return "".join(cells).rstrip()
