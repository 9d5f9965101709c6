"""Recalibration in the large: one offset for each class (Steyerberg, Clinical Prediction Models, chapter 20)."""

from __future__ import annotations

import numpy as np

from hcal.methods._scaling import ClassLines as ClassLines
from hcal.methods._scaling import clipped_log_probs, present_classes
from hcal.methods.base import Calibrator, Fitted
from hcal.rows import Rows
from hcal.solvers.nll import ClassOffsets, fit_nll
from hcal.solvers.optimise import Search


class RecalibrationInTheLarge(Calibrator):
    """softmax(log p + b), with one offset b for each class fitted by mean NLL; convex.

    On the calibration rows, the mean probability of each class is then its frequency. With two classes this corrects
    the intercept alone, for a model that is right about everything but how often the outcome occurs. A class without
    calibration rows keeps its probability; the others share the rest.

    Steyerberg: Clinical Prediction Models, 2nd edition, 2019, chapter 20.

    Examples
    --------
    >>> cal = RecalibrationInTheLarge().fit([[0.0, 2.0], [0.0, -2.0]] * 4, [1, 0, 0, 0, 0, 0, 0, 0])
    >>> probs = cal.predict_proba([[0.0, 2.0], [0.0, -2.0]])
    >>> np.log(probs[:, 1] / probs[:, 0]).round(2), float(probs[:, 1].mean().round(4))
    (array([-1.13, -5.13]), 0.125)
    """

    name = "offset"
    title = "Recalibration in the large"
    weighted = True
    map_types = (ClassLines,)

    def _fit(self, rows: Rows) -> Fitted:
        present, place = present_classes(rows.labels)
        scores = clipped_log_probs(rows.x)[:, present]
        family = ClassOffsets(len(present))
        solved = fit_nll(family, scores, place, rows.weight, search=Search(tolerance=1e-9))
        learned = ClassLines(
            present=present,
            slopes=np.ones((1, len(present))),
            offsets=solved.theta - solved.theta.mean(),
        )
        return Fitted(learned, solved.converged, solved.message, {"iterations": solved.iterations})
