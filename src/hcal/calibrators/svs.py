"""Structured vector scaling (Berta et al., 2025), and the two stages that ``sms`` shares with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.parameters import parameters
from hcal.maps.base import STEEP, Map, array, map_type
from hcal.numerics import Float64, IntArray
from hcal.solvers.families import ClassLinear, Family
from hcal.solvers.nll import Ridge, fit_nll
from hcal.solvers.temperature import solve_temperature
from hcal.xp import Array, namespace

_LOG_FLOOR = float(np.log(np.finfo(np.float32).tiny))


@map_type
class FirstStage(Map):
    """Temperature scaling mixed with a little of the uniform: p′ = (1 − ε) softmax(βz) + ε/K."""

    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)
    epsilon: Array = array("share of the uniform", low=0, high=1)

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        probs = xp.softmax(self.beta * (x - xp.row_max(x))) * (1 - self.epsilon)
        return xp.maximum(xp.log(probs + self.epsilon / x.shape[-1]), _LOG_FLOOR)


@map_type
class StructuredVector(Map):
    """softmax(w ⊙ x + b) of the log-probabilities of the first stage."""

    first: FirstStage
    weights: Array = array("slopes of the classes", "K")
    offsets: Array = array("of the classes", "K")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        return namespace(x).log_softmax(self.first(x) * self.weights + self.offsets)


@parameters
class StructuredVectorScaling(Calibrator):
    """Temperature scaling, then softmax((1 + v) ⊙ x + b) with a penalty that fades as 1/N. No tuning.

    x = log((1 − ε) softmax(z/T) + ε/K) with ε = 1/(N + 1); mean NLL + strength · (K/N)(‖v‖² + ‖b‖²).

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025.

    Parameters
    ----------
    strength : float
        λ of both penalties.
    max_iterations : int

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = StructuredVectorScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.26, 0.74]])
    """

    name = "svs"
    title = "Structured vector scaling"
    weighted = True
    map_types = (StructuredVector, FirstStage)

    strength: float = 1.0
    max_iterations: int = 500

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        k = x.shape[1]
        strength = np.full(2 * k, self.strength * k / (len(y) if weight is None else weight.sum()))
        first, theta, told = fit_stages(ClassLinear(k), strength, self.max_iterations, x, y, weight)
        weights, offsets = np.split(theta, 2)
        return Fitted(StructuredVector(first=first, weights=weights, offsets=offsets), **told)


def fit_stages(
    family: Family,
    strength: Float64,
    max_iterations: int,
    x: Float64,
    y: IntArray,
    weight: Float64 | None,
) -> tuple[FirstStage, Float64, dict[str, Any]]:
    """Fit the temperature, then θ by mean NLL + ridge penalty of the distance to the identity map.

    ``strength`` (P,) is the penalty's for every parameter. Returns the first stage, θ, and what ``Fitted`` takes
    beside the map.
    """
    total = float(len(y)) if weight is None else float(weight.sum())
    temperature = solve_temperature(x, y, weight)
    first = FirstStage(beta=np.array(temperature.beta), epsilon=np.array(1 / (total + 1)))
    # Large problems stop at what no test set could tell apart.
    gain = 1e-12 if x.shape[1] <= 300 else 1e-6
    ridge = Ridge(strength, family.start)
    solved = fit_nll(family, first(x), y, weight, penalty=ridge, max_iterations=max_iterations, gain=gain)
    # The mixed uniform and the penalty make the second stage well-posed whatever the first one met.
    told = {
        "converged": solved.converged and temperature.converged,
        "message": solved.message if not solved.converged else temperature.message,
        "info": {"temperature": 1 / temperature.beta, "iterations": solved.iterations},
    }
    return first, solved.theta, told
