"""The piecewise linear look-up in numpy. Three forms, because files must predict the bits they always did.

``apply_table``: the paper's maps, knots from x = 0 downwards; the formula of ``table`` (torch), ``_compiled``
(numba) and ``_triton``. ``apply_cells``: equal cells anywhere, at the price of a division and no search.
``through_knots``: knots anywhere. In graphs it is :meth:`hcal.runtime.ops.Ops.piecewise`. They agree to 1e-14
of their values (docs/decisions/122-one-look-up-a-runtime.md). The first two
never invert a pair, whatever rounding does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64, FloatArray


def apply_table(x: FloatArray, table: NDArray[Any], step: float) -> FloatArray:
    """Return the tabulated map before its softmax: knot c at x = −c·step has the value −table[c].

    x, of any shape, is not positive and decides the dtype; ``table`` (G + 1,) increases from 0.

    >>> apply_table(np.array([-0.5, -3.0]), np.array([0.0, 2.0, 3.0]), 1.0)
    array([-1., -4.])
    """
    values = table.astype(x.dtype)
    cells = len(values) - 1
    t = np.maximum(x * x.dtype.type(-1 / step), 0)
    cell = np.minimum(t, cells - 1).astype(np.intp)
    low, high = values[cell], values[cell + 1]
    depth: FloatArray = low + (t - cell.astype(x.dtype)) * (high - low)
    # rounding must not carry a point beyond the next knot: the map never inverts a pair
    np.minimum(depth, high, out=depth, where=cell < cells - 1)
    return np.negative(depth, out=depth)


@dataclass(frozen=True)
class Cells:
    """Equal cells of the real line; the first and the last go on for ever.

    >>> cells = Cells(0.0, 1.0, 3)
    >>> cells.index(np.array([-5.0, 1.5, 9.0])), cells.edges
    (array([0, 1, 2]), array([0., 1., 2., 3.]))
    """

    low: float
    width: float
    count: int

    @property
    def edges(self) -> Float64:
        """The count + 1 edges."""
        return self.low + self.width * np.arange(self.count + 1, dtype=np.float64)

    @property
    def middles(self) -> Float64:
        """The midpoints of the cells."""
        return self.low + self.width * (np.arange(self.count, dtype=np.float64) + 0.5)

    def index(self, x: Float64) -> NDArray[np.intp]:
        """Return the cell of every x."""
        at = np.floor((x - self.low) / self.width)
        return np.clip(at, 0, self.count - 1).astype(np.intp)


def cells_over(x: Float64, count: int = 1024) -> Cells:
    """Return cells from the 0.01 % to the 99.99 % quantile of all logits: outliers must not stretch them.

    >>> cells_over(np.array([0.0, 1.0]), 4).width
    0.25
    """
    flat = x.ravel()
    flat = flat[:: max(1, flat.size // 1_000_000)]
    low, high = (float(q) for q in np.quantile(flat, [1e-4, 1 - 1e-4], method="nearest"))
    width = (high - low) / count
    return Cells(low, width if width > 0 else 1.0, count)


def apply_cells(x: Float64, cells: Cells, values: Float64) -> Float64:
    """Return the piecewise linear function at x; the end segments go on for ever.

    >>> apply_cells(np.array([-1.0, 0.5, 3.0]), Cells(0.0, 1.0, 2), np.array([0.0, 1.0, 3.0]))
    array([-1. ,  0.5,  5. ])
    """
    at = cells.index(x)
    edges = cells.edges
    out: Float64 = values[at] + np.diff(values)[at] / np.diff(edges)[at] * (x - edges[at])
    # Rounding must not lift a logit above the edge that a larger one starts from.
    inside = at < cells.count - 1
    return np.where(inside, np.minimum(out, values[at + 1]), np.maximum(out, values[-2]))


def through_knots(x: Float64, knots: Float64, values: Float64) -> Float64:
    """Return the piecewise linear function through (knots, values) at x; the end segments go on for ever.

    ``knots`` (G,) increase, G ≥ 2.

    >>> through_knots(np.array([-1.0, 0.5, 3.0]), np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 3.0]))
    array([-1. ,  0.5,  5. ])
    """
    first, last = (np.diff(values)[[0, -1]] / np.diff(knots)[[0, -1]]).tolist()
    below, above = np.minimum(x - knots[0], 0), np.maximum(x - knots[-1], 0)
    return np.asarray(np.interp(x, knots, values) + first * below + last * above, dtype=np.float64)
