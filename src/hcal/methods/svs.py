"""Structured vector scaling (Berta et al., 2025), and the base class that ``sms`` shares with it."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hcal.maps.base import STEEP, Map, array, map_type
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import NotNegative, parameters
from hcal.numerics import Float64
from hcal.rows import Rows
from hcal.solvers.nll import ClassLinear, Ridge, SoftmaxFamily, fit_nll
from hcal.solvers.optimise import Search
from hcal.solvers.temperature import solve_temperature
from hcal.xp import Array, namespace

_LOG_FLOOR = float(np.log(np.finfo(np.float32).tiny))


@map_type
class FirstStage(Map):
    """Temperature scaling mixed with a little of the uniform distribution: p′ = (1 − ε) softmax(βz) + ε/K."""

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
class StructuredScaling(Calibrator):
    """Temperature scaling, then a linear map with a ridge penalty towards the identity that falls as 1/N."""

    weighted = True

    strength: NotNegative = 1.0

    @abstractmethod
    def _family(self, n_classes: int) -> tuple[SoftmaxFamily, Float64]:
        """Return the family of the second stage and the relative penalty of each parameter."""

    @abstractmethod
    def _map(self, first: FirstStage, theta: Float64) -> Map:
        """Return the map of fitted parameters."""

    def _fit(self, rows: Rows) -> Fitted:
        n = rows.total
        k = rows.n_classes
        temperature = solve_temperature(rows.x, rows.labels, rows.weight)
        first = FirstStage(beta=np.array(temperature.beta), epsilon=np.array(1 / (n + 1)))

        family, relative = self._family(k)
        penalty = Ridge(self.strength * k / n * relative, family.start)
        # Large problems stop at gains too small to matter; a large matrix soon, as each step costs two matrix products.
        is_large = k > 300
        is_matrix = len(relative) > 2 * k
        search = Search(
            max_iterations=30 if is_large and is_matrix else 500, gain=1e-6 if is_large else 1e-12
        )
        x = first(rows.x)
        solved = fit_nll(family, x, rows.labels, rows.weight, penalty=penalty, search=search)

        # The uniform part and the penalty make the second stage well-posed even if the first did not converge.
        message = temperature.message if solved.converged else solved.message
        details = {"temperature": 1 / temperature.beta, "iterations": solved.iterations}
        converged = solved.converged and temperature.converged
        return Fitted(self._map(first, solved.theta), converged, message, details)


class StructuredVectorScaling(StructuredScaling):
    """Temperature scaling, then softmax((1 + v) ⊙ x + b) with a penalty that falls as 1/N; nothing is tuned.

    x = log((1 − ε) softmax(z/T) + ε/K) with ε = 1/(N + 1); mean NLL + strength · (K/N)(‖v‖² + ‖b‖²).

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025.

    Parameters
    ----------
    strength : float
        λ of both penalties.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = StructuredVectorScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.26, 0.74]])
    """

    name = "svs"
    title = "Structured vector scaling"
    map_types = (StructuredVector, FirstStage)

    def _family(self, n_classes: int) -> tuple[SoftmaxFamily, Float64]:
        return ClassLinear(n_classes), np.ones(2 * n_classes)

    def _map(self, first: FirstStage, theta: Float64) -> Map:
        weights, offsets = np.split(theta, 2)
        return StructuredVector(first=first, weights=weights, offsets=offsets)
