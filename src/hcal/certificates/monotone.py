"""If accuracy does not fall as confidence rises: a band of the whole curve from the same windows.

Under that assumption (and only then) q at or below a window's first claim is at most the window's mean, and q
at or above its last claim at least that: simultaneous intervals of window means become a simultaneous band of
the curve, at no further cost (the idea of Dimitriadis et al., Biometrika 2023, with our windows for theirs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.certificates.table import EventTable
from hcal.certificates.windows import Windows
from hcal.metrics.sample import Vector


@dataclass(frozen=True)
class MonotoneBand:
    """A band of q(p) that holds if q never falls."""

    at: Vector  # (G,): claims
    low: Vector  # (G,)
    high: Vector
    error: float  # the ECE is at most this, if the assumption holds
    contradicted: bool  # whether the data refute the assumption itself: the band crosses

    def to_dict(self) -> dict[str, Any]:
        """Return the band at up to 200 claims as plain lists."""
        keep = np.unique(np.linspace(0, len(self.at) - 1, 200).astype(int))
        lists = {name: getattr(self, name)[keep].tolist() for name in ("at", "low", "high")}
        return lists | {"ece_at_most": self.error, "contradicted": self.contradicted}


def monotone_band(table: EventTable, windows: Windows) -> MonotoneBand:
    """Return the band of a non-falling q(p) from simultaneous window intervals.

    >>> from hcal.certificates.table import table_of_rows
    >>> from hcal.certificates.windows import find_windows
    >>> p = np.repeat([0.2, 0.8], 500)
    >>> table = table_of_rows(p, np.arange(1000) % 5 < np.where(p < 0.5, 1, 4))
    >>> band = monotone_band(table, find_windows(table, 0.025))
    >>> bool((band.low < [0.2, 0.8]).all() and (band.high > [0.2, 0.8]).all())
    True
    """
    groups = len(table.count)
    high, low = np.ones(groups + 1), np.zeros(groups + 1)
    np.minimum.at(high, windows.first, windows.high)
    np.maximum.at(low, windows.last - 1, windows.low)
    high = np.minimum.accumulate(high[:groups][::-1])[::-1]
    low = np.maximum.accumulate(low[:groups])
    # Inside a bin the claim may be anywhere: judge it at the worse end.
    far = np.maximum(np.maximum(high - table.low, table.high - low), 0.0)
    error = float(np.minimum(far, 1.0) @ table.count / table.n)
    return MonotoneBand((table.low + table.high) / 2, low, high, error, bool((low > high + 1e-12).any()))
