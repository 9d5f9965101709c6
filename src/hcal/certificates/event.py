"""The events of a certificate, and the certificate of one event: the top label, one class, or one group.

An event has a *claim* p (the stated probability) and a *mark* c (1 if it happened, else 0). Given the predictions, the
marks are independent Bernoulli variables whose true probabilities q are unknown; the *gap* of some rows is the mean of
p − q. A certificate of an event (:class:`EventCertificate`) is about these gaps.

All events of some rows (:class:`Events`) are the headline, every class and every segment, as tables of claims and
marks. Rows in memory are grouped by their claims. Rows that come in blocks are counted in fine fixed bins of the
probability (64 per power of two, towards 0 and towards 1), so that O(bins·K) memory is enough for any number of rows.
The edges of the bins do not depend on the labels. A certificate from them is therefore as valid as one from the rows,
and as tight up to the width of a bin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from hcal.certificates.bounds import bennett
from hcal.certificates.windows import (
    BINS,
    SMALLEST,
    Band,
    EventTable,
    Marks,
    MonotoneBand,
    Windows,
    bin_of,
    deepest_level,
    find_band,
    find_windows,
)
from hcal.metrics.binned import folded_normal_mean
from hcal.metrics.sample import Data
from hcal.numerics import Float64, IntArray
from hcal.row_segments import Segments
from hcal.text import JsonObject

#: ``rows_needed`` never recommends more rows than this.
PRACTICAL_ROWS = 1_000_000
#: An error of at most this counts as close enough, a larger one as far off: five points of probability.
TOLERANCE = 0.05
#: An error is estimated from windows of this level or finer ones: four windows, and so 800 rows, at least.
_ESTIMATE_LEVEL = 2
ESTIMATE_ROWS = SMALLEST * 2**_ESTIMATE_LEVEL

_PARTS = ("all", "half", "quarter", "eighth", "sixteenth", "thirty-second")


def part_name(level: int) -> str:
    """Return the share of the rows in a window of a level, in words: half, quarter, …

    >>> part_name(0), part_name(5), part_name(6)
    ('all', 'thirty-second', '64th')
    """
    return _PARTS[level] if level < len(_PARTS) else f"{2**level}th"


def class_tolerance(frequency: Float64, tolerance: float) -> Float64:
    """Return the tolerance of a class of frequency π: 2·√(π(1 − π))·tolerance.

    It is proportional to the standard deviation of the class's label: the tolerance itself at π = 1/2, a fifth of
    it at 1 %. An error of 1 point is small for a common class and as large as the probability of a rare one.

    Examples
    --------
    >>> class_tolerance(np.array([0.5, 0.01]), 0.05).round(3)
    array([0.05, 0.01])
    """
    # A class without any row may still be as frequent as about one in a million.
    spread = np.sqrt(np.maximum(frequency * (1 - frequency), 1e-6))
    return np.asarray(2 * spread * tolerance)


@dataclass(frozen=True)
class Refutation:
    """A window of neighbouring claims that is proven to be miscalibrated.

    Attributes
    ----------
    rows : int
    claims : (float, float)
        Smallest and largest claim of the window.
    stated, observed : float
        Mean claim, and frequency of the event.
    low, high : float
        Confidence interval of the true mean probability; ``stated`` lies outside it.
    at_least : float
        Distance of ``stated`` from that interval: a lower bound on the window's error.
    direction : {"over", "under"}
        Whether the claims are too high or too low.
    """

    rows: int
    claims: tuple[float, float]
    stated: float
    observed: float
    low: float
    high: float
    at_least: float
    direction: str


@dataclass(frozen=True)
class EventCertificate:
    """What is proven about one event, for independent rows that were not used in the fit.

    Attributes
    ----------
    name : str
    table : EventTable
        Claims and marks.
    failure : float
        Probability that any of the statements is wrong. Half of it is spent on the windows (Chernoff), half on
        the cumulative curve (Bennett and Ville).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, 4000)
    >>> found = certify_event("top label", p, rng.random(4000) < p)
    >>> found.refutation is None, bool(found.bound < 0.06)
    (True, True)
    """

    name: str
    table: EventTable
    failure: float

    @cached_property
    def windows(self) -> Windows:
        """Windows of neighbouring claims at every resolution, each with an interval of its true mean."""
        return find_windows(self.table, self.failure / 2)

    @cached_property
    def band(self) -> Band:
        """The cumulative curve of the gap with its confidence band."""
        return find_band(self.table, self.windows, self.failure / 2)

    @cached_property
    def monotone(self) -> MonotoneBand:
        """The band of q(p) that follows from the windows if q never falls as p rises."""
        return MonotoneBand.of(self.table, self.windows)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.table.n)

    @property
    def stated(self) -> float:
        """Mean claim."""
        return float(self.table.prefix[0][-1] / self.table.n)

    @property
    def observed(self) -> float:
        """How often the event happened."""
        return float(self.table.prefix[1][-1] / self.table.n)

    @property
    def bound(self) -> float:
        """Proven upper bound on the smooth calibration error.

        That is the error averaged over rows, where errors of opposite sign cancel only between nearly equal claims:
        the supremum of |mean w(p)·(q − p)| over 1-Lipschitz weights |w| ≤ 1 (Błasiok et al., STOC 2023).
        """
        return self.band.smooth

    @property
    def estimate(self) -> float | None:
        """Estimate, not a bound: the mean of |p − q|, with the noise of the labels removed.

        Empirical Bayes: the gaps of up to sixteen windows of equal mass (or of single values) are modelled as draws
        from a normal distribution whose mean and variance are estimated from them; this is the posterior mean.
        None with fewer than four windows (800 rows): in wider ones, errors of opposite sign cancel unseen.
        """
        if not self._has_estimate:
            return None
        share, mean, spread = self._posterior
        return float(share @ folded_normal_mean(mean, spread))

    @property
    def share_far(self) -> float | None:
        """Estimate, not a bound: the share of rows with |p − q| above 5 points (see :attr:`estimate`)."""
        if not self._has_estimate:
            return None
        share, mean, spread = self._posterior
        return float(
            share @ (ndtr((mean - TOLERANCE) / spread) + ndtr((-mean - TOLERANCE) / spread))
        )

    @property
    def _has_estimate(self) -> bool:
        """Whether the windows are narrow enough to see errors that cancel in the mean."""
        return self.table.discrete or int(self.windows.level.max()) >= _ESTIMATE_LEVEL

    @cached_property
    def _posterior(self) -> tuple[Float64, Float64, Float64]:
        """Share of rows of each window, and the posterior mean and standard deviation of its gap."""
        windows = self.windows
        level = -1 if self.table.discrete else min(int(windows.level.max()), 4)
        chosen = (windows.level == level) & (windows.aligned > 0)
        rows = windows.rows[chosen]
        gap = (windows.stated - windows.observed)[chosen]
        noise = self._noise(chosen)
        share = rows / rows.sum()
        middle = float(share @ gap)
        signal = max(float(share @ ((gap - middle) ** 2 - noise)), 1e-12)
        shrunk = signal / (signal + noise)
        return share, middle + (gap - middle) * shrunk, np.sqrt(noise * shrunk)

    def _noise(self, chosen: NDArray[np.bool_]) -> Float64:
        """Return the variance of the frequency of chosen windows, if their true mean were what they state."""
        windows = self.windows
        rows = windows.rows[chosen]
        rate = (windows.observed[chosen] * rows + 0.5) / (rows + 1)
        noise = np.asarray(rate * (1 - rate) / rows)
        if self.table.members is None:
            return noise
        ends = self.table.ends.astype(np.int64)
        spans = zip(ends[windows.first[chosen]], ends[windows.last[chosen]], strict=True)
        between_groups = [self.table.members.noise(first, last) for first, last in spans]
        return np.maximum(noise, between_groups)

    @property
    def overall(self) -> tuple[float, float]:
        """Confidence interval of the mean of p − q over all rows."""
        return float(self.band.low[-1]), float(self.band.high[-1])

    @property
    def proven_gap(self) -> float:
        """Proven lower bound on |mean of p − q| over all rows; 0 if the interval contains 0."""
        low, high = self.overall
        return max(low, -high, 0.0)

    @property
    def proven(self) -> str:
        """Direction of :attr:`proven_gap`: "over" (claims too high), "under", or "" if nothing is proven."""
        if not self.proven_gap:
            return ""
        return "over" if self.overall[0] > 0 else "under"

    @cached_property
    def at_most(self) -> dict[int, float]:
        """For each level, a bound on the absolute gap of every window of that level."""
        windows = self.windows
        levels = range(int(windows.level.max()) + 1)
        return {level: float(windows.at_most[windows.level == level].max()) for level in levels}

    @cached_property
    def refutation(self) -> Refutation | None:
        """The window with the largest proven gap, or None if no window's interval excludes its mean claim."""
        windows = self.windows
        worst = int(windows.at_least.argmax())
        if windows.at_least[worst] <= 0:
            return None
        lowest = float(self.table.low[windows.first[worst]])
        highest = float(self.table.high[windows.last[worst] - 1])
        stated = float(windows.stated[worst])
        high = float(windows.high[worst])
        return Refutation(
            rows=int(windows.rows[worst]),
            claims=(lowest, highest),
            stated=stated,
            observed=float(windows.observed[worst]),
            low=float(windows.low[worst]),
            high=high,
            at_least=float(windows.at_least[worst]),
            direction="over" if stated > high else "under",
        )

    @property
    def at_least(self) -> float:
        """Calibration to within h is refuted for every h below this; 0 if nothing is refuted."""
        return 0.0 if self.refutation is None else self.refutation.at_least

    @property
    def exact_refuted(self) -> bool:
        """Whether exact calibration (q = p) is refuted, by a window or by the curve."""
        return self.refutation is not None or self.band.refutes

    @property
    def discrete_error(self) -> float | None:
        """Upper bound on the ECE if the claims take few values; None otherwise, because no bound exists then."""
        if not self.table.discrete:
            return None
        single = self.windows.level == -1
        return float(self.windows.at_most[single] @ self.windows.rows[single] / self.table.n)

    def rows_needed(self, bound: float) -> int | None:
        """Return about how many rows would prove a smooth calibration error of at most ``bound``.

        It assumes that the predictor is exactly calibrated and that its claims stay distributed as they are here. A
        miscalibrated predictor needs more rows; one with an error above ``bound`` can never be certified.

        Returns
        -------
        int, or None if it takes more than a million rows

        Examples
        --------
        >>> p = np.full(1000, 0.9)
        >>> found = certify_event("top label", p, np.arange(1000) % 10 > 0)
        >>> found.rows_needed(0.05) < found.rows_needed(0.01)
        True
        """
        low, high = 1.0, float(PRACTICAL_ROWS)
        if not self._typical(high) <= bound:
            return None
        while high / low > 1.01:
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if self._typical(middle) <= bound else (middle, high)
        digits = max(int(np.floor(np.log10(high))) - 1, 0)
        return int(np.ceil(high / 10**digits) * 10**digits)

    def _typical(self, n: float) -> float:
        """Return the smooth bound that a calibrated predictor with these claims typically gets from n rows."""
        table = self.table
        share = table.ends[1:] / table.n
        mean = table.claimed / table.count
        variance = max(float((table.count / table.n) @ (mean * (1 - mean))), 1e-9)
        # Rows of one group count as one observation, as in the bound itself.
        n = n if table.members is None else n / table.members.largest
        # The bound on the variance is itself too large by about half at 200 rows, and by less with more rows.
        inflation = 1 + 0.5 * np.sqrt(400 / max(n, 400)) * (1 + 0.1 * deepest_level(n))
        half_width = float(bennett(n * variance * inflation, np.log(4 / self.failure))) / n
        chance = np.sqrt(2 * variance / (np.pi * n))
        # A random walk's distance grows with the square root of its steps.
        distance = half_width + chance * np.sqrt(share[:-1])
        claimed = table.prefix[0][1:-1]
        possible = np.minimum(claimed, table.ends[1:-1]) / table.n
        middle = (table.low + table.high) / 2
        return float(half_width + chance + np.diff(middle) @ np.minimum(distance, possible))

    def group_row(self) -> JsonObject:
        """Return the numbers of a subgroup as one flat dictionary, for a table of subgroups."""
        gap_low, gap_high = self.overall
        return {
            "group": self.name,
            "rows": self.n,
            "gap_low": gap_low,
            "gap_high": gap_high,
            "stated": self.stated,
            "observed": self.observed,
            "proven": self.proven,
            "at_least": self.at_least,
            "smooth_at_most": self.bound,
        }

    def to_dict(self) -> JsonObject:
        """Return everything as plain numbers, ready for JSON; the curve thinned to at most 200 points."""
        plain = ("failure", "stated", "observed", "overall", "estimate", "share_far", "at_least")
        columns = ("level", "rows", "stated", "observed", "low", "high")
        return {
            "event": self.name,
            "rows": self.n,
            **{name: getattr(self, name) for name in plain},
            "smooth_at_most": self.bound,
            "curve_reach": self.band.half_width,
            "at_most": {part_name(level): x for level, x in self.at_most.items()},
            "refuted": None if self.refutation is None else vars(self.refutation),
            "exactly_calibrated_refuted": self.exact_refuted,
            "discrete_ece_at_most": self.discrete_error,
            "curve": self.band.to_dict(),
            "windows": {name: getattr(self.windows, name).tolist() for name in columns},
        }


def certify_event(
    name: str, p: ArrayLike, c: ArrayLike, *, failure: float = 0.05
) -> EventCertificate:
    """Certify one event from claims (N,) and marks (N,); all statements hold but with probability ``failure``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> score = rng.normal(size=300)
    >>> y = (rng.random(300) < 1 / (1 + np.exp(-score))).astype(int)
    >>> certificate = certify_event("rain", 1 / (1 + np.exp(-score)), y)
    >>> 0 < certificate.bound < 0.3
    True
    """
    return EventCertificate(name, EventTable.of_rows(np.asarray(p), np.asarray(c)), failure)


# -- the events of a certificate --------------------------------------------------------------------


@dataclass(frozen=True)
class Events:
    """The tables of claims and marks of every event.

    Attributes
    ----------
    k : int
        Number of classes.
    positive : int
        With two classes, the class whose probability is certified.
    main : EventTable
        The headline's event: P(positive) with two classes, else the top label.
    classes : iterable of EventTable
        One by one, to save memory.
    subgroups : dict of EventTable
        The headline's event in every segment.
    """

    k: int
    positive: int
    main: EventTable
    classes: Iterator[EventTable]
    subgroups: dict[str, EventTable]


def events_of_rows(
    data: Data, positive: int, by: Segments | None, groups: IntArray | None = None
) -> Events:
    """Return the events of rows in memory; rows of one group depend on each other."""
    claims, marks = main_event(data, positive)
    subgroups = {
        name: EventTable.of_rows(claims[rows], marks[rows], _some(groups, rows))
        for name, rows in _rows_of_segments(by)
    }
    return Events(
        data.k,
        positive,
        EventTable.of_rows(claims, marks, groups),
        (EventTable.of_rows(data.column(k), data.y == k, groups) for k in range(data.k)),
        subgroups,
    )


class EventCounts:
    """The events of rows that come in blocks: their counts in fine bins, which can be added up.

    Examples
    --------
    >>> data = Data([[0.2, 0.8]] * 3, [1, 1, 0])
    >>> both = EventCounts(2, 1).update(data, None).merge(EventCounts(2, 1).update(data, None))
    >>> both.events().main.count
    array([6.])
    """

    def __init__(self, k: int, positive: int) -> None:
        self.k = k
        self.positive = positive
        # Rows, the sum of their claims, and how often the event happened.
        self.main = np.zeros((3, BINS))
        self.classes = np.zeros((k, 3, BINS))
        self.segments = _SegmentCounts()

    def update(self, data: Data, by: Segments | None) -> Self:
        """Add the rows of a block."""
        claims, marks = main_event(data, self.positive)
        self.main += _counts(claims, marks)
        for k in range(self.k):
            self.classes[k] += _counts(data.column(k), data.y == k)
        if by is not None:
            self.segments.update(claims, marks, by)
        return self

    def merge(self, other: EventCounts) -> Self:
        """Add the counts of other rows."""
        self.main += other.main
        self.classes += other.classes
        self.segments.merge(other.segments)
        return self

    def events(self) -> Events:
        """Return the events of all rows added so far."""
        return Events(
            self.k,
            self.positive,
            EventTable.of_bins(*self.main),
            (EventTable.of_bins(*counts) for counts in self.classes),
            self.segments.tables(),
        )


class _SegmentCounts:
    """The counts of the headline's event in the bins of every segment that hold rows."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        #: The number of a segment times BINS, plus that of the bin; ascending.
        self.cells = np.zeros(0, dtype=np.int64)
        self.sums = np.zeros((3, 0))

    def update(self, claims: Float64, marks: Marks, by: Segments) -> None:
        cells = self._numbers_of(by.names)[by.codes] * BINS + bin_of(claims)
        self._add(cells, np.stack([np.ones(len(claims)), claims, marks]))

    def merge(self, other: _SegmentCounts) -> None:
        """Add the counts of other rows; a segment is recognised by its name."""
        number, place = np.divmod(other.cells, BINS)
        self._add(self._numbers_of(tuple(other.numbers))[number] * BINS + place, other.sums)

    def tables(self) -> dict[str, EventTable]:
        """Return the table of every segment, in the order of the names."""
        number, place = np.divmod(self.cells, BINS)
        first = np.searchsorted(number, np.arange(len(self.numbers) + 1))
        tables = {}
        for name in sorted(self.numbers):
            bins = slice(first[self.numbers[name]], first[self.numbers[name] + 1])
            tables[name] = EventTable.of_some_bins(place[bins], *self.sums[:, bins])
        return tables

    def _numbers_of(self, names: tuple[str, ...]) -> IntArray:
        numbers = [self.numbers.setdefault(name, len(self.numbers)) for name in names]
        return np.array(numbers, dtype=np.int64)

    def _add(self, cells: IntArray, sums: Float64) -> None:
        joined = np.concatenate([self.cells, cells])
        values = np.concatenate([self.sums, sums], axis=1)
        self.cells, which = np.unique(joined, return_inverse=True)
        self.sums = np.stack([np.bincount(which, row, len(self.cells)) for row in values])


def _some(values: IntArray | None, rows: IntArray) -> IntArray | None:
    return None if values is None else values[rows]


def _rows_of_segments(by: Segments | None) -> list[tuple[str, IntArray]]:
    """Return the name of every segment that has rows, and the numbers of these.

    >>> [(name, rows.tolist()) for name, rows in _rows_of_segments(Segments.of(["b", "a", "b"], 3))]
    [('a', [1]), ('b', [0, 2])]
    """
    if by is None:
        return []
    order = np.argsort(by.codes, kind="stable").astype(np.int64)
    sizes = np.bincount(by.codes, minlength=len(by.names))
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return [(name, rows) for name, rows in zip(by.names, parts, strict=True) if len(rows)]


def main_event(data: Data, positive: int) -> tuple[Float64, Marks]:
    """Return claims and marks of the headline's event: P(positive) with two classes, else the top label."""
    if data.k == 2:
        return data.column(positive), data.y == positive
    return data.conf, data.hit


def _counts(claims: Float64, marks: Marks) -> Float64:
    """Return the number of rows, the sum of claims and the sum of marks in every fine bin, shape (3, BINS)."""
    which = bin_of(claims)
    columns = (np.ones(len(claims)), claims, marks)
    return np.stack([np.bincount(which, weights=values, minlength=BINS) for values in columns])
