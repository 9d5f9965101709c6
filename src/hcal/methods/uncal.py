"""No calibration: softmax of the logits as they are."""

from __future__ import annotations

import numpy as np

from hcal.methods._scaling import OneTemperature, Temperature
from hcal.methods.base import Fitted
from hcal.rows import Rows


class Uncalibrated(OneTemperature):
    """The identity, as the baseline in comparisons.

    Examples
    --------
    >>> Uncalibrated().fit([[0.0, 0.0], [1.0, 1.0]], [0, 1]).predict_proba([[2.0, 2.0]])
    array([[0.5, 0.5]])
    """

    name = "uncal"
    title = "Uncalibrated"
    floored = False  # the probabilities of the classifier itself

    def _fit(self, rows: Rows) -> Fitted:
        return Fitted(Temperature(beta=np.array(1.0)))
