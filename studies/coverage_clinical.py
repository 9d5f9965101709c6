"""How often the intervals of the clinical panel hold the truth: risks of normal log-odds, whose truths are integrals.

The predictions are calibrated, too extreme (slope 0.6), too timid (slope 1.5), rounded to a few values, or wrong in a
way that no line repairs. Rows are drawn anew in every set; a set whose panel gives no interval is counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from hcal.metrics.clinical import clinical
from hcal.metrics.estimates import (
    Estimate,
    Outcome,
    area,
    brier_scores,
    in_the_large,
    observed_expected,
    slope_and_intercept,
)
from hcal.numerics import Float64

Row = dict[str, Any]
#: The spread of the predicted log-odds.
SPREAD = 1.5
#: World → (slope of the truth on the log-odds, size of a wave on top, whether log-odds are rounded).
WORLDS = {
    "calibrated": (1.0, 0.0, False),
    "too extreme": (0.6, 0.0, False),
    "too timid": (1.5, 0.0, False),
    "ties": (1.0, 0.0, True),
    "wave": (1.0, 0.6, False),
}
#: Rows and the rate of the outcome; a smaller product gives no intervals.
CELLS = (
    (30, 0.5),
    (60, 0.3),
    (100, 0.2),
    (300, 0.05),
    (1000, 0.05),
    (3000, 0.005),
    (20_000, 0.001),
    (1000, 0.2),
)
#: The quantiles of a normal distribution by which the truth is integrated.
_GRID = np.linspace(-8, 8, 40_001)
_DENSITY = np.exp(-(_GRID**2) / 2)
_MASS = _DENSITY / _DENSITY.sum()


@dataclass(frozen=True)
class World:
    """Predicted log-odds with a mean, and how the truth depends on them."""

    mean: float
    slope: float
    wave: float
    rounded: bool

    @classmethod
    def of(cls, name: str, rate: float) -> World:
        """Return the world of a name in which the outcome has a rate."""
        slope, wave, rounded = WORLDS[name]
        low = -40.0
        high = 40.0
        for _ in range(100):
            middle = (low + high) / 2
            world = cls(middle, slope, wave, rounded)
            if _MASS @ world.truth(middle + SPREAD * _GRID) < rate:
                low = middle
            else:
                high = middle
        return cls(low, slope, wave, rounded)

    def truth(self, log_odds: Float64) -> Float64:
        """Return the true risk at exact log-odds."""
        wave = self.wave * np.sin(2 * (log_odds - self.mean))
        return np.asarray(expit(self.slope * log_odds + wave))

    def stated(self, log_odds: Float64) -> Float64:
        """Return the log-odds that the predictor states."""
        return np.round(log_odds) if self.rounded else log_odds

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Float64, Float64]:
        """Return predicted risks and outcomes."""
        log_odds = self.mean + SPREAD * rng.standard_normal(n)
        event = rng.random(n) < self.truth(log_odds)
        return np.asarray(expit(self.stated(log_odds))), event.astype(np.float64)

    def truths(self) -> dict[str, float]:
        """Return the value of every estimate in the whole population."""
        exact = self.mean + SPREAD * _GRID
        log_odds = self.stated(exact)
        happens = self.truth(exact)
        risk = expit(log_odds)
        rate = float(_MASS @ happens)
        brier = float(_MASS @ (risk**2 - 2 * risk * happens + happens))
        constant = np.ones((len(risk), 1))
        shift = _solve(log_odds, happens, constant, np.zeros(1))
        line = np.stack([np.ones_like(log_odds), log_odds], axis=1)
        no_offset = np.zeros_like(log_odds)
        intercept, slope = _solve(no_offset, happens, line, np.array([0.0, 1.0]))
        return {
            "in_the_large": float(shift[0]),
            "slope": float(slope),
            "intercept": float(intercept),
            "observed_expected": rate / float(_MASS @ risk),
            "brier": brier,
            "scaled_brier": 1 - brier / (rate * (1 - rate)),
            "auc": _area(log_odds, happens),
            "ici": _mean_distance(log_odds, happens),
        }


def _solve(offset: Float64, happens: Float64, design: Float64, start: Float64) -> Float64:
    """Return the coefficients of a logistic regression in the whole population."""
    theta = start
    for _ in range(200):
        risk = expit(offset + design @ theta)
        gradient = design.T @ (_MASS * (happens - risk))
        curvature = (design * (_MASS * risk * (1 - risk))[:, None]).T @ design
        step = np.linalg.solve(curvature, gradient)
        theta = theta + step / max(1.0, float(np.abs(step).max()))
    return theta


def _area(log_odds: Float64, happens: Float64) -> float:
    """Return the area under the ROC curve in the whole population; a tie counts a half."""
    place = np.unique(log_odds, return_inverse=True)[1]
    yes = np.bincount(place, _MASS * happens)
    no = np.bincount(place, _MASS * (1 - happens))
    below = np.cumsum(no) - no / 2
    return float(yes @ below / (yes.sum() * no.sum()))


def _mean_distance(log_odds: Float64, happens: Float64) -> float:
    """Return the mean distance of the stated from the true risk, given what is stated."""
    place = np.unique(log_odds, return_inverse=True)[1]
    mass = np.bincount(place, _MASS)
    true = np.bincount(place, _MASS * happens) / mass
    stated = np.bincount(place, _MASS * expit(log_odds)) / mass
    return float(mass @ np.abs(true - stated))


def _estimates(risk: Float64, event: Float64) -> dict[str, Estimate]:
    """Return the estimates of the panel that need no curve."""
    rows = Outcome(risk, event)
    slope, intercept, _ = slope_and_intercept(rows)
    brier, scaled_brier = brier_scores(rows)
    return {
        "in_the_large": in_the_large(rows),
        "slope": slope,
        "intercept": intercept,
        "observed_expected": observed_expected(rows),
        "brier": brier,
        "scaled_brier": scaled_brier,
        "auc": area(rows),
    }


def cell(name: str, n: int, rate: float, sets: int, *, curves: bool = False) -> Iterator[Row]:
    """Yield a row for every interval: in how many sets it was given, and in how many it missed the truth.

    ``curves`` adds the mean distance to the smooth curve, which takes longer.
    """
    world = World.of(name, rate)
    truths = world.truths()
    intervals: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    number = list(WORLDS).index(name)
    rng = np.random.default_rng([number, n, int(1000 * rate)])
    for _ in range(sets):
        risk, event = world.draw(n, rng)
        if not 0 < event.sum() < n:
            continue
        estimates = _estimates(risk, event)
        if curves:
            estimates["ici"] = clinical(risk, event).ici
        for estimate, interval in estimates.items():
            if np.isnan(interval.low):
                continue
            intervals[estimate] += 1
            missed[estimate] += not interval.low <= truths[estimate] <= interval.high
    for estimate, count in intervals.items():
        yield {
            "world": f"{name}, rate {rate:g}, n = {n:,}",
            "statement": f"interval of {estimate}",
            "sets": count,
            "false": missed[estimate],
            "share": missed[estimate] / count,
            "allowed": 0.05,
        }
