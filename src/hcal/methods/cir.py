"""Centered isotonic regression (Oron & Flournoy, 2017)."""

from __future__ import annotations

import numpy as np

from hcal.methods._curves import CurvePerClass, FitCurve, Points
from hcal.methods.iso import isotonic_points
from hcal.numerics import Float64, FloatArray, IntArray, run_starts


class CenteredIsotonicRegression(CurvePerClass):
    """Isotonic regression with each flat stretch replaced by its centre and lines in between, so that no rows tie.

    A flat stretch only means that the data do not show the rate to rise there. A curve that rises through its centre
    fits about as well and keeps the ranking. Stretches at 0 and 1 stay flat, as published.

    Oron, Flournoy: Centered isotonic regression: point and interval estimation for dose-response studies,
    Statistics in Biopharmaceutical Research, 2017.

    Parameters
    ----------
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given.

    Examples
    --------
    >>> probs = [[0.8, 0.2], [0.6, 0.4], [0.4, 0.6], [0.2, 0.8]] * 2
    >>> cal = CenteredIsotonicRegression(floor=0, input="probs").fit(probs, [0, 1, 0, 1, 1, 0, 1, 1])
    >>> cal.predict_proba([[0.5, 0.5]]).round(3)
    array([[0.375, 0.625]])
    """

    name = "cir"
    title = "Centered isotonic regression"
    weighted = True
    shape = "line"

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        return _centered


def _centered(p: Float64, hit: Float64, weight: Float64 | None) -> Points:
    knots, mass, values = isotonic_points(p, hit, weight)
    first = run_starts(values)
    level = values[first]
    centre = np.add.reduceat(knots * mass, first) / np.add.reduceat(mass, first)
    # A stretch at 0 or 1 keeps both its ends; any other becomes its centre.
    flat = (level <= 0) | (level >= 1)
    low = knots[first]
    high = knots[np.append(first[1:], len(knots)) - 1]
    has_two_ends = flat & (high > low)
    points = np.concatenate([np.where(flat, low, centre), high[has_two_ends]])
    heights = np.concatenate([level, level[has_two_ends]])
    order = np.argsort(points)
    return points[order], heights[order]
