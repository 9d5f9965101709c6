"""What is proven about one event: its table, windows, the cumulative curve and a monotone band.

*The table.* Rows with the same claimed probability belong together: no window and no point of the curve ever splits
them, so no order of rows (a file sorted by label, say) can enter. The table holds the distinct probabilities, or fine
bins of them. Bins can be added up part by part and machine by machine; their edges do not depend on labels, so what is
certified from them is just as valid, at bin resolution.

*Windows* of neighbours at every resolution, each with an interval of its true gap; all hold at once. *The
curve* G(t) = (1/n) Σ_{p ≤ t} (p − q) with a band that holds at every t at once. *The band of q(p)* if the
truth does not fall as the claim rises: q at or below a window's first claim is at most the window's mean, and q at or
above its last claim at least that, so the windows' intervals become a band of q at no further cost (the idea of
Dimitriadis et al., Biometrika 2023, with our windows).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.certificates.bounds import bennett, kl_interval, largest_variance
from hcal.numerics import Float64 as Vector
from hcal.numerics import IntArray, prefix_sums, run_starts

#: Bins of a stream: each power of two below ½, and its mirror image above, has this many.
PER_OCTAVE = 64
_OCTAVES = 32
_SHIFT = 23 - 6  # a float32 has 23 bits after the first; the top 6 choose the bin
_HALF = int(np.float32(0.5).view(np.int32)) >> _SHIFT
_SIDE = PER_OCTAVE * _OCTAVES
BINS = 2 * _SIDE + 1
#: The finest windows hold about this many rows (the paper's M).
SMALLEST = 200
#: Confidences that people set thresholds at.
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class EventTable:
    """Claims and marks of one event, grouped by claim, in ascending order."""

    count: Vector  # (G,): rows of each group
    claimed: Vector  # (G,): sum of the claimed probabilities p
    happened: Vector  # (G,): how often the event happened
    low: Vector  # (G,): smallest and largest claim of the group; equal where groups are single values
    high: Vector

    @classmethod
    def of_rows(cls, p: Vector, c: Vector) -> EventTable:
        """Group rows by their claimed probability p (N,); marks c (N,) are 0 or 1.

        >>> EventTable.of_rows(np.array([0.5, 0.2, 0.5]), np.array([1.0, 0.0, 0.0])).happened
        array([0., 1.])
        """
        order = np.argsort(p)
        value = p[order].astype(np.float64)
        first = run_starts(value)
        count = np.diff(np.append(first, len(value))).astype(np.float64)
        happened = np.add.reduceat(c[order].astype(np.float64), first)
        value = value[first]
        return cls(count, value * count, happened, value, value)

    @classmethod
    def of_bins(cls, count: Vector, claimed: Vector, happened: Vector) -> EventTable:
        """Make a table of accumulated stream bins; empty ones are left out; count, claimed, happened (BINS,)."""
        low, high = bin_edges()
        full = count > 0
        return cls(count[full], claimed[full], happened[full], low[full], high[full])

    @property
    def n(self) -> float:
        """Number of rows."""
        return float(self.ends[-1])

    @cached_property
    def ends(self) -> Vector:
        """Rows up to each group's end, from 0, shape (G + 1,)."""
        return prefix_sums(self.count)

    @cached_property
    def prefix(self) -> tuple[Vector, Vector]:
        """Prefix sums of p and of c, from 0."""
        return prefix_sums(self.claimed), prefix_sums(self.happened)

    @property
    def discrete(self) -> bool:
        """Whether the claims take so few values that each value can be certified by itself."""
        return bool((self.low == self.high).all()) and 2 <= len(self.count) <= self.n / 20


def bin_of(p: NDArray[np.floating]) -> NDArray[np.int32]:
    """Return the stream bin of each probability, from its bits: no search, no logarithm.

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
    edge = bits.view(np.float32).astype(np.float64)  # where each lower bin starts; the last is ½
    edge[0] = 0.0
    # ½ has a bin of its own. An upper bin is the mirror image of a lower one.
    low = np.concatenate([edge[:-1], [0.5], 1 - edge[:0:-1]])
    high = np.concatenate([edge[1:], [0.5], 1 - edge[-2::-1]])
    return low, high


# -- windows, curve and band -----------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Windows of one event at all resolutions, level by level, aligned ones before shifted ones."""

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

    @property
    def at_most(self) -> Vector:
        """How far off each window can be."""
        return np.maximum(np.abs(self.stated - self.low), np.abs(self.stated - self.high))

    @property
    def at_least(self) -> Vector:
        """How far off each window is proven to be; 0 where it may be right."""
        return np.maximum(np.maximum(self.stated - self.high, self.low - self.stated), 0.0)


def deepest_level(n: float) -> int:
    """Return L = ⌊log2(n / 200)⌋, 0 below 400 rows.

    >>> deepest_level(399), deepest_level(400), deepest_level(20000)
    (0, 1, 6)
    """
    return max(int(np.log2(n / SMALLEST)), 0)


def find_windows(table: EventTable, failure: float) -> Windows:
    """Return all windows with intervals that hold together but for the given probability of failure.

    >>> p = np.linspace(0.5, 1, 400)
    >>> found = find_windows(EventTable.of_rows(p, np.ones(400)), 0.025)
    >>> found.level.tolist(), found.rows.tolist()
    ([0, 1, 1, 1], [400.0, 200.0, 200.0, 200.0])
    """
    names = list(range(deepest_level(table.n) + 1))
    parts = [_level(table, level) for level in names]
    if table.discrete:
        each = np.arange(len(table.count))
        names, parts = [*names, -1], [*parts, (each, each + 1, np.ones(len(each)))]
    sizes = np.array([len(part[0]) for part in parts])
    first, last, aligned = (np.concatenate(column) for column in zip(*parts, strict=True))
    rows, claimed, happened = (x[last] - x[first] for x in (table.ends, *table.prefix))
    # Prefix sums round: a frequency must not leave [0, 1].
    observed = np.clip(happened / rows, 0.0, 1.0)
    # The failure is shared equally among resolutions, and in each among its windows and their two sides.
    logs = np.repeat(np.log(2 * sizes * len(sizes) / failure), sizes)
    low, high = kl_interval(observed, logs / rows)
    return Windows(np.repeat(names, sizes), aligned, first, last, rows, claimed / rows, observed, low, high)


def _level(table: EventTable, level: int) -> tuple[IntArray, IntArray, Vector]:
    """Groups where the windows of a level start and end; equal mass, moved to the nearest end of a group."""
    pieces = 2**level
    cuts = np.arange(2 * pieces + 1) * (table.n / (2 * pieces))
    nearer = np.searchsorted((table.ends[1:] + table.ends[:-1]) / 2, cuts, side="right")
    even, odd = nearer[::2], nearer[1::2]
    first = np.concatenate([even[:-1], odd[:-1]])
    last = np.concatenate([even[1:], odd[1:]])
    aligned = np.concatenate([np.ones(pieces), np.zeros(pieces - 1)])
    full = last > first  # ties can leave a window without rows
    return first[full], last[full], aligned[full]


def variance_bound(windows: Windows) -> float:
    """Return an upper bound on Σ q(1 − q) that holds whenever the windows' intervals do.

    In each window Σ q(1 − q) ≤ m·q̄(1 − q̄) (Jensen): every level's partition gives a bound; the least counts.
    """
    each = windows.rows * largest_variance(windows.low, windows.high) * windows.aligned
    return min(float(each[windows.level == level].sum()) for level in np.unique(windows.level))


@dataclass(frozen=True)
class Band:
    """The estimated curve and its band."""

    at: Vector  # (G,): the claims t where the curve changes
    estimate: Vector  # (G,): Ĝ(t), with marks in place of true probabilities
    low: Vector  # (G,): band of G(t)
    high: Vector
    reach: float  # s: the estimate is off by at most this, at every t
    smooth: float  # upper bound on the smooth calibration error

    @property
    def refutes(self) -> bool:
        """Whether exact calibration (G = 0 everywhere) is refuted."""
        return bool((self.low > 1e-12).any() or (self.high < -1e-12).any())


def find_band(table: EventTable, windows: Windows, failure: float) -> Band:
    """Return the curve with its band, valid where the windows are, but for the probability of failure.

    The intervals of the windows bound the variance, and the curve's end.

    >>> table = EventTable.of_rows(np.linspace(0.5, 1, 400), np.ones(400))
    >>> round(find_band(table, find_windows(table, 0.025), 0.025).reach, 3)
    0.02
    """
    n = table.n
    reach = float(bennett(variance_bound(windows), float(np.log(2 / failure)))) / n
    estimate = (table.prefix[0] - table.prefix[1])[1:] / n
    # 0 ≤ q ≤ 1 bounds the curve too: between −Σ(1 − p) and Σ p of the rows so far.
    claimed = table.prefix[0][1:]
    low = np.maximum(estimate - reach, (claimed - table.ends[1:]) / n)
    high = np.minimum(estimate + reach, claimed / n)
    low[-1] = max(low[-1], windows.stated[0] - windows.high[0])  # the first window holds all rows
    high[-1] = min(high[-1], windows.stated[0] - windows.low[0])
    return Band(table.high, estimate, low, high, reach, _smooth(table, low, high))


def _smooth(table: EventTable, low: Vector, high: Vector) -> float:
    """Bound sup |mean w(p)(q − p)| over 1-Lipschitz |w| ≤ 1.

    Summation by parts: at most |G(1)| + ∫|G(t)|dt, where G is 0 before the first claim and constant between
    claims. In a bin w may vary by half the bin's width around its middle.
    """
    most = np.maximum(np.abs(low), np.abs(high))
    middle = (table.low + table.high) / 2
    within = float(((table.high - table.low) / 2) @ table.count) / table.n
    return float(min(most[-1] + np.diff(middle) @ most[:-1] + within, 1.0))


@dataclass(frozen=True)
class MonotoneBand:
    """A band of q(p) that holds if q never falls."""

    at: Vector  # (G,): claims
    low: Vector  # (G,)
    high: Vector
    error: float  # the ECE is at most this, if the assumption holds
    contradicted: bool  # whether the data refute the assumption itself: the band crosses

    def to_dict(self) -> dict[str, Any]:
        """Return the band and the bound as plain lists and numbers."""
        numbers = {"ece_at_most": self.error, "contradicted": self.contradicted}
        return thinned(self, "at", "low", "high") | numbers


def monotone_band(table: EventTable, windows: Windows) -> MonotoneBand:
    """Return the band of a non-falling q(p), valid where the windows are.

    >>> p = np.repeat([0.2, 0.8], 500)
    >>> table = EventTable.of_rows(p, np.arange(1000) % 5 < np.where(p < 0.5, 1, 4))
    >>> band = monotone_band(table, find_windows(table, 0.025))
    >>> bool((band.low < [0.2, 0.8]).all() and (band.high > [0.2, 0.8]).all())
    True
    """
    low, high = np.zeros(len(table.count)), np.ones(len(table.count))
    np.maximum.at(low, windows.last - 1, windows.low)
    np.minimum.at(high, windows.first, windows.high)
    low, high = np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
    contradicted = bool((low > high + 1e-12).any())
    # This holds for the mean of a bin. Inside it q may rise, between what holds before and after the bin.
    single = table.low == table.high
    low = np.where(single, low, np.append(0.0, low[:-1]))
    high = np.where(single, high, np.append(high[1:], 1.0))
    far = np.clip(np.maximum(high - table.low, table.high - low), 0.0, 1.0)
    error = float(far @ table.count / table.n)
    return MonotoneBand((table.low + table.high) / 2, low, high, error, contradicted)


def thinned(curve: Band | MonotoneBand, *names: str) -> dict[str, Any]:
    """Return columns of a curve as plain lists, at 200 of its points at most."""
    keep = np.unique(np.linspace(0, len(curve.at) - 1, 200).astype(int))
    return {name: getattr(curve, name)[keep].tolist() for name in names}


# -- rows at or above a threshold ------------------------------------------------------------------


@dataclass(frozen=True)
class Tails:
    """Rows at or above each of several claims; arrays of shape (T,)."""

    at: Vector  # smallest claim
    share: Vector  # share of the rows (coverage)
    rows: Vector
    observed: Vector  # frequency of the event among them; NaN where there is no row
    low: Vector  # interval of their true mean probability; all hold at once
    high: Vector


def threshold_table(table: EventTable, failure: float, at: ArrayLike = THRESHOLDS) -> Tails:
    """Certify the rows at or above each threshold, all thresholds at once.

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
    with np.errstate(divide="ignore", invalid="ignore"):  # no row: its interval is all of [0, 1]
        observed = np.clip(happened / rows, 0, 1)
        low, high = kl_interval(np.nan_to_num(observed), np.log(2 * len(first) / failure) / rows)
    return Tails(np.asarray(at), rows / table.n, rows, observed, low, high)
