"""Isotonic regression (Zadrozny & Elkan, KDD 2002)."""

from __future__ import annotations

import numpy as np
from scipy.optimize import isotonic_regression

from hcal.methods._curves import CurvePerClass, FitCurve, Points, pool_equal
from hcal.numerics import Float64, FloatArray, IntArray


class IsotonicRegression(CurvePerClass):
    """For each class, the non-decreasing curve closest to the labels, linear between its points.

    Zadrozny, Elkan: Transforming classifier scores into accurate multiclass probability estimates, KDD 2002.
    Only equal p_k are pooled; pooling all within 1e-6 would merge the small probabilities.

    Parameters
    ----------
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> cal = IsotonicRegression(floor=0, input="probs").fit([[0.4, 0.6], [0.2, 0.8]] * 2, [0, 1, 1, 0])
    >>> cal.predict_proba([[0.1, 0.9]])
    array([[0.5, 0.5]])
    """

    name = "iso"
    title = "Isotonic regression"
    weighted = True
    shape = "line"

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        return _isotonic


def isotonic_points(
    p: Float64, hit: Float64, weight: Float64 | None
) -> tuple[Float64, Float64, Float64]:
    """Return the distinct p, the mass of each and the value of the non-decreasing curve there.

    >>> isotonic_points(np.array([0.2, 0.5]), np.array([1.0, 0.0]), None)[2]
    array([0.5, 0.5])
    """
    knots, mass, hits = pool_equal(p, hit, weight)
    return knots, mass, np.clip(isotonic_regression(hits / mass, weights=mass).x, 0.0, 1.0)


def _isotonic(p: Float64, hit: Float64, weight: Float64 | None) -> Points:
    knots, _, values = isotonic_points(p, hit, weight)
    # The interpolation needs only the two ends of a flat stretch.
    inner = np.zeros(len(values), dtype=bool)
    inner[1:-1] = (values[1:-1] == values[:-2]) & (values[1:-1] == values[2:])
    return knots[~inner], values[~inner]
