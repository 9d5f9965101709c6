"""Ensemble of near-isotonic regressions (Naeini & Cooper, ICDM 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hcal.calibrators._curves import Curve, CurvePerClass, FitCurve, columns, pool_equal
from hcal.calibrators.bbq import bic_scores, binary_cross_entropy, elbow_weights
from hcal.numerics import Float64, FloatArray, IntArray, run_starts

# The path visits up to G models of up to G groups; each model must be scored, so the work is about G²/2.
# Measured 1e-8 s a group (20,000 rows of 2 classes): 2e10 is some four minutes of one core, extrapolated.
_MAX_WORK = 2e10
# Meeting times that are equal in exact arithmetic differ by rounding; they are one event on the path.
_SAME_TIME = 1e-12


class NearIsotonicEnsemble(CurvePerClass):
    """Per class, an average along the path from the labels to isotonic regression, weighted by BIC.

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
        _check_work(probs, y)
        return _average_path


@dataclass(frozen=True)
class _Groups:
    """The groups at the start of the path: runs of equal label frequency along the sorted p_k."""

    upper: Float64  # (G,) upper bounds, midpoints between neighbouring p_k
    mass: Float64  # (G,) rows
    hits: Float64  # (G,) rows of the class


def _check_work(probs: FloatArray, y: IntArray) -> None:
    """Refuse before hours of work: count the starting groups of every class, which is cheap."""
    # A class with n rows has at most 2n + 1 runs of equal labels; only large classes need an exact count.
    bound = float(((2.0 * np.bincount(y, minlength=probs.shape[1]) + 1) ** 2).sum() / 2)
    if bound <= _MAX_WORK:
        return
    sizes = np.array([len(_start(*pool_equal(p, y == k, None)).mass) for k, p in columns(probs)])
    work = float((sizes.astype(np.float64) ** 2).sum() / 2)
    if work > _MAX_WORK:
        raise ValueError(
            f"enir would score {work:.1e} groups along its paths (limit {_MAX_WORK:.0e}, minutes of work): "
            f"{len(y)} rows are too many for {probs.shape[1]} classes; fit it on a subset of the rows, "
            "or use 'iso', where the path ends"
        )


def _start(p: Float64, mass: Float64, hits: Float64) -> _Groups:
    first = run_starts(hits / mass)
    upper = np.append((p[first[1:] - 1] + p[first[1:]]) / 2, 1.0)
    return _Groups(upper, np.add.reduceat(mass, first), np.add.reduceat(hits, first))


def _average_path(p: Float64, hit: Float64, _weight: Float64 | None) -> Curve:
    start = _start(*pool_equal(p, hit, None))
    # Two passes over the path: scores first, then only the kept models are added up. Memory stays O(G).
    scored = [
        (binary_cross_entropy(model.beta, model.hits, model.mass - model.hits).sum(), len(model.beta))
        for model in _path(start)
    ]
    entropies, sizes = np.array(scored).T
    weights = elbow_weights(bic_scores(entropies, sizes, len(p)))
    mean = np.zeros(len(start.mass))
    for weight, model in zip(weights, _path(start), strict=True):
        if weight > 0:
            mean += weight * np.repeat(model.beta, model.width)
    return start.upper, np.clip(mean, 0.0, 1.0)


@dataclass(frozen=True)
class _Model:
    """One near-isotonic fit on the path."""

    beta: Float64  # (g,) values
    mass: Float64  # (g,) rows
    hits: Float64  # (g,) rows of the class
    width: IntArray  # (g,) starting groups merged into each


def _path(start: _Groups) -> Iterator[_Model]:
    """Yield the models after each merge; where nothing ever merges, the start itself."""
    beta, mass, hits = start.hits / start.mass, start.mass, start.hits
    width = np.ones(len(beta), dtype=np.int64)
    time, merged = 0.0, False
    while len(beta) > 1:
        slope = _slopes(beta, mass)
        wait = _waits(beta, slope)
        soonest = float(wait.min())
        if not np.isfinite(soonest):
            break
        together = wait <= soonest + _SAME_TIME * (1 + time + soonest)
        time += soonest
        first = np.flatnonzero(np.concatenate([[True], ~together]))
        beta = (beta + slope * soonest)[first]
        mass, hits, width = (np.add.reduceat(a, first) for a in (mass, hits, width))
        merged = True
        yield _Model(beta, mass, hits, width)
    if not merged:
        yield _Model(beta, mass, hits, width)


def _slopes(beta: Float64, mass: Float64) -> Float64:
    """How fast each value moves: down where it exceeds its right neighbour, up where the left exceeds it."""
    above = beta[:-1] > beta[1:]
    slope = np.zeros(len(beta))
    slope[1:] += above
    slope[:-1] -= above
    slope /= mass
    return slope


def _waits(beta: Float64, slope: Float64) -> Float64:
    """The time until each pair of neighbours meets; infinite where they move alike."""
    closing = slope[:-1] - slope[1:]
    gap = beta[1:] - beta[:-1]
    wait = np.full(len(gap), np.inf)
    np.divide(gap, closing, out=wait, where=closing != 0)
    return wait
