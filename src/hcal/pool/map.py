"""What the default learns, as objects of arrays: one formula for three and more classes, a table for two.

A row of scores goes through four steps. Its margins below the top score are divided by one temperature. Three members
turn the margins into scores of the classes, and a weighted sum joins them. A curve corrects the probability of the top
class. If the predicted class is to stay, a class that would overtake it is set equal to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal.maps.base import SMALL, STEEP, Map, array, log_sigmoid, map_type, option
from hcal.xp import Array, namespace

#: Classes whose margin is below this, at the fitted temperature, share the top, and a smaller margin gives a larger
#: share. So nothing changes when rounding breaks a tie one way or the other.
TIE = 0.02
#: Margins where the slope of the classes below the top may change.
BENDS = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0)
#: The top-versus-rest member gives no class less than e^−FLOOR, so that one row cannot decide the weights of all.
FLOOR = 30.0
#: How often the classes that overtake the top are lowered; each round lowers fewer of them.
_ROUNDS = 4


def top_shares(margin: Array, sharpness: Array) -> Array:
    """Return the share of the top that each class has, (N, K): all of it where no other class is near; sums to 1."""
    xp = namespace(margin)
    share = xp.maximum(1.0 - margin * sharpness, 0.0)
    return share / xp.row_sum(share)


def runner_up(margin: Array) -> Array:
    """Return the margin of the second best class, (N, 1)."""
    xp = namespace(margin)
    return xp.row_min(xp.put_along(margin + 0.0, xp.argmax(-margin), np.inf))


def log_mean_margin(margin: Array) -> Array:
    """Return ln(1 + mean margin) of every row, (N, 1)."""
    return namespace(margin).log1p(namespace(margin).row_sum(margin) / margin.shape[-1])


def split_top(scores: Array, shares: Array) -> tuple[Array, Array]:
    """Return the score of the top class and ln Σ e^score of the classes below it, each (N, 1)."""
    xp = namespace(scores)
    outside = xp.where(shares < 1, xp.log(xp.maximum(1.0 - shares, xp.tiny(scores))), -np.inf)
    return xp.row_sum(shares * scores), xp.log_sum_exp(scores + outside)


@map_type
class Curve(Map):
    """A piecewise linear function of one number, constant outside the range of the calibration rows."""

    low: Array = array("values below count as this")
    high: Array = array("values above count as this")
    knots: Array = array("where the slope changes", "H")
    weights: Array = array("constant, slope, and the change of slope at each knot", "H+2")

    def __call__(self, x: Array) -> Array:
        """Return the function at x (N, 1)."""
        xp = namespace(x)
        inside = xp.clip(x, self.low, self.high)
        bent = xp.maximum(inside - self.knots, 0.0) @ self.weights[2:, None]
        return self.weights[0] + self.weights[1] * inside + bent


@map_type
class Rest(Map):
    """Scores of the classes below the top: a bias minus a bent line of the margin, whose slope depends on the row."""

    slopes: Array = array(
        "slope, its change at each bend, and its change with the spread of the row", len(BENDS) + 2
    )
    spread: Array = array("mean, deviation, low and high of ln(1 + mean margin)", 4)
    bias: Array = array("of every class", "K")

    def __call__(self, margin: Array) -> Array:
        """Return scores (N, K) of margins (N, K), up to a constant in each row."""
        slope = self.slopes[0] + self.slopes[-1] * self.standard(log_mean_margin(margin))
        out = self.bias - slope * margin
        for i, bend in enumerate(BENDS):
            out = out - self.slopes[1 + i] * namespace(margin).maximum(margin - bend, 0.0)
        return out

    def standard(self, log_mean: Array) -> Array:
        """Return how widely the scores of a row are spread, in standard deviations."""
        value = (log_mean - self.spread[0]) / self.spread[1]
        return namespace(value).clip(value, self.spread[2], self.spread[3])

    def check(self) -> None:
        """Raise a ValueError where fields do not fit each other."""
        if self.spread[1] < SMALL:
            raise ValueError(f"'spread' must hold a deviation of at least {SMALL:g}")


@map_type
class Events(Map):
    """The top-versus-rest member: how sure the top class is, and how the others share what it leaves."""

    rest: Rest
    by_odds: Curve
    by_gap: Curve
    bias: Array = array("log-odds of the top, by predicted class", "K")

    def __call__(self, margin: Array, shares: Array) -> Array:  # type: ignore[override]
        """Return ln P (N, K) from margins (N, K) and the shares of the top (N, K)."""
        xp = namespace(margin)
        rest = self.rest(margin)
        odds = -split_top(rest, shares)[1]
        sure = (
            odds
            + self.by_odds(odds)
            + self.by_gap(runner_up(margin))
            + xp.row_sum(shares * self.bias)
        )
        return join_events(sure, rest + odds, shares)


@map_type
class PoolMap(Map):
    """The default of three and more classes."""

    float32_safe = True
    kernel_keeps_argmax = True
    beta: Array = array("inverse temperature 1/T", low=0.0, high=STEEP)
    sharpness: Array = array("how fast the share of the top falls with the margin", low=0.0)
    cap: Array = array("margins count up to it in temperature scaling and matrix scaling", low=0.0)
    events: Events
    matrix: Array = array("matrix of matrix scaling, and its intercepts", "K", "K+1", optional=True)
    weights: Array = array("of temperature scaling, top-versus-rest and matrix scaling", 3, low=0.0)
    last: Curve
    keep: bool = option("whether the predicted class stays", (True, False))

    def __call__(self, x: Array) -> Array:
        """Return log-probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        margin, shares = self.margins(x)
        scores = self.pooled(self.members(margin, shares))
        if not self.keep:
            shares = top_shares(xp.row_max(scores) - scores, self.sharpness)
        top, rest = split_top(scores, shares)
        log_probs = xp.log_softmax(scores + shares * self.last(top - rest))
        return keep_top(log_probs, shares) if self.keep else log_probs

    def margins(self, x: Array) -> tuple[Array, Array]:
        """Return the margins of logits (N, K) below the top one, at the fitted temperature, and the top's shares."""
        margin = self.beta * (namespace(x).row_max(x) - x)
        return margin, top_shares(margin, self.sharpness)

    def members(self, margin: Array, shares: Array) -> list[Array]:
        """Return the scores (N, K) of every member."""
        x = -namespace(margin).minimum(margin, self.cap)
        linear = [] if self.matrix is None else [x @ self.matrix[:, :-1].T + self.matrix[:, -1]]
        return [x, self.events(margin, shares), *linear]

    def pooled(self, members: list[Array]) -> Array:
        """Return the weighted sum of the members' scores, (N, K)."""
        scores = self.weights[0] * members[0] + self.weights[1] * members[1]
        return scores if self.matrix is None else scores + self.weights[2] * members[2]

    def compiled(self, x: Array) -> Array | None:
        """Return probabilities (N, K) by the compiled version of the formula, where numba is installed."""
        try:
            from hcal.pool._compiled import predict
        except ImportError:
            return None
        return predict(self, x)


def join_events(odds: Array, rest: Array, shares: Array) -> Array:
    """Return ln P (N, K) from the log-odds of the top (N, 1) and ln P(class | not top), not below −FLOOR."""
    below = rest + log_sigmoid(-odds)
    return namespace(odds).maximum((1.0 - shares) * below + shares * log_sigmoid(odds), -FLOOR)


def keep_top(log_probs: Array, shares: Array) -> Array:
    """Return log-probabilities with the top class on top: what would overtake it is set equal to it.

    Of all distributions that keep the argmax, this one has the highest expected log-likelihood under the given
    probabilities. Classes that tie for the top get one probability.

    >>> keep = np.log([[0.2, 0.5, 0.3]])
    >>> np.exp(keep_top(keep, np.array([[1.0, 0.0, 0.0]]))).round(3)
    array([[0.35, 0.35, 0.3 ]])
    """
    xp = namespace(log_probs)
    p, held = xp.exp(log_probs), 1.0 / xp.row_max(shares)
    share = shares * held  # 1 for the top class itself
    outside, mass = 1.0 - share, xp.row_sum(share * p)
    level = mass / held
    for _ in range(_ROUNDS):
        over = xp.where(p > level, outside, 0.0)
        level = (mass + xp.row_sum(over * p)) / (held + xp.row_sum(over))
    lowered = outside * xp.minimum(p, level)
    new = shares * (mass + xp.row_sum(outside * p - lowered)) + lowered
    return xp.where(new == p, log_probs, xp.log(xp.maximum(new, xp.tiny(p))))


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


def as_array(value: Any) -> Any:
    """Return a number or an array as the float64 array that a map holds."""
    return np.asarray(value, dtype=np.float64)
