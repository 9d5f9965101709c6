"""What a plug-in error shows by chance: its mean if every label is drawn from its stated probability.

A perfectly calibrated model of the same sharpness shows as much on as many rows, because noise alone makes absolute
gaps positive. Errors of bins have it in closed form (``Metric.by_chance``, :class:`Noise`). Other errors of one event
are computed on 20 draws of the events, on at most 10,000 probabilities that stand for all rows.

A bin holds the gap Σ w·(p − event). If the events are drawn, its mean is 0, and its size follows from the sums Σ w·p
and Σ w·p(1 − p) alone, so it can be computed block by block. The number of events in a bin is taken as binomial, with
the mean and the variance that it really has; for large counts this is a normal variable.

A weight that is a whole number stands for that many rows, each with an event of its own. If any weight is not, then
every row is one observation, whatever its weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from scipy.special import gammaln

from hcal.metrics.registry import METRICS, Metric
from hcal.metrics.sample import Sample, Vector
from hcal.numerics import Float64, IntArray

#: How often events are drawn, for how many probabilities at most, and the seed.
DRAWS: Final = 20
MOST_PROBABILITIES: Final = 10_000
_SEED: Final = 0
#: Counts with a larger variance are normal to a ten-thousandth of their mean size.
_NORMAL: Final = 1000.0
#: Binomial variables with a smaller rate are Poisson variables to rounding.
_POISSON: Final = 1e-6
#: The square of a larger ratio has no float; only events rarer than 10⁻³⁰⁰ have one.
_LARGEST_RATIO: Final = 1e150
#: Draws behind the largest gap of all bins.
_LARGEST_DRAWS: Final = 100


def levels_by_chance(s: Sample, values: Mapping[str, float]) -> dict[str, float]:
    """Return what metrics show by chance; ``values`` holds what they show on the sample.

    Scores and debiased errors have no such level. Neither has a metric of yours, unless you ask for its interval.

    >>> s = Sample([[0.5, 0.5]] * 4, [0, 1, 1, 1])
    >>> levels = levels_by_chance(s, {"ece_ew": 0.25, "brier": 0.5})
    >>> {name: round(level, 6) for name, level in levels.items()}
    {'ece_ew': 0.1875}
    """
    defined = [METRICS[name] for name, value in values.items() if not np.isnan(value)]
    plugin = [metric for metric in defined if metric.kind == "plug-in"]
    levels = {}
    drawn = []
    for metric in plugin:
        if metric.by_chance is not None:
            rows = s.subset if metric.large else s
            levels[metric.name] = metric.by_chance(rows, values[metric.name])
        elif metric.of_hits:
            drawn.append(metric)
    if drawn:
        levels |= drawn_levels(Crowd.of(s), drawn)
    return {name: levels[name] for name in values if name in levels}


@dataclass(frozen=True)
class Crowd:
    """Ascending probabilities of one event, each of which stands for several rows.

    Attributes
    ----------
    p, weight : array of shape (R,)
        The probability, and the sum of the weights of its rows.
    events : array of shape (R,)
        How many independent events these rows are worth.
    """

    p: Vector
    weight: Vector
    events: IntArray

    @classmethod
    def of(cls, s: Sample) -> Self:
        """Return the probabilities of a sample; of more than 10,000 neighbours are put together.

        >>> Crowd.of(Sample([0.2, 0.7, 0.7], [0, 1, 1])).events
        array([1, 2])
        """
        ranked = s.ranked
        ends = ranked.cuts
        if len(ends) > MOST_PROBABILITIES + 1:
            places = np.linspace(0, len(ends) - 1, MOST_PROBABILITIES + 1)
            ends = ends[places.astype(np.int64)]
        weight, stated, _ = np.diff(ranked.prefix[:, ends])
        events = weight
        if not s.is_whole:
            # A row is one observation, whatever its weight: Kish's effective number.
            squares = np.add.reduceat(ranked.weight**2, ends[:-1])
            events = weight**2 / np.where(squares > 0, squares, 1.0)
        used = weight > 0
        return cls.of_sums(weight[used], stated[used], events[used])

    @classmethod
    def of_sums(cls, weight: Vector, stated: Vector, events: Vector) -> Self:
        """Return probabilities from Σ w and Σ w·p over rows with nearly the same one."""
        counts = np.maximum(np.rint(events), 1).astype(np.int64)
        return cls(np.clip(stated / weight, 0.0, 1.0), weight, counts)

    def draws(self, count: int) -> Iterator[Sample]:
        """Yield samples in which every event is drawn; a hit is then the share of its rows."""
        weight = None if (self.weight == 1).all() else self.weight
        sample = Sample(self.p, np.zeros(len(self.p), dtype=np.int64), weight)
        rng = np.random.default_rng(_SEED)
        p = sample.data.conf_sorted
        single = bool((self.events == 1).all())
        for _ in range(count):
            # The same as a binomial variable of one event, in an eighth of the time.
            hits = rng.random(len(p)) < p if single else rng.binomial(self.events, p) / self.events
            yield sample.with_hits(hits)


def drawn_levels(crowd: Crowd, metrics: Iterable[Metric]) -> dict[str, float]:
    """Return the means of metrics of one event over draws; a metric that cannot take the weights is left out."""
    chosen = list(metrics)
    values: dict[str, list[float]] = {metric.name: [] for metric in chosen}
    for sample in crowd.draws(DRAWS):
        for metric in chosen:
            if metric.takes(sample):
                values[metric.name].append(metric.function(sample))
    return {name: float(np.mean(drawn)) for name, drawn in values.items() if drawn}


# -- gaps of bins, in closed form -------------------------------------------------------------------


class Noise(NamedTuple):
    """The sums of bins from which the noise of their gaps follows; arrays (bins,), or (K, bins) for every class."""

    weight: Float64  # Σ w
    stated: Float64  # Σ w·p
    variance: Float64  # Σ w·p(1 − p)
    weighted_variance: Float64  # Σ w²·p(1 − p)

    def gaps(self, *, copies: bool) -> DrawnGaps:
        """Return the gaps by chance; with ``copies`` a weight stands for that many rows."""
        rarer = np.maximum(np.minimum(self.stated, self.weight - self.stated), 0.0)
        variance = np.clip(self.variance, 0.0, rarer)
        unit = np.ones_like(variance)
        if not copies:
            # Where one of the sums is rounding, next to no event is drawn, and any unit serves.
            drawn = (variance > 0) & (self.weighted_variance > 0)
            np.divide(self.weighted_variance, variance, out=unit, where=drawn)
        return DrawnGaps(self.weight, unit, rarer / unit, variance / unit)


@dataclass(frozen=True)
class DrawnGaps:
    """The gaps of bins if events are drawn: ``unit`` times the distance of a count from its mean.

    Attributes
    ----------
    weight, unit : array of shape (..., bins)
        Σ w of a bin, and the weight of one event.
    mean, variance : array of shape (..., bins)
        Of the count of the rarer outcome, of the events or of the rows without one.
    """

    weight: Float64
    unit: Float64
    mean: Float64
    variance: Float64

    @property
    def size(self) -> Float64:
        """The mean size E|gap| of each bin."""
        return self.unit * mean_deviation(self.mean, self.variance)

    @property
    def share(self) -> Float64:
        """The mean size E|gap/weight| of each bin; 0 for an empty bin."""
        return self.size / np.where(self.weight > 0, self.weight, 1.0)

    def error(self, total: float, order: float = 1) -> Vector:
        """Return the mean of (Σ_b (n_b/N)·|gap_b/n_b|^r)^(1/r) over draws, r = 1 or 2; shape (...,)."""
        if order == 1:
            return np.asarray(self.size.sum(axis=-1) / total)
        return self._root_mean_square(total)

    def _root_mean_square(self, total: float) -> Vector:
        """Return the mean of the root of Q = Σ_b gap_b²/(n_b·N).

        It is √(E Q) less what the spread of the root takes away. That spread is exact for a single bin, and for several
        it is the spread of each, weighted with its part in Q.
        """
        square = self.unit**2 * self.variance
        part = square / np.where(self.weight > 0, self.weight, 1.0) / total
        mean = part.sum(axis=-1)
        share = part / np.where(mean > 0, mean, 1.0)[..., None]
        size = self.size
        ratio = np.ones_like(square)
        np.divide(np.sqrt(square), size, out=ratio, where=size > 0)
        ratio = np.minimum(ratio, _LARGEST_RATIO)
        relative = ((share * ratio) ** 2 - share**2).sum(axis=-1)
        return np.asarray(np.sqrt(mean / (1 + relative)))

    def largest(self) -> float:
        """Return the mean over draws of the largest |gap/weight| of all bins, from 100 draws of each bin's count."""
        rng = np.random.default_rng(_SEED)
        full = self.weight > 0
        mean = self.mean[full]
        unit = self.unit[full]
        weight = self.weight[full]
        trials = np.maximum(np.rint(weight / unit), 1).astype(np.int64)
        rate = np.clip(mean / trials, 0, 1)
        counts = rng.binomial(trials, rate, (_LARGEST_DRAWS, len(mean)))
        gaps = np.abs(counts - mean) * unit / weight
        return float(gaps.max(axis=1).mean())


def mean_deviation(mean: Float64, variance: Float64) -> Float64:
    """Return E|X − mean| of binomial variables with these means and variances (de Moivre), elementwise.

    >>> mean_deviation(np.array([0.5, 0.0, 4e6]), np.array([0.25, 0.0, 2e6])).round(3).tolist()
    [0.5, 0.0, 1128.379]
    """
    rate = _rate(mean, variance)
    rare = rate < _POISSON
    rate = np.where(rare, 0.5, rate)
    trials = mean / rate
    below = np.floor(mean)
    log_mean = np.log(np.maximum(mean, 1e-300))

    binomial = gammaln(trials + 1) - gammaln(np.maximum(trials - below, 1e-300))
    binomial += (below + 1) * np.log(rate) + (trials - below) * np.log1p(-rate)
    poisson = (below + 1) * log_mean - mean
    exact = 2 * np.exp(np.where(rare, poisson, binomial) - gammaln(below + 1))
    normal = np.sqrt(2 / np.pi * variance)
    exact = np.where(mean > 0, exact, 0.0)
    return np.asarray(np.where(variance > _NORMAL, normal, exact))


def _rate(mean: Float64, variance: Float64) -> Float64:
    """Return the rate of the binomial variable with this mean and variance; 0 for a Poisson variable."""
    ratio = np.divide(variance, mean, out=np.ones_like(mean), where=mean > 0)
    return np.asarray(np.clip(1 - ratio, 0.0, 1 - 1e-12))
