"""Penalised regressions, solved to convergence by Newton's method.

:func:`fit_logistic` is for one event, :func:`fit_softmax` for one of K classes. Both also say what the fit
would predict for a row that had been left out, by one Newton step from the solution. There are no folds and no random
numbers, so scores that change by rounding change the fit by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from scipy.special import expit

from hcal.numerics import Float64, IntArray, in_threads, row_blocks, softmax
from hcal.solvers.optimise import newton, solve_curved

#: The relative gain at which Newton stops: none that a float could show.
_EXACT = 1e-16
#: Numbers in a block of rows: few enough for a cache, and enough to keep a thread busy.
_BLOCK = 524_288
#: A row cannot take more than this share of the curvature with it when it is left out.
_MOST_LEVERAGE = 1 - 1e-3

Sums = TypeVar("Sums")


@dataclass(frozen=True)
class LogisticFit:
    """A logistic regression: log-odds = offset + design · theta."""

    theta: Float64  # (P,)
    value: float  # of what was minimised
    converged: bool
    covariance: Float64  # (P, P) of theta
    left_out: Float64  # (N,) the log-odds of each row by the fit without it


def fit_logistic(  # noqa: PLR0913
    design: Float64,
    target: Float64,
    weight: Float64 | None = None,
    *,
    ridge: Float64 | float = 0.0,
    penalty: Float64 | None = None,
    offset: Float64 | float = 0.0,
    start: Float64 | None = None,
) -> LogisticFit:
    """Minimise Σ w·(ln(1 + e^η) − target·η) + Σ ridge·θ² + θᵀ·penalty·θ with the log-odds η = offset + design·θ.

    Shapes: design (N, P), target in [0, 1], weight and offset (N,), ridge (P,), penalty (P, P), start (P,).

    >>> fitted = fit_logistic(np.ones((4, 1)), np.array([1.0, 1.0, 1.0, 0.0]))
    >>> round(float(expit(fitted.theta[0])), 6)
    0.75
    """
    size = design.shape[1]
    both_penalties = ridge * np.eye(size) + (0.0 if penalty is None else penalty)
    all_weights = np.ones(len(target)) if weight is None else weight
    problem = _Logistic(design, target, all_weights, both_penalties, offset)
    first = np.zeros(size) if start is None else start
    solved = newton(problem.loss, problem.direction, first, tolerance=_EXACT)

    hessian = problem.hessian(solved.state)
    covariance = np.asarray(np.linalg.pinv(hessian, hermitian=True), np.float64)
    return LogisticFit(
        theta=solved.theta,
        value=solved.value,
        converged=solved.converged,
        covariance=covariance,
        left_out=problem.left_out(solved.theta, covariance),
    )


@dataclass(frozen=True)
class _Logistic:
    design: Float64
    target: Float64
    weight: Float64
    penalty: Float64
    offset: Float64 | float

    def loss(self, theta: Float64) -> tuple[float, Float64]:
        """Return what is minimised, and the probabilities (N,)."""
        log_odds = self.offset + self.design @ theta
        losses = np.logaddexp(0, log_odds) - self.target * log_odds
        value = float(self.weight @ losses + theta @ self.penalty @ theta)
        return value, expit(log_odds)

    def direction(self, theta: Float64, probs: Float64) -> tuple[Float64, Float64]:
        """Return the gradient and the Newton step."""
        pull = self.weight * (probs - self.target)
        gradient = self.design.T @ pull + 2 * self.penalty @ theta
        return gradient, solve_curved(self.hessian(probs), gradient)

    def hessian(self, probs: Float64) -> Float64:
        """Return the second derivative (P, P)."""
        curvature = self.weight * probs * (1 - probs)
        gram: Float64 = (self.design * curvature[:, None]).T @ self.design
        return gram + 2 * self.penalty

    def left_out(self, theta: Float64, covariance: Float64) -> Float64:
        """Return the log-odds (N,) of each row by the fit without it; of a heavier row, one copy is left out."""
        log_odds = self.offset + self.design @ theta
        probs = expit(log_odds)
        variance = np.einsum("np,pq,nq->n", self.design, covariance, self.design, optimize=True)
        push = np.minimum(self.weight, 1.0) * variance
        leverage = np.minimum(push * probs * (1 - probs), _MOST_LEVERAGE)
        change = push * (probs - self.target) / (1 - leverage)
        return np.asarray(log_odds + change)


@dataclass(frozen=True)
class SoftmaxFit:
    """A softmax regression: scores = offset + basis · theta."""

    theta: Float64  # (J,)
    problem: _Softmax

    def left_out_changes(self) -> Float64:
        """Return by how much the scores (N, K) of each row change if the fit does without it."""
        return self.problem.left_out_changes(self.theta)


def fit_softmax(  # noqa: PLR0913
    basis: Float64,
    y: IntArray,
    weight: Float64,
    *,
    offset: Float64 | float = 0.0,
    ridge: float = 0.0,
    centre: Float64,
    lowest: float = -np.inf,
) -> SoftmaxFit:
    """Minimise Σ w·NLL(softmax(offset + basis·θ)) + ridge·|θ − centre|² with θ ≥ lowest.

    Shapes: basis (N, K, J), y and weight (N,), offset (N, K), centre (J,).

    >>> good = np.log([[0.8, 0.2], [0.2, 0.8]] * 50)
    >>> y = np.array([0, 1] * 40 + [1, 0] * 10)
    >>> basis = np.stack([good, -good], axis=-1)
    >>> fitted = fit_softmax(basis, y, np.ones(100), ridge=1.0, centre=np.full(2, 0.5), lowest=0.0)
    >>> fitted.theta.round(1)
    array([1., 0.])
    """
    if not len(basis) == len(y) == len(weight):
        raise ValueError(f"{len(basis)} rows of scores, {len(y)} labels and {len(weight)} weights")
    offsets = np.broadcast_to(offset, basis.shape[:2])
    problem = _Softmax(basis, y, weight, offsets, ridge, centre)
    bounded = partial(problem.direction, lowest=lowest)
    solved = newton(problem.loss, bounded, centre, tolerance=_EXACT, lowest=lowest)
    return SoftmaxFit(solved.theta, problem)


@dataclass(frozen=True)
class _Softmax:
    basis: Float64
    y: IntArray
    weight: Float64
    offset: Float64
    ridge: float
    centre: Float64

    def over_blocks(self, work: Callable[[slice], Sums]) -> list[Sums]:
        """Return what is computed of each block of rows."""
        n, k, j = self.basis.shape
        blocks = row_blocks((n, j * k), _BLOCK)
        return in_threads(work, blocks, events=self.basis.size)

    def scores(self, theta: Float64, rows: slice) -> Float64:
        """Return the scores of a block of rows."""
        return np.asarray(self.offset[rows] + self.basis[rows] @ theta)

    def loss(self, theta: Float64) -> tuple[float, None]:
        """Return what is minimised."""
        losses = self.over_blocks(partial(self._block_loss, theta))
        distance = float(((theta - self.centre) ** 2).sum())
        return sum(losses) + self.ridge * distance, None

    def _block_loss(self, theta: Float64, rows: slice) -> float:
        scores = self.scores(theta, rows)
        scores -= scores.max(axis=1, keepdims=True)
        label_scores = scores[np.arange(len(scores)), self.y[rows]]
        losses = np.log(np.exp(scores).sum(axis=1)) - label_scores
        return float(self.weight[rows] @ losses)

    def direction(self, theta: Float64, _: None, lowest: float) -> tuple[Float64, Float64]:
        """Return the gradient, and the Newton step of the coefficients that are not held at ``lowest``."""
        gradient, hessian = self.derivatives(theta)
        free = (theta > lowest) | (gradient < 0)
        step = np.zeros_like(theta)
        if free.any():
            step[free] = solve_curved(hessian[np.ix_(free, free)], gradient[free])
        return gradient, step

    def derivatives(self, theta: Float64) -> tuple[Float64, Float64]:
        """Return the gradient (J,) and the second derivative (J, J) of what is minimised."""
        blocks = self.over_blocks(partial(self._block_derivatives, theta))
        gradient = sum(first for first, _ in blocks)
        hessian = sum(second for _, second in blocks)
        gradient = gradient + 2 * self.ridge * (theta - self.centre)
        return gradient, hessian + 2 * self.ridge * np.eye(len(theta))

    def _block_derivatives(self, theta: Float64, rows: slice) -> tuple[Float64, Float64]:
        pulls, root = self.pulls(theta, rows)
        weight = self.weight[rows]
        scaled = root * np.sqrt(weight)[:, None, None]
        flat = scaled.reshape(-1, len(theta))
        return weight @ pulls, flat.T @ flat

    def pulls(self, theta: Float64, rows: slice) -> tuple[Float64, Float64]:
        """Return the gradient (n, J) of the NLL of each row, and a root (n, K, J) of its second derivative."""
        basis = self.basis[rows]
        probs = softmax(self.scores(theta, rows))
        mean = (probs[:, None, :] @ basis)[:, 0]
        of_label = basis[np.arange(len(basis)), self.y[rows]]
        root = (basis - mean[:, None, :]) * np.sqrt(probs)[:, :, None]
        return mean - of_label, root

    def left_out_changes(self, theta: Float64) -> Float64:
        """Return by how much the scores (N, K) of each row change if the fit does without it."""
        _, hessian = self.derivatives(theta)
        changes = self.over_blocks(partial(self._block_changes, theta, hessian))
        return np.concatenate(changes)

    def _block_changes(self, theta: Float64, hessian: Float64, rows: slice) -> Float64:
        pulls, root = self.pulls(theta, rows)
        curvatures = root.transpose(0, 2, 1) @ root
        weight = np.minimum(self.weight[rows], 1.0)
        without_row = hessian - weight[:, None, None] * _MOST_LEVERAGE * curvatures
        pulls = weight[:, None] * pulls
        steps = np.linalg.solve(without_row, pulls[:, :, None])
        changes = self.basis[rows] @ steps
        return np.asarray(changes[:, :, 0])
