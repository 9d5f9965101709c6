"""Vector scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

import numpy as np

from hcal.methods._scaling import ClassLines as ClassLines
from hcal.methods._scaling import clipped_log_probs, present_classes
from hcal.methods.base import Calibrator, Fitted
from hcal.numerics import softmax
from hcal.rows import Rows
from hcal.solvers.nll import ClassLinear, fit_nll, unit_weight
from hcal.solvers.optimise import Search
from hcal.solvers.temperature import solve_temperature


class VectorScaling(Calibrator):
    """softmax(w ⊙ log p + b), with w and b fitted by mean NLL; convex, without a penalty.

    Up to 300 classes Newton runs to convergence; above, L-BFGS runs until an iteration gains less than 1e-6.
    A class without calibration rows keeps its probability; the others share the rest.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = VectorScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0], [1.0, 0.0]]).round(4)
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """

    name = "vs"
    title = "Vector scaling"
    weighted = True
    map_types = (ClassLines,)

    def _fit(self, rows: Rows) -> Fitted:
        present, place = present_classes(rows.labels)
        scores = clipped_log_probs(rows.x)[:, present]
        temperature = solve_temperature(scores, place, rows.weight)
        beta = temperature.beta if temperature.converged else 1.0

        # Each column is centred at its mean with weights q(1 − q). Otherwise slope and offset of a class are nearly
        # collinear, and L-BFGS needs several times as many steps.
        q = softmax(beta * scores)
        q *= (1 - q) * unit_weight(rows.weight, len(rows))[:, None]
        centre = np.einsum("nk,nk->k", q, scores) / np.maximum(q.sum(axis=0), 1e-300)

        start = np.concatenate([np.full(len(present), beta), beta * centre])
        search = Search(max_iterations=60, tolerance=1e-6, gain=1e-6)
        family = ClassLinear(len(present))
        solved = fit_nll(family, scores - centre, place, rows.weight, start=start, search=search)

        slopes, offsets = np.split(solved.theta, 2)
        offsets = offsets - slopes * centre
        lines = ClassLines(present=present, slopes=slopes[None], offsets=offsets - offsets.mean())
        return Fitted(lines, solved.converged, solved.message, {"iterations": solved.iterations})
