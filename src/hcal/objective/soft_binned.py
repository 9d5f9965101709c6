"""The soft-binned calibration error (Karandikar et al., NeurIPS 2021) as an objective, in numpy."""

from __future__ import annotations

import numpy as np

from hcal.objective.protocol import Objective
from hcal.runtime.gradients import Gradient, OneEntry
from hcal.numerics import Float64, IntArray

_EMPTY = 1e-5  # the least mass of a bin, in rows: the published guard against empty bins


def soft_binned_error(
    confidence: Float64, hit: Float64, weight: Float64, *, bins: int = 15, tau: float = 0.01
) -> tuple[float, Float64]:
    """Return the soft-binned ECE (2-norm) of confidences, and its gradient in them.

    Row i belongs to bin j by g_ij = softmax_j(−(c_i − a_j)²/τ) around the anchors a_j = (j − ½)/bins; the
    error is √(Σ_j (S_j/ΣS)(C_j − A_j)²), with S_j the mass of a bin, C_j and A_j its mean confidence and
    accuracy. All arrays are (N,), ``weight`` sums to 1; the smaller ``tau``, the nearer to hard bins.

    >>> error, _ = soft_binned_error(np.array([0.9, 0.9]), np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    >>> round(error, 4)
    0.4
    """
    anchors = (np.arange(bins) + 0.5) / bins
    away = confidence[:, None] - anchors
    member = -(away**2) / tau
    member -= member.max(axis=1, keepdims=True)
    np.exp(member, out=member)
    member /= member.sum(axis=1, keepdims=True)
    mass = weight @ member
    kept = np.maximum(mass, _EMPTY / len(confidence))
    mean, rate = (weight * confidence) @ member / kept, (weight * hit) @ member / kept
    gap = mean - rate
    square = float(mass @ gap**2)
    error = float(np.sqrt(square))
    # The mass of a bin acts as its share (+gap²) and as denominator of its means (−2 gap², unless guarded).
    through_mass = np.where(mass > _EMPTY / len(confidence), -(gap**2), gap**2)
    through_means = 2 * mass * gap / kept
    per_member = through_mass + through_means * (confidence - hit)[:, None]
    drift = -2 * away / tau
    drift -= (member * drift).sum(axis=1, keepdims=True)
    slope = (member * drift * per_member).sum(axis=1) + member @ through_means
    return error, weight * slope / max(2 * error, 1e-12)


def soft_binned(*, bins: int = 15, tau: float = 0.01) -> Objective:
    """Return the soft-binned ECE of the top label as an objective of log-probabilities.

    >>> value, _ = soft_binned().value_and_grad(np.log([[0.1, 0.9]] * 2), np.array([1, 0]), np.full(2, 0.5))
    >>> round(value, 4)
    0.4
    """

    def value_and_grad(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
        rows, top = np.arange(len(y)), log_probs.argmax(axis=1)
        confidence = np.exp(log_probs[rows, top])
        hit = (top == y).astype(np.float64)
        error, slope = soft_binned_error(confidence, hit, weight, bins=bins, tau=tau)
        return error, OneEntry(top, slope * confidence)

    return Objective("soft_binned", value_and_grad, by_rows=False)
