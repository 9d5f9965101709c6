"""Structured matrix scaling (Berta et al., 2025)."""

from __future__ import annotations

import numpy as np

from hcal.maps.base import Map, array, map_type
from hcal.methods.svs import FirstStage, StructuredScaling
from hcal.numerics import Float64
from hcal.solvers.nll import MatrixLinear, SoftmaxFamily
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


class StructuredMatrixScaling(StructuredScaling):
    """Temperature scaling, then softmax(x + D x + b) with a full matrix D and three penalties; nothing is tuned.

    As ``svs`` with penalty (K/N)‖b‖² + (K/N) Σ D_ii² + (K(K − 1)/N) Σ_{i≠j} D_ij², times ``strength``. Above 300
    classes at most 30 iterations are made.

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025.

    Parameters
    ----------
    strength : float
        λ of all three penalties.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = StructuredMatrixScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "sms"
    title = "Structured matrix scaling"
    map_types = (StructuredMatrix, FirstStage)

    def _family(self, n_classes: int) -> tuple[SoftmaxFamily, Float64]:
        strength = matrix_strength(n_classes, diagonal=1.0, off=n_classes - 1.0, offsets=1.0)
        return MatrixLinear(n_classes), strength

    def _map(self, first: FirstStage, theta: Float64) -> Map:
        k = int(np.sqrt(len(theta)))  # θ holds k² + k numbers
        matrix = theta[: k * k].reshape(k, k)
        return StructuredMatrix(first=first, matrix=matrix, offsets=theta[k * k :])


def matrix_strength(n_classes: int, diagonal: float, off: float, offsets: float) -> Float64:
    """Return the penalties of the entries of a matrix, row by row, and of the offsets: (K² + K,).

    >>> matrix_strength(2, 1.0, 3.0, 0.5)
    array([1. , 3. , 3. , 1. , 0.5, 0.5])
    """
    matrix = np.where(np.eye(n_classes, dtype=bool), diagonal, off)
    return np.concatenate([matrix.ravel(), np.full(n_classes, offsets)])
