"""Pictures of certificates; the only place of the package that needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hcal.certificates.event import EventCertificate
from hcal.extras import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hcal.certificates.monitor import Monitor

_BLUE, _RED, _GREY = "#2166ac", "#b2182b", "#8c8c8c"


def draw_event(event: EventCertificate, level: float) -> Figure:
    """Draw the cumulative curve with its band, and below it every window's interval of the gap."""
    figure: Figure
    figure, (top, bottom) = pyplot().subplots(2, 1, figsize=(7.2, 7.0), layout="constrained")
    _curve(top, event)
    _windows(bottom, event)
    figure.suptitle(
        f"{event.name}, {event.n:,} rows: smooth calibration error at most {event.smooth:.4f}, "
        f"off somewhere by at least {event.at_least:.4f}\n(all of it at once, {level:.0%})",
        fontsize=10,
    )
    return figure


def _curve(ax: Any, event: EventCertificate) -> None:
    band = event.band
    at = np.concatenate([[0.0], band.at, [1.0]])
    low, mid, high = (np.concatenate([[0.0], x, x[-1:]]) for x in (band.low, band.estimate, band.high))
    ax.fill_between(
        at, low, high, step="post", color=_BLUE, alpha=0.18, linewidth=0, label="band of the truth"
    )
    ax.step(at, mid, where="post", color=_BLUE, linewidth=1.3, label="observed")
    ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
    ax.set(xlim=(0, 1), xlabel="stated probability t", ylabel="cumulated gap G(t)")
    ax.set_title("rising: claims too high there; falling: too low", fontsize=9, loc="left")
    ax.legend(fontsize=8, frameon=False)


def _windows(ax: Any, event: EventCertificate) -> None:
    w = event.windows
    ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
    deepest = max(w.levels)
    for i in np.flatnonzero(w.aligned > 0):
        if w.level[i] < 0:
            continue
        left, right = event.table.low[w.first[i]], event.table.high[w.last[i] - 1]
        right = max(right, left + 0.003)
        colour = _RED if w.at_least[i] > 0 else _GREY
        alpha = 0.12 + 0.3 * float(w.level[i]) / max(deepest, 1)
        ax.fill_between([left, right], w.gap_low[i], w.gap_high[i], color=colour, alpha=alpha, linewidth=0)
        ax.plot([left, right], [w.stated[i] - w.observed[i]] * 2, color=colour, linewidth=1.0)
    ax.set(xlim=(0, 1), xlabel="stated probability", ylabel="stated − true, per window")
    ax.set_title(
        f"windows of all rows, halves, … down to {event.n / 2**deepest:,.0f} rows; red: proven to be off",
        fontsize=9,
        loc="left",
    )


def draw_evidence(monitor: Monitor, ax: Axes | None = None) -> Axes:
    """Draw the evidence of every family over the rows, on a logarithmic axis."""
    if ax is None:
        ax = pyplot().subplots(figsize=(7.2, 3.6), layout="constrained")[1]
    history = monitor.history
    for i, (family, colour) in enumerate(zip(monitor.events, (_BLUE, "#4d9221", "#c51b7d"), strict=False)):
        ax.plot(history[:, 0], history[:, 1 + i], color=colour, linewidth=1.3, label=family)
    ax.axhline(-np.log10(monitor.level), color="black", linewidth=0.9, linestyle="--", label="alarm")
    ax.axhline(0, color=_GREY, linewidth=0.8, linestyle=":")
    if monitor.alarm is not None:
        ax.axvline(monitor.alarm.row, color=_RED, linewidth=1.0)
        ax.set_title(
            f"alarm at row {monitor.alarm.row:,}: {monitor.alarm.event}, {monitor.alarm.direction}",
            fontsize=10,
        )
    else:
        ax.set_title(f"no alarm in {monitor.n:,} rows", fontsize=10)
    ax.set(xlabel="rows", ylabel="log₁₀ evidence against calibration")
    ax.legend(fontsize=8, frameon=False)
    return ax
