"""No calibration: softmax of the logits as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.state import StateSpec
from hcal.inputs import InputKind
from hcal.runtime.numerics import FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops


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

    def __init__(self, *, input: InputKind = "logits") -> None:
        self.input = input

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: NDArray[np.float64] | None) -> Fitted:
        return Fitted({})

    def _predict(self, logits: FloatArray) -> FloatArray:
        return softmax(logits)

    def _graph(self, ops: Ops, x: Any) -> Any:
        return ops.softmax(x)
