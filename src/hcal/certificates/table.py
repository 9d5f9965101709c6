"""An event on many rows, as the table that every certificate is computed from.

Rows with the same claimed probability belong together: no window and no point of the curve ever splits them,
so that no order of rows (a file sorted by label, say) can enter. The same table holds either the distinct
probabilities themselves or fine bins of them. Bins can be added up part by part and machine by machine; their
edges do not depend on labels, so that everything certified from them is just as valid, at bin resolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64 as Vector
from hcal.numerics import prefix_sums, run_starts

#: Bins of a stream: each power of two below ½, and its mirror image above, has this many.
PER_OCTAVE = 64
_OCTAVES = 32
_SHIFT = 23 - 6  # a float32 has 23 bits after the first; the top 6 choose the bin
_HALF = int(np.float32(0.5).view(np.int32)) >> _SHIFT
_SIDE = PER_OCTAVE * _OCTAVES
BINS = 2 * _SIDE + 1


@dataclass(frozen=True)
class EventTable:
    """Claims and marks of one event, grouped by claim, in ascending order."""

    count: Vector  # (G,): rows of each group
    claimed: Vector  # (G,): sum of the claimed probabilities p
    happened: Vector  # (G,): how often the event happened
    low: Vector  # (G,): smallest and largest claim of the group; equal where groups are single values
    high: Vector

    @property
    def n(self) -> float:
        """Number of rows."""
        return float(self.ends[-1])

    @cached_property
    def ends(self) -> Vector:
        """Rows up to each group's end, from 0, shape (G + 1,)."""
        return prefix_sums(self.count)

    @cached_property
    def gaps(self) -> Vector:
        """Prefix sums of p − c, from 0, shape (G + 1,)."""
        return prefix_sums(self.claimed - self.happened)

    @cached_property
    def prefix(self) -> tuple[Vector, Vector]:
        """Prefix sums of p and of c, from 0."""
        return prefix_sums(self.claimed), prefix_sums(self.happened)

    @property
    def exact(self) -> bool:
        """Whether every group is one value."""
        return bool((self.low == self.high).all())


def table_of_rows(p: Vector, c: Vector) -> EventTable:
    """Group rows by their claimed probability p (N,); marks c (N,) are 0 or 1.

    >>> table_of_rows(np.array([0.5, 0.2, 0.5]), np.array([1.0, 0.0, 0.0])).happened
    array([0., 1.])
    """
    order = np.argsort(p)
    value = p[order].astype(np.float64)
    first = run_starts(value)
    count = np.diff(np.append(first, len(value))).astype(np.float64)
    happened = np.add.reduceat(c[order].astype(np.float64), first)
    value = value[first]
    return EventTable(count, value * count, happened, value, value)


def bin_of(p: NDArray[np.floating]) -> NDArray[np.int32]:
    """Return the stream bin of each probability, from its bits: no search, no logarithm.

    >>> bin_of(np.array([0.0, 0.5, 1.0])).tolist() == [0, _SIDE, BINS - 1]
    True
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
    low = np.concatenate([edge, 1 - edge[::-1][1:]])
    high = np.concatenate([edge[1:], [edge[-1]], 1 - edge[::-1][1:]])
    # An upper bin is the mirror image of a lower one: from 1 − (its end) to 1 − (its start).
    low[_SIDE + 1 :] = 1 - edge[::-1][:-1]
    return low, high


def table_of_bins(count: Vector, claimed: Vector, happened: Vector) -> EventTable:
    """Make a table of accumulated stream bins; empty ones are left out; count, claimed, happened (BINS,)."""
    low, high = bin_edges()
    full = count > 0
    return EventTable(count[full], claimed[full], happened[full], low[full], high[full])
