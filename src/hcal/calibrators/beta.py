"""Beta calibration, multi-class softmax form (Kull et al., AISTATS 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.calibrators._shared import (
    EPS,
    PRESENT,
    PRESENT_SIZE,
    keep_absent,
    places_among,
    present_classes,
    probs_and_rest,
)
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops
from hcal.solvers.families import ClassLinear
from hcal.solvers.nll import fit_nll
from hcal.solvers.rows import array_rows


@parameters
class BetaCalibration(Calibrator):
    """softmax over k of a_k ln p_k − b_k ln(1 − p_k) + c_k, with a, b ≥ 0, of least mean NLL.

    A class absent from the calibration rows keeps its probability; the others share the rest. There is no
    penalty: with few rows a class (K in the hundreds) prefer ``svs``.

    Kull, Silva Filho, Flach: Beta calibration: a well-founded and easily implemented improvement on logistic
    calibration for binary classifiers, AISTATS 2017; here all classes at once, not one against the rest.

    Parameters
    ----------
    max_iterations : int
        Of L-BFGS-B.

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
    state_specs = (
        StateSpec(
            (
                PRESENT,
                Field("a", "slope of ln p", ("C",), low=0),
                Field("b", "slope of −ln(1 − p)", ("C",), low=0),
                Field("c", "offset", ("C",)),
            ),
            PRESENT_SIZE,
        ),
    )

    max_iterations: int = 200
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        present = present_classes(y, sample_weight, logits.shape[1])
        k = len(present)
        x = _features(logits, present)
        solved = fit_nll(
            ClassLinear(k, inputs=2),
            array_rows(x, places_among(present, y), sample_weight),
            bounds=[(0.0, None)] * (2 * k) + [(None, None)] * k,
            max_iterations=self.max_iterations,
            tolerance=1e-6,
            gain=1e-7 if x.size > 10**6 else 1e-12,
        )
        a, b, c = np.split(solved.theta, 3)
        state = {"a": a, "b": b, "c": c, "present": present}
        return Fitted(state, solved.converged, solved.message, {"iterations": solved.iterations})

    def _predict(self, logits: FloatArray) -> FloatArray:
        present = self.state_["present"]
        x = _features(logits, present)
        k = len(present)
        scores = x[:, :k] * self.state_["a"] + x[:, k:] * self.state_["b"] + self.state_["c"]
        return keep_absent(softmax(scores), logits, present)

    def _graph(self, ops: Ops, x: Any) -> Any:
        present, k = self.state_["present"], self.n_classes_
        probs, rest = probs_and_rest(ops, x)
        a, b = (ops.const(self.state_[name]) for name in "ab")
        own, rest = (ops.log(ops.clip(ops.columns(v, present, k), EPS, 1 - EPS)) for v in (probs, rest))
        return ops.keep_absent(ops.softmax(own * a - rest * b + ops.const(self.state_["c"])), x, present, k)


def _features(logits: FloatArray, present: IntArray) -> Float64:
    """Return (ln p, −ln(1 − p)) of the present classes side by side, p and 1 − p clipped to [eps, 1 − eps].

    1 − p of the top class is summed from the others: subtracting would leave no digit near p = 1.
    """
    p = np.asarray(softmax(logits.astype(np.float64, copy=False)), dtype=np.float64)
    rest, at, top = 1 - p, np.arange(len(p)), logits.argmax(axis=1)
    largest = p[at, top]
    p[at, top] = 0
    rest[at, top] = p.sum(axis=1)
    p[at, top] = largest
    both = np.log(np.clip(np.hstack([p[:, present], rest[:, present]]), EPS, 1 - EPS))
    both[:, len(present) :] *= -1
    return both
