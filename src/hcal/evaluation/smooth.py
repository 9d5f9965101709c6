"""The smooth reliability diagram: a kernel regression at the width that smooth ECE finds.

Błasiok, Nakkiran: Smooth ECE, ICLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcal.metrics.sample import Vector
from hcal.metrics.smooth import CELLS, smooth_error, smoothed, spectrum

#: Points of the curve; each is the mean of this many cells of the grid.
POINTS = 128
#: No curve is drawn smoother than the eye can tell, nor rougher than one point.
_NARROWEST = 1 / POINTS


@dataclass(frozen=True)
class Smoothed:
    """A regression of events on probabilities; arrays of shape (POINTS,)."""

    weight: Vector  # the rows at each point
    observed: Vector  # how often the event happened there; NaN where no rows are near
    low: Vector  # where ``observed`` lies if the predictions are calibrated
    high: Vector
    error: float  # the smooth calibration error


def smooth_curve(
    p: Vector, event: Vector, weight: Vector, level: float, resamples: int, rng: np.random.Generator
) -> Smoothed:
    """Return the smooth reliability curve with its consistency band, for which events are drawn.

    Shapes: p, event, weight (N,).
    """
    error = smooth_error(p, event - p, weight)
    width = max(error, _NARROWEST)
    mass = _points(spectrum(p, weight), width)
    near = mass > 1e-3 * weight.sum() / POINTS  # elsewhere a ratio of two small numbers says nothing
    drawn = np.stack(
        [_points(spectrum(p, weight * (rng.random(len(p)) < p)), width) for _ in range(resamples)]
    )
    ends = np.quantile(_ratio(drawn, mass, near), [(1 - level) / 2, (1 + level) / 2], axis=0)
    observed = _ratio(_points(spectrum(p, weight * event), width), mass, near)
    return Smoothed(mass, observed, ends[0], ends[1], error)


def _points(waves: Vector, width: float) -> Vector:
    return np.asarray(np.maximum(smoothed(waves, width).reshape(POINTS, CELLS // POINTS).sum(axis=1), 0))


def _ratio(events: Vector, mass: Vector, near: Vector) -> Vector:
    return np.where(near, np.clip(events / np.where(near, mass, 1.0), 0, 1), np.nan)
