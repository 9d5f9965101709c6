"""The fitted maps of the paper: a tabulated function of one scalar, or a mixture of temperatures."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hcal.maps.base import SMALL, STEEP, Map, ProbabilityMap, array, map_type, option
from hcal.xp import Array, namespace

#: How x is computed from logits: log-softmax (the published code), or minus the largest of the row (the paper).
Reference = Literal["log_softmax", "largest"]


@map_type
class TableMap(Map):
    """softmax of a piecewise linear function of x ≤ 0, whose knots are ``step`` apart.

    Knot c lies at x = −c·step and has the value −table[c]; below the last knot the last slope continues.
    """

    table: Array = array(
        "minus the map at the knots, from x = 0 downwards", "G+1", low=0.0, order="not falling"
    )
    step: Array = array("distance of the knots", low=SMALL)
    reference: Reference = option(
        "how x is computed from logits", ("log_softmax", "largest"), "log_softmax"
    )

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        below = xp.log_softmax(x) if self.reference == "log_softmax" else x - xp.row_max(x)
        return xp.log_softmax(table_scores(below, self.table, self.step))


@map_type
class MixtureMap(ProbabilityMap):
    """Σ v_i softmax(a_i x): a mixture of temperatures."""

    slopes: Array = array("inverse temperatures a", "M", low=0.0, high=STEEP)
    shares: Array = array("weights v, which sum to 1", "M", low=0.0, high=1.0)

    float32_safe = True

    def compiled(self, x: Array) -> Array | None:
        """Return probabilities (N, K) of float32 logits by the kernel of the training, if numba is installed.

        >>> MixtureMap(slopes=np.ones(1), shares=np.ones(1)).compiled(np.zeros((1, 2))) is None  # float64
        True
        """
        if x.dtype != np.float32 or not self.fits_float32:
            return None
        try:
            from hcal.h_calibration._mixture_numba import mixture_forward
        except ImportError:
            return None
        return mixture_forward(x, self.slopes.astype(x.dtype), self.shares.astype(x.dtype))

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        return mixture(x - namespace(x).row_max(x), self.slopes, self.shares)


def table_scores(x: Array, table: Array, step: Array) -> Array:
    """Return the tabulated function at x ≤ 0 of any shape: knot c at −c·step has the value −table[c]."""
    xp = namespace(x)
    values = xp.astype(table, x)
    cells = len(table) - 1
    depth = xp.maximum(x * (-1 / step), 0.0 * x)
    cell = xp.floor_index(xp.minimum(depth, 0.0 * x + (cells - 1)))
    low = xp.take(values, cell)
    high = xp.take(values, cell + 1)
    score = low + (depth - cell) * (high - low)
    # Rounding must not raise a score above that of the next knot: the map never inverts the order of two scores.
    return -xp.where(cell < cells - 1, xp.minimum(score, high), score)


def mixture(x: Array, slopes: Array, shares: Array) -> Array:
    """Return Σ v_i softmax(a_i x)."""
    xp = namespace(x)
    total = 0.0 * x
    for i in range(len(slopes)):
        total = total + shares[i] * xp.exp(xp.log_softmax(slopes[i] * x))
    return total
