"""One-vs-rest methods on the log-odds: curves from ln p_k − ln(1 − p_k) to calibrated log-odds.

With two classes there is one event, "class 1", and its complement. With more there are K events, and their
probabilities are divided by their sum. The curves are fitted by small logistic regressions with soft targets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from operator import attrgetter

import numpy as np

from hcal.maps.base import Map
from hcal.methods._curves import columns
from hcal.numerics import Float64, IntArray
from hcal.solvers.regression import LogisticFit, fit_logistic
from hcal.xp import Array, log_sigmoid, namespace

#: Learns the parameters of one curve from log-odds, indicators [y = k] and weights (N,); says whether it converged.
FitEvent = Callable[[Float64, Float64, Float64 | None], tuple[Float64, bool]]


class OddsMap(Map):
    """A curve for the log-odds of each of E events (one for two classes, else K). Subclasses define ``curved``."""

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
        """Raise a ValueError that names a field that is not as declared."""
        n_classes = sizes.get("K")
        if n_classes is not None:
            n_events = 1 if n_classes == 2 else n_classes
            sizes = {**sizes, "E": n_events}
        super().check_fields(sizes)


def log_odds(x: Array) -> Array:
    """Return ln p_k − ln(1 − p_k) of every class, accurate also for p_k near 1; logits (N, K) → (N, K).

    >>> log_odds(np.array([[0.0, 1000.0]]))
    array([[-1000.,  1000.]])
    """
    xp = namespace(x)
    top = xp.argmax(x)
    largest = xp.row_max(x)
    below = x - largest
    mass = xp.exp(below)
    others = xp.put_along(xp.row_sum(mass) - mass, top, 1.0)
    odds = below - xp.log(others)

    # 1 − p of the top class is the sum of the others; subtracting would lose all digits.
    rest = xp.log_sum_exp(xp.put_along(x + 0.0, top, -np.inf))
    return xp.put_along(odds, top, largest - rest)


def expit(x: Array) -> Array:
    """Return 1/(1 + e^−x), without overflow on either side.

    >>> expit(np.array([-1000.0, 0.0, 1000.0]))
    array([0. , 0.5, 1. ])
    """
    return namespace(x).exp(log_sigmoid(x))


def events(odds: Array) -> Array:
    """Return the columns that get a curve: only class 1 if there are two classes, else all.

    >>> events(np.zeros((5, 2))).shape
    (5, 1)
    """
    return odds[..., 1:] if odds.shape[-1] == 2 else odds


def event_labels(y: IntArray, n_classes: int) -> IntArray:
    """Return the index (N,) of the event in :func:`events` that happened, or a number past the last for none.

    If all rows are of one class nothing can be learned, and no row gets an event.

    >>> event_labels(np.array([0, 1]), 2), event_labels(np.array([2, 2]), 3)
    (array([1, 0]), array([3, 3]))
    """
    if y.min() == y.max():
        return np.full_like(y, n_classes)
    return 1 - y if n_classes == 2 else y


def fit_events(
    odds: Float64, y: IntArray, weight: Float64 | None, fit_one: FitEvent, identity: Float64
) -> tuple[Float64, bool]:
    """Fit the curve of every event; a class without rows, or the only one that has any, gets the identity.

    ``identity`` (P,) are the parameters that leave log-odds (N, K) unchanged. Returned are the parameters (K, P), or
    (1, P) for two classes, and whether all fits converged.

    >>> odds, y = np.array([[0.0, 0.0]]), np.array([1])
    >>> fit_events(odds, y, None, lambda o, hit, w: (np.zeros(2), True), np.array([0.0, 1.0]))
    (array([[0., 1.]]), True)
    """
    event_odds = events(odds)
    labels = event_labels(y, odds.shape[1])
    parameters = np.tile(identity, (event_odds.shape[1], 1)).astype(np.float64)
    all_converged = True
    for k, column in columns(event_odds):
        hit = (labels == k).astype(np.float64)
        if hit.any():
            parameters[k], converged = fit_one(column, hit, weight)
            all_converged &= converged
    return parameters, all_converged


def platt_targets(hit: Float64, weight: Float64 | None) -> Float64:
    """Return Platt's targets: (n₊ + 1)/(n₊ + 2) for a hit, 1/(n₋ + 2) for a miss.

    They follow from a uniform prior on each rate, and keep the fit finite for separable data.

    >>> platt_targets(np.array([1.0, 0.0, 0.0]), None)
    array([0.66666667, 0.25      , 0.25      ])
    """
    mass = np.ones(len(hit)) if weight is None else weight
    hits = float(mass @ hit)
    misses = float(mass @ (1 - hit))
    return np.where(hit > 0, (hits + 1) / (hits + 2), 1 / (misses + 2))


def increasing_logistic(design: Float64, target: Float64, weight: Float64 | None) -> LogisticFit:
    """Return a logistic regression with all coefficients but the intercept at least 0.

    All subsets of coefficients at 0 are tried; the best solution whose other coefficients are not negative is taken.
    The first column of the design (N, P) is the intercept.

    >>> design = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> increasing_logistic(design, np.array([0.75, 0.25]), np.ones(2)).theta.round(6)
    array([0., 0.])
    """
    size = design.shape[1]
    candidates = []
    for kept in range(size - 1, -1, -1):
        for chosen in combinations(range(1, size), kept):
            used = [0, *chosen]
            solved = fit_logistic(design[:, used], target, weight)
            if (solved.theta[1:] >= 0).all():
                theta = np.zeros(size)
                theta[used] = solved.theta
                candidates.append(replace(solved, theta=theta))
        if kept == size - 1 and candidates:  # no bound is active
            break
    return min(candidates, key=attrgetter("value"))
