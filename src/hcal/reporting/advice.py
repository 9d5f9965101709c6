"""What now? The next command, certified thresholds, risk against coverage, classes proven wrong."""

from __future__ import annotations

from html import escape

import numpy as np

from hcal.certificates import Certificate
from hcal.certificates.sentences import points
from hcal.certificates.table import EventTable
from hcal.certificates.thresholds import Tails, risk_coverage, threshold_table
from hcal.reporting import svg
from hcal.reporting.charts import percent
from hcal.reporting.content import Content
from hcal.reporting.markup import section
from hcal.reporting.svg import Frame
from hcal.reporting.verdict import ReportVerdict

_SHOWN = 12


def what_now(content: Content, verdict: ReportVerdict) -> str:
    """Return the section: what to do next, and what the probabilities are good for already."""
    certificate = content.final.headline.certificate
    if certificate is None or certificate.top is None:
        return ""
    failure = 1 - content.ci
    lead = (
        "The next step, and what can be relied on today. Intervals are certified: all thresholds at once, "
        f"{percent(content.ci, 0)}; so are all points of the curve."
    )
    steps = "".join(f"<li>{step}</li>" for step in next_steps(content, verdict))
    table = _thresholds(*_threshold_event(content, certificate), failure)
    curve = _risk(risk_coverage(certificate.top.table, failure))
    body = (
        f'<ol class="steps">{steps}</ol><div class="pair"><div>{table}</div>'
        f'<figure class="{"after" if content.after is not None else "before"}">{curve}</figure></div>'
        f"{_wrong_classes(content)}"
    )
    return section("now", "What now?", lead, body)


def next_steps(content: Content, verdict: ReportVerdict) -> list[str]:
    """Return what to do next, as HTML, the most useful first."""
    file = escape(content.source.name if content.source.checksum else "test.npz")
    standing = content.final.headline.standing
    steps = []
    if content.seen:
        steps.append(f"Judge it on other rows: <code>hcal report {file} --model model.hcal -o r.html</code>.")
    elif verdict.grade == "few" and standing is not None:
        rows = standing.tolerance.rows
        many = f"about {rows:,} labelled rows" if rows else "more labelled rows"
        steps.append(f"Collect {many} and ask again: <code>hcal certify {file} --model model.hcal</code>.")
    if verdict.grade == "bad" and content.after is None:
        fit = "<code>hcal fit cal.npz -o model.hcal</code>"
        steps.append(f"Calibrate on held-out rows: {fit}, then this report again with the model.")
    if verdict.grade == "bad" and content.after is not None:
        method = "h" if content.calibrator is None or content.calibrator.name != "h" else "sms"
        steps.append(
            f"Try another map: <code>hcal fit cal.npz -o model.hcal --method {method}</code>. One that may "
            "change predicted classes can repair what one that preserves them cannot; more calibration rows "
            "help where classes are rare."
        )
    if verdict.grade == "care":
        steps.append("Work on the model itself: no calibrator adds knowledge that the scores do not have.")
    if verdict.grade in ("good", "care"):
        steps.append("Set thresholds from the table below; they hold on rows like these.")
    steps.append("Watch it in use: <code>hcal watch BATCH.npz --model model.hcal --state watch.json</code>.")
    return steps


def _threshold_event(content: Content, certificate: Certificate) -> tuple[EventTable, str]:
    """What a threshold is set on: the positive class of two, the top label of more; and what then happens."""
    if len(content.names) == 2 and certificate.classes is not None:
        name = content.names[content.positive]
        return certificate.classes.kept[content.positive].table, f"truly {name}"
    assert certificate.top is not None  # evaluate always asks for it
    return certificate.top.table, "right"


def _thresholds(table: EventTable, happened: str, failure: float) -> str:
    tails = threshold_table(table, failure)
    rows = "".join(
        f"<tr><td>{at:g}</td><td>{percent(share)}</td><td>{percent(low)} – {percent(high)}</td></tr>"
        for at, share, low, high, n in zip(
            tails.at, tails.share, tails.low, tails.high, tails.rows, strict=True
        )
        if n > 0
    )
    head = f"<tr><th>at or above</th><th>of rows</th><th>{escape(happened)} (certified)</th></tr>"
    return (
        f'<div class="scroll"><table class="numbers"><caption>Thresholds</caption>{head}{rows}</table></div>'
    )


def _risk(tails: Tails) -> str:
    """Draw how often the most confident rows are wrong, against their share, with its certified band."""
    risk, low, high = 1 - tails.observed, 1 - tails.high, 1 - tails.low
    top = max(float(np.ceil(20 * min(high.max(), 1.0)) / 20), 0.05)
    frame = Frame(62, 10, 272, 200, y_range=(0, top))
    parts = [svg.plot_area(frame)]
    for t in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(svg.text(frame.x(t), frame.top + frame.height + 14, f"{100 * t:.0f} %"))
        parts.append(svg.across(frame, t * top))
        parts.append(svg.text(frame.left - 6, frame.y(t * top) + 4, f"{100 * t * top:.3g} %", anchor="end"))
    order = np.argsort(tails.share)
    x = [frame.x(float(v)) for v in tails.share[order]]
    ends = [frame.y(float(min(v, top))) for v in high[order]], [frame.y(float(v)) for v in low[order]]
    outline = [*zip(x, ends[0], strict=True), *reversed(list(zip(x, ends[1], strict=True)))]
    parts.append(svg.polygon(outline, "band"))
    line = [(a, frame.y(float(r))) for a, r in zip(x, risk[order], strict=True)]
    parts.append(svg.polyline(line, "line after"))
    parts.append(svg.below(frame, "share of rows kept, most confident first"))
    parts.append(svg.beside("wrong among them", 110))
    words = f"Of all rows {percent(float(risk[order][-1]))} are wrong; of the most confident half fewer."
    return svg.drawing(356, 246, parts, title="Risk against coverage", description=words)


def _wrong_classes(content: Content) -> str:
    certificate = content.final.headline.certificate
    classes = None if certificate is None else certificate.classes
    if classes is None:
        return ""
    wrong = sorted(classes.refutations.items(), key=lambda item: -item[1].at_least)
    if not wrong:
        return '<p class="aside">No class is proven wrong.</p>'
    items = "".join(
        f"<li><b>{escape(content.names[k])}</b>: stated too {'high' if r.direction == 'over' else 'low'} by "
        f"at least {points(r.at_least)}, where it states {percent(r.claims[0], 2)} to "
        f"{percent(r.claims[1], 2)} ({r.rows:,} rows)</li>"
        for k, r in wrong[:_SHOWN]
    )
    more = f"<li>and {len(wrong) - _SHOWN:,} more</li>" if len(wrong) > _SHOWN else ""
    return f'<h3>Classes that are proven wrong</h3><ul class="wrong-classes">{items}{more}</ul>'
