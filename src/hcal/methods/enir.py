"""Ensemble of near-isotonic regressions (Naeini & Cooper, ICDM 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hcal.methods._curves import CurvePerClass, FitCurve, Points, columns, pool_equal
from hcal.methods.bbq import bic_weights, binary_cross_entropy
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray, run_starts

# The path has up to G models of up to G groups, and each model is scored, so the work is about G²/2.
# At the measured 1e-8 s a group (20,000 rows of 2 classes), 2e10 would take about four minutes on one core.
_MAX_WORK = 2e10
# Merges at times that differ by less than this, relatively, count as simultaneous: the difference is rounding.
_SAME_TIME = 1e-12


class NearIsotonicEnsemble(CurvePerClass):
    """For each class, an average of the models on the path from the labels to isotonic regression, weighted by BIC.

    Naeini, Cooper: Binary classifier calibration using an ensemble of near isotonic regression models,
    ICDM 2016; the path is the modified PAV algorithm of Tibshirani, Hoefling, Tibshirani: Nearly-isotonic
    regression, Technometrics 2011. Equal p_k are pooled first, so that the order of rows does not matter.

    Parameters
    ----------
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.6, 0.4], [0.5, 0.5], [0.2, 0.8]]
    >>> cal = NearIsotonicEnsemble(floor=0, input="probs").fit(probs, [0, 1, 0, 1])
    >>> cal.predict_proba([[0.55, 0.45]])
    array([[0.5, 0.5]])
    """

    name = "enir"
    title = "Ensemble of near-isotonic regressions"
    shape = "step"

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        # Counting the starting groups of every class is fast, so hours of work are refused at once.
        groups = np.empty(probs.shape[1])
        for k, p in columns(probs):
            _, start = start_groups(p, y == k)
            groups[k] = len(start.beta)
        work = float((groups**2).sum() / 2)
        if work > _MAX_WORK:
            raise ValueError(
                f"enir would score {work:.1e} groups along its paths (limit {_MAX_WORK:.0e}, "
                f"minutes of work): {len(y)} rows are too many for {probs.shape[1]} classes; "
                "fit it on a subset of the rows, or use 'iso', where the path ends"
            )
        return _average_path


@dataclass(frozen=True)
class NearIsotonic:
    """One near-isotonic fit on the path."""

    beta: Float64  # (g,) values
    mass: Float64  # (g,) rows
    hits: Float64  # (g,) rows of the class
    width: IntArray  # (g,) starting groups merged into each


def start_groups(p: Float64, hit: NumpyArray) -> tuple[Float64, NearIsotonic]:
    """Return the upper ends of runs of equal label frequency along p (N,), and these runs as the start of the path."""
    p, mass, hits = pool_equal(p, hit, None)
    first = run_starts(hits / mass)
    mass = np.add.reduceat(mass, first)
    hits = np.add.reduceat(hits, first)
    midpoints = (p[first[1:] - 1] + p[first[1:]]) / 2
    width = np.ones(len(first), dtype=np.int64)
    return np.append(midpoints, 1.0), NearIsotonic(hits / mass, mass, hits, width)


def _average_path(p: Float64, hit: Float64, _weight: Float64 | None) -> Points:
    upper, start = start_groups(p, hit)
    # Two passes over the path, one to score the models and one to add those with weight, need only O(G) memory.
    scored = []
    for model in path(start):
        entropy = binary_cross_entropy(model.beta, model.hits, model.mass).sum()
        scored.append((entropy, len(model.beta)))
    entropies, sizes = np.array(scored).T
    weights = bic_weights(entropies, sizes, len(p))

    mean = np.zeros(len(upper))
    for weight, model in zip(weights, path(start), strict=True):
        if weight > 0:
            mean += weight * np.repeat(model.beta, model.width)
    return upper, np.clip(mean, 0.0, 1.0)


def path(start: NearIsotonic) -> Iterator[NearIsotonic]:
    """Yield the model after each merge; if nothing ever merges, the start."""
    now = start
    time = 0.0
    while len(now.beta) > 1:
        # A value moves down where it exceeds its right neighbour, up where the left exceeds it.
        falls = now.beta[:-1] > now.beta[1:]
        above = np.pad(falls.astype(np.float64), 1)
        slope = np.diff(-above) / now.mass

        # Neighbours that move in parallel never meet.
        closing = -np.diff(slope)
        gap = np.diff(now.beta)
        wait = np.full(len(gap), np.inf)
        np.divide(gap, closing, out=wait, where=closing != 0)
        soonest = float(wait.min())
        if not np.isfinite(soonest):
            break

        together = wait <= soonest + _SAME_TIME * (1 + time + soonest)
        time += soonest
        first = np.flatnonzero(np.concatenate([[True], ~together]))
        now = NearIsotonic(
            beta=(now.beta + slope * soonest)[first],
            mass=np.add.reduceat(now.mass, first),
            hits=np.add.reduceat(now.hits, first),
            width=np.add.reduceat(now.width, first),
        )
        yield now
    if now is start:
        yield start
