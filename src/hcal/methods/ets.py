"""Ensemble temperature scaling (Zhang et al., ICML 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.maps.base import STEEP, ProbabilityMap, array, map_type
from hcal.methods._scaling import by_rank, on_grid
from hcal.methods.base import Calibrator, Fitted
from hcal.numerics import Float64, IntArray, row_blocks, softmax
from hcal.rows import Rows
from hcal.solvers.nll import unit_weight
from hcal.solvers.optimise import minimise_scalar
from hcal.solvers.temperature import solve_temperature
from hcal.xp import Array, namespace

_BLOCK_EVENTS = 65_536


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
        """Raise a ValueError if fields contradict each other."""
        if abs(float(self.weights.sum()) - 1) > 1e-6:
            raise ValueError("'weights' must sum to 1")


class EnsembleTemperatureScaling(Calibrator):
    """w₁ softmax(z/T) + w₂ softmax(z) + w₃/K with weights w ≥ 0 that sum to 1; T is fitted first, then w.

    Both minimise the squared error, as in the authors' own results.

    Zhang, Kailkhura, Han: Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in Deep
    Learning, ICML 2020. There T is searched in [0.05, 5]; here within a factor of 20 of the temperature with the
    lowest NLL, so that the scale of the logits does not matter.

    Examples
    --------
    >>> cal = EnsembleTemperatureScaling().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(4)
    array([[0.25, 0.75]])
    """

    name = "ets"
    title = "Ensemble temperature scaling"
    promises = "order"
    weighted = True
    map_types = (TemperatureMixture,)

    def _fit(self, rows: Rows) -> Fitted:
        x = rows.x
        y = rows.labels
        weight = rows.weight
        # Brent's method compares nearly equal values, so its input must not differ by rounding from fit to fit.
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
        return Fitted(
            TemperatureMixture(beta=np.array(beta), weights=mix),
            start.converged,
            start.message,
            info,
        )


def _moments(
    x: Float64, y: IntArray, share: Float64, betas: list[float]
) -> tuple[Float64, Float64]:
    """Return the mean product of softmax(βx) for each pair of β, and the mean probability of the label for each β."""
    gram, label = np.zeros((len(betas),) * 2), np.zeros(len(betas))
    for rows in row_blocks(x.shape, _BLOCK_EVENTS):
        parts = np.stack([softmax(beta * x[rows]) for beta in betas])
        gram += np.einsum("n,ank,bnk->ab", share[rows], parts, parts, optimize=True)
        label += parts[:, np.arange(parts.shape[1]), y[rows]] @ share[rows]
    return gram, label


def _simplex_weights(gram: Float64, label: Float64, even: float) -> Float64:
    """Return the weights of two members and of the uniform 1/K (``even``) with the least squared error."""
    from scipy.optimize import minimize

    gram, label = np.pad(gram, (0, 1), constant_values=even), np.append(label, even)

    def error(w: Float64) -> tuple[float, Float64]:
        return float(w @ gram @ w - 2 * label @ w), 2 * (gram @ w - label)

    sums_to_1: Any = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
    exact: Any = {"ftol": 1e-14}
    start, box = np.array([1.0, 0.0, 0.0]), [(0.0, 1.0)] * 3
    found = minimize(
        error, start, jac=True, method="SLSQP", bounds=box, constraints=sums_to_1, options=exact
    )
    weights = np.clip(found.x, 0, 1)
    return np.asarray(weights / weights.sum())
