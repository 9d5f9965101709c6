"""How far the parts of the default are trusted: by the errors that they learn from, and by rows that they never saw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from hcal.compiled import in_threads
from hcal.methods.folds import fold_shares, fold_sides
from hcal.numerics import Float64, IntArray, row_blocks
from hcal.pool.map import FLOOR, Margins
from hcal.rows import Rows
from hcal.solvers.regression import fit_softmax

#: How many errors a part needs for each number that it learns, and how many nats it must gain to move a weight by 1.
CAUTION = 5.0
#: The least share, so that a penalty divided by it stays finite.
_LEAST_SHARE = 1e-9
#: Members are weighed on at most this many scores.
_MOST_SCORES = 4_000_000
_BLOCK = 400_000
#: Where rows depend on each other, so many folds of whole groups are left out instead of single rows.
FOLDS = 5


class Member(ABC):
    """What is weighed: a calibrator that also says what it would predict for a row that it had not seen."""

    name: ClassVar[str]
    margins: Margins  # what it sees of a row

    @abstractmethod
    def fit(self, rows: Rows) -> Self:
        """Learn from rows of logits."""

    @abstractmethod
    def scores(self, x: Float64) -> Float64:
        """Return scores (N, K) of logits (N, K): log-probabilities up to a constant in each row."""

    @abstractmethod
    def left_out(self) -> Float64:
        """Return the scores (S, K) of the rows of the fit, of each by the fit without it."""


@dataclass(frozen=True)
class Shrinkage:
    """A part that learns n numbers from e errors counts by the share e²/(e² + (5n)²)."""

    errors: float  # the weight of the rows whose label is not the top class

    def share(self, numbers: int) -> float:
        """Return how much a part counts that learns so many numbers: 0 without errors, near 1 with many.

        >>> [round(Shrinkage(errors).share(1), 2) for errors in (0.0, 5.0, 50.0)]
        [0.0, 0.5, 0.99]
        """
        needed = CAUTION * numbers
        return max(self.errors**2 / (self.errors**2 + needed**2), _LEAST_SHARE)


def weigh(left_out: Float64, rows: Rows, shrinkage: Shrinkage) -> Float64:
    """Return the members' weights (J,) that make rows likeliest which no member has seen; ``left_out`` (N, K, J).

    They are shrunk to equal weights, and with few errors to the first member alone, which is temperature scaling.
    """
    n_members = left_out.shape[2]
    share = shrinkage.share(1)
    centre = np.full(n_members, share / n_members)
    centre[0] += 1.0 - share
    fitted = fit_softmax(
        left_out, rows.labels, rows.weights, ridge=CAUTION / share, centre=centre, lowest=0.0
    )
    return fitted.theta


def left_out_scores(
    members: Sequence[Member], rows: Rows, fit_members: Callable[[Rows], Sequence[Member]]
) -> Float64:
    """Return the members' scores (S, K, J) of rows that they have not seen.

    Each row is left out alone, and with groups in a fold of whole groups, on which members are fitted again.
    """
    if rows.groups is None:
        scores = np.stack([member.left_out() for member in members], axis=2)
    else:
        scores = np.empty((*rows.scores.shape, len(members)))
        for fitted, unseen in fold_sides(_folds(rows)):
            for number, member in enumerate(fit_members(rows[fitted])):
                scores[unseen, :, number] = member.scores(rows.x[unseen])
        scores = scores[weighing_rows(rows)]
    # No member may take a row for impossible: one row would decide the weights of all.
    return np.asarray(np.maximum(scores - scores.max(axis=1, keepdims=True), -FLOOR))


def _folds(rows: Rows) -> IntArray:
    """Return the fold (N,) of every row, a group in one fold."""
    shares = fold_shares(rows.scores, FOLDS, rows.weights, rows.groups)
    return np.asarray(shares.argmax(axis=0))


def weighing_rows(rows: Rows) -> slice:
    """Return every so manieth row, so that the scores are not too many; rows are ordered by content."""
    return slice(None, None, max(1, -(-rows.scores.size // _MOST_SCORES)))


def in_blocks(function: Callable[[Rows], Float64], rows: Rows) -> Float64:
    """Return what a function computes of rows, block by block and in threads, so that memory stays bounded."""
    blocks = [rows[block] for block in row_blocks(rows.scores.shape, _BLOCK)]
    return np.concatenate(in_threads(function, blocks, events=rows.scores.size))
