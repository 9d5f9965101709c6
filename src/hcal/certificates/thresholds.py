"""Certified thresholds: how many rows lie at or above a confidence, and how often they are right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.certificates.bounds import kl_interval
from hcal.certificates.table import EventTable
from hcal.numerics import Float64 as Vector

#: Confidences that people set thresholds at.
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
COVERAGES = tuple(round(0.05 * i, 2) for i in range(1, 21))


@dataclass(frozen=True)
class Tails:
    """Rows at or above each of several claims; arrays of shape (T,)."""

    at: Vector  # smallest claim
    share: Vector  # share of the rows (coverage)
    rows: Vector
    observed: Vector  # frequency of the event among them; NaN where there is no row
    low: Vector  # interval of their true mean probability; all hold at once
    high: Vector


def threshold_table(table: EventTable, failure: float, at: tuple[float, ...] = THRESHOLDS) -> Tails:
    """Certify the rows at or above each threshold, all thresholds at once.

    >>> from hcal.certificates.table import table_of_rows
    >>> p = np.repeat([0.6, 0.95], 500)
    >>> found = threshold_table(table_of_rows(p, np.ones(1000)), 0.05, (0.5, 0.9))
    >>> found.share.tolist(), found.low.round(3).tolist()
    ([1.0, 0.5], [0.996, 0.991])
    """
    first = np.searchsorted(table.low, np.asarray(at), side="left")
    return _tails(table, np.asarray(at, dtype=np.float64), first, failure)


def risk_coverage(table: EventTable, failure: float) -> Tails:
    """Certify the most confident 5 %, 10 %, … 100 % of the rows, all at once; ties are kept together.

    >>> from hcal.certificates.table import table_of_rows
    >>> p = np.linspace(0.5, 1, 1000)
    >>> len(risk_coverage(table_of_rows(p, np.ones(1000)), 0.05).share)
    20
    """
    left = table.n - np.asarray(COVERAGES) * table.n
    first = np.unique(
        np.minimum(np.searchsorted(table.ends, left + 1e-9, side="right") - 1, len(table.low) - 1)
    )
    return _tails(table, table.low[first[::-1]], first[::-1], failure)


def _tails(table: EventTable, at: Vector, first: Any, failure: float) -> Tails:
    rows = table.n - table.ends[first]
    happened = table.prefix[1][-1] - table.prefix[1][first]
    some = np.maximum(rows, 1)
    observed = np.clip(happened / some, 0, 1)
    low, high = kl_interval(observed, np.log(2 * len(at) / failure) / some)
    empty = rows < 0.5
    nothing = np.where(empty, np.nan, observed)
    return Tails(at, rows / table.n, rows, nothing, np.where(empty, 0.0, low), np.where(empty, 1.0, high))
