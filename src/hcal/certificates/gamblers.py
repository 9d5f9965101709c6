"""Capital that is bet on many alternatives at once: one gambler for each event of a family."""

from __future__ import annotations

import numpy as np

from hcal.numerics import Float64

#: The share of the capital that is never bet, at the start and of every share dealt anew.
_CASH = 0.5


class Gamblers:
    """One capital for each of C events of a family, spread over E bets and cash."""

    def __init__(self, n_events: int, n_bets: int) -> None:
        self.prior = np.append(np.full(n_bets, (1 - _CASH) / n_bets), _CASH)
        #: (C, E + 1): shares of the capital at the start of the block; cash is the last.
        self.weights = np.tile(self.prior, (n_events, 1))
        self.start = np.zeros(n_events)  # (C,): log-capital at the start of the block
        self.gained = np.zeros((n_events, n_bets + 1))  # (C, E + 1): log-payoff of each bet since

    def path(self, logs: Float64) -> Float64:
        """Add payoffs of shape (rows, C, E), all of one block; return log-capitals, shape (rows, C)."""
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

    def leader(self) -> tuple[int, int]:
        """Return the event with the most capital, and its best bet."""
        capital = self.start + log_mean(self.gained, self.weights)
        event = int(capital.argmax())
        with np.errstate(divide="ignore"):
            bets = np.log(self.weights[event, :-1]) + self.gained[event, :-1]
        return event, int(bets.argmax())


def log_mean(logs: Float64, weights: Float64) -> Float64:
    """Return the logarithm of Σ weights·exp(logs) over the last axis."""
    top = logs.max(axis=-1, keepdims=True)
    with np.errstate(under="ignore"):
        return np.asarray(top[..., 0] + np.log((weights * np.exp(logs - top)).sum(axis=-1)))


def log_average(logs: Float64) -> Float64:
    """Return the logarithm of the mean of exp(logs) over the last axis."""
    logs = np.asarray(logs)
    return log_mean(logs, np.full(logs.shape[-1], 1 / logs.shape[-1]))
