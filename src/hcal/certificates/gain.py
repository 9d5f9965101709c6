"""How much better than a baseline, at least: a bound on the mean difference of Brier scores by betting.

The capital K(m) = Π (1 + λ_t (X_t − m)) of a gambler who bets that the mean of X exceeds m is a martingale if
the mean is m, whatever the distribution on [0, 1], as long as λ_t depends on the past alone. A capital above
1/α refutes m; all smaller m are refuted with it, because K falls in m (Waudby-Smith and Ramdas, JRSS-B 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcal.metrics.sample import Vector

_LARGEST = 0.75  # the most that is ever at stake, as a share of the capital


@dataclass(frozen=True)
class Gain:
    """The certified gain over a baseline, in Brier score (mean over rows of the sum over classes)."""

    before: float  # Brier scores of the baseline and of the predictor on these rows
    after: float
    at_least: float  # interval of the population's mean improvement
    at_most: float


def certify_gain(before: Vector, after: Vector, failure: float, random_state: int = 0) -> Gain:
    """Bound the mean improvement from two Brier scores a row.

    Scores (N,) lie in [0, 2]; each side has half of the failure. Rows are dealt in a random order: a sorted
    file would tell the gambler what comes.

    >>> rng = np.random.default_rng(0)
    >>> gain = certify_gain(rng.uniform(0, 1, 2000), rng.uniform(0, 0.5, 2000), 0.05)
    >>> 0.2 < gain.at_least < 0.25 < gain.at_most < 0.3
    True
    """
    order = np.random.default_rng(random_state).permutation(len(before))
    x = ((before - after)[order] + 2) / 4  # differences lie in [−2, 2]
    low = lower_mean(x, failure / 2)
    high = 1 - lower_mean(1 - x, failure / 2)
    return Gain(float(before.mean()), float(after.mean()), 4 * low - 2, 4 * high - 2)


def lower_mean(x: Vector, failure: float) -> float:
    """Return a lower confidence bound of the mean of independent draws from [0, 1].

    They stand in an order that does not depend on the values.

    >>> round(lower_mean(np.tile([0.4, 0.6], 500), 0.05), 3)
    0.492
    """
    bets = _bets(x, failure)
    target = np.log(1 / failure)
    low, high = 0.0, 1.0
    for _ in range(40):
        m = (low + high) / 2
        stake = np.minimum(bets, _LARGEST / m)
        capital = np.cumsum(np.log1p(stake * (x - m)))
        low, high = (m, high) if capital.max() >= target else (low, m)
    return low


def _bets(x: Vector, failure: float) -> Vector:
    """Predictable bets: sqrt(2·log(1/α)/(n·variance so far)), the variance from the rows before."""
    n = len(x)
    seen = np.arange(1, n + 1)
    mean = (0.5 + np.cumsum(x)) / (seen + 1)
    spread = (0.25 + np.cumsum((x - mean) ** 2)) / (seen + 1)
    before = np.concatenate([[0.25], spread[:-1]])
    return np.asarray(np.sqrt(2 * np.log(1 / failure) / (n * before)))
