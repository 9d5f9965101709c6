"""The certificate of one event: the top label, one class, one group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr

from hcal.certificates.bounds import bennett
from hcal.certificates.windows import (
    Band,
    EventTable,
    MonotoneBand,
    Windows,
    deepest_level,
    find_band,
    find_windows,
    monotone_band,
    thinned,
)
from hcal.metrics.binned import folded_normal_mean
from hcal.numerics import Float64

#: Nobody is told to collect more rows than this.
PRACTICAL_ROWS = 1_000_000
#: What counts as close enough, and beyond it as far off: five points of probability.
TOLERANCE = 0.05

_PARTS = ("all", "half", "quarter", "eighth", "sixteenth", "thirty-second")


def part_name(level: int) -> str:
    """Return the name of a window of a resolution: half, quarter, …

    >>> part_name(0), part_name(5), part_name(6)
    ('all', 'thirty-second', '64th')
    """
    return _PARTS[level] if level < len(_PARTS) else f"{2**level}th"


def class_tolerance(frequency: Float64, tolerance: float) -> Float64:
    """Return the tolerance of a class in proportion to the spread of its own label: 2·√(π(1 − π))·tolerance.

    At a frequency π of one half it is the tolerance itself, at 1 % a fifth of it: an error that would be
    small for a common class may be all there is to say about a rare one.

    Examples
    --------
    >>> class_tolerance(np.array([0.5, 0.01]), 0.05).round(3)
    array([0.05, 0.01])
    """
    # No row of a class tells no more than that it is rarer than about one in so many rows.
    spread = np.sqrt(np.maximum(frequency * (1 - frequency), 1e-6))
    return np.asarray(2 * spread * tolerance)


@dataclass(frozen=True)
class Refutation:
    """A window that is proven to be off.

    Attributes
    ----------
    rows : int
    claims : (float, float)
        Smallest and largest claim of the window.
    stated, observed : float
        Mean claim and frequency.
    low, high : float
        Interval of the true mean probability; ``stated`` lies outside it.
    at_least : float
        How far off, at least.
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
    """What is proven about one event.

    Attributes
    ----------
    name : str
    table : EventTable
        Claims and marks.
    failure : float
        The probability with which any of it may be wrong: half of it for the windows, half for the curve.

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
        """Windows of neighbours at every resolution, each with an interval of its truth."""
        return find_windows(self.table, self.failure / 2)

    @cached_property
    def band(self) -> Band:
        """The cumulative curve with its band."""
        return find_band(self.table, self.windows, self.failure / 2)

    @cached_property
    def monotone(self) -> MonotoneBand:
        """What follows from the windows if the truth does not fall as the claim rises."""
        return monotone_band(self.table, self.windows)

    @property
    def n(self) -> int:
        """Rows."""
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
        """Proven: the smooth calibration error is at most this.

        The error averaged over rows, where errors of opposite sign cancel only between nearly equal claims.
        """
        return self.band.smooth

    @property
    def estimate(self) -> float:
        """Estimated, not proven: mean absolute difference of claim and truth, less what noise adds.

        The gaps of up to sixteen windows of equal mass (or of single values) are taken as normal, with a mean
        and a variance that are estimated from them (empirical Bayes).
        """
        share, mean, spread = self._posterior
        return float(share @ folded_normal_mean(mean, spread))

    @property
    def share_far(self) -> float:
        """Estimated share of rows whose claim is off by more than 5 points."""
        share, mean, spread = self._posterior
        return float(share @ (ndtr((mean - TOLERANCE) / spread) + ndtr((-mean - TOLERANCE) / spread)))

    @cached_property
    def _posterior(self) -> tuple[Float64, Float64, Float64]:
        """Share of the rows, mean and standard deviation of the gap of each window."""
        w = self.windows
        level = -1 if self.table.discrete else min(int(w.level.max()), 4)
        here = (w.level == level) & (w.aligned > 0)
        rows, gap = w.rows[here], (w.stated - w.observed)[here]
        rate = (w.observed[here] * rows + 0.5) / (rows + 1)
        noise = rate * (1 - rate) / rows
        share = rows / rows.sum()
        middle = float(share @ gap)
        signal = max(float(share @ ((gap - middle) ** 2 - noise)), 1e-12)
        shrunk = signal / (signal + noise)
        return share, middle + (gap - middle) * shrunk, np.sqrt(noise * shrunk)

    @property
    def overall(self) -> tuple[float, float]:
        """Interval of mean claim − mean truth over all rows."""
        return float(self.band.low[-1]), float(self.band.high[-1])

    @property
    def proven_gap(self) -> float:
        """How far off the mean of all rows is, at least."""
        low, high = self.overall
        return max(low, -high, 0.0)

    @property
    def proven(self) -> str:
        """Over, under, or empty: the direction in which all rows together are proven to be off."""
        return "" if not self.proven_gap else ("over" if self.overall[0] > 0 else "under")

    @cached_property
    def at_most(self) -> dict[int, float]:
        """For each resolution, how far off any of its windows can be."""
        w = self.windows
        return {level: float(w.at_most[w.level == level].max()) for level in range(int(w.level.max()) + 1)}

    @cached_property
    def refutation(self) -> Refutation | None:
        """The window that is furthest off beyond doubt, or None."""
        w, t = self.windows, self.table
        i = int(w.at_least.argmax())
        if w.at_least[i] <= 0:
            return None
        claims = float(t.low[w.first[i]]), float(t.high[w.last[i] - 1])
        stated, observed, low, high, least = (float(x[i]) for x in (w.stated, w.observed, w.low, w.high, w.at_least))
        direction = "over" if stated > high else "under"
        return Refutation(int(w.rows[i]), claims, stated, observed, low, high, least, direction)

    @property
    def at_least(self) -> float:
        """h below this is refuted; 0 where nothing is."""
        return 0.0 if self.refutation is None else self.refutation.at_least

    @property
    def exact_refuted(self) -> bool:
        """Whether exact calibration of this event is refuted, by a window or by the curve."""
        return self.refutation is not None or self.band.refutes

    @property
    def discrete_error(self) -> float | None:
        """Upper bound on the ECE of a predictor with few values, else None: it cannot be bounded."""
        if not self.table.discrete:
            return None
        single = self.windows.level == -1
        return float(self.windows.at_most[single] @ self.windows.rows[single] / self.table.n)

    def rows_needed(self, bound: float) -> int | None:
        """Return about how many rows would prove a smooth error of at most ``bound``.

        It takes the predictor to be exactly calibrated and its claims to be spread as they are here; a
        predictor that is really off needs more, and one that is off by more than ``bound`` never gets there.

        Returns
        -------
        int, or None where it takes more than a million rows

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
        """The smooth bound that a calibrated predictor with these claims would typically get from n rows."""
        t = self.table
        share = t.ends[1:] / t.n
        mean = t.claimed / t.count
        variance = max(float((t.count / t.n) @ (mean * (1 - mean))), 1e-9)
        # Widths of the variance's own intervals shrink too; at 200 rows they add about half.
        inflation = 1 + 0.5 * np.sqrt(400 / max(n, 400)) * (1 + 0.1 * deepest_level(n))
        reach = float(bennett(n * variance * inflation, np.log(4 / self.failure))) / n
        chance = np.sqrt(2 * variance / (np.pi * n))
        middle = (t.low + t.high) / 2
        grown = np.sqrt(share[:-1])  # a random walk's distance grows with the square root of its steps
        capped = np.minimum(reach + chance * grown, np.minimum(t.prefix[0][1:-1], 1.0 * t.ends[1:-1]) / t.n)
        return float(reach + chance + np.diff(middle) @ capped)

    def group_row(self) -> dict[str, Any]:
        """Return the numbers of a group of rows that JSON lists beside other groups."""
        low, high = self.overall
        plain = {name: getattr(self, name) for name in ("stated", "observed", "proven", "at_least")}
        told = {"group": self.name, "rows": self.n, "gap_low": low, "gap_high": high}
        return told | plain | {"smooth_at_most": self.bound}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, ready for JSON; the curve thinned to at most 200 points."""
        plain = ("failure", "stated", "observed", "overall", "estimate", "share_far", "at_least")
        columns = ("level", "rows", "stated", "observed", "low", "high")
        return {
            "event": self.name,
            "rows": self.n,
            **{name: getattr(self, name) for name in plain},
            "smooth_at_most": self.bound,
            "curve_reach": self.band.reach,
            "at_most": {part_name(level): x for level, x in self.at_most.items()},
            "refuted": None if self.refutation is None else vars(self.refutation),
            "exactly_calibrated_refuted": self.exact_refuted,
            "discrete_ece_at_most": self.discrete_error,
            "curve": thinned(self.band, "at", "estimate", "low", "high"),
            "windows": {name: getattr(self.windows, name).tolist() for name in columns},
        }


def certify_event(name: str, p: Any, c: Any, *, failure: float = 0.05) -> EventCertificate:
    """Certify one event from claimed probabilities (N,) and marks (N,), but for a probability of failure."""
    return EventCertificate(name, EventTable.of_rows(np.asarray(p), np.asarray(c)), failure)
