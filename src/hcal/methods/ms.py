"""Matrix scaling (Guo et al., ICML 2017) with off-diagonal and intercept regularisation, and what ``dir`` shares."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, Self

import numpy as np

from hcal.maps.base import STEEP, ProbabilityMap, array, map_type, option
from hcal.methods._scaling import clipped_log_probs, on_grid, without_mean
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.folds import deal_folds, fold_sides
from hcal.methods.parameters import Count, NotNegative, parameters
from hcal.methods.sms import matrix_strength
from hcal.numerics import Float64, IntArray
from hcal.rows import Rows
from hcal.solvers.nll import MatrixLinear, Ridge, fit_nll, mean_nll, select
from hcal.solvers.optimise import Search, Solution
from hcal.solvers.temperature import logit_scale, solve_temperature
from hcal.text import JsonObject
from hcal.xp import Array, namespace

Penalties = tuple[float, float]

# A pass over the rows costs two products with a K×K matrix. The limit takes about ten minutes on two cores.
_MOST_WORK = 1.5e11


@map_type
class FoldedMatrices(ProbabilityMap):
    """The mean over folds of softmax(W f + b), where f are centred logits, probabilities or their logarithms."""

    features: str = option("what W multiplies", ("logits", "probs", "log_probs"))
    matrix: Array = array("W of each fold's model", "F", "K", "K", low=-STEEP, high=STEEP)
    offset: Array = array("b of each fold's model", "F", "K")

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        features = _features_of(x, self.features)
        n_models = self.matrix.shape[0]
        total = 0
        for i in range(n_models):
            total = total + xp.softmax(features @ self.matrix[i].T + self.offset[i])
        return total / n_models


def _features_of(x: Array, features: str) -> Array:
    if features == "logits":
        return without_mean(x)
    return namespace(x).softmax(x) if features == "probs" else clipped_log_probs(x)


@parameters
class FoldMatrices(Calibrator):
    """softmax(W f + b) with the off-diagonal of W penalised, averaged over folds; ``features`` names f.

    (λ, μ) is chosen by the held-out NLL of the folds, and the probabilities of the folds' models are averaged.
    """

    weighted = True
    grouped = True
    map_types = (FoldedMatrices,)
    features = "log_probs"  # without a type this is no parameter of the method

    penalty: tuple[NotNegative, NotNegative] | None = None
    folds: Count = 5

    def _fit(self, rows: Rows) -> Fitted:
        if self.folds == 1 and self.penalty is None and len(rows) > 1:
            raise ValueError(
                "folds=1 leaves nothing to choose the penalty on: pass penalty=(lambda, mu)"
            )
        k = rows.n_classes
        grid = penalty_grid(k) if self.penalty is None else [self.penalty]
        folds = fold_sides(deal_folds(rows.x, self.folds, rows.groups))
        _check_work(rows.x, len(grid), len(folds))

        x = on_grid(rows.x) if self.features == "logits" else _features_of(rows.x, self.features)
        models = _Models.of(x, rows.labels, rows.weight)
        chosen = select(grid, folds, models.fit, models.held_out_nll)
        theta = np.stack([model.theta for model in chosen.models])
        matrices = FoldedMatrices(
            features=self.features,
            matrix=theta[:, : k * k].reshape(-1, k, k),
            offset=theta[:, k * k :],
        )

        lam, mu = chosen.chosen
        details: JsonObject = {"lambda": lam, "mu": mu, "folds": len(folds)}
        if len(grid) > 1:
            scored = zip(grid, chosen.scores, strict=True)
            details["grid"] = [[*pair, score] for pair, score in scored]
        messages = [model.message for model in chosen.models if not model.converged]
        return Fitted(matrices, not messages, messages[0] if messages else "", details)


@dataclass(frozen=True)
class _Models:
    """How a matrix is fitted to the rows of a fold, and scored on those held out."""

    x: Float64
    y: IntArray
    weight: Float64 | None
    start: Float64

    @classmethod
    def of(cls, x: Float64, y: IntArray, weight: Float64 | None) -> Self:
        """Return the models of rows; a fit begins at temperature scaling."""
        solved = solve_temperature(x, y, weight)
        beta = solved.beta if solved.converged else 1.0 / (logit_scale(x) or 1.0)
        return cls(x, y, weight, MatrixLinear(x.shape[1]).start * beta)

    def fit(self, pair: Penalties, rows: IntArray, previous: Solution | None) -> Solution:
        """Fit a matrix with a pair of penalties, from the one of the pair before."""
        # The diagonal is not penalised. With few rows it could grow without limit along features of rounding size,
        # so the tolerances below stop at gains too small for any held-out row to show.
        k = self.x.shape[1]
        off_diagonal, of_offsets = pair
        strength = matrix_strength(k, 0.0, off_diagonal, of_offsets)
        search = Search(
            max_iterations=150, tolerance=1e-5, gain=1e-7 if k > 24 else 1e-10, newton_gain=1e-9
        )
        return fit_nll(
            MatrixLinear(k),
            *self._part(rows),
            penalty=Ridge(strength, np.zeros_like(strength)),
            start=self.start if previous is None else previous.theta,
            search=search,
        )

    def held_out_nll(self, model: Solution, rows: IntArray) -> float:
        """Return the mean NLL of rows."""
        x, y, weight = self._part(rows)
        scores, _ = MatrixLinear(self.x.shape[1]).vjp(model.theta, x)
        return mean_nll(scores, y, weight)

    def _part(self, rows: IntArray) -> tuple[Float64, IntArray, Float64 | None]:
        weight = None if self.weight is None else self.weight[rows]
        return self.x[rows], self.y[rows], weight


def penalty_grid(n_classes: int) -> list[Penalties]:
    """Return the pairs (λ, μ) of decades from 10 down to 1e-5, λ outer; to 1e-2 for 100 classes and more.

    >>> len(penalty_grid(10)), len(penalty_grid(100))
    (49, 16)
    """
    lowest = -5 if n_classes < 100 else -2
    decades = [10.0**i for i in range(1, lowest - 1, -1)]
    return list(product(decades, decades))


def _check_work(x: Float64, pairs: int, folds: int) -> None:
    n, k = x.shape
    work = float(n) * k * k * pairs * folds
    if work > _MOST_WORK:
        raise ValueError(
            f"{n} rows × {k} classes with {pairs} pairs (lambda, mu) and {folds} folds is "
            f"{work:.2g} row·matrix products; the limit for ten minutes is {_MOST_WORK:.2g}. "
            "Fit one pair without selection, penalty=(lambda, mu) and folds=1, or use 'sms', "
            "which has nothing to tune."
        )


@parameters
class MatrixScaling(FoldMatrices):
    """softmax(W z + b), z centred; mean NLL + λ Σ_{i≠j} W_ij² + μ Σ b_i²; fold models averaged.

    (λ, μ) is the pair of least held-out NLL over the folds, from decades between 1e-5 (1e-2 from 100 classes on)
    and 10.

    Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks, ICML 2017; the penalty (ODIR) from
    Kull et al., NeurIPS 2019. Convex: solved to convergence where the source ran Adam.

    Parameters
    ----------
    features : {"logits", "probs"}
        What W multiplies. The published table very likely used probabilities; logits are the definition and
        far better.
    penalty : (float, float), optional
        A fixed (λ, μ) instead of the choice from the grid.
    folds : int
        1, with a fixed penalty, fits all rows once.

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
