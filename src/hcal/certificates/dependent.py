"""Bounds for rows that depend on each other within groups, such as the visits of a patient or the frames of a video.

Groups are independent of each other; nothing is assumed about the rows of one group. In a window with J groups of at
most a rows each, the number of events of a group divided by a is a variable in [0, 1], and these J variables are
independent. The moment generating function of a variable in [0, 1] is at most that of a Bernoulli variable of the same
mean, so Chernoff's inequality holds for their mean, with J in place of the number of rows. It is the exact bound where
all rows of a group have the same outcome.

Bennett's and Ville's inequalities need one independent row after the other, which rows in the order of their claims
are not. The cumulative curve is instead bounded at up to 64 points, each by Chernoff's inequality for the rows up to
it, and between them by 0 ≤ q ≤ 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hcal.certificates.bounds import kl_interval
from hcal.numerics import Float64, IntArray

#: The curve is bounded at so many points.
_POINTS: Final = 64


@dataclass(frozen=True)
class DependentRows:
    """The groups of rows in ascending order of their claims.

    Attributes
    ----------
    group : array of shape (N,)
        Number of the group of each row.
    gap : array of shape (N,)
        Claim minus mark of each row.
    """

    group: IntArray
    gap: Float64

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(np.unique(self.group))

    @property
    def largest(self) -> int:
        """Number of rows of the largest group."""
        return int(np.unique(self.group, return_counts=True)[1].max())

    def intervals(
        self, spans: IntArray, stated: Float64, observed: Float64, logs: Float64
    ) -> tuple[Float64, Float64]:
        """Return the interval of the mean true probability in each of W windows.

        Parameters
        ----------
        spans : array of shape (2, W)
            Number of the first row of each window, and the one after its last.
        stated, observed : array of shape (W,)
            Mean claim and mean mark.
        logs : array of shape (W,)
            log(1/failure) of each side.

        Examples
        --------
        >>> rows = DependentRows(np.arange(100) // 2, np.zeros(100))
        >>> ends = rows.intervals(np.array([[0], [100]]), *np.array([[0.5], [0.5], [3.0]]))
        >>> [end.round(3).tolist() for end in ends]  # as 50 independent rows
        [[0.332], [0.668]]
        """
        counts = np.array([self._count(first, last) for first, last in spans.T])
        groups, largest = counts.T
        # With groups of unequal size the mean over groups is this share of the mean over rows.
        share = (spans[1] - spans[0]) / (groups * largest)
        # The rarer of the event and its opposite is the one to count. Claims choose it, so labels have no influence.
        rare = stated <= 0.5
        low, high = kl_interval(np.where(rare, observed, 1 - observed) * share, logs / groups)
        low = np.minimum(low / share, 1.0)
        high = np.minimum(high / share, 1.0)
        return np.where(rare, low, 1 - high), np.where(rare, high, 1 - low)

    def _count(self, first: int, last: int) -> tuple[int, int]:
        """Return the number of groups in a window, and the most rows that one of them has there."""
        sizes = np.unique(self.group[first:last], return_counts=True)[1]
        return len(sizes), int(sizes.max())

    def band(
        self, ends: Float64, claimed: Float64, happened: Float64, failure: float
    ) -> tuple[Float64, Float64]:
        """Return a band of the curve (1/n) Σ_{p ≤ t} (p − q) at the G different claims, (G,) each.

        Parameters
        ----------
        ends, claimed, happened : array of shape (G + 1,)
            Prefix sums of rows, claims and marks, from 0.
        failure : float
        """
        n = ends[-1]
        targets = np.linspace(0, n, _POINTS + 1)[1:]
        # Of a few rows, each point has at least one.
        points = np.unique(np.searchsorted(ends, np.maximum(targets - 0.5, 0.5)))
        rows = ends[points]
        stated = claimed[points] / rows
        observed = np.clip(happened[points] / rows, 0.0, 1.0)
        spans = np.stack([np.zeros(len(points)), rows]).astype(np.int64)
        logs = np.full(len(points), np.log(2 * len(points) / failure))
        rate_low, rate_high = self.intervals(spans, stated, observed, logs)

        # Before the first row the curve is 0.
        points = np.append(0, points)
        low = np.append(0.0, (stated - rate_high) * rows)
        high = np.append(0.0, (stated - rate_low) * rows)

        place = np.arange(1, len(ends))
        following = np.searchsorted(points, place)
        before, after = points[following - 1], points[following]
        claimed_since = claimed[place] - claimed[before]
        claimed_until = claimed[after] - claimed[place]
        rest_since = ends[place] - ends[before] - claimed_since
        rest_until = ends[after] - ends[place] - claimed_until
        lowest = np.maximum(low[following - 1] - rest_since, low[following] - claimed_until)
        highest = np.minimum(high[following - 1] + claimed_since, high[following] + rest_until)
        return lowest / n, highest / n

    def noise(self, first: int, last: int) -> float:
        """Return the variance of the mean gap of a window, from the sums of its groups."""
        gap = self.gap[first:last]
        sums = np.bincount(self.group[first:last], gap - gap.mean())
        return float((sums**2).sum() / len(gap) ** 2)
