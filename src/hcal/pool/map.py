"""What the default learns, as objects of arrays: one formula for three and more classes, a table for two.

A row of scores goes through four steps. Its margins below the top score are divided by one temperature. Three members
turn the margins into scores of the classes, and a weighted sum joins them. A curve corrects the probability of the top
class. If the predicted class is to stay, a class that would overtake it is set equal to it.

The symbols are those of docs/default.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hcal.maps.base import STEEP, Map, array, map_type, option
from hcal.xp import Array, log_sigmoid, namespace

if TYPE_CHECKING:
    from torch import nn

#: Classes whose margin is below this, at the fitted temperature, share the top, and a smaller margin gives a larger
#: share. So nothing changes when rounding breaks a tie one way or the other.
TIE = 0.02
#: Margins where the slope of the classes below the top may change.
BENDS = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0)
#: Is added to standard deviations, which are divisors: 0 where all rows have one value.
LEAST_DEVIATION = 1e-6
#: The top-versus-rest member gives no class less than e^−FLOOR, so that one row cannot decide the weights of all.
FLOOR = 30.0
#: How often the classes that overtake the top are lowered; each round lowers fewer of them.
_ROUNDS = 4


@map_type
class Margins(Map):
    """How far each class of a row is below the top, at one temperature."""

    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)
    sharpness: Array = array("how fast the share of the top falls with the margin", low=0.0)
    cap: Array = array("margins count up to it in temperature scaling and matrix scaling", low=0.0)
    spread: Array = array("mean, deviation, low and high of ln(1 + mean margin)", 4)

    def __call__(self, x: Array) -> Array:
        """Return the margins (N, K) of logits (N, K)."""
        return self.beta * (namespace(x).row_max(x) - x)

    def tempered(self, margin: Array) -> Array:
        """Return the scores of temperature scaling: minus the margins, which count up to the cap."""
        return -namespace(margin).minimum(margin, self.cap)

    def shares(self, margin: Array) -> Array:
        """Return the share of the top that each class has, (N, K)."""
        return top_shares(margin, self.sharpness)

    def spread_of(self, margin: Array) -> Array:
        """Return how widely the scores of each row are spread, (N, 1), in standard deviations."""
        mean, deviation, low, high = (self.spread[i] for i in range(4))
        standard = (log_mean_margin(margin) - mean) / deviation
        return namespace(margin).clip(standard, low, high)

    def check(self) -> None:
        """Raise a ValueError where fields do not fit each other."""
        if self.spread[1] < LEAST_DEVIATION:
            raise ValueError(f"'spread' must hold a deviation of at least {LEAST_DEVIATION:g}")


@map_type
class Curve(Map):
    """A piecewise linear function of one number, constant outside the range of the calibration rows."""

    low: Array = array("values below count as this")
    high: Array = array("values above count as this")
    knots: Array = array("where the slope changes", "H")
    weights: Array = array("constant, slope, and the change of slope at each knot", "H+2")

    @classmethod
    def zero(cls) -> Curve:
        """Return the curve that is 0 everywhere."""
        ends = np.array(0.0)
        return cls(low=ends, high=ends, knots=np.zeros(0), weights=np.zeros(2))

    def __call__(self, x: Array) -> Array:
        """Return the function at x (N, 1)."""
        xp = namespace(x)
        inside = xp.clip(x, self.low, self.high)
        bent = xp.maximum(inside - self.knots, 0.0) @ self.weights[2:, None]
        return self.weights[0] + self.weights[1] * inside + bent


@map_type
class TopVersusRestMap(Map):
    """How sure the top class is, and how the others share what it leaves."""

    slopes: Array = array(
        "of the rest in the margin: slope, its change at each bend, and with the spread of the row",
        len(BENDS) + 2,
    )
    curve: Curve

    def __call__(  # type: ignore[override]
        self, margin: Array, shares: Array, spread: Array
    ) -> Array:
        """Return ln P (N, K) from margins and shares of the top (N, K), and the spread (N, 1)."""
        rest = self.rest(margin, spread)
        log_mass = rest_mass(rest, shares)
        return join_top(self.curve(-log_mass) - log_mass, rest - log_mass, shares)

    def rest(self, margin: Array, spread: Array) -> Array:
        """Return scores (N, K) of the classes below the top: a falling bent line of the margin."""
        slope = self.slopes[0] + self.slopes[-1] * spread
        return -slope * margin - namespace(margin).bent(margin, BENDS, self.slopes[1:-1])


@map_type
class TopCurve(Map):
    """What is added to the log-odds of the top at the end."""

    curve: Curve
    by_spread: Array = array("what the spread of the row adds, for each standard deviation")

    def __call__(self, odds: Array, spread: Array) -> Array:  # type: ignore[override]
        """Return what is added to the log-odds (N, 1) of rows whose spread is (N, 1)."""
        return self.curve(odds) + self.by_spread * spread


@map_type
class PoolMap(Map):
    """The default of three and more classes."""

    float32_safe = True
    kernel_keeps_argmax = True
    margins: Margins
    top: TopVersusRestMap
    matrix: Array = array("matrix of matrix scaling, and its intercepts", "K", "K+1", optional=True)
    weights: Array = array("of temperature scaling, top-versus-rest and matrix scaling", 3, low=0.0)
    last: TopCurve
    keep: bool = option("whether the predicted class stays", (True, False))

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        margin = self.margins(x)
        spread = self.margins.spread_of(margin)
        shares = self.margins.shares(margin)

        scores = self.pooled(self.members(margin, shares, spread))
        if not self.keep:
            shares = self.margins.shares(xp.row_max(scores) - scores)
        correction = self.last(top_odds(scores, shares), spread)
        log_probs = xp.log_softmax(scores + shares * correction)
        return keep_top(log_probs, shares) if self.keep else log_probs

    def members(self, margin: Array, shares: Array, spread: Array) -> list[Array]:
        """Return the scores (N, K) of every member."""
        tempered = self.margins.tempered(margin)
        members = [tempered, self.top(margin, shares, spread)]
        if self.matrix is not None:
            members.append(matrix_scores(self.matrix, tempered))
        return members

    def pooled(self, members: list[Array]) -> Array:
        """Return the weighted sum of the members' scores, (N, K)."""
        scores = self.weights[0] * members[0] + self.weights[1] * members[1]
        return scores if self.matrix is None else scores + self.weights[2] * members[2]

    def compiled(self, x: Array) -> Array | None:
        """Return probabilities (N, K) by the compiled version of the formula, where numba is installed.

        Its exponentials are made for scores of ordinary size: constants that are out of reach take the formula.
        """
        if not self.fits_float32:
            return None
        try:
            from hcal.pool._numba import predict
        except ImportError:
            return None
        return predict(self, x)

    def device_kernel(self, *, keeps_argmax: bool, least: float) -> nn.Module | None:
        """Return the formula as one launch on a GPU, where Triton is installed."""
        try:
            from hcal.pool._triton import PoolKernel
        except ImportError:
            return None
        return PoolKernel(self, keeps_argmax=keeps_argmax, least=least)


@map_type
class BinaryPoolMap(Map):
    """The default of two classes: a strictly increasing function of the log-odds."""

    float32_safe = True
    knots: Array = array("log-odds of class 1", "P", order="increasing")
    values: Array = array("calibrated log-odds there", "P", order="increasing")

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, 2) of logits (N, 2)."""
        xp = namespace(x)
        odds = xp.interp(x[..., 1:] - x[..., :1], self.knots, self.values)
        return xp.concat([log_sigmoid(-odds), log_sigmoid(odds)])

    def device_kernel(self, *, keeps_argmax: bool, least: float) -> nn.Module | None:
        """Return the formula as one launch on a GPU, where Triton is installed."""
        try:
            from hcal.pool._triton import BinaryPoolKernel
        except ImportError:
            return None
        return BinaryPoolKernel(self, keeps_argmax=keeps_argmax, least=least)


# -- the formula's parts ------------------------------------------------------------------------------


def top_shares(margin: Array, sharpness: Array) -> Array:
    """Return the share of the top that each class has, (N, K): all of it where no other class is near; sums to 1."""
    xp = namespace(margin)
    share = xp.maximum(1.0 - margin * sharpness, 0.0)
    return share / xp.row_sum(share)


def log_mean_margin(margin: Array) -> Array:
    """Return ln(1 + mean margin) of every row, (N, 1)."""
    xp = namespace(margin)
    return xp.log1p(xp.row_sum(margin) / margin.shape[-1])


def matrix_scores(matrix: Array, x: Array) -> Array:
    """Return W·x + b of every row of x (N, K); ``matrix`` (K, K + 1) holds W and, last, b."""
    return x @ matrix[:, :-1].T + matrix[:, -1]


def top_odds(scores: Array, shares: Array) -> Array:
    """Return the score of the top class less ln Σ e^score of the classes below it, (N, 1)."""
    return namespace(scores).row_sum(shares * scores) - rest_mass(scores, shares)


def rest_mass(scores: Array, shares: Array) -> Array:
    """Return ln Σ e^score of the classes below the top, (N, 1)."""
    return namespace(scores).log_sum_exp(scores + log_outside(shares))


def log_outside(shares: Array) -> Array:
    """Return the logarithm of what each class does not share of the top: −inf for a top without ties."""
    xp = namespace(shares)
    outside = xp.maximum(1.0 - shares, xp.tiny(shares))
    return xp.where(shares < 1, xp.log(outside), -np.inf)


def join_top(odds: Array, rest: Array, shares: Array) -> Array:
    """Return ln P (N, K), not below −FLOOR, from the log-odds of the top (N, 1) and ln P(class | not top)."""
    log_top = log_sigmoid(odds)
    below = rest + (log_top - odds)
    joined = (1.0 - shares) * below + shares * log_top
    return namespace(odds).maximum(joined, -FLOOR)


def keep_top(log_probs: Array, shares: Array) -> Array:
    """Return log-probabilities with the top class on top: what would overtake it is set equal to it.

    Of all distributions that keep the argmax, this one has the highest expected log-likelihood under the given
    probabilities. Classes that tie for the top get one probability.

    >>> keep = np.log([[0.2, 0.5, 0.3]])
    >>> np.exp(keep_top(keep, np.array([[1.0, 0.0, 0.0]]))).round(3)
    array([[0.35, 0.35, 0.3 ]])
    """
    if isinstance(log_probs, np.ndarray):
        return _keep_top_where_needed(log_probs, shares)
    return _lowered_to_top(log_probs, shares)


def _keep_top_where_needed(log_probs: Array, shares: Array) -> Array:
    """Compute :func:`keep_top` for the rows in which something changes, which are few."""
    xp = namespace(log_probs)
    untied = xp.row_max(shares) == 1
    on_top = xp.row_sum(shares * log_probs) >= xp.row_max(log_probs)
    changed = ~(untied & on_top)[:, 0]
    if not changed.any():
        return log_probs
    kept = log_probs.copy()
    kept[changed] = _lowered_to_top(log_probs[changed], shares[changed])
    return kept


def _lowered_to_top(log_probs: Array, shares: Array) -> Array:
    xp = namespace(log_probs)
    probs = xp.exp(log_probs)
    tied = 1.0 / xp.row_max(shares)  # how many classes share the top
    share = shares * tied  # 1 for the top class itself
    outside = 1.0 - share
    mass = xp.row_sum(share * probs)

    level = mass / tied
    for _ in range(_ROUNDS):
        over = xp.where(probs > level, outside, 0.0)
        level = (mass + xp.row_sum(over * probs)) / (tied + xp.row_sum(over))
    lowered = outside * xp.minimum(probs, level)
    kept = shares * (mass + xp.row_sum(outside * probs - lowered)) + lowered
    return xp.where(kept == probs, log_probs, xp.log(xp.maximum(kept, xp.tiny(probs))))
