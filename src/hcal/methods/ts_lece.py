"""Temperature scaling, then locally equal calibration errors (Valk & Kull, 2023)."""

from __future__ import annotations

from dataclasses import replace

from hcal.methods.base import Fitted
from hcal.methods.lece import LocallyEqualErrors
from hcal.rows import Rows
from hcal.solvers.temperature import solve_temperature


class TemperatureThenLocallyEqualErrors(LocallyEqualErrors):
    """Temperature scaling, then ``lece`` on the scaled probabilities.

    Valk, Kull, TMLR 2023. The temperature is fitted once on all calibration rows, not in each fold.

    Parameters
    ----------
    fraction, threshold, folds, input
        As in :class:`LocallyEqualErrors`.

    Examples
    --------
    >>> cal = TemperatureThenLocallyEqualErrors(fraction=1.0, threshold=0.0)
    >>> cal.fit([[0.0, 2.0]] * 4, [1, 1, 1, 0]).predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """

    name = "ts_lece"
    title = "Temperature scaling, then locally equal errors"

    def _fit(self, rows: Rows) -> Fitted:
        solved = solve_temperature(rows.x, rows.labels)
        learned = self._learn(rows, solved.beta)
        details = {"temperature": 1 / solved.beta} | learned.details
        return replace(learned, converged=solved.converged, message=solved.message, details=details)
