"""Structured vector and matrix scaling (Berta et al., 2025)."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, Literal

import numpy as np

from hcal.calibrators._shared import BETA
from hcal.calibrators._structured import FirstStage, Penalty, first_stage, matrix_strength, second_stage
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops
from hcal.solvers.rows import FitRows, array_rows
from hcal.solvers.families import ClassLinear, Family, MatrixScaling

_FIRST = StateSpec((BETA, Field("epsilon", "share of the uniform in the first stage", low=0, high=1)))


@parameters
class _StructuredScaling(Calibrator):
    """Temperature scaling, then a penalised linear map of its log-probabilities."""

    weighted = True

    strength: float = 1.0
    penalty: Penalty = "ridge"
    max_iterations: int = 500
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        return self._fit_rows(array_rows(logits, y, sample_weight))

    @abstractmethod
    def _fit_rows(self, rows: FitRows) -> Fitted:
        """Learn the state from rows in memory or not."""

    def _fit_stages(self, family: Family, rows: FitRows, strength: Float64, max_iterations: int) -> Fitted:
        stage, temperature = first_stage(rows)
        scored = rows.changed(partial(_stage_scores, stage))
        solved = second_stage(family, scored, strength, self.penalty, max_iterations)
        state = {"beta": np.array(stage.beta), "epsilon": np.array(stage.epsilon), "theta": solved.theta}
        info = {"temperature": 1 / stage.beta, "iterations": solved.iterations}
        # The mixed uniform and the penalty make the second stage well-posed whatever the first one met.
        message = solved.message if not solved.converged else temperature.message
        return Fitted(state, solved.converged and temperature.converged, message, info)

    def _scores(self, logits: FloatArray) -> Float64:
        return FirstStage(float(self.state_["beta"]), float(self.state_["epsilon"])).scores(logits)

    def _scores_graph(self, ops: Ops, x: Any) -> Any:
        epsilon = float(self.state_["epsilon"])
        probs = ops.softmax(x * ops.const(self.state_["beta"])) * (1 - epsilon)
        return ops.log(probs + epsilon / self.n_classes_)


@parameters
class StructuredVectorScaling(_StructuredScaling):
    """Temperature scaling, then softmax((1 + v) ⊙ x + b) with a penalty that fades as 1/N. No tuning.

    x = log((1 − ε) softmax(z/T) + ε/K) with ε = 1/(N + 1); mean NLL + strength · (K/N)(‖v‖² + ‖b‖²).

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025.

    Parameters
    ----------
    strength : float
        λ of both penalties.
    penalty : {"ridge", "lasso", "mcp"}
        The last two by accelerated proximal gradient.
    max_iterations : int

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = StructuredVectorScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.26, 0.74]])
    """

    name = "svs"
    title = "Structured vector scaling"
    state_specs = (_FIRST + StateSpec((Field("theta", "slopes, then offsets, of the classes", ("2*K",)),)),)

    penalty: Literal["ridge", "lasso", "mcp"] = "ridge"

    def _fit_rows(self, rows: FitRows) -> Fitted:
        if self.penalty not in ("ridge", "lasso", "mcp"):
            raise ValueError(f"penalty must be 'ridge', 'lasso' or 'mcp', got {self.penalty!r}")
        k = len(rows.mass)
        strength = np.full(2 * k, self.strength * k / rows.total)
        return self._fit_stages(ClassLinear(k), rows, strength, self.max_iterations)

    def _predict(self, logits: FloatArray) -> FloatArray:
        weights, offsets = np.split(self.state_["theta"], 2)
        return softmax(self._scores(logits) * weights + offsets)

    def _graph(self, ops: Ops, x: Any) -> Any:
        weights, offsets = np.split(self.state_["theta"], 2)
        return ops.softmax(self._scores_graph(ops, x) * ops.const(weights) + ops.const(offsets))


class StructuredMatrixScaling(_StructuredScaling):
    """Temperature scaling, then softmax(x + D x + b), D full, penalised in three parts. No tuning.

    As ``svs`` with penalty (K/N)‖b‖² + (K/N) Σ D_ii² + (K(K − 1)/N) Σ_{i≠j} D_ij², times ``strength``.

    Berta, Holzmüller, Jordan, Bach: Structured Matrix Scaling for Multi-Class Calibration, 2025.

    Parameters
    ----------
    strength : float
        λ of all three penalties.
    penalty : {"ridge", "lasso", "mcp", "group_lasso"}
        All but the first by accelerated proximal gradient.
    max_iterations : int
        Above 300 classes at most 30 are made, until one gains less than 1e-6: each costs two products with a
        K×K matrix.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = StructuredMatrixScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "sms"
    title = "Structured matrix scaling"
    state_specs = (_FIRST + StateSpec((Field("theta", "I + D row by row, then b", ("K*(K+1)",)),)),)

    def _fit_rows(self, rows: FitRows) -> Fitted:
        k = len(rows.mass)
        one = self.strength * k / rows.total
        limit = self.max_iterations if k <= 300 else min(self.max_iterations, 30)
        return self._fit_stages(MatrixScaling(k), rows, matrix_strength(k, one), limit)

    def _predict(self, logits: FloatArray) -> FloatArray:
        k, theta = self.n_classes_, self.state_["theta"]
        return softmax(self._scores(logits) @ theta[: k * k].reshape(k, k).T + theta[k * k :])

    def _graph(self, ops: Ops, x: Any) -> Any:
        k, theta = self.n_classes_, self.state_["theta"]
        scores = ops.matmul(self._scores_graph(ops, x), ops.const(theta[: k * k].reshape(k, k).T))
        return ops.softmax(scores + ops.const(theta[k * k :]))


def _stage_scores(stage: FirstStage, logits: FloatArray, y: IntArray) -> tuple[Float64, IntArray]:
    return stage.scores(logits), y
