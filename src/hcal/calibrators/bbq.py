"""Bayesian binning into quantiles (Naeini, Cooper & Hauskrecht, AAAI 2015), in the form of the comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.calibrators._one_vs_rest import Curve, CurvePerClass, FitCurve, step
from hcal.calibrators._score_average import bic_scores, binary_cross_entropy, elbow_weights
from hcal.calibrators._shared import EPS
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums


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
    look_up = step

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
            mean += weights[m] * step(knots, self.edges[m][1:], own)
        return knots, mean
