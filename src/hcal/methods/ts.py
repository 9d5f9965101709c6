"""Temperature scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

from hcal.methods._scaling import OneTemperature
from hcal.methods._scaling import Temperature as Temperature
from hcal.methods.base import Fitted
from hcal.rows import Rows
from hcal.solvers.temperature import solve_temperature


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

    def _fit(self, rows: Rows) -> Fitted:
        solved = solve_temperature(rows.x, rows.labels, rows.weight)
        return self._solution(solved, evaluations=solved.evaluations)
