"""One temperature, found in different ways: ``uncal``, ``ts``, ``ec``, ``sctl``, ``softbin``; the mixture ``ets``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hcal.calibrators._scaling import by_rank, on_grid, top_hits
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.parameters import parameters
from hcal.maps.base import STEEP, Map, ProbabilityMap, array, map_type
from hcal.numerics import Float64, IntArray, row_blocks, softmax
from hcal.solvers.nll import unit_weight
from hcal.solvers.optimise import minimise_scalar
from hcal.solvers.temperature import (
    label_derivatives,
    logit_scale,
    solve_increasing,
    solve_temperature,
    top_probability,
)
from hcal.xp import Array, namespace

_BLOCK_EVENTS = 65_536
_EMPTY = 1e-5  # the least mass of a soft bin, in rows: the published guard against empty bins
# Published for ``sctl``: where α, β start, and the first step of the solver whose second evaluation fits them.
_ALPHA, _BETA, _LEARNING_RATE = 1.0, 1.5, 0.02


@map_type
class Temperature(Map):
    """log softmax(βx) with the inverse temperature β = 1/T."""

    float32_safe = True
    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        return xp.log_softmax(xp.astype(self.beta, x) * (x - xp.row_max(x)))


class OneTemperature(Calibrator):
    """softmax(z/T): methods that differ only in how they find T."""

    preserves = "order"
    weighted = True
    map_types = (Temperature,)

    def _found(self, beta: float, converged: bool, message: str, /, **facts: float) -> Fitted:
        """Return what the fit learned: β = 1/T, and what else there is to tell."""
        return Fitted(
            Temperature(beta=np.array(beta)), converged, message, {"temperature": 1 / beta, **facts}
        )


class Uncalibrated(OneTemperature):
    """The identity, so that "before" stands in every comparison as a row of its own.

    Examples
    --------
    >>> Uncalibrated().fit([[0.0, 0.0], [1.0, 1.0]], [0, 1]).predict_proba([[2.0, 2.0]])
    array([[0.5, 0.5]])
    """

    name = "uncal"
    title = "Uncalibrated"
    floored = False  # "before" is what the classifier said

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        return Fitted(Temperature(beta=np.array(1.0)))


class TemperatureScaling(OneTemperature):
    """softmax(z/T) with the one T > 0 that minimises the mean NLL; convex in 1/T.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017.

    Examples
    --------
    >>> cal = TemperatureScaling().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """

    name = "ts"
    title = "Temperature scaling"

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        solved = solve_temperature(x, y, weight)
        return self._found(solved.beta, solved.converged, solved.message, evaluations=solved.evaluations)


# -- expectation consistency ------------------------------------------------------------------------


@parameters
class ExpectationConsistency(OneTemperature):
    """softmax(z/T) with the T at which the mean confidence equals the accuracy of the calibration rows.

    Mean confidence falls from 1 to 1/K as T grows, so the root is unique. The bracket is [0.01, 10], widened
    in proportion to logits of an unusual scale. An accuracy of 1, or of at most 1/K, has no root: T is then
    the end of the bracket, with a warning.

    Clarté, Loureiro, Krzakala, Zdeborová: Expectation consistency for calibration of neural networks,
    UAI 2023.

    Parameters
    ----------
    bracket : (float, float)
        Temperatures to search between, before widening.

    Examples
    --------
    >>> cal = ExpectationConsistency().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """

    name = "ec"
    title = "Expectation consistency"

    bracket: tuple[float, float] = (0.01, 10.0)

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        low, high = self.bracket
        if not 0 < low < high:
            raise ValueError(f"bracket must be two increasing positive temperatures, got {self.bracket}")
        scale, share = logit_scale(x) or 1.0, unit_weight(weight, len(y))
        low, high = low * min(1.0, scale), high * max(1.0, scale)
        accuracy = float(share @ top_hits(x, y))
        solved = solve_increasing(
            lambda beta: float(share @ top_probability(x, beta)) - accuracy,
            (-float(np.log(high)), -float(np.log(low))),
        )
        message = (
            f"no temperature gives a mean confidence equal to the accuracy {accuracy:.4g}: {solved.message}"
        )
        return self._found(solved.beta, solved.converged, message, accuracy=accuracy)


# -- scaling of class-wise training losses ----------------------------------------------------------


class ScaledClassLosses(OneTemperature):
    """softmax(z/T) with T the root of Σ_k ω_k(T) ℓ′_k(T): class losses ℓ_k, weights ω_k that follow them.

    ω_k = 1 + β/(1 + e^{−u_k/α}) − β/2 with u the standard scores of ℓ, treated as constants in the gradient;
    α and β are fitted once, from the losses at T = 1 and one solver step later. Where the published solver
    stops early in float32, this solves for the root. Classes without rows are left out.

    Jung, Seo, Jeong, Choi: Scaling of Class-wise Training Losses for Post-hoc Calibration, ICML 2023.

    Examples
    --------
    >>> cal = ScaledClassLosses().fit([[0.0, 2.0], [2.0, 0.0]] * 4, [1, 0, 1, 0, 1, 0, 0, 1])
    >>> cal.predict_proba([[0.0, 2.0]]).round(4)
    array([[0.25, 0.75]])
    """

    name = "sctl"
    title = "Scaling of class-wise training losses"

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
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
        if start.converged:  # without a finite temperature by NLL the weighted one has none either
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
    weights: Float64 = 1 + beta / (1 + np.exp(-u / alpha)) - beta / 2
    return weights


# -- soft bins --------------------------------------------------------------------------------------


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

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        if self.tau <= 0 or self.bins < 1:
            raise ValueError(f"tau must be positive and bins at least 1, got {self.tau} and {self.bins}")
        # Brent compares values that differ by rounding alone: let it see the same numbers every time.
        x, y = by_rank(on_grid(x), y)
        share, hit = unit_weight(weight, len(y)), top_hits(x, y)
        start = solve_temperature(x, y, weight)

        def error(log_beta: float) -> float:
            confidence = top_probability(x, float(np.exp(log_beta)))
            return soft_binned_error(confidence, hit, share, bins=self.bins, tau=self.tau)

        near = float(np.log(start.beta))
        found = minimise_scalar(error, near - 1, near + 1, points=41, tolerance=1e-6)
        return self._found(float(np.exp(found)), start.converged, start.message, error=error(found))


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
    kept = np.maximum(mass, _EMPTY / len(confidence))
    gap = (weight * (confidence - hit)) @ member / kept
    return float(np.sqrt(mass @ gap**2))


# -- ensemble temperature scaling -------------------------------------------------------------------


@map_type
class TemperatureMixture(ProbabilityMap):
    """w₁ softmax(βx) + w₂ softmax(x) + w₃/K."""

    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)
    weights: Array = array("of softmax(z/T), softmax(z) and 1/K", 3, low=0, high=1)

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp, w = namespace(x), self.weights
        scaled = xp.softmax(self.beta * (x - xp.row_max(x)))
        return w[0] * scaled + w[1] * xp.softmax(x) + w[2] / x.shape[-1]

    def check(self) -> None:
        """Raise a ValueError where fields do not fit each other."""
        if abs(float(self.weights.sum()) - 1) > 1e-6:
            raise ValueError("'weights' must sum to 1")


class EnsembleTemperatureScaling(Calibrator):
    """w₁ softmax(z/T) + w₂ softmax(z) + w₃/K, weights on the simplex; T first, then w with T fixed.

    Both have the least squared error, as in the authors' own results.

    Zhang, Kailkhura, Han: Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in Deep
    Learning, ICML 2020. There T is searched in [0.05, 5]; here within a factor of 20 of the temperature of
    least NLL, so that the scale of the logits does not matter.

    Examples
    --------
    >>> cal = EnsembleTemperatureScaling().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(4)
    array([[0.25, 0.75]])
    """

    name = "ets"
    title = "Ensemble temperature scaling"
    preserves = "order"
    weighted = True
    map_types = (TemperatureMixture,)

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        # Brent compares values that differ by rounding alone: let it see the same numbers every time.
        x, y = by_rank(on_grid(x), y)
        share = unit_weight(weight, len(y))
        start = solve_temperature(x, y, weight)
        near = float(np.log(start.beta))

        def brier(log_beta: float) -> float:
            gram, label = _moments(x, y, share, [float(np.exp(log_beta))])
            return float(gram[0, 0] - 2 * label[0])

        beta = float(np.exp(minimise_scalar(brier, near - 3, near + 3, points=7)))
        mix = _simplex_weights(*_moments(x, y, share, [beta, 1.0]), 1 / x.shape[1])
        info = {"temperature": 1 / beta, "weights": mix.tolist()}
        found = TemperatureMixture(beta=np.array(beta), weights=mix)
        return Fitted(found, start.converged, start.message, info)


def _moments(x: Float64, y: IntArray, share: Float64, betas: list[float]) -> tuple[Float64, Float64]:
    """Return the mean products of softmax(βx) for every two β, and their mean probability of the label."""
    gram, label = np.zeros((len(betas),) * 2), np.zeros(len(betas))
    for rows in row_blocks(x.shape, _BLOCK_EVENTS):
        parts = np.stack([softmax(beta * x[rows]) for beta in betas])
        gram += np.einsum("n,ank,bnk->ab", share[rows], parts, parts, optimize=True)
        label += parts[:, np.arange(parts.shape[1]), y[rows]] @ share[rows]
    return gram, label


def _simplex_weights(gram: Float64, label: Float64, even: float) -> Float64:
    """Return the simplex weights of least squared error of two members and the uniform 1/K (``even``)."""
    from scipy.optimize import minimize

    gram, label = np.pad(gram, (0, 1), constant_values=even), np.append(label, even)

    def error(w: Float64) -> tuple[float, Float64]:
        return float(w @ gram @ w - 2 * label @ w), 2 * (gram @ w - label)

    sums_to_1: Any = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
    exact: Any = {"ftol": 1e-14}
    start, box = np.array([1.0, 0.0, 0.0]), [(0.0, 1.0)] * 3
    found = minimize(error, start, jac=True, method="SLSQP", bounds=box, constraints=sums_to_1, options=exact)
    weights = np.clip(found.x, 0, 1)
    return np.asarray(weights / weights.sum())
