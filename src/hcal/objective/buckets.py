"""The h loss of any number of events, from a table: buckets of the first bits of a probability.

The bits of a positive float order like the float, so the first of them name a bucket of neighbours. A block
of rows gives, for every bucket that it meets, the number of events with and without a mark and the sum, least
and greatest of their probabilities; tables of blocks add up. The merged table gives the loss and one slope a
bucket (two where its values are all equal), which a second pass looks up.

Events of one bucket count as tied at their mean, with their marks spread evenly. Where a bucket holds one
value the tie is real, and the definition's order (unmarked first) is kept: with all 64 bits, or where every
value has a bucket of its own, the loss is exact. Otherwise a window differs from its exact form only in the
two buckets that its ends cut, and :attr:`BucketLoss.bound` adds up by how much at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hcal.objective.checks import check_equal_weights
from hcal.objective.events import EventsArgument, family_of
from hcal.objective.protocol import Objective
from hcal.objective.settings import ObjectiveSettings
from hcal.objective.tied_windows import TiedGroups, tied_loss
from hcal.runtime.gradients import Gradient
from hcal.numerics import Float64, IntArray

_Keys = NDArray[np.uint64]
_SUMS = ("unmarked", "marked", "total")
_COLUMNS = (*_SUMS, "low", "high")


class BucketTable:
    """Events in buckets: a partial result (:mod:`hcal.partial`).

    Parameters
    ----------
    settings : ObjectiveSettings
    bits : int
        How many of the first bits of a float64 probability name its bucket: 12 for sign and exponent, each
        further one halves the buckets. 28 leave a relative width of 1.5e-5.

    Examples
    --------
    >>> brier = ObjectiveSettings(window=1, epsilon=0, scale=1, norm=2, weighting="uniform")
    >>> table = BucketTable(brier, bits=64).update(np.array([0.25, 0.75]), np.array([False, True]))
    >>> table.result().value
    0.0625
    """

    def __init__(self, settings: ObjectiveSettings | None = None, bits: int = 28) -> None:
        if not 12 <= bits <= 64:
            raise ValueError(f"bits must be 12 to 64, got {bits}")
        self.settings, self.bits = settings or ObjectiveSettings(), bits
        self.keys: _Keys = np.empty(0, dtype=np.uint64)
        self._columns: dict[str, Float64] = {name: np.empty(0) for name in _COLUMNS}

    def update(self, p: Float64, marks: NDArray[np.bool_]) -> Self:
        """Add events with probabilities (n,) and marks (n,)."""
        keys, value = bucket_keys(p, self.bits), np.asarray(p, dtype=np.float64)
        mark = np.asarray(marks, dtype=np.float64)
        return self._add(keys, dict(zip(_COLUMNS, (1 - mark, mark, value, value, value), strict=True)))

    def merge(self, other: BucketTable) -> Self:
        """Add the events of another table."""
        if (other.bits, other.settings) != (self.bits, self.settings):
            raise ValueError("only tables of the same bits and settings can be merged")
        return self._add(other.keys, other._columns)

    def __add__(self, other: BucketTable) -> BucketTable:
        return BucketTable(self.settings, self.bits).merge(self).merge(other)

    def _add(self, keys: _Keys, columns: dict[str, Float64]) -> Self:
        every, place = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        joined = {name: np.concatenate([own, columns[name]]) for name, own in self._columns.items()}
        for name in _SUMS:
            sums = np.bincount(place, weights=joined[name], minlength=len(every))
            self._columns[name] = np.asarray(sums, dtype=np.float64)
        low, high = np.full(len(every), np.inf), np.full(len(every), -np.inf)
        np.minimum.at(low, place, joined["low"])
        np.maximum.at(high, place, joined["high"])
        self.keys, self._columns["low"], self._columns["high"] = every, low, high
        return self

    @property
    def state(self) -> dict[str, Any]:
        """What was seen; its size is that of the buckets in use."""
        return {"bits": self.bits, "settings": self.settings, "keys": self.keys, **self._columns}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Go on from a state."""
        found = cls(state["settings"], state["bits"])
        return found._add(state["keys"], {name: state[name] for name in found._columns})

    def result(self) -> BucketLoss:
        """Return the loss of all events seen, its bound, and the slopes."""
        if not len(self.keys):
            raise ValueError("there are no events")
        groups = _groups(self._columns)
        found = tied_loss(groups, self.settings)
        slopes = np.empty((2, len(self.keys)))
        slopes[0, groups.bucket] = slopes[1, groups.bucket] = found.slope
        for mark in (0, 1):
            own = groups.kind == mark
            slopes[mark, groups.bucket[own]] = found.slope[own]
        return BucketLoss(found.value, found.bound, self.keys, slopes, self.bits)


def bucket_keys(p: Float64, bits: int) -> _Keys:
    """Return the first bits of probabilities (n,), as integers.

    >>> a, b, c = bucket_keys(np.array([0.5, 0.5000001, 0.7]), 28)
    >>> bool(a == b), bool(b < c)
    (True, True)
    """
    bits_of = (np.maximum(np.asarray(p, dtype=np.float64), 0.0) + 0.0).view(np.uint64)
    return np.asarray(bits_of >> np.uint64(64 - bits))


@dataclass(frozen=True)
class BucketLoss:
    """What a table of B buckets says."""

    value: float
    #: How far the loss can be from that of the events themselves, beyond rounding, with ``norm=1`` and the
    #: windows weighted as here (k-means may cut its clusters elsewhere).
    bound: float
    keys: _Keys
    slopes: Float64  # (2, B): the gradient in the probability of an unmarked and of a marked event
    bits: int

    def slope_of(self, p: Float64, marks: NDArray[np.bool_]) -> Float64:
        """Return the gradient in the probabilities (n,) of events that the table has seen."""
        place = np.searchsorted(self.keys, bucket_keys(p, self.bits))
        return self.slopes[np.asarray(marks, dtype=np.int64), place]


def _groups(columns: dict[str, Float64]) -> TiedGroups:
    unmarked, marked, total = (columns[name] for name in _SUMS)
    size, width = unmarked + marked, columns["high"] - columns["low"]
    single = width == 0
    parts = (
        (single & (unmarked > 0), unmarked, np.zeros_like(size)),
        (single & (marked > 0), marked, np.ones_like(size)),
        (~single, size, marked / size),
    )
    bucket = np.concatenate([np.flatnonzero(keep) for keep, _, _ in parts])
    kind = np.repeat([0, 1, 2], [np.count_nonzero(keep) for keep, _, _ in parts])
    count = np.concatenate([own[keep] for keep, own, _ in parts])
    rate = np.concatenate([own[keep] for keep, _, own in parts])
    mean = np.where(single, columns["low"], np.clip(total / size, columns["low"], columns["high"]))
    cut = np.where(single, 0.0, unmarked * marked / size + size / 4 * width)
    order = np.lexsort((kind, bucket))
    at = bucket[order]
    return TiedGroups(count[order], mean[at], rate[order], at, kind[order], cut[at])


# -- as an objective ----------------------------------------------------------------------------------


def bucketed_h(*, bits: int = 28, events: EventsArgument = "pooled", **settings: Any) -> Objective:
    """Return the h loss by buckets: a sum over blocks in two passes, for rows that are not in memory.

    Parameters
    ----------
    bits : int
        See :class:`BucketTable`; more bits, a smaller error and a larger table.
    events : {"pooled", "top-label", "class-wise"}, class index, list of subsets of classes, or Family
    **settings
        See :class:`hcal.objective.ObjectiveSettings`.

    Returns
    -------
    Objective

    Examples
    --------
    >>> brier = bucketed_h(bits=64, window=1, epsilon=0, scale=1, norm=2, weighting="uniform")
    >>> value, grad = brier.value_and_grad(np.log([[0.25, 0.75]]), np.array([1]), np.ones(1))
    >>> round(value, 6), grad.round(6)
    (0.0625, array([[ 0.0625, -0.1875]]))
    """
    family, chosen = family_of(events), ObjectiveSettings(**settings)

    def table(log_probs: Float64, y: IntArray, weight: Float64) -> FamilyTables:
        check_equal_weights(weight)
        found = family.gather(np.exp(log_probs), y)
        tables = [BucketTable(chosen, bits).update(q, o) for q, o in zip(found.q, found.marks, strict=True)]
        return FamilyTables(family, tuple(tables), float(weight[0]))

    def value_and_grad(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
        value, by_rows = table(log_probs, y, weight).result()
        return value, by_rows(log_probs, y, weight)

    return Objective("bucketed_h", value_and_grad, by_rows=False, table=table)


@dataclass(frozen=True)
class FamilyTables:
    """A table for every row of a family's events; they add up."""

    family: Any
    tables: tuple[BucketTable, ...]
    weight: float  # of a row

    def __add__(self, other: FamilyTables) -> FamilyTables:
        check_equal_weights(np.array([self.weight, other.weight]))
        pairs = zip(self.tables, other.tables, strict=True)
        return FamilyTables(self.family, tuple(a + b for a, b in pairs), self.weight)

    def result(self) -> tuple[float, FamilySlopes]:
        """Return the mean loss, and what gives the gradient of a block."""
        found = tuple(table.result() for table in self.tables)
        return float(np.mean([one.value for one in found])), FamilySlopes(self.family, found)


@dataclass(frozen=True)
class FamilySlopes:
    """(log-probabilities (B, K), labels (B,), weights) ↦ gradient (B, K); small, so that it can be sent."""

    family: Any
    losses: tuple[BucketLoss, ...]

    def __call__(self, log_probs: Float64, y: IntArray, weight: Float64) -> Float64:
        """Return the gradient in the log-probabilities of a block."""
        probs = np.exp(log_probs)
        events = self.family.gather(probs, y)
        slopes = [one.slope_of(q, o) for one, q, o in zip(self.losses, events.q, events.marks, strict=True)]
        gradient: Float64 = self.family.scatter(np.stack(slopes) / len(slopes), probs, events) * probs
        return gradient
