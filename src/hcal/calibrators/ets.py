"""Ensemble temperature scaling (Zhang et al., ICML 2020)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from hcal.calibrators._scaling import by_rank, on_grid
from hcal.calibrators.base import Calibrator, Fitted
from hcal.maps.base import STEEP, ProbabilityMap, array, map_type
from hcal.numerics import Float64, IntArray, row_blocks, softmax
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
        best = minimise_scalar(lambda t: _brier(x, y, share, np.exp(t)), near - 3, near + 3, points=7)
        beta = float(np.exp(best))
        mix = _brier_weights(x, y, share, beta)
        info = {"temperature": 1 / beta, "weights": [float(w) for w in mix]}
        found = TemperatureMixture(beta=np.array(beta), weights=mix)
        return Fitted(found, start.converged, start.message, info)


def _brier(x: Float64, y: IntArray, share: Float64, beta: float) -> float:
    """Return the mean squared error of softmax(βx)."""
    total = 1.0
    for rows in row_blocks(x.shape, _BLOCK_EVENTS):
        p = softmax(beta * x[rows])
        label = p[np.arange(len(p)), y[rows]]
        total += float(share[rows] @ (np.einsum("nk,nk->n", p, p) - 2 * label))
    return total


def _members(x: Float64, y: IntArray, beta: float) -> Float64:
    """Return the probability of the label under each of the three members, (N, 3)."""
    out = np.full((len(y), 3), 1 / x.shape[1])
    for rows in row_blocks(x.shape, _BLOCK_EVENTS):
        at = np.arange(len(y[rows]))
        out[rows, 0] = softmax(beta * x[rows])[at, y[rows]]
        out[rows, 1] = softmax(x[rows])[at, y[rows]]
    return out


def _brier_weights(x: Float64, y: IntArray, share: Float64, beta: float) -> Float64:
    """Return the simplex weights of least squared error: a quadratic form in three unknowns."""
    gram = np.full((3, 3), 1 / x.shape[1])
    gram[:2, :2] = 0.0
    for rows in row_blocks(x.shape, _BLOCK_EVENTS):
        parts = np.stack([softmax(beta * x[rows]), softmax(x[rows])])
        gram[:2, :2] += np.einsum("n,ank,bnk->ab", share[rows], parts, parts, optimize=True)
    return simplex_quadratic(gram, share @ _members(x, y, beta))


def simplex_quadratic(gram: Float64, linear: Float64) -> Float64:
    """Minimise wᵀGw − 2cᵀw over the simplex by trying every face; ties go to the smaller face.

    Shapes: gram (M, M), linear (M,) → (M,).

    >>> simplex_quadratic(np.eye(3), np.array([1.0, 0.5, 0.0]))
    array([0.75, 0.25, 0.  ])
    """
    best, least = np.zeros(len(linear)), np.inf
    for size in range(1, len(linear) + 1):
        for face in map(list, combinations(range(len(linear)), size)):
            # Stationary on the face: 2Gw − 2c + ν = 0 and Σw = 1.
            system = np.block(
                [[gram[np.ix_(face, face)], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]]
            )
            part = np.linalg.lstsq(system, np.r_[linear[face], 1.0], rcond=None)[0][:size]
            if (part < 0).any():
                continue
            w = np.zeros(len(linear))
            w[face] = part / part.sum()
            value = float(w @ gram @ w - 2 * linear @ w)
            if value < least - 1e-14:
                best, least = w, value
    return best
