"""What the probabilities are good for: thresholds, certified; risk against coverage; net benefit."""

from __future__ import annotations

from html import escape

import numpy as np

from hcal.certificates.table import EventTable
from hcal.certificates.thresholds import risk_coverage, threshold_table
from hcal.metrics.clinical import clinical
from hcal.reporting import charts
from hcal.reporting.charts import percent
from hcal.reporting.content import Content

#: Shares of the rows, most probable first, whose thresholds are shown.
_SHARES = (0.5, 0.2, 0.1, 0.05, 0.01)


def decisions(content: Content) -> str:
    """Return the table of thresholds and the curve beside it; empty where nothing is certified."""
    certificate = content.final.headline.certificate
    if certificate is None:
        return ""
    failure = 1 - content.ci
    side = "after" if content.after is not None else "before"
    if content.binary:
        if certificate.classes is None:
            return ""
        table = certificate.classes.kept[content.positive].table
        words = (
            "Decision curve: the net benefit of acting on rows above a threshold (solid), of acting on all "
            "rows (dashed) and on none (zero). Where the solid line is highest, the model helps to decide."
        )
        found = _positive_thresholds(content, table, failure)
        if not 0 < content.counts[content.positive] < len(content.y):
            return found
        curve = f'<figure class="{side}">{_net_benefit(content)}</figure><p class="aside">{words}</p>'
        return f'{found}<div class="pair spaced">{curve}</div>'
    if certificate.top is None:
        return ""
    left = _confidence_thresholds(certificate.top.table, failure)
    right = charts.risk_coverage_chart(risk_coverage(certificate.top.table, failure), side)
    return f'<div class="pair"><div>{left}</div><figure class="{side}">{right}</figure></div>'


def thresholds(content: Content, table: EventTable) -> dict[float, str]:
    """Return the thresholds of P(positive) at which decisions are made, each with its reason."""
    found: dict[float, str] = {}
    above = table.n - table.ends[:-1]  # rows at or above each value
    for share in _SHARES:
        place = int(np.searchsorted(-above, -share * table.n, side="left"))
        if place < len(table.low):
            found[float(table.low[place])] = f"top {100 * share:g} % of rows"
    positives = table.prefix[1][-1] - table.prefix[1][:-1]
    if positives[0] > 0:
        best = int((2 * positives / (above + positives[0])).argmax())
        found[float(table.low[best])] = "largest F1"
    if content.cost:
        fn, fp = content.cost["fn"], content.cost["fp"]
        found[fp / (fp + fn)] = f"least cost (fn {fn:g}, fp {fp:g})"
    return found | dict.fromkeys(content.threshold, "yours")


def _positive_thresholds(content: Content, table: EventTable, failure: float) -> str:
    chosen = dict(sorted(thresholds(content, table).items()))
    tails = threshold_table(table, failure, tuple(chosen))
    name, total = escape(content.names[content.positive]), float(table.prefix[1][-1])
    rows = []
    for i, (at, why) in enumerate(chosen.items()):
        if tails.rows[i] < 1:
            continue
        hits = tails.observed[i] * tails.rows[i]
        cells = [
            f"{at:.3g}",
            escape(why),
            percent(tails.share[i]),
            f"{percent(tails.observed[i])} <small>{percent(tails.low[i])} – {percent(tails.high[i])}</small>",
            percent(hits / total) if total else "–",
        ]
        if content.cost:
            spent = content.cost["fp"] * (tails.rows[i] - hits) + content.cost["fn"] * (total - hits)
            cells.append(f"{1000 * spent / table.n:,.0f}")
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = ["at or above", "why", "rows", f"truly {name}", f"of all {name}"]
    head += ["cost of 1,000 rows"] if content.cost else []
    return _table("Thresholds", head, rows)


def _confidence_thresholds(table: EventTable, failure: float) -> str:
    tails = threshold_table(table, failure)
    rows = [
        f"<tr><td>{at:g}</td><td>{percent(share)}</td><td>{percent(low)} – {percent(high)}</td></tr>"
        for at, share, low, high, n in zip(
            tails.at, tails.share, tails.low, tails.high, tails.rows, strict=True
        )
        if n > 0
    ]
    return _table("Thresholds", ["at or above", "of rows", "right (certified)"], rows)


def _table(caption: str, head: list[str], rows: list[str]) -> str:
    titles = "".join(f"<th>{title}</th>" for title in head)
    return (
        f'<div class="scroll"><table class="numbers"><caption>{caption}</caption><tr>{titles}</tr>'
        f"{''.join(rows)}</table></div>"
    )


def _net_benefit(content: Content) -> str:
    """The decision curve: what decisions at a threshold are worth, beside acting on all rows and none."""
    p = content.final.probs[:, content.positive].astype(np.float64)
    at = np.linspace(0, min(charts.probability_axis(p).high, 0.99), 100)[1:]
    found = clinical(p, content.y == content.positive, thresholds=at).net_benefit
    side = "after" if content.after is not None else "before"
    lines = [("all", found.treat_all), ("none", np.zeros_like(at)), (side, found.model)]
    return charts.net_benefit_chart(at, lines)
