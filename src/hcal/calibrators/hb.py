"""Histogram binning (Zadrozny & Elkan, ICML 2001)."""

from __future__ import annotations

import numpy as np

from hcal.calibrators._curves import CurvePerClass, FitCurve
from hcal.calibrators._scaling import EPS
from hcal.calibrators.parameters import parameters, whole_number
from hcal.numerics import Float64, FloatArray, IntArray


@parameters
class HistogramBinning(CurvePerClass):
    """Per class, the label frequency in equal-width bins of p_k; an empty bin keeps its midpoint.

    Zadrozny, Elkan: Obtaining calibrated probability estimates from decision trees and naive Bayesian
    classifiers, ICML 2001. Fitting bins are [lo, hi), prediction bins (lo, hi].

    Parameters
    ----------
    bins : int
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> cal = HistogramBinning(bins=2, floor=0, input="probs").fit([[0.1, 0.9]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.3, 0.7]])
    array([[0.25, 0.75]])
    """

    name = "hb"
    title = "Histogram binning"
    weighted = True
    shape = "step"

    bins: int = 10

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        edges = np.linspace(0, 1, whole_number("bins", self.bins, 1) + 1)
        return lambda p, hit, weight: (edges[1:], _frequencies(p, hit, weight, edges))


def _frequencies(p: Float64, hit: Float64, weight: Float64 | None, edges: Float64) -> Float64:
    which = np.searchsorted(edges, np.clip(p, EPS, 1 - EPS), side="right") - 1
    bins = len(edges) - 1
    mass = np.bincount(which, weights=weight, minlength=bins).astype(np.float64)
    hits = np.bincount(which, weights=hit if weight is None else hit * weight, minlength=bins)
    filled = mass > 0
    return np.where(filled, hits / np.where(filled, mass, 1.0), (edges[1:] + edges[:-1]) / 2)
