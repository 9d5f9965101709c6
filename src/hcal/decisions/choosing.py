"""The cut of a threshold that a criterion chooses, with what it decides and catches in bootstrap samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from hcal.decisions.threshold_curve import (
    Counts,
    Criterion,
    LeastCost,
    ThresholdCurve,
    coarse_cuts,
    drawn_groups,
    drawn_rows,
    group_members,
)
from hcal.metrics.estimates import FEWEST_GROUPS, Estimate
from hcal.metrics.resampling import percentile
from hcal.numerics import Float64, IntArray
from hcal.rows import Rows


@dataclass(frozen=True)
class Draws:
    """How intervals are drawn."""

    confidence: float
    resamples: int
    random_state: int

    @cached_property
    def rng(self) -> np.random.Generator:
        """The generator of the bootstrap."""
        return np.random.default_rng(self.random_state)


@dataclass(frozen=True)
class Choice:
    """A cut that was chosen on all rows, and the cuts that bootstrap samples would choose.

    Attributes
    ----------
    curve : ThresholdCurve
    criterion : Criterion
    cut : int
        The number of the chosen cut among all cuts.
    cuts : array of int of shape (C,)
        The cuts that take part in the bootstrap.
    drawn : Counts
        What they decide and catch in each bootstrap sample, (B, C).
    confidence : float
    """

    curve: ThresholdCurve
    criterion: Criterion
    cut: int
    cuts: IntArray
    drawn: Counts
    confidence: float

    @property
    def costs(self) -> LeastCost | None:
        """The costs, where the criterion is the least cost."""
        return self.criterion if isinstance(self.criterion, LeastCost) else None

    @property
    def threshold(self) -> float:
        """The chosen threshold."""
        return self.curve.threshold(self.cut)

    @property
    def place(self) -> int:
        """The place of the chosen cut among those of the bootstrap."""
        return int(np.searchsorted(self.cuts, self.cut))

    @cached_property
    def thresholds(self) -> Float64:
        """The thresholds of the cuts of the bootstrap, (C,)."""
        return np.array([self.curve.threshold(int(cut)) for cut in self.cuts])

    @cached_property
    def rechosen(self) -> IntArray:
        """The place of the cut that each bootstrap sample chooses, (B,)."""
        return self.criterion.choose(self.drawn)

    @property
    def range(self) -> tuple[float, float]:
        """The interval of the threshold."""
        low, high = percentile(self.thresholds[self.rechosen], self.confidence)
        return min(low, self.threshold), max(high, self.threshold)

    @property
    def share(self) -> Estimate:
        """The share of the rows that are decided positive."""
        counts = self.curve.counts
        decided = counts.decided[self.cut]
        replicates = self.drawn.share[:, self.place]
        return _frequency(decided, counts.decided[0], replicates, self.confidence)

    @property
    def precision(self) -> Estimate:
        """The share of positives among the rows that are decided positive."""
        counts = self.curve.counts
        replicates = self.drawn.precision[:, self.place]
        caught = counts.caught[self.cut]
        estimate = _frequency(caught, counts.decided[self.cut], replicates, self.confidence)
        optimism = self._optimism(self.original.precision, self.drawn.precision)
        return _on_new_rows_too(estimate, optimism, 0.0, 1.0)

    @property
    def recall(self) -> Estimate:
        """The share of all positives that is caught."""
        counts = self.curve.counts
        replicates = self.drawn.recall[:, self.place]
        caught = counts.caught[self.cut]
        estimate = _frequency(caught, counts.caught[0], replicates, self.confidence)
        optimism = self._optimism(self.original.recall, self.drawn.recall)
        return _on_new_rows_too(estimate, optimism, 0.0, 1.0)

    @property
    def net_benefit(self) -> Estimate:
        """The net benefit of a row."""
        odds = odds_of(self.threshold, self.costs)
        value = self.curve.counts.net_benefit(odds)[self.cut]
        drawn = self.drawn.net_benefit(odds)
        estimate = _estimate(value, drawn[:, self.place], self.confidence)
        return _on_new_rows_too(estimate, self._optimism(self.original.net_benefit(odds), drawn))

    @property
    def cost(self) -> Estimate | None:
        """The mean cost of a row, where costs were given."""
        if self.costs is None:
            return None
        value = self.costs.measure(self.curve.counts)[self.cut]
        drawn = self.costs.measure(self.drawn)
        estimate = _estimate(value, drawn[:, self.place], self.confidence)
        return _on_new_rows_too(estimate, self._optimism(self.costs.measure(self.original), drawn))

    @property
    def on_new_rows(self) -> float:
        """The chosen figure, less the optimism that comes from choosing on the same rows."""
        value = float(self.criterion.measure(self.curve.counts)[self.cut])
        measured = self.criterion.measure(self.original)
        return value - self._optimism(measured, self.criterion.measure(self.drawn))

    @cached_property
    def original(self) -> Counts:
        """What the cuts of the bootstrap decide and catch of all rows, (C,)."""
        return self.curve.counts.at(self.cuts)

    def _optimism(self, original: Float64, drawn: Float64) -> float:
        """Return by how much a figure looks too good where its threshold was chosen.

        Parameters
        ----------
        original : array of shape (C,)
            The figure of each cut on all rows.
        drawn : array of shape (B, C)
            The same on bootstrap samples, of which each chooses its own cut.
        """
        on_its_sample = drawn[np.arange(len(drawn)), self.rechosen]
        gaps = on_its_sample - original[self.rechosen]
        return float(np.nanmean(gaps)) if not np.isnan(gaps).all() else 0.0


def choose(rows: Rows, criterion: Criterion, positive: int, draws: Draws) -> Choice:
    """Choose a cut on all rows, and draw bootstrap samples of rows or groups."""
    risk = rows.probs()[:, positive].astype(np.float64)
    event = (rows.labels == positive).astype(np.float64)
    curve = ThresholdCurve.of_rows(risk, event, rows.weight)
    counts = curve.counts
    if not 0 < counts.caught[0] < counts.decided[0]:
        raise ValueError("y holds one class alone: a threshold needs rows of both classes")
    _refuse_few_groups(rows)
    cut = int(criterion.choose(counts))
    if criterion.name == "precision" and cut == len(curve.value):
        best = float(np.nanmax(counts.precision))
        raise ValueError(f"no threshold has that precision: the best one here has {best:.4g}")

    cuts = coarse_cuts(curve, cut)
    if rows.groups is None:
        drawn = drawn_rows(curve, cuts, draws.resamples, draws.rng)
    else:
        weight = np.ones(len(rows)) if rows.weight is None else rows.weight
        cell = np.searchsorted(curve.value[cuts[:-1]], risk, side="right") - 1
        members = group_members(cell, event, weight, rows.groups, len(cuts) - 1)
        drawn = drawn_groups(members, draws.resamples, draws.rng)
    return Choice(curve, criterion, cut, cuts, drawn, draws.confidence)


def _refuse_few_groups(rows: Rows) -> None:
    """Refuse groups of which a bootstrap sample would say too little."""
    count = FEWEST_GROUPS if rows.groups is None else len(np.unique(rows.groups))
    if count < FEWEST_GROUPS:
        raise ValueError(
            f"the bootstrap draws whole groups and needs at least {FEWEST_GROUPS}; there are "
            f"{count}"
        )


def _on_new_rows_too(
    estimate: Estimate, optimism: float, lowest: float = -np.inf, highest: float = np.inf
) -> Estimate:
    """Return an estimate whose interval is also that of the figure on new rows, where it is worse by the optimism.

    Without it, the interval of a least cost holds the true cost of its threshold far too seldom
    (``tests/decisions/test_thresholds.py``).
    """
    low = min(estimate.low, estimate.low - optimism)
    high = max(estimate.high, estimate.high - optimism)
    return Estimate(estimate.value, max(low, lowest), min(high, highest))


def _estimate(value: float, replicates: Float64, confidence: float) -> Estimate:
    """Return a value with the percentile interval of its bootstrap values (B,)."""
    numbers = replicates[~np.isnan(replicates)]
    if np.isnan(value) or not len(numbers):
        return Estimate(float(value), np.nan, np.nan)
    return Estimate(float(value), *percentile(numbers, confidence))


def _frequency(count: float, total: float, replicates: Float64, confidence: float) -> Estimate:
    """Return a share of rows; its interval holds that of the bootstrap and Wilson's, which is never empty."""
    if total <= 0:
        return Estimate(np.nan, np.nan, np.nan)
    share = float(count / total)
    bootstrap = _estimate(share, replicates, confidence)
    z = float(ndtri((1 + confidence) / 2))
    weight = z**2 / total
    centre = (share + weight / 2) / (1 + weight)
    margin = np.sqrt(weight * share * (1 - share) + weight**2 / 4) / (1 + weight)
    low = np.fmin(bootstrap.low, centre - margin)
    high = np.fmax(bootstrap.high, centre + margin)
    return Estimate(share, max(float(low), 0.0), min(float(high), 1.0))


def odds_of(threshold: float, costs: LeastCost | None) -> float:
    """Return how many false alarms weigh as much as one event: from the costs, else from the threshold."""
    if costs is not None and costs.fn > 0:
        return costs.fp / costs.fn
    return threshold / (1 - threshold) if threshold < 1 else np.inf
