"""The rows of a fit, in memory or not: a solver sees nothing of them but sums.

Parameters are few and travel to the rows; each pass over them brings back a sum. A method that is written on
:class:`FitRows` fits arrays and blocks of any number by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np

from hcal.numerics import Float64, FloatArray, IntArray
from hcal.partial import merged

#: Scores (B, ·), labels (B,), weights (B,) ↦ numbers and arrays that add up over blocks. Sent to where the
#: rows are: a function of a module, or a ``functools.partial`` of one.
Summand = Callable[[FloatArray, IntArray, Float64], tuple[Any, ...]]
#: Scores and labels ↦ scores and labels, row by row; it may overwrite what it is given.
Change = Callable[[FloatArray, IntArray], tuple[FloatArray, IntArray]]
#: One of the pieces that rows come in ↦ scores, labels and weights of its blocks, one after the other.
Reader = Callable[[Any], Iterable[tuple[FloatArray, IntArray, Float64]]]
#: (function, pieces) ↦ the function's result for every piece, in any order.
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


class Sums:
    """Numbers and arrays that add up: a partial result (:mod:`hcal.partial`).

    >>> Sums().update(1.0, np.ones(2)).merge(Sums().update(2.0, np.ones(2))).result()
    (3.0, array([2., 2.]))
    """

    def __init__(self) -> None:
        self._parts: tuple[Any, ...] | None = None

    def update(self, *parts: Any) -> Self:
        """Add what a block of rows gives."""
        own = self._parts
        self._parts = parts if own is None else tuple(a + b for a, b in zip(own, parts, strict=True))
        return self

    def merge(self, other: Sums) -> Self:
        """Add what other blocks gave."""
        return self if other._parts is None else self.update(*other._parts)

    @property
    def state(self) -> dict[str, Any]:
        """The sums so far, by their place; empty where nothing was added."""
        return {str(place): part for place, part in enumerate(self._parts or ())}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Go on from sums."""
        return cls().update(*state.values()) if state else cls()

    def result(self) -> tuple[Any, ...]:
        """Return the sums."""
        if self._parts is None:
            raise ValueError("there are no rows to sum over")
        return self._parts


class FitRows(Protocol):
    """Rows with labels and weights, of which sums can be had."""

    @property
    def mass(self) -> Float64:
        """Weight of every class (K,)."""

    @property
    def total(self) -> float:
        """Weight of all rows."""

    def sum(self, summand: Summand) -> tuple[Any, ...]:
        """Return the sums of what the summand gives for blocks: one pass."""

    def changed(self, change: Change) -> FitRows:
        """Return the same rows with other scores. These rows are not to be used again."""


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory: x (N, ·), y and weight (N,).

    >>> rows = array_rows(np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0]))
    >>> rows.mass, rows.total
    (array([1., 3.]), 4.0)
    """

    x: FloatArray
    y: IntArray
    weight: Float64
    n_classes: int

    @cached_property
    def mass(self) -> Float64:
        """Weight of every class (K,)."""
        mass = np.bincount(self.y, weights=self.weight, minlength=self.n_classes)
        return np.asarray(mass, dtype=np.float64)

    @cached_property
    def total(self) -> float:
        """Weight of all rows."""
        return float(self.weight.sum())

    def sum(self, summand: Summand) -> tuple[Any, ...]:
        """Return what the summand gives for all rows."""
        return summand(self.x, self.y, self.weight)

    def changed(self, change: Change) -> ArrayRows:
        """Return the rows with changed scores."""
        x, y = change(self.x, self.y)
        return replace(self, x=x, y=y)


def array_rows(logits: FloatArray, y: IntArray, weight: Float64 | None = None) -> ArrayRows:
    """Return logits (N, K), labels and weights (N,) as rows in memory; without weights each counts once.

    >>> array_rows(np.zeros((2, 3)), np.array([0, 2])).mass
    array([1., 0., 1.])
    """
    return ArrayRows(logits, y, np.ones(len(y)) if weight is None else weight, logits.shape[1])


@dataclass(frozen=True)
class PieceRows:
    """Rows in pieces that are read anew in every pass, here or elsewhere.

    ``read`` says what a piece holds; it is sent along, like ``changes``.

    >>> pieces = [[(np.array([[0.0, 2.0]]), np.array([1]), np.ones(1))]] * 3
    >>> rows = PieceRows(pieces, list, lambda work, items: map(work, items), np.array([0.0, 3.0]))
    >>> rows.sum(lambda x, y, w: (float(x.sum()), len(y)))
    (6.0, 3)
    """

    pieces: Iterable[Any]
    read: Reader
    run: Run
    mass: Float64
    changes: tuple[Change, ...] = ()

    @property
    def total(self) -> float:
        """Weight of all rows."""
        return float(self.mass.sum())

    def sum(self, summand: Summand) -> tuple[Any, ...]:
        """Return the sums over all pieces."""
        work = _Work(summand, self.read, self.changes)
        found: Sums = merged(self.run(work, self.pieces), Sums)
        return found.result()

    def changed(self, change: Change) -> PieceRows:
        """Return the rows with a change that every pass makes anew."""
        return replace(self, changes=(*self.changes, change))


@dataclass(frozen=True)
class _Work:
    """What is done with a piece; a dataclass, so that it can be sent."""

    summand: Summand
    read: Reader
    changes: tuple[Change, ...]

    def __call__(self, piece: Any) -> Sums:
        sums = Sums()
        for x, y, weight in self.read(piece):
            for change in self.changes:
                x, y = change(x, y)
            sums.update(*self.summand(x, y, weight))
        return sums
