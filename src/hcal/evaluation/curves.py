"""Reliability curves of one event as data: in bins, by isotonic regression, or by a kernel.

A curve shows how often an event happened against its predicted probability. Its *consistency band* is where the
frequency lies in 95 % of the cases if the predictions are calibrated (Bröcker and Smith, 2007): a point outside it is
evidence of miscalibration. The band of a bin is a binomial quantile at the bin's mean probability; the exact
distribution, a sum of Bernoulli variables with different probabilities, is never wider. The bands of curves without
bins come from simulated events.

``corp``: Dimitriadis, Gneiting, Jordan: Stable reliability diagrams for probabilistic classifiers, PNAS 2021.
``smooth``: Błasiok, Nakkiran: Smooth ECE, ICLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik

from hcal.metrics.sample import Vector
from hcal.metrics.smooth import CELLS, smooth_error, smoothed, spectrum

Binning = Literal["equal-width", "equal-mass", "corp", "smooth"]
BINNINGS: tuple[str, ...] = get_args(Binning)
#: Points of the smooth curve; each is the mean of several cells of the grid. The kernel is never narrower than one.
POINTS: Final = 128


@dataclass(frozen=True)
class Parts:
    """The decomposition of an event's Brier score: miscalibration − discrimination + uncertainty."""

    miscalibration: float
    discrimination: float
    uncertainty: float


@dataclass(frozen=True)
class ReliabilityCurve:
    """One reliability curve; arrays have shape (bins,), NaN where a bin is empty.

    Attributes
    ----------
    title : str
    edges : array of shape (bins + 1,)
        Bins (lo, hi]; the first one also takes 0.
    weight : array
        Rows (or their weights) in the bin.
    predicted, observed : array
        Mean probability, and frequency of the event.
    low, high : array
        Consistency band of ``observed``.
    error : float
        Σ_b (n_b/N)|predicted − observed|; of a smooth curve, the smooth calibration error.
    binning : {"equal-width", "equal-mass", "corp", "smooth"}
    parts : Parts or None
        Of a CORP curve: the decomposition of the event's Brier score.
    """

    title: str
    edges: Vector
    weight: Vector
    predicted: Vector
    observed: Vector
    low: Vector
    high: Vector
    error: float
    binning: Binning = "equal-width"
    parts: Parts | None = None

    @property
    def along(self) -> bool:
        """Whether the band runs along the curve; otherwise every bin has a band of its own."""
        return self.binning in ("corp", "smooth")

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Which bins lie outside their consistency band."""
        with np.errstate(invalid="ignore"):
            return (self.observed < self.low) | (self.observed > self.high)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dictionary for each bin with rows."""
        return [
            {
                "curve": self.title,
                "from": float(self.edges[b]),
                "to": float(self.edges[b + 1]),
                "rows": float(self.weight[b]),
                "predicted": float(self.predicted[b]),
                "observed": float(self.observed[b]),
                "low": float(self.low[b]),
                "high": float(self.high[b]),
            }
            for b in np.flatnonzero(self.weight > 0)
        ]


def binned_curve(
    title: str,
    p: Vector,
    event: Vector,
    weight: Vector,
    *,
    bins: int,
    binning: Binning,
    level: float,
) -> ReliabilityCurve:
    """Return the curve of an event in bins of equal width or equal mass; p, event, weight (N,)."""
    edges = np.linspace(0, 1, bins + 1)
    if binning == "equal-mass":
        edges = np.quantile(p, edges)
        edges[0], edges[-1] = 0.0, 1.0
    which = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, bins - 1)
    w, sum_p, sum_e, square = (
        np.bincount(which, weights=x, minlength=bins).astype(np.float64, copy=False)
        for x in (weight, weight * p, weight * event, weight**2)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        predicted, observed, size = sum_p / w, sum_e / w, w**2 / square
    low, high = consistency_band(predicted, size, level)
    gap = np.nansum(np.abs(sum_p - sum_e)) / weight.sum()
    return ReliabilityCurve(title, edges, w, predicted, observed, low, high, float(gap), binning)


def consistency_band(p: Vector, n: Vector, level: float) -> tuple[Vector, Vector]:
    """Return where the frequency of n events of probability p lies with at least the given probability.

    Shapes: p, n, low, high (bins,), NaN where a bin is empty.

    >>> consistency_band(np.array([0.5]), np.array([100.0]), 0.95)
    (array([0.4]), array([0.6]))
    """
    safe = np.clip(np.nan_to_num(p, nan=0.5), 1e-300, 1 - 1e-16)
    size = np.maximum(np.nan_to_num(n, nan=1.0), 1.0)
    ends = []
    for q in ((1 - level) / 2, (1 + level) / 2):
        # The smallest number of events whose binomial distribution function reaches q.
        count = np.clip(np.ceil(np.nan_to_num(bdtrik(q, size, safe), nan=0.0) - 1e-9), 0, size)
        ends.append(np.where(np.isnan(p), np.nan, count / size))
    # Certain events (p = 0 or 1) have no spread.
    certain = (p <= 0) | (p >= 1)
    return np.where(certain, p, ends[0]), np.where(certain, p, ends[1])


# -- isotonic regression --------------------------------------------------------------------------


def corp_curve(
    title: str, p: Vector, event: Vector, weight: Vector, level: float, resamples: int, rng: Any
) -> ReliabilityCurve:
    """Return the isotonic regression of an event (pool adjacent violators); its steps are the bins.

    For the consistency band, as in the paper, events are simulated with the predicted probabilities and fitted
    again; the band is between quantiles of these fits.

    >>> p, event = np.array([0.1, 0.2, 0.3]), np.array([1.0, 0.0, 1.0])
    >>> curve = corp_curve("", p, event, np.ones(3), 0.95, 20, np.random.default_rng(0))
    >>> curve.observed, curve.weight
    (array([0.5, 1. ]), array([2., 1.]))
    """
    from scipy.optimize import isotonic_regression  # a slow import that only this curve needs

    used = weight > 0
    values, place = np.unique(
        p[used], return_inverse=True
    )  # equal probabilities are taken together
    mass, hits = (np.bincount(place, v[used]).astype(np.float64) for v in (weight, weight * event))
    fit = isotonic_regression(hits / mass, weights=mass)
    first = np.asarray(fit.blocks[:-1], dtype=np.int64)
    steps, sum_p, sum_e = (np.add.reduceat(x, first) for x in (mass, mass * values, hits))
    predicted, observed = sum_p / steps, sum_e / steps
    edges = np.concatenate([[0.0], (values[first[1:]] + values[first[1:] - 1]) / 2, [1.0]])

    at = np.clip(np.searchsorted(values, predicted, side="right") - 1, 0, len(values) - 1)
    counts, rates = np.maximum(np.rint(mass), 1).astype(np.int64), np.clip(values, 0, 1)
    # one draw at a time: all of them together would be as many copies of the rows
    drawn = (rng.binomial(counts, rates) / counts for _ in range(resamples))
    fits = np.stack([isotonic_regression(rate, weights=mass).x[at] for rate in drawn])
    low, high = np.quantile(fits, [(1 - level) / 2, (1 + level) / 2], axis=0)
    low, high = np.minimum(low, predicted), np.maximum(high, predicted)

    def brier(q: Vector) -> float:  # from the frequencies: an event is 0 or 1
        return float((q**2 * mass + (1 - 2 * q) * hits).sum() / mass.sum())

    best, constant = brier(np.asarray(fit.x)), brier(np.full_like(values, hits.sum() / mass.sum()))
    parts = Parts(brier(values) - best, constant - best, constant)
    gap = float(steps @ np.abs(predicted - observed) / weight.sum())
    return ReliabilityCurve(title, edges, steps, predicted, observed, low, high, gap, "corp", parts)


# -- kernel regression ----------------------------------------------------------------------------


def smooth_curve(
    title: str, p: Vector, event: Vector, weight: Vector, level: float, resamples: int, rng: Any
) -> ReliabilityCurve:
    """Return the kernel regression of an event; the kernel is as wide as the smooth calibration error."""
    error = smooth_error(p, event - p, weight)
    width = max(error, 1 / POINTS)
    mass = _points(spectrum(p, weight), width)
    near = mass > 1e-3 * weight.sum() / POINTS  # elsewhere there are too few rows for a ratio
    drawn = np.stack(
        [_points(spectrum(p, weight * (rng.random(len(p)) < p)), width) for _ in range(resamples)]
    )
    low, high = np.quantile(_ratio(drawn, mass, near), [(1 - level) / 2, (1 + level) / 2], axis=0)
    observed = _ratio(_points(spectrum(p, weight * event), width), mass, near)
    edges = np.linspace(0, 1, POINTS + 1)
    at = np.where(near, (edges[1:] + edges[:-1]) / 2, np.nan)
    return ReliabilityCurve(
        title, edges, np.where(near, mass, 0.0), at, observed, low, high, error, "smooth"
    )


def _points(waves: Vector, width: float) -> Vector:
    return np.asarray(
        np.maximum(smoothed(waves, width).reshape(POINTS, CELLS // POINTS).sum(axis=1), 0)
    )


def _ratio(events: Vector, mass: Vector, near: Vector) -> Vector:
    return np.where(near, np.clip(events / np.where(near, mass, 1.0), 0, 1), np.nan)
