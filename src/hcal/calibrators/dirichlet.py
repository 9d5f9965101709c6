"""Dirichlet calibration with off-diagonal and intercept regularisation (Kull et al., NeurIPS 2019)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators._odir import MATRICES, Settings, fit_matrix, matrix_graph, predict_matrix
from hcal.calibrators._shared import EPS, clipped_log_probs
from hcal.calibrators.base import Calibrator, Fitted
from hcal.inputs import InputKind
from hcal.runtime.numerics import FloatArray, IntArray
from hcal.runtime.ops import Ops


class DirichletCalibration(Calibrator):
    """softmax(W log p + b) with the penalty, choice and averaging of ``ms``.

    Kull, Perelló-Nieto, Kängsepp, Silva Filho, Song, Flach: Beyond temperature scaling: Obtaining
    well-calibrated multiclass probabilities with Dirichlet calibration, NeurIPS 2019.

    Parameters
    ----------
    penalty : (float, float), optional
        A fixed (λ, μ) instead of the choice from the grid.
    grid : {"decades", "published"}
        Decades from 1e-5 (1e-2 from 100 classes on) to 10, or the published grid to 1e6, nine times as many.
    folds : int
        1, with a fixed penalty, fits all rows once.
    random_state : int
        Of the folds.
    max_iterations : int
        Of L-BFGS, used above 23 classes.
    input : {"logits", "probs", "log_probs"}

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = DirichletCalibration().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "dir"
    title = "Dirichlet calibration"
    weighted = True
    state_specs = MATRICES

    def __init__(
        self,
        *,
        penalty: tuple[float, float] | None = None,
        grid: Literal["decades", "published"] = "decades",
        folds: int = 5,
        random_state: int = 15,
        max_iterations: int = 150,
        input: InputKind = "logits",
    ) -> None:
        self.penalty = penalty
        self.grid = grid
        self.folds = folds
        self.random_state = random_state
        self.max_iterations = max_iterations
        self.input = input

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: NDArray[np.float64] | None) -> Fitted:
        settings = Settings(self.penalty, self.grid, self.folds, self.random_state, self.max_iterations)
        return fit_matrix(clipped_log_probs(logits), y, sample_weight, settings)

    def _predict(self, logits: FloatArray) -> FloatArray:
        return predict_matrix(self.state_, clipped_log_probs(logits))

    def _graph(self, ops: Ops, x: Any) -> Any:
        return matrix_graph(self.state_, ops, ops.log_probs(x, EPS))
