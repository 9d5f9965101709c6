"""The regressions inside the default: small, convex, with ridge penalties, solved to convergence by Newton's method.

Each one also returns approximate leave-one-out predictions: what it would predict for a row if that row had been left
out of the fit, by one Newton step from the solution. There are no folds and no random numbers, so scores that change by
rounding change the fit by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit, log_expit

from hcal.compiled import each
from hcal.numerics import Float64, FloatArray, IntArray, row_blocks, softmax
from hcal.solvers.families import MatrixScaling
from hcal.solvers.nll import Ridge, fit_nll, second_sums
from hcal.solvers.optimise import newton
from hcal.solvers.temperature import label_derivatives, logit_scale, solve_newton

#: The relative gain at which Newton stops: none that a float could show.
_EXACT = 1e-16
#: With more scores than this, the search for the temperature starts on a part of the rows.
_MANY_SCORES = 4_000_000
#: Numbers in a block of rows: few enough for a cache, and enough to keep a thread busy.
_BLOCK = 524_288


def _likelihood(scores: Float64, y: IntArray, weight: Float64) -> tuple[float, Float64]:
    """Return Σ w·NLL of scores (N, K), and the probabilities, which overwrite the scores."""
    scores -= scores.max(axis=1, keepdims=True)
    own = scores[np.arange(len(y)), y]
    np.exp(scores, out=scores)
    mass = scores.sum(axis=1)
    scores /= mass[:, None]
    return float(weight @ (np.log(mass) - own)), scores


class Temperature(NamedTuple):
    """Inverse temperature β, and its relative change if each row is left out, (N,)."""

    beta: float
    left_out: Float64


def fit_temperature(logits: FloatArray, y: IntArray, weight: Float64, price: float) -> Temperature:
    """Minimise Σ w·NLL(softmax(βz)) + price·(√(1 + ln²β) − 1): a factor e in β must gain about ``price`` nats.

    >>> z, y = np.array([[0.0, 2.0]] * 4000), np.array([1, 1, 1, 0] * 1000)
    >>> round(2 * fit_temperature(z, y, np.ones(4000), 0.0).beta, 6)  # ln 3
    1.098612
    """
    unit = logit_scale(logits)
    if unit == 0:
        return Temperature(1.0, np.zeros(len(y)))

    def derivatives(beta: float, every: int = 1) -> tuple[float, float]:
        """Return slope and curvature of the loss over every so many rows; the curvature is positive in ln β too."""
        w = every * weight[::every]
        _, first, second = label_derivatives(logits[::every], y[::every], beta, unit) @ w
        t = np.log(beta / unit)
        slope = first + price * t / (beta * np.sqrt(1 + t * t))
        return slope, second + price / (beta**2 * (1 + t * t) ** 1.5) + max(first, 0.0) / beta

    every = 1 + logits.size // _MANY_SCORES
    start = solve_newton(lambda beta: derivatives(beta, every)).beta if every > 1 else 1.0
    beta = solve_newton(derivatives, start).beta
    _, first, second = label_derivatives(logits, y, beta, unit)
    t = np.log(beta / unit)
    total = float(weight @ second) + price / (1 + t * t) ** 1.5 / beta**2
    share = np.minimum(weight, 1.0)
    return Temperature(beta / unit, share * first / (total - share * second + 1e-300) / beta)


class Logistic(NamedTuple):
    """log-odds = offset + design·theta + the term of the row's class."""

    theta: Float64  # (P,)
    terms: Float64  # (K,), or empty
    left_out: Float64  # (N,) the log-odds of each row by the fit without it


def fit_logistic(
    offset: Float64,
    design: Float64,
    hit: Float64,
    weight: Float64,
    ridge: Float64,
    group: IntArray | None = None,
    term_ridge: Float64 | None = None,
) -> Logistic:
    """Minimise Σ w·(log-loss of hits) + Σ ridge·θ² + Σ term_ridge·terms².

    Shapes: offset, hit in [0, 1], weight (N,); design (N, P); ridge (P,); group (N,), term_ridge (K,) or None.

    >>> fit_logistic(np.zeros(4), np.ones((4, 1)), np.array([1.0, 1, 1, 0]), np.ones(4), np.zeros(1)).theta.round(4)
    array([1.0986])
    """
    p = design.shape[1]
    terms = np.zeros(0) if term_ridge is None else term_ridge
    k, every = len(terms), np.concatenate([ridge, terms])

    def log_odds(theta: Float64) -> Float64:
        eta = offset + design @ theta[:p]
        return eta if group is None else eta + theta[p:][group]

    def loss(theta: Float64) -> tuple[float, Float64]:
        eta = log_odds(theta)
        value = float(
            -weight @ (hit * log_expit(eta) + (1 - hit) * log_expit(-eta)) + every @ theta**2
        )
        return value, expit(eta)

    def by_class(values: Float64) -> Float64:
        if group is None:
            return np.zeros(0)
        return np.asarray(np.bincount(group, weights=values, minlength=k), dtype=np.float64)

    b, d, factor = np.zeros((p, k)), terms, (np.eye(p), True)  # of the last step

    def direction(theta: Float64, q: Float64) -> tuple[Float64, Float64]:
        nonlocal b, d, factor
        pull = weight * (q - hit)
        gradient = np.concatenate([design.T @ pull, by_class(pull)]) + 2 * every * theta
        # The Hessian is [[A, B], [Bᵀ, D]] with D diagonal, so the class terms are eliminated first.
        curved = weight * q * (1 - q)
        d = by_class(curved) + 2 * terms
        b = np.stack([by_class(curved * column) for column in design.T]) / d  # (P, K)
        a = (design * curved[:, None]).T @ design - (b * d) @ b.T
        a[np.diag_indices(p)] += 2 * ridge
        factor = cho_factor(a + np.diag(1e-12 * (1 + a.diagonal())))
        first = cho_solve(factor, gradient[:p] - b @ gradient[p:])
        return gradient, np.concatenate([first, gradient[p:] / d - b.T @ first])

    solved = newton(loss, direction, np.zeros(p + k), tolerance=_EXACT)
    theta, q = solved.theta, solved.state
    eta = log_odds(theta)
    away = design if group is None else design - b.T[group]
    lever = np.einsum("np,pn->n", away, cho_solve(factor, away.T)) + (
        0.0 if group is None else 1 / d[group]
    )
    share = lever * np.minimum(weight, 1.0)
    return Logistic(
        theta[:p], theta[p:], eta + share * (q - hit) / np.maximum(1 - share * q * (1 - q), 1e-3)
    )


class Shares(NamedTuple):
    """The fit of P(class) ∝ exp(log_mass + bias − Σ slope·basis); ``left_out`` is the change of each row's scores."""

    slopes: Float64  # (J,)
    bias: Float64  # (K,)
    left_out: Float64  # (E, K)


def fit_shares(
    basis: Float64,
    log_mass: Float64,
    y: IntArray,
    weight: Float64,
    slope_ridge: float,
    bias_ridge: float,
) -> Shares:
    """Minimise Σ w·NLL + slope_ridge·|slopes − (1, 0, …)|² + bias_ridge·|bias|², by Newton and conjugate gradients.

    Shapes: basis (E, J, K), log_mass (E, K), y and weight (E,). With an infinite ``bias_ridge`` there are no biases.
    """
    n, j, k = basis.shape
    free = np.isfinite(bias_ridge)
    ridge = np.concatenate([np.full(j, slope_ridge), np.full(k, bias_ridge if free else 1.0)])
    start = np.concatenate([[1.0], np.zeros(j + k - 1)])

    def sum_blocks(work: Callable[[slice], Any]) -> Any:
        """Sum over blocks of rows that fit in the cache. Threads share them, so products avoid BLAS and its threads."""
        return sum(each(work, row_blocks((n, j * k), _BLOCK), events=basis.size))

    def moved(theta: Float64, b: slice) -> Float64:
        return np.asarray(theta[j:] - np.einsum("j,njk->nk", theta[:j], basis[b]))

    def back(pull: Float64, b: slice) -> Float64:
        return np.concatenate([-np.einsum("njk,nk->j", basis[b], pull), pull.sum(axis=0) * free])

    def probs(theta: Float64) -> tuple[float, Float64]:
        p = np.empty((n, k))

        def loss(b: slice) -> float:
            value, p[b] = _likelihood(moved(theta, b) + log_mass[b], y[b], weight[b])
            return value

        return sum_blocks(loss) + float(ridge @ (theta - start) ** 2), p

    diagonal = ridge  # of the last step's matrix

    def direction(theta: Float64, p: Float64) -> tuple[Float64, Float64]:
        nonlocal diagonal

        def slopes(b: slice) -> Float64:
            """Return the gradient and the diagonal of the matrix."""
            heavy, mean = p[b] * weight[b, None], np.einsum("njk,nk->nj", basis[b], p[b])
            curved = np.einsum("njk,nk->j", basis[b] ** 2, heavy) - weight[b] @ mean**2
            own = np.concatenate([curved, (heavy * (1 - p[b])).sum(axis=0)])
            heavy[np.arange(len(heavy)), y[b]] -= weight[b]
            return np.stack([back(heavy, b), own])

        def product(v: Float64) -> Float64:
            def of_block(b: slice) -> Float64:
                change = moved(v, b)
                change -= np.einsum("nk,nk->n", p[b], change)[:, None]
                return back(change * p[b] * weight[b, None], b)

            return np.asarray(sum_blocks(of_block) + 2 * ridge * v)

        gradient, diagonal = sum_blocks(slopes) + 2 * ridge * np.stack(
            [theta - start, np.ones(j + k)]
        )
        square = (j + k, j + k)
        matrix = LinearOperator(square, matvec=product, dtype=np.float64)
        nearly = LinearOperator(square, matvec=lambda v: v / diagonal, dtype=np.float64)
        return gradient, np.asarray(cg(matrix, gradient, rtol=1e-2, M=nearly)[0])

    solved = newton(probs, direction, start, tolerance=_EXACT)
    theta, p = solved.theta, solved.state
    # Biases are nearly independent, so the diagonal of the Hessian is enough here.
    lever = np.minimum(weight, 1.0)[:, None] * free / diagonal[j:]
    pull = p.copy()
    pull[np.arange(n), y] -= 1.0
    return Shares(theta[:j], theta[j:], lever * pull / (1 - lever * p * (1 - p)))


def fit_matrix(
    x: Float64, y: IntArray, weight: Float64, some: IntArray, strength: float
) -> tuple[Float64, Float64]:
    """Minimise Σ w·NLL(softmax(Wx + b)) + strength·(|diag W − 1|² + |b|² + (K − 1)·|off-diagonal W|²).

    Returns W and b side by side (K, K + 1), and the scores (S, K) that ``some`` rows (S,) would get if each had been
    left out of the fit.
    """
    k = x.shape[1]
    family = MatrixScaling(k)
    ridge = strength * np.concatenate([np.where(np.eye(k) > 0, 1.0, k - 1.0).ravel(), np.ones(k)])
    penalty = Ridge(ridge / weight.sum(), family.start)
    theta = fit_nll(family, x, y, weight, penalty=penalty, newton_gain=_EXACT).theta
    hessian = second_sums(family, theta, x, weight) + 2 * np.diag(ridge)
    order = np.arange(k * k).reshape(k, k), np.arange(k * k, k * (k + 1))[:, None]
    rows = np.concatenate(
        order, axis=1
    )  # the parameters of each class: its row of W, then its intercept
    inverse = np.linalg.inv(hessian)[rows.ravel()][:, rows.ravel()].reshape(k, k + 1, k, k + 1)
    solved = theta[rows]
    out = np.empty((len(some), k))
    for b in row_blocks((len(some), k * (k + 1)), 1_000_000):
        at, label, w = x[some[b]], y[some[b]], np.minimum(weight[some[b]], 1.0)
        at = np.concatenate([at, np.ones((len(at), 1))], axis=1)
        scores = at @ solved.T
        p = softmax(scores)
        lever = np.empty((len(at), k, k))
        for c in range(k):
            lever[:, c] = np.einsum(
                "nbv,nv->nb", (at @ inverse[c].reshape(k + 1, -1)).reshape(-1, k, k + 1), at
            )
        lever *= w[:, None, None]
        curved = p[:, :, None] * np.eye(k) - p[:, :, None] * p[:, None, :]
        p[np.arange(len(at)), label] -= 1.0
        out[b] = (
            scores + (lever @ np.linalg.solve(np.eye(k) - curved @ lever, p[:, :, None]))[:, :, 0]
        )
    return solved, out


def pool_weights(
    log_p: Float64, y: IntArray, weight: Float64, center: Float64, ridge: float
) -> Float64:
    """Return weights a ≥ 0 (J,) of least Σ w·NLL(softmax(Σ_j a_j log_p_j)) + ridge·|a − center|².

    ``log_p`` (J, N, K) are the members' log-probabilities of left-out rows, up to a constant in each row.

    >>> good = np.log([[0.8, 0.2], [0.2, 0.8]] * 50)
    >>> y = np.array([0, 1] * 40 + [1, 0] * 10)
    >>> pool_weights(np.stack([good, -good]), y, np.ones(100), np.full(2, 0.5), 1.0).round(1)
    array([1., 0.])
    """
    rows, j = np.arange(len(y)), len(log_p)
    own = log_p[:, rows, y]

    def probs(a: Float64) -> tuple[float, Float64]:
        value, p = _likelihood(np.tensordot(a, log_p, 1), y, weight)
        return value + ridge * float(((a - center) ** 2).sum()), p

    def direction(a: Float64, p: Float64) -> tuple[Float64, Float64]:
        mean = np.einsum("jnk,nk->jn", log_p, p)
        gradient = (mean - own) @ weight + 2 * ridge * (a - center)
        heavy = p * weight[:, None]
        second = np.array([[np.vdot(heavy * u, v) for u in log_p] for v in log_p])
        hessian = second - (mean * weight) @ mean.T + 2 * ridge * np.eye(j)
        free = (a > 0) | (gradient < 0)
        step = np.zeros(j)
        step[free] = np.linalg.pinv(hessian[np.ix_(free, free)], hermitian=True) @ gradient[free]
        return gradient, step

    return newton(probs, direction, center, tolerance=_EXACT, lowest=0.0).theta
