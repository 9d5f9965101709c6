"""Dirichlet calibration with off-diagonal and intercept regularisation (Kull et al., NeurIPS 2019)."""

from __future__ import annotations

from typing import Any

from hcal.calibrators._odir import FoldMatrices, fit_matrix, matrix_graph, predict_matrix
from hcal.calibrators._shared import EPS, clipped_log_probs
from hcal.calibrators.base import Fitted
from hcal.numerics import Float64, FloatArray, IntArray
from hcal.runtime.ops import Ops


class DirichletCalibration(FoldMatrices):
    """softmax(W log p + b) with the penalty, choice and averaging of ``ms``.

    Kull, Perelló-Nieto, Kängsepp, Silva Filho, Song, Flach: Beyond temperature scaling: Obtaining
    well-calibrated multiclass probabilities with Dirichlet calibration, NeurIPS 2019.

    Parameters
    ----------
    penalty, grid, folds, random_state, max_iterations, input
        As in :class:`hcal.calibrators.ms.MatrixScaling`.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = DirichletCalibration().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "dir"
    title = "Dirichlet calibration"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        return fit_matrix(clipped_log_probs(logits), y, sample_weight, self)

    def _predict(self, logits: FloatArray) -> FloatArray:
        return predict_matrix(self.state_, clipped_log_probs(logits))

    def _graph(self, ops: Ops, x: Any) -> Any:
        return matrix_graph(self.state_, ops, ops.log_probs(x, EPS))
