"""Metrics of data that do not fit in memory: update block by block, merge across machines, read the result.

Most metrics are functions of sums over rows, which need O(bins·K) memory: ``_SUMS`` computes the sums of a block and
``_VALUES`` the metric from the total. ``ks`` and ``ece_em`` need the order of all confidences; here they are computed
from a fine histogram (4096 equal bins, and finer ones towards 1), and :meth:`StreamingMetrics.bounds` returns how far
each can be from its exact value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.binned import Bins, between_edges, clipped_equal_width, equal_width
from hcal.metrics.class_wise import Cells, equal_width_cells, thresholded_cells
from hcal.metrics.sample import Sample, Vector, as_sample, check_integer
from hcal.metrics.scores import brier_rows, nll_rows
from hcal.numerics import Float64, prefix_sums

_BINS, _SUM_BINS = 15, 14  # the published numbers of bins

#: Edges (lo, hi] of the fine histogram, denser towards 1, where networks put most of their confidences.
_EDGES: Final = np.unique(
    np.concatenate(
        [np.linspace(0, 1, 4097), 1 - 2.0 ** -(np.arange(96, 425) / 8), [np.nextafter(1, 0)]]
    )
)


def _score_sums(s: Sample) -> Float64:
    """Return the sums of weight, nll, brier, hit and confidence, shape (5,)."""
    rows = [np.ones(s.n), nll_rows(s), brier_rows(s), s.data.hit, s.data.conf]
    return np.asarray(np.stack(rows) @ s.w)


def _fine_sums(s: Sample) -> Float64:
    """Return the sums of weight, confidence, hit and their product in the fine histogram, shape (4, bins)."""
    r = s.ranked
    cuts = np.searchsorted(r.conf, _EDGES, side="right")
    both = np.diff(prefix_sums(r.weight * r.conf * r.hit)[cuts])
    return np.stack([*between_edges(r, _EDGES), both])


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
    return float(np.abs(np.cumsum(fine[1] - fine[2])).max() / total)


def _ece_em(fine: Float64, total: float) -> float:
    """Return the error over equal-mass bins, each boundary rounded to the nearer end of its fine bin."""
    weight, conf, hit, _ = fine
    ends = prefix_sums(weight)
    cuts, place = _mass_cuts(weight, total)
    nearer = place + (ends[place + 1] - cuts < cuts - ends[place])
    bounds = np.concatenate([[0], nearer, [len(weight)]])
    return float(np.abs(np.diff(prefix_sums(conf - hit)[bounds])).sum() / total)


def _mass_cuts(weight: Vector, total: float) -> tuple[Vector, NDArray[np.int64]]:
    """Return the equal-mass boundaries in units of weight, and the fine bin in which each falls."""
    cuts = total * np.arange(1, _BINS) / _BINS
    return cuts, np.searchsorted(np.cumsum(weight), cuts, side="left").astype(np.int64)


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

    Examples
    --------
    >>> a, b = StreamingMetrics(2), StreamingMetrics(2)
    >>> _ = a.update([[0.2, 0.8]], [1])
    >>> _ = b.update([[0.6, 0.4]], [1])
    >>> round(a.merge(b).result()["brier"], 6)
    0.4
    """

    def __init__(self, n_classes: int, metrics: Iterable[str] | None = None) -> None:
        self.n_classes, self.n = check_integer("n_classes", n_classes, 2), 0
        self.metrics = tuple(NAMES if metrics is None else metrics)
        unknown = [m for m in self.metrics if m not in NAMES]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} cannot be streamed; those that can are {', '.join(NAMES)}"
            )
        one_row = Sample(np.full((1, self.n_classes), 1 / self.n_classes), [0])
        read = {"scores", *(_VALUES[name][0] for name in self.metrics)}
        self._sums = {
            name: np.zeros_like(of(one_row)) for name, of in _SUMS.items() if name in read
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
        for name in self._sums:
            self._sums[name] += _SUMS[name](s)
        self.n += s.n
        return self

    def merge(self, other: StreamingMetrics) -> Self:
        """Add the sums of another accumulator."""
        if (other.n_classes, other.metrics) != (self.n_classes, self.metrics):
            raise ValueError("only accumulators of the same classes and metrics can be merged")
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
        sums = {"n": np.array(float(self.n)), **self._sums}
        return {"n_classes": self.n_classes, "metrics": list(self.metrics), "sums": sums}

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
        found, sums = cls(state["n_classes"], state["metrics"]), state["sums"]
        found.n = round(float(sums["n"]))
        found._sums = {name: np.array(sums[name], dtype=np.float64) for name in found._sums}
        return found

    def result(self) -> dict[str, float]:
        """Return the metrics of all rows added so far."""
        self._check_seen()
        found = ((name, *_VALUES[name]) for name in self.metrics)
        return {name: value(self._sums[sums], self._total) for name, sums, value in found}

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
        weight, conf, hit, both = self._sums["fine"]
        # Inside a fine bin only misses raise the cumulated gap (by conf) and only hits lower it (by 1 − conf).
        up, down = np.maximum(conf - both, 0), np.maximum(hit - both, 0)
        start = prefix_sums(conf - hit)[:-1]
        reach = float(np.maximum(np.abs(start + up), np.abs(start - down)).max() / self._total)
        # The exact edge of ece_em interpolates between two neighbouring confidences (and includes all ties), so it
        # lies in the fine bin in which the boundary falls or in the next one. Moving a boundary within these bins
        # changes two neighbouring gaps, each by at most the hits or the misses in them. The exact definition also
        # leaves out the rows of the smallest confidence.
        seen = np.flatnonzero(weight)
        place = np.searchsorted(seen, _mass_cuts(weight, self._total)[1])
        near = np.unique(seen[np.minimum(np.concatenate([place, place + 1]), len(seen) - 1)])
        moved = (2 * np.maximum(up, down)[near].sum() + weight[seen[0]]) / self._total
        bound = {
            "ks": max(reach - _ks(self._sums["fine"], self._total), 0.0),
            "ece_em": float(moved),
        }
        return exact | {name: b for name, b in bound.items() if name in exact}

    def _check_seen(self) -> None:
        if self.n == 0:
            raise ValueError("nothing to compute: no part was added yet")

    @property
    def _total(self) -> float:
        return float(self._sums["scores"][0])
