"""Reliability curves of one event as data: in bins, by isotonic regression, or by a kernel.

A curve shows how often an event happened against its predicted probability. Its *consistency band* is where the
frequency lies in 95 % of the cases if the predictions are calibrated (Bröcker and Smith, 2007): a point outside it is
evidence of miscalibration. The band of a bin is a binomial quantile at the bin's mean probability; the exact
distribution, a sum of Bernoulli variables with different probabilities, is never wider. The bands of curves without
bins come from simulated events. The interval of a bin is around its frequency instead (Wilson), whatever was stated.

``corp``: Dimitriadis, Gneiting, Jordan: Stable reliability diagrams for probabilistic classifiers, PNAS 2021.
``smooth``: Błasiok, Nakkiran: Smooth ECE, ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik, ndtri

from hcal.metrics.by_chance import Noise, levels_by_chance
from hcal.metrics.sample import Sample, Vector
from hcal.metrics.smooth import CELLS, smooth_error, smoothed, spectrum
from hcal.numerics import Float64, IntArray
from hcal.rows import ClassNames
from hcal.text import JsonObject

Binning = Literal["equal-width", "equal-mass", "corp", "smooth"]
BINNINGS: tuple[str, ...] = get_args(Binning)
#: Points of the smooth curve; each is the mean of several cells of the grid. The kernel is never narrower than one.
POINTS: Final = 128
#: Bins of equal mass whose frequencies stand for the truth where the noise of dependent rows is measured.
_MASS_BINS: Final = 15
#: Bins with fewer rows than this are too noisy for the line, and have small dots.
ENOUGH: Final = 10
#: Cells in which the rows are counted for the histogram below a diagram.
HISTOGRAM_CELLS: Final = 30


@dataclass(frozen=True)
class Parts:
    """The decomposition of an event's Brier score: miscalibration − discrimination + uncertainty."""

    miscalibration: float
    discrimination: float
    uncertainty: float


@dataclass(frozen=True)
class JudgedEvent:
    """The stated probability of an event and whether it happened, for every row.

    Attributes
    ----------
    title : str
        What the event is: a class, or the top label.
    p, happened, weight : array of shape (N,)
    groups : array of shape (N,), optional
        Numbers of groups of rows that depend on each other.
    model, segment : str
        Whose probabilities these are, and of which rows; empty if there is one of them alone.
    """

    title: str
    p: Vector
    happened: Vector
    weight: Vector
    groups: IntArray | None = None
    model: str = ""
    segment: str = ""


def judged_event(
    s: Sample,
    column: int | None,
    *,
    names: ClassNames | None = None,
    groups: IntArray | None = None,
    model: str = "",
) -> JudgedEvent:
    """Return the event of a class by its number, or of the predicted class (None)."""
    if column is None:
        data = s.data
        return JudgedEvent("top label", data.top_conf, data.top_hit, s.w, groups, model)
    title = f"class {column if names is None else names[column]}"
    p = s.data.probs[:, column].astype(np.float64)
    happened = (s.y == column).astype(np.float64)
    return JudgedEvent(title, p, happened, s.w, groups, model)


@dataclass(frozen=True)
class CurveOptions:
    """How curves are made."""

    binning: Binning = "equal-width"
    bins: int = 15
    confidence: float = 0.95
    resamples: int = 200

    @property
    def quantiles(self) -> tuple[float, float]:
        """The ends of a two-sided interval."""
        return (1 - self.confidence) / 2, (1 + self.confidence) / 2


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
    by_chance : float or None
        What ``error`` would be by chance, if the probabilities were calibrated; None for rows in groups.
    interval_low, interval_high : array or None
        Confidence interval of ``observed``, of curves in bins.
    model, segment : str
        Whose probabilities these are, and of which rows; empty if there is one of them alone.

    Examples
    --------
    >>> import hcal
    >>> curve = hcal.reliability([[0.2, 0.8], [0.3, 0.7]], [1, 1], bins=1)[0]
    >>> curve.predicted, curve.observed
    (array([0.75]), array([1.]))
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
    by_chance: float | None = None
    interval_low: Vector | None = None
    interval_high: Vector | None = None
    model: str = ""
    segment: str = ""

    @property
    def label(self) -> str:
        """The model and the segment; where there is one of each alone, what the event is."""
        return ", ".join(part for part in (self.model, self.segment) if part) or self.title

    @property
    def error_words(self) -> str:
        """The error, with what it would be by chance."""
        words = f"{self.error:.4f}"
        return words if self.by_chance is None else f"{words} ({self.by_chance:.4f} by chance)"

    @property
    def along(self) -> bool:
        """Whether the band runs along the curve; otherwise every bin has a band of its own."""
        return self.binning in ("corp", "smooth")

    @property
    def full(self) -> NDArray[np.bool_]:
        """Which bins hold rows."""
        return self.weight > 0

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Which bins lie outside their consistency band."""
        with np.errstate(invalid="ignore"):
            return (self.observed < self.low) | (self.observed > self.high)

    def to_records(self) -> list[JsonObject]:
        """Return one dictionary for each bin with rows."""
        return [self._record(b) for b in np.flatnonzero(self.full).tolist()]

    def _record(self, b: int) -> JsonObject:
        record: JsonObject = {"curve": self.title}
        if self.model:
            record["model"] = self.model
        if self.segment:
            record["segment"] = self.segment
        record["from"] = float(self.edges[b])
        record["to"] = float(self.edges[b + 1])
        record["rows"] = float(self.weight[b])
        record["predicted"] = float(self.predicted[b])
        record["observed"] = float(self.observed[b])
        record["low"] = float(self.low[b])
        record["high"] = float(self.high[b])
        if self.interval_low is not None and self.interval_high is not None:
            record["interval_low"] = float(self.interval_low[b])
            record["interval_high"] = float(self.interval_high[b])
        return record


def curve_of(
    event: JudgedEvent, options: CurveOptions, rng: np.random.Generator
) -> ReliabilityCurve:
    """Return the curve of an event."""
    if options.binning == "corp":
        return corp_curve(event, options, rng)
    if options.binning == "smooth":
        return smooth_curve(event, options, rng)
    return binned_curve(event, options)


# -- bins -------------------------------------------------------------------------------------------


def binned_curve(event: JudgedEvent, options: CurveOptions) -> ReliabilityCurve:
    """Return the curve of an event in bins of equal width or equal mass."""
    p = event.p
    bins = options.bins
    edges = np.linspace(0, 1, bins + 1)
    if options.binning == "equal-mass":
        edges = np.quantile(p, edges)
        edges[0], edges[-1] = 0.0, 1.0
    which = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, bins - 1)

    weight = _sums(which, event.weight, bins)
    stated = _sums(which, event.weight * p, bins)
    happened = _sums(which, event.weight * event.happened, bins)
    squares = _sums(which, event.weight**2, bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        predicted = stated / weight
        observed = happened / weight
        size = weight**2 / squares
    if event.groups is not None:
        size /= _inflation(event, event.groups, which, observed)
    low, high = consistency_band(predicted, size, options.confidence)
    interval_low, interval_high = wilson_interval(observed, size, options.confidence)
    gap = float(np.nansum(np.abs(stated - happened)) / event.weight.sum())
    return ReliabilityCurve(
        title=event.title,
        edges=edges,
        weight=weight,
        predicted=predicted,
        observed=observed,
        low=low,
        high=high,
        error=gap,
        binning=options.binning,
        by_chance=_binned_by_chance(event, which, weight, stated),
        interval_low=interval_low,
        interval_high=interval_high,
        model=event.model,
        segment=event.segment,
    )


def _sums(which: IntArray, values: Vector, bins: int) -> Float64:
    return np.bincount(which, values, bins).astype(np.float64, copy=False)


def _binned_by_chance(
    event: JudgedEvent, which: IntArray, weight: Vector, stated: Vector
) -> float | None:
    """Return what the error would be by chance, from Σ w and Σ w·p of the bins; None for rows in groups."""
    if event.groups is not None:
        return None
    bins = len(weight)
    of_rows = event.weight * event.p * (1 - event.p)
    variance = _sums(which, of_rows, bins)
    weighted_variance = _sums(which, event.weight * of_rows, bins)
    noise = Noise(weight, stated, variance, weighted_variance)
    copies = np.array_equal(event.weight, np.rint(event.weight))
    return float(noise.gaps(copies=copies).error(float(event.weight.sum())))


def _inflation(event: JudgedEvent, groups: IntArray, which: IntArray, observed: Vector) -> Vector:
    """Return by how much dependence inflates the variance of each bin's frequency; at least 1, (bins,)."""
    bins = len(observed)
    residual = event.weight * (event.happened - np.nan_to_num(observed)[which])
    group = np.unique(groups, return_inverse=True)[1]
    n_groups = int(group.max()) + 1
    cell, place = np.unique(which * n_groups + group, return_inverse=True)
    bin_of_cell = cell // n_groups
    squares = _sums(bin_of_cell, _sums(place, residual, len(cell)) ** 2, bins)
    alone = _sums(which, residual**2, bins)
    count = np.bincount(bin_of_cell, minlength=bins)
    few = count / np.maximum(count - 1, 1)
    ratio = np.divide(few * squares, alone, out=np.ones(bins), where=alone > 0)
    return np.maximum(ratio, 1.0)


def _noise_factor(event: JudgedEvent) -> float:
    """Return by how much dependence of rows widens the noise of a curve without bins; 1 for independent rows."""
    if event.groups is None:
        return 1.0
    edges = np.quantile(event.p, np.linspace(0, 1, _MASS_BINS + 1)[1:-1])
    which = np.searchsorted(edges, event.p)
    weight = np.maximum(_sums(which, event.weight, _MASS_BINS), 1e-300)
    observed = _sums(which, event.weight * event.happened, _MASS_BINS) / weight
    residual = JudgedEvent(
        "", event.p, event.happened - observed[which], event.weight, event.groups
    )
    together = np.zeros(len(event.p), dtype=np.int64)
    return float(np.sqrt(_inflation(residual, event.groups, together, np.zeros(1))[0]))


def wilson_interval(share: Vector, n: Vector, level: float) -> tuple[Vector, Vector]:
    """Return Wilson's confidence interval of shares of n rows, (bins,) each; NaN where a share is.

    >>> low, high = wilson_interval(np.array([0.5]), np.array([100.0]), 0.95)
    >>> low.round(3), high.round(3)
    (array([0.404]), array([0.596]))
    """
    z = float(ndtri((1 + level) / 2))
    odd = z**2 / n
    centre = (share + odd / 2) / (1 + odd)
    margin = np.sqrt(odd * share * (1 - share) + odd**2 / 4) / (1 + odd)
    return centre - margin, centre + margin


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
    event: JudgedEvent, options: CurveOptions, rng: np.random.Generator
) -> ReliabilityCurve:
    """Return the isotonic regression of an event (pool adjacent violators); its steps are the bins.

    For the consistency band, as in the paper, events are simulated with the predicted probabilities and fitted
    again; the band is between quantiles of these fits.

    >>> event = JudgedEvent("", np.array([0.1, 0.2, 0.3]), np.array([1.0, 0.0, 1.0]), np.ones(3))
    >>> curve = corp_curve(event, CurveOptions("corp", resamples=20), np.random.default_rng(0))
    >>> curve.observed, curve.weight
    (array([0.5, 1. ]), array([2., 1.]))
    """
    from scipy.optimize import isotonic_regression  # a slow import that only this curve needs

    used = event.weight > 0
    # Equal probabilities are taken together.
    values, place = np.unique(event.p[used], return_inverse=True)
    mass = _sums(place, event.weight[used], len(values))
    hits = _sums(place, (event.weight * event.happened)[used], len(values))
    fit = isotonic_regression(hits / mass, weights=mass)
    first = np.asarray(fit.blocks[:-1], dtype=np.int64)
    steps = np.add.reduceat(mass, first)
    predicted = np.add.reduceat(mass * values, first) / steps
    observed = np.add.reduceat(hits, first) / steps
    edges = np.concatenate([[0.0], (values[first[1:]] + values[first[1:] - 1]) / 2, [1.0]])

    at = np.clip(np.searchsorted(values, predicted, side="right") - 1, 0, len(values) - 1)
    rates = _drawn_rates(values, mass, options.resamples, rng)
    factor = _noise_factor(event)
    frequencies = (values + factor * (rate - values) for rate in rates)
    fits, errors = _corp_of_draws(values, mass, at, frequencies)
    low, high = np.quantile(fits, options.quantiles, axis=0)

    total = float(mass.sum())
    best = _brier(np.asarray(fit.x), mass, hits)
    constant = _brier(np.full_like(values, hits.sum() / total), mass, hits)
    return ReliabilityCurve(
        title=event.title,
        edges=edges,
        weight=steps,
        predicted=predicted,
        observed=observed,
        low=np.minimum(low, predicted),
        high=np.maximum(high, predicted),
        error=float(steps @ np.abs(predicted - observed) / total),
        binning="corp",
        parts=Parts(_brier(values, mass, hits) - best, constant - best, constant),
        by_chance=float(np.mean(errors)) if event.groups is None else None,
        model=event.model,
        segment=event.segment,
    )


def _corp_of_draws(
    values: Vector, mass: Vector, at: IntArray, frequencies: Iterable[Vector]
) -> tuple[list[Vector], list[float]]:
    """Return isotonic regressions of frequencies that were drawn, at the steps of the curve, and their errors."""
    from scipy.optimize import isotonic_regression

    fits = []
    errors = []
    for frequency in frequencies:
        drawn = isotonic_regression(frequency, weights=mass)
        fits.append(drawn.x[at])
        gaps = np.add.reduceat(mass * (values - drawn.x), drawn.blocks[:-1])
        errors.append(float(np.abs(gaps).sum() / mass.sum()))
    return fits, errors


def _drawn_rates(
    values: Vector, mass: Vector, count: int, rng: np.random.Generator
) -> Iterator[Vector]:
    """Yield frequencies of events that are drawn with their probabilities, one draw at a time, which saves memory."""
    counts = np.maximum(np.rint(mass), 1).astype(np.int64)
    rates = np.clip(values, 0, 1)
    several = np.flatnonzero(counts > 1)
    for _ in range(count):
        # A binomial variable of one event is drawn in an eighth of the time.
        drawn = (rng.random(len(rates)) < rates).astype(np.float64)
        drawn[several] = rng.binomial(counts[several], rates[several]) / counts[several]
        yield drawn


def _brier(q: Vector, mass: Vector, hits: Vector) -> float:
    """Return the Brier score of probabilities from frequencies: an event is 0 or 1."""
    return float((q**2 * mass + (1 - 2 * q) * hits).sum() / mass.sum())


# -- kernel regression ----------------------------------------------------------------------------


def smooth_curve(
    event: JudgedEvent, options: CurveOptions, rng: np.random.Generator
) -> ReliabilityCurve:
    """Return the kernel regression of an event; the kernel is as wide as the smooth calibration error."""
    p = event.p
    weight = event.weight
    error = smooth_error(p, event.happened - p, weight)
    width = max(error, 1 / POINTS)
    mass = _points(spectrum(p, weight), width)
    near = mass > 1e-3 * weight.sum() / POINTS  # elsewhere there are too few rows for a ratio
    drawn = []
    factor = _noise_factor(event)
    for _ in range(options.resamples):
        noise = (rng.random(len(p)) < p) - p
        events = weight * (p + factor * noise)
        drawn.append(_ratio(_points(spectrum(p, events), width), mass, near))
    low, high = np.quantile(drawn, options.quantiles, axis=0)

    edges = np.linspace(0, 1, POINTS + 1)
    by_chance = None
    if event.groups is None:
        sample = Sample(p, event.happened.astype(np.int64), weight)
        by_chance = levels_by_chance(sample, {"smece": error})["smece"]
    return ReliabilityCurve(
        title=event.title,
        edges=edges,
        weight=np.where(near, mass, 0.0),
        predicted=np.where(near, (edges[1:] + edges[:-1]) / 2, np.nan),
        observed=_ratio(_points(spectrum(p, weight * event.happened), width), mass, near),
        low=low,
        high=high,
        error=error,
        binning="smooth",
        by_chance=by_chance,
        model=event.model,
        segment=event.segment,
    )


def _points(waves: Vector, width: float) -> Vector:
    cells = smoothed(waves, width).reshape(POINTS, CELLS // POINTS)
    return np.asarray(np.maximum(cells.sum(axis=1), 0))


def _ratio(events: Vector, mass: Vector, near: NDArray[np.bool_]) -> Vector:
    return np.where(near, np.clip(events / np.where(near, mass, 1.0), 0, 1), np.nan)
