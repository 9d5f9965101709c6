"""The inequalities behind every certificate, as functions of arrays.

*Chernoff*: m independent Bernoulli marks with mean probability q have a mean of c or more (for c > q; or less, for
c < q) with probability at most exp(−m·kl(c, q)). *Bennett with Ville*: the running sum of independent centred marks
with total variance at most V ever reaches x with probability at most exp(−V·η(x/V)), η(u) = (1 + u)·log(1 + u) − u.
*Betting* (Waudby-Smith and Ramdas, JRSS-B 2024): if draws X_t from [0, 1] have the mean m and λ_t depends on the past
alone, the capital Π (1 + λ_t (X_t − m)) is a non-negative martingale; by Ville's inequality it ever reaches 1/α with
probability at most α, so a capital above 1/α refutes m and all smaller means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlog1py, xlogy

from hcal.metrics.scores import kl
from hcal.numerics import Float64 as Vector

_LARGEST = 0.75  # a bet never risks more than this share of the capital
_STEPS = 30  # Newton's method converges in six to eight steps; the cap only guards against rounding


def kl_upper(c: ArrayLike, limit: ArrayLike) -> Vector:
    """Return the largest q with kl(c, q) ≤ reach: Chernoff's upper confidence bound for a mean probability.

    ``c`` are observed frequencies of m independent marks, ``reach`` is log(1/failure)/m. Newton's method starts above
    the root and stays there, because kl is convex in q: stopping early makes the bound wider, never wrong.

    >>> kl_upper([0.0, 0.5, 1.0], np.log(20) / 100).round(4)
    array([0.0295, 0.6206, 1.    ])
    """
    c = np.asarray(c, np.float64)
    c, limit = np.broadcast_arrays(c, np.asarray(limit, np.float64))
    # Two lower bounds of kl give the start: 2(q − c)² (Pinsker), and −(1 − c)·log(1 − q) − entropy(c). With the first
    # alone the start could lie next to 1, where Newton's steps vanish.
    with np.errstate(divide="ignore", invalid="ignore"):
        negative_entropy = xlogy(c, c) + xlog1py(1 - c, -c)
        q = -np.expm1((negative_entropy - limit) / (1 - c))
    pinsker = c + np.sqrt(limit / 2)
    q = np.minimum(np.fmin(q, pinsker), np.nextafter(1.0, 0))
    for _ in range(_STEPS):
        above = q - c
        excess = kl(c, q) - limit
        # At the root, and where no row bounds q, there is nothing to correct.
        falling = (above > 0) & (excess > 0)
        slope = excess * q * (1 - q)
        step = np.divide(slope, above, out=np.zeros(q.shape), where=falling)
        q = np.maximum(q - step, c)
        if not (step > 1e-12).any():
            break
    return np.where(q >= np.nextafter(1.0, 0), 1.0, q)


def kl_interval(c: ArrayLike, limit: ArrayLike) -> tuple[Vector, Vector]:
    """Return the ends of {q : kl(c, q) ≤ reach}: Chernoff's interval of a mean probability from m marks.

    Each side fails with probability at most exp(−m·reach).

    >>> low, high = kl_interval([0.9], np.log(40) / 200)
    >>> low.round(4), high.round(4)
    (array([0.8328]), array([0.9478]))
    """
    c = np.asarray(c, dtype=np.float64)
    below, high = kl_upper(np.stack([1 - c, c]), limit)
    return 1 - below, high


def largest_variance(low: ArrayLike, high: ArrayLike) -> Vector:
    """Return the largest Bernoulli variance q(1 − q) for q in [low, high]: at ½ if inside, else at the nearer end.

    >>> largest_variance([0.1, 0.4], [0.2, 0.7])
    array([0.16, 0.25])
    """
    nearest = np.clip(0.5, np.asarray(low, np.float64), np.asarray(high, np.float64))
    return np.asarray(nearest * (1 - nearest))


def bennett(variance: ArrayLike, log_failure: float) -> Vector:
    """Return the least x with V·η(x/V) ≥ log_failure, η(u) = (1 + u)·log(1 + u) − u: Bennett's inequality inverted.

    Assumes independent centred variables of at most 1, with variances that sum to at most V (``variance``). With
    ``log_failure`` = log(sides / failure), their running sum stays within x at all times but with that probability.

    >>> bennett([0.0, 100.0], np.log(40)).round(3)
    array([ 0.   , 28.366])
    """
    v = np.asarray(variance, dtype=np.float64)
    safe = np.maximum(v, 1e-12)
    # Start at Bernstein's bound, which is weaker and so lies above; η is convex, so Newton descends to the root.
    x = log_failure / 3 + np.sqrt((log_failure / 3) ** 2 + 2 * safe * log_failure)
    for _ in range(_STEPS):
        u = x / safe
        log_u = np.log1p(u)
        excess = safe * ((1 + u) * log_u - u) - log_failure
        step = excess / log_u
        x = x - np.maximum(step, 0.0)
        if not (step > 1e-10 * x).any():
            break
    return np.where(v <= 0, 0.0, x)


@dataclass(frozen=True)
class Gain:
    """A confidence interval of the gain over a baseline, in Brier score (mean over rows, summed over classes)."""

    before: float  # Brier scores of the baseline and of the predictor on these rows
    after: float
    at_least: float  # interval of the population's mean improvement
    at_most: float


def certify_gain(before: Vector, after: Vector, failure: float, random_state: int = 0) -> Gain:
    """Return a confidence interval of the population's mean improvement, from the Brier scores (N,) of each row.

    The betting bound :func:`lower_mean` is applied to both sides, each with half of the failure probability. It
    assumes independent rows; scores lie in [0, 2]. Rows are taken in a random order, because a file sorted by
    result would make the bets foresee it.

    >>> rng = np.random.default_rng(0)
    >>> gain = certify_gain(rng.uniform(0, 1, 2000), rng.uniform(0, 0.5, 2000), 0.05)
    >>> 0.2 < gain.at_least < 0.25 < gain.at_most < 0.3
    True
    """
    order = np.random.default_rng(random_state).permutation(len(before))
    x = ((before - after)[order] + 2) / 4  # differences lie in [−2, 2]
    low = lower_mean(x, failure / 2)
    high = 1 - lower_mean(1 - x, failure / 2)
    mean_before = float(before.mean())
    mean_after = float(after.mean())
    return Gain(mean_before, mean_after, 4 * low - 2, 4 * high - 2)


def lower_mean(x: Vector, failure: float) -> float:
    """Return a lower confidence bound of the mean of independent draws x (n,) from [0, 1], by betting.

    The largest mean m that the capital refutes (see the top of this module). The order of the draws must not depend
    on their values. The bound exceeds the true mean with probability at most ``failure``.

    >>> round(lower_mean(np.tile([0.4, 0.6], 500), 0.05), 5)
    0.49228
    """
    # Each bet sqrt(2·log(1/α)/(n·variance)) takes the variance of the rows before it, so it does not see its own row.
    n, target = len(x), np.log(1 / failure)
    seen = np.arange(1, n + 1)
    mean = (0.5 + np.cumsum(x)) / (seen + 1)
    spread = (0.25 + np.cumsum((x - mean) ** 2)) / (seen + 1)
    bets = np.sqrt(2 * target / (n * np.append(0.25, spread[:-1])))
    low, high = 0.0, 1.0
    for _ in range(40):
        m = (low + high) / 2
        capital = np.cumsum(np.log1p(np.minimum(bets, _LARGEST / m) * (x - m)))
        low, high = (m, high) if capital.max() >= target else (low, m)
    return low
