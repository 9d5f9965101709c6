"""What a plug-in error shows by chance: its mean if every label is drawn from its stated probability.

A perfectly calibrated model of the same sharpness shows as much on as many rows, because noise alone makes absolute
gaps positive. Errors of bins have it in closed form (``Metric.by_chance``, :mod:`hcal.metrics.noise`). Other errors of
one event are computed on 20 draws of the events, on at most 10,000 probabilities that stand for all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from hcal.metrics.registry import METRICS, Metric
from hcal.metrics.sample import Sample, Vector
from hcal.numerics import IntArray

#: How often events are drawn, for how many probabilities at most, and the seed.
DRAWS: Final = 20
MOST_PROBABILITIES: Final = 10_000
_SEED: Final = 0


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
