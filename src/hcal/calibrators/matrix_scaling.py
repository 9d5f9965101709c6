"""Matrix scaling with off-diagonal and intercept regularisation (Guo et al. 2017, Kull et al. 2019)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators._odir import MATRICES, Settings, fit_matrix, matrix_graph, predict_matrix
from hcal.calibrators.base import Calibrator, Fitted
from hcal.inputs import InputKind
from hcal.numerics import FloatArray, IntArray, softmax
from hcal.ops import Ops

Float64 = NDArray[np.float64]


class MatrixScaling(Calibrator):
    """softmax(W z + b); mean NLL + λ Σ_{i≠j} W_ij² + μ Σ b_i², (λ, μ) by 5-fold NLL, fold models averaged.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017; the penalty (ODIR) from
    Kull et al., NeurIPS 2019. Convex: solved to convergence where the source ran Adam.

    Parameters
    ----------
    features : {"logits", "probs"}
        What W multiplies. The published table very likely used probabilities; logits are the definition and
        far better.
    penalty : (float, float), optional
        A fixed (λ, μ) instead of the choice from the grid.
    grid : {"decades", "published"}
        Decades from 1e-5 (1e-2 from 100 classes on) to 10, or the published grid to 1e6, nine times as many.
    folds : int
        1, with a fixed penalty, fits all rows once.
    seed : int
        Of the folds.
    max_iterations : int
        Of L-BFGS, used above 23 classes.
    input : {"logits", "probs", "log_probs"}

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = MatrixScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "ms"
    title = "Matrix scaling"
    weighted = True
    cross_fitted = True
    state_specs = MATRICES

    def __init__(
        self,
        *,
        features: Literal["logits", "probs"] = "logits",
        penalty: tuple[float, float] | None = None,
        grid: Literal["decades", "published"] = "decades",
        folds: int = 5,
        seed: int = 15,
        max_iterations: int = 150,
        input: InputKind = "logits",
    ) -> None:
        self.features = features
        self.penalty = penalty
        self.grid = grid
        self.folds = folds
        self.seed = seed
        self.max_iterations = max_iterations
        self.input = input

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        if self.features not in ("logits", "probs"):
            raise ValueError(f"features must be 'logits' or 'probs', got {self.features!r}")
        settings = Settings(self.penalty, self.grid, self.folds, self.seed, self.max_iterations)
        return fit_matrix(self._features(logits), y, sample_weight, settings)

    def _predict(self, logits: FloatArray) -> FloatArray:
        return predict_matrix(self.state_, self._features(logits))

    def _graph(self, ops: Ops, x: Any) -> Any:
        return matrix_graph(self.state_, ops, ops.softmax(x) if self.features == "probs" else x)

    def _features(self, logits: FloatArray) -> Float64:
        x = softmax(logits) if self.features == "probs" else logits
        return x.astype(np.float64, copy=False)
