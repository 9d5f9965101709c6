"""Stage 2, *events*: the top-label event and the events below it are calibrated apart.

P(y = top | x) gets a logistic model of its own, with a term for every predicted class; the classes below
the top share the rest by P(y = k | y ≠ top, x). The log-likelihood is the sum of the two, so each is fitted
alone, and what keeps the argmax (stage 3) does not disturb the calibration of the top-label event.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit

from hcal.calibrators.h.rows import Float64, Scaler, few, fit_scaler, weighted_quantile
from hcal.numerics import FloatArray, IntArray
from hcal.solvers.lbfgs import Loss, lbfgs

if TYPE_CHECKING:
    from torch import Tensor

_HINGES = 8
# Ridge in units of 1/N: on the curve and features, and, times K, on the terms of single classes.
_RIDGE, _CLASS_RIDGE = 1.0, 0.1


class Curve(NamedTuple):
    """A correction of log-odds: o + c₀ + a piecewise linear function of o + features·c + a class term."""

    knots: Float64
    scaler: Float64  # mean, deviation, low, high of the log-odds
    weights: Float64  # c₀, the curve, then the features
    classes: Float64  # one term a predicted class; zeros where classes may not be seen

    def __call__(self, odds: Float64, x: Float64, top: IntArray) -> Float64:
        """Return corrected log-odds of shape (N,)."""
        design = _design(odds, x, self.knots, Scaler(*self.scaler))
        return np.asarray(odds + design @ self.weights + self.classes[top])


class Rest(NamedTuple):
    """How classes below the top share what the top leaves: softmax(b − κ·margin)."""

    kappa: Float64
    bias: Float64

    def __call__(self, margin: FloatArray, top: IntArray) -> FloatArray:
        """Return P(k | not top) of shape (N, K); 0 at the top class."""
        scores = margin * margin.dtype.type(-self.kappa)
        scores += self.bias.astype(margin.dtype)
        scores[np.arange(len(top)), top] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        return scores


def top_odds(margin: FloatArray, top: IntArray) -> Float64:
    """Return the log-odds of the top class under softmax(−margin).

    >>> top_odds(np.array([[0.0, 0.0, 0.0]]), np.array([0])).round(4)
    array([-0.6931])
    """
    e = np.exp(-margin)
    e[np.arange(len(top)), top] = 0.0  # left out of the sum, not taken from it: 1 − 1 would lose all digits
    below = e.sum(axis=1).astype(np.float64)
    return np.asarray(-np.log(np.maximum(below, np.finfo(e.dtype).tiny)))


def fit_curve(
    odds: Float64,
    x: Float64,
    top: IntArray,
    hit: Float64,
    weight: Float64,
    n_classes: int,
    *,
    classes: bool,
    enough: float = 1000.0,
) -> Curve:
    """Fit the log-odds of the top-label event by penalised logistic regression around ``odds``.

    To correct nothing is the prior. Features ``x`` (N, F) are standardised, F may be 0; the other arrays are
    (N,). With ``classes``, predicted classes get terms of their own; below ``enough`` rows the ridge grows.

    >>> odds, hit = np.full(1000, 2.0), np.array([1.0, 0.0] * 500)
    >>> none, top = np.zeros((1000, 0)), np.zeros(1000, dtype=int)
    >>> curve = fit_curve(odds, none, top, hit, np.ones(1000), 2, classes=False)
    >>> bool(abs(curve(odds, none, top)).max() < 1e-2)
    True
    """
    shape = curve_shape(odds, weight)
    design = shape.design(odds, x)
    sums = partial(curve_sums, odds=odds, design=design, top=top, hit=hit, weight=weight, classes=classes)
    hits = float(weight @ hit), float(weight @ (1.0 - hit))
    return solve_curve(shape, sums, hits, design.shape[1], n_classes, enough)


class CurveShape(NamedTuple):
    """Where a curve bends: what it needs of the distribution of the log-odds."""

    scaler: Scaler
    knots: Float64

    def design(self, odds: Float64, x: Float64) -> Float64:
        """Return the columns (N, P) that a curve is linear in."""
        return _design(odds, x, self.knots, self.scaler)


def curve_shape(odds: Float64, weight: Float64) -> CurveShape:
    """Return the shape for log-odds (N,) with weights (N,).

    >>> curve_shape(np.linspace(-1, 1, 100), np.ones(100)).knots.shape
    (8,)
    """
    scaler = fit_scaler(odds[:, None], weight)
    knots = weighted_quantile(scaler(odds[:, None]), weight, np.linspace(0.03, 0.97, _HINGES))[:, 0]
    return CurveShape(scaler, knots)


def curve_sums(
    theta: Float64,
    *,
    odds: Float64,
    design: Float64,
    top: IntArray,
    hit: Float64,
    weight: Float64,
    classes: bool,
) -> tuple[float, Float64]:
    """Return the summed NLL of hits under a curve, and its gradient; they add up over rows."""
    n = design.shape[1]
    eta = odds + design @ theta[:n] + theta[n:][top]
    pull = weight * (expit(eta) - hit)
    value = float(weight @ (np.logaddexp(0, eta) - hit * eta))
    k = len(theta) - n
    by_class = np.bincount(top, weights=pull, minlength=k) if classes else np.zeros(k)
    return value, np.concatenate([design.T @ pull, by_class])


def solve_curve(
    shape: CurveShape,
    sums: Loss,
    hits: tuple[float, float],
    width: int,
    n_classes: int,
    enough: float,
) -> Curve:
    """Return the curve of least penalised NLL, given its sums and the weights of hits and misses."""
    total = sum(hits)
    # The constant is all but free: a small ridge stops it where every label is right, or every one wrong.
    ridge = np.concatenate([[0.01], np.full(width - 1, _RIDGE), np.full(n_classes, _CLASS_RIDGE * n_classes)])
    ridge *= few(total, min(hits), enough) / total
    loss = _penalised(sums, ridge, total)
    theta = lbfgs(loss, np.zeros(width + n_classes), max_iterations=300, tolerance=1e-7, gain=1e-11).theta
    return Curve(shape.knots, np.array(shape.scaler)[:, 0], theta[:width], theta[width:])


def _design(odds: Float64, x: Float64, knots: Float64, scaler: Scaler) -> Float64:
    z = np.clip((odds - scaler.mean) / scaler.deviation, scaler.low, scaler.high)
    hinges = np.maximum(z[:, None] - knots, 0.0)
    return np.concatenate([np.ones((len(z), 1)), z[:, None], hinges, x], axis=1)


def fit_rest(
    margin: Float64 | Tensor, top: IntArray, y: IntArray, weight: Float64, total: float, *, classes: bool
) -> Rest:
    """Fit the classes below the top on the E rows that the top class lost, y ≠ top.

    ``margin`` (E, K) are their refined margins, an array or a tensor; the ridge is in units of ``total``, the
    weight of all N rows. With ``classes``, each gets a bias.

    >>> rest = fit_rest(np.zeros((0, 3)), *np.zeros((2, 0), dtype=int), np.zeros(0), 5.0, classes=True)
    >>> rest(np.array([[0.0, 1.0, 1.0]]), np.array([0]))
    array([[0. , 0.5, 0.5]])
    """
    n, k = margin.shape
    if n == 0 or k == 2:
        return Rest(np.array(1.0), np.zeros(k))
    if not isinstance(margin, np.ndarray):
        from hcal.calibrators.h._tensors import RestSums

        return solve_rest(RestSums(margin, top, y, weight, classes=classes), total, k)
    return solve_rest(
        partial(rest_sums, margin=margin, top=top, y=y, weight=weight, classes=classes), total, k
    )


def rest_sums(
    theta: Float64, *, margin: Float64, top: IntArray, y: IntArray, weight: Float64, classes: bool
) -> tuple[float, Float64]:
    """Return the summed NLL of the classes below the top, and its gradient; they add up over rows."""
    rows, kappa = np.arange(len(y)), np.exp(theta[0])
    scores = (theta[1:] if classes else 0.0) - kappa * margin
    scores[rows, top] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    own = scores[rows, y]
    pull = np.exp(scores)
    mass = pull.sum(axis=1)
    value = float(weight @ (np.log(mass) - own))
    pull *= (weight / mass)[:, None]
    pull[rows, y] -= weight
    by_kappa = -kappa * np.einsum("nk,nk->", pull, margin)
    by_class = pull.sum(axis=0) if classes else np.zeros(len(theta) - 1)
    return value, np.concatenate([[by_kappa], by_class])


def _penalised(sums: Loss, ridge: Float64, total: float) -> Loss:
    """Return θ ↦ mean NLL + Σ ridge·θ² and its gradient."""

    def loss(theta: Float64) -> tuple[float, Float64]:
        value, gradient = sums(theta)
        return value / total + float(ridge @ theta**2), gradient / total + 2 * ridge * theta

    return loss


def solve_rest(sums: Loss, total: float, k: int) -> Rest:
    """Return the shares of least penalised NLL, given its sums and the weight of all rows."""
    ridge = np.concatenate([[_RIDGE], np.full(k, _CLASS_RIDGE * k)]) * few(total) / total
    loss = _penalised(sums, ridge, total)
    theta = lbfgs(loss, np.zeros(1 + k), max_iterations=100, tolerance=1e-7, gain=1e-10).theta
    return Rest(np.exp(theta[0]), theta[1:])
