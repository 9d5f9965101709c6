"""NLL and Brier score in two parts: what calibration could repair, and what it could not.

A proper score is calibration + refinement: refinement is the score of the best recalibrated predictions.
What "best" can be known from N rows is a choice; here it is the best temperature, found on other rows than
those it is judged on (cross-fitting, so that noise is not called miscalibration). It has one parameter, so it
works for any K; what no temperature repairs is counted as refinement, hence calibration is a lower bound.
Berta, Holzmüller, Jordan, Bach: Rethinking Early Stopping: Refine, Then Calibrate, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hcal.metrics.sample import Sample, Vector, as_sample
from hcal.metrics.scores import SMALLEST, brier_rows, nll_rows
from hcal.numerics import softmax


@dataclass(frozen=True)
class Decomposition:
    """A proper score and its parts; ``calibration`` can be slightly negative where nothing is to repair."""

    score: float
    calibration: float
    refinement: float


def decompose(
    probs: Any,
    y: Any = None,
    *,
    score: Literal["nll", "brier"] = "nll",
    sample_weight: Any = None,
    folds: int = 5,
    random_state: int = 0,
) -> Decomposition:
    """Split NLL or Brier into calibration (a temperature would remove it) and refinement (the rest).

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    score : {"nll", "brier"}
    sample_weight : array-like of shape (N,), optional
    folds, random_state : int
        Of the cross-fitting.

    Returns
    -------
    Decomposition

    Examples
    --------
    >>> p = np.array([[0.01, 0.99]] * 50 + [[0.99, 0.01]] * 50)
    >>> parts = decompose(p, [1] * 40 + [0] * 10 + [0] * 40 + [1] * 10)
    >>> round(parts.score, 2), round(parts.calibration, 2), round(parts.refinement, 2)
    (0.93, 0.42, 0.51)
    """
    if score not in ("nll", "brier"):
        raise ValueError(f"score must be 'nll' or 'brier', got {score!r}")
    s = as_sample(probs, y, sample_weight)
    if not isinstance(folds, int | np.integer) or not 2 <= folds <= s.n:
        raise ValueError(f"folds must be an integer from 2 to the number of rows ({s.n}), got {folds!r}")
    rows = nll_rows if score == "nll" else brier_rows
    total = s.mean(rows(s))
    refinement = s.mean(_recalibrated_rows(s, rows, int(folds), random_state))
    return Decomposition(total, total - refinement, refinement)


def _recalibrated_rows(s: Sample, rows: Any, folds: int, random_state: int) -> Vector:
    """Return the score of every row after a temperature that was found without it."""
    from hcal.solvers.temperature import solve_temperature

    logits = np.log(np.maximum(s.data.probs.astype(np.float64), SMALLEST))
    fold = np.random.default_rng(random_state).permutation(s.n) % folds
    out = np.empty(s.n)
    for f in range(folds):
        inside, held = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        weight = None if s.weight is None else s.weight[inside]
        if weight is not None and weight.sum() == 0:
            weight = None  # nothing to learn from: every row counts the same
        beta = solve_temperature(logits[inside], s.y[inside], weight).beta
        out[held] = rows(Sample(softmax(beta * logits[held]), s.y[held]))
    return out
