"""Expectation consistency (Clarté et al., 2023)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hcal.methods._scaling import OneTemperature, top_hits
from hcal.methods.base import Fitted
from hcal.methods.parameters import AboveZero, parameters
from hcal.rows import Rows
from hcal.solvers.nll import unit_weight
from hcal.solvers.temperature import confidence_gap, logit_scale, solve_increasing


@parameters
class ExpectationConsistency(OneTemperature):
    """softmax(z/T) with the T at which the mean confidence equals the accuracy of the calibration rows.

    The mean confidence falls from 1 to 1/K as T grows, so T is unique. It is searched in [0.01, 10], widened for logits
    of an unusual scale. If the accuracy is 1, or at most 1/K, there is no such T; the fit then takes the end of the
    bracket and warns.

    Clarté, Loureiro, Krzakala, Zdeborová: Expectation consistency for calibration of neural networks,
    UAI 2023.

    Parameters
    ----------
    bracket : (float, float)
        Temperatures to search between, before widening.

    Examples
    --------
    >>> cal = ExpectationConsistency().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(6)
    array([[0.25, 0.75]])
    """

    name = "ec"
    title = "Expectation consistency"

    bracket: tuple[AboveZero, AboveZero] = (0.01, 10.0)

    def _fit(self, rows: Rows) -> Fitted:
        coldest, hottest = self.bracket
        if coldest >= hottest:
            raise ValueError(f"bracket must be two increasing temperatures, got {self.bracket}")
        scale = logit_scale(rows.x) or 1.0
        coldest = coldest * min(1.0, scale)
        hottest = hottest * max(1.0, scale)

        share = unit_weight(rows.weight, len(rows))
        accuracy = float(share @ top_hits(rows.x, rows.labels))
        gap = partial(confidence_gap, rows.x, share, 1.0, accuracy)
        log_betas = (-float(np.log(hottest)), -float(np.log(coldest)))
        solved = solve_increasing(gap, log_betas)
        message = (
            "no temperature gives a mean confidence equal to the accuracy "
            f"{accuracy:.4g}: {solved.message}"
        )
        return self._solution(replace(solved, message=message), accuracy=accuracy)
