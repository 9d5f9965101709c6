"""The h loss of any number of events, from a table: buckets of the first bits of a probability.

The bits of a positive float order like the float, so the first of them name a bucket of neighbours. A block
of rows gives, for every bucket that it meets, the number of events with and without a mark and the sum, least
and greatest of their probabilities; tables of blocks add up. The merged table gives the loss and one slope a
bucket (two where its values are all equal), which a second pass looks up.

Events of one bucket count as tied at their mean, with their marks spread evenly. Where a bucket holds one
value the tie is real, and the definition's order (unmarked first) is kept: with all 64 bits, or where every
value has a bucket of its own, the loss is exact. Otherwise a window differs from its exact form only in the
two buckets that its ends cut, and :attr:`BucketLoss.bound` adds up by how much at most.

Everything here costs time in the number of buckets: between the ends of buckets the error of a window is
linear in its position, so sums over positions are arithmetic series.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hcal.objective.events import EventsArgument, family_of
from hcal.objective.protocol import Objective
from hcal.objective.settings import EVEN, HALF_WAY, ObjectiveSettings
from hcal.runtime.gradients import Gradient
from hcal.runtime.numerics import Float64, IntArray

_Keys = NDArray[np.uint64]
_SUMS = ("unmarked", "marked", "total")
_COLUMNS = (*_SUMS, "low", "high")
_EQUAL = "the objective 'h' takes equal weights only: repeat rows instead"


class BucketTable:
    """Events in buckets: a partial result (:mod:`hcal.runtime.partial`).

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
        self._columns = {name: np.empty(0) for name in _COLUMNS}

    def update(self, p: Float64, marks: NDArray[np.bool_]) -> Self:
        """Add events.

        Parameters
        ----------
        p : array of shape (n,)
        marks : bool array of shape (n,)

        Returns
        -------
        self
        """
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
            self._columns[name] = np.bincount(place, weights=joined[name], minlength=len(every))
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
        found = _loss(groups, self.settings)
        slopes = np.empty((2, len(self.keys)))
        slopes[0, groups.bucket] = slopes[1, groups.bucket] = found.slope
        for mark in (0, 1):
            own = groups.kind == mark
            slopes[mark, groups.bucket[own]] = found.slope[own]
        return BucketLoss(found.value, found.bound, self.keys, slopes, self.bits)


def bucket_keys(p: Float64, bits: int) -> _Keys:
    """Return the first bits of probabilities (n,), as integers.

    Examples
    --------
    >>> a, b, c = bucket_keys(np.array([0.5, 0.5000001, 0.7]), 28)
    >>> bool(a == b), bool(b < c)
    (True, True)
    """
    bits_of = (np.maximum(np.asarray(p, dtype=np.float64), 0.0) + 0.0).view(np.uint64)
    return np.asarray(bits_of >> np.uint64(64 - bits))


@dataclass(frozen=True)
class BucketLoss:
    """What a table says.

    Attributes
    ----------
    value : float
    bound : float
        How far the loss can be from that of the events themselves, beyond rounding, with ``norm=1`` and the
        windows weighted as here (k-means may cut its clusters elsewhere).
    keys : array of shape (B,)
    slopes : array of shape (2, B)
        The gradient in the probability of an unmarked and of a marked event of each bucket.
    bits : int
    """

    value: float
    bound: float
    keys: _Keys
    slopes: Float64
    bits: int

    def slope_of(self, p: Float64, marks: NDArray[np.bool_]) -> Float64:
        """Return the gradient in the probabilities (n,) of events that the table has seen."""
        place = np.searchsorted(self.keys, bucket_keys(p, self.bits))
        return self.slopes[np.asarray(marks, dtype=np.int64), place]


# -- the loss of groups of tied events ----------------------------------------------------------------


class _Groups(NamedTuple):
    """Runs of events, ascending: how many, their probability and rate of marks, their bucket, their kind.

    ``kind`` is 0 or 1 for the unmarked or marked events of a bucket of one value, 2 for a bucket of several.
    ``cut`` bounds how far the sums of probabilities and marks over a part of a bucket are from the even ones.
    """

    size: Float64
    q: Float64
    rate: Float64
    bucket: IntArray
    kind: IntArray
    cut: Float64


def _groups(columns: dict[str, Float64]) -> _Groups:
    unmarked, marked, total = (columns[name] for name in _SUMS)
    size, width = unmarked + marked, columns["high"] - columns["low"]
    single, every = width == 0, np.arange(len(size))
    parts = [
        (unmarked, 0.0 * size, np.full(len(size), 0), single & (unmarked > 0)),
        (marked, 0.0 * size + 1.0, np.full(len(size), 1), single & (marked > 0)),
        (size, marked / size, np.full(len(size), 2), ~single),
    ]
    mean = np.where(single, columns["low"], np.clip(total / size, columns["low"], columns["high"]))
    cut = np.where(single, 0.0, unmarked * marked / size + size / 4 * width)
    count, rate, kind, bucket = (
        np.concatenate([column[keep] for column, keep in pairs])
        for pairs in (
            [(p[0], p[3]) for p in parts],
            [(p[1], p[3]) for p in parts],
            [(p[2], p[3]) for p in parts],
            [(every, p[3]) for p in parts],
        )
    )
    order = np.lexsort((kind, bucket))
    at = bucket[order]
    return _Groups(count[order], mean[at], rate[order], at, kind[order], cut[at])


class _Line(NamedTuple):
    """A function of integer positions that is linear between ``at``: its values there."""

    at: Float64
    value: Float64

    def __call__(self, position: Float64) -> Float64:
        return np.interp(position, self.at, self.value)


class _Found(NamedTuple):
    value: float
    bound: float
    slope: Float64


def _loss(groups: _Groups, s: ObjectiveSettings) -> _Found:
    """Return the loss, its bound, and the mean gradient of every group's events."""
    ends = np.concatenate([[0.0], np.cumsum(groups.size)])
    n = float(ends[-1])
    m = min(float(s.window), n)
    n_windows = n - m + 1
    # Sums over the events up to a rank, from which those of a window are differences.
    q_sum = _Line(ends, np.concatenate([[0.0], np.cumsum(groups.size * groups.q)]))
    mark_sum = _Line(ends, np.concatenate([[0.0], np.cumsum(groups.size * groups.rate)]))

    def centroid(j: Float64) -> Float64:
        return (q_sum(j + m) - q_sum(j)) / m

    def rate(j: Float64) -> Float64:
        return (mark_sum(j + m) - mark_sum(j)) / m

    cuts = _within(np.concatenate([ends, ends - m]), n_windows)
    edges = _cluster_edges(cuts, centroid(cuts[:-1]), centroid(cuts[1:] - 1), n_windows, s)
    cuts = _within(np.concatenate([cuts, edges]), n_windows)
    cuts = _within(np.concatenate([cuts, *_crossings(cuts, centroid, rate, s.epsilon)]), n_windows)
    first, last = cuts[:-1], cuts[1:] - 1
    count = last - first + 1
    counts = np.diff(edges)
    weight = (1 / (len(counts) * np.maximum(counts, 1)))[np.searchsorted(edges[1:-1], first, side="right")]
    excess, sign = zip(*(_excess(centroid(j), rate(j), s.epsilon) for j in (first, last)), strict=True)
    if s.norm == 1:
        terms, tilt = count * (excess[0] + excess[1]) / 2, [sign[i] * (excess[i] > 0) for i in (0, 1)]
    else:
        spread = np.where(count > 1, (excess[1] - excess[0]) ** 2 * (count + 1) / np.maximum(count - 1, 1), 0)
        terms = count * (((excess[0] + excess[1]) / 2) ** 2 + spread / 12)
        tilt = [2 * sign[i] * excess[i] for i in (0, 1)]
    value = s.scale * float(weight @ terms)
    # Between cuts both ends of a window stay in one group each; a window ends with the event j + m − 1.
    at = (np.searchsorted(ends, j, side="right") - 1 for j in (first, last + m - 1))
    reach = sum((np.minimum(groups.cut[a], m) for a in at), np.zeros(len(first)))
    bound = s.scale * float(weight @ (count * reach)) / m
    slope = _spread(groups, ends, cuts, [weight * t for t in tilt], m) * (s.scale / m)
    return _Found(value, bound, slope)


def _within(positions: Float64, n_windows: float) -> Float64:
    """Return positions inside 0..n_windows, both ends among them, ascending."""
    return np.unique(np.clip(np.concatenate([positions, [0.0, n_windows]]), 0.0, n_windows))


def _excess(centroid: Float64, rate: Float64, epsilon: float) -> tuple[Float64, Float64]:
    error = centroid - rate
    excess = np.abs(error) - epsilon
    excess[excess <= EVEN * rate] = 0
    return excess, np.sign(error)


def _crossings(cuts: Float64, centroid: Any, rate: Any, epsilon: float) -> list[Float64]:
    """Return positions around which the error passes ±ε: windows there stand alone, the rest has one sign."""
    first, last = cuts[:-1], cuts[1:] - 1
    low, high = centroid(first) - rate(first), centroid(last) - rate(last)
    found = []
    for level in {epsilon, -epsilon}:
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (level - low) / (high - low)
        near = np.isfinite(share) & (share >= 0) & (share <= 1)
        at = np.floor(first[near] + share[near] * (last - first)[near])
        found += [np.clip(at + step, first[near], last[near] + 1) for step in (-1, 0, 1, 2, 3)]
    return found


def _cluster_edges(
    cuts: Float64, low: Float64, high: Float64, n_windows: float, s: ObjectiveSettings
) -> Float64:
    """Return the k-means edges (C + 1,) of the windows' centroids, from ``low`` to ``high`` between cuts.

    As :func:`hcal.objective.weights.kmeans_ranges`, step by step.
    """
    if s.weighting == "uniform":
        return np.array([0.0, n_windows])
    first, count = cuts[:-1], np.diff(cuts)
    gain = np.where(count > 1, (high - low) / np.maximum(count - 1, 1), 0.0)
    prefix = np.concatenate([[0.0], np.cumsum(count * (low + high) / 2)])

    def value(j: Float64) -> Float64:
        place = np.clip(np.searchsorted(cuts, j, side="right") - 1, 0, len(first) - 1)
        return low[place] + gain[place] * (j - first[place])

    def up_to(j: Float64) -> Float64:
        place = np.clip(np.searchsorted(cuts, j, side="right") - 1, 0, len(first) - 1)
        t = j - first[place]
        return prefix[place] + t * low[place] + gain[place] * t * (t - 1) / 2

    def edges_of(centres: Float64) -> Float64:
        middle = HALF_WAY * (centres[1:] + centres[:-1]) / 2
        place = np.maximum(np.searchsorted(low, middle, side="right") - 1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.floor((middle - low[place]) / gain[place]) + 1
        whole = (middle >= high[place]) | ~np.isfinite(inside)
        t = np.where(
            middle < low[place], 0.0, np.where(whole, count[place], np.clip(inside, 0, count[place]))
        )
        return np.concatenate([[0.0], np.maximum.accumulate(first[place] + t), [n_windows]])

    at = (np.arange(s.clusters) + 0.5) / s.clusters * (n_windows - 1)
    below = np.floor(at)
    above = np.minimum(below + 1, n_windows - 1)
    centres = value(below) + (at - below) * (value(above) - value(below))
    for _ in range(s.iterations):
        edges = edges_of(centres)
        counts, sums = np.diff(edges), np.diff(up_to(edges))
        centres = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    return edges_of(centres)


def _spread(groups: _Groups, ends: Float64, cuts: Float64, tilt: list[Float64], m: float) -> Float64:
    """Return for every group the mean over its ranks of the sum of slopes of the windows that hold the rank.

    ``tilt`` are the slopes of the first and last window between cuts, linear in between. Their sum over the
    windows up to a position is quadratic there, so three values give the sum over any run of ranks without
    the loss of digits that long prefix sums would bring.
    """
    first, count = cuts[:-1], np.diff(cuts)
    gain = np.where(count > 1, (tilt[1] - tilt[0]) / np.maximum(count - 1, 1), 0.0)
    prefix = np.concatenate([[0.0], np.cumsum(count * (tilt[0] + tilt[1]) / 2)])

    def up_to(j: Float64, place: IntArray) -> Float64:
        t = j - first[place]
        return prefix[place] + t * tilt[0][place] + gain[place] * t * (t - 1) / 2

    bounds = _within(np.concatenate([ends, cuts - 1, cuts - 1 + m]), ends[-1])
    low, high = bounds[:-1], bounds[1:] - 1
    size = high - low + 1

    def summed(r: Float64, at: Float64) -> Float64:
        """Sum of slopes of the windows that hold rank r, both ends of the sum in the pieces of ``at``."""
        sides = []
        for shift in (1.0, 1.0 - m):
            position = np.clip(at + shift, 0.0, cuts[-1])
            place = np.clip(np.searchsorted(cuts, position, side="right") - 1, 0, len(first) - 1)
            sides.append(up_to(np.clip(r + shift, 0.0, cuts[-1]), place))
        return sides[0] - sides[1]

    middle = summed((low + high) / 2, low)
    bend = summed(low, low) + summed(high, low) - 2 * middle
    curved = np.where(size > 1, bend * size * (size + 1) / (6 * np.maximum(size - 1, 1)), 0.0)
    whole = size * middle + curved
    return np.add.reduceat(whole, np.searchsorted(bounds, ends[:-1])) / groups.size


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
        if np.ptp(weight) > 1e-9 * weight.max():
            raise ValueError(_EQUAL)
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
        if abs(self.weight - other.weight) > 1e-9 * self.weight:
            raise ValueError(_EQUAL)
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
