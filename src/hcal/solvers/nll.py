"""Fit a family of softmax maps by mean NLL + penalty, and choose among candidates on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hcal.compiled import in_threads
from hcal.numerics import Float64, IntArray, row_blocks
from hcal.solvers.families import Family
from hcal.solvers.optimise import Solution, lbfgs, newton, solve_curved

#: Up to this many parameters a dense second derivative is cheaper than many L-BFGS steps.
NEWTON_PARAMETERS = 600
# Blocks of 256 KiB fit in the cache, with a least number of rows for fast matrix products. Threads take parts of a
# fixed size, so that sums do not depend on the number of threads.
_BLOCK_EVENTS, _BLOCK_ROWS, _PART_EVENTS = 32_768, 32, 1_000_000


class Ridge(NamedTuple):
    """The penalty Σ strength · (θ − centre)²."""

    strength: Float64
    centre: Float64


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
    _, log_mass = _softmax(scores.copy())
    return float(unit_weight(weight, len(y)) @ (log_mass - scores[np.arange(len(y)), y]))


def fit_nll(
    family: Family,
    x: Float64,
    y: IntArray,
    weight: Float64 | None = None,
    *,
    penalty: Ridge | None = None,
    start: Float64 | None = None,
    bounds: tuple[Float64, Float64] | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-7,
    gain: float = 1e-13,
    newton_gain: float = 1e-12,
    watch: Callable[[Float64], bool] | None = None,
) -> Solution:
    """Fit a family by mean NLL + penalty.

    The solver is Newton if the scores are linear in θ, there are no bounds and few parameters; otherwise L-BFGS.

    Parameters
    ----------
    family : Family
    x : array of shape (N, ·)
        The input of the family.
    y : array of shape (N,)
    weight : array of shape (N,), optional
    penalty : Ridge, optional
    start : array of shape (P,), optional
        Default: the start of the family.
    bounds : two arrays of shape (P,), optional
        The least and the greatest θ.
    max_iterations : int
    tolerance, gain
        L-BFGS stops when the gradient is at most ``tolerance`` or an iteration gains less than ``gain``.
    newton_gain : float
        Newton stops when a step is expected to gain less.
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
    ridge = penalty or Ridge(np.zeros_like(first), first)

    def loss(theta: Float64) -> tuple[float, Float64]:
        value, gradient = _loss_sums(family, theta, *rows)
        away = theta - ridge.centre
        return value + float(ridge.strength @ away**2), gradient + 2 * ridge.strength * away

    linear = hasattr(family, "curvature")
    if linear and bounds is None and len(first) <= NEWTON_PARAMETERS:

        def direction(theta: Float64, gradient: Float64) -> tuple[Float64, Float64]:
            hessian = second_sums(family, theta, rows[0], rows[2]) + 2 * np.diag(ridge.strength)
            return gradient, solve_curved(hessian, gradient)

        return newton(loss, direction, first, tolerance=newton_gain)
    unit = None
    if linear:
        diagonal = second_sums(family, first, rows[0], rows[2], diagonal=True) + 2 * ridge.strength
        if diagonal.max() > 0:  # it is 0 with one class, or if all rows are saturated
            unit = 1 / np.sqrt(np.maximum(diagonal, 1e-8 * diagonal.max()))
    return lbfgs(
        loss, first, scale=unit, bounds=bounds, max_iterations=max_iterations, tolerance=tolerance, gain=gain,
        watch=watch,
    )  # fmt: skip


def _softmax(scores: Float64) -> tuple[Float64, Float64]:
    """Overwrite scores (N, K) with their softmax and return it, with ln Σ e^scores (N,)."""
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
        for start in range(part.start, part.stop, size):
            block = slice(start, min(start + size, part.stop))
            scores, pullback = family.vjp(theta, x[block])
            at, label, w = np.arange(len(scores)), y[block], weight[block]
            own = scores[at, label]
            d, log_mass = _softmax(scores)
            d[at, label] -= 1
            d *= w[:, None]
            value += float(w @ (log_mass - own))
            gradient += pullback(d)
        return value, gradient

    size, parts = max(_BLOCK_ROWS, _BLOCK_EVENTS // x.shape[1]), row_blocks(x.shape, _PART_EVENTS)
    sums = in_threads(over, parts, events=x.size if len(parts) > 2 else 0)
    return sum(value for value, _ in sums), np.sum([gradient for _, gradient in sums], axis=0)


def second_sums(
    family: Any, theta: Float64, x: Float64, weight: Float64, *, diagonal: bool = False
) -> Float64:
    """Return the sum over rows of the curvature (P, P) of the NLL, or of its diagonal (P,)."""
    total: Any = 0.0
    for rows in row_blocks((len(x), x.shape[1] if diagonal else len(theta)), 4_000_000):
        part, w = x[rows], weight[rows]
        probs, _ = _softmax(family.vjp(theta, part)[0])
        if (
            diagonal
        ):  # scores are linear in θ, so the pullback of squared features gives the diagonal
            total = total + family.vjp(theta, part**2)[1](w[:, None] * probs * (1 - probs))
        else:
            total = total + family.curvature(part, probs, w)
    return np.asarray(total)


class Selection(NamedTuple):
    """The chosen candidate, its model in every fold, and the mean held-out score of each candidate."""

    chosen: Any
    models: list[Any]
    scores: list[float]


def select(
    grid: Sequence[Any],
    folds: Sequence[tuple[Any, Any]],
    fit: Callable[[Any, Any, Any], Any],
    score: Callable[[Any, Any], float],
) -> Selection:
    """Choose the candidate with the lowest mean held-out score; the first one if several tie.

    ``fit`` takes a candidate, the rows to fit on and the model of the previous candidate (or None) as a start, so
    ``grid`` should be in an order in which neighbours have similar models. ``score`` takes a model and the held-out
    rows; lower is better.

    >>> data, folds = np.arange(4.0), [(np.array([0, 1]), np.array([2, 3])), (np.array([2, 3]), np.array([0, 1]))]
    >>> select([0.0, 1.0], folds, lambda c, rows, _: c * data[rows].mean(),
    ...        lambda m, rows: float(((data[rows] - m) ** 2).mean())).chosen
    0.0
    """
    scores = np.zeros(len(grid))
    models: list[list[Any]] = []
    for rows, held_out in folds:
        models.append([])
        for i, candidate in enumerate(grid):
            model = fit(candidate, rows, models[-1][-1] if i else None)
            value = score(model, held_out)
            scores[i] += value if np.isfinite(value) else np.inf
            models[-1].append(model)
    best = int(np.argmin(scores))
    return Selection(grid[best], [row[best] for row in models], (scores / len(folds)).tolist())
