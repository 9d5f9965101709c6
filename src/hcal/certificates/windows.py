"""The confidence statements about one event: its table, its windows, the cumulative curve and a monotone band.

Claims p, marks c and true probabilities q are those of :mod:`hcal.certificates.event`. *The table* groups rows by their
claim: distinct values, or fine bins that can be added up over blocks and machines. Windows and points of the curve
never split a group, so the order of rows in a file has no influence. Bin edges do not depend on the labels, so bounds
from bins are as valid as from the rows.

*Windows* hold neighbouring claims at every resolution, each with Chernoff's interval of its mean q; all intervals hold
simultaneously by a union bound. *The curve* G(t) = (1/n) Σ_{p ≤ t} (p − q) has a band that holds for all t
simultaneously, by Bennett's and Ville's inequalities. *Groups* of dependent rows have bounds of their own: see
:mod:`hcal.certificates.dependent`. *The monotone band* of q(p) needs an assumption: if q never falls
as p rises, then q at a window's first claim is at most the window's mean, and q at its last claim at least that, so
the windows' intervals give a band at no further cost (after Dimitriadis et al., Biometrika 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.certificates.bounds import bennett, kl_interval, largest_variance
from hcal.certificates.dependent import DependentRows
from hcal.numerics import Float64 as Vector
from hcal.numerics import IntArray, prefix_sums, run_starts
from hcal.text import JsonObject

#: Whether an event happened, by row: as 0 and 1, or as marks.
Marks = Vector | NDArray[np.bool_]

#: Bins of a stream in each interval [2^−(i+1), 2^−i) below ½, and in its mirror image above ½.
PER_OCTAVE = 64
_OCTAVES = 32
_SHIFT = 23 - 6  # a float32 stores 23 bits of its fraction; the top 6 choose the bin
_HALF = int(np.float32(0.5).view(np.int32)) >> _SHIFT
_SIDE = PER_OCTAVE * _OCTAVES
BINS = 2 * _SIDE + 1
#: The finest windows hold about this many rows (the paper's M).
SMALLEST = 200
#: Common choices of a confidence threshold.
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class EventTable:
    """Claims and marks of one event, grouped by claim, in ascending order."""

    count: Vector  # (G,): rows of each group
    claimed: Vector  # (G,): sum of the claimed probabilities p
    happened: Vector  # (G,): how often the event happened
    #: (G,): smallest and largest claim of the group; equal if the group is a single value
    low: Vector
    high: Vector
    members: DependentRows | None = None  # which rows depend on each other; None if none do

    @classmethod
    def of_rows(cls, p: Vector, c: Marks, members: IntArray | None = None) -> EventTable:
        """Group rows by their claimed probability p (N,); marks c (N,) are 0 or 1.

        ``members`` (N,) are the numbers of groups of dependent rows.

        >>> EventTable.of_rows(np.array([0.5, 0.2, 0.5]), np.array([1.0, 0.0, 0.0])).happened
        array([0., 1.])
        """
        order = np.argsort(p)
        claims = p[order].astype(np.float64)
        marks = c[order].astype(np.float64)
        first = run_starts(claims)
        count = np.diff(np.append(first, len(claims))).astype(np.float64)
        happened = np.add.reduceat(marks, first)
        value = claims[first]
        dependent = None if members is None else DependentRows(members[order], claims - marks)
        return cls(count, value * count, happened, value, value, dependent)

    @classmethod
    def of_bins(cls, count: Vector, claimed: Vector, happened: Vector) -> EventTable:
        """Make a table from the counts and sums (BINS,) of a stream; empty bins are left out."""
        full = np.flatnonzero(count)
        return cls.of_some_bins(full, count[full], claimed[full], happened[full])

    @classmethod
    def of_some_bins(
        cls, bins: IntArray, count: Vector, claimed: Vector, happened: Vector
    ) -> EventTable:
        """Make a table from the counts and sums of bins that hold rows, in ascending order."""
        low, high = bin_edges()
        return cls(count, claimed, happened, low[bins], high[bins])

    @property
    def n(self) -> float:
        """Number of rows."""
        return float(self.ends[-1])

    @property
    def n_groups(self) -> int | None:
        """Number of groups of dependent rows; None if all rows are independent."""
        return None if self.members is None else self.members.n_groups

    @cached_property
    def ends(self) -> Vector:
        """Number of rows before and up to the end of each group, starting with 0, shape (G + 1,)."""
        return prefix_sums(self.count)

    @cached_property
    def prefix(self) -> tuple[Vector, Vector]:
        """Prefix sums of p and of c, starting with 0, shape (G + 1,) each."""
        return prefix_sums(self.claimed), prefix_sums(self.happened)

    @property
    def discrete(self) -> bool:
        """Whether the claims take so few values that each can be certified on its own (20 rows a value or more)."""
        single = bool((self.low == self.high).all())
        return single and 2 <= len(self.count) <= self.n / 20


def bin_of(p: NDArray[np.floating]) -> NDArray[np.int32]:
    """Return the stream bin of each probability, read from the bits of its float32.

    >>> bin_of(np.array([0.0, 1e-9, 0.25, 0.5, 0.75, 1.0])).tolist()
    [0, 196, 1984, 2048, 2112, 4096]
    """
    upper = p > 0.5
    small = np.where(upper, 1 - p, p).astype(np.float32)  # 1 − p is exact above one half
    index = np.maximum((small.view(np.int32) >> _SHIFT) - (_HALF - _SIDE), 0)
    return np.asarray(np.where(upper, 2 * _SIDE - index, index), dtype=np.int32)


def bin_edges() -> tuple[Vector, Vector]:
    """Return the smallest and largest probability of every stream bin, shape (BINS,) each.

    >>> low, high = bin_edges()
    >>> float(low[0]), float(high[-1])
    (0.0, 1.0)
    """
    bits = (np.arange(_SIDE + 1, dtype=np.int32) + (_HALF - _SIDE)) << _SHIFT
    edge = bits.view(np.float32).astype(
        np.float64
    )  # the lower edges of the bins below ½; the last is ½ itself
    edge[0] = 0.0
    # ½ has a bin of its own. An upper bin is the mirror image of a lower one.
    low = np.concatenate([edge[:-1], [0.5], 1 - edge[:0:-1]])
    high = np.concatenate([edge[1:], [0.5], 1 - edge[-2::-1]])
    return low, high


# -- windows, curve and band -----------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Windows of one event at all levels of resolution, level by level; aligned windows come before shifted ones."""

    #: (W,): 0 for all rows, 1 for halves, 2 for quarters, …; −1 for single values of a discrete predictor.
    level: IntArray
    #: (W,): whether the window is one of the level's partition, rather than shifted by half a window.
    aligned: Vector
    first: IntArray  # (W,): first group of the table, and the one after the last
    last: IntArray
    rows: Vector  # (W,)
    stated: Vector  # (W,): mean claim, and frequency of the event
    observed: Vector
    low: Vector  # (W,): confidence interval of the window's mean q
    high: Vector

    @property
    def at_most(self) -> Vector:
        """Upper bound on the absolute gap of each window."""
        above = np.abs(self.stated - self.low)
        below = np.abs(self.stated - self.high)
        return np.maximum(above, below)

    @property
    def at_least(self) -> Vector:
        """Lower bound on the absolute gap of each window; 0 if its interval contains the mean claim."""
        return np.maximum(np.maximum(self.stated - self.high, self.low - self.stated), 0.0)


def deepest_level(n: float) -> int:
    """Return the finest level of windows of n rows, L = ⌊log2(n / 200)⌋; 0 below 400 rows.

    >>> deepest_level(399), deepest_level(400), deepest_level(20000)
    (0, 1, 6)
    """
    return max(int(np.log2(n / SMALLEST)), 0)


def find_windows(table: EventTable, failure: float) -> Windows:
    """Return all windows with Chernoff's intervals of their mean q.

    Level ℓ has 2^ℓ windows of equal mass, and as many less one shifted by half a window. Given the predictions, the
    marks must be independent. By a union bound all intervals hold together but with probability ``failure``.

    >>> p = np.linspace(0.5, 1, 400)
    >>> found = find_windows(EventTable.of_rows(p, np.ones(400)), 0.025)
    >>> found.level.tolist(), found.rows.tolist()
    ([0, 1, 1, 1], [400.0, 200.0, 200.0, 200.0])
    """
    levels = list(range(deepest_level(table.n) + 1))
    parts = [_level(table, level) for level in levels]
    if table.discrete:
        values = np.arange(len(table.count))
        levels.append(-1)
        parts.append((values, values + 1, np.ones(len(values))))
    sizes = np.array([len(first) for first, _, _ in parts])
    first, last, aligned = (np.concatenate(column) for column in zip(*parts, strict=True))
    claimed, happened = table.prefix
    rows = table.ends[last] - table.ends[first]
    stated = (claimed[last] - claimed[first]) / rows
    # Rounding of the prefix sums must not move a frequency outside [0, 1].
    observed = np.clip((happened[last] - happened[first]) / rows, 0.0, 1.0)
    # Union bound: levels share the failure equally, and so do the windows of a level and their two sides.
    logs = np.repeat(np.log(2 * sizes * len(sizes) / failure), sizes)
    if table.members is None:
        low, high = kl_interval(observed, logs / rows)
    else:
        spans = np.stack([table.ends[first], table.ends[last]]).astype(np.int64)
        low, high = table.members.intervals(spans, stated, observed, logs)
    level = np.repeat(levels, sizes)
    return Windows(level, aligned, first, last, rows, stated, observed, low, high)


def _level(table: EventTable, level: int) -> tuple[IntArray, IntArray, Vector]:
    """Return first and last group of the windows of a level: equal mass, with ends moved to the nearest group."""
    pieces = 2**level
    cuts = np.arange(2 * pieces + 1) * (table.n / (2 * pieces))
    middles = (table.ends[1:] + table.ends[:-1]) / 2
    nearest = np.searchsorted(middles, cuts, side="right")
    even = nearest[::2]
    odd = nearest[1::2]
    first = np.concatenate([even[:-1], odd[:-1]])
    last = np.concatenate([even[1:], odd[1:]])
    aligned = np.concatenate([np.ones(pieces), np.zeros(pieces - 1)])
    full = last > first  # with many ties some windows are empty
    return first[full], last[full], aligned[full]


def variance_bound(windows: Windows) -> float:
    """Return an upper bound on Σ q(1 − q), the variance of the marks, that holds whenever the windows' intervals do.

    In a window of m rows Σ q(1 − q) ≤ m·q̄(1 − q̄) (Jensen), and q̄ lies in the window's interval. The aligned windows
    of each level are a partition of the rows, so each level gives a bound; this is the smallest.
    """
    variances = windows.rows * largest_variance(windows.low, windows.high) * windows.aligned
    levels = np.unique(windows.level)
    return min(float(variances[windows.level == level].sum()) for level in levels)


@dataclass(frozen=True)
class Band:
    """The cumulative curve G(t) = (1/n) Σ_{p ≤ t} (p − q): its estimate and its simultaneous confidence band."""

    at: Vector  # (G,): the claims t where the curve changes
    estimate: Vector  # (G,): Ĝ(t), with c in place of q
    low: Vector  # (G,): band of G(t)
    high: Vector
    half_width: float  # half the width of the band: |Ĝ(t) − G(t)| is at most this for all t
    smooth: float  # upper bound on the smooth calibration error

    @property
    def refutes(self) -> bool:
        """Whether exact calibration (G = 0 everywhere) is refuted."""
        return bool((self.low > 1e-12).any() or (self.high < -1e-12).any())

    def to_dict(self) -> JsonObject:
        """Return the curve and its band as plain lists."""
        return thinned(self, "at", "estimate", "low", "high")


def find_band(table: EventTable, windows: Windows, failure: float) -> Band:
    """Return the cumulative curve with its band, by Bennett's inequality along the sorted rows and Ville's for all t.

    Given the predictions, the marks must be independent. If the windows' intervals hold, which bound the variance and
    the end of the curve, the band holds for all t but with probability ``failure``.

    >>> table = EventTable.of_rows(np.linspace(0.5, 1, 400), np.ones(400))
    >>> round(find_band(table, find_windows(table, 0.025), 0.025).half_width, 3)
    0.02
    """
    n = table.n
    claimed, happened = table.prefix
    estimate = (claimed - happened)[1:] / n
    if table.members is None:
        half_width = float(bennett(variance_bound(windows), float(np.log(2 / failure)))) / n
        low = estimate - half_width
        high = estimate + half_width
    else:
        low, high = table.members.band(table.ends, claimed, happened, failure)
        half_width = float((high - low).max() / 2)
    # 0 ≤ q ≤ 1 also bounds the curve: it lies between −Σ(1 − p)/n and Σ p/n, summed over p ≤ t.
    low = np.maximum(low, (claimed - table.ends)[1:] / n)
    high = np.minimum(high, claimed[1:] / n)
    low[-1] = max(low[-1], windows.stated[0] - windows.high[0])  # the first window holds all rows
    high[-1] = min(high[-1], windows.stated[0] - windows.low[0])
    return Band(table.high, estimate, low, high, half_width, _smooth(table, low, high))


def _smooth(table: EventTable, low: Vector, high: Vector) -> float:
    """Return an upper bound on the smooth calibration error: sup |mean w(p)(q − p)| over 1-Lipschitz |w| ≤ 1.

    Summation by parts gives |G(1)| + ∫|G(t)|dt, where G is 0 before the first claim and constant between claims.
    Inside a bin w may differ from its value at the middle by half the bin's width, which is added.
    """
    most = np.maximum(np.abs(low), np.abs(high))
    middle = (table.low + table.high) / 2
    within = float(((table.high - table.low) / 2) @ table.count) / table.n
    along = np.diff(middle) @ most[:-1]
    return float(min(most[-1] + along + within, 1.0))


@dataclass(frozen=True)
class MonotoneBand:
    """A band of q(p) that holds if q never falls as p rises."""

    at: Vector  # (G,): claims
    low: Vector  # (G,)
    high: Vector
    error: float  # upper bound on the ECE, if the assumption holds
    contradicted: bool  # whether the data refute the assumption itself: somewhere low > high

    def to_dict(self) -> JsonObject:
        """Return the band and the bound as plain lists and numbers."""
        return thinned(self, "at", "low", "high") | {
            "ece_at_most": self.error,
            "contradicted": self.contradicted,
        }

    @classmethod
    def of(cls, table: EventTable, windows: Windows) -> MonotoneBand:
        """Return the band of q(p) under the assumption that q never falls as p rises.

        It holds whenever the windows' intervals hold, so it costs no further failure probability.

        >>> p = np.repeat([0.2, 0.8], 500)
        >>> table = EventTable.of_rows(p, np.arange(1000) % 5 < np.where(p < 0.5, 1, 4))
        >>> band = MonotoneBand.of(table, find_windows(table, 0.025))
        >>> bool((band.low < [0.2, 0.8]).all() and (band.high > [0.2, 0.8]).all())
        True
        """
        low = np.zeros(len(table.count))
        high = np.ones(len(table.count))
        np.maximum.at(low, windows.last - 1, windows.low)
        np.minimum.at(high, windows.first, windows.high)
        low = np.maximum.accumulate(low)
        high = np.minimum.accumulate(high[::-1])[::-1]
        contradicted = bool((low > high + 1e-12).any())
        # So far the band is for the mean of a bin. Inside a bin q may rise, so the ends of its neighbours hold.
        single = table.low == table.high
        low = np.where(single, low, np.append(0.0, low[:-1]))
        high = np.where(single, high, np.append(high[1:], 1.0))
        gap = np.maximum(high - table.low, table.high - low)
        far = np.maximum(gap, 0.0)  # where the assumption is refuted the band is empty
        error = float(far @ table.count / table.n)
        middle = (table.low + table.high) / 2
        return cls(middle, low, high, error, contradicted)


def thinned(curve: Band | MonotoneBand, *names: str) -> JsonObject:
    """Return columns of a curve as plain lists, at no more than 200 of its points."""
    keep = np.unique(np.linspace(0, len(curve.at) - 1, 200).astype(int))
    return {name: getattr(curve, name)[keep].tolist() for name in names}


# -- rows at or above a threshold ------------------------------------------------------------------


@dataclass(frozen=True)
class Tails:
    """Rows at or above each of several claims; arrays of shape (T,)."""

    at: Vector  # smallest claim
    share: Vector  # share of the rows (coverage)
    rows: Vector
    observed: Vector  # frequency of the event among them; NaN without rows
    low: Vector  # confidence interval of their mean q; all intervals hold simultaneously
    high: Vector


def threshold_table(table: EventTable, failure: float, at: ArrayLike = THRESHOLDS) -> Tails:
    """Return Chernoff's interval of the mean q of the rows with a claim at or above each threshold.

    Given the predictions, the marks must be independent. By a union bound over the thresholds all intervals hold
    together but with probability ``failure``.

    >>> p = np.repeat([0.6, 0.95], 500)
    >>> found = threshold_table(EventTable.of_rows(p, np.ones(1000)), 0.05, (0.5, 0.9))
    >>> found.share.tolist(), found.low.round(3).tolist()
    ([1.0, 0.5], [0.996, 0.991])
    >>> few = threshold_table(EventTable.of_rows(np.array([0.6, 0.95]), np.array([0.0, 1.0])), 0.05, (0.9, 0.99))
    >>> few.observed, few.low.round(4), few.high
    (array([ 1., nan]), array([0.0125, 0.    ]), array([1., 1.]))
    """
    first = np.searchsorted(table.low, np.asarray(at), side="left")
    rows = table.n - table.ends[first]
    happened = table.prefix[1][-1] - table.prefix[1][first]
    with np.errstate(divide="ignore", invalid="ignore"):  # without rows the interval is [0, 1]
        observed = np.clip(happened / rows, 0, 1)
        low, high = kl_interval(np.nan_to_num(observed), np.log(2 * len(first) / failure) / rows)
    return Tails(np.asarray(at), rows / table.n, rows, observed, low, high)
