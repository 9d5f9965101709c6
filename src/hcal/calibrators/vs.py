"""Vector scaling (Guo et al., ICML 2017)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hcal.calibrators._shared import (
    EPS,
    PRESENT,
    PRESENT_SIZE,
    clipped_log_probs,
    keep_absent,
    places_among,
)
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops
from hcal.solvers.optimise import Solution
from hcal.solvers.families import ClassLinear
from hcal.solvers.nll import fit_nll
from hcal.solvers.rows import FitRows, array_rows
from hcal.solvers.temperature import temperature_of


@parameters
class VectorScaling(Calibrator):
    """softmax(w ⊙ log p + b), w and b free, of least mean NLL; convex, no penalty.

    Up to 300 classes Newton runs to convergence; above, L-BFGS runs until an iteration gains less than 1e-6.
    A class absent from the calibration rows keeps its probability; the others share the rest.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017.

    Parameters
    ----------
    max_iterations : int
        Of L-BFGS.

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
    state_specs = (
        StateSpec(
            (PRESENT, Field("weights", "slope of a class", ("C",)), Field("offsets", "of a class", ("C",))),
            PRESENT_SIZE,
        ),
    )

    max_iterations: int = 60
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        return self._fit_rows(array_rows(logits, y, sample_weight))

    def _fit_rows(self, rows: FitRows) -> Fitted:
        present = np.flatnonzero(rows.mass).astype(np.int64)
        solved, centre = _fit_vector(
            rows.changed(partial(_scores, present)), len(present), self.max_iterations
        )
        weights, offsets = np.split(solved.theta, 2)
        offsets = offsets - weights * centre
        state = {"weights": weights, "offsets": offsets - offsets.mean(), "present": present}
        return Fitted(state, solved.converged, solved.message, {"iterations": solved.iterations})

    def _predict(self, logits: FloatArray) -> FloatArray:
        present = self.state_["present"]
        scores = clipped_log_probs(logits)[:, present] * self.state_["weights"] + self.state_["offsets"]
        return keep_absent(softmax(scores), logits, present)

    def _graph(self, ops: Ops, x: Any) -> Any:
        present, k = self.state_["present"], self.n_classes_
        scores = ops.columns(ops.log_probs(x, EPS), present, k) * ops.const(self.state_["weights"])
        inner = ops.softmax(scores + ops.const(self.state_["offsets"]))
        return ops.keep_absent(inner, x, present, k)


def _scores(present: IntArray, logits: FloatArray, y: IntArray) -> tuple[Float64, IntArray]:
    """Return ln p of the classes that are present, and the labels' places among them."""
    x = clipped_log_probs(logits)
    return (x, y) if len(present) == logits.shape[1] else (x[:, present], places_among(present, y))


def _fit_vector(rows: FitRows, n_classes: int, max_iterations: int) -> tuple[Solution, Float64]:
    """Fit (w, b) on centred scores. Returns the solution and the centres.

    Each column is centred where its class is in doubt (weights q(1 − q)): slope and offset of a class are
    nearly collinear otherwise, and L-BFGS needs several times the steps. The start is the best temperature.
    """
    solved = temperature_of(rows)
    beta = solved.beta if solved.converged else 1.0
    mass, moment = rows.sum(partial(_doubt, beta))
    centre: Float64 = moment / np.maximum(mass, 1e-300)
    first = np.concatenate([np.full(n_classes, beta), beta * centre])
    centred = rows.changed(partial(_less, centre))
    solved = fit_nll(
        ClassLinear(n_classes), centred, start=first, max_iterations=max_iterations, tolerance=1e-6, gain=1e-6
    )
    return solved, centre


def _doubt(beta: float, x: Float64, y: IntArray, weight: Float64) -> tuple[Float64, Float64]:
    """Return the sums over rows of q(1 − q), and of that times the scores, of every class."""
    mass, moment = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for start in range(0, len(x), 64):
        block = x[start : start + 64]
        q = softmax(beta * block)
        q *= (1 - q) * weight[start : start + 64, None]
        mass += q.sum(axis=0)
        moment += (q * block).sum(axis=0)
    return mass, moment


def _less(centre: Float64, x: Float64, y: IntArray) -> tuple[Float64, IntArray]:
    x -= centre
    return x, y
