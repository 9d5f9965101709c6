"""A seeded sample of rows that come block by block, stratified by class.

Every row has a number in its source, and the hash of that number decides: the sample is the rows of the
smallest hashes, and of every class those of its smallest ones. So it does not depend on how the rows are cut
into blocks or in which order blocks arrive, two samples merge into that of all rows, and one pass makes it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hcal.io.provenance import mix
from hcal.numerics import Float64, FloatArray, IntArray, run_starts

_Keys = NDArray[np.uint64]
#: Of the rows of a sample, one in this many is dealt to the classes equally, so that rare ones have some.
_DEALT = 4


class SampledRows(NamedTuple):
    """A sample, in the order of the hashes."""

    scores: FloatArray  # (S, K)
    y: IntArray  # (S,)
    #: (S,): the rows' own weights times what brings every class to its share of all rows; mean as given.
    weight: Float64
    plain: NDArray[np.bool_]  # (S,): rows that a sample without strata would hold; they need no weights
    seen: int  # how many rows there were

    @property
    def whole(self) -> bool:
        """Whether it holds every row."""
        return len(self.y) == self.seen


class RowSample:
    """A stratified sample of about ``rows`` rows: a partial result (:mod:`hcal.partial`).

    It holds the rows of the smallest ``rows`` hashes, and of each class at least the smallest ``rows //
    (4·K)``, as far as there are so many: at most a quarter more.

    >>> x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    >>> one = RowSample(2, 4).update(x, y, np.ones(10), 0)
    >>> two = RowSample(2, 4).update(x[6:], y[6:], np.ones(4), 6)
    >>> two = two.merge(RowSample(2, 4).update(x[:6], y[:6], np.ones(6), 0))
    >>> bool((one.result().scores == two.result().scores).all()), len(one.result().y)
    (True, 4)
    """

    def __init__(self, n_classes: int, rows: int, random_state: int = 0) -> None:
        if rows < 1:
            raise ValueError(f"a sample needs at least 1 row, got {rows}")
        self.n_classes, self.rows, self.random_state = n_classes, rows, random_state
        self.seen, self.mass = 0, np.zeros(n_classes)
        self._limit = np.full(n_classes, np.iinfo(np.uint64).max, dtype=np.uint64)
        self._parts: list[tuple[_Keys, FloatArray, IntArray, Float64]] = []
        self._pending = 0

    def expect(self, counts: IntArray) -> Self:
        """Say how many rows of each class (K,) there will be: far ones are then dropped at once.

        What a block keeps shrinks from all of its rows to its share; the sample stays the same but for a
        chance below 1e-8.
        """
        wanted = np.maximum(counts * min(1.0, self.rows / max(int(counts.sum()), 1)), self._least)
        share = (wanted + 6 * np.sqrt(wanted) + 20) / np.maximum(counts, 1)
        top = float(np.iinfo(np.uint64).max)
        self._limit = (np.minimum(share, 1.0) * top * (1 - 1e-15)).astype(np.uint64)
        self._limit[share >= 1] = np.iinfo(np.uint64).max
        return self

    @property
    def _least(self) -> int:
        return self.rows // (_DEALT * self.n_classes)

    def update(self, scores: FloatArray, y: IntArray, weight: Float64, start: int) -> Self:
        """Add the rows ``start``, ``start`` + 1, … of the source: scores (B, K), y and weight (B,)."""
        number = np.arange(start, start + len(y), dtype=np.uint64)
        secret = mix(np.array([self.random_state], dtype=np.int64).view(np.uint64))
        keys = mix(mix(number + np.uint64(0x9E3779B97F4A7C15)) ^ secret)
        self.seen += len(y)
        self.mass += np.bincount(y, weights=weight, minlength=self.n_classes)
        near = np.flatnonzero(keys <= self._limit[y])
        return self._keep((keys[near], scores[near], y[near], weight[near]))

    def merge(self, other: RowSample) -> Self:
        """Add the sample of other rows of the same source."""
        settings = (other.n_classes, other.rows, other.random_state)
        if settings != (self.n_classes, self.rows, self.random_state):
            raise ValueError("only samples of one size, number of classes and random_state can be merged")
        self.seen += other.seen
        self.mass += other.mass
        for part in other._parts:
            self._keep(part)
        return self

    def _keep(self, part: tuple[_Keys, FloatArray, IntArray, Float64]) -> Self:
        self._parts.append(part)
        self._pending += len(part[0])
        if self._pending > self.rows // _DEALT + 1000:  # copying the sample for every block would cost
            self._thin()
        return self

    def _thin(self) -> None:
        """Keep the rows that the sample needs, sorted by hash, and note below which hashes others count."""
        keys, scores, y, weight = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        order = np.argsort(keys, kind="stable")
        place = _places(y[order])
        kept = (np.arange(len(order)) < self.rows) | (place < self._least)
        if len(order) > self.rows:
            limit = np.full(self.n_classes, keys[order[self.rows - 1]])
            last = np.flatnonzero(place == self._least - 1)  # the last that its class is sure of
            limit[y[order[last]]] = np.maximum(limit[y[order[last]]], keys[order[last]])
            few = np.bincount(y, minlength=self.n_classes) < self._least
            limit[few] = np.iinfo(np.uint64).max
            self._limit = np.minimum(self._limit, limit)
        order = order[kept]
        self._parts, self._pending = [(keys[order], scores[order], y[order], weight[order])], 0

    @property
    def state(self) -> dict[str, Any]:
        """What was seen and kept."""
        names = ("keys", "scores", "y", "weight")
        if self._parts:
            self._thin()
        kept = dict(zip(names, self._parts[0], strict=True)) if self._parts else {}
        settings = {"n_classes": self.n_classes, "rows": self.rows, "random_state": self.random_state}
        return {**settings, "seen": self.seen, "mass": self.mass, **kept}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Go on from a state."""
        found = cls(state["n_classes"], state["rows"], state["random_state"])
        found.seen, found.mass = state["seen"], np.array(state["mass"])
        if "keys" in state:
            found._keep((state["keys"], state["scores"], state["y"], state["weight"]))
        return found

    def result(self) -> SampledRows:
        """Return the sample of all rows seen."""
        if not self._parts:
            raise ValueError("there are no rows to sample")
        self._thin()
        _, scores, y, weight = self._parts[0]
        own = np.bincount(y, weights=weight, minlength=self.n_classes)
        factor = self.mass / np.where(own > 0, own, 1.0) * (own.sum() / self.mass.sum())
        plain = np.arange(len(y)) < self.rows
        return SampledRows(scores, y, weight * factor[y], plain, self.seen)


def _places(y: IntArray) -> IntArray:
    """Return how many rows of the same label stand before each row (S,)."""
    order = np.argsort(y, kind="stable")
    first = run_starts(y[order]) if len(y) else np.zeros(0, int)
    run = np.diff(np.append(first, len(y)))
    place = np.empty(len(y), dtype=np.int64)
    place[order] = np.arange(len(y)) - np.repeat(first, run)
    return place
