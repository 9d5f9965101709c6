"""Axes of probabilities that suit the data: from 0 to 1, zoomed in, or logarithmic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.numerics import Float64


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis, with ticks at round numbers."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, values: ArrayLike) -> Float64:
        """Return the positions of values on the axis, from 0 to 1; values outside are put at the nearer end.

        >>> Axis(0, 2).place([0.5, 7]), Axis(0.01, 1, log=True).place([0.1]).round(9)
        (array([0.25, 1.  ]), array([0.5]))
        """
        inside = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        if self.log:
            return np.asarray(np.log(inside / self.low) / math.log(self.high / self.low))
        return np.asarray((inside - self.low) / (self.high - self.low))

    def holds(self, values: Float64) -> NDArray[np.bool_]:
        """Return which values lie on the axis.

        >>> Axis(0.01, 1).holds(np.array([0.001, 0.5]))
        array([False,  True])
        """
        return np.asarray((values >= self.low) & (values <= self.high))

    def edges(self, count: int) -> Float64:
        """Return the ends of so many cells of equal width on the axis, shape (count + 1,)."""
        if self.log:
            return np.geomspace(self.low, self.high, count + 1)
        return np.linspace(self.low, self.high, count + 1)

    def ticks(self) -> list[float]:
        """Return three to seven round numbers on the axis.

        >>> Axis(0, 0.137).ticks(), Axis(0.01, 1, log=True).ticks()
        ([0.0, 0.05, 0.1], [0.01, 0.1, 1.0])
        """
        if self.log:
            return self._logarithmic_ticks()
        rough = (self.high - self.low) / 5
        step = round_up(rough * 0.999)
        start = math.ceil(self.low / step - 1e-9)
        stop = math.floor(self.high / step + 1e-9)
        return [float(f"{i * step:.10g}") for i in range(start, stop + 1)]

    def _logarithmic_ticks(self) -> list[float]:
        """Return powers of ten on the axis; of few of them also their doubles and quintuples."""
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        candidates = [10.0**power for power in range(first, last + 1)]
        if len(candidates) < 3:
            powers = np.power(10.0, np.arange(first - 1, last + 1))
            candidates = sorted(np.outer(powers, [1, 2, 5]).ravel().tolist())
        inside = [t for t in candidates if self.low * 0.999 <= t <= self.high * 1.001]
        return [float(f"{t:.1g}") for t in inside]


def round_up(value: float) -> float:
    """Return the next round number: 1, 2 or 5 times a power of ten; 0 stays 0.

    >>> round_up(0.03), round_up(0.7)
    (0.05, 1.0)
    """
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def tick(value: float, share: bool) -> str:
    """Format the number of a tick, as a share in per cent or as it is."""
    return f"{100 * value:.4g} %" if share else f"{value:,.6g}".replace("-", "−")


def probability_axis(
    *probabilities: NDArray[np.floating], observed: NDArray[np.floating] | None = None
) -> Axis:
    """Return an axis that suits the probabilities: from 0 to 1, or zoomed in, or logarithmic.

    Frequencies that were ``observed`` lie on the axis too.

    If 90 % of them are below 0.2, the axis ends at the next round number above the 99.9 % quantile. If also half of
    them are below a twentieth of that number, the axis is logarithmic. If almost all of them are above one half, the
    axis begins at the next tenth below them.

    >>> probability_axis(np.array([0.1, 0.9])), probability_axis(np.full(9, 0.03))
    (Axis(low=0.0, high=1.0, log=False), Axis(low=0.0, high=0.05, log=False))
    >>> probability_axis(np.array([0.75, 0.99]))
    Axis(low=0.7, high=1.0, log=False)
    """
    values = np.concatenate([np.ravel(p) for p in probabilities]).astype(np.float64)
    quantiles = np.quantile(values, [0.001, 0.02, 0.5, 0.9, 0.999])
    lowest, low, middle, most, largest = (float(quantile) for quantile in quantiles)
    if observed is not None and len(observed):
        lowest = min(lowest, float(observed.min()))
        largest = max(largest, float(observed.max()))
    if lowest > 0.5:
        return Axis(min(math.floor(10 * lowest) / 10, 0.9), 1.0)
    if most >= 0.2 or largest <= 0:
        return Axis()
    high = min(round_up(largest), 1.0)
    if middle >= high / 20:
        return Axis(0.0, high)
    lowest_power = math.floor(math.log10(max(low, high / 1e4)))
    return Axis(10.0**lowest_power, high, log=True)
