"""Soft-binning calibration (Karandikar et al., NeurIPS 2021) on temperature scaling."""

from __future__ import annotations

import numpy as np

from hcal.calibrators._normal_form import by_rank, to_fit
from hcal.calibrators._shared import OneTemperature, top_hits
from hcal.calibrators.base import Fitted
from hcal.calibrators.declared import parameters
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray
from hcal.solvers.nll import unit_weight
from hcal.solvers.optimise import minimise_scalar
from hcal.solvers.temperature import solve_temperature, top_probability


@parameters
class SoftBinning(OneTemperature):
    """softmax(z/T) with the T that minimises the soft-binned calibration error of the top label.

    The curve over T is bumpy for small ``tau``, so it is scanned within a factor of e of the temperature of
    least NLL and then refined.

    Karandikar, Cain, Tran, Lakshminarayanan, Shlens, Mozer, Roelofs: Soft Calibration Objectives for Neural
    Networks, NeurIPS 2021.

    Parameters
    ----------
    tau : float
        Softness of the bins. 0.01 is smooth; the published table is nearest to 0.001, which is known only
        from its test result and therefore not the default.
    bins : int

    Examples
    --------
    >>> cal = SoftBinning().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(3)
    array([[0.25, 0.75]])
    """

    name = "softbin"
    title = "Soft-binning calibration"

    tau: float = 0.01
    bins: int = 15
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        if self.tau <= 0 or self.bins < 1:
            raise ValueError(f"tau must be positive and bins at least 1, got {self.tau} and {self.bins}")
        # Brent compares values that differ by rounding alone: let it see the same numbers every time.
        logits, y = by_rank(to_fit(logits), y)
        weight = unit_weight(sample_weight, len(y))
        hit = top_hits(logits, y)
        start = solve_temperature(logits, y, sample_weight)

        def error(log_beta: float) -> float:
            confidence = top_probability(logits, float(np.exp(log_beta)))
            return soft_binned_error(confidence, hit, weight, bins=self.bins, tau=self.tau)[0]

        near = float(np.log(start.beta))
        found = minimise_scalar(error, near - 1, near + 1, points=41, tolerance=1e-6)
        return self._found(float(np.exp(found)), start.converged, start.message, error=error(found))


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
