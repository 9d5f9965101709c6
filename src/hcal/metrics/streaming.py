"""Metrics of data that do not fit in memory: update block by block, merge across machines, read the result.

Most metrics are functions of sums over rows, which need O(bins·K) memory: ``_SUMS`` computes the sums of a block, and
``STREAMED`` the metric, and what it shows by chance, from the totals. ``ks`` and ``ece_em`` need the order of all
probabilities; here they are computed from a fine histogram (4096 equal bins, and finer ones towards 0 and 1), and
:meth:`StreamingMetrics.bounds` returns how far each can be from its exact value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from hcal.frames import AnyArray
from hcal.metrics.binned import (
    BINS,
    Bins,
    at_rows,
    clipped_equal_width,
    clipped_noise,
    edge_positions,
    equal_width,
    mean_share,
    noise_at,
    width_noise,
)
from hcal.metrics.by_chance import Crowd, DrawnGaps, Noise, drawn_levels
from hcal.metrics.class_wise import (
    SUM_BINS,
    Cells,
    equal_width_cells,
    equal_width_noise,
    kept_by_chance,
    thresholded_cells,
    thresholded_noise,
)
from hcal.metrics.registry import METRICS
from hcal.metrics.sample import Event, Sample, Vector, as_sample, check_event, check_integer
from hcal.metrics.scores import brier_rows, nll_rows
from hcal.numerics import Float64, prefix_sums
from hcal.rows import BlockOrder, Rows
from hcal.text import JsonObject


def _fine_edges() -> Float64:
    """Return the edges (lo, hi] of the fine histogram, denser towards 0 and 1, where most probabilities are."""
    to_the_end = 2.0 ** -(np.arange(96, 425) / 8)
    ends = [to_the_end, 1 - to_the_end, [np.nextafter(1, 0)]]
    return np.unique(np.concatenate([np.linspace(0, 1, 4097), *ends]))


_EDGES: Final = _fine_edges()

# -- the sums of a block ------------------------------------------------------------------------------


def _score_sums(s: Sample) -> Float64:
    """Return the sums of weight, nll, brier, hit and confidence of the predicted class, and the fractional weights."""
    scores = [nll_rows(s), brier_rows(s), s.data.top_hit, s.data.top_conf]
    sums = np.stack([np.ones(s.n), *scores]) @ s.w
    fractional = np.count_nonzero(s.w != np.rint(s.w))
    return np.append(sums, fractional)


def _fine_sums(s: Sample) -> Float64:
    """Return the sums of bins in the fine histogram, with those of probability times hit last, shape (6, bins)."""
    ranked = s.ranked
    positions = edge_positions(ranked.conf, _EDGES)
    bins = _bin_sums(at_rows(ranked, positions), noise_at(s, ranked, positions))
    products = prefix_sums(ranked.weight * ranked.conf * ranked.hit)
    return np.concatenate([bins, [np.diff(products[positions])]])


def _bin_sums(bins: Bins, noise: Noise) -> Float64:
    """Return the sums of bins and of their noise, shape (5, bins)."""
    return np.stack([*bins, noise.variance, noise.weighted_variance])


def _cell_sums(cells: Cells, noise: Noise) -> Float64:
    """Return the sums of cells and of their noise, shape (5, K, bins)."""
    return np.stack([*cells, *noise[1:]])


def _width_sums(s: Sample) -> Float64:
    return _bin_sums(equal_width(s, BINS), width_noise(s))


def _clipped_sums(s: Sample) -> Float64:
    return _bin_sums(clipped_equal_width(s, BINS), clipped_noise(s))


def _class_sums(s: Sample) -> Float64:
    return _cell_sums(equal_width_cells(s, BINS), equal_width_noise(s, BINS))


def _class_sums_of_14(s: Sample) -> Float64:
    return _cell_sums(equal_width_cells(s, SUM_BINS), equal_width_noise(s, SUM_BINS))


def _kept_sums(s: Sample) -> Float64:
    return _cell_sums(thresholded_cells(s, BINS), thresholded_noise(s, BINS))


_SUMS: Final[dict[str, Callable[[Sample], Float64]]] = {}
_SUMS["scores"] = _score_sums
_SUMS["width"] = _width_sums
_SUMS["clipped"] = _clipped_sums
_SUMS["fine"] = _fine_sums
_SUMS["cells"] = _class_sums
_SUMS["cells_s"] = _class_sums_of_14
_SUMS["kept"] = _kept_sums

# -- what follows from the sums of all blocks -----------------------------------------------------------


class Totals:
    """The sums of all blocks, by their names."""

    def __init__(self, sums: Mapping[str, Float64]) -> None:
        self.sums = sums

    def __getitem__(self, name: str) -> Float64:
        return self.sums[name]

    @property
    def weight(self) -> float:
        """The sum of the weights of all rows."""
        return float(self.sums["scores"][0])

    @property
    def copies(self) -> bool:
        """Whether all weights are whole numbers, which stand for as many rows."""
        return bool(self.sums["scores"][5] == 0)

    def score(self, place: int) -> float:
        """Return the mean of a score over all rows."""
        return float(self.sums["scores"][place] / self.weight)

    def bins(self, name: str) -> Bins:
        """Return the sums of bins."""
        return Bins(*self.sums[name][:3])

    def cells(self, name: str) -> Cells:
        """Return the sums of the cells of every class."""
        return Cells(*self.sums[name][:2])

    def bin_noise(self, name: str) -> Noise:
        """Return what chance adds to bins."""
        weight, stated, _, variance, weighted = self.sums[name][:5]
        return Noise(weight, stated, variance, weighted)

    def cell_noise(self, name: str) -> Noise:
        """Return what chance adds to the cells of every class."""
        weight, _, stated, variance, weighted = self.sums[name]
        return Noise(weight, stated, variance, weighted)

    def bin_gaps(self, name: str) -> DrawnGaps:
        """Return the gaps of bins by chance."""
        return self.bin_noise(name).gaps(copies=self.copies)

    def cell_errors(self, name: str, order: float = 1) -> Vector:
        """Return the error of every class by chance."""
        return self.cell_noise(name).gaps(copies=self.copies).error(self.weight, order)


def _ks(totals: Totals) -> float:
    _, conf, hit = totals.bins("fine")
    return float(np.abs(np.cumsum(conf - hit)).max() / totals.weight)


def _ks_by_chance(totals: Totals) -> float:
    """Return the mean of ``ks`` over draws, with the mean probability of each fine bin for its rows."""
    noise = totals.bin_noise("fine")
    full = noise.weight > 0
    weight = noise.weight[full]
    events = weight / noise.gaps(copies=totals.copies).unit[full]
    crowd = Crowd.of_sums(weight, noise.stated[full], events)
    return drawn_levels(crowd, [METRICS["ks"]])["ks"]


def _ece_em(totals: Totals) -> float:
    """Return the error over equal-mass bins, each boundary moved up to the end of its fine bin."""
    weight, conf, hit = totals.bins("fine")
    starts = _mass_starts(weight, totals.weight)
    gaps = np.add.reduceat(conf - hit, starts)
    return float(np.abs(gaps).sum() / totals.weight)


def _ece_em_by_chance(totals: Totals) -> float:
    noise = totals.bin_noise("fine")
    starts = _mass_starts(noise.weight, totals.weight)
    merged = Noise(*(np.add.reduceat(sums, starts) for sums in noise))
    return float(merged.gaps(copies=totals.copies).error(totals.weight))


def _mass_starts(weight: Vector, total: float) -> NDArray[np.int64]:
    """Return the fine bins in which equal-mass bins begin; a bin that is empty is left out."""
    starts = np.unique(np.concatenate([[0], _mass_places(weight, total) + 1]))
    return starts[starts < len(weight)]


def _mass_places(weight: Vector, total: float) -> NDArray[np.int64]:
    """Return the fine bin in which each equal-mass boundary falls."""
    ranks = total * np.arange(1, BINS) / BINS
    place = np.searchsorted(np.cumsum(weight), ranks, side="left")
    return np.minimum(place, len(weight) - 1).astype(np.int64)


def _moves(fine: Float64) -> tuple[Vector, Vector]:
    """Return how far the cumulated gap can rise and fall inside each fine bin, (bins,) each.

    Only misses raise it (by their probability), and only hits lower it (by 1 − their probability).
    """
    _, conf, hit, _, _, both = fine
    return np.maximum(conf - both, 0), np.maximum(hit - both, 0)


def _ece_ew(totals: Totals) -> float:
    return totals.bins("width").error(totals.weight)


def _ece_ew_by_chance(totals: Totals) -> float:
    return float(totals.bin_gaps("width").error(totals.weight))


def _ece_r2(totals: Totals) -> float:
    return totals.bins("width").error(totals.weight, order=2)


def _ece_r2_by_chance(totals: Totals) -> float:
    return float(totals.bin_gaps("width").error(totals.weight, order=2))


def _ace(totals: Totals) -> float:
    return totals.bins("clipped").mean_gap


def _ace_by_chance(totals: Totals) -> float:
    return mean_share(totals.bin_gaps("clipped"))


def _mce(totals: Totals) -> float:
    return float(totals.bins("width").gap.max())


def _mce_by_chance(totals: Totals) -> float:
    return totals.bin_gaps("width").largest()


def _cwece_a(totals: Totals) -> float:
    return float(totals.cells("cells").errors(totals.weight).mean())


def _cwece_a_by_chance(totals: Totals) -> float:
    return float(totals.cell_errors("cells").mean())


def _cwece_s(totals: Totals) -> float:
    return float(totals.cells("cells_s").errors(totals.weight).sum())


def _cwece_s_by_chance(totals: Totals) -> float:
    return float(totals.cell_errors("cells_s").sum())


def _cwece_r2(totals: Totals) -> float:
    return float(totals.cells("cells").errors(totals.weight, order=2).mean())


def _cwece_r2_by_chance(totals: Totals) -> float:
    return float(totals.cell_errors("cells", order=2).mean())


def _tcwece(totals: Totals) -> float:
    return float(totals.cells("kept").kept_errors().mean())


def _tcwece_by_chance(totals: Totals) -> float:
    return kept_by_chance(totals.cell_noise("kept"), copies=totals.copies)


@dataclass(frozen=True)
class Streamed:
    """How a metric, and of a plug-in error what it shows by chance, follow from the totals of some sums."""

    sums: str
    value: Callable[[Totals], float]
    by_chance: Callable[[Totals], float] | None = None


STREAMED: Final[dict[str, Streamed]] = {}
STREAMED["ece_ew"] = Streamed("width", _ece_ew, _ece_ew_by_chance)
STREAMED["ece_em"] = Streamed("fine", _ece_em, _ece_em_by_chance)
STREAMED["ece_r2"] = Streamed("width", _ece_r2, _ece_r2_by_chance)
STREAMED["ace"] = Streamed("clipped", _ace, _ace_by_chance)
STREAMED["ks"] = Streamed("fine", _ks, _ks_by_chance)
STREAMED["mce"] = Streamed("width", _mce, _mce_by_chance)
STREAMED["cwece_a"] = Streamed("cells", _cwece_a, _cwece_a_by_chance)
STREAMED["cwece_s"] = Streamed("cells_s", _cwece_s, _cwece_s_by_chance)
STREAMED["cwece_r2"] = Streamed("cells", _cwece_r2, _cwece_r2_by_chance)
STREAMED["tcwece"] = Streamed("kept", _tcwece, _tcwece_by_chance)
STREAMED["nll"] = Streamed("scores", lambda totals: totals.score(1))
STREAMED["brier"] = Streamed("scores", lambda totals: totals.score(2))
STREAMED["accuracy"] = Streamed("scores", lambda totals: totals.score(3))
NAMES = tuple(STREAMED)


class StreamingMetrics:
    """Accumulate metrics over blocks of a data set: a :class:`hcal.passes.Partial`.

    Parameters
    ----------
    n_classes : int
    metrics : list of str, optional
        Any of ``hcal.metrics.streaming.NAMES``; all of them by default.
    event : {"auto", "top-label"}
        What top-label metrics measure: of two classes the probability of ``positive`` ("auto"), else that of the
        predicted class.
    positive : {0, 1}

    Examples
    --------
    >>> a, b = StreamingMetrics(2), StreamingMetrics(2)
    >>> _ = a.update([[0.2, 0.8]], [1])
    >>> _ = b.update([[0.6, 0.4]], [1])
    >>> round(a.merge(b).result()["brier"], 6)
    0.4
    """

    def __init__(
        self,
        n_classes: int,
        metrics: Iterable[str] | None = None,
        *,
        event: Event = "auto",
        positive: int = 1,
    ) -> None:
        self.n_classes = check_integer("n_classes", n_classes, 2)
        self.event, self.positive = check_event(event, positive, self.n_classes)
        self.n = 0
        self.order = BlockOrder()
        self.metrics = tuple(NAMES if metrics is None else metrics)
        unknown = [m for m in self.metrics if m not in NAMES]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} cannot be streamed; those that can are {', '.join(NAMES)}"
            )
        one_row = Sample(np.full((1, self.n_classes), 1 / self.n_classes), [0])
        needed = {"scores", *(STREAMED[name].sums for name in self.metrics)}
        chosen = [name for name in _SUMS if name in needed]
        self._sums = {name: np.zeros_like(_SUMS[name](one_row)) for name in chosen}

    def update(self, probs: AnyArray, y: AnyArray = None, sample_weight: AnyArray = None) -> Self:
        """Add a block of the data.

        Parameters
        ----------
        probs : array-like of shape (N, K)
            Columns that have names are put in the order of the first block by name.
        y : array-like of shape (N,)
        sample_weight : array-like of shape (N,), optional
        """
        if not isinstance(probs, np.ndarray | Sample):
            rows = Rows.of_predictions(probs, y, input="probs", weight=sample_weight)
            rows = self.order.put(rows)
            probs, y, sample_weight = rows.scores, rows.labels, rows.weight
        s = as_sample(probs, y, sample_weight)
        if s.k != self.n_classes:
            raise ValueError(
                f"probs has {s.k} classes, these metrics were made for {self.n_classes}"
            )
        s = s.judging(self.event, self.positive)
        for name in self._sums:
            self._sums[name] += _SUMS[name](s)
        self.n += s.n
        return self

    def merge(self, other: StreamingMetrics) -> Self:
        """Add the sums of another accumulator."""
        if other._kind != self._kind:
            raise ValueError(
                "only accumulators of the same classes, metrics, event and positive can be merged"
            )
        self.order.merge(other.order)
        for name, part in other._sums.items():
            self._sums[name] += part
        self.n += other.n
        return self

    @property
    def state(self) -> JsonObject:
        """The sums so far. The arrays under ``sums`` have a fixed size and can be added up across machines.

        Returns
        -------
        dict
            For :meth:`from_state`.
        """
        state: JsonObject = {"n_classes": self.n_classes, "metrics": list(self.metrics)}
        state["event"] = self.event
        state["positive"] = self.positive
        first = self.order.first
        state["names"] = None if first is None or first.names is None else list(first.names)
        state["columns"] = None if first is None or first.columns is None else list(first.columns)
        state["sums"] = {"n": np.array(float(self.n)), **self._sums}
        return state

    def empty(self) -> Self:
        """Return an accumulator of the same kind that has seen no rows."""
        return type(self)(self.n_classes, self.metrics, event=self.event, positive=self.positive)

    @classmethod
    def from_state(cls, state: JsonObject) -> Self:
        """Return an accumulator with the sums of a :attr:`state`.

        Parameters
        ----------
        state : dict
            Its ``sums`` may be the entry-by-entry sum over several accumulators.

        Examples
        --------
        >>> seen = StreamingMetrics(2).update([[0.2, 0.8], [0.6, 0.4]], [1, 1])
        >>> StreamingMetrics.from_state(seen.state).result() == seen.result()
        True
        """
        new = cls(
            state["n_classes"], state["metrics"], event=state["event"], positive=state["positive"]
        )
        sums = state["sums"]
        new.n = round(float(sums["n"]))
        new.order = BlockOrder.of(new.n_classes, state.get("names"), state.get("columns"))
        for name in new._sums:
            new._sums[name] = np.array(sums[name], dtype=np.float64)
        return new

    def result(self) -> dict[str, float]:
        """Return the metrics of all rows added so far."""
        totals = self._totals()
        return {name: STREAMED[name].value(totals) for name in self.metrics}

    compute = result

    def by_chance(self) -> dict[str, float]:
        """Return what each plug-in error would show if every label were drawn from its stated probability.

        Examples
        --------
        >>> metrics = StreamingMetrics(2, ["ece_ew", "nll"]).update([[0.5, 0.5]] * 4, [0, 1, 1, 1])
        >>> {name: round(level, 6) for name, level in metrics.by_chance().items()}
        {'ece_ew': 0.1875}
        """
        totals = self._totals()
        levels = {}
        for name in self.metrics:
            level_of = STREAMED[name].by_chance
            if level_of is not None:
                levels[name] = level_of(totals)
        return levels

    @property
    def mean_confidence(self) -> float:
        """The mean probability of the predicted class."""
        return self._totals().score(4)

    def bounds(self) -> dict[str, float]:
        """Return how far each metric can be from its exact value, beyond rounding; 0 for most."""
        totals = self._totals()
        exact = dict.fromkeys(self.metrics, 0.0)
        if "fine" not in self._sums:
            return exact
        bounds = {"ks": self._ks_bound(totals), "ece_em": self._ece_em_bound(totals)}
        return exact | {name: bound for name, bound in bounds.items() if name in exact}

    def _ks_bound(self, totals: Totals) -> float:
        """Return how far ``ks`` can be off: a path of gaps may leave the ends of the fine bins."""
        _, conf, hit = totals.bins("fine")
        up, down = _moves(totals["fine"])
        start = prefix_sums(conf - hit)[:-1]
        highest = np.abs(start + up)
        lowest = np.abs(start - down)
        furthest = np.maximum(highest, lowest).max()
        return max(float(furthest / totals.weight) - _ks(totals), 0.0)

    def _ece_em_bound(self, totals: Totals) -> float:
        """Return how far ``ece_em`` can be off.

        The exact edge interpolates between two neighbouring probabilities (and includes all ties), so it lies in the
        fine bin in which the boundary falls or in the next one. Moving a boundary within these bins changes two
        neighbouring gaps, each by at most the hits or the misses in them. The published definition also leaves out
        one row.
        """
        weight = totals.bins("fine").weight
        filled = np.flatnonzero(weight)
        place = np.searchsorted(filled, _mass_places(weight, totals.weight))
        next_to = np.minimum(np.concatenate([place, place + 1]), len(filled) - 1)
        moves = np.maximum(*_moves(totals["fine"]))[np.unique(filled[next_to])]
        left_out = 0.0 if self.n_classes == 2 and self.event == "auto" else 1.0
        return float((2 * moves.sum() + left_out) / totals.weight)

    @property
    def _kind(self) -> tuple[object, ...]:
        return self.n_classes, self.metrics, self.event, self.positive

    def _totals(self) -> Totals:
        if self.n == 0:
            raise ValueError("nothing to compute: no part was added yet")
        return Totals(self._sums)
