"""Ensemble temperature scaling (Zhang et al., ICML 2020)."""

from __future__ import annotations

from functools import partial
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
        xp = namespace(x)
        w = self.weights
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
        # Brent's method compares nearly equal values, so its input must not differ by rounding from fit to fit.
        x, y = by_rank(on_grid(rows.x), rows.labels)
        share = unit_weight(rows.weight, len(y))
        start = solve_temperature(x, y, rows.weight)
        near = float(np.log(start.beta))
        brier = partial(_brier, x, y, share)
        beta = float(np.exp(minimise_scalar(brier, near - 3, near + 3, points=7)))

        gram, label = _moments(x, y, share, [beta, 1.0])
        weights = _simplex_weights(gram, label, 1 / rows.n_classes)
        details = {"temperature": 1 / beta, "weights": weights.tolist()}
        mixture = TemperatureMixture(beta=np.array(beta), weights=weights)
        return Fitted(mixture, start.converged, start.message, details)


def _brier(x: Float64, y: IntArray, share: Float64, log_beta: float) -> float:
    """Return the squared error of softmax(βx), up to a constant."""
    gram, label = _moments(x, y, share, [float(np.exp(log_beta))])
    return float(gram[0, 0] - 2 * label[0])


def _moments(
    x: Float64, y: IntArray, share: Float64, betas: list[float]
) -> tuple[Float64, Float64]:
    """Return the mean product of softmax(βx) for each pair of β, and the mean probability of the label for each β."""
    gram = np.zeros((len(betas), len(betas)))
    label = np.zeros(len(betas))
    for rows in row_blocks(x.shape, _BLOCK_EVENTS):
        members = np.stack([softmax(beta * x[rows]) for beta in betas])
        gram += np.einsum("n,ank,bnk->ab", share[rows], members, members, optimize=True)
        of_label = members[:, np.arange(members.shape[1]), y[rows]]
        label += of_label @ share[rows]
    return gram, label


def _simplex_weights(gram: Float64, label: Float64, even: float) -> Float64:
    """Return the weights of two members and of the uniform 1/K (``even``) with the least squared error."""
    from scipy.optimize import minimize

    gram = np.pad(gram, (0, 1), constant_values=even)
    label = np.append(label, even)
    sums_to_1: Any = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
    result = minimize(
        _squared_error,
        np.array([1.0, 0.0, 0.0]),
        args=(gram, label),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints=sums_to_1,
        options={"ftol": 1e-14},
    )
    weights = np.clip(result.x, 0, 1)
    return np.asarray(weights / weights.sum())


def _squared_error(w: Float64, gram: Float64, label: Float64) -> tuple[float, Float64]:
    """Return the squared error of a mixture, up to a constant, and its gradient."""
    error = float(w @ gram @ w - 2 * label @ w)
    return error, 2 * (gram @ w - label)
