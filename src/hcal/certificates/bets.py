"""The bets of a monitor: alternatives to calibration, and the capital won by betting on them.

A bet states an alternative probability q where the predictor claims p. It multiplies the capital by the likelihood
ratio: q/p if the event happens, (1 − q)/(1 − p) if it does not. If p is the true probability, the expected factor is 1
(a fair game), so the capital is a martingale. With a tolerance h, p is replaced by the probability within h of p that
is nearest to q: the expected factor is then at most 1 as long as the truth lies within h of the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.numerics import Float64

_TINY = 1e-6  # claims of 0 and 1 cannot be bet on at finite odds


class Bet(NamedTuple):
    """One alternative: the claims after a change of their log-odds."""

    words: str  # the kind of miscalibration it stands for, as an alarm names it
    slope: float  # factor on the log-odds
    shift: float = 0.0  # added to the log-odds
    threshold: float = 0.0  # only claims at or above it are bet on


def _family(
    sizes: Sequence[float], high: float, shifts: tuple[str, str], slopes: tuple[str, str]
) -> list[Bet]:
    """Return bets that claims are too high or too low (everywhere, or from ``high`` on), or that odds are scaled."""
    too_high, too_low = shifts
    bets = []
    for threshold, place in ((0.0, ""), (high, f" at or above {high:g}")):
        bets += [Bet(too_high + place, 1.0, -size, threshold) for size in sizes]
        bets += [Bet(too_low + place, 1.0, size, threshold) for size in sizes]
    return [*bets, Bet(slopes[0], slope=0.75), Bet(slopes[1], slope=1.33)]


_CONFIDENCE = ("over-confident", "under-confident")
_RATE = ("stated too high", "stated too low")
#: The bets on the top label, and those on every class's probability.
FAMILIES = {
    "top-label": _family((0.15, 0.4, 1.0), 0.9, _CONFIDENCE, _CONFIDENCE),
    "class-wise": _family((0.3, 0.9), 0.5, _RATE, ("too extreme", "not extreme enough")),
}


def log_payoffs(
    p: ArrayLike, c: ArrayLike, bets: list[Bet], tolerance: ArrayLike
) -> NDArray[np.float64]:
    """Return the logarithm of the factor by which each of E bets multiplies its capital, for each event.

    Claims ``p`` and marks ``c`` have any shape S, the answer (*S, E). The tolerance is one number, or one for each
    entry of the last axis of S.

    >>> pays = np.exp(log_payoffs(np.array([0.8, 0.8]), np.array([True, False]), FAMILIES["top-label"], 0.0))
    >>> np.allclose(0.8 * pays[0] + 0.2 * pays[1], 1)  # a fair game
    True
    """
    claim = np.clip(np.asarray(p, dtype=np.float64), _TINY, 1 - _TINY)[..., None]
    log_odds = np.log(claim) - np.log1p(-claim)
    slope = np.array([bet.slope for bet in bets])
    shift = np.array([bet.shift for bet in bets])
    threshold = np.array([bet.threshold for bet in bets])
    alternative = 1 / (1 + np.exp(-(log_odds * slope + shift)))
    alternative = np.clip(np.where(claim >= threshold, alternative, claim), _TINY, 1 - _TINY)

    # Bet against the allowed probability nearest to the alternative: where that is allowed itself, the factor is 1.
    margin = np.asarray(tolerance)[..., None]
    against = np.clip(alternative, claim - margin, claim + margin)
    won = np.log(alternative / against)
    lost = np.log1p((against - alternative) / (1 - against))
    happened = np.asarray(c, dtype=bool)[..., None]
    return np.asarray(np.where(happened, won, lost))


# -- capital ---------------------------------------------------------------------------------------

#: Share of the capital that is kept as cash, at the start and whenever a part is redistributed.
_CASH = 0.5


class Gamblers:
    """The capital of each of C events of a family, spread over E bets and cash (a mixture martingale)."""

    def __init__(self, bets: list[Bet], tolerance: Float64) -> None:
        self.bets = bets
        self.tolerance = tolerance
        equal = np.full(len(bets), (1 - _CASH) / len(bets))
        self.prior = np.append(equal, _CASH)
        #: (C, E + 1): shares of the capital in each bet at the start of the block; the last column is cash.
        self.weights = np.tile(self.prior, (len(tolerance), 1))
        self.start = np.zeros(len(tolerance))  # (C,): log-capital at the start of the block
        self.gained = np.zeros_like(self.weights)  # (C, E + 1): log-payoff of each bet since then

    def gains(self, claims: Float64, marks: Float64) -> Float64:
        """Return the log-payoff of each bet since the start of the block after each of N rows, (N, C, E + 1).

        Claims and marks are (N, C). Rows are added one after the other, so that blocks of any size give the same.
        """
        payoffs = log_payoffs(claims, marks, self.bets, self.tolerance)
        payoffs = np.pad(payoffs, ((0, 0), (0, 0), (0, 1)))  # cash gains nothing
        return np.cumsum(np.concatenate([self.gained[None], payoffs]), axis=0)[1:]

    def capital_after(self, gained: Float64) -> Float64:
        """Return the log-capital of each event for log-payoffs (…, C, E + 1) since the start of the block."""
        return self.start + log_mean(gained, self.weights)

    def deal(self, share: float) -> None:
        """End a block: each bet keeps what it won, but a share of the whole capital is spread as at the start."""
        total = log_mean(self.gained, self.weights)
        with np.errstate(under="ignore"):
            won = self.weights * np.exp(self.gained - total[:, None])
        self.weights = (1 - share) * won + share * self.prior
        self.start = self.start + total
        self.gained = np.zeros_like(self.gained)

    @property
    def capital(self) -> Float64:
        """Log-capital of each event, shape (C,)."""
        return self.capital_after(self.gained)

    def leader(self) -> tuple[int, str]:
        """Return the index of the event with the most capital, and the words of its most successful bet."""
        event = int(self.capital.argmax())
        with np.errstate(divide="ignore"):
            bets = np.log(self.weights[event, :-1]) + self.gained[event, :-1]
        return event, self.bets[int(bets.argmax())].words


def log_mean(logs: Float64, weights: Float64 | None = None) -> Float64:
    """Return the logarithm of Σ weights·exp(logs) over the last axis; equal weights that sum to 1 by default."""
    top = logs.max(axis=-1, keepdims=True)
    with np.errstate(under="ignore"):
        parts = np.exp(logs - top) * (1 / logs.shape[-1] if weights is None else weights)
    return np.asarray(top[..., 0] + np.log(parts.sum(axis=-1)))
