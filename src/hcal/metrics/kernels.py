"""One-dimensional kernel sums: the exponential kernel of mmce and the densities of kde_ece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft
from scipy.integrate import trapezoid

from hcal.numerics import Float64 as Vector
from hcal.numerics import IntArray

GRID = np.linspace(-0.6, 1.6, 2**14)
TINY = 1e-6  # density below which the published definition does not divide
WIDEST = 0.2  # bandwidth whose kernel reaches the margins of the grid
# Half a kernel in grid steps from which its last point is next to 0, so that copying it adds nothing.
RESOLVED = 100


def exponential_sum(x: Vector, a: Vector, rate: float) -> float:
    """Return Σ_ij a_i a_j exp(−rate·|x_i − x_j|) for ascending x, in O(N).

    exp(−r(x_i − x_j)) = exp(−r·x_i)·exp(r·x_j) for j < i, so one cumulated sum gives every row.
    Shapes: x (N,), ascending, a (N,).

    >>> round(exponential_sum(np.array([0.0, 1.0]), np.array([1.0, 1.0]), np.log(2.0)), 12)
    3.0
    """
    total, carry = 0.0, 0.0
    for start, stop, decay, grow in stretches(x, rate):
        carry *= decay
        part = a[start:stop]
        before = carry + np.concatenate([[0.0], np.cumsum(part * grow)[:-1]])
        total += float((part * part).sum() + 2 * (part * before / grow).sum())
        carry = float((carry + (part * grow).sum()) / grow[-1])
    return total


def stretches(x: Vector, rate: float) -> Iterator[tuple[int, int, float, Vector]]:
    """Cut ascending x where exp(rate·x) would overflow: stretches of length 500/rate.

    Each comes as start, stop, exp(−rate·(first x − last x of the stretch before)), and
    exp(rate·(x − first x)) of its rows.

    >>> [(a, b) for a, b, _, _ in stretches(np.array([0.0, 1.0, 600.0]), 1.0)]
    [(0, 2), (2, 3)]
    """
    start, last = 0, float(x[0])
    while start < len(x):
        first = float(x[start])
        stop = int(np.searchsorted(x, first + 500 / rate, side="right"))
        yield start, stop, float(np.exp(-rate * (first - last))), np.exp(rate * (x[start:stop] - first))
        start, last = stop, float(x[stop - 1])


def kde_error(score: Vector, event: Vector, weight: Vector, bandwidth: float | None) -> float:
    """Return ∫|x − P(event | score = x)| dP(score) with kernel densities (see ``kde_ece``)."""
    n, correct = weight.sum(), weight * event
    if correct.sum() == 0:
        return float(np.average(score, weights=weight))
    if bandwidth is None:
        mean = np.average(score, weights=correct)
        std = float(np.sqrt(np.average((score - mean) ** 2, weights=correct)))
        bandwidth = min(std * (2 * n) ** -0.2, WIDEST)  # a few rows at 0 and 1 would ask for more
    # All correct scores equal: the kernel narrows to one grid step instead of dividing by zero.
    half = max(3 * bandwidth, float(GRID[1] - GRID[0]))
    if bandwidth > WIDEST:
        raise ValueError(f"bandwidth must be at most 0.2 (the grid ends 0.6 beyond [0, 1]), got {bandwidth}")
    density_event, density = _mirrored_densities(score, np.stack([correct, weight]), half)
    return _integrate(density_event, density, float(correct.sum() / n), half)


def _mirrored_densities(score: Vector, weights: NDArray[np.float64], half: float) -> NDArray[np.float64]:
    """Densities on the grid of the data and its mirror images, 0 outside (0, 1), doubled inside.

    A circular convolution is enough: the kernel reaches at most 0.6, the width of the margins on both sides.
    """
    mirror = np.where(score < 0.5, -score, 2 - score)
    both = np.concatenate([score, mirror])
    place = grid_place(both)
    masses = (np.concatenate([w, w]) for w in weights)
    grid = np.stack([share_out(mass, *place, len(GRID)) / mass.sum() for mass in masses])
    step = GRID[1] - GRID[0]
    reach = int(half / step)
    u = np.arange(-reach, reach + 1) * step / half
    kernel = np.zeros(len(GRID))
    kernel[np.arange(-reach, reach + 1)] = 35 / (32 * half) * (1 - u * u) ** 3
    density = np.maximum(irfft(rfft(grid) * rfft(kernel), n=len(GRID)), 0)
    return np.where((GRID > 0) & (GRID < 1), 2 * density, 0.0)


def share_out(mass: Vector, left: IntArray, share: Vector, size: int) -> Vector:
    """Share every mass between a point of a grid and the next, which gets ``share`` of it; shape (size,)."""
    here, next_one = np.bincount(left, mass * (1 - share), size), np.bincount(left + 1, mass * share, size)
    return np.asarray(here + next_one)


def grid_place(x: Vector) -> tuple[IntArray, Vector]:
    """Return the grid point below, and how far on the way to the next one; x (N,)."""
    position = (x - GRID[0]) / (GRID[1] - GRID[0])
    low = np.clip(np.floor(position).astype(np.int64), 0, len(GRID) - 2)
    return low, position - low


def _integrate(density_event: Vector, density: Vector, rate: float, half: float) -> float:
    inside = (GRID >= 0) & (GRID <= 1)
    x, pe, pa = GRID[inside], density_event[inside], density[inside]
    with np.errstate(divide="ignore", invalid="ignore"):
        acc = np.minimum(rate * pe / pa, 1.0)
        integrand = np.abs(x - acc) * pa
    valid = np.maximum(pe, pa) > TINY
    # Elsewhere the previous valid value is copied (0 before the first one), as published. The last point of a
    # kernel of a few steps is no small number: scores that are all alike would have errors in the thousands.
    last = np.maximum.accumulate(np.where(valid, np.arange(len(x)), -1))
    if half < RESOLVED * (x[1] - x[0]):
        last = np.where(valid, last, -1)
    integrand = np.where(last >= 0, np.nan_to_num(integrand, nan=0.0)[last], 0.0)
    return float(trapezoid(integrand, x) / trapezoid(pa, x))
