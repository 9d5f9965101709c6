"""The tables and charts of the report's sections: reliability, decisions, segments, classes and metrics."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

import numpy as np

from hcal._version import __version__
from hcal.certificates import Certificate, EventCertificate
from hcal.certificates.event import class_tolerance
from hcal.certificates.sentences import points, subgroup_verdict
from hcal.certificates.windows import EventTable, threshold_table
from hcal.decisions.threshold_curve import LeastCost, ThresholdCurve, check_costs
from hcal.evaluation.axes import probability_axis, round_up
from hcal.evaluation.curves import Binning, ReliabilityCurve
from hcal.evaluation.result import Evaluation
from hcal.metrics.clinical import decision_curve
from hcal.numerics import Float64, FloatArray, IntArray
from hcal.reporting import charts
from hcal.reporting.charts import Chart
from hcal.reporting.content import VIEWS, Content
from hcal.reporting.sentences import percent
from hcal.text import JsonObject

#: The column heads of a table, and its rows.
HeadAndRows = tuple[list[str], list[list[str]]]
#: The most bins that a table lists, and the longest value of a parameter that is shown.
_BINS: Final = 24
_LONGEST_VALUE: Final = 160
#: Shares of the rows, the most probable first, whose thresholds are listed.
_TOP_SHARES: Final = (0.5, 0.2, 0.1, 0.05, 0.01)
#: The other packages whose versions are listed.
_PACKAGES: Final = ("numpy", "scipy", "torch", "numba")


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: its text, and the number by which the table is sorted."""

    text: str
    value: float


@dataclass(frozen=True)
class Row:
    """A row of a table of segments or classes: its name, its cells, and the class of its colour."""

    name: str
    cells: tuple[TableCell, ...]
    tone: str = ""
    off: bool = False


# -- metrics ----------------------------------------------------------------------------------------


def change(content: Content, name: str) -> tuple[str, str]:
    """Return whether calibration made a metric better or worse, and by how much in per cent."""
    before = content.before.evaluation[name]
    after = content.final.evaluation[name]
    # A ratio of signed estimates means nothing.
    if content.after is None or before <= 0 or after <= 0:
        return "", ""
    ratio = after / before - 1
    if abs(ratio) < 0.0005:
        return "same", "unchanged"
    lower_is_better = content.before.evaluation.results[name].metric.lower_is_better
    better = (ratio < 0) == lower_is_better
    arrow = "▼" if ratio < 0 else "▲"
    size = percent(abs(ratio), 1 if abs(ratio) < 0.1 else 0)
    return "better" if better else "worse", f"{arrow} {size}"


# -- reliability ------------------------------------------------------------------------------------


def reliability_charts(content: Content) -> dict[Binning, dict[str, Chart]]:
    """Return the diagrams of P(positive) or of the predicted class, by view and side."""
    labels = ("stated confidence", "share right")
    if content.binary:
        labels = (f"stated {content.event}", "observed rate")
    axis = probability_axis(*_judged(content), observed=_observed(content))
    diagrams: dict[Binning, dict[str, Chart]] = {}
    for view in VIEWS:
        diagrams[view] = {
            name: charts.reliability_chart(
                side.curves[view], name, axis, labels, sampled=content.sampled
            )
            for name, side in content.sides.items()
        }
    return diagrams


def _judged(content: Content) -> list[FloatArray]:
    """Return the probabilities that the report is about, one array a side."""
    if content.binary:
        positive = content.options.positive
        return [side.probs[:, positive] for side in content.sides.values()]
    return [side.probs.max(axis=1) for side in content.sides.values()]


def _observed(content: Content) -> Float64:
    """Return the frequencies of bins of equal mass, before and after, which the axis has to show."""
    curves = [side.curves["equal-mass"] for side in content.sides.values()]
    return np.concatenate([curve.observed[curve.weight > 0] for curve in curves])


def shown_bins(curve: ReliabilityCurve) -> list[int]:
    """Return the bins with rows, at most 24 of them."""
    full = np.flatnonzero(curve.weight > 0)
    places = np.linspace(0, len(full) - 1, min(len(full), _BINS))
    return [int(b) for b in full[np.unique(places.astype(int))]]


def mapping(content: Content) -> Chart | None:
    """Return a chart of P(positive), or of the predicted class's probability, after calibration against before."""
    if content.after is None:
        return None
    rows = np.arange(len(content.rows))
    column: int | IntArray = content.options.positive
    if not content.binary:
        column = content.before.probs.argmax(axis=1)
    before = content.before.probs[rows, column].astype(np.float64)
    after = content.after.probs[rows, column].astype(np.float64)
    return charts.probability_map(before, after, content.event if content.binary else "confidence")


# -- decisions --------------------------------------------------------------------------------------


def decisions(content: Content) -> HeadAndRows | None:
    """Return the certified rates of rows at or above thresholds; None without a certificate."""
    certificate = content.final.evaluation.certificate
    if certificate is None:
        return None
    table = certificate.headline.table
    failure = 1 - content.options.confidence
    if content.binary:
        return _positive_thresholds(content, table, failure)
    tails = threshold_table(table, failure)
    rows = []
    for i in np.flatnonzero(tails.rows > 0):
        interval = f"{percent(tails.low[i])} – {percent(tails.high[i])}"
        rows.append([f"{tails.at[i]:g}", percent(tails.share[i]), interval])
    return ["at or above", "of rows", "right (certified)"], rows


def decision_thresholds(content: Content, table: EventTable) -> dict[float, str]:
    """Return the thresholds of P(positive) at which decisions are made, each with its reason."""
    chosen: dict[float, str] = {}
    above = table.n - table.ends[:-1]  # rows at or above each value
    for share in _TOP_SHARES:
        place = int(np.searchsorted(-above, -share * table.n, side="left"))
        if place < len(table.low):
            chosen[float(table.low[place])] = f"top {100 * share:g} % of rows"
    positives = table.prefix[1][-1] - table.prefix[1][:-1]
    if positives[0] > 0:
        best = int((2 * positives / (above + positives[0])).argmax())
        chosen[float(table.low[best])] = "largest F1"
    if content.options.cost:
        least = LeastCost(*check_costs(content.options.cost))
        curve = ThresholdCurve(table.low, table.count, table.happened)
        chosen[least.theory] = "fp / (fp + fn)"
        cheapest = curve.threshold(int(least.choose(curve.counts)))
        chosen[cheapest] = least.words().removeprefix("the ")
    chosen |= dict.fromkeys(content.options.threshold, "yours")
    return dict(sorted(chosen.items()))


def _positive_thresholds(content: Content, table: EventTable, failure: float) -> HeadAndRows:
    """Return for each threshold the rows at or above it, their certified rate, and the share of all events."""
    chosen = decision_thresholds(content, table)
    tails = threshold_table(table, failure, tuple(chosen))
    total = float(table.prefix[1][-1])
    costs = content.options.cost
    curve = ThresholdCurve(table.low, table.count, table.happened)
    rows = []
    for i, (threshold, why) in enumerate(chosen.items()):
        if tails.rows[i] < 1:
            continue
        interval = f"({percent(tails.low[i])} – {percent(tails.high[i])})"
        caught = percent(tails.observed[i] * tails.rows[i] / total) if total else "–"
        row = [
            f"{threshold:.3g}",
            why,
            percent(tails.share[i]),
            f"{percent(tails.observed[i])} {interval}",
            caught,
        ]
        if costs:
            cost = curve.counts.cost(*check_costs(costs))[curve.cut_of(threshold)]
            row.append(f"{1000 * cost:,.0f}")
        rows.append(row)
    name = content.names[content.options.positive]
    heads = ["at or above", "why", "rows", f"truly {name}", f"of all {name}"]
    return heads + (["cost of 1,000 rows"] if costs else []), rows


def net_benefit(content: Content) -> Chart | None:
    """Return the decision curve of two classes: net benefit of the model, of treating all and of treating none."""
    if content.final.evaluation.clinical is None:
        return None
    positive = content.options.positive
    risk = content.final.probs[:, positive].astype(np.float64)
    highest = round_up(float(np.quantile(risk, 0.995)))
    levels = np.linspace(0, min(max(highest, 1e-3), 0.99), 100)[1:]
    benefit = decision_curve(risk, (content.y == positive).astype(np.float64), levels)
    lines = {
        "all": benefit.treat_all,
        "none": np.zeros_like(levels),
        list(content.sides)[-1]: benefit.model,
    }
    return charts.net_benefit_chart(levels, lines)


# -- segments and classes ---------------------------------------------------------------------------


def segments(content: Content) -> list[Row]:
    """Return the segments, those that are proven to be off first, the worst at the top."""
    evaluation = content.final.evaluation
    certificate = evaluation.certificate
    if certificate is None:
        return []
    off = _off_segments(evaluation)
    order = sorted(certificate.subgroups, key=lambda subgroup: subgroup.name not in off)
    return [_segment(subgroup, certificate, subgroup.name in off) for subgroup in order]


def _off_segments(evaluation: Evaluation) -> set[str]:
    assessment = evaluation.assessment
    if assessment is None or assessment.segments is None:
        return set()
    return {segment.name for segment in assessment.segments.segments}


def _segment(subgroup: EventCertificate, certificate: Certificate, off: bool) -> Row:
    low, high = subgroup.overall
    gap = subgroup.stated - subgroup.observed
    interval = f"{100 * low:+.1f} to {100 * high:+.1f} points"
    cells = (
        TableCell(f"{subgroup.n:,}", subgroup.n),
        TableCell(percent(subgroup.stated, 2), subgroup.stated),
        TableCell(percent(subgroup.observed, 2), subgroup.observed),
        TableCell(interval, gap),
        TableCell(_segment_verdict(subgroup, certificate.limit, off), subgroup.proven_gap),
    )
    tone = ""
    if off:
        tone = "over4" if gap > 0 else "under4"
    return Row(subgroup.name, cells, tone, off)


def _segment_verdict(subgroup: EventCertificate, limit: float, off: bool) -> str:
    """Return what is proven about a segment, or how many more rows would tell."""
    if off and not subgroup.proven:
        return "proven to be off in a part of its rows"
    return subgroup_verdict(subgroup, limit)


def classes(content: Content) -> list[Row]:
    """Return the rows of the table of classes, the worst first, if there are more than two."""
    evaluation = content.final.evaluation
    certificate = evaluation.certificate
    if certificate is None or certificate.classes is None:
        return []
    proofs = certificate.classes
    gap = proofs.stated - proofs.frequency
    chance = 2 * np.sqrt(np.maximum(proofs.stated, 1e-12) / certificate.n)
    heat = gap / np.maximum(class_tolerance(proofs.frequency, certificate.tolerance), chance)
    off = _off_classes(evaluation)
    rows = []
    for k in np.lexsort((-np.abs(heat), -proofs.at_least)).tolist():
        count = float(certificate.n * proofs.frequency[k])
        refutation = proofs.refutations.get(k)
        proven = ""
        is_off = proofs.title(k) in off
        if refutation is not None:
            proven = f"by at least {points(refutation.at_least)}, {refutation.rows:,} rows"
            proven += "" if is_off else " (tolerated)"
        cells = (
            TableCell(f"{count:,.0f}", count),
            TableCell(percent(proofs.stated[k], 2), float(proofs.stated[k])),
            TableCell(percent(proofs.frequency[k], 2), float(proofs.frequency[k])),
            TableCell(f"{100 * gap[k]:+.2f}", float(gap[k])),
            TableCell(proven, float(proofs.at_least[k])),
        )
        direction = "over" if gap[k] > 0 else "under"
        tone = f"{direction}{min(int(abs(heat[k]) * 2), 4)}"
        rows.append(Row(content.names[k], cells, tone, is_off))
    return rows


def _off_classes(evaluation: Evaluation) -> set[str]:
    assessment = evaluation.assessment
    if assessment is None or assessment.classes is None:
        return set()
    return {part.name for part in assessment.classes.classes}


# -- to do it again ---------------------------------------------------------------------------------


def facts(content: Content) -> dict[str, str]:
    """Return the calibrator's parameters, the record of its fit and all versions, to reproduce the report."""
    values: JsonObject = {}
    calibrator = content.calibrator
    if calibrator is not None:
        parameters = calibrator.get_params(deep=False)
        values |= {f"Parameter {name}": value for name, value in parameters.items()}
        record = calibrator.fit_.to_json()
        values |= {f"Fit: {name.replace('_', ' ')}": value for name, value in record.items()}
    texts = {name: _fact(value) for name, value in values.items()}
    kept = {name: text for name, text in texts.items() if 0 < len(text) <= _LONGEST_VALUE}
    return kept | {"Versions": ", ".join(f"{name} {text}" for name, text in versions().items())}


def versions() -> dict[str, str]:
    """Return the versions of hcal, of Python, and of the packages that the numbers depend on."""
    packages = {name: version(name) for name in _PACKAGES if find_spec(name)}
    return {"hcal": __version__, "python": platform.python_version(), **packages}


def _fact(value: object) -> str:
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, default=str)


def report_options(content: Content) -> JsonObject:
    """Return the options of the report as plain values."""
    options = content.options
    return {
        "confidence": options.confidence,
        "positive": options.positive,
        "threshold": list(options.threshold),
        "cost": dict(options.cost),
        "by": None if content.rows.by is None else content.rows.by.title,
        "groups": content.rows.groups is not None,
        "cross_fit": content.crossed is not None,
    }
