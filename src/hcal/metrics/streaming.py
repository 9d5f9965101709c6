"""Metrics of data that do not fit in memory: update part by part, merge across machines, compute at the end.

Memory is O(bins·K), whatever N. Scores and the equal-width families come out as from one pass. ``ks`` and
``ece_em`` need an order of all confidences; here they see a fine histogram (4096 equal bins, finer ones
towards 1), and :meth:`StreamingMetrics.bounds` states how far each can be from the exact value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.class_wise import CellSums, equal_width_cells, kept_errors, thresholded_cells
from hcal.metrics.sample import Sample, Vector, as_array, as_sample
from hcal.metrics.scores import brier_rows, nll_rows
from hcal.numerics import prefix_sums

#: Metric -> the sums that it is read from; see ``_PARTS``.
_READ_FROM = {
    "ece_ew": "width", "ece_em": "fine", "ece_r2": "width", "ace": "ace", "ks": "fine", "mce": "width",
    "cwece_a": "cells", "cwece_s": "cells_s", "cwece_r2": "cells", "tcwece": "kept",
    "nll": "sums", "brier": "sums", "accuracy": "sums",
}  # fmt: skip
NAMES = tuple(_READ_FROM)
_BINS, _SUM_BINS = 15, 14  # the published numbers of bins


def _fine_edges() -> Vector:
    """Edges (lo, hi] of the fine histogram: networks put most confidences close to 1, so does the grid."""
    towards_one = 1 - 2.0 ** -(np.arange(96, 425) / 8)
    inner = np.concatenate([np.linspace(0, 1, 4097), towards_one, [np.nextafter(1, 0)]])
    return np.unique(inner)


_EDGES, _WIDTH_EDGES = _fine_edges(), np.linspace(0, 1, _BINS + 1)


class StreamingMetrics:
    """Accumulate metrics over parts of a data set.

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
    >>> round(a.merge(b).compute()["brier"], 6)
    0.4
    """

    def __init__(self, n_classes: int, metrics: Iterable[str] | None = None) -> None:
        if not isinstance(n_classes, int | np.integer) or n_classes < 2:
            raise ValueError(f"n_classes must be an integer of at least 2, got {n_classes!r}")
        self.metrics = tuple(NAMES if metrics is None else metrics)
        unknown = [m for m in self.metrics if m not in NAMES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} cannot be streamed; those that can are {', '.join(NAMES)}")
        self.n_classes = k = int(n_classes)
        self.n = 0
        shapes: dict[str, tuple[int, ...]] = {
            "sums": (5,), "ace": (3, _BINS), "fine": (4, len(_EDGES) - 1), "width": (3, _BINS),
            "cells": (2, k, _BINS), "cells_s": (2, k, _SUM_BINS), "kept": (2, k, _BINS),
        }  # fmt: skip
        read = {"sums", *(_READ_FROM[name] for name in self.metrics)}
        self._state = {name: np.zeros(shape) for name, shape in shapes.items() if name in read}

    def update(self, probs: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add a part of the data.

        Parameters
        ----------
        probs : array-like of shape (N, K)
        y : array-like of shape (N,)
        sample_weight : array-like of shape (N,), optional
        """
        s = as_sample(probs, y, sample_weight)
        if s.k != self.n_classes:
            raise ValueError(f"probs has {s.k} classes, these metrics were made for {self.n_classes}")
        for name in self._state:
            self._state[name] += _PARTS[name](s)
        self.n += s.n
        return self

    def merge(self, other: StreamingMetrics) -> Self:
        """Add what another accumulator has seen."""
        if (other.n_classes, other.metrics) != (self.n_classes, self.metrics):
            raise ValueError("only accumulators of the same classes and metrics can be merged")
        for name, part in other._state.items():
            self._state[name] += part
        self.n += other.n
        return self

    @property
    def state(self) -> dict[str, Any]:
        """What was added up so far: under ``sums`` arrays of a constant size, which sum across machines.

        Returns
        -------
        dict
            For :meth:`from_state`.
        """
        sums = {"n": np.array(float(self.n)), **self._state}
        return {"n_classes": self.n_classes, "metrics": list(self.metrics), "sums": sums}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Return an accumulator that has seen what :attr:`state` says.

        Parameters
        ----------
        state : dict
            Its ``sums`` may be those of several, added entry by entry.

        Examples
        --------
        >>> seen = StreamingMetrics(2).update([[0.2, 0.8], [0.6, 0.4]], [1, 1])
        >>> StreamingMetrics.from_state(seen.state).compute() == seen.compute()
        True
        """
        found, sums = cls(state["n_classes"], state["metrics"]), state["sums"]
        found.n = round(float(sums["n"]))
        found._state = {name: np.array(sums[name], dtype=np.float64) for name in found._state}
        return found

    def compute(self) -> dict[str, float]:
        """Return the metrics of everything seen so far."""
        if self.n == 0:
            raise ValueError("nothing to compute: no part was added yet")
        return {name: self._one(name) for name in self.metrics}

    @property
    def mean_confidence(self) -> float:
        """The mean probability of the predicted class."""
        return float(self._state["sums"][4] / self._total)

    def result(self) -> dict[str, float]:
        """Return the metrics of everything seen so far; see :meth:`compute`."""
        return self.compute()

    def bounds(self) -> dict[str, float]:
        """Return how far each metric can be from its exact value, beyond rounding; 0 for most."""
        if self.n == 0:
            raise ValueError("nothing to compute: no part was added yet")
        exact = dict.fromkeys(self.metrics, 0.0)
        approximate = {"ks": self._ks_bound, "ece_em": self._ece_em_bound}
        return exact | {name: bound() for name, bound in approximate.items() if name in exact}

    # -- machinery --------------------------------------------------------------------------------

    @property
    def _total(self) -> float:
        return float(self._state["sums"][0])

    def _one(self, name: str) -> float:
        state, total = self._state, self._total
        if name in ("nll", "brier", "accuracy"):
            return float(state["sums"][("nll", "brier", "accuracy").index(name) + 1] / total)
        if name in ("ece_ew", "ece_r2", "mce", "ace"):
            return self._binned(name)
        if name in ("ks", "ece_em"):
            return self._ks() if name == "ks" else self._ece_em()
        if name == "tcwece":
            return float(kept_errors(CellSums(*state["kept"])).mean())
        cells = CellSums(*state["cells_s" if name == "cwece_s" else "cells"])
        errors = cells.errors(total, 2 if name == "cwece_r2" else 1)
        return float(errors.sum() if name == "cwece_s" else errors.mean())

    def _binned(self, name: str) -> float:
        weight, conf, hit = self._state["ace" if name == "ace" else "width"]
        full = weight > 0
        gap = np.abs(conf[full] - hit[full]) / weight[full]
        if name in ("ace", "mce"):
            return float(gap.mean() if name == "ace" else gap.max())
        order = 1 if name == "ece_ew" else 2
        return float((weight[full] @ gap**order / self._total) ** (1 / order))

    def _walk(self) -> tuple[Vector, Vector, Vector]:
        """Cumulated gap before each fine bin, and how far up and down it can go inside the bin."""
        _, conf, hit, both = self._state["fine"]
        start = prefix_sums(conf - hit)[:-1]
        return start, np.maximum(conf - both, 0), np.maximum(hit - both, 0)

    def _ks(self) -> float:
        _, conf, hit, _ = self._state["fine"]
        return float(np.abs(np.cumsum(conf - hit)).max() / self._total)

    def _ks_bound(self) -> float:
        # Inside a bin only misses move the gap up (by conf) and only hits move it down (by 1 − conf).
        start, up, down = self._walk()
        reach = np.maximum(np.abs(start + up), np.abs(start - down)).max() / self._total
        return max(float(reach) - self._ks(), 0.0)

    def _cuts(self) -> tuple[Vector, NDArray[np.int64]]:
        """Equal-mass boundaries in units of weight, and the fine bin in which each falls."""
        cumulated = np.cumsum(self._state["fine"][0])
        cuts = self._total * np.arange(1, _BINS) / _BINS
        return cuts, np.searchsorted(cumulated, cuts, side="left").astype(np.int64)

    def _ece_em(self) -> float:
        """Equal-mass bins whose boundaries are moved to the nearer end of their fine bin."""
        weight, conf, hit, _ = self._state["fine"]
        ends = prefix_sums(weight)
        cuts, place = self._cuts()
        nearer = place + (ends[place + 1] - cuts < cuts - ends[place])
        bounds = np.concatenate([[0], nearer, [len(weight)]])
        gap = prefix_sums(conf - hit)[bounds]
        return float(np.abs(np.diff(gap)).sum() / self._total)

    def _ece_em_bound(self) -> float:
        # The exact edge is a confidence of the fine bin in which the boundary falls, or of the one after it
        # (it interpolates between two neighbours, and takes all ties). Moving a boundary within these bins
        # changes two neighbouring gaps, each by at most what their hits or misses allow. The exact
        # definition also leaves the rows of the smallest confidence out.
        weight = self._state["fine"][0]
        _, up, down = self._walk()
        seen = np.flatnonzero(weight)
        place = np.searchsorted(seen, self._cuts()[1])
        both = np.unique(seen[np.minimum(np.concatenate([place, place + 1]), len(seen) - 1)])
        return float((2 * np.maximum(up, down)[both].sum() + weight[seen[0]]) / self._total)


# -- what one part adds ---------------------------------------------------------------------------


def _sums(s: Sample) -> NDArray[np.float64]:
    """Weight, nll, brier, hit and confidence, shape (5,)."""
    rows = [np.ones(s.n), nll_rows(s), brier_rows(s), s.data.hit, s.data.conf]
    return np.asarray(np.stack(rows) @ s.w)


def _in_width(s: Sample) -> NDArray[np.float64]:
    """Weight, confidence and hit in the bins (lo, hi], shape (3, bins)."""
    which = np.searchsorted(_WIDTH_EDGES, s.data.conf, side="left") - 1
    return _table(s, which, _BINS, s.data.conf, s.data.hit)


def _in_ace(s: Sample) -> NDArray[np.float64]:
    """The same of clipped confidences in the bins [lo, hi)."""
    eps = float(np.finfo(np.float32).eps)
    clipped = np.clip(s.data.conf, eps, 1 - eps)
    return _table(s, np.searchsorted(_WIDTH_EDGES, clipped, side="right") - 1, _BINS, clipped, s.data.hit)


def _in_fine(s: Sample) -> NDArray[np.float64]:
    """Weight, confidence, hit and their product in the fine histogram, shape (4, fine bins)."""
    conf, hit = s.data.conf, s.data.hit
    which = np.searchsorted(_EDGES, conf, side="left") - 1
    return _table(s, which, len(_EDGES) - 1, conf, hit, conf * hit)


def _table(s: Sample, which: NDArray[np.int64], bins: int, *values: Vector) -> NDArray[np.float64]:
    which = np.clip(which, 0, bins - 1)
    columns = [s.w, *(s.w * v for v in values)]
    return np.stack([np.bincount(which, weights=c, minlength=bins) for c in columns])


def _cells(cells: CellSums) -> NDArray[np.float64]:
    """Weight and gap of every class and bin, shape (2, K, bins)."""
    return np.stack([as_array(cells.weight), as_array(cells.gap)])


_PARTS: Final[dict[str, Callable[[Sample], NDArray[np.float64]]]] = {
    "sums": _sums,
    "ace": _in_ace,
    "fine": _in_fine,
    "width": _in_width,
    "cells": lambda s: _cells(equal_width_cells(s, _BINS)),
    "cells_s": lambda s: _cells(equal_width_cells(s, _SUM_BINS)),
    "kept": lambda s: _cells(thresholded_cells(s, _BINS, None)),
}
