"""Soft-binning calibration (Karandikar et al., NeurIPS 2021) on temperature scaling."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hcal.methods._scaling import OneTemperature, by_rank, on_grid, top_hits
from hcal.methods.base import Fitted
from hcal.methods.parameters import AboveZero, Count, parameters
from hcal.numerics import Float64, softmax
from hcal.rows import Rows
from hcal.solvers.nll import unit_weight
from hcal.solvers.optimise import minimise_scalar
from hcal.solvers.temperature import solve_temperature, top_probability

_EMPTY = 1e-5  # the least mass of a soft bin, in rows, against division by zero; as published


@parameters
class SoftBinning(OneTemperature):
    """softmax(z/T) with the T that minimises the soft-binned calibration error of the top label.

    For small ``tau`` the error has many local minima in T, so it is scanned within a factor of e of the temperature
    with the lowest NLL and then refined.

    Karandikar, Cain, Tran, Lakshminarayanan, Shlens, Mozer, Roelofs: Soft Calibration Objectives for Neural
    Networks, NeurIPS 2021.

    Parameters
    ----------
    tau : float
        Softness of the bins. 0.01 is smooth. The published table fits 0.001 best, but that is known only from its test
        results and is therefore not the default.
    bins : int

    Examples
    --------
    >>> cal = SoftBinning().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(3)
    array([[0.25, 0.75]])
    """

    name = "softbin"
    title = "Soft-binning calibration"

    tau: AboveZero = 0.01
    bins: Count = 15

    def _fit(self, rows: Rows) -> Fitted:
        # Brent's method compares nearly equal values, so its input must not differ by rounding from fit to fit.
        x, y = by_rank(on_grid(rows.x), rows.labels)
        start = solve_temperature(x, y, rows.weight)
        near = float(np.log(start.beta))
        hit = top_hits(x, y)
        error = partial(self._error, x, hit, unit_weight(rows.weight, len(y)))

        log_beta = minimise_scalar(error, near - 1, near + 1, points=41, tolerance=1e-6)
        solved = replace(start, beta=float(np.exp(log_beta)))
        return self._solution(solved, error=error(log_beta))

    def _error(self, x: Float64, hit: Float64, share: Float64, log_beta: float) -> float:
        confidence = top_probability(x, float(np.exp(log_beta)))
        return soft_binned_error(confidence, hit, share, bins=self.bins, tau=self.tau)


def soft_binned_error(
    confidence: Float64, hit: Float64, weight: Float64, *, bins: int = 15, tau: float = 0.01
) -> float:
    """Return the soft-binned ECE (2-norm) of confidences.

    Row i belongs to bin j by g_ij = softmax_j(−(c_i − a_j)²/τ) around the anchors a_j = (j − ½)/bins; the
    error is √(Σ_j (S_j/ΣS)(C_j − A_j)²), with S_j the mass of a bin, C_j and A_j its mean confidence and
    accuracy. All arrays are (N,), ``weight`` sums to 1; the smaller ``tau``, the nearer to hard bins.

    >>> round(soft_binned_error(np.array([0.9, 0.9]), np.array([1.0, 0.0]), np.array([0.5, 0.5])), 4)
    0.4
    """
    anchors = (np.arange(bins) + 0.5) / bins
    member = softmax(-((confidence[:, None] - anchors) ** 2) / tau)
    mass = weight @ member
    divisor = np.maximum(mass, _EMPTY / len(confidence))
    gap = (weight * (confidence - hit)) @ member / divisor
    return float(np.sqrt(mass @ gap**2))
