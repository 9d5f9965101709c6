"""What a metric of unlabelled rows is expected to be, from their calibrated probabilities, and how far chance moves it.

The unknown label of a row is a draw from its probabilities p. A metric is a function of the labels; its expectation
follows from p alone, and a label moves it by its *gradient*: g_ik where row i turns out to be of class k. To first
order the metric then has the variance

    Σ_i w_i (Σ_k p_ik g_ik² − (Σ_k p_ik g_ik)²).

With K > 2 classes, precision, recall, f1, specificity and auc are means over the classes, each against the rest.
(Garg et al.: Leveraging unlabeled data to predict out-of-distribution performance, ICLR 2022; the method is known as
confidence-based performance estimation.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from hcal.numerics import Float64, IntArray, run_starts


@dataclass(frozen=True)
class Unlabelled:
    """Rows without labels, and what was decided for them.

    Attributes
    ----------
    probs : array of shape (N, K)
    weight : array of shape (N,)
        How many rows each row stands for.
    decided : array of int of shape (N,)
    positive : int
        The positive one of two classes.
    costs : array of shape (K, K), or None
        Of deciding class j where class k is true, in row k and column j.
    """

    probs: Float64
    weight: Float64
    decided: IntArray
    positive: int
    costs: Float64 | None = None

    @property
    def n_classes(self) -> int:
        """The number K of classes."""
        return int(self.probs.shape[1])

    @property
    def total(self) -> float:
        """The rows, by weight."""
        return float(self.weight.sum())

    @property
    def events(self) -> tuple[int, ...]:
        """The classes whose one-against-rest figures are averaged: with two classes, the positive one."""
        return (self.positive,) if self.n_classes == 2 else tuple(range(self.n_classes))

    def __getitem__(self, index: IntArray) -> Unlabelled:
        return Unlabelled(
            self.probs[index], self.weight[index], self.decided[index], self.positive, self.costs
        )


@dataclass(frozen=True)
class Expected:
    """The expected value of a metric, and the standard deviation that the chance of the labels gives it."""

    value: float
    deviation: float


def expect(metric: str, rows: Unlabelled) -> Expected:
    """Return what a metric is expected to be.

    >>> probs = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> rows = Unlabelled(probs, np.ones(2), np.array([0, 1]), positive=1)
    >>> round(expect("accuracy", rows).value, 2), round(expect("recall", rows).value, 2)
    (0.85, 0.89)
    """
    if metric in _OF_ROWS:
        return _mean_loss(_OF_ROWS[metric](rows), rows)
    if len(rows.events) == 1:
        return _of_one_event(metric, _event(rows, rows.events[0]))
    values = []
    gradient = np.zeros_like(rows.probs)
    for event in rows.events:
        figure = _OF_EVENTS[metric](_event(rows, event))
        if not np.isnan(figure.value):  # no precision without a decision
            values.append(figure.value)
            gradient[:, event] = figure.gradient
    if not values:
        return Expected(np.nan, np.nan)
    return Expected(float(np.mean(values)), _deviation(gradient / len(values), rows))


def _of_one_event(metric: str, event: _Event) -> Expected:
    """Return what a metric of one event is expected to be: a label moves it in one column alone."""
    figure = _OF_EVENTS[metric](event)
    if np.isnan(figure.value):
        return Expected(np.nan, np.nan)
    variance = event.weight @ (event.risk * (1 - event.risk) * figure.gradient**2)
    return Expected(float(figure.value), float(np.sqrt(variance)))


def _deviation(gradient: Float64, rows: Unlabelled) -> float:
    mean = np.einsum("nk,nk->n", rows.probs, gradient)
    square = np.einsum("nk,nk,nk->n", rows.probs, gradient, gradient)
    return float(np.sqrt(np.maximum(rows.weight @ (square - mean**2), 0.0)))


# -- means over rows ------------------------------------------------------------------------------


def _mean_loss(losses: Float64, rows: Unlabelled) -> Expected:
    """Return the expectation of a mean over rows; a row that turns out to be of class k has ``losses[:, k]``."""
    mean = np.einsum("nk,nk->n", rows.probs, losses)
    value = float(rows.weight @ mean) / rows.total
    return Expected(value, _deviation(losses / rows.total, rows))


def _accuracy(rows: Unlabelled) -> Float64:
    right = np.arange(rows.n_classes) == rows.decided[:, None]
    return np.asarray(right, dtype=np.float64)


def _cost(rows: Unlabelled) -> Float64:
    if rows.costs is None:
        raise ValueError("the metric 'cost' needs cost={'fn': …, 'fp': …}, or a table of costs")
    return np.asarray(rows.costs.T[rows.decided])


def _brier(rows: Unlabelled) -> Float64:
    squares = np.einsum("nk,nk->n", rows.probs, rows.probs)
    return np.asarray(1 - 2 * rows.probs + squares[:, None])


def _nll(rows: Unlabelled) -> Float64:
    # A class of probability 0 does not happen, so its loss does not count.
    return -np.log(np.where(rows.probs > 0, rows.probs, 1.0))


_OF_ROWS: Final[dict[str, Callable[[Unlabelled], Float64]]] = {
    "accuracy": _accuracy,
    "cost": _cost,
    "brier": _brier,
    "nll": _nll,
}


# -- one class against the rest -------------------------------------------------------------------


@dataclass(frozen=True)
class _Event:
    """The probability of an event in each row, whether it was decided for, and how many rows each row stands for."""

    risk: Float64
    decided: Float64
    weight: Float64

    @property
    def happen(self) -> float:
        """The expected number of events."""
        return float(self.weight @ self.risk)

    @property
    def alarms(self) -> float:
        """The number of rows that the event was decided for."""
        return float(self.weight @ self.decided)

    @property
    def caught(self) -> float:
        """The expected number of events among them."""
        return float(self.weight @ (self.decided * self.risk))


@dataclass(frozen=True)
class _Figure:
    """An expected value, and by how much it changes (N,) if the event happens in a row."""

    value: float
    gradient: Float64


_NOTHING: Final = _Figure(np.nan, np.zeros(0))


def _event(rows: Unlabelled, event: int) -> _Event:
    decided = (rows.decided == event).astype(np.float64)
    return _Event(rows.probs[:, event], decided, rows.weight)


def _rate(event: _Event) -> _Figure:
    total = event.weight.sum()
    return _Figure(event.happen / total, np.full(len(event.risk), 1 / total))


def _precision(event: _Event) -> _Figure:
    if not event.alarms:
        return _NOTHING
    return _Figure(event.caught / event.alarms, event.decided / event.alarms)


def _recall(event: _Event) -> _Figure:
    if not event.happen:
        return _NOTHING
    recall = event.caught / event.happen
    return _Figure(recall, (event.decided - recall) / event.happen)


def _specificity(event: _Event) -> _Figure:
    quiet = event.weight.sum() - event.happen
    if not quiet:
        return _NOTHING
    false_alarms = (event.alarms - event.caught) / quiet
    return _Figure(1 - false_alarms, (event.decided - false_alarms) / quiet)


def _f1(event: _Event) -> _Figure:
    both = event.happen + event.alarms
    if not both:
        return _NOTHING
    score = 2 * event.caught / both
    return _Figure(score, (2 * event.decided - score) / both)


def _auc(event: _Event) -> _Figure:
    """Return the area under the ROC curve: of all pairs of an event and another row, the share in the right order."""
    order = np.argsort(event.risk, kind="stable")
    risk = event.risk[order]
    weight = event.weight[order]
    starts = run_starts(risk)
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(risk))))

    # Of equal probabilities half the pairs count. A row makes no pair with itself.
    events = np.add.reduceat(weight * risk, starts)
    others = np.add.reduceat(weight * (1 - risk), starts)
    events_above = (events.sum() - np.cumsum(events) + events / 2)[run] - risk / 2
    others_below = (np.cumsum(others) - others / 2)[run] - (1 - risk) / 2
    all_events = events.sum() - risk
    all_others = others.sum() - (1 - risk)
    pairs = float((weight * risk) @ all_others)
    if not pairs > 0:
        return _NOTHING
    area = float((weight * risk) @ others_below) / pairs
    gradient = np.empty(len(risk))
    gradient[order] = (others_below - events_above - area * (all_others - all_events)) / pairs
    return _Figure(area, gradient)


_OF_EVENTS: Final[dict[str, Callable[[_Event], _Figure]]] = {
    "rate": _rate,
    "precision": _precision,
    "recall": _recall,
    "specificity": _specificity,
    "f1": _f1,
    "auc": _auc,
}

#: The metrics that can be estimated, and what each assumes of the probabilities.
ASSUMPTIONS: Final[dict[str, str]] = {
    "accuracy": "decisions with probability p are right in a share p of the rows",
    "precision": "rows at or above the threshold are positive as often as stated",
    "recall": "rows on both sides of the threshold are positive as often as stated",
    "specificity": "rows on both sides of the threshold are negative as often as stated",
    "f1": "rows on both sides of the threshold are positive as often as stated",
    "cost": "each probability that a decision weighs is right on average",
    "rate": "the probabilities are right on average",
    "auc": "all probabilities are right: the area follows from their spread alone",
    "brier": "all probabilities are right: the score follows from their spread alone",
    "nll": "all probabilities are right: the score follows from their spread alone",
}
