"""Scaling of class-wise training losses (Jung et al., ICML 2023) on temperature scaling."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hcal.methods._scaling import OneTemperature
from hcal.methods.base import Fitted
from hcal.numerics import Float64
from hcal.rows import Rows
from hcal.solvers.nll import unit_weight
from hcal.solvers.temperature import label_derivatives, solve_increasing, solve_temperature

# Published constants: the start of α and β, and the step after which they are fitted.
_ALPHA = 1.0
_BETA = 1.5
_LEARNING_RATE = 0.02


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
        start = solve_temperature(rows.x, rows.labels, rows.weight)
        classes = ClassLosses(rows)
        alpha, beta = self._shape_of_weights(classes, np.log(rows.n_classes))

        solved = start
        if start.converged:  # if the NLL has no finite optimum, the weighted loss has none either
            near = float(np.log(start.beta))
            slope = partial(classes.weighted_slope, alpha, beta)
            solved = solve_increasing(slope, (near - 3, near + 3))
            if not solved.converged:
                message = "no root near the temperature of least NLL, which is kept"
                solved = replace(start, converged=False, message=message)
        return self._solution(solved, alpha=alpha, beta=beta)

    def _shape_of_weights(self, classes: ClassLosses, log_classes: float) -> tuple[float, float]:
        """Return α and β, fitted to the losses at T = 1 and one solver step later."""
        first, slopes = classes.at(1.0)
        # d/dT = −β² d/dβ, here at T = 1; the first step of the solver is lr · min(1, 1/|g|) · g.
        gradient = -float(class_weights(first, _ALPHA, _BETA) @ slopes)
        if len(first) == 1 or gradient == 0:
            return _ALPHA, _BETA
        step = _LEARNING_RATE * min(1.0, 1 / abs(gradient)) * gradient
        second, _ = classes.at(1 / (1 - step))
        return _fit_shape(first, second, max(0.1, 0.5 * float(log_classes)))


class ClassLosses:
    """The mean NLL of each class that has rows, as a function of the inverse temperature."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._share = unit_weight(rows.weight, len(rows))
        mass = np.bincount(rows.labels, weights=self._share)
        self._present = mass > 0
        self._mass = mass[self._present]

    def at(self, beta: float) -> tuple[Float64, Float64]:
        """Return the mean NLL of each present class, and its derivative in β = 1/T."""
        losses, slopes, _ = label_derivatives(self._rows.x, self._rows.labels, beta)
        return self._mean_of_classes(losses), self._mean_of_classes(slopes)

    def _mean_of_classes(self, values: Float64) -> Float64:
        sums = np.bincount(self._rows.labels, weights=self._share * values)
        return np.asarray(sums[self._present] / self._mass)

    def weighted_slope(self, alpha: float, beta: float, inverse_temperature: float) -> float:
        """Return Σ_k ω_k ℓ′_k."""
        losses, slopes = self.at(inverse_temperature)
        return float(class_weights(losses, alpha, beta) @ slopes)


def _fit_shape(first: Float64, second: Float64, most: float) -> tuple[float, float]:
    """Fit α in [0.1, most] and β as published: at the second evaluation of the class losses."""
    from scipy.optimize import minimize

    start = [min(_ALPHA, most), _BETA]
    bounds = [(0.1, most), (1.5, 2.0)]
    result = minimize(_mismatch, start, args=(first, second), method="SLSQP", bounds=bounds)
    alpha, beta = result.x
    return float(np.clip(alpha, 0.1, most)), float(np.clip(beta, 1.5, 2.0))


def _mismatch(shape: Float64, first: Float64, second: Float64) -> float:
    scale = class_weights(second, shape[0], shape[1]) - 1
    predicted = first - scale * (second - first)
    return float(np.linalg.norm(predicted - second.mean()))


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
