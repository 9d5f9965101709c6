"""A scalar minimum of a bumpy curve: scan, then refine around the best point."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def minimise_scalar(
    function: Callable[[float], float], low: float, high: float, *, points: int = 31, tolerance: float = 1e-7
) -> float:
    """Return the argument of the least value: an even scan, then Brent between the best point's neighbours.

    ``points`` of the scan should be enough to land in the valley of the global minimum; ``tolerance`` is
    absolute, on the argument.

    >>> round(minimise_scalar(lambda t: (t - 1.5) ** 2, -4.0, 4.0), 5)
    1.5
    """
    from scipy.optimize import minimize_scalar

    grid = np.linspace(low, high, points)
    values = [function(float(t)) for t in grid]
    best = int(np.argmin(values))
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, points - 1)]
    found = minimize_scalar(function, bounds=(left, right), method="bounded", options={"xatol": tolerance})
    # The bounded search never evaluates the ends, and one of them may be the minimum.
    return float(found.x) if found.fun <= values[best] else float(grid[best])
