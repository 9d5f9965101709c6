"""Metrics of data that do not fit in memory: update block by block, merge across machines, read the result.

Most metrics are functions of sums over rows, which need O(bins·K) memory: ``_SUMS`` computes the sums of a block and
``_VALUES`` the metric from the total. ``ks`` and ``ece_em`` need the order of all probabilities; here they are computed
from a fine histogram (4096 equal bins, and finer ones towards 0 and 1), and :meth:`StreamingMetrics.bounds` returns how
far each can be from its exact value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.binned import Bins, at_rows, clipped_equal_width, edge_positions, equal_width
from hcal.metrics.class_wise import Cells, equal_width_cells, thresholded_cells
from hcal.metrics.sample import Event, Sample, Vector, as_sample, check_event, check_integer
from hcal.metrics.scores import brier_rows, nll_rows
from hcal.numerics import Float64, prefix_sums

_BINS, _SUM_BINS = 15, 14  # the published numbers of bins


def _fine_edges() -> Float64:
    """Return the edges (lo, hi] of the fine histogram, denser towards 0 and 1, where most probabilities are."""
    to_the_end = 2.0 ** -(np.arange(96, 425) / 8)
    ends = [to_the_end, 1 - to_the_end, [np.nextafter(1, 0)]]
    return np.unique(np.concatenate([np.linspace(0, 1, 4097), *ends]))


_EDGES: Final = _fine_edges()


def _score_sums(s: Sample) -> Float64:
    """Return the sums of weight, nll, brier, hit and confidence of the predicted class, shape (5,)."""
    rows = [np.ones(s.n), nll_rows(s), brier_rows(s), s.data.top_hit, s.data.top_conf]
    return np.asarray(np.stack(rows) @ s.w)


def _fine_sums(s: Sample) -> Float64:
    """Return the sums of weight, probability, hit and their product in the fine histogram, shape (4, bins)."""
    ranked = s.ranked
    positions = edge_positions(ranked.conf, _EDGES)
    products = prefix_sums(ranked.weight * ranked.conf * ranked.hit)
    return np.stack([*at_rows(ranked, positions), np.diff(products[positions])])


_SUMS: Final[dict[str, Callable[[Sample], Float64]]] = {
    "scores": _score_sums,
    "width": lambda s: np.stack(equal_width(s, _BINS)),
    "clipped": lambda s: np.stack(clipped_equal_width(s, _BINS)),
    "fine": _fine_sums,
    "cells": lambda s: np.stack(equal_width_cells(s, _BINS)),
    "cells_s": lambda s: np.stack(equal_width_cells(s, _SUM_BINS)),
    "kept": lambda s: np.stack(thresholded_cells(s, _BINS)),
}


def _ks(fine: Float64, total: float) -> float:
    cumulated = np.cumsum(fine[1] - fine[2])
    return float(np.abs(cumulated).max() / total)


def _ece_em(fine: Float64, total: float) -> float:
    """Return the error over equal-mass bins, each boundary moved up to the end of its fine bin."""
    weight, conf, hit, _ = fine
    place = _mass_places(weight, total)
    bounds = np.concatenate([[0], place + 1, [len(weight)]])
    gaps = np.diff(prefix_sums(conf - hit)[bounds])
    return float(np.abs(gaps).sum() / total)


def _mass_places(weight: Vector, total: float) -> NDArray[np.int64]:
    """Return the fine bin in which each equal-mass boundary falls."""
    ranks = total * np.arange(1, _BINS) / _BINS
    place = np.searchsorted(np.cumsum(weight), ranks, side="left")
    return np.minimum(place, len(weight) - 1).astype(np.int64)


def _moves(fine: Float64) -> tuple[Vector, Vector]:
    """Return how far the cumulated gap can rise and fall inside each fine bin, (bins,) each.

    Only misses raise it (by their probability), and only hits lower it (by 1 − their probability).
    """
    _, conf, hit, both = fine
    return np.maximum(conf - both, 0), np.maximum(hit - both, 0)


#: For each metric, the name of its sums and the function (sums, total weight) -> value.
_VALUES: Final[dict[str, tuple[str, Callable[[Float64, float], float]]]] = {
    "ece_ew": ("width", lambda x, total: Bins(*x).error(total)),
    "ece_em": ("fine", _ece_em),
    "ece_r2": ("width", lambda x, total: Bins(*x).error(total, 2)),
    "ace": ("clipped", lambda x, _: Bins(*x).mean_gap),
    "ks": ("fine", _ks),
    "mce": ("width", lambda x, _: float(Bins(*x).gap.max())),
    "cwece_a": ("cells", lambda x, total: float(Cells(*x).errors(total).mean())),
    "cwece_s": ("cells_s", lambda x, total: float(Cells(*x).errors(total).sum())),
    "cwece_r2": ("cells", lambda x, total: float(Cells(*x).errors(total, 2).mean())),
    "tcwece": ("kept", lambda x, _: float(Cells(*x).kept_errors().mean())),
    "nll": ("scores", lambda x, total: float(x[1] / total)),
    "brier": ("scores", lambda x, total: float(x[2] / total)),
    "accuracy": ("scores", lambda x, total: float(x[3] / total)),
}
NAMES = tuple(_VALUES)


class StreamingMetrics:
    """Accumulate metrics over blocks of a data set: a :class:`hcal.passes.Partial`.

    Parameters
    ----------
    n_classes : int
    metrics : list of str, optional
        Any of ``hcal.metrics.streaming.NAMES``; all of them by default.
    event : {"auto", "top-label"}
        What top-label metrics judge: of two classes the probability of ``positive`` ("auto"), else that of the
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
        self.metrics = tuple(NAMES if metrics is None else metrics)
        unknown = [m for m in self.metrics if m not in NAMES]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} cannot be streamed; those that can are {', '.join(NAMES)}"
            )
        one_row = Sample(np.full((1, self.n_classes), 1 / self.n_classes), [0])
        needed = {"scores", *(_VALUES[name][0] for name in self.metrics)}
        self._sums = {
            name: np.zeros_like(sums_of(one_row))
            for name, sums_of in _SUMS.items()
            if name in needed
        }

    def update(self, probs: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add a block of the data.

        Parameters
        ----------
        probs : array-like of shape (N, K)
        y : array-like of shape (N,)
        sample_weight : array-like of shape (N,), optional
        """
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
        for name, part in other._sums.items():
            self._sums[name] += part
        self.n += other.n
        return self

    @property
    def state(self) -> dict[str, Any]:
        """The sums so far. The arrays under ``sums`` have a fixed size and can be added up across machines.

        Returns
        -------
        dict
            For :meth:`from_state`.
        """
        return {
            "n_classes": self.n_classes,
            "metrics": list(self.metrics),
            "event": self.event,
            "positive": self.positive,
            "sums": {"n": np.array(float(self.n)), **self._sums},
        }

    def empty(self) -> Self:
        """Return an accumulator of the same kind that has seen no rows."""
        return type(self)(self.n_classes, self.metrics, event=self.event, positive=self.positive)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
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
        new._sums = {name: np.array(sums[name], dtype=np.float64) for name in new._sums}
        return new

    def result(self) -> dict[str, float]:
        """Return the metrics of all rows added so far."""
        self._check_seen()
        values = {}
        for name in self.metrics:
            sums, value_of = _VALUES[name]
            values[name] = value_of(self._sums[sums], self._total)
        return values

    compute = result

    @property
    def mean_confidence(self) -> float:
        """The mean probability of the predicted class."""
        return float(self._sums["scores"][4] / self._total)

    def bounds(self) -> dict[str, float]:
        """Return how far each metric can be from its exact value, beyond rounding; 0 for most."""
        self._check_seen()
        exact = dict.fromkeys(self.metrics, 0.0)
        if "fine" not in self._sums:
            return exact
        fine = self._sums["fine"]
        bounds = {"ks": self._ks_bound(fine), "ece_em": self._ece_em_bound(fine)}
        return exact | {name: bound for name, bound in bounds.items() if name in exact}

    def _ks_bound(self, fine: Float64) -> float:
        """Return how far ``ks`` can be off: a path of gaps may leave the ends of the fine bins."""
        _, conf, hit, _ = fine
        up, down = _moves(fine)
        start = prefix_sums(conf - hit)[:-1]
        furthest = np.maximum(np.abs(start + up), np.abs(start - down)).max()
        return max(float(furthest / self._total) - _ks(fine, self._total), 0.0)

    def _ece_em_bound(self, fine: Float64) -> float:
        """Return how far ``ece_em`` can be off.

        The exact edge interpolates between two neighbouring probabilities (and includes all ties), so it lies in the
        fine bin in which the boundary falls or in the next one. Moving a boundary within these bins changes two
        neighbouring gaps, each by at most the hits or the misses in them. The published definition also leaves out
        one row.
        """
        weight = fine[0]
        filled = np.flatnonzero(weight)
        place = np.searchsorted(filled, _mass_places(weight, self._total))
        next_to = np.minimum(np.concatenate([place, place + 1]), len(filled) - 1)
        moves = np.maximum(*_moves(fine))[np.unique(filled[next_to])]
        left_out = 0.0 if self.n_classes == 2 and self.event == "auto" else 1.0
        return float((2 * moves.sum() + left_out) / self._total)

    @property
    def _kind(self) -> tuple[Any, ...]:
        return self.n_classes, self.metrics, self.event, self.positive

    def _check_seen(self) -> None:
        if self.n == 0:
            raise ValueError("nothing to compute: no part was added yet")

    @property
    def _total(self) -> float:
        return float(self._sums["scores"][0])
