"""Pictures of certificates; the only place of the package that needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hcal.certificates.event import EventCertificate
from hcal.extras import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hcal.certificates.monitor import Monitor

_BLUE, _RED, _GREY = "#2166ac", "#b2182b", "#8c8c8c"


def draw_event(event: EventCertificate, level: float) -> Figure:
    """Draw the cumulative curve with its band, and below it the gap of every window with its interval."""
    figure: Figure
    figure, (top, bottom) = pyplot().subplots(2, 1, figsize=(7.2, 7.0), layout="constrained", sharex=True)
    band, w = event.band, event.windows
    top.fill_between(band.at, band.low, band.high, step="post", color=_BLUE, alpha=0.18, label="the truth")
    top.step(band.at, band.estimate, where="post", color=_BLUE, label="observed")
    top.set(xlim=(0, 1), ylabel="cumulated gap", title="rising: stated too high; falling: too low")
    top.legend(frameon=False)
    for i in np.flatnonzero((w.aligned > 0) & (w.level >= 0)):
        ends = [event.table.low[w.first[i]], event.table.high[w.last[i] - 1] + 0.002]
        colour = _RED if w.at_least[i] > 0 else _GREY
        bottom.fill_between(ends, w.gap_low[i], w.gap_high[i], color=colour, alpha=0.2, linewidth=0)
        bottom.plot(ends, [w.stated[i] - w.observed[i]] * 2, color=colour)
    bottom.set(
        xlabel="stated probability", ylabel="stated − true, each window", title="red: proven to be off"
    )
    for ax in (top, bottom):
        ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
    figure.suptitle(
        f"{event.name}, {event.n:,} rows: at most {100 * event.bound:.1f} points off ({level:.0%})"
    )
    return figure


def draw_evidence(monitor: Monitor, ax: Axes | None = None) -> Axes:
    """Draw the evidence of every family over the rows, on a logarithmic axis."""
    if ax is None:
        ax = pyplot().subplots(figsize=(7.2, 3.6), layout="constrained")[1]
    history = monitor.history
    for i, (family, colour) in enumerate(zip(monitor.events, (_BLUE, "#4d9221", "#c51b7d"), strict=False)):
        ax.plot(history[:, 0], history[:, 1 + i], color=colour, linewidth=1.3, label=family)
    ax.axhline(-np.log10(monitor.level), color="black", linewidth=0.9, linestyle="--", label="alarm")
    if monitor.alarm is not None:
        ax.axvline(monitor.alarm.row, color=_RED, linewidth=1.0)
    ax.set_title(str(monitor).partition(";")[0], fontsize=10)
    ax.set(xlabel="rows", ylabel="log₁₀ evidence against calibration")
    ax.legend(fontsize=8, frameon=False)
    return ax
