"""The sections of the page below the verdict: reliability, decisions, classes, groups, metrics, data."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np

from hcal.certificates.event import class_tolerance
from hcal.certificates.windows import EventTable, risk_coverage, threshold_table
from hcal.evaluation.curves import ReliabilityCurve
from hcal.metrics.clinical import clinical as clinical_panel
from hcal.metrics.registry import LEVELS
from hcal.reporting import charts
from hcal.reporting.charts import percent
from hcal.reporting.content import VIEWS, Content
from hcal.reporting.svg import Axis

#: Shares of the rows, most probable first, whose thresholds are shown.
_SHARES = (0.5, 0.2, 0.1, 0.05, 0.01)
#: Classes of the heat list; the others are in a table that opens.
_WORST = 20
_LEVELS = {
    "top-label": "Top label: is the predicted class right as often as it says?",
    "class-wise": "Class-wise: is each class's probability right?",
    "canonical": "Canonical: is the whole vector right?",
    "score": "Scores: calibration and sharpness together",
}


def section(identity: str, title: str, lead: str, body: str) -> str:
    """Return a section with its heading and a sentence on how to read it."""
    heading = f'<h2 id="{identity}-title">{escape(title)}</h2><p class="lead">{lead}</p>'
    return f'<section id="{identity}" aria-labelledby="{identity}-title">{heading}{body}</section>'


def tip(words: str, explain: str) -> str:
    """Return words that explain themselves on hover and on keyboard focus."""
    return f'<span class="tip" tabindex="0" data-tip="{escape(explain)}">{escape(words)}</span>'


def number(value: float, share: bool = False) -> str:
    """Write a number so that small ones keep their digits; a share in per cent."""
    if share:
        return percent(value, 2 if abs(value) < 0.1 else 1)
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def facts(found: dict[str, Any]) -> str:
    """Return names with their values."""
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in found.items())
    return f'<dl class="facts">{rows}</dl>'


def _figure(content: Content, drawing: str, side: str) -> str:
    caption = f"<figcaption>{side.capitalize()} calibration</figcaption>" if content.after is not None else ""
    return f'<figure class="{side}">{caption}{drawing}</figure>'


# -- reliability ----------------------------------------------------------------------------------


def reliability(content: Content) -> str:
    """Return the diagrams of P(positive) or of the predicted class, in four views."""
    event = content.event
    lead = (
        f"Each dot is a bin of rows: what {escape(event)} is on average, and how often it happened. On the "
        "diagonal the two agree. Grey is the consistency band: where the dot lies in "
        f"{percent(content.ci, 0)} of the cases if the model is calibrated. Bars show the share of rows."
    )
    labels = (f"stated {event}", "observed rate") if content.binary else ("stated confidence", "share right")
    column = [
        s.probs[:, content.positive] if content.binary else s.probs.max(axis=1) for _, s in content.sides
    ]
    axis = charts.probability_axis(*column) if content.binary else Axis()
    first = "equal-width" if axis == Axis() else "equal-mass"
    views, buttons = [], []
    for view, (button, label) in VIEWS.items():
        figures = "".join(
            _figure(content, charts.reliability_chart(s.curves[view], side, axis, labels), side)
            for side, s in content.sides
        )
        tables = "".join(_bins_table(s.curves[view], side) for side, s in content.sides)
        numbers = f"<details><summary>The numbers ({label})</summary>{tables}</details>"
        if content.after is None:  # one diagram: its numbers stand beside it
            figures, numbers = f"{figures}<div>{tables}</div>", ""
        views.append(
            f'<div class="view" id="view-{view}"{"" if view == first else " hidden"}>'
            f'<div class="pair">{figures}</div>{numbers}</div>'
        )
        pressed = "true" if view == first else "false"
        buttons.append(
            f'<button type="button" data-view="view-{view}" aria-pressed="{pressed}">{button}</button>'
        )
    control = f'<div class="switch" role="group" aria-label="Bins or curve">{"".join(buttons)}</div>'
    legend = (
        '<p class="legend"><span><i class="key-dot"></i>inside the band</span>'
        '<span><i class="key-ring"></i>outside: more than chance</span>'
        '<span><i class="key-small"></i>fewer than 10 rows</span>'
        '<span><i class="key-band"></i>consistency band</span></p>'
    )
    title = f"Does {event} mean what it says?" if content.binary else "Does it mean what it says?"
    return section("reliability", title, lead, control + legend + "".join(views))


def _bins_table(curve: ReliabilityCurve, side: str) -> str:
    full = np.flatnonzero(curve.weight > 0)
    full = full[np.unique(np.linspace(0, len(full) - 1, 24).astype(int))] if len(full) > 24 else full
    rows = "".join(
        f"<tr><td>{curve.edges[b]:.3g} – {curve.edges[b + 1]:.3g}</td><td>{curve.weight[b]:,.0f}</td>"
        f"<td>{curve.predicted[b]:.4f}</td><td>{curve.observed[b]:.4f}</td>"
        f"<td>{curve.low[b]:.4f} – {curve.high[b]:.4f}</td></tr>"
        for b in full
    )
    head = "<tr><th>bin</th><th>rows</th><th>stated</th><th>observed</th><th>band</th></tr>"
    return f'<div class="scroll"><table class="numbers"><caption>{side}</caption>{head}{rows}</table></div>'


def mapping(content: Content) -> str:
    """Return what the calibrator makes of P(positive), or of the predicted class's probability."""
    if content.after is None:
        return ""
    rows = np.arange(len(content.y))
    column = content.positive if content.binary else content.before.probs.argmax(axis=1)
    p, q = (s.probs[rows, column].astype(np.float64) for _, s in content.sides)
    event = content.event if content.binary else "confidence"
    drawing, words = charts.probability_map(p, q, event)
    lead = (
        "What the calibrator makes of each probability. The dashed diagonal changes nothing. A band instead "
        "of a line means that rows with the same probability are treated differently."
    )
    figure = f'<figure class="after">{drawing}</figure><p class="aside">{escape(words)}</p>'
    return section("map", "The map itself", lead, f'<div class="pair">{figure}</div>')


def clinical(content: Content) -> str:
    """Return what studies of prediction models report; with two classes."""
    c = content.final.headline.clinical
    if c is None:
        return ""
    rows = {
        "Calibration in the large": (c.in_the_large, "ideal 0; above: risks are stated too low"),
        "Calibration slope": (c.slope, "ideal 1; below: too extreme"),
        "Observed : expected": (c.observed_expected, "ideal 1"),
        "ICI": (c.ici, "mean distance of observed from stated risk"),
        "E50, E90": (f"{c.e50.value:.3f}, {c.e90.value:.3f}", "its median and 90th percentile"),
        "E max": (c.e_max, "its maximum"),
        "Brier score, one class": (c.brier, "0 is perfect; half of the sum over both classes"),
        "Scaled Brier score": (c.scaled_brier, "1 is perfect, 0 is no use"),
        "AUC": (c.auc, "0.5 is no use"),
        "Spiegelhalter's z": (f"{c.spiegelhalter_z:.2f}", f"p = {c.spiegelhalter_p:.2g}"),
        "Hosmer-Lemeshow": (f"{c.hosmer_lemeshow:.1f}", f"p = {c.hosmer_lemeshow_p:.2g}; do not rely on it"),
    }
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{value}</td><td>{escape(words)}</td></tr>'
        for name, (value, words) in rows.items()
    )
    lead = f"What studies of prediction models report, with {100 * c.ci:g} % intervals."
    table = f'<div class="scroll"><table class="numbers clinical">{body}</table></div>'
    return section("clinical", "Clinical panel", lead, table)


# -- decisions -----------------------------------------------------------------------------------


def decisions(content: Content) -> str:
    """Return the table of thresholds and the curve beside it; empty where nothing is certified."""
    certificate = content.final.headline.certificate
    if certificate is None:
        return ""
    failure = 1 - content.ci
    side = "after" if content.after is not None else "before"
    if content.binary:
        table = certificate.headline.table
        words = (
            "Decision curve: the net benefit of acting on rows above a threshold (solid), of acting on all "
            "rows (dashed) and on none (zero). Where the solid line is highest, the model helps to decide."
        )
        found = _positive_thresholds(content, table, failure)
        if not 0 < content.counts[content.positive] < len(content.y):
            return found
        curve = f'<figure class="{side}">{_net_benefit(content)}</figure><p class="aside">{words}</p>'
        return f'{found}<div class="pair spaced">{curve}</div>'
    left = _confidence_thresholds(certificate.headline.table, failure)
    right = charts.risk_coverage_chart(risk_coverage(certificate.headline.table, failure), side)
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
    found = clinical_panel(p, content.y == content.positive, thresholds=at).net_benefit
    side = "after" if content.after is not None else "before"
    lines = [("all", found.treat_all), ("none", np.zeros_like(at)), (side, found.model)]
    return charts.net_benefit_chart(at, lines)


# -- classes and groups ---------------------------------------------------------------------------


def classes(content: Content) -> str:
    """Return the classes as a heat list, the worst twenty first; for more than two of them."""
    certificate = content.final.headline.certificate
    found = None if certificate is None else certificate.classes
    if found is None:
        return ""
    gap = found.stated - found.frequency
    chance = 2 * np.sqrt(np.maximum(found.stated, 1e-12) / len(content.y))
    heat = gap / np.maximum(class_tolerance(found.frequency, 0.05), chance)
    order = np.lexsort((-np.abs(heat), -found.at_least))
    rows = []
    for k in order:
        r = found.refutations.get(int(k))
        proven = "" if r is None else f"by at least {100 * r.at_least:.1f} points, {r.rows:,} rows"
        level = min(int(abs(heat[k]) * 2), 4)
        tone = f"{'over' if gap[k] > 0 else 'under'}{level}"
        rows.append(
            f'<tr><th scope="row">{escape(content.names[k])}</th><td>{content.counts[k]:,}</td>'
            f"<td>{percent(found.stated[k], 2)}</td><td>{percent(found.frequency[k], 2)}</td>"
            f'<td class="{tone}">{100 * gap[k]:+.2f}</td><td>{proven}</td></tr>'
        )
    head = (
        "<tr><th>class</th><th>rows</th><th>stated</th><th>observed</th><th>gap, points</th>"
        "<th>proven off</th></tr>"
    )
    wrong = len(found.refutations)
    lead = (
        f"What is stated of each class on average and how often it came; {wrong:,} of "
        f"{len(rows):,} are proven to be off somewhere. The colour is the gap measured by the "
        "class's tolerance: red is stated too high, blue too low."
    )
    table = f'<div class="scroll"><table class="numbers heat">{head}{"".join(rows[:_WORST])}</table></div>'
    if len(rows) > _WORST:
        rest = f'<div class="scroll"><table class="numbers heat">{head}{"".join(rows[_WORST:])}</table></div>'
        table += f"<details><summary>The other {len(rows) - _WORST:,} classes</summary>{rest}</details>"
    title = f"The worst {_WORST} of {len(rows):,} classes" if len(rows) > _WORST else "Class by class"
    return section("classes", title, lead, table)


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
        low, high = g.overall
        word = {"over": "proven too high", "under": "proven too low"}.get(g.proven, "may be right")
        rows.append(
            f'<tr class="{"wrong" if g.proven else ""}"><th scope="row">{escape(g.name)}</th>'
            f"<td>{g.n:,}</td><td>{percent(g.stated)}</td><td>{percent(g.observed)}</td>"
            f"<td>{100 * low:+.1f} to {100 * high:+.1f} points</td><td>{word}</td></tr>"
        )
    head = (
        "<tr><th>group</th><th>rows</th><th>stated</th><th>happened</th><th>stated − true</th><th></th></tr>"
    )
    table = f'<div class="scroll"><table class="numbers groups">{head}{"".join(rows)}</table></div>'
    return section("groups", "Group by group", lead, table)


# -- tables ---------------------------------------------------------------------------------------


def metrics(content: Content) -> str:
    """Return the table of every metric, by level."""
    lead = (
        "Lower is better, but for accuracy. Hover or focus a name for what it says. Binned errors are "
        "positive by chance alone; debiased ones can be negative."
    )
    two = content.after is not None
    head = "<th>Metric</th>" + ("<th>Before</th><th>After</th><th>Change</th>" if two else "<th>Value</th>")
    body = []
    for level in LEVELS:
        names = [n for n, r in content.before.metrics.results.items() if r.metric.level == level]
        if names:
            body.append(
                f'<tr class="level"><th colspan="{4 if two else 2}">{escape(_LEVELS[level])}</th></tr>'
            )
            body += [_metric_row(content, name) for name in names]
    table = f'<table class="metrics"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    notes = "".join(f'<p class="fine">{escape(note)}</p>' for note in content.final.metrics.notes)
    return section("metrics", "Every metric", lead, f'<div class="scroll">{table}</div>{notes}')


def _metric_row(content: Content, name: str) -> str:
    metric = content.before.metrics.results[name].metric
    label = f"{tip(metric.title, metric.explain)} <code>{escape(name)}</code>"
    before = content.before.metrics[name]
    cells = f"<td>{number(before)}</td>"
    if content.after is not None:
        after = content.after.metrics[name]
        cells += f"<td>{number(after)}</td><td>{change(before, after, metric.lower_is_better)}</td>"
    return f'<tr><th scope="row">{label}</th>{cells}</tr>'


def change(before: float, after: float, lower_is_better: bool = True) -> str:
    """Return a relative change with its direction, coloured by whether it is for the better."""
    if before <= 0 or after <= 0:  # a ratio of signed estimates means nothing
        return ""
    ratio = after / before - 1
    if abs(ratio) < 0.0005:
        return '<span class="same">unchanged</span>'
    better = (ratio < 0) == lower_is_better
    share = percent(abs(ratio), 1 if abs(ratio) < 0.1 else 0)
    return f'<span class="{"better" if better else "worse"}">{"▼" if ratio < 0 else "▲"} {share}</span>'


def data_and_method(content: Content) -> str:
    """Return what was measured, with what, and by which versions: enough to do it again."""
    counts, s, c = content.counts, content.source, content.calibrator
    spread = f"{counts.min():,} to {counts.max():,}, median {np.median(counts):,.0f}"
    found: dict[str, Any] = {
        "Rows, classes": f"{content.n:,}, {len(counts):,}",
        "Rows of a class": ", ".join(f"{n}: {x:,}" for n, x in zip(content.names, counts, strict=True))
        if len(counts) <= 12
        else spread,
        "File": f"{s.name}{f', {s.part} part' if s.part else ''}, {s.kind or 'probabilities'}",
        "SHA-256": s.checksum or "not a file",
    }
    if c is not None:
        found |= {
            "Method": f"{c.title} ({c.name})",
            "Preserves": c.preserves or "nothing is promised",
            "Converged": "yes" if c.converged_ else "NO",
        }
        found |= {f"Parameter {k}": _plain(v) for k, v in c.get_params(deep=False).items()}
        found |= {
            k.capitalize().replace("_", " "): _plain(v) for k, v in c.info_.items() if len(_plain(v)) <= 160
        }
    found["Versions"] = ", ".join(f"{k} {v}" for k, v in content.versions.items())
    found["Intervals"] = f"{percent(content.ci, 0)}; bootstrap of the rows, bias-aware for binned errors"
    return section("data", "Data, method, versions", "Enough to do it again.", facts(found))


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)
