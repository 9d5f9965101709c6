"""Events in ascending order of their probability, and the sums that top-label metrics read off them.

``Ranked`` holds one set of weights and marks. :class:`hcal.metrics.device_ranked.DeviceRanked` answers the
same questions for many of them at once, where the data are: then every answer has one more, first axis. The
metrics do not know the difference: they work on the last axis.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from hcal.metrics.kernels import exponential_sum, kde_error
from hcal.metrics.smooth import smooth_error
from hcal.numerics import Float64, IntArray, prefix_sums

Prefixes = tuple[Float64, Float64, Float64]


class Ranked:
    """Events with weights, the least probable first.

    Shapes: ascending probabilities, whether the event happened (0.0 or 1.0), and weights (N,).

    >>> r = Ranked(np.array([0.5, 0.75]), np.array([0.0, 1.0]), np.ones(2))
    >>> [float(x) for x in r.walk()]
    [0.5, 0.25]
    """

    def __init__(self, conf: Float64, hit: Float64, weight: Float64) -> None:
        self.conf, self.hit, self.weight = conf, hit, weight

    @cached_property
    def total(self) -> Any:
        """Sum of the weights."""
        return self.weight.sum()

    @cached_property
    def prefix(self) -> Prefixes:
        """Prefix sums, from 0, of weight, weight·conf and weight·hit."""
        w = self.weight
        return prefix_sums(w), prefix_sums(w * self.conf), prefix_sums(w * self.hit)

    def at_rows(self, positions: IntArray) -> Prefixes:
        """Return the prefix sums at numbers of rows, shape (..., P)."""
        weight, conf, hit = (x[positions] for x in self.prefix)
        return weight, conf, hit

    def at_copies(self, copies: Float64) -> tuple[Float64, Float64]:
        """Return the prefix sums of conf and hit at numbers of copies: interpolation is exact, see bins."""
        weight, conf, hit = self.prefix
        return np.interp(copies, weight, conf), np.interp(copies, weight, hit)

    def row_of(self, copies: Float64) -> IntArray:
        """Return the row that a copy, counted from 0, belongs to."""
        return np.searchsorted(self.prefix[0][1:], copies, side="right").astype(np.int64)

    def sums(self, values: Float64, positions: IntArray) -> Float64:
        """Return Σ weight·value of the rows between consecutive positions; values (N,)."""
        return np.diff(prefix_sums(self.weight * values)[positions])

    @property
    def monotone(self) -> Any:
        """Whether no miss follows a hit."""
        return np.asarray((np.diff(self.hit[self.weight > 0]) >= 0).all())

    def single(self, _: tuple[int, ...]) -> Ranked:
        """Return one replicate of many."""
        return self

    def dot(self, values: Float64) -> Any:
        """Return Σ weight·value; values (N,)."""
        return np.dot(self.weight, values)

    def dot_hits(self, values: Float64) -> Any:
        """Return Σ weight·hit·value; values (N,)."""
        return np.dot(self.weight * self.hit, values)

    def walk(self, ends: IntArray | None = None) -> tuple[Any, Any]:
        """Return the highest and the lowest point of the cumulated weight·(conf − hit), at some rows only."""
        gap = np.cumsum(self.weight * (self.conf - self.hit), axis=-1)
        gap = gap if ends is None else gap[..., ends]
        return gap.max(axis=-1), gap.min(axis=-1)

    def kernel_sum(self, rate: float) -> Any:
        """Return Σ_ij r_i r_j exp(−rate·|conf_i − conf_j|), r = weight·(hit − conf)."""
        return exponential_sum(self.conf, self.weight * (self.hit - self.conf), rate)

    def smooth_error(self) -> Any:
        """Return the smooth calibration error."""
        return smooth_error(self.conf, self.hit - self.conf, self.weight)

    def kde_error(self, bandwidth: float | None) -> Any:
        """Return the error with densities in place of bins."""
        return kde_error(self.conf, self.hit, self.weight, bandwidth)
