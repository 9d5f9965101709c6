"""What each threshold of P(positive) decides and catches, and which threshold a criterion chooses.

Rows at or above a threshold are *decided* positive; events among them are *caught*. A *cut* is the number of a
threshold: cut 0 decides all rows, cut g those from the g-th different probability on, and the last cut none. Between
two neighbouring probabilities every threshold decides the same rows.

Bootstrap samples draw rows, or whole groups. A curve is first coarsened to at most ``CUTS`` cuts, so that the work per
sample does not grow with the rows. Without groups, the numbers of rows and events between two cuts are then one
multinomial draw, which is the bootstrap of rows exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from hcal.numerics import Float64, IntArray, run_starts

#: What errors cost: those of a missed event (fn) and of a false alarm (fp), or a table of K x K costs.
Costs = Mapping[str, float] | ArrayLike
#: A frequency that misses its target by rounding alone reaches it.
_ROUNDING: Final = 1e-12
#: About so many thresholds take part in the bootstrap.
CUTS: Final = 400
#: Numbers of a block of drawn groups.
_BLOCK: Final = 4_000_000


@dataclass(frozen=True)
class Counts:
    """Rows that are decided positive and events among them at C cuts; of B bootstrap samples, shapes (B, C)."""

    decided: Float64
    caught: Float64

    @property
    def rows(self) -> Float64:
        """All rows, shape (..., 1): the first cut decides them all."""
        return self.decided[..., :1]

    @property
    def events(self) -> Float64:
        """All events, shape (..., 1)."""
        return self.caught[..., :1]

    @property
    def share(self) -> Float64:
        """The share of the rows that is decided positive."""
        return self.decided / self.rows

    @property
    def precision(self) -> Float64:
        """The share of events among the rows decided positive; NaN without such rows."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.caught / self.decided)

    @property
    def recall(self) -> Float64:
        """The share of all events that is caught; NaN without events."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.caught / self.events)

    def cost(self, fn: float, fp: float) -> Float64:
        """Return the mean cost of a row: ``fn`` for each event missed, ``fp`` for each false alarm."""
        missed = self.events - self.caught
        false_alarms = self.decided - self.caught
        return np.asarray((fn * missed + fp * false_alarms) / self.rows)

    def net_benefit(self, odds: float | Float64) -> Float64:
        """Return events caught less ``odds`` times the false alarms, per row (Vickers and Elkin, 2006)."""
        return np.asarray((self.caught - odds * (self.decided - self.caught)) / self.rows)

    def at(self, cuts: IntArray) -> Counts:
        """Return the counts at some cuts, the first of which decides all rows."""
        return Counts(self.decided[..., cuts], self.caught[..., cuts])


@dataclass(frozen=True)
class ThresholdCurve:
    """Rows and events at each different probability.

    Attributes
    ----------
    value : array of shape (G,)
        Probabilities of the positive class, ascending.
    count : array of shape (G,)
        Rows with that probability, or the sum of their weights.
    happened : array of shape (G,)
        Events among them.

    Examples
    --------
    >>> curve = ThresholdCurve.of_rows(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    >>> curve.counts.decided, curve.counts.caught
    (array([4., 3., 1., 0.]), array([2., 2., 1., 0.]))
    >>> cut = int(LeastCost(fn=5, fp=1).choose(curve.counts))
    >>> cut, curve.threshold(cut)
    (1, 0.25)
    """

    value: Float64
    count: Float64
    happened: Float64

    @classmethod
    def of_rows(
        cls, risk: Float64, event: ArrayLike, weight: Float64 | None = None
    ) -> ThresholdCurve:
        """Return the curve of rows: probabilities (N,), whether the event happened (N,), weights (N,)."""
        order = np.argsort(risk)
        ascending = risk[order].astype(np.float64)
        first = run_starts(ascending)
        ones = np.ones(len(risk)) if weight is None else weight
        mass = ones[order]
        hits = mass * np.asarray(event, dtype=np.float64)[order]
        return cls(ascending[first], np.add.reduceat(mass, first), np.add.reduceat(hits, first))

    @cached_property
    def counts(self) -> Counts:
        """What every cut decides and catches, shape (G + 1,)."""
        return Counts(_from_the_top(self.count), _from_the_top(self.happened))

    def threshold(self, cut: int) -> float:
        """Return the threshold of a cut: halfway between the probabilities that it separates.

        The last cut decides no row of these; its threshold lies halfway to 1, or just above 1.
        """
        if cut == 0:
            return 0.0
        below = float(self.value[cut - 1])
        if cut < len(self.value):
            return _between(below, float(self.value[cut]))
        return _between(below, 1.0) if below < 1 else float(np.nextafter(1.0, 2.0))

    def cut_of(self, threshold: float) -> int:
        """Return the cut that decides the rows at or above a threshold."""
        return int(np.searchsorted(self.value, threshold, side="left"))

    def cut_of_rows(self, decided: ArrayLike) -> IntArray:
        """Return the cuts that decide at most so many rows, as near to it as possible."""
        return np.asarray(np.searchsorted(-self.counts.decided, -np.asarray(decided), side="left"))


class Criterion(Protocol):
    """What is wanted of a threshold."""

    #: Its name as an argument: cost, capacity, precision or recall.
    name: str

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that were asked for."""

    def choose(self, counts: Counts) -> IntArray:
        """Return the best cut of each sample; of cuts that are equally good, the lowest threshold."""

    def measure(self, counts: Counts) -> Float64:
        """Return the figure that the choice makes look too good on its own rows."""

    def words(self) -> str:
        """Return the criterion as a part of a sentence."""


@dataclass(frozen=True)
class LeastCost:
    """The cut of the least total cost."""

    fn: float
    fp: float
    name = "cost"

    @property
    def numbers(self) -> dict[str, float]:
        """The two costs."""
        return {"fn": self.fn, "fp": self.fp}

    @property
    def theory(self) -> float:
        """The best threshold of probabilities that are calibrated: fp / (fp + fn)."""
        return self.fp / (self.fp + self.fn)

    def choose(self, counts: Counts) -> IntArray:
        """Return the cut of the least cost."""
        return np.asarray(self.measure(counts).argmin(axis=-1))

    def measure(self, counts: Counts) -> Float64:
        """Return the mean cost of a row."""
        return counts.cost(self.fn, self.fp)

    def words(self) -> str:
        """Return the criterion as a part of a sentence."""
        return f"the least cost (fn {self.fn:g}, fp {self.fp:g})"


@dataclass(frozen=True)
class AtMostShare:
    """The lowest cut that decides at most a share of the rows."""

    share: float
    name = "capacity"

    @property
    def numbers(self) -> dict[str, float]:
        """The share."""
        return {"capacity": self.share}

    def choose(self, counts: Counts) -> IntArray:
        """Return the first cut with a small enough share; the last cut decides none."""
        return np.asarray((counts.share <= self.share + _ROUNDING).argmax(axis=-1))

    def measure(self, counts: Counts) -> Float64:
        """Return the share of all events that is caught."""
        return counts.recall

    def words(self) -> str:
        """Return the criterion as a part of a sentence."""
        return f"at most {100 * self.share:g} % of the rows"


@dataclass(frozen=True)
class AtLeastPrecision:
    """The lowest cut with a precision, so that it catches the most."""

    precision: float
    name = "precision"

    @property
    def numbers(self) -> dict[str, float]:
        """The precision."""
        return {"precision": self.precision}

    def choose(self, counts: Counts) -> IntArray:
        """Return the first cut that is precise enough; the last cut where none is."""
        enough = counts.precision >= self.precision - _ROUNDING
        enough[..., -1] = True
        return np.asarray(enough.argmax(axis=-1))

    def measure(self, counts: Counts) -> Float64:
        """Return the precision."""
        return counts.precision

    def words(self) -> str:
        """Return the criterion as a part of a sentence."""
        return f"a precision of at least {100 * self.precision:g} %"


@dataclass(frozen=True)
class AtLeastRecall:
    """The highest cut with a recall, so that it decides the fewest rows."""

    recall: float
    name = "recall"

    @property
    def numbers(self) -> dict[str, float]:
        """The recall."""
        return {"recall": self.recall}

    def choose(self, counts: Counts) -> IntArray:
        """Return the last cut that catches enough; the first cut catches everything."""
        enough = counts.recall >= self.recall - _ROUNDING
        last = enough.shape[-1] - 1
        return np.asarray(last - enough[..., ::-1].argmax(axis=-1))

    def measure(self, counts: Counts) -> Float64:
        """Return the recall."""
        return counts.recall

    def words(self) -> str:
        """Return the criterion as a part of a sentence."""
        return f"a recall of at least {100 * self.recall:g} %"


def criterion_of(
    cost: Costs | None = None,
    capacity: float | None = None,
    precision: float | None = None,
    recall: float | None = None,
) -> Criterion:
    """Return the one criterion that was asked for.

    >>> criterion_of(cost={"fn": 20, "fp": 1}).words()
    'the least cost (fn 20, fp 1)'
    """
    values = {"cost": cost, "capacity": capacity, "precision": precision, "recall": recall}
    named = [name for name, value in values.items() if value is not None]
    if len(named) != 1:
        listed = " and ".join(named) if named else "none of them"
        raise ValueError(f"give one of cost, capacity, precision and recall; got {listed}")
    if cost is not None:
        return LeastCost(*check_costs(cost))
    value = _share(values[named[0]], named[0])
    if capacity is not None:
        return AtMostShare(value)
    return AtLeastPrecision(value) if precision is not None else AtLeastRecall(value)


def check_costs(cost: object) -> tuple[float, float]:
    """Return the costs of a missed event and of a false alarm.

    >>> check_costs({"fn": 20, "fp": 1})
    (20.0, 1.0)
    """
    if not isinstance(cost, Mapping) or set(cost) != {"fn", "fp"}:
        raise ValueError(
            "cost must be {'fn': …, 'fp': …}, the costs of a missed positive and of a false alarm, "
            f"or a table of K x K costs; got {cost!r}"
        )
    costs = float(cost["fn"]), float(cost["fp"])
    if not all(np.isfinite(value) and value >= 0 for value in costs) or not sum(costs) > 0:
        raise ValueError(f"costs must be finite and not negative, and not all 0; got {cost!r}")
    return costs


def _share(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ValueError(f"{name} must be a number between 0 and 1, got {value!r}")
    if not 0 < value <= 1:
        raise ValueError(f"{name} must lie between 0 and 1, such as 0.05 for 5 %; got {value!r}")
    return float(value)


def _from_the_top(values: Float64) -> Float64:
    """Return the sums of each entry (..., G) and all after it, and 0 for none, shape (..., G + 1)."""
    sums = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([sums, np.zeros((*values.shape[:-1], 1))], axis=-1)


def _between(low: float, high: float) -> float:
    """Return the middle of two numbers, above the lower one and at most the upper one, rounding included."""
    middle = (low + high) / 2
    return middle if middle > low else high


# -- bootstrap samples of what each threshold decides -----------------------------------------------


def coarse_cuts(curve: ThresholdCurve, *always: int) -> IntArray:
    """Return the numbers of some cuts, ascending: even in rows, denser among few decided rows, and those named.

    >>> curve = ThresholdCurve.of_rows(np.array([0.1, 0.4, 0.8]), np.array([0, 0, 1]))
    >>> coarse_cuts(curve)
    array([0, 1, 2, 3])
    """
    last = len(curve.value)
    if last <= CUTS:
        return np.arange(last + 1)
    n_rows = float(curve.counts.decided[0])
    even = np.linspace(0, n_rows, CUTS // 2)
    fewest = min(1.0, n_rows / 2)
    dense = np.geomspace(fewest, n_rows, CUTS // 2)
    cuts = curve.cut_of_rows(np.concatenate([even, dense]))
    return np.unique(np.concatenate([cuts, [0, last], always])).astype(np.int64)


def drawn_rows(
    curve: ThresholdCurve, cuts: IntArray, resamples: int, rng: np.random.Generator
) -> Counts:
    """Return bootstrap samples of independent rows at some cuts, shape (B, C)."""
    counts = curve.counts.at(cuts)
    rows = counts.decided[:-1] - counts.decided[1:]
    events = np.clip(counts.caught[:-1] - counts.caught[1:], 0.0, rows)
    mass = np.concatenate([rows - events, events])
    n_rows = max(round(float(mass.sum())), 1)
    drawn = rng.multinomial(n_rows, mass / mass.sum(), size=resamples).astype(np.float64)
    return _counts(drawn)


def group_members(
    cell: IntArray, event: Float64, weight: Float64, groups: IntArray, n_cells: int
) -> sparse.csr_matrix:
    """Return the rows of each group in each cell, without the event and with it, shape (2·cells, groups).

    Parameters
    ----------
    cell : array of shape (N,)
        Between which two cuts each row lies.
    event, weight, groups : array of shape (N,)
    n_cells : int
    """
    unit = np.unique(groups, return_inverse=True)[1]
    place = cell + n_cells * event.astype(np.int64)
    return sparse.csr_matrix((weight, (place, unit)), shape=(2 * n_cells, int(unit.max()) + 1))


def drawn_groups(members: sparse.csr_matrix, resamples: int, rng: np.random.Generator) -> Counts:
    """Return bootstrap samples of whole groups, shape (B, C)."""
    n_groups = members.shape[1]
    step = max(1, _BLOCK // n_groups)
    parts = []
    for first in range(0, resamples, step):
        size = min(step, resamples - first)
        picked = rng.integers(0, n_groups, (size, n_groups))
        copies = np.stack([np.bincount(row, minlength=n_groups) for row in picked])
        parts.append(np.asarray((members @ copies.T).T, dtype=np.float64))
    return _counts(np.concatenate(parts))


def _counts(drawn: Float64) -> Counts:
    """Return what the cuts decide and catch from the rows without and with the event in each cell (B, 2·cells)."""
    quiet, events = np.split(drawn, 2, axis=1)
    return Counts(_from_the_top(quiet + events), _from_the_top(events))
