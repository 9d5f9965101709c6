"""The report's tables: every metric, the data, the method and versions."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np

from hcal.calibrators.base import Calibrator
from hcal.metrics.registry import LEVELS
from hcal.reporting import charts
from hcal.reporting.content import Content
from hcal.reporting.markup import number, section, tip

_LEVELS = {
    "top-label": "Top label: is the predicted class right as often as it says?",
    "class-wise": "Class-wise: is each class's probability right?",
    "canonical": "Canonical: is the whole vector right?",
    "score": "Scores: calibration and sharpness together",
}


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
    return section("metrics", "Every metric", lead, f'<div class="scroll">{table}</div>')


def _metric_row(content: Content, name: str) -> str:
    metric = content.before.metrics.results[name].metric
    label = f"{tip(metric.title, metric.explain)} <code>{escape(name)}</code>"
    before = content.before.metrics[name]
    cells = [f"<td>{number(before)}</td>"]
    if content.after is not None:
        after = content.after.metrics[name]
        cells.append(f"<td>{number(after)}</td><td>{_change(before, after, metric.lower_is_better)}</td>")
    return f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>'


def _change(before: float, after: float, lower_is_better: bool) -> str:
    if before <= 0 or after <= 0:  # a ratio of signed estimates means nothing
        return ""
    ratio = after / before - 1
    if abs(ratio) < 0.0005:
        return '<span class="same">same</span>'
    better = (ratio < 0) == lower_is_better
    return (
        f'<span class="{"better" if better else "worse"}">{"▼" if ratio < 0 else "▲"} {abs(ratio):.1%}</span>'
    )


def data(content: Content) -> str:
    """Return the summary of the rows: counts, file, checksum."""
    counts = content.counts
    facts = {
        "Rows (N)": f"{len(content.y):,}",
        "Classes (K)": f"{len(counts):,}",
        "Rows of a class": f"{counts.min():,} to {counts.max():,}, median {np.median(counts):,.0f}",
        "Absent classes": f"{len(content.absent):,}" if content.absent else "none",
        "File": content.source.name,
        "Part": content.source.part or "whole file",
        "It holds": content.source.kind or "probabilities",
        "SHA-256": content.source.checksum or "not a file",
    }
    body = _facts(facts) + f"<figure>{charts.class_counts(counts, content.names)}</figure>"
    return section("data", "The data", "What was measured.", body)


def method(content: Content) -> str:
    """Return the method, its parameters, what it learned, and versions."""
    facts: dict[str, Any] = {}
    if content.calibrator is not None:
        c = content.calibrator
        facts |= {
            "Method": f"{c.title} ({c.name})",
            "Preserves": _kept(c),
            "Converged": "yes" if c.converged_ else "NO",
        }
        facts |= {f"Parameter {k}": _plain(v) for k, v in c.get_params(deep=False).items()}
        facts |= {k.capitalize().replace("_", " "): _plain(v) for k, v in c.info_.items() if _is_short(v)}
    facts |= {f"Version of {k}": v for k, v in content.versions.items()}
    facts["Intervals"] = (
        f"{charts.percent(content.ci, 0)}; bootstrap of the rows, bias-aware for binned errors"
    )
    title = "Method and versions" if content.calibrator is not None else "Versions"
    return section("method", title, "Enough to do it again.", _facts(facts))


def _kept(calibrator: Calibrator) -> str:
    if calibrator.preserves is None and calibrator.info_.get("promise") == "ranking":
        return "the ranking of the rows"
    kept = {"order": "the order of classes in every row", "accuracy": "the predicted class"}
    return kept.get(str(calibrator.preserves), "nothing is promised")


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int | float | bool) or len(_plain(value)) <= 160


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if v != "")
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _facts(facts: dict[str, Any]) -> str:
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items())
    return f'<dl class="facts">{rows}</dl>'
