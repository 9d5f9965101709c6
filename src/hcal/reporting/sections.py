"""The tables and charts of the report's sections: reliability, decisions, classes, groups and metrics."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from hcal._version import __version__
from hcal.certificates.event import class_tolerance
from hcal.certificates.windows import EventTable, threshold_table
from hcal.decisions.threshold_curve import LeastCost, ThresholdCurve, check_costs
from hcal.evaluation.curves import ReliabilityCurve
from hcal.evaluation.result import number_text
from hcal.metrics.clinical import clinical
from hcal.reporting import charts
from hcal.reporting.charts import Axis, Chart, percent
from hcal.reporting.content import VIEWS, Content

#: The column heads of a table, and its rows.
Table = tuple[list[str], list[list[str]]]


def number(value: float, share: bool = False) -> str:
    """Format a number, or a share in per cent; small ones with more digits."""
    if share:
        return percent(value, 2 if abs(value) < 0.1 else 1)
    return number_text(value)


def change(content: Content, name: str) -> tuple[str, str]:
    """Return whether calibration made a metric better or worse, and by how much in per cent."""
    before, after = content.before.evaluation[name], content.final.evaluation[name]
    if (
        content.after is None or before <= 0 or after <= 0
    ):  # a ratio of signed estimates means nothing
        return "", ""
    ratio = after / before - 1
    if abs(ratio) < 0.0005:
        return "same", "unchanged"
    better = (ratio < 0) == content.before.evaluation.results[name].metric.lower_is_better
    told = f"{'▼' if ratio < 0 else '▲'} {percent(abs(ratio), 1 if abs(ratio) < 0.1 else 0)}"
    return "better" if better else "worse", told


def reliability(content: Content) -> dict[str, dict[str, Chart]]:
    """Return the diagrams of P(positive) or of the predicted class, by view and side."""
    labels = ("stated confidence", "share right")
    axis = Axis()
    if content.binary:
        labels = (f"stated {content.event}", "observed rate")
        axis = charts.probability_axis(
            *(s.probs[:, content.positive] for s in content.sides.values())
        )
    sides = content.sides.items()
    return {
        view: {
            side: charts.reliability_chart(s.curves[view], side, axis, labels) for side, s in sides
        }
        for view in VIEWS
    }


def shown_bins(curve: ReliabilityCurve) -> list[int]:
    """Return the bins with rows, at most 24 of them."""
    full = np.flatnonzero(curve.weight > 0)
    some = np.unique(np.linspace(0, len(full) - 1, min(len(full), 24)).astype(int))
    return [int(b) for b in full[some]]


def mapping(content: Content) -> Chart | None:
    """Return a chart of P(positive), or of the predicted class's probability, after calibration against before."""
    if content.after is None:
        return None
    rows = np.arange(len(content.y))
    column = content.positive if content.binary else content.before.probs.argmax(axis=1)
    p, q = (s.probs[rows, column].astype(np.float64) for s in content.sides.values())
    return charts.probability_map(p, q, content.event if content.binary else "confidence")


def decisions(content: Content) -> Table | None:
    """Return the certified rates of rows at or above thresholds; None without a certificate."""
    certificate = content.final.evaluation.certificate
    if certificate is None:
        return None
    table, failure = certificate.headline.table, 1 - content.confidence
    if content.binary:
        return _positive_thresholds(content, table, failure)
    tails = threshold_table(table, failure)
    rows = [
        [f"{at:g}", percent(share), f"{percent(low)} – {percent(high)}"]
        for at, share, low, high, n in zip(
            tails.at, tails.share, tails.low, tails.high, tails.rows, strict=True
        )
        if n > 0
    ]
    return ["at or above", "of rows", "right (certified)"], rows


def thresholds(content: Content, table: EventTable) -> dict[float, str]:
    """Return the thresholds of P(positive) at which decisions are made, each with its reason."""
    found: dict[float, str] = {}
    above = table.n - table.ends[:-1]  # rows at or above each value
    for share in (0.5, 0.2, 0.1, 0.05, 0.01):  # of the rows, most probable first
        place = int(np.searchsorted(-above, -share * table.n, side="left"))
        if place < len(table.low):
            found[float(table.low[place])] = f"top {100 * share:g} % of rows"
    positives = table.prefix[1][-1] - table.prefix[1][:-1]
    if positives[0] > 0:
        best = int((2 * positives / (above + positives[0])).argmax())
        found[float(table.low[best])] = "largest F1"
    if content.cost:
        least = LeastCost(*check_costs(content.cost))
        curve = ThresholdCurve(table.low, table.count, table.happened)
        found[least.theory] = "fp / (fp + fn)"
        found[curve.threshold(int(least.choose(curve.counts)))] = least.words().removeprefix("the ")
    return found | dict.fromkeys(content.threshold, "yours")


def _positive_thresholds(content: Content, table: EventTable, failure: float) -> Table:
    chosen = dict(sorted(thresholds(content, table).items()))
    tails = threshold_table(table, failure, tuple(chosen))
    name, total = content.names[content.positive], float(table.prefix[1][-1])
    curve = ThresholdCurve(table.low, table.count, table.happened)
    rows = []
    for i, (at, why) in enumerate(chosen.items()):
        if tails.rows[i] < 1:
            continue
        hits = tails.observed[i] * tails.rows[i]
        reach = f"{percent(tails.observed[i])} ({percent(tails.low[i])} – {percent(tails.high[i])})"
        found = percent(hits / total) if total else "–"
        rows.append([f"{at:.3g}", why, percent(tails.share[i]), reach, found])
        if content.cost:
            cost = curve.counts.cost(*check_costs(content.cost))[curve.cut_of(at)]
            rows[-1].append(f"{1000 * cost:,.0f}")
    head = ["at or above", "why", "rows", f"truly {name}", f"of all {name}"]
    return head + (["cost of 1,000 rows"] if content.cost else []), rows


def net_benefit(content: Content) -> Chart | None:
    """Return the decision curve of two classes: net benefit of the model, of treating all and of treating none."""
    if content.final.evaluation.clinical is None:
        return None
    p = content.final.probs[:, content.positive].astype(np.float64)
    at = np.linspace(0, min(charts.probability_axis(p).high, 0.99), 100)[1:]
    found = clinical(p, content.y == content.positive, thresholds=at).net_benefit
    lines = {
        "all": found.treat_all,
        "none": np.zeros_like(at),
        list(content.sides)[-1]: found.model,
    }
    return charts.net_benefit_chart(at, lines)


def classes(content: Content) -> list[dict[str, Any]]:
    """Return the rows of the table of classes, the worst first, if there are more than two; ``tone`` is a colour."""
    certificate = content.final.evaluation.certificate
    if certificate is None or certificate.classes is None:
        return []
    found, n = certificate.classes, certificate.n
    gap = found.stated - found.frequency
    chance = 2 * np.sqrt(np.maximum(found.stated, 1e-12) / n)
    heat = gap / np.maximum(class_tolerance(found.frequency, 0.05), chance)
    rows = []
    for k in np.lexsort((-np.abs(heat), -found.at_least)).tolist():
        r = found.refutations.get(k)
        cells = [
            f"{n * found.frequency[k]:,.0f}",
            percent(found.stated[k], 2),
            percent(found.frequency[k], 2),
        ]
        rows.append(
            {
                "name": content.names[k],
                "cells": cells,
                "tone": f"{'over' if gap[k] > 0 else 'under'}{min(int(abs(heat[k]) * 2), 4)}",
                "gap": f"{100 * gap[k]:+.2f}",
                "proven": f"by at least {100 * r.at_least:.1f} points, {r.rows:,} rows"
                if r
                else "",
            }
        )
    return rows


def facts(content: Content) -> dict[str, str]:
    """Return the calibrator's parameters, the notes of its fit and all versions, to reproduce the report."""
    found: dict[str, Any] = {}
    if (c := content.calibrator) is not None:
        found = {f"Parameter {k}": v for k, v in c.get_params(deep=False).items()}
        found |= {k.capitalize().replace("_", " "): v for k, v in c.fit_.to_json().items()}
    plain = {
        k: v
        if isinstance(v, str)
        else f"{v:.6g}"
        if isinstance(v, float)
        else json.dumps(v, default=str)
        for k, v in found.items()
    }
    versions = [f"hcal {__version__}", f"python {platform.python_version()}"]
    versions += [
        f"{name} {version(name)}" for name in ("numpy", "scipy", "torch") if find_spec(name)
    ]
    return {k: v for k, v in plain.items() if len(v) <= 160} | {"Versions": ", ".join(versions)}


def class_rows(content: Content) -> str:
    """Return the number of rows of each class in words; of many classes only the range."""
    counts = content.counts
    if len(counts) > 12:
        return f"{counts.min():,} to {counts.max():,}, median {np.median(counts):,.0f}"
    return ", ".join(f"{name}: {n:,}" for name, n in zip(content.names, counts, strict=True))
