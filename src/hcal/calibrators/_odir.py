"""A full matrix with off-diagonal and intercept regularisation: what ``ms`` and ``dir`` share."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from hcal.calibrators.base import Calibrator, Fitted, State
from hcal.calibrators.declared import parameters
from hcal.calibrators.row_order import WeightedRows, fold_parts
from hcal.calibrators.state import STEEP, Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, softmax
from hcal.runtime.ops import Ops
from hcal.solvers.families import MatrixScaling
from hcal.solvers.nll import Ridge, fit_nll, mean_nll
from hcal.solvers.optimise import Solution
from hcal.solvers.nll import select
from hcal.solvers.rows import array_rows
from hcal.solvers.temperature import logit_scale, solve_temperature

Pair = tuple[float, float]
Grid = Literal["decades", "published"]

# A pass over the rows costs two products with a K×K matrix. About ten minutes on two cores, as measured.
_MOST_WORK = 1.5e11

#: The state of ``ms`` and ``dir``.
MATRICES = (
    StateSpec(
        (
            Field("matrix", "W of each fold's model", ("F", "K", "K"), -STEEP, STEEP),
            Field("offset", "b of each fold's model", ("F", "K")),
        ),
        {"F": ("models that are averaged", 1)},
    ),
)


@parameters
class FoldMatrices(Calibrator):
    """softmax(W x + b), penalised off the diagonal, averaged over folds; subclasses say what x is."""

    weighted = True
    state_specs = MATRICES

    penalty: Pair | None = None
    grid: Grid = "decades"
    folds: int = 5
    random_state: int = 15
    max_iterations: int = 150
    input: InputKind = "logits"


def penalty_grid(name: str, n_classes: int) -> list[Pair]:
    """Return the pairs (λ, μ), λ outer; from 1e-2 upwards for 100 classes and more.

    ``"decades"`` up to 10, or the ``"published"`` 3 × 12 values of λ and 12 of μ up to 1e6.

    >>> len(penalty_grid("decades", 10)), len(penalty_grid("published", 10))
    (49, 432)
    """
    lowest = -5 if n_classes < 100 else -2
    if name == "decades":
        decades = [10.0**i for i in range(1, lowest - 1, -1)]
        return [(a, b) for a in decades for b in decades]
    if name == "published":
        decades = [10.0**i for i in range(lowest, 7)]
        return [(f * a, b) for a in decades for f in (1.0, 0.25, 0.5) for b in decades]
    raise ValueError(f"grid must be 'decades' or 'published', got {name!r}")


def fit_matrix(x: Float64, y: IntArray, weight: Float64 | None, method: FoldMatrices) -> Fitted:
    """Choose (λ, μ) by held-out NLL and return the models of the folds, whose probabilities are averaged.

    Shapes: x (N, K), y (N,), weight (N,).
    """
    k = x.shape[1]
    grid = [method.penalty] if method.penalty is not None else penalty_grid(method.grid, k)
    folds = _folds(x, y, weight, method)
    _check_work(x, len(grid), len(folds), method)
    solved = solve_temperature(x, y, weight)
    start = MatrixScaling(k).start * (solved.beta if solved.converged else 1 / (logit_scale(x) or 1.0))

    # The diagonal is not penalised: with few rows it runs off along features of rounding size, for gains that
    # no held-out row could show.
    rough: dict[str, Any] = {"tolerance": 1e-5, "gain": 1e-7 if k > 24 else 1e-10, "newton_gain": 1e-9}

    def fit(pair: Pair, part: WeightedRows, previous: Solution | None) -> Solution:
        return fit_nll(
            MatrixScaling(k),
            array_rows(x[part.rows], y[part.rows], part.weight),
            penalty=_ridge(k, *pair),
            start=start if previous is None else previous.theta,
            max_iterations=method.max_iterations,
            **rough,
        )

    def score(model: Solution, part: WeightedRows) -> float:
        scores, _ = MatrixScaling(k).vjp(model.theta, x[part.rows])
        return mean_nll(scores, y[part.rows], part.weight)

    found = select(grid, folds, fit, score)
    lam, mu = found.chosen
    info: dict[str, Any] = {"lambda": lam, "mu": mu, "folds": len(folds)}
    if len(grid) > 1:
        info["grid"] = [[a, b, s] for (a, b), s in zip(grid, found.scores, strict=True)]
    theta = np.stack([m.theta for m in found.models])
    state = {"matrix": theta[:, : k * k].reshape(-1, k, k), "offset": theta[:, k * k :]}
    failed = [m.message for m in found.models if not m.converged]
    return Fitted(state, not failed, failed[0] if failed else "", info)


def predict_matrix(state: State, x: FloatArray) -> FloatArray:
    """Return the mean of the probabilities of the fold models."""
    probs = [softmax(x @ w.T + b) for w, b in zip(state["matrix"], state["offset"], strict=True)]
    return np.asarray(sum(probs[1:], probs[0]) / len(probs))


def matrix_graph(state: State, ops: Ops, x: Any) -> Any:
    """Return the same as :func:`predict_matrix` in portable operations."""
    probs = [
        ops.softmax(ops.matmul(x, ops.const(w.T)) + ops.const(b))
        for w, b in zip(state["matrix"], state["offset"], strict=True)
    ]
    return sum(probs[1:], probs[0]) / len(probs)


def _ridge(n_classes: int, lam: float, mu: float) -> Ridge:
    matrix = np.where(np.eye(n_classes, dtype=bool), 0.0, lam)
    strength = np.concatenate([matrix.ravel(), np.full(n_classes, mu)])
    return Ridge(strength, np.zeros_like(strength))


def _folds(
    x: Float64, y: IntArray, weight: Float64 | None, method: FoldMatrices
) -> list[tuple[WeightedRows, WeightedRows]]:
    if method.folds < 1:
        raise ValueError(f"folds must be at least 1, got {method.folds}")
    if method.folds == 1 and method.penalty is None and len(x) > 1:
        raise ValueError("folds=1 leaves nothing to choose the penalty on: pass penalty=(lambda, mu)")
    return fold_parts(x, y, weight, method.folds, random_state=method.random_state)


def _check_work(x: Float64, pairs: int, folds: int, method: FoldMatrices) -> None:
    n, k = x.shape
    work = float(n) * k * k * pairs * folds
    if work > _MOST_WORK:
        raise ValueError(
            f"{n} rows × {k} classes with {pairs} pairs (lambda, mu) and {folds} folds is {work:.2g} "
            f"row·matrix products; the limit for ten minutes is {_MOST_WORK:.2g}. Fit one pair without "
            "selection, penalty=(lambda, mu) and folds=1, or use 'sms', which has nothing to tune."
        )
