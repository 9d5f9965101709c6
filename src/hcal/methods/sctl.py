"""Scaling of class-wise training losses (Jung et al., ICML 2023) on temperature scaling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hcal.methods._scaling import OneTemperature
from hcal.methods.base import Fitted
from hcal.numerics import Float64
from hcal.rows import Rows
from hcal.solvers.nll import unit_weight
from hcal.solvers.temperature import label_derivatives, solve_increasing, solve_temperature

# Published constants: the start of α and β, and the step after which they are fitted.
_ALPHA, _BETA, _LEARNING_RATE = 1.0, 1.5, 0.02


class ScaledClassLosses(OneTemperature):
    """softmax(z/T) with T the root of Σ_k ω_k(T) ℓ′_k(T), where ℓ_k is the loss of class k and ω_k its weight.

    ω_k = 1 + β/(1 + e^{−u_k/α}) − β/2 with u the standard scores of ℓ, treated as constants in the gradient;
    α and β are fitted once, from the losses at T = 1 and one solver step later. The published solver stops
    early in float32; this one finds the root. Classes without rows are left out.

    Jung, Seo, Jeong, Choi: Scaling of Class-wise Training Losses for Post-hoc Calibration, ICML 2023.

    Examples
    --------
    >>> cal = ScaledClassLosses().fit([[0.0, 2.0], [2.0, 0.0]] * 4, [1, 0, 1, 0, 1, 0, 0, 1])
    >>> cal.predict_proba([[0.0, 2.0]]).round(4)
    array([[0.25, 0.75]])
    """

    name = "sctl"
    title = "Scaling of class-wise training losses"

    def _fit(self, rows: Rows) -> Fitted:
        x = rows.x
        y = rows.labels
        weight = rows.weight
        start = solve_temperature(x, y, weight)
        share = unit_weight(weight, len(y))
        mass = np.bincount(y, weights=share)
        present = mass > 0

        def by_class(beta: float) -> tuple[Float64, Float64]:
            """Return the mean NLL of each present class, and its derivative in β = 1/T."""
            rows = (np.bincount(y, weights=share * v) for v in label_derivatives(x, y, beta)[:2])
            loss, slope = (sums[present] / mass[present] for sums in rows)
            return loss, slope

        first, slopes = by_class(1.0)
        # d/dT = −β² d/dβ, here at T = 1; the first step of the solver is lr · min(1, 1/|g|) · g.
        gradient = -float(class_weights(first, _ALPHA, _BETA) @ slopes)
        alpha, beta = _ALPHA, _BETA
        if len(first) > 1 and gradient != 0:
            second, _ = by_class(1 / (1 - _LEARNING_RATE * min(1.0, 1 / abs(gradient)) * gradient))
            alpha, beta = _fit_shape(first, second, max(0.1, 0.5 * float(np.log(x.shape[1]))))

        def slope(inverse_temperature: float) -> float:
            losses, slopes = by_class(inverse_temperature)
            return float(class_weights(losses, alpha, beta) @ slopes)

        near, found = float(np.log(start.beta)), start
        if start.converged:  # if the NLL has no finite optimum, the weighted loss has none either
            solved = solve_increasing(slope, (near - 3, near + 3))
            message = "no root near the temperature of least NLL, which is kept"
            found = solved if solved.converged else replace(start, converged=False, message=message)
        return self._found(found.beta, found.converged, found.message, alpha=alpha, beta=beta)


def _fit_shape(first: Float64, second: Float64, most: float) -> tuple[float, float]:
    """Fit α in [0.1, most] and β as published: at the second evaluation of the class losses."""
    from scipy.optimize import minimize

    def mismatch(shape: Float64) -> float:
        scale = class_weights(second, shape[0], shape[1]) - 1
        return float(np.linalg.norm(first - scale * (second - first) - second.mean()))

    start = [min(_ALPHA, most), _BETA]
    found = minimize(mismatch, start, method="SLSQP", bounds=[(0.1, most), (1.5, 2.0)])
    return float(np.clip(found.x[0], 0.1, most)), float(np.clip(found.x[1], 1.5, 2.0))


def class_weights(losses: Float64, alpha: float, beta: float) -> Float64:
    """Return ω = 1 + β/(1 + e^{−u/α}) − β/2 (C,) of class losses, u their standard scores (sd with K − 1).

    ``losses`` (C,) are the mean NLL of each class that has rows.

    >>> class_weights(np.array([1.0, 1.0]), 1.0, 1.5)
    array([1., 1.])
    """
    spread = losses.std(ddof=1) if len(losses) > 1 else 0.0
    if spread == 0:
        return np.ones_like(losses)
    u = (losses - losses.mean()) / spread
    return np.asarray(1 + beta / (1 + np.exp(-u / alpha)) - beta / 2)
