"""The cumulative curve G(t) = (1/n) Σ_{p ≤ t} (p − q) with a band that holds at every t at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcal.certificates.bounds import bennett
from hcal.certificates.table import EventTable
from hcal.certificates.windows import Windows, variance_bound
from hcal.metrics.sample import Vector


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

    >>> from hcal.certificates.table import table_of_rows
    >>> from hcal.certificates.windows import find_windows
    >>> table = table_of_rows(np.linspace(0.5, 1, 400), np.ones(400))
    >>> round(find_band(table, find_windows(table, 0.025), 0.025).reach, 3)
    0.02
    """
    n = table.n
    reach = float(bennett(variance_bound(windows), float(np.log(2 / failure)))) / n
    estimate = table.gaps[1:] / n
    # 0 ≤ q ≤ 1 bounds the curve too: between −Σ(1 − p) and Σ p of the rows so far.
    claimed = table.prefix[0][1:]
    low = np.maximum(estimate - reach, (claimed - table.ends[1:]) / n)
    high = np.minimum(estimate + reach, claimed / n)
    whole = int(np.flatnonzero(windows.level == 0)[0])
    low[-1] = max(low[-1], float(windows.gap_low[whole]))
    high[-1] = min(high[-1], float(windows.gap_high[whole]))
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
