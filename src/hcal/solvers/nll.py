"""Fitting a family of softmax maps by mean NLL + penalty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from hcal.compiled import each
from hcal.numerics import Float64, IntArray, row_blocks
from hcal.solvers.families import Family
from hcal.solvers.optimise import Solution, lbfgs, newton

#: Up to this many parameters a dense second derivative is cheaper than many L-BFGS steps.
NEWTON_PARAMETERS = 600
# Blocks of 256 KiB stay in the cache, and matrix products want some rows at least. Threads take parts of a fixed
# size, so that sums do not depend on how many threads there are.
_BLOCK_EVENTS, _BLOCK_ROWS, _PART_EVENTS = 32_768, 32, 1_000_000

CandidateT = TypeVar("CandidateT")
ModelT = TypeVar("ModelT")
SideT = TypeVar("SideT")


@dataclass(frozen=True)
class Ridge:
    """The penalty Σ strength · (θ − centre)².

    >>> Ridge(np.array([2.0]), np.array([1.0])).value_and_grad(np.array([3.0]))
    (8.0, array([8.]))
    """

    strength: Float64
    centre: Float64

    def value_and_grad(self, theta: Float64) -> tuple[float, Float64]:
        """Return the penalty and its gradient."""
        away = theta - self.centre
        pull = self.strength * away
        return float(pull @ away), 2 * pull


def unit_weight(weight: Float64 | None, n_rows: int) -> Float64:
    """Return weights that sum to 1; None means equal ones.

    >>> unit_weight(None, 4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    return np.full(n_rows, 1 / n_rows) if weight is None else weight / weight.sum()


def mean_nll(scores: Float64, y: IntArray, weight: Float64 | None = None) -> float:
    """Return the weighted mean NLL of softmax(scores).

    >>> round(mean_nll(np.zeros((1, 2)), np.array([0])), 4)
    0.6931
    """
    top = scores.max(axis=1)
    mass = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
    return float(unit_weight(weight, len(y)) @ (mass - scores[np.arange(len(y)), y]))


def fit_nll(
    family: Family,
    x: Float64,
    y: IntArray,
    weight: Float64 | None = None,
    *,
    penalty: Ridge | None = None,
    start: Float64 | None = None,
    bounds: list[tuple[float | None, float | None]] | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-7,
    gain: float = 1e-13,
    newton_gain: float = 1e-12,
    watch: Callable[[Float64], bool] | None = None,
) -> Solution:
    """Fit a family by mean NLL + penalty.

    By Newton where the scores are linear in θ and there are no bounds and few parameters, else by L-BFGS.

    Parameters
    ----------
    family : Family
    x : array of shape (N, ·)
        What the family takes.
    y : array of shape (N,)
    weight : array of shape (N,), optional
    penalty : Ridge, optional
    start : array of shape (P,), optional
        Default: the start of the family.
    bounds : list of P pairs, optional
    max_iterations : int
    tolerance, gain
        L-BFGS stops at this gradient, or when an iteration gains less.
    newton_gain : float
        Newton stops when a step is to gain less.
    watch : callable, optional
        Called with θ after every iteration of L-BFGS; True ends the search.

    Examples
    --------
    >>> from hcal.solvers.families import ClassLinear
    >>> x, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> ridge = Ridge(np.full(4, 1e-9), np.zeros(4))
    >>> solved = fit_nll(ClassLinear(2), x, y, penalty=ridge)
    >>> ClassLinear(2).vjp(solved.theta, x[:1])[0].round(4) @ [-1.0, 1.0]  # log 3
    array([1.0986])
    """
    first = family.start if start is None else start
    rows = x.astype(np.float64, copy=False), y, unit_weight(weight, len(y))

    def loss(theta: Float64) -> tuple[float, Float64]:
        value, gradient = _loss_sums(family, theta, *rows)
        if penalty is not None:
            extra, slope = penalty.value_and_grad(theta)
            value, gradient = value + extra, gradient + slope
        return value, gradient

    linear = hasattr(family, "curvature")
    if linear and bounds is None and len(first) <= NEWTON_PARAMETERS:

        def hessian(theta: Float64) -> Float64:
            total = _second_sums(family, theta, "curvature", *rows)
            if penalty is not None:
                total[np.diag_indices_from(total)] += 2 * penalty.strength
            return total

        return newton(loss, hessian, first, tolerance=newton_gain)
    unit = None
    if linear:
        diagonal = _second_sums(family, first, "diagonal", *rows)
        unit = _units(diagonal if penalty is None else diagonal + 2 * penalty.strength)
    return lbfgs(
        loss, first, scale=unit, bounds=bounds, max_iterations=max_iterations, tolerance=tolerance, gain=gain,
        watch=watch,
    )  # fmt: skip


def _units(diagonal: Float64) -> Float64 | None:
    """Return 1/√diagonal, or None where there is nothing to measure units by: one class, or all saturated."""
    if not diagonal.max() > 0:
        return None
    units: Float64 = 1 / np.sqrt(np.maximum(diagonal, 1e-8 * diagonal.max()))
    return units


def _softmax(scores: Float64) -> tuple[Float64, Float64]:
    """Return probabilities (N, K) in place of the scores, and ln Σ e^scores (N,)."""
    top = scores.max(axis=1, keepdims=True)
    scores -= top
    np.exp(scores, out=scores)
    mass = scores.sum(axis=1, keepdims=True)
    scores /= mass
    return scores, (np.log(mass) + top)[:, 0]


def _loss_sums(
    family: Family, theta: Float64, x: Float64, y: IntArray, weight: Float64
) -> tuple[float, Float64]:
    """Return the sums over rows of the NLL and of its gradient in θ."""

    def over(part: slice) -> tuple[float, Float64]:
        value, gradient = 0.0, np.zeros_like(theta)
        for block in _blocks(x, part):
            scores, pullback = family.vjp(theta, x[block])
            at, label, w = np.arange(len(scores)), y[block], weight[block]
            own = scores[at, label]
            d, log_mass = _softmax(scores)
            d[at, label] -= 1
            d *= w[:, None]
            value += float(w @ (log_mass - own))
            gradient += pullback(d)
        return value, gradient

    parts = row_blocks(x.shape, _PART_EVENTS)
    sums = each(over, parts, events=x.size if len(parts) > 2 else 0)
    return sum(value for value, _ in sums), np.sum([gradient for _, gradient in sums], axis=0)


def _second_sums(
    family: Any, theta: Float64, which: str, x: Float64, y: IntArray, weight: Float64
) -> Float64:
    """Return the sum over rows of the curvature (P, P) of the NLL, or of its diagonal (P,)."""
    size = len(theta) if which == "curvature" else x.shape[1]
    blocks = row_blocks((len(x), size), 4_000_000)
    parts = [
        getattr(family, which)(x[block], _softmax(family.vjp(theta, x[block])[0])[0], weight[block])
        for block in blocks
    ]
    return np.asarray(np.sum(parts, axis=0))


def _blocks(x: Float64, part: slice) -> list[slice]:
    size = max(_BLOCK_ROWS, _BLOCK_EVENTS // x.shape[1])
    return [slice(a, min(a + size, part.stop)) for a in range(part.start, part.stop, size)]


@dataclass(frozen=True)
class Selection(Generic[CandidateT, ModelT]):
    """The chosen candidate, its model of every fold, and the mean held-out score of all candidates."""

    chosen: CandidateT
    models: list[ModelT]
    scores: list[float]


def select(
    grid: Sequence[CandidateT],
    folds: Sequence[tuple[SideT, SideT]],
    fit: Callable[[CandidateT, SideT, ModelT | None], ModelT],
    score: Callable[[ModelT, SideT], float],
) -> Selection[CandidateT, ModelT]:
    """Choose the candidate of lowest mean held-out score; the first one on ties.

    ``grid`` stands in an order in which neighbours have similar models: ``fit`` (candidate, side to fit on,
    previous model or None) is handed the one before. ``score`` (model, side held out) is better where it is
    lower. Sides are whatever the two take.

    >>> data, folds = np.arange(4.0), [(slice(0, 2), slice(2, 4)), (slice(2, 4), slice(0, 2))]
    >>> select([0.0, 1.0], folds, lambda c, side, _: c * data[side].mean(),
    ...        lambda m, side: float(((data[side] - m) ** 2).mean())).chosen
    0.0
    """
    scores = np.zeros(len(grid))
    models: list[list[ModelT]] = []
    for train, held_out in folds:
        row: list[ModelT] = []
        for i, candidate in enumerate(grid):
            row.append(fit(candidate, train, row[-1] if row else None))
            value = score(row[-1], held_out)
            scores[i] += value if np.isfinite(value) else np.inf
        models.append(row)
    best = int(np.argmin(scores))
    return Selection(grid[best], [row[best] for row in models], [float(s) / len(folds) for s in scores])
