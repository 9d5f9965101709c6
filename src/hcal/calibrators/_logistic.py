"""Small penalised logistic regressions with soft targets: what the curves of the log-odds are fitted by."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.special import expit

from hcal.numerics import Float64
from hcal.solvers.optimise import Solution
from hcal.solvers.optimise import newton


def platt_targets(hit: Float64, weight: Float64 | None) -> Float64:
    """Return Platt's targets: (n₊ + 1)/(n₊ + 2) for a hit, 1/(n₋ + 2) for a miss.

    They are what a uniform prior on each rate makes of the labels, and keep separable data from running off.

    >>> platt_targets(np.array([1.0, 0.0, 0.0]), None)
    array([0.66666667, 0.25      , 0.25      ])
    """
    mass = np.ones(len(hit)) if weight is None else weight
    hits, misses = float(mass @ hit), float(mass @ (1 - hit))
    return np.where(hit > 0, (hits + 1) / (hits + 2), 1 / (misses + 2))


def logistic(
    design: Float64,
    target: Float64,
    weight: Float64,
    *,
    penalty: Float64 | None = None,
    start: Float64 | None = None,
) -> Solution:
    """Minimise Σ w [ln(1 + e^η) − t η] / Σ w + θᵀ penalty θ with η = design · θ.

    Shapes: design (N, P), target, weight (N,), penalty (P, P), start (P,).

    >>> solved = logistic(np.ones((4, 1)), np.array([1.0, 1.0, 1.0, 0.0]), np.ones(4))
    >>> round(float(expit(solved.theta[0])), 6)
    0.75
    """
    share = weight / weight.sum()
    extra = np.zeros((design.shape[1],) * 2) if penalty is None else penalty

    def loss(theta: Float64) -> tuple[float, Float64]:
        eta = design @ theta
        value = float(share @ (np.logaddexp(0, eta) - target * eta) + theta @ extra @ theta)
        return value, design.T @ (share * (expit(eta) - target)) + 2 * extra @ theta

    def hessian(theta: Float64) -> Float64:
        q = expit(design @ theta)
        curved: Float64 = (design * (share * q * (1 - q))[:, None]).T @ design + 2 * extra
        return curved

    return newton(loss, hessian, np.zeros(design.shape[1]) if start is None else start)


def increasing_logistic(design: Float64, target: Float64, weight: Float64) -> Solution:
    """As :func:`logistic`, with all coefficients but the first at least 0.

    Convex with few bounds: the best of the solutions with some coefficients at 0 that keep the others there.

    The first column of the design (N, P) is the intercept.

    >>> design = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> increasing_logistic(design, np.array([0.75, 0.25]), np.ones(2)).theta.round(6)
    array([0., 0.])
    """
    size = design.shape[1]
    best: Solution | None = None
    for kept in range(size - 1, -1, -1):
        for chosen in combinations(range(1, size), kept):
            columns = [0, *chosen]
            solved = logistic(design[:, columns], target, weight)
            if (solved.theta[1:] < 0).any() or (best is not None and solved.value >= best.value):
                continue
            theta = np.zeros(size)
            theta[columns] = solved.theta
            best = Solution(theta, solved.value, solved.converged, solved.message, solved.iterations)
        if best is not None and kept == size - 1:
            return best
    assert best is not None  # the intercept alone has no bound
    return best
