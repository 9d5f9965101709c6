"""Temperature scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

from hcal.calibrators._shared import OneTemperature
from hcal.calibrators.base import Fitted
from hcal.numerics import Float64, FloatArray, IntArray, grouped_softmax
from hcal.solvers.rows import FitRows, array_rows
from hcal.solvers.temperature import Temperature, temperature_of


class TemperatureScaling(OneTemperature):
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

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        return self._fit_rows(array_rows(logits, y, sample_weight))

    def _fit_rows(self, rows: FitRows) -> Fitted:
        return self._solved(temperature_of(rows))

    def _fit_grouped(
        self, scores: Float64, log_sizes: Float64, y: IntArray, weight: Float64 | None, n_classes: int
    ) -> Fitted:
        return self._solved(temperature_of(array_rows(scores, y, weight), log_sizes))

    def _solved(self, solved: Temperature) -> Fitted:
        return self._found(solved.beta, solved.converged, solved.message, evaluations=solved.evaluations)

    def _predict_grouped(self, scores: Float64, log_sizes: Float64) -> Float64:
        return grouped_softmax(scores * self.state_["beta"], log_sizes)
