"""Smooth calibration error: kernels in place of bins, with a bandwidth that is not chosen but found.

Błasiok, Nakkiran: Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing, ICLR 2024. The residual
hit − conf is smoothed by a Gaussian of width σ, reflected at 0 and 1; smECE_σ = ∫|smoothed residual|, which
falls as σ grows, and the error is the σ at which the two are equal: smECE_σ = σ.

The Gaussian reflected at both ends is the heat kernel of [0, 1]: on a grid it multiplies cosine coefficients.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.fft import dct, idct
from scipy.optimize import brentq

from hcal.metrics.kernels import share_out
from hcal.numerics import Float64 as Vector
from hcal.numerics import IntArray

#: Cells of the grid. Rows are shared between the two nearest, so the error is of the order (1/(CELLS·σ))².
CELLS: Final = 4096


def smooth_error(at: Vector, residual: Vector, weight: Vector) -> float:
    """Return the width σ for which the smoothed residuals have the mean size σ.

    Shapes: probabilities, residuals, weights (N,).

    >>> smooth_error(np.array([0.5]), np.array([0.0]), np.array([1.0]))
    0.0
    """
    waves = spectrum(at, weight * residual / weight.sum())

    def excess(sigma: float) -> float:
        return float(np.abs(smoothed(waves, sigma)).sum()) - sigma

    # At 0 nothing is smoothed: an excess of 0 there is a perfect fit. At 1 it cannot be positive.
    if excess(0.0) <= 0:
        return 0.0
    # The error is at most 1; where it is 1, rounding may leave no change of sign.
    return 1.0 if excess(1.0) >= 0 else float(brentq(excess, 0.0, 1.0, xtol=1e-13))


def spectrum(at: Vector, mass: Vector) -> Vector:
    """Return the cosine coefficients of masses at points of [0, 1], each shared by its two nearest cells.

    >>> round(float(smoothed(spectrum(np.array([0.3]), np.array([2.0])), 0.1).sum()), 9)
    2.0
    """
    return np.asarray(dct(share_out(mass, *cell_place(at), CELLS), norm="ortho"))


def cell_place(at: Vector) -> tuple[IntArray, Vector]:
    """Return the cell on the left, and how far on the way to the next one; at (N,)."""
    place = np.clip(at * CELLS - 0.5, 0, CELLS - 1)
    left = np.minimum(place.astype(np.int64), CELLS - 2)
    return left, place - left


def smoothed(waves: Vector, sigma: float) -> Vector:
    """Return the masses of the cells after a Gaussian of width σ, reflected at 0 and 1; shape (CELLS,).

    >>> smoothed(spectrum(np.array([0.3]), np.array([1.0])), 0.1).argmax() / CELLS
    np.float64(0.2998046875)
    """
    decay = np.exp(-0.5 * (sigma * np.pi * np.arange(len(waves))) ** 2)
    return np.asarray(idct(waves * decay, norm="ortho"))
