"""Small pieces of markup and number formats that the report's sections share."""

from __future__ import annotations

from html import escape

from hcal.reporting import charts
from hcal.reporting.content import Content, ReportSide


def section(identity: str, title: str, lead: str, body: str) -> str:
    """Return a section with its heading and a sentence on how to read it."""
    heading = f'<h2 id="{identity}-title">{escape(title)}</h2><p class="lead">{lead}</p>'
    return f'<section id="{identity}" aria-labelledby="{identity}-title">{heading}{body}</section>'


def tip(words: str, explain: str) -> str:
    """Return words that explain themselves on hover and on keyboard focus."""
    return f'<span class="tip" tabindex="0" data-tip="{escape(explain)}">{escape(words)}</span>'


def sides(content: Content) -> list[tuple[str, ReportSide]]:
    """Return the predictors of a report with the colour of each: before, and after where there is one."""
    if content.after is None:
        return [("before", content.before)]
    return [("before", content.before), ("after", content.after)]


def number(value: float, share: bool = False) -> str:
    """Write a number so that small ones keep their digits; a share in per cent."""
    if share:
        return charts.percent(value, 2 if abs(value) < 0.1 else 1)
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def arrow(ratio: float, *, better: bool) -> str:
    """Return a change with its direction, coloured by whether it is for the better."""
    share = charts.percent(abs(ratio), 1 if abs(ratio) < 0.1 else 0)
    return f'<span class="{"better" if better else "worse"}">{"▼" if ratio < 0 else "▲"} {share}</span>'
