"""Ensemble temperature scaling (Zhang et al., ICML 2020)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np

from hcal.calibrators._normal_form import by_rank, to_fit
from hcal.calibrators._shared import BETA
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, grouped_softmax, row_blocks, softmax
from hcal.runtime.ops import Ops
from hcal.solvers.nll import unit_weight
from hcal.solvers.rows import array_rows
from hcal.solvers.optimise import minimise_scalar
from hcal.solvers.temperature import temperature_of

_BLOCK_EVENTS = 65_536


@parameters
class EnsembleTemperatureScaling(Calibrator):
    """w₁ softmax(z/T) + w₂ softmax(z) + w₃/K, weights on the simplex; T first, then w with T fixed.

    Zhang, Kailkhura, Han: Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in Deep
    Learning, ICML 2020. There T is searched in [0.05, 5]; here within a factor of 20 of the temperature of
    least NLL, so that the scale of the logits does not matter.

    Parameters
    ----------
    objective : {"brier", "nll"}
        What both stages minimise; the squared error is the authors' default.

    Examples
    --------
    >>> cal = EnsembleTemperatureScaling().fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.0, 2.0]]).round(4)
    array([[0.25, 0.75]])
    """

    name = "ets"
    title = "Ensemble temperature scaling"
    preserves = "order"
    weighted = True
    mixes_uniform = True
    state_specs = (
        StateSpec((BETA, Field("weights", "of softmax(z/T), softmax(z) and 1/K", (3,), 0, 1, total=1.0))),
    )

    objective: Literal["brier", "nll"] = "brier"
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        # Brent compares values that differ by rounding alone: let it see the same numbers every time.
        logits, y = by_rank(to_fit(logits), y)
        return self._fit_mixture(_Scores(logits, None, logits.shape[1]), y, sample_weight)

    def _fit_grouped(
        self, scores: Float64, log_sizes: Float64, y: IntArray, weight: Float64 | None, n_classes: int
    ) -> Fitted:
        return self._fit_mixture(_Scores(scores, log_sizes, n_classes), y, weight)

    def _fit_mixture(self, scores: _Scores, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        if self.objective not in ("brier", "nll"):
            raise ValueError(f"objective must be 'brier' or 'nll', got {self.objective!r}")
        weight = unit_weight(sample_weight, len(y))
        start = temperature_of(array_rows(scores.logits, y, sample_weight), scores.log_sizes)
        beta = start.beta
        if self.objective == "brier":
            error = _brier_of_beta(scores, y, weight)
            near = float(np.log(beta))
            beta = float(
                np.exp(minimise_scalar(lambda t: error(float(np.exp(t))), near - 3, near + 3, points=7))
            )
            mix = _brier_weights(scores, y, weight, beta)
        else:
            mix = _nll_weights(_members(scores, y, beta), weight)
        info = {"temperature": 1 / beta, "weights": [float(w) for w in mix]}
        return Fitted({"beta": np.array(beta), "weights": mix}, start.converged, start.message, info)

    def _predict(self, logits: FloatArray) -> FloatArray:
        w = self.state_["weights"]
        probs: FloatArray = w[0] * softmax(logits * self.state_["beta"])
        if w[1] > 0:
            probs += w[1] * softmax(logits)
        probs += w[2] / logits.shape[1]
        return probs

    def _predict_grouped(self, scores: Float64, log_sizes: Float64) -> Float64:
        w, n_classes = self.state_["weights"], self.n_classes_
        members = (grouped_softmax(scores * b, log_sizes) for b in (self.state_["beta"], 1.0))
        return sum((w[i] * p for i, p in enumerate(members)), np.full_like(scores, w[2] / n_classes))

    def _graph(self, ops: Ops, x: Any) -> Any:
        w = self.state_["weights"]
        probs = ops.softmax(x * ops.const(self.state_["beta"])) * ops.const(w[0])
        return probs + ops.softmax(x) * ops.const(w[1]) + ops.const(w[2] / self.n_classes_)


class _Scores(NamedTuple):
    """Logits (N, G), ln of how many classes each stands for (None: one), and the number of classes."""

    logits: FloatArray
    log_sizes: Float64 | None
    n_classes: int

    def blocks(self) -> list[slice]:
        return row_blocks(self.logits.shape, _BLOCK_EVENTS)

    def probs(self, rows: slice, beta: float) -> FloatArray:
        """Return softmax(βz) of one class of each group."""
        scores = beta * self.logits[rows]
        return softmax(scores) if self.log_sizes is None else grouped_softmax(scores, self.log_sizes[rows])

    def dot(self, rows: slice, a: FloatArray, b: FloatArray) -> FloatArray:
        """Return the products of two sets of probabilities, summed over classes."""
        if self.log_sizes is not None:
            a = a * np.exp(self.log_sizes[rows])
        return np.asarray(np.einsum("nk,nk->n", a, b))


def _brier_of_beta(scores: _Scores, y: IntArray, weight: Float64) -> Callable[[float], float]:
    def error(beta: float) -> float:
        total = 0.0
        for rows in scores.blocks():
            p = scores.probs(rows, beta)
            label = p[np.arange(len(p)), y[rows]]
            total += float(weight[rows] @ (scores.dot(rows, p, p) - 2 * label))
        return total + 1

    return error


def _members(scores: _Scores, y: IntArray, beta: float) -> Float64:
    """Return the probability of the label under each of the three members, (N, 3)."""
    out = np.full((len(y), 3), 1 / scores.n_classes)
    for rows in scores.blocks():
        at = np.arange(len(y[rows]))
        out[rows, 0] = scores.probs(rows, beta)[at, y[rows]]
        out[rows, 1] = scores.probs(rows, 1.0)[at, y[rows]]
    return out


def _brier_weights(scores: _Scores, y: IntArray, weight: Float64, beta: float) -> Float64:
    """Return the simplex weights of least squared error: a quadratic form in three unknowns."""
    gram, k = np.zeros((3, 3)), scores.n_classes
    for rows in scores.blocks():
        p, q = scores.probs(rows, beta), scores.probs(rows, 1.0)
        for (i, j), (a, b) in {(0, 0): (p, p), (0, 1): (p, q), (1, 1): (q, q)}.items():
            gram[i, j] += float(weight[rows] @ scores.dot(rows, a, b))
    gram[1, 0], gram[2, :], gram[:, 2] = gram[0, 1], 1 / k, 1 / k
    label = weight @ _members(scores, y, beta)
    return simplex_quadratic(gram, label)


def simplex_quadratic(gram: Float64, linear: Float64) -> Float64:
    """Minimise wᵀGw − 2cᵀw over the simplex by trying every face; ties go to the smaller face.

    Shapes: gram (M, M), linear (M,) → (M,).

    >>> simplex_quadratic(np.eye(3), np.array([1.0, 0.5, 0.0]))
    array([0.75, 0.25, 0.  ])
    """
    best, least = np.zeros(len(linear)), np.inf
    for size in range(1, len(linear) + 1):
        for face in map(list, combinations(range(len(linear)), size)):
            # Stationary on the face: 2Gw − 2c + ν = 0 and Σw = 1.
            system = np.block(
                [[gram[np.ix_(face, face)], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]]
            )
            part = np.linalg.lstsq(system, np.r_[linear[face], 1.0], rcond=None)[0][:size]
            if (part < 0).any():
                continue
            w = np.zeros(len(linear))
            w[face] = part / part.sum()
            value = float(w @ gram @ w - 2 * linear @ w)
            if value < least - 1e-14:
                best, least = w, value
    return best


def _nll_weights(members: Float64, weight: Float64) -> Float64:
    from scipy.optimize import LinearConstraint, minimize

    floor = np.finfo(np.float64).tiny

    def loss(w: Float64) -> tuple[float, Float64]:
        mix = np.maximum(members @ w, floor)
        return -float(weight @ np.log(mix)), -(weight / mix) @ members

    plain = np.array([1.0, 0.0, 0.0])
    found = minimize(
        loss,
        plain,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints=LinearConstraint(np.ones((1, 3)), 1.0, 1.0),
    )
    w = np.clip(np.asarray(found.x, dtype=np.float64), 0, 1)
    w /= w.sum()
    # SLSQP may end a hair above its start; the plain temperature is then the better answer.
    return w if loss(w)[0] <= loss(plain)[0] else plain
