"""Two classes: the positive one's curve with its certified band, base rate, ranking, two Brier scores."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from hcal.certificates.event import EventCertificate
from hcal.reporting import svg
from hcal.reporting.charts import percent, square
from hcal.reporting.content import Content, ReportSide
from hcal.reporting.markup import section, sides
from hcal.reporting.svg import Frame

_WINDOWS = 16


@dataclass(frozen=True)
class Ranking:
    """What scikit-learn users look for."""

    auc: float | None
    average_precision: float | None
    brier: float


def rank(p: np.ndarray, positive: np.ndarray) -> Ranking:
    """Return AUC, average precision and scikit-learn's Brier score of the positive class, for p (N,).

    >>> rank(np.array([0.1, 0.4, 0.8]), np.array([False, False, True]))
    Ranking(auc=1.0, average_precision=1.0, brier=0.07)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    brier = round(float(((p - positive) ** 2).mean()), 12)
    if positive.all() or not positive.any():  # no pair to rank
        return Ranking(None, None, brier)
    auc, precision = (float(f(positive, p)) for f in (roc_auc_score, average_precision_score))
    return Ranking(auc, precision, brier)


def binary(content: Content) -> str:
    """Return the section on the positive class; empty for more than two classes."""
    if len(content.names) != 2:
        return ""
    k = content.positive
    name = escape(content.names[k])
    lead = (
        f"The probability of {name}, the positive class. Each box is a window of neighbouring rows: what "
        "they state, and where their true frequency lies; all boxes hold at once "
        f"({percent(content.ci, 0)}). A red box is proven wrong."
    )
    figures = "".join(
        f'<figure class="{side}"><figcaption>{side.capitalize()}</figcaption>{_boxes(s, side)}</figure>'
        for side, s in sides(content)
    )
    body = f'<div class="pair">{figures}</div>{_facts(content, k)}'
    return section("positive", f"The positive class: {content.names[k]}", lead, body)


def _boxes(s: ReportSide, side: str) -> str:
    certificate = s.headline.certificate
    found = None if certificate is None or certificate.classes is None else certificate.classes.kept
    if not found:
        return ""
    return window_boxes(next(iter(found.values())), side)


def window_boxes(event: EventCertificate, side: str) -> str:
    """Draw certified windows as SVG: stated probability across, the interval of the truth upwards."""
    w, t = event.windows, event.table
    level = max(v for v in w.levels if ((w.level == v) & (w.aligned > 0)).sum() <= _WINDOWS)
    frame = Frame(44, 10, 300, 300)
    parts = [*square(frame, "stated probability", "how often it happened")]
    chosen = np.flatnonzero((w.level == level) & (w.aligned > 0))
    for i in chosen:
        left, right = float(t.low[w.first[i]]), float(t.high[w.last[i] - 1])
        x, width = frame.x(left), max(frame.x(right) - frame.x(left), 4)
        top, bottom = frame.y(float(w.high[i])), frame.y(float(w.low[i]))
        wrong = w.at_least[i] > 0
        words = (
            f"{w.rows[i]:,.0f} rows state {percent(float(w.stated[i]))}, {percent(float(w.observed[i]))} "
            f"seen, true {percent(float(w.low[i]))} to {percent(float(w.high[i]))}"
        )
        parts.append(svg.group([
            svg.tag("title", words),
            svg.tag("rect", x=x, y=top, width=width, height=max(bottom - top, 2),
                    class_=f"band{' wrong' if wrong else ''}", rx=2),
            svg.tag("circle", cx=frame.x(float(w.stated[i])), cy=frame.y(float(w.observed[i])), r=4,
                    class_=f"dot {side}{' outside' if wrong else ''}"),
        ], class_="bin"))  # fmt: skip
    wrong = int((w.at_least[chosen] > 0).sum())
    words = f"{len(chosen)} windows, {wrong} proven wrong."
    return svg.drawing(356, 354, parts, title="Certified windows", description=words)


def _facts(content: Content, k: int) -> str:
    mark = content.y == k
    rows = []
    for side, s in sides(content):
        r = rank(s.probs[:, k].astype(np.float64), mark)
        brier = s.headline["brier"]
        auc, precision = ("–" if v is None else f"{v:.4f}" for v in (r.auc, r.average_precision))
        rows.append(
            f"<tr><th>{side}</th><td>{percent(float(mark.mean()), 2)}</td>"
            f"<td>{percent(float(s.probs[:, k].mean()), 2)}</td><td>{auc}</td><td>{precision}</td>"
            f"<td>{r.brier:.4f}</td><td>{brier:.4f}</td></tr>"
        )
    head = (
        "<tr><th></th><th>base rate</th><th>stated</th><th>AUC</th><th>average precision</th>"
        "<th>Brier (scikit-learn)</th><th>Brier (both classes)</th></tr>"
    )
    return f'<div class="scroll"><table class="numbers">{head}{"".join(rows)}</table></div>'
