"""What the gaps of bins are by chance: every event is drawn with its stated probability, so that only noise is left.

A bin holds the gap Σ w·(p − event). If the events are drawn, its mean is 0, and its size follows from the sums Σ w·p
and Σ w·p(1 − p) alone, so it can be computed block by block. The number of events in a bin is taken as binomial, with
the mean and the variance that it really has; for large counts this is a normal variable.

A weight that is a whole number stands for that many rows, each with an event of its own. If any weight is not, then
every row is one observation, whatever its weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.special import gammaln

from hcal.metrics.sample import Vector
from hcal.numerics import Float64

#: Counts with a larger variance are normal to a ten-thousandth of their mean size.
_NORMAL: Final = 1000.0
#: Binomial variables with a smaller rate are Poisson variables to rounding.
_POISSON: Final = 1e-6
#: The square of a larger ratio has no float; only events rarer than 10⁻³⁰⁰ have one.
_LARGEST_RATIO: Final = 1e150
#: Draws behind the largest gap of all bins, and their seed.
_LARGEST_DRAWS: Final = 100
_SEED: Final = 0


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
