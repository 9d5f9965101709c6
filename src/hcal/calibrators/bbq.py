"""Bayesian binning into quantiles (Naeini, Cooper & Hauskrecht, AAAI 2015), in the form of the comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators._curves import Curve, CurvePerClass, FitCurve
from hcal.calibrators._scaling import EPS
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums

_ELBOW = 0.001  # the drop, in units of the variance of all scores, below which the sorted scores are flat
_LOG_FLOOR = -100.0  # a certain but wrong bin costs 100 nats a row, not infinity


class BayesianBinning(CurvePerClass):
    """Per class, an average of equal-width histograms with every bin count, weighted by their BIC.

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
        return _HistogramGrid(len(y))

    def _facts(self, learner: Any) -> dict[str, Any]:
        return {"bins": [int(learner.counts[0]), int(learner.counts[-1])], "kept": learner.kept}


class _HistogramGrid:
    """All histograms of one class at once: their edges lie end to end, one sort serves them all."""

    def __init__(self, n_rows: int) -> None:
        root = n_rows ** (1 / 3)
        low = max(1, int(np.floor(root / 10)))
        high = min(int(np.ceil(n_rows / 5)), int(np.ceil(root * 10)))
        self.n_rows = n_rows
        self.counts = np.arange(low, max(low, high) + 1)
        self.edges = [np.linspace(0, 1, b + 1) for b in self.counts]
        self.lower = np.concatenate([e[:-1] for e in self.edges])
        self.upper = np.concatenate([e[1:] for e in self.edges])
        self.first = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        self.kept: list[int] = []

    def __call__(self, p: Float64, hit: Float64, _weight: Float64 | None) -> Curve:
        order = np.argsort(p, kind="stable")
        p = p[order]
        hits = prefix_sums(hit[order])
        values = self._values(np.clip(p, EPS, 1 - EPS), hits)
        weights = elbow_weights(bic_scores(self._deviance(p, hits, values), self.counts, self.n_rows))
        self.kept.append(int(np.count_nonzero(weights)))
        return self._average(values, weights)

    def _values(self, p: Float64, hits: Float64) -> Float64:
        """Label frequency in every bin [lo, hi) of every histogram; the midpoint where it is empty."""
        start = np.searchsorted(p, self.lower, side="left")
        stop = np.where(self.upper == 1.0, len(p), np.searchsorted(p, self.upper, side="left"))
        mass = stop - start
        midpoint = (self.lower + self.upper) / 2
        return np.where(mass > 0, (hits[stop] - hits[start]) / np.maximum(mass, 1), midpoint)

    def _deviance(self, p: Float64, hits: Float64, values: Float64) -> Float64:
        """Cross-entropy of each histogram on its own rows, with the bins (lo, hi] of prediction."""
        start = np.where(self.lower == 0.0, 0, np.searchsorted(p, self.lower, side="right"))
        stop = np.searchsorted(p, self.upper, side="right")
        positives = hits[stop] - hits[start]
        entropy = binary_cross_entropy(values, positives, (stop - start) - positives)
        return np.add.reduceat(entropy, self.first)

    def _average(self, values: Float64, weights: Float64) -> Curve:
        """The weighted mean of the kept histograms: again a step function, on the union of their edges."""
        kept = np.flatnonzero(weights)
        knots = np.unique(np.concatenate([self.edges[m][1:] for m in kept]))
        mean = np.zeros(len(knots))
        for m in kept:
            own = values[self.first[m] : self.first[m] + self.counts[m]]
            mean += weights[m] * own[np.searchsorted(self.edges[m][1:], knots)]
        return knots, mean


def binary_cross_entropy(values: Float64, positives: Float64, negatives: Float64) -> Float64:
    """Return −[positives·log v + negatives·log(1 − v)] of each bin, each log at least −100.

    >>> binary_cross_entropy(np.array([0.0, 0.5]), np.array([1.0, 1.0]), np.array([1.0, 0.0])).round(4)
    array([100.    ,   0.6931])
    """
    with np.errstate(divide="ignore"):
        log_hit = np.maximum(np.log(values), _LOG_FLOOR)
        log_miss = np.maximum(np.log1p(-values), _LOG_FLOOR)
    return -(positives * log_hit + negatives * log_miss)


def bic_scores(cross_entropy: Float64, n_parameters: NDArray[Any], n_rows: int) -> Float64:
    """Return exp((min BIC − BIC)/2) of each model, BIC = 2·cross-entropy + parameters·ln N.

    >>> bic_scores(np.array([1.0, 1.0]), np.array([1, 3]), 10).round(3)
    array([1. , 0.1])
    """
    bic = 2 * cross_entropy + n_parameters * np.log(n_rows)
    scores: Float64 = np.exp((bic.min() - bic) / 2)
    return scores


def elbow_weights(scores: Float64) -> Float64:
    """Return averaging weights: the scores before the elbow of their sorted curve, summing to 1; else 0.

    Sorted descending, first past equal scores, then on while a score drops by more than 0.001 variances of
    all scores: models up to that one are kept.

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
    weights = np.zeros(len(scores))
    weights[order[: k + 1]] = scores[order[: k + 1]]
    weights /= weights.sum()
    return weights
