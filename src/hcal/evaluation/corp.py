"""Reliability by isotonic regression (CORP): bins that nobody chose.

Dimitriadis, Gneiting, Jordan: Stable reliability diagrams for probabilistic classifiers, PNAS 2021. The best
increasing recalibration of the events is a step function, found by pooling adjacent violators; its steps are
the bins. Its score, less that of the predictions, splits the Brier score into miscalibration, discrimination
and uncertainty, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from hcal.metrics.sample import Vector


@dataclass(frozen=True)
class Steps:
    """The steps of an isotonic fit; arrays of shape (steps,)."""

    first: NDArray[np.int64]  # where each step begins in the sorted, distinct probabilities
    weight: Vector  # rows, their mean probability, and the frequency of the event
    predicted: Vector
    observed: Vector


@dataclass(frozen=True)
class Parts:
    """The Brier score of an event in three parts: score = miscalibration − discrimination + uncertainty."""

    miscalibration: float
    discrimination: float
    uncertainty: float


@dataclass(frozen=True)
class EqualProbabilities:
    """Events with equal probabilities taken together, in increasing order; arrays of shape (values,)."""

    p: Vector
    weight: Vector
    events: Vector

    @property
    def rate(self) -> Vector:
        """How often the event happened at each value."""
        return self.events / self.weight


def pool_probabilities(p: Vector, event: Vector, weight: Vector) -> EqualProbabilities:
    """Sort events by their probability and take equal ones together.

    >>> pool_probabilities(np.array([0.7, 0.2, 0.7]), np.array([1.0, 0.0, 0.0]), np.ones(3)).rate
    array([0. , 0.5])
    """
    used = weight > 0
    values, place = np.unique(p[used], return_inverse=True)
    mass, hits = (np.bincount(place, v[used]).astype(np.float64) for v in (weight, weight * event))
    return EqualProbabilities(values, mass, hits)


def isotonic_steps(pooled: EqualProbabilities) -> Steps:
    """Return the steps of the best increasing fit.

    >>> p, event = np.array([0.1, 0.2, 0.3]), np.array([1.0, 0.0, 1.0])
    >>> steps = isotonic_steps(pool_probabilities(p, event, np.ones(3)))
    >>> steps.observed, steps.weight
    (array([0.5, 1. ]), array([2., 1.]))
    """
    fit = isotonic_regression(pooled.rate, weights=pooled.weight)
    first = np.asarray(fit.blocks[:-1], dtype=np.int64)
    weight, sum_p, sum_e = (
        np.add.reduceat(x, first) for x in (pooled.weight, pooled.weight * pooled.p, pooled.events)
    )
    return Steps(first, weight, sum_p / weight, sum_e / weight)


def isotonic_parts(pooled: EqualProbabilities) -> Parts:
    """Return the Brier score of the event in its three parts.

    >>> parts = isotonic_parts(pool_probabilities(np.array([0.5, 0.9]), np.array([0.0, 1.0]), np.ones(2)))
    >>> round(parts.miscalibration, 3), parts.discrimination, parts.uncertainty
    (0.13, 0.25, 0.25)
    """
    total, steps = pooled.weight.sum(), isotonic_steps(pooled)
    fitted = np.repeat(steps.observed, np.diff(np.append(steps.first, len(pooled.p))))
    base = np.full_like(fitted, pooled.events.sum() / total)
    score, best, constant = (_brier(pooled, q) for q in (pooled.p, fitted, base))
    return Parts(score - best, constant - best, constant)


def _brier(pooled: EqualProbabilities, q: Vector) -> float:
    """Mean (q − event)², from the frequencies: an event is 0 or 1."""
    rows = q**2 * pooled.weight + (1 - 2 * q) * pooled.events
    return float(rows.sum() / pooled.weight.sum())


def isotonic_band(
    pooled: EqualProbabilities, at: Vector, level: float, resamples: int, rng: np.random.Generator
) -> tuple[Vector, Vector]:
    """Return where the isotonic fit lies, at some probabilities, if the predictions are calibrated.

    Events are drawn with their probabilities, fitted again, and the fits' quantiles taken point by point: the
    consistency band of the paper. Shapes: at, low, high (points,).
    """
    place = np.clip(np.searchsorted(pooled.p, at, side="right") - 1, 0, len(pooled.p) - 1)
    counts = np.maximum(np.rint(pooled.weight), 1).astype(np.int64)
    p = np.clip(pooled.p, 0, 1)
    # one draw at a time: all of them together would be as many copies of the rows
    drawn = (rng.binomial(counts, p) / counts for _ in range(resamples))
    fits = np.stack([isotonic_regression(rate, weights=pooled.weight).x[place] for rate in drawn])
    low, high = np.quantile(fits, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.minimum(low, at), np.maximum(high, at)
