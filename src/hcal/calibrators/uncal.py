"""No calibration: softmax of the logits as they are."""

from __future__ import annotations

from typing import Any

from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.state import StateSpec
from hcal.numerics import Float64, FloatArray, IntArray, grouped_softmax, softmax
from hcal.runtime.ops import Ops
from hcal.solvers.rows import FitRows


class Uncalibrated(Calibrator):
    """The identity, so that "before" stands in every comparison as a row of its own.

    Examples
    --------
    >>> Uncalibrated().fit([[0.0, 0.0], [1.0, 1.0]], [0, 1]).predict_proba([[2.0, 2.0]])
    array([[0.5, 0.5]])
    """

    name = "uncal"
    title = "Uncalibrated"
    preserves = "order"
    weighted = True
    state_specs = (StateSpec(),)
    floored = False  # "before" is what the classifier said

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        return Fitted({})

    def _fit_rows(self, rows: FitRows) -> Fitted:
        return Fitted({})

    def _fit_grouped(
        self, scores: Float64, log_sizes: Float64, y: IntArray, weight: Float64 | None, n_classes: int
    ) -> Fitted:
        return Fitted({})

    def _predict_grouped(self, scores: Float64, log_sizes: Float64) -> Float64:
        return grouped_softmax(scores, log_sizes)

    def _predict(self, logits: FloatArray) -> FloatArray:
        return softmax(logits)

    def _graph(self, ops: Ops, x: Any) -> Any:
        return ops.softmax(x)
