"""The bets of a monitor: what calibration could be replaced by, and what it would pay to have bet on it.

An alternative says q where the predictor says p. Betting on it multiplies the capital by q/p if the event
happens and by (1 − q)/(1 − p) if it does not: 1 + λ(c − p) with λ = (q − p)/(p(1 − p)), a fair game if p
is right. With a tolerance h the bet is taken against p + h or p − h instead: unfavourable as long as the
truth lies within h of the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcal.numerics import Float64

_TINY = 1e-6  # claims of 0 and 1 cannot be bet on at finite odds


class Bet(NamedTuple):
    """One alternative."""

    words: str  # what it says, for the alarm
    slope: float = 1.0  # factor on the log-odds
    shift: float = 0.0  # added to the log-odds
    threshold: float = 0.0  # only claims at or above it are bet on


def _family(sizes: Sequence[float], high: float, shifts: tuple[str, str], slopes: tuple[str, str]) -> list[Bet]:
    """Bets that claims are too high or too low, everywhere or from ``high`` on, and too extreme or too little."""
    bets = []
    for threshold, where in ((0.0, ""), (high, f" at or above {high:g}")):
        for words, sign in zip(shifts, (-1, 1), strict=True):
            bets += [Bet(words + where, 1.0, sign * size, threshold) for size in sizes]
    return [*bets, Bet(slopes[0], slope=0.75), Bet(slopes[1], slope=1.33)]


_CONFIDENCE, _RATE = ("over-confident", "under-confident"), ("stated too high", "stated too low")
#: What each family of events is bet to be: the top label, and every class's probability.
FAMILIES = {
    "top-label": _family((0.15, 0.4, 1.0), 0.9, _CONFIDENCE, _CONFIDENCE),
    "class-wise": _family((0.3, 0.9), 0.5, _RATE, ("too extreme", "not extreme enough")),
}


def log_payoffs(p: Any, c: Any, bets: list[Bet], tolerance: Any) -> NDArray[np.float64]:
    """Return the logarithm of what each bet pays on each event.

    Claims ``p`` and marks ``c`` have any shape S, the answer (*S, E); a tolerance is one number or one for
    each of the last axis.

    >>> pays = np.exp(log_payoffs(np.array([0.8, 0.8]), np.array([True, False]), FAMILIES["top-label"], 0.0))
    >>> np.allclose(0.8 * pays[0] + 0.2 * pays[1], 1)  # a fair game
    True
    """
    p = np.clip(np.asarray(p, dtype=np.float64), _TINY, 1 - _TINY)
    odds = np.log(p) - np.log1p(-p)
    slope, shift, threshold = np.array([bet[1:] for bet in bets]).T
    q = 1 / (1 + np.exp(-(odds[..., None] * slope + shift)))
    q = np.clip(np.where(p[..., None] >= threshold, q, p[..., None]), _TINY, 1 - _TINY)
    # The nearest probability that the tolerance allows: no bet where the alternative is allowed too.
    claim, reach = p[..., None], np.asarray(tolerance)[..., None]
    against = np.clip(q, np.maximum(claim - reach, _TINY), np.minimum(claim + reach, 1 - _TINY))
    won, lost = np.log(q / against), np.log1p((against - q) / (1 - against))
    return np.asarray(np.where(np.asarray(c, dtype=bool)[..., None], won, lost))


# -- capital ---------------------------------------------------------------------------------------

#: The share of the capital that is never bet, at the start and of every share dealt anew.
_CASH = 0.5


class Gamblers:
    """One capital for each of C events of a family, each with its tolerance, spread over E bets and cash."""

    def __init__(self, bets: list[Bet], tolerance: Float64) -> None:
        self.bets, self.tolerance = bets, tolerance
        self.prior = np.append(np.full(len(bets), (1 - _CASH) / len(bets)), _CASH)
        #: (C, E + 1): shares of the capital at the start of the block; cash is the last.
        self.weights = np.tile(self.prior, (len(tolerance), 1))
        self.start = np.zeros(len(tolerance))  # (C,): log-capital at the start of the block
        self.gained = np.zeros_like(self.weights)  # (C, E + 1): log-payoff of each bet since

    def path(self, claims: Float64, marks: Float64) -> Float64:
        """Bet on claims and marks (rows, C), all of one block; return log-capitals, shape (rows, C)."""
        logs = log_payoffs(claims, marks, self.bets, self.tolerance)
        cash = np.zeros((*logs.shape[:2], 1))
        run = self.gained + np.cumsum(np.concatenate([logs, cash], axis=2), axis=0)
        self.gained = run[-1]
        return self.start + log_mean(run, self.weights)

    def deal(self, share: float) -> None:
        """End a block: weigh bets by what they won, and deal a share anew."""
        total = log_mean(self.gained, self.weights)
        with np.errstate(under="ignore"):
            won = self.weights * np.exp(self.gained - total[:, None])
        self.weights = (1 - share) * won + share * self.prior
        self.start = self.start + total
        self.gained = np.zeros_like(self.gained)

    @property
    def capital(self) -> Float64:
        """Log-capital of each event, shape (C,)."""
        return self.start + log_mean(self.gained, self.weights)

    def leader(self) -> tuple[int, str]:
        """Return the event with the most capital, and what its best bet says."""
        event = int(self.capital.argmax())
        with np.errstate(divide="ignore"):
            bets = np.log(self.weights[event, :-1]) + self.gained[event, :-1]
        return event, self.bets[int(bets.argmax())].words


def log_mean(logs: Float64, weights: Float64 | float) -> Float64:
    """Return the logarithm of Σ weights·exp(logs) over the last axis."""
    top = logs.max(axis=-1, keepdims=True)
    with np.errstate(under="ignore"):
        return np.asarray(top[..., 0] + np.log((weights * np.exp(logs - top)).sum(axis=-1)))


def log_average(logs: Float64) -> Float64:
    """Return the logarithm of the mean of exp(logs) over the last axis."""
    return log_mean(logs, 1 / logs.shape[-1])
