"""Structured matrix scaling (Berta et al., 2025)."""

from __future__ import annotations

import numpy as np

from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.parameters import parameters
from hcal.calibrators.svs import FirstStage, fit_stages
from hcal.maps.base import Map, array, map_type
from hcal.numerics import Float64, IntArray
from hcal.solvers.families import MatrixScaling
from hcal.xp import Array, namespace


@map_type
class StructuredMatrix(Map):
    """softmax(W x + b) of the log-probabilities of the first stage."""

    first: FirstStage
    matrix: Array = array("I + D", "K", "K")
    offsets: Array = array("of the classes", "K")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        return namespace(x).log_softmax(self.first(x) @ self.matrix.T + self.offsets)


@parameters
class StructuredMatrixScaling(Calibrator):
    """Temperature scaling, then softmax(x + D x + b), D full, penalised in three parts. No tuning.

    As ``svs`` with penalty (K/N)‖b‖² + (K/N) Σ D_ii² + (K(K − 1)/N) Σ_{i≠j} D_ij², times ``strength``.

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025.

    Parameters
    ----------
    strength : float
        λ of all three penalties.
    max_iterations : int
        Above 300 classes at most 30 are made, until one gains less than 1e-6: each costs two products with a
        K×K matrix.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = StructuredMatrixScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "sms"
    title = "Structured matrix scaling"
    weighted = True
    map_types = (StructuredMatrix, FirstStage)

    strength: float = 1.0
    max_iterations: int = 500

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        k = x.shape[1]
        one = self.strength * k / (len(y) if weight is None else weight.sum())
        limit = self.max_iterations if k <= 300 else min(self.max_iterations, 30)
        first, theta, told = fit_stages(MatrixScaling(k), matrix_strength(k, one), limit, x, y, weight)
        found = StructuredMatrix(first=first, matrix=theta[: k * k].reshape(k, k), offsets=theta[k * k :])
        return Fitted(found, **told)


def matrix_strength(n_classes: int, one: float) -> Float64:
    """Return the strength (K² + K,) on the matrix map: K − 1 times as much off the diagonal.

    >>> matrix_strength(3, 1.0)[:4]
    array([1., 2., 2., 2.])
    """
    matrix = np.where(np.eye(n_classes, dtype=bool), one, one * (n_classes - 1))
    return np.concatenate([matrix.ravel(), np.full(n_classes, one)])
