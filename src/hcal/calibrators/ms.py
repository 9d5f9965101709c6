"""Matrix scaling (Guo et al., ICML 2017) with off-diagonal and intercept regularisation; ``dir`` shares it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from hcal.calibrators._scaling import clipped_log_probs, on_grid, without_mean
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.folds import deal_folds, fold_sides
from hcal.calibrators.parameters import parameters
from hcal.maps.base import STEEP, ProbabilityMap, array, map_type, option
from hcal.numerics import Float64, IntArray
from hcal.solvers.families import MatrixScaling as MatrixFamily
from hcal.solvers.nll import Ridge, fit_nll, mean_nll, select
from hcal.solvers.optimise import Solution
from hcal.solvers.temperature import logit_scale, solve_temperature
from hcal.xp import Array, namespace

Pair = tuple[float, float]
Grid = Literal["decades", "published"]

# A pass over the rows costs two products with a K×K matrix. About ten minutes on two cores, as measured.
_MOST_WORK = 1.5e11


@map_type
class FoldedMatrices(ProbabilityMap):
    """The mean over folds of softmax(W f + b), where f are centred logits, probabilities or their logarithms."""

    features: str = option("what W multiplies", ("logits", "probs", "log_probs"))
    matrix: Array = array("W of each fold's model", "F", "K", "K", low=-STEEP, high=STEEP)
    offset: Array = array("b of each fold's model", "F", "K")

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp, f = namespace(x), features_of(x, self.features)
        models = range(self.matrix.shape[0])
        return sum(xp.softmax(f @ self.matrix[i].T + self.offset[i]) for i in models) / len(models)


def features_of(x: Array, features: str) -> Array:
    """Return what the matrix multiplies."""
    if features == "logits":
        return without_mean(x)
    return namespace(x).softmax(x) if features == "probs" else clipped_log_probs(x)


@parameters
class FoldMatrices(Calibrator):
    """softmax(W f + b), penalised off the diagonal, averaged over folds; subclasses say what f is."""

    weighted = True
    grouped = True
    map_types = (FoldedMatrices,)

    penalty: Pair | None = None
    grid: Grid = "decades"
    folds: int = 5
    max_iterations: int = 150


@parameters
class MatrixScaling(FoldMatrices):
    """softmax(W z + b), z centred; mean NLL + λ Σ_{i≠j} W_ij² + μ Σ b_i²; fold models averaged.

    (λ, μ) is the pair of least held-out NLL over the folds.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017; the penalty (ODIR) from
    Kull et al., NeurIPS 2019. Convex: solved to convergence where the source ran Adam.

    Parameters
    ----------
    features : {"logits", "probs"}
        What W multiplies. The published table very likely used probabilities; logits are the definition and
        far better.
    penalty : (float, float), optional
        A fixed (λ, μ) instead of the choice from the grid.
    grid : {"decades", "published"}
        Decades from 1e-5 (1e-2 from 100 classes on) to 10, or the published grid to 1e6, nine times as many.
    folds : int
        1, with a fixed penalty, fits all rows once.
    max_iterations : int
        Of L-BFGS, used above 23 classes.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = MatrixScaling().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "ms"
    title = "Matrix scaling"

    features: Literal["logits", "probs"] = "logits"

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        if self.features not in ("logits", "probs"):
            raise ValueError(f"features must be 'logits' or 'probs', got {self.features!r}")
        return fit_matrices(self, self.features, x, y, weight, groups)


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


def fit_matrices(
    method: FoldMatrices,
    features: Literal["logits", "probs", "log_probs"],
    x: Float64,
    y: IntArray,
    weight: Float64 | None,
    groups: IntArray | None,
) -> Fitted:
    """Choose (λ, μ) by held-out NLL and return the models of the folds, whose probabilities are averaged.

    Shapes: x (N, K), y (N,), weight (N,).
    """
    k = x.shape[1]
    x = on_grid(x) if features == "logits" else features_of(x, features)
    grid = [method.penalty] if method.penalty is not None else penalty_grid(method.grid, k)
    folds = _folds(x, y, weight, groups, method)
    _check_work(x, len(grid), len(folds), method)
    solved = solve_temperature(x, y, weight)
    family = MatrixFamily(k)
    start = family.start * (solved.beta if solved.converged else 1 / (logit_scale(x) or 1.0))

    def part(rows: IntArray) -> tuple[Float64, IntArray, Float64 | None]:
        return x[rows], y[rows], None if weight is None else weight[rows]

    def fit(pair: Pair, rows: IntArray, previous: Solution | None) -> Solution:
        # The diagonal is not penalised: with few rows it runs off along features of rounding size, for gains
        # that no held-out row could show.
        return fit_nll(
            family,
            *part(rows),
            penalty=_ridge(k, *pair),
            start=start if previous is None else previous.theta,
            max_iterations=method.max_iterations,
            tolerance=1e-5,
            gain=1e-7 if k > 24 else 1e-10,
            newton_gain=1e-9,
        )

    def score(model: Solution, rows: IntArray) -> float:
        held, labels, own = part(rows)
        return mean_nll(family.vjp(model.theta, held)[0], labels, own)

    found = select(grid, folds, fit, score)
    lam, mu = found.chosen
    info: dict[str, Any] = {"lambda": lam, "mu": mu, "folds": len(folds)}
    if len(grid) > 1:
        info["grid"] = [[a, b, s] for (a, b), s in zip(grid, found.scores, strict=True)]
    theta = np.stack([m.theta for m in found.models])
    matrices = FoldedMatrices(
        features=features, matrix=theta[:, : k * k].reshape(-1, k, k), offset=theta[:, k * k :]
    )
    failed = [m.message for m in found.models if not m.converged]
    return Fitted(matrices, not failed, failed[0] if failed else "", info)


def _ridge(n_classes: int, lam: float, mu: float) -> Ridge:
    matrix = np.where(np.eye(n_classes, dtype=bool), 0.0, lam)
    strength = np.concatenate([matrix.ravel(), np.full(n_classes, mu)])
    return Ridge(strength, np.zeros_like(strength))


def _folds(
    x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None, method: FoldMatrices
) -> list[tuple[IntArray, IntArray]]:
    if method.folds < 1:
        raise ValueError(f"folds must be at least 1, got {method.folds}")
    if method.folds == 1 and method.penalty is None and len(x) > 1:
        raise ValueError("folds=1 leaves nothing to choose the penalty on: pass penalty=(lambda, mu)")
    return fold_sides(deal_folds(x, y, method.folds, groups))


def _check_work(x: Float64, pairs: int, folds: int, method: FoldMatrices) -> None:
    n, k = x.shape
    work = float(n) * k * k * pairs * folds
    if work > _MOST_WORK:
        raise ValueError(
            f"{n} rows × {k} classes with {pairs} pairs (lambda, mu) and {folds} folds is {work:.2g} "
            f"row·matrix products; the limit for ten minutes is {_MOST_WORK:.2g}. Fit one pair without "
            "selection, penalty=(lambda, mu) and folds=1, or use 'sms', which has nothing to tune."
        )
