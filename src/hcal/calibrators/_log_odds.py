"""Curves of the log-odds, one against the rest: ln p_k − ln(1 − p_k) in, the calibrated log-odds out.

Two classes are one event, P(class 1), and its complement; more are K events whose probabilities are divided by
their sum. What fits the curves are small penalised logistic regressions with soft targets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np

from hcal.calibrators._curves import columns
from hcal.maps.base import Map
from hcal.numerics import Float64, IntArray
from hcal.solvers.optimise import Solution, newton
from hcal.xp import Array, namespace

#: Learns the numbers of one curve from log-odds, marks [y = k] and weights (N,), and whether it converged.
FitEvent = Callable[[Float64, Float64, Float64 | None], tuple[Float64, bool]]


class OddsMap(Map):
    """A curve of the log-odds of each of E events: one for two classes, else K. Subclasses write ``curved``."""

    @abstractmethod
    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K)."""
        xp = namespace(x)
        curved = self.curved(events(log_odds(x)))
        if x.shape[-1] == 2:
            return xp.log_softmax(xp.concat([0 * curved, curved]))
        return xp.log_softmax(log_sigmoid(curved))

    def check_fields(self, sizes: Mapping[str, int]) -> None:
        classes = sizes.get("K")
        super().check_fields(sizes if classes is None else {**sizes, "E": 1 if classes == 2 else classes})


def log_odds(x: Array) -> Array:
    """Return ln p_k − ln(1 − p_k) of every class, without loss where p_k is near 1; logits (N, K) → (N, K).

    >>> log_odds(np.array([[0.0, 1000.0]]))
    array([[-1000.,  1000.]])
    """
    xp = namespace(x)
    top, largest = xp.argmax(x), xp.row_max(x)
    # The rest of the top class is summed from the others; subtracting would leave no digit.
    rest = xp.log_sum_exp(xp.replaced(x, top, -np.inf))
    p = xp.exp(x - largest)
    others = xp.replaced(xp.row_sum(p) - p, top, 1.0)
    return xp.put_along(x - largest - xp.log(others), top, largest - rest)


def log_sigmoid(x: Array) -> Array:
    """Return −ln(1 + e^−x), without overflow on either side.

    >>> log_sigmoid(np.array([-1000.0, 1000.0]))
    array([-1000.,     0.])
    """
    xp = namespace(x)
    return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))


def expit(x: Array) -> Array:
    """Return 1/(1 + e^−x), without overflow on either side.

    >>> expit(np.array([-1000.0, 0.0, 1000.0]))
    array([0. , 0.5, 1. ])
    """
    xp = namespace(x)
    return xp.exp(xp.minimum(x, 0.0)) / (1 + xp.exp(-xp.abs(x)))


def events(odds: Array) -> Array:
    """Return the columns that get a curve: class 1 of two, all of more.

    >>> events(np.zeros((5, 2))).shape
    (5, 1)
    """
    return odds[..., 1:] if odds.shape[-1] == 2 else odds


def fit_events(
    odds: Float64, y: IntArray, weight: Float64 | None, fit_one: FitEvent, identity: Float64
) -> tuple[Float64, bool]:
    """Fit the numbers of every curve; a class without rows, or the only one that has any, gets the identity.

    ``identity`` (P,) are the numbers that leave log-odds (N, K) as they are. The answer has shape (K, P), or
    (1, P) for two classes; beside it, whether all fits converged.

    >>> odds, y = np.array([[0.0, 0.0]]), np.array([1])
    >>> fit_events(odds, y, None, lambda o, hit, w: (np.zeros(2), True), np.array([0.0, 1.0]))
    (array([[0., 1.]]), True)
    """
    used = events(odds)
    first = odds.shape[1] - used.shape[1]
    found = np.tile(identity, (used.shape[1], 1)).astype(np.float64)
    mass = np.bincount(y, weights=weight, minlength=odds.shape[1])
    converged = True
    if np.count_nonzero(mass) > 1:
        for column, o in columns(used):
            if mass[column + first] > 0:
                found[column], well = fit_one(o, (y == column + first).astype(np.float64), weight)
                converged &= well
    return found, converged


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
