"""Matrix scaling (Guo et al., ICML 2017) with off-diagonal and intercept regularisation, and what ``dir`` shares."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal

import numpy as np

from hcal.maps.base import STEEP, ProbabilityMap, array, map_type, option
from hcal.methods._scaling import clipped_log_probs, on_grid, without_mean
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.folds import deal_folds, fold_sides
from hcal.methods.parameters import Count, NotNegative, parameters
from hcal.methods.sms import matrix_strength
from hcal.numerics import Float64, IntArray
from hcal.rows import Rows
from hcal.solvers.families import MatrixScaling as MatrixFamily
from hcal.solvers.nll import Ridge, fit_nll, mean_nll, select
from hcal.solvers.optimise import Solution
from hcal.solvers.temperature import logit_scale, solve_temperature
from hcal.xp import Array, namespace

Pair = tuple[float, float]

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
        xp, f = namespace(x), _features_of(x, self.features)
        models = range(self.matrix.shape[0])
        return sum(xp.softmax(f @ self.matrix[i].T + self.offset[i]) for i in models) / len(models)


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
        x = rows.x
        y = rows.labels
        weight = rows.weight
        groups = rows.groups
        if self.folds == 1 and self.penalty is None and len(x) > 1:
            raise ValueError(
                "folds=1 leaves nothing to choose the penalty on: pass penalty=(lambda, mu)"
            )
        k = x.shape[1]
        grid = penalty_grid(k) if self.penalty is None else [self.penalty]
        folds = fold_sides(deal_folds(x, self.folds, groups))
        _check_work(x, len(grid), len(folds))
        x = on_grid(x) if self.features == "logits" else _features_of(x, self.features)
        solved = solve_temperature(x, y, weight)
        family = MatrixFamily(k)
        start = family.start * (solved.beta if solved.converged else 1 / (logit_scale(x) or 1.0))

        def part(rows: IntArray) -> tuple[Float64, IntArray, Float64 | None]:
            return x[rows], y[rows], None if weight is None else weight[rows]

        def fit(pair: Pair, rows: IntArray, previous: Solution | None) -> Solution:
            # The diagonal is not penalised. With few rows it could grow without limit along features of rounding size,
            # so the tolerances below stop at gains too small for any held-out row to show.
            strength = matrix_strength(k, 0.0, *pair)
            return fit_nll(
                family, *part(rows), penalty=Ridge(strength, np.zeros_like(strength)),
                start=start if previous is None else previous.theta, max_iterations=150, tolerance=1e-5,
                gain=1e-7 if k > 24 else 1e-10, newton_gain=1e-9,
            )  # fmt: skip

        def score(model: Solution, rows: IntArray) -> float:
            held, labels, own = part(rows)
            return mean_nll(family.vjp(model.theta, held)[0], labels, own)

        found = select(grid, folds, fit, score)
        lam, mu = found.chosen
        info: dict[str, Any] = {"lambda": lam, "mu": mu, "folds": len(folds)}
        if len(grid) > 1:
            info["grid"] = [[*pair, s] for pair, s in zip(grid, found.scores, strict=True)]
        theta = np.stack([m.theta for m in found.models])
        matrices = FoldedMatrices(
            features=self.features,
            matrix=theta[:, : k * k].reshape(-1, k, k),
            offset=theta[:, k * k :],
        )
        failed = [m.message for m in found.models if not m.converged]
        return Fitted(matrices, not failed, failed[0] if failed else "", info)


def penalty_grid(n_classes: int) -> list[Pair]:
    """Return the pairs (λ, μ) of decades from 10 down to 1e-5, λ outer; to 1e-2 for 100 classes and more.

    >>> len(penalty_grid(10)), len(penalty_grid(100))
    (49, 16)
    """
    decades = [10.0**i for i in range(1, -6 if n_classes < 100 else -3, -1)]
    return list(product(decades, decades))


def _check_work(x: Float64, pairs: int, folds: int) -> None:
    n, k = x.shape
    work = float(n) * k * k * pairs * folds
    if work > _MOST_WORK:
        raise ValueError(
            f"{n} rows × {k} classes with {pairs} pairs (lambda, mu) and {folds} folds is {work:.2g} "
            f"row·matrix products; the limit for ten minutes is {_MOST_WORK:.2g}. Fit one pair without "
            "selection, penalty=(lambda, mu) and folds=1, or use 'sms', which has nothing to tune."
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
