"""Matrix scaling with off-diagonal and intercept regularisation (Guo et al. 2017, Kull et al. 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from hcal.calibrators._normal_form import MARK, MARKED, to_fit, to_predict, to_predict_graph
from hcal.calibrators._odir import (
    MATRICES,
    FoldMatrices,
    fit_matrix,
    matrix_graph,
    predict_matrix,
)
from hcal.calibrators.base import Fitted
from hcal.calibrators.declared import parameters
from hcal.numerics import Float64, FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops


@parameters
class MatrixScaling(FoldMatrices):
    """softmax(W z + b), z centred; mean NLL + λ Σ_{i≠j} W_ij² + μ Σ b_i²; fold models averaged.

    (λ, μ) is the pair of least held-out NLL over the folds.

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
    random_state : int
        Of the folds.
    max_iterations : int
        Of L-BFGS, used above 23 classes.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = MatrixScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "ms"
    title = "Matrix scaling"
    state_specs = (MATRICES[0] + MARKED,)

    features: Literal["logits", "probs"] = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        if self.features not in ("logits", "probs"):
            raise ValueError(f"features must be 'logits' or 'probs', got {self.features!r}")
        if self.features == "probs":
            return fit_matrix(np.asarray(softmax(logits), dtype=np.float64), y, sample_weight, self)
        fitted = fit_matrix(to_fit(logits), y, sample_weight, self)
        return replace(fitted, state=fitted.state | MARK)

    def _predict(self, logits: FloatArray) -> FloatArray:
        if self.features == "probs":
            return predict_matrix(self.state_, softmax(logits))
        return predict_matrix(self.state_, to_predict(self.state_, logits))

    def _graph(self, ops: Ops, x: Any) -> Any:
        if self.features == "probs":
            return matrix_graph(self.state_, ops, ops.softmax(x))
        return matrix_graph(self.state_, ops, to_predict_graph(self.state_, ops, x, self.n_classes_))
