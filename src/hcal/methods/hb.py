"""Histogram binning (Zadrozny & Elkan, ICML 2001)."""

from __future__ import annotations

from functools import partial

import numpy as np

from hcal.methods._curves import CurvePerClass, FitCurve, Points, pool_equal
from hcal.methods._scaling import EPS
from hcal.methods.parameters import Count, parameters
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums


@parameters
class HistogramBinning(CurvePerClass):
    """For each class, the label frequency in equal-width bins of p_k; an empty bin gets its midpoint.

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

    bins: Count = 10

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        return partial(_histogram, np.linspace(0, 1, self.bins + 1))


def _histogram(edges: Float64, p: Float64, hit: Float64, weight: Float64 | None) -> Points:
    p, mass, hits = pool_equal(p, hit, weight)
    rates = bin_rates(p, prefix_sums(mass), prefix_sums(hits), edges[:-1], edges[1:])
    return edges[1:], rates


def bin_rates(p: Float64, mass: Float64, hits: Float64, lower: Float64, upper: Float64) -> Float64:
    """Return the label frequency in every bin [lo, hi), the last one closed; the midpoint if the bin is empty.

    Probabilities (n,) are ascending; ``mass`` and ``hits`` (n + 1,) are prefix sums; bins (B,) may overlap.

    >>> p, lower = np.array([0.2, 1.0]), np.array([0.0, 0.5])
    >>> bin_rates(p, np.array([0.0, 4.0, 5.0]), np.array([0.0, 1.0, 2.0]), lower, lower + 0.5)
    array([0.25, 1.  ])
    """
    inside = np.clip(p, EPS, 1 - EPS)
    start = np.searchsorted(inside, lower)
    stop = np.searchsorted(inside, upper)
    size = mass[stop] - mass[start]
    rates = (hits[stop] - hits[start]) / np.where(size > 0, size, 1.0)
    return np.where(size > 0, rates, (lower + upper) / 2)
