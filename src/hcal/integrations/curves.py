"""Maps of two classes that are a function of the log-odds, in forms that other languages can write.

With two classes, a map turns the log-odds u = x₁ − x₀ of class 1 into calibrated log-odds v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcal.maps.base import Map
from hcal.methods.platt import AffineOdds
from hcal.methods.smooth_spline import OddsCurves
from hcal.methods.ts import Temperature
from hcal.numerics import Float64
from hcal.pool.map import BinaryPoolMap


@dataclass(frozen=True)
class Polyline:
    """Straight lines from knot to knot; beyond the ends, the first and the last line continue."""

    knots: Float64
    values: Float64


def polyline_of(map: Map) -> Polyline | None:
    """Return the calibrated log-odds of two classes as straight lines, or None if the map is of another form.

    >>> polyline_of(Temperature(beta=np.array(0.5))).values
    array([-0.5,  0.5])
    """
    if isinstance(map, BinaryPoolMap):
        return Polyline(map.knots, map.values)
    if isinstance(map, OddsCurves) and len(map.knots) > 1:
        return Polyline(map.knots, map.values)
    ends = np.array([-1.0, 1.0])
    if isinstance(map, Temperature):
        return Polyline(ends, ends * map.beta)
    if isinstance(map, AffineOdds):
        return Polyline(ends, ends * map.slope[0] + map.intercept[0])
    return None
