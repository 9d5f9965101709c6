"""What every threshold decides, catches and costs, as data that the page's slider computes with.

The curve is that of :func:`hcal.thresholds`, at no more than some hundreds of cuts. Every figure of the slider is a
function of three means over rows: whether an event happened, whether the row is decided, and whether both are true.
So their covariance at each cut gives every interval, for all costs. Rows of one group count together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from hcal.decisions.resampled_counts import coarse_cuts
from hcal.decisions.rules import check_costs
from hcal.decisions.threshold_curve import LeastCost, ThresholdCurve
from hcal.numerics import Float64, IntArray
from hcal.reporting.content import Content
from hcal.text import JsonObject


@dataclass(frozen=True)
class WhatIf:
    """The data of the slider.

    Attributes
    ----------
    event, unit : str
        What happens or not, and which probability the threshold is about.
    threshold, decided, caught : array of shape (C,)
        Ascending thresholds; rows at or above each, and events among them.
    lowest : array of shape (C - 1,)
        The lowest probability at or above each threshold but the last.
    covariance : array of shape (C, 5)
        Variances and covariances of the totals: decided, caught, decided with caught, event with decided, event with
        caught. The variance of the events alone is ``event_variance``.
    event_variance : float
    first : int
        The cut that the slider starts at.
    cost : dict of float
    z, confidence : float
        Of the intervals.
    sampled : str
        The size of the sample in words; empty if these are all rows.
    """

    event: str
    unit: str
    threshold: Float64
    decided: Float64
    caught: Float64
    lowest: Float64
    covariance: Float64
    event_variance: float
    first: int
    cost: dict[str, float]
    z: float
    confidence: float
    sampled: str = ""

    @property
    def data(self) -> str:
        """The numbers as JSON, for an attribute of the page."""
        numbers: JsonObject = {"d": _rounded(self.decided), "c": _rounded(self.caught)}
        numbers["t"] = _with_digits(self.threshold, 7)
        numbers["p"] = _with_digits(self.lowest, 7)
        numbers["v"] = [_with_digits(row, 5) for row in self.covariance]
        numbers["e"] = float(f"{self.event_variance:.5g}")
        numbers["z"] = self.z
        return json.dumps(numbers, separators=(",", ":"))


def what_if(content: Content) -> WhatIf | None:
    """Return the data of the slider; None where all rows have the same outcome."""
    positive = content.options.positive
    probs = content.final.probs
    if content.binary:
        risk = probs[:, positive].astype(np.float64)
        event = (content.y == positive).astype(np.float64)
    else:
        risk = probs.max(axis=1).astype(np.float64)
        event = (probs.argmax(axis=1) == content.y).astype(np.float64)
    if not 0 < event.sum() < len(event):
        return None
    curve = ThresholdCurve.of_rows(risk, event)
    costs = LeastCost(*check_costs(content.options.cost or {"fn": 1, "fp": 1}))
    best = int(costs.choose(curve.counts))
    chosen = [curve.cut_of(threshold) for threshold in content.options.threshold]
    start = chosen[0] if chosen else best
    cuts = coarse_cuts(curve, best, *chosen)
    counts = curve.counts.at(cuts)
    covariance, event_variance = _covariance(curve, cuts, risk, event, content.rows.groups)
    sampled = ""
    if content.sampled:
        sampled = f"a sample of {len(content.rows):,} of {content.n:,} rows"
    return WhatIf(
        event=content.names[positive] if content.binary else "right",
        unit=content.event if content.binary else "confidence",
        threshold=np.array([curve.threshold(int(cut)) for cut in cuts]),
        decided=counts.decided,
        caught=counts.caught,
        lowest=curve.value[cuts[:-1]],
        covariance=covariance,
        event_variance=event_variance,
        first=int(np.searchsorted(cuts, start)),
        cost={"fn": costs.fn, "fp": costs.fp},
        z=float(ndtri((1 + content.options.confidence) / 2)),
        confidence=content.options.confidence,
        sampled=sampled,
    )


def _covariance(
    curve: ThresholdCurve, cuts: IntArray, risk: Float64, event: Float64, groups: IntArray | None
) -> tuple[Float64, float]:
    """Return the variances and covariances of the totals at each cut (C, 5), and the variance of the events."""
    counts = curve.counts.at(cuts)
    n_rows = float(counts.decided[0])
    events = float(counts.caught[0])
    decided = counts.decided
    caught = counts.caught
    if groups is None:
        rate = decided / n_rows
        columns = [
            decided * (1 - rate),
            caught * (1 - caught / n_rows),
            caught * (1 - rate),
            caught - events * rate,
            caught * (1 - events / n_rows),
        ]
        return np.stack(columns, axis=1), events * (1 - events / n_rows)
    cell = np.searchsorted(curve.value[cuts[:-1]], risk, side="right") - 1
    return _covariance_of_groups(cell, event, groups, len(cuts) - 1)


def _covariance_of_groups(
    cell: IntArray, event: Float64, groups: IntArray, n_cells: int
) -> tuple[Float64, float]:
    """Return the same from the totals of whole groups; ``cell`` says between which two cuts each row lies."""
    group = np.unique(groups, return_inverse=True)[1]
    count = int(group.max()) + 1
    share = np.bincount(group) / len(group)
    order = np.argsort(cell, kind="stable")
    ends = np.searchsorted(cell[order], np.arange(n_cells + 1))
    decided = np.bincount(group).astype(np.float64)
    caught = np.bincount(group, event)
    events = caught - share * caught.sum()
    rows = []
    for i in range(n_cells):
        # A group is compared with what its share of the rows would decide and catch.
        d = decided - share * decided.sum()
        c = caught - share * caught.sum()
        rows.append([d @ d, c @ c, d @ c, events @ d, events @ c])
        passed = order[ends[i] : ends[i + 1]]
        decided -= np.bincount(group[passed], minlength=count)
        caught -= np.bincount(group[passed], event[passed], minlength=count)
    rows.append([0.0] * 5)
    inflation = count / max(count - 1, 1)
    return inflation * np.array(rows), float(inflation * (events @ events))


def _with_digits(values: Float64, digits: int) -> list[float]:
    """Return numbers with so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in values]


def _rounded(values: Float64) -> list[float | int]:
    return [int(value) if float(value).is_integer() else float(value) for value in values]
