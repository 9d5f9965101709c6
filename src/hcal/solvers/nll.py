"""Fit a family of softmax maps by mean NLL + penalty, and choose among candidates on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hcal.compiled import in_threads
from hcal.numerics import Float64, IntArray, row_blocks
from hcal.solvers.families import LinearFamily, SoftmaxFamily
from hcal.solvers.optimise import Search, Solution, lbfgs, newton, solve_curved

#: Up to this many parameters a dense second derivative is cheaper than many L-BFGS steps.
NEWTON_PARAMETERS = 600
# Blocks of 256 KiB fit in the cache, with a least number of rows for fast matrix products. Threads take parts of a
# fixed size, so that sums do not depend on the number of threads.
_BLOCK_EVENTS = 32_768
_BLOCK_ROWS = 32
_PART_EVENTS = 1_000_000


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
    losses = log_mass - scores[np.arange(len(y)), y]
    return float(unit_weight(weight, len(y)) @ losses)


def fit_nll(  # noqa: PLR0913
    family: SoftmaxFamily,
    x: Float64,
    y: IntArray,
    weight: Float64 | None = None,
    *,
    penalty: Ridge | None = None,
    start: Float64 | None = None,
    search: Search | None = None,
) -> Solution:
    """Fit a family by mean NLL + penalty.

    The solver is Newton if the scores are linear in θ, there are no bounds and few parameters; otherwise L-BFGS.

    Parameters
    ----------
    family : SoftmaxFamily
    x : array of shape (N, ·)
        The input of the family.
    y : array of shape (N,)
    weight : array of shape (N,), optional
    penalty : Ridge, optional
    start : array of shape (P,), optional
        Default: the start of the family.
    search : Search, optional
        Bounds, and when to stop.

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
    search = search or Search()
    problem = _PenalisedNll(
        family=family,
        x=x.astype(np.float64, copy=False),
        y=y,
        share=unit_weight(weight, len(y)),
        penalty=penalty or Ridge(np.zeros_like(first), first),
    )
    is_linear = isinstance(family, LinearFamily)
    if is_linear and search.bounds is None and len(first) <= NEWTON_PARAMETERS:
        return newton(problem.loss, problem.direction, first, tolerance=search.newton_gain)
    scale = problem.scale(first) if is_linear else None
    return lbfgs(problem.loss, first, search, scale=scale)


@dataclass(frozen=True)
class _PenalisedNll:
    """The mean NLL of a family on rows, plus a penalty."""

    family: SoftmaxFamily
    x: Float64
    y: IntArray
    share: Float64
    penalty: Ridge

    def loss(self, theta: Float64) -> tuple[float, Float64]:
        """Return value and gradient."""
        value, gradient = _loss_sums(self.family, theta, self.x, self.y, self.share)
        strength = self.penalty.strength
        away = theta - self.penalty.centre
        with np.errstate(over="ignore"):  # a step that goes too far has an infinite value
            penalised = strength > 0
            distance = float(strength[penalised] @ away[penalised] ** 2)
        return value + distance, gradient + 2 * strength * away

    def direction(self, theta: Float64, gradient: Float64) -> tuple[Float64, Float64]:
        """Return the gradient and the Newton step."""
        hessian = second_sums(self.family, theta, self.x, self.share)
        hessian = hessian + 2 * np.diag(self.penalty.strength)
        return gradient, solve_curved(hessian, gradient)

    def scale(self, theta: Float64) -> Float64 | None:
        """Return about 1/√(second derivative) of each parameter, or None if nothing is curved."""
        diagonal = second_sums(self.family, theta, self.x, self.share, diagonal=True)
        diagonal = diagonal + 2 * self.penalty.strength
        largest = diagonal.max()
        if not largest > 0:  # with one class, or if all rows are saturated
            return None
        return np.asarray(1 / np.sqrt(np.maximum(diagonal, 1e-8 * largest)))


def _softmax(scores: Float64) -> tuple[Float64, Float64]:
    """Overwrite scores (N, K) with their softmax and return it, with ln Σ e^scores (N,)."""
    top = scores.max(axis=1, keepdims=True)
    scores -= top
    np.exp(scores, out=scores)
    mass = scores.sum(axis=1, keepdims=True)
    scores /= mass
    return scores, (np.log(mass) + top)[:, 0]


def _loss_sums(
    family: SoftmaxFamily, theta: Float64, x: Float64, y: IntArray, weight: Float64
) -> tuple[float, Float64]:
    """Return the sums over rows of the NLL and of its gradient in θ."""
    parts = row_blocks(x.shape, _PART_EVENTS)
    over = partial(_loss_sums_of_part, family, theta, x, y, weight)
    sums = in_threads(over, parts, events=x.size if len(parts) > 2 else 0)
    value = sum(value for value, _ in sums)
    return value, np.sum([gradient for _, gradient in sums], axis=0)


def _loss_sums_of_part(
    family: SoftmaxFamily, theta: Float64, x: Float64, y: IntArray, weight: Float64, part: slice
) -> tuple[float, Float64]:
    """Return the sums over the rows of a part, block by block."""
    value = 0.0
    gradient = np.zeros_like(theta)
    step = max(_BLOCK_ROWS, _BLOCK_EVENTS // x.shape[1])
    for start in range(part.start, part.stop, step):
        rows = slice(start, min(start + step, part.stop))
        scores, pullback = family.vjp(theta, x[rows])
        labels = (np.arange(len(scores)), y[rows])
        label_scores = scores[labels]
        d_scores, log_mass = _softmax(scores)
        d_scores[labels] -= 1
        d_scores *= weight[rows, None]
        value += float(weight[rows] @ (log_mass - label_scores))
        gradient += pullback(d_scores)
    return value, gradient


def second_sums(
    family: SoftmaxFamily, theta: Float64, x: Float64, weight: Float64, *, diagonal: bool = False
) -> Float64:
    """Return the sum over rows of the curvature (P, P) of the NLL of a linear family, or of its diagonal (P,)."""
    assert isinstance(family, LinearFamily)
    entries = x.shape[1] if diagonal else len(theta)
    total: Float64 | float = 0.0
    for rows in row_blocks((len(x), entries), 4_000_000):
        part = x[rows]
        probs, _ = _softmax(family.vjp(theta, part)[0])
        if diagonal:
            # Scores are linear in θ, so the pullback of squared features gives the diagonal.
            _, pullback = family.vjp(theta, part**2)
            total = total + pullback(weight[rows, None] * probs * (1 - probs))
        else:
            total = total + family.curvature(part, probs, weight[rows])
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
    models_of_folds = []
    for rows, held_out in folds:
        models = []
        previous = None
        for i, candidate in enumerate(grid):
            previous = fit(candidate, rows, previous)
            value = score(previous, held_out)
            scores[i] += value if np.isfinite(value) else np.inf
            models.append(previous)
        models_of_folds.append(models)
    best = int(np.argmin(scores))
    mean_scores = (scores / len(folds)).tolist()
    return Selection(grid[best], [models[best] for models in models_of_folds], mean_scores)
