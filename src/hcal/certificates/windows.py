"""Windows of neighbours at every resolution, each with an interval of its true gap; all hold at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcal.certificates.bounds import kl_interval, largest_variance
from hcal.certificates.table import EventTable
from hcal.metrics.sample import Vector
from hcal.numerics import IntArray

#: The finest windows hold about this many rows (the paper's M).
SMALLEST = 200


@dataclass(frozen=True)
class Windows:
    """Windows of one event at all resolutions, level by level, aligned ones before shifted ones.

    Or of many classes: then all but ``level`` and ``aligned`` have one row a class.
    """

    #: (W,): 0 for all rows, 1 for halves, 2 for quarters, …; −1 for single values of a discrete predictor.
    level: IntArray
    #: (W,): whether the window is one of the level's partition, rather than shifted by half a window.
    aligned: Vector
    first: IntArray  # (W,): groups of the table, ``last`` excluded
    last: IntArray
    rows: Vector  # (W,)
    stated: Vector  # (W,): mean claim, and frequency of the event
    observed: Vector
    low: Vector  # (W,): interval of the true mean probability of the window's rows
    high: Vector

    def of_class(self, i: int) -> Windows:
        """Return the windows of one of many classes."""
        rows = (self.first, self.last, self.rows, self.stated, self.observed, self.low, self.high)
        return Windows(self.level, self.aligned, *(x[i] for x in rows))

    @property
    def gap_low(self) -> Vector:
        """Lower end of the interval of mean claim − mean truth."""
        return self.stated - self.high

    @property
    def gap_high(self) -> Vector:
        """Upper end of the interval of mean claim − mean truth."""
        return self.stated - self.low

    @property
    def at_most(self) -> Vector:
        """How far off each window can be."""
        return np.maximum(np.abs(self.gap_low), np.abs(self.gap_high))

    @property
    def at_least(self) -> Vector:
        """How far off each window is proven to be; 0 where it may be right."""
        return np.maximum(np.maximum(self.gap_low, -self.gap_high), 0.0)

    def worst(self, level: int) -> float:
        """Return the bound that holds for every window of a level."""
        return float(self.at_most[self.level == level].max())

    @property
    def levels(self) -> list[int]:
        """The resolutions, coarsest first."""
        return sorted({int(v) for v in np.unique(self.level) if v >= 0})


def deepest_level(n: float) -> int:
    """Return L = ⌊log2(n / 200)⌋, 0 below 400 rows.

    >>> deepest_level(399), deepest_level(400), deepest_level(20000)
    (0, 1, 6)
    """
    return max(int(np.floor(np.log2(n / SMALLEST))), 0) if n >= 2 * SMALLEST else 0


def discrete_values(table: EventTable) -> bool:
    """Return whether the claims take so few values that each value can be certified by itself."""
    return table.exact and len(table.count) >= 2 and len(table.count) * 20 <= table.n


def find_windows(table: EventTable, failure: float) -> Windows:
    """Return all windows with intervals that hold together but for the given probability of failure.

    >>> from hcal.certificates.table import table_of_rows
    >>> p = np.linspace(0.5, 1, 400)
    >>> found = find_windows(table_of_rows(p, np.ones(400)), 0.025)
    >>> found.level.tolist(), found.rows.tolist()
    ([0, 1, 1, 1], [400.0, 200.0, 200.0, 200.0])
    """
    deepest = deepest_level(table.n)
    values = discrete_values(table)
    families = deepest + 1 + values
    parts = [_level(table, level) for level in range(deepest + 1)]
    logs = [np.full(len(p[0]), np.log(2 * len(p[0]) * families / failure)) for p in parts]
    level = [np.full(len(p[0]), i) for i, p in enumerate(parts)]
    if values:
        each = np.arange(len(table.count))
        parts.append((each, each + 1, np.ones(len(each))))
        logs.append(np.full(len(each), np.log(2 * len(each) * families / failure)))
        level.append(np.full(len(each), -1))
    first, last, aligned = (np.concatenate([p[i] for p in parts]) for i in range(3))
    rows, claimed, happened = (x[last] - x[first] for x in (table.ends, *table.prefix))
    # Prefix sums round: a frequency must not leave [0, 1].
    observed = np.clip(happened / rows, 0.0, 1.0)
    low, high = kl_interval(observed, np.concatenate(logs) / rows)
    return Windows(np.concatenate(level), aligned, first, last, rows, claimed / rows, observed, low, high)


def _level(table: EventTable, level: int) -> tuple[IntArray, IntArray, Vector]:
    """Groups where the windows of a level start and end; equal mass, moved to the nearest end of a group."""
    pieces = 2**level
    cuts = np.arange(2 * pieces + 1) * (table.n / (2 * pieces))
    after = np.searchsorted(table.ends, cuts, side="left").clip(0, len(table.ends) - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.where(cuts - table.ends[before] < table.ends[after] - cuts, before, after)
    nearer[0], nearer[-1] = 0, len(table.ends) - 1
    even, odd = nearer[::2], nearer[1::2]
    first = np.concatenate([even[:-1], odd[:-1]])
    last = np.concatenate([even[1:], odd[1:]])
    aligned = np.concatenate([np.ones(pieces), np.zeros(pieces - 1)])
    full = last > first  # ties can leave a window without rows
    return first[full], last[full], aligned[full]


def variance_bound(windows: Windows) -> Vector:
    """Return an upper bound on Σ q(1 − q) that holds whenever the windows' intervals do; one a class.

    In each window Σ q(1 − q) ≤ m·q̄(1 − q̄) (Jensen): every level's partition gives a bound; the least counts.
    """
    each = windows.rows * largest_variance(windows.low, windows.high) * windows.aligned
    levels = (each[..., windows.level == level].sum(axis=-1) for level in np.unique(windows.level))
    return np.asarray(np.min(list(levels), axis=0))
