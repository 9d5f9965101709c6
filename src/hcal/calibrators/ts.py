"""Temperature scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators._shared import ONE_TEMPERATURE
from hcal.calibrators.base import Calibrator, Fitted
from hcal.inputs import InputKind
from hcal.runtime.numerics import FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops
from hcal.solvers.temperature import solve_temperature


class TemperatureScaling(Calibrator):
    """softmax(z/T) with the one T > 0 that minimises the mean NLL; convex in 1/T.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017.

    Examples
    --------
    >>> cal = TemperatureScaling().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """

    name = "ts"
    title = "Temperature scaling"
    preserves = "order"
    weighted = True
    state_specs = ONE_TEMPERATURE

    def __init__(self, *, input: InputKind = "logits") -> None:
        self.input = input

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: NDArray[np.float64] | None) -> Fitted:
        solved = solve_temperature(logits, y, sample_weight)
        info = {"temperature": 1 / solved.beta, "evaluations": solved.evaluations}
        return Fitted({"beta": np.array(solved.beta)}, solved.converged, solved.message, info)

    def _predict(self, logits: FloatArray) -> FloatArray:
        return softmax(logits * self.state_["beta"])

    def _graph(self, ops: Ops, x: Any) -> Any:
        return ops.softmax(x * ops.const(self.state_["beta"]))
