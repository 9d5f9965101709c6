"""Beta calibration, multi-class softmax form (Kull et al., AISTATS 2017)."""

from __future__ import annotations

import numpy as np

from hcal.methods._scaling import ClassLines, class_features, present_classes
from hcal.methods.base import Calibrator, Fitted
from hcal.rows import Rows
from hcal.solvers.nll import ClassLinear, fit_nll
from hcal.solvers.optimise import Search


class BetaCalibration(Calibrator):
    """softmax over k of a_k ln p_k − b_k ln(1 − p_k) + c_k, with a, b ≥ 0, fitted by mean NLL.

    A class without calibration rows keeps its probability; the others share the rest. There is no penalty, so with few
    rows in a class (hundreds of classes) ``svs`` is the better choice.

    Kull, Silva Filho, Flach: Beta calibration: a well-founded and easily implemented improvement on logistic
    calibration for binary classifiers, AISTATS 2017; here all classes at once, not one against the rest.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = BetaCalibration().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0]]).round(3)
    array([[0.25, 0.75]])
    """

    name = "beta"
    title = "Beta calibration"
    weighted = True
    map_types = (ClassLines,)

    def _fit(self, rows: Rows) -> Fitted:
        present, place = present_classes(rows.labels)
        k = len(present)
        features = [feature[:, present] for feature in class_features(rows.x, 2)]
        x = np.hstack(features)

        least = np.repeat([0.0, -np.inf], [2 * k, k])
        search = Search(
            bounds=(least, np.full(3 * k, np.inf)),
            max_iterations=200,
            tolerance=1e-6,
            gain=1e-7 if x.size > 10**6 else 1e-12,
        )
        solved = fit_nll(ClassLinear(k, inputs=2), x, place, rows.weight, search=search)

        a, b, c = np.split(solved.theta, 3)
        lines = ClassLines(present=present, slopes=np.stack([a, b]), offsets=c)
        return Fitted(lines, solved.converged, solved.message, {"iterations": solved.iterations})
