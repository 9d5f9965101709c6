"""Platt scaling: an affine map of the log-odds (Platt, 1999), one against the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.calibrators._log_odds import events, fit_events, log_odds, spread
from hcal.calibrators._logistic import increasing_logistic, platt_targets
from hcal.calibrators._shared import probs_and_rest
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray
from hcal.runtime.ops import Ops


@parameters
class PlattScaling(Calibrator):
    """Per event, logit q = a · logit p + b with a ≥ 0, of greatest likelihood.

    Two classes have one event; with more, each class against the rest, and rows divided by their sum. A class
    absent from the calibration rows keeps its log-odds. The slope cannot be negative: calibration never turns
    a ranking around.

    Platt: Probabilistic outputs for support vector machines and comparisons to regularized likelihood
    methods, Advances in Large Margin Classifiers, 1999. There the score is a margin; here the log-odds.

    Parameters
    ----------
    smooth : bool
        Platt's targets, (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2), in place of 1 and 0.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 2
    >>> cal = PlattScaling(smooth=False).fit(logits, [1, 1, 0, 1, 0, 1, 0, 1])
    >>> cal.predict_proba([[0.0, 1.0]]).round(3)
    array([[0.25, 0.75]])
    """

    name = "platt"
    title = "Platt scaling"
    weighted = True
    state_specs = (
        StateSpec((Field("intercept", "of each event", ("E",)), Field("slope", "of each event", ("E",)))),
    )

    smooth: bool = True
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        found, converged = fit_events(
            log_odds(logits), y, sample_weight, self._fit_one, identity=np.array([0.0, 1.0])
        )
        state = {"intercept": found[:, 0], "slope": found[:, 1]}
        return Fitted(state, converged, "" if converged else "Newton did not converge")

    def _fit_one(self, odds: Float64, hit: Float64, weight: Float64 | None) -> tuple[Float64, bool]:
        target = platt_targets(hit, weight) if self.smooth else hit
        mass = np.ones(len(hit)) if weight is None else weight
        solved = increasing_logistic(np.stack([np.ones_like(odds), odds], axis=1), target, mass)
        return solved.theta, solved.converged

    def _predict(self, logits: FloatArray) -> FloatArray:
        odds = events(log_odds(logits))
        return spread(odds * self.state_["slope"] + self.state_["intercept"], logits)

    def _graph(self, ops: Ops, x: Any) -> Any:
        slope, intercept = self.state_["slope"], self.state_["intercept"]
        if self.n_classes_ == 2:
            # Half of the log-odds on each side; the slope in the matrix, where no runtime rounds it.
            sides = ops.matmul(x, ops.const(slope * np.array([[0.5, -0.5], [-0.5, 0.5]])))
            return ops.softmax(sides + ops.const(intercept * np.array([-0.5, 0.5])))
        raw = _expit(ops, _graph_odds(ops, x) * ops.const(slope) + ops.const(intercept))
        return raw / ops.sum(raw)


def _graph_odds(ops: Ops, x: Any) -> Any:
    """Return the log-odds of every class."""
    probs, rest = probs_and_rest(ops, x)
    smallest = float(np.finfo(np.float64).tiny)
    return ops.log(ops.maximum(probs, smallest)) - ops.log(ops.maximum(rest, smallest))


def _expit(ops: Ops, x: Any) -> Any:
    """Return 1/(1 + e^−x), without overflow on either side."""
    positive = ops.maximum(x, 0.0)
    return ops.exp(x - positive) / (ops.exp(x - positive) + ops.exp(positive * -1))
