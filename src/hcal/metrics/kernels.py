"""One-dimensional kernel sums: the exponential kernel of mmce and the densities of kde_ece."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft
from scipy.integrate import trapezoid

from hcal.runtime.numerics import Float64 as Vector

_GRID = np.linspace(-0.6, 1.6, 2**14)
_TINY = 1e-6  # density below which the published definition does not divide
_WIDEST = 0.2  # bandwidth whose kernel reaches the margins of the grid
# Half a kernel in grid steps from which its last point is next to 0, so that copying it adds nothing.
_RESOLVED = 100


def exponential_sum(x: Vector, a: Vector, rate: float) -> float:
    """Return Σ_ij a_i a_j exp(−rate·|x_i − x_j|) for ascending x, in O(N).

    exp(−r(x_i − x_j)) = exp(−r·x_i)·exp(r·x_j) for j < i, so one cumulated sum gives every row. Stretches of
    length 500/rate are handled one after the other, so that the factors never overflow.
    Shapes: x (N,), ascending, a (N,).

    Examples
    --------
    >>> round(exponential_sum(np.array([0.0, 1.0]), np.array([1.0, 1.0]), np.log(2.0)), 12)
    3.0
    """
    total, carry, last = 0.0, 0.0, float(x[0])
    start = 0
    while start < len(x):
        first = float(x[start])
        stop = int(np.searchsorted(x, first + 500 / rate, side="right"))
        grow = np.exp(rate * (x[start:stop] - first))
        carry *= np.exp(-rate * (first - last))
        part = a[start:stop]
        before = carry + np.concatenate([[0.0], np.cumsum(part * grow)[:-1]])
        total += float((part * part).sum() + 2 * (part * before / grow).sum())
        last = float(x[stop - 1])
        carry = float((carry + (part * grow).sum()) / grow[-1])
        start = stop
    return total


def kde_error(score: Vector, event: Vector, weight: Vector, bandwidth: float | None) -> float:
    """Return ∫|x − P(event | score = x)| dP(score) with kernel densities (see ``kde_ece``)."""
    n, correct = weight.sum(), weight * event
    if correct.sum() == 0:
        return float(np.average(score, weights=weight))
    if bandwidth is None:
        mean = np.average(score, weights=correct)
        std = float(np.sqrt(np.average((score - mean) ** 2, weights=correct)))
        bandwidth = min(std * (2 * n) ** -0.2, _WIDEST)  # a few rows at 0 and 1 would ask for more
    # All correct scores equal: the kernel narrows to one grid step instead of dividing by zero.
    half = max(3 * bandwidth, float(_GRID[1] - _GRID[0]))
    if bandwidth > _WIDEST:
        raise ValueError(f"bandwidth must be at most 0.2 (the grid ends 0.6 beyond [0, 1]), got {bandwidth}")
    density_event, density = _mirrored_densities(score, np.stack([correct, weight]), half)
    return _integrate(density_event, density, float(correct.sum() / n), half)


def _mirrored_densities(score: Vector, weights: NDArray[np.float64], half: float) -> NDArray[np.float64]:
    """Densities on the grid of the data and its mirror images, 0 outside (0, 1), doubled inside.

    A circular convolution is enough: the kernel reaches at most 0.6, the width of the margins on both sides.
    """
    mirror = np.where(score < 0.5, -score, 2 - score)
    both = np.concatenate([score, mirror])
    grid = np.stack([_linear_binning(both, np.concatenate([w, w])) for w in weights])
    step = _GRID[1] - _GRID[0]
    reach = int(half / step)
    u = np.arange(-reach, reach + 1) * step / half
    kernel = np.zeros(len(_GRID))
    kernel[np.arange(-reach, reach + 1)] = 35 / (32 * half) * (1 - u * u) ** 3
    density = np.maximum(irfft(rfft(grid) * rfft(kernel), n=len(_GRID)), 0)
    return np.where((_GRID > 0) & (_GRID < 1), 2 * density, 0.0)


def _linear_binning(x: Vector, weight: Vector) -> Vector:
    """Share every weight between the two neighbouring grid points by proximity; the total becomes 1."""
    position = (x - _GRID[0]) / (_GRID[1] - _GRID[0])
    low = np.clip(np.floor(position).astype(np.int64), 0, len(_GRID) - 2)
    part = position - low
    grid = np.bincount(low, weights=weight * (1 - part), minlength=len(_GRID))
    grid += np.bincount(low + 1, weights=weight * part, minlength=len(_GRID))
    return np.asarray(grid / weight.sum())


def _integrate(density_event: Vector, density: Vector, rate: float, half: float) -> float:
    inside = (_GRID >= 0) & (_GRID <= 1)
    x, pe, pa = _GRID[inside], density_event[inside], density[inside]
    with np.errstate(divide="ignore", invalid="ignore"):
        acc = np.minimum(rate * pe / pa, 1.0)
        integrand = np.abs(x - acc) * pa
    valid = np.maximum(pe, pa) > _TINY
    # Elsewhere the previous valid value is copied (0 before the first one), as published. The last point of a
    # kernel of a few steps is no small number: scores that are all alike would have errors in the thousands.
    last = np.maximum.accumulate(np.where(valid, np.arange(len(x)), -1))
    if half < _RESOLVED * (x[1] - x[0]):
        last = np.where(valid, last, -1)
    integrand = np.where(last >= 0, np.nan_to_num(integrand, nan=0.0)[last], 0.0)
    return float(trapezoid(integrand, x) / trapezoid(pa, x))
