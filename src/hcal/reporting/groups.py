"""Groups of rows in the report: every group's certified gap, the worst first."""

from __future__ import annotations

from html import escape

from hcal.reporting.charts import percent
from hcal.reporting.content import Content
from hcal.reporting.markup import section


def groups(content: Content) -> str:
    """Return the section on groups; empty where none were given."""
    found = content.final.headline.groups
    if not found:
        return ""
    lead = (
        "Each group by itself, the worst first: what it states on average, what happened, and the certified "
        f"interval of the gap. All groups hold at once ({percent(content.ci, 0)}, with everything else)."
    )
    rows = []
    for g in found:
        low, high = g.certificate.overall
        word = {"over": "proven too high", "under": "proven too low"}.get(g.proven, "may be right")
        rows.append(
            f'<tr class="{"wrong" if g.proven else ""}"><th scope="row">{escape(g.name)}</th>'
            f"<td>{g.certificate.n:,}</td><td>{percent(g.stated)}</td><td>{percent(g.observed)}</td>"
            f"<td>{100 * low:+.1f} to {100 * high:+.1f} points</td><td>{word}</td></tr>"
        )
    head = (
        "<tr><th>group</th><th>rows</th><th>stated</th><th>happened</th><th>stated − true</th><th></th></tr>"
    )
    table = f'<div class="scroll"><table class="numbers groups">{head}{"".join(rows)}</table></div>'
    return section("groups", "Group by group", lead, table)
