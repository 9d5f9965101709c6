"""What structured vector and matrix scaling share: the first stage and the penalties of the second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hcal.numerics import Float64, FloatArray, softmax
from hcal.solvers.families import Family
from hcal.solvers.nll import Ridge, fit_nll
from hcal.solvers.optimise import Prox, Solution, group_lasso_prox, lasso_prox, mcp_prox
from hcal.solvers.rows import FitRows
from hcal.solvers.temperature import Temperature, temperature_of

Penalty = Literal["ridge", "lasso", "mcp", "group_lasso"]

_LOG_FLOOR = float(np.log(np.finfo(np.float32).tiny))


@dataclass(frozen=True)
class FirstStage:
    """Temperature scaling by NLL, mixed with a little of the uniform: p′ = (1 − ε) softmax(β z) + ε/K."""

    beta: float
    epsilon: float

    def scores(self, logits: FloatArray) -> Float64:
        """Return log p′ (N, K), the input of the second stage."""
        probs = np.asarray(softmax(self.beta * logits.astype(np.float64, copy=False)), dtype=np.float64)
        probs *= 1 - self.epsilon
        probs += self.epsilon / logits.shape[1]
        np.log(probs, out=probs)
        return np.maximum(probs, _LOG_FLOOR, out=probs)


def first_stage(rows: FitRows) -> tuple[FirstStage, Temperature]:
    """Fit the temperature; ε = 1/(N + 1).

    >>> from hcal.solvers.rows import array_rows
    >>> stage, _ = first_stage(array_rows(np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])))
    >>> stage.epsilon
    0.2
    """
    solved = temperature_of(rows)
    return FirstStage(solved.beta, 1 / (rows.total + 1)), solved


def second_stage(
    family: Family, rows: FitRows, strength: Float64, penalty: Penalty, max_iterations: int
) -> Solution:
    """Minimise mean NLL + penalty of the distance to the identity map, parameter by parameter.

    The map starts at the identity, which is the centre of the penalty; ``strength`` has shape (P,).
    """
    n_classes = len(rows.mass)
    if penalty == "ridge":
        ridge = Ridge(strength, family.start)
        # Large problems stop at what no test set could tell apart.
        gain = 1e-12 if n_classes <= 300 else 1e-6
        return fit_nll(family, rows, penalty=ridge, max_iterations=max_iterations, gain=gain)
    prox = _prox(penalty, strength, n_classes)
    return fit_nll(family, rows, penalty=prox, max_iterations=max_iterations)


def matrix_strength(n_classes: int, one: float) -> Float64:
    """Return the strength (K² + K,) on the matrix map: K − 1 times as much off the diagonal.

    >>> matrix_strength(3, 1.0)[:4]
    array([1., 2., 2., 2.])
    """
    matrix = np.where(np.eye(n_classes, dtype=bool), one, one * (n_classes - 1))
    return np.concatenate([matrix.ravel(), np.full(n_classes, one)])


def _prox(penalty: Penalty, strength: Float64, n_classes: int) -> Prox:
    if penalty == "lasso":
        return lasso_prox(strength)
    if penalty == "mcp":
        return mcp_prox(strength)
    if penalty == "group_lasso":
        return group_lasso_prox(strength, n_classes)
    raise ValueError(f"penalty must be 'ridge', 'lasso', 'mcp' or 'group_lasso', got {penalty!r}")
