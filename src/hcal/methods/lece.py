"""Locally equal calibration errors (Valk & Kull, 2023)."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import numpy as np

from hcal.maps.base import STEEP, ProbabilityMap, array, map_type
from hcal.methods._curves import MOST
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.folds import deal_folds, fold_sides
from hcal.methods.parameters import Between, TwoOrMore, parameters
from hcal.numerics import Float64, FloatArray, IntArray, row_blocks, softmax
from hcal.rows import Rows
from hcal.text import JsonObject
from hcal.xp import Array, namespace

Values = tuple[float, ...]

FRACTIONS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.1, 0.2, 1.0)
ERROR_THRESHOLDS = (0.0, 0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.05, 0.1, 1.0)
# The limit of 2·N²·K operations: distances of all pairs of rows, and their errors for every fraction.
_MAX_WORK = 1.7e12
_LOG_CLIP = 1e-15
_CLIP = 1e-30
_BLOCK_DISTANCES = 2_000_000  # distances held at once
_AT_THRESHOLD = 1e-13
_ROUNDING = 1e-11  # relative; the order of a sum depends on the shape of the matrix product


@map_type
class NeighbourErrors(ProbabilityMap):
    """softmax(βz) minus the mean error of its nearest calibration rows in Kullback–Leibler divergence."""

    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)
    probs: Array = array("calibration rows; none where threshold is 1", "N", "K", low=0, high=MOST)
    labels: Array = array("their labels", "N", low=0, dtype="int64")
    count: Array = array("how many of them are neighbours", low=1, high=2**62, dtype="int64")
    threshold: Array = array("probabilities at or below it stay", low=0, high=1)

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        queries = xp.softmax(self.beta * (x - xp.row_max(x)))
        if self.probs.shape[0] == 0:
            return queries
        distance = distances(queries, self.probs)
        limit = xp.kth_smallest(distance, self.count)
        error = self.probs - xp.one_hot(self.labels, x.shape[-1], self.probs)
        mean_error = mean_errors(distance, limit, self.count, error)
        moved = subtract_error(queries, mean_error, self.threshold)
        return moved / xp.row_sum(moved)

    @property
    def expansion(self) -> int:  # type: ignore[override]
        """How many numbers the formula needs in memory for each score."""
        return max(1, 4 * len(self.probs) // max(1, int(self.probs.shape[1])))

    def check(self) -> None:
        """Raise a ValueError if fields contradict each other."""
        if len(self.probs) == 0 and self.threshold < 1:
            raise ValueError("'probs' must have rows where 'threshold' is below 1")
        if len(self.probs) and self.count > len(self.probs):
            raise ValueError(
                f"'count' is {self.count}, declared are at most the {len(self.probs)} rows"
            )


def distances(queries: Array, probs: Array) -> Array:
    """Return KL(q‖p) − Σ q ln q of queries q (M, K) and rows p (N, K): (M, N); Σ q ln q does not depend on p."""
    xp = namespace(queries)
    return xp.maximum(queries, _CLIP) @ -xp.log(xp.maximum(probs, _CLIP)).T


def mean_errors(distance: Array, limit: Array, count: Array, error: Array) -> Array:
    """Return the mean error (M, K) of the ``count`` nearest rows, which are those within the distance ``limit`` (M, 1).

    Rows at the same distance as the last neighbour share the remaining places, so that the order of rows does not
    matter. A distance is a sum of positive terms, so its rounding error is relative.

    >>> distance, error = np.array([[1.0, 2.0, 2.0]]), np.array([[0.3], [0.1], [0.5]])
    >>> mean_errors(distance, np.array([[2.0]]), np.array(2), error)
    array([[0.3]])
    """
    xp = namespace(distance)
    inside = xp.astype(distance < limit * (1 - _ROUNDING), error)
    within = xp.astype(distance <= limit * (1 + _ROUNDING), error)
    tied = within - inside
    places_left = count - xp.row_sum(inside)
    share = places_left / xp.maximum(xp.row_sum(tied), 1.0)
    return (inside + tied * share) @ error / count


def subtract_error(queries: Array, error: Array, threshold: Array | float) -> Array:
    """Return queries − error, unnormalised; entries at or below the threshold, before or after, are left as they are.

    Shapes: queries, error (M, K) → (M, K).

    >>> subtract_error(np.array([[0.6, 0.3, 0.1]]), np.array([[0.2, 0.3, -0.1]]), 0.1).round(2)
    array([[0.4, 0.3, 0.1]])
    """
    moved = queries - error
    # Rounding must not decide at the threshold: where the error equals p, the difference may be 1e-17 instead of 0.
    least = threshold + _AT_THRESHOLD
    stays = (queries <= least) | (moved <= least)
    return namespace(queries).where(stays, queries, moved)


@parameters
class LocallyEqualErrors(Calibrator):
    """Subtract the mean error of the KL-nearest calibration rows from each row.

    Valk, Kull: Assuming locally equal calibration errors for non-parametric multiclass calibration,
    TMLR 2023. It keeps the calibration set: a prediction costs N·K. Neighbourhood and threshold are chosen
    by 10-fold cross-validated NLL unless given.

    Parameters
    ----------
    fraction : float, optional
        Share of the calibration rows that are neighbours, in (0, 1].
    threshold : float, optional
        Probabilities at or below it, before or after the subtraction, are left as they are; 1 changes nothing.
    folds : int

    Examples
    --------
    >>> cal = LocallyEqualErrors(fraction=1.0, threshold=0.0, input="probs")
    >>> cal.fit([[0.1, 0.9]] * 4, [1, 1, 1, 0]).predict_proba([[0.1, 0.9]]).round(6)
    array([[0.25, 0.75]])
    """

    name = "lece"
    title = "Locally equal calibration errors"
    grouped = True
    map_types = (NeighbourErrors,)

    fraction: Annotated[float, Between(0, 1, above=True)] | None = None
    threshold: Annotated[float, Between(0, 1)] | None = None
    folds: TwoOrMore = 10

    def _fit(self, rows: Rows) -> Fitted:
        return self._learn(rows, 1.0)

    def _learn(self, rows: Rows, beta: float) -> Fitted:
        """Choose the neighbourhood on softmax(βx) and keep the rows."""
        n = len(rows)
        k = rows.n_classes
        work = 2.0 * n * n * k
        if work > _MAX_WORK:
            raise ValueError(
                f"{self.name!r} compares all pairs of rows: {n} rows of {k} classes are "
                f"{work:.1e} operations (limit {_MAX_WORK:.0e}, minutes of work); "
                "fit it on a subset of the rows"
            )
        details = self._choose(rows, beta)
        threshold = details["threshold"]
        kept = n if threshold < 1 else 0
        probs = softmax(beta * rows.x[:kept]) if kept else np.empty((0, k))
        neighbours = NeighbourErrors(
            beta=np.array(beta),
            probs=probs,
            labels=rows.labels[:kept],
            count=np.array(_count(details["fraction"], n), dtype=np.int64),
            threshold=np.array(threshold),
        )
        return Fitted(neighbours, details=details)

    def _choose(self, rows: Rows, beta: float) -> JsonObject:
        """Return the (fraction, threshold) with the lowest mean held-out NLL; the first one if several tie."""
        fractions = FRACTIONS if self.fraction is None else (float(self.fraction),)
        thresholds = ERROR_THRESHOLDS if self.threshold is None else (float(self.threshold),)
        candidates = list(product(fractions, thresholds))
        x = rows.x * beta
        folds = fold_sides(deal_folds(x, self.folds, rows.groups))

        # With one row or group there are no held-out rows: take the last point, which changes nothing by default.
        best = -1
        loss = None
        if len(folds) > 1 and len(candidates) > 1:
            probs = softmax(x)
            losses_of_folds = [
                held_out_nll(probs, rows.labels, sides, fractions, thresholds) for sides in folds
            ]
            losses = np.mean(losses_of_folds, axis=0)
            best = int(losses.argmin())
            loss = float(losses.flat[best])
        fraction, threshold = candidates[best]
        return {"fraction": fraction, "threshold": threshold, "held_out_nll": loss}


def _count(fraction: float, n_rows: int) -> int:
    return max(1, int(fraction * n_rows))


def held_out_nll(
    probs: FloatArray,
    y: IntArray,
    sides: tuple[IntArray, IntArray],
    fractions: Values,
    thresholds: Values,
) -> Float64:
    """Return the mean NLL of the held-out rows for every (fraction, threshold); neighbours are searched once."""
    fit, held_out = sides
    error = probs[fit] - np.eye(probs.shape[1])[y[fit]]
    counts = [_count(fraction, len(fit)) for fraction in fractions]
    last = [count - 1 for count in counts]
    total = np.zeros((len(fractions), len(thresholds)))
    for block in row_blocks((len(held_out), len(fit)), _BLOCK_DISTANCES):
        rows = held_out[block]
        queries = probs[rows]
        distance = distances(queries, probs[fit])
        limits = np.partition(distance, last, axis=1)[:, last]
        for i, count in enumerate(counts):
            mean_error = mean_errors(distance, limits[:, i : i + 1], np.array(count), error)
            for j, threshold in enumerate(thresholds):
                moved = subtract_error(queries, mean_error, threshold)
                total[i, j] += _nll_of_shares(moved, y[rows])
    return total / len(held_out)


def _nll_of_shares(unnormalised: Float64, y: IntArray) -> float:
    """Return the summed NLL of rows that are divided by their sum."""
    chance = unnormalised[np.arange(len(y)), y] / unnormalised.sum(axis=1)
    return -float(np.log(np.clip(chance, _LOG_CLIP, 1 - _LOG_CLIP)).sum())
