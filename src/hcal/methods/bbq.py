"""Bayesian binning into quantiles (Naeini, Cooper & Hauskrecht, AAAI 2015), as in the paper's comparison."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hcal.methods._curves import CurvePerClass, FitCurve, Points, pool_equal
from hcal.methods.hb import bin_rates
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums

_LOG_FLOOR = -100.0  # a row of a bin that is certain and wrong costs 100 nats instead of infinity
# Sorted scores that drop by less than this times the variance of all scores count as flat.
_ELBOW = 0.001


class BayesianBinning(CurvePerClass):
    """For each class, an average of equal-width histograms with different numbers of bins, weighted by their BIC.

    Naeini, Cooper, Hauskrecht: Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
    The paper's comparison scores equal-width histograms by BIC (the original: equal-mass ones by BDeu) and
    keeps the models before the elbow of the sorted scores; so does this class.

    Parameters
    ----------
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> cal = BayesianBinning(floor=0, input="probs").fit([[0.1, 0.9]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.1, 0.9]]).round(4)
    array([[0.25, 0.75]])
    """

    name = "bbq"
    title = "Bayesian binning into quantiles"
    shape = "step"

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        root = len(y) ** (1 / 3)
        low = max(1, int(root / 10))
        high = min(int(np.ceil(len(y) / 5)), int(np.ceil(root * 10)))
        return partial(_average_histograms, np.arange(low, max(low, high) + 1))


def _average_histograms(
    counts: IntArray, p: Float64, hit: Float64, _weight: Float64 | None
) -> Points:
    """Fit one histogram for each number of bins in ``counts`` and average them; the rows are sorted once for all."""
    edges = [np.linspace(0, 1, count + 1) for count in counts]
    lower = np.concatenate([e[:-1] for e in edges])
    upper = np.concatenate([e[1:] for e in edges])
    first = np.cumsum(counts) - counts

    p, mass, hits = pool_equal(p, hit, None)
    mass = prefix_sums(mass)
    hits = prefix_sums(hits)
    values = bin_rates(p, mass, hits, lower, upper)

    # The cross-entropy of each histogram on its own rows, with the bins (lo, hi] of prediction.
    start = np.where(lower == 0.0, 0, np.searchsorted(p, lower, side="right"))
    stop = np.searchsorted(p, upper, side="right")
    entropy = binary_cross_entropy(values, hits[stop] - hits[start], mass[stop] - mass[start])
    weights = bic_weights(np.add.reduceat(entropy, first), counts, mass[-1])

    # The weighted mean of the kept histograms is again a step function, on the union of their edges.
    kept = np.flatnonzero(weights)
    knots = np.unique(np.concatenate([edges[m][1:] for m in kept]))
    mean = np.zeros(len(knots))
    for m in kept:
        bin_of_knot = np.searchsorted(edges[m][1:], knots)
        mean += weights[m] * values[first[m] + bin_of_knot]
    return knots, mean


def binary_cross_entropy(values: Float64, hits: Float64, mass: Float64) -> Float64:
    """Return −[hits·log v + (mass − hits)·log(1 − v)] of each bin, each log at least −100.

    >>> binary_cross_entropy(np.array([0.0, 0.5]), np.array([1.0, 1.0]), np.array([2.0, 1.0])).round(4)
    array([100.    ,   0.6931])
    """
    with np.errstate(divide="ignore"):
        log_hit = np.maximum(np.log(values), _LOG_FLOOR)
        log_miss = np.maximum(np.log1p(-values), _LOG_FLOOR)
    return -(hits * log_hit + (mass - hits) * log_miss)


def bic_weights(cross_entropy: Float64, n_parameters: ArrayLike, n_rows: float) -> Float64:
    """Return averaging weights of models by BIC = 2·cross-entropy + parameters·ln N.

    The scores are exp((min BIC − BIC)/2); see :func:`elbow_weights` for which of them count.

    >>> bic_weights(np.array([1.0, 1.0]), np.array([1, 3]), 10).round(3)
    array([0.909, 0.091])
    """
    bic = 2 * cross_entropy + np.asarray(n_parameters) * np.log(n_rows)
    return elbow_weights(np.exp((bic.min() - bic) / 2))


def elbow_weights(scores: Float64) -> Float64:
    """Return weights that sum to 1, in proportion to the scores before the elbow of the sorted scores and 0 after it.

    In falling order, leading scores that are equal are kept, then all up to the first that drops to the next by at most
    0.001 times the variance of all scores.

    >>> elbow_weights(np.array([0.5, 1.0, 0.0, 0.0]))
    array([0.33333333, 0.66666667, 0.        , 0.        ])
    """
    order = np.argsort(-scores, kind="stable")
    drop = -np.diff(scores[order])
    k = 0
    while k < len(drop) and drop[k] == 0:
        k += 1
    threshold = _ELBOW * float(np.var(scores))
    while k < len(drop) and drop[k] > threshold:
        k += 1

    before_elbow = order[: k + 1]
    weights = np.zeros(len(scores))
    weights[before_elbow] = scores[before_elbow]
    return np.asarray(weights / weights.sum())
