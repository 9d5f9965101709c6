"""The h loss of events that tie in groups, in time that depends on the groups and not on the events.

Between the ends of groups the error of a window is linear in its position, so sums over positions are
arithmetic series, and so are the k-means that weigh the windows and the slopes that an event gathers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hcal.objective.settings import EVEN, HALF_WAY, ObjectiveSettings
from hcal.numerics import Float64, IntArray, prefix_sums


class TiedGroups(NamedTuple):
    """Runs of events, ascending: how many, their probability and rate of marks, their bucket, their kind.

    ``kind`` is 0 or 1 for the unmarked or marked events of a bucket of one value, 2 for a bucket of several.
    ``cut`` bounds how far the sums of probabilities and marks over a part of a bucket are from the even ones.
    """

    size: Float64
    q: Float64
    rate: Float64
    bucket: IntArray
    kind: IntArray
    cut: Float64


class _WindowMean(NamedTuple):
    """Position ↦ mean of the window that begins there; ``sums`` over events are linear between ``ends``."""

    ends: Float64
    sums: Float64
    window: float

    def __call__(self, position: Float64) -> Float64:
        last, first = (np.interp(at, self.ends, self.sums) for at in (position + self.window, position))
        return (last - first) / self.window


class _Series(NamedTuple):
    """Numbers of positions that run linearly from ``low`` to ``high`` between cuts, and sums over them."""

    first: Float64
    low: Float64
    gain: Float64
    prefix: Float64

    @classmethod
    def between(cls, cuts: Float64, low: Float64, high: Float64) -> _Series:
        count = np.diff(cuts)
        gain = np.where(count > 1, (high - low) / np.maximum(count - 1, 1), 0.0)
        return cls(cuts[:-1], low, gain, prefix_sums(count * (low + high) / 2))

    def up_to(self, j: Float64, place: IntArray) -> Float64:
        """Return the sum of the numbers before position j, which lies in the piece ``place``."""
        t = j - self.first[place]
        return self.prefix[place] + t * self.low[place] + self.gain[place] * t * (t - 1) / 2


def _place(cuts: Float64, j: Float64) -> IntArray:
    """Return the piece between cuts that holds each position."""
    return np.clip(np.searchsorted(cuts, j, side="right") - 1, 0, len(cuts) - 2)


class TiedLoss(NamedTuple):
    """A loss, how far even marks can move it, and the slope of every group (G,)."""

    value: float
    bound: float
    slope: Float64


def tied_loss(groups: TiedGroups, s: ObjectiveSettings) -> TiedLoss:
    """Return the loss, its bound, and the mean gradient of every group's events.

    >>> one, at = np.ones(2), np.arange(2)
    >>> groups = TiedGroups(one, np.array([0.25, 0.75]), np.array([0.0, 1.0]), at, at, 0 * one)
    >>> brier = ObjectiveSettings(window=1, epsilon=0, scale=1, norm=2, weighting="uniform")
    >>> tied_loss(groups, brier).slope
    array([ 0.25, -0.25])
    """
    ends = prefix_sums(groups.size)
    n = float(ends[-1])
    m = min(float(s.window), n)
    n_windows = n - m + 1
    # Sums over the events up to a rank, from which those of a window are differences.
    centroid, rate = (
        _WindowMean(ends, prefix_sums(groups.size * each), m) for each in (groups.q, groups.rate)
    )
    cuts = _within(np.concatenate([ends, ends - m]), n_windows)
    edges = _cluster_edges(cuts, centroid(cuts[:-1]), centroid(cuts[1:] - 1), n_windows, s)
    cuts = _within(np.concatenate([cuts, edges]), n_windows)
    cuts = _within(np.concatenate([cuts, *_crossings(cuts, centroid, rate, s.epsilon)]), n_windows)
    first, last = cuts[:-1], cuts[1:] - 1
    count = last - first + 1
    counts = np.diff(edges)
    weight = (1 / (len(counts) * np.maximum(counts, 1)))[np.searchsorted(edges[1:-1], first, side="right")]
    excess, sign = zip(*(_excess(centroid(j), rate(j), s.epsilon) for j in (first, last)), strict=True)
    if s.norm == 1:
        terms, tilt = count * (excess[0] + excess[1]) / 2, [sign[i] * (excess[i] > 0) for i in (0, 1)]
    else:
        spread = np.where(count > 1, (excess[1] - excess[0]) ** 2 * (count + 1) / np.maximum(count - 1, 1), 0)
        terms = count * (((excess[0] + excess[1]) / 2) ** 2 + spread / 12)
        tilt = [2 * sign[i] * excess[i] for i in (0, 1)]
    value = s.scale * float(weight @ terms)
    # Between cuts both ends of a window stay in one group each; a window ends with the event j + m − 1.
    at = (np.searchsorted(ends, j, side="right") - 1 for j in (first, last + m - 1))
    reach = sum((np.minimum(groups.cut[a], m) for a in at), np.zeros(len(first)))
    bound = s.scale * float(weight @ (count * reach)) / m
    slope = _spread(groups, ends, cuts, [weight * t for t in tilt], m) * (s.scale / m)
    return TiedLoss(value, bound, slope)


def _within(positions: Float64, n_windows: float) -> Float64:
    """Return positions inside 0..n_windows, both ends among them, ascending."""
    return np.unique(np.clip(np.concatenate([positions, [0.0, n_windows]]), 0.0, n_windows))


def _excess(centroid: Float64, rate: Float64, epsilon: float) -> tuple[Float64, Float64]:
    error = centroid - rate
    excess = np.abs(error) - epsilon
    excess[excess <= EVEN * rate] = 0
    return excess, np.sign(error)


def _crossings(cuts: Float64, centroid: _WindowMean, rate: _WindowMean, epsilon: float) -> list[Float64]:
    """Return positions around which the error passes ±ε: windows there stand alone, the rest has one sign."""
    first, last = cuts[:-1], cuts[1:] - 1
    low, high = centroid(first) - rate(first), centroid(last) - rate(last)
    found = []
    for level in {epsilon, -epsilon}:
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (level - low) / (high - low)
        near = np.isfinite(share) & (share >= 0) & (share <= 1)
        at = np.floor(first[near] + share[near] * (last - first)[near])
        found += [np.clip(at + step, first[near], last[near] + 1) for step in (-1, 0, 1, 2, 3)]
    return found


def _cluster_edges(
    cuts: Float64, low: Float64, high: Float64, n_windows: float, s: ObjectiveSettings
) -> Float64:
    """Return the k-means edges (C + 1,) of the windows' centroids, from ``low`` to ``high`` between cuts.

    As :func:`hcal.objective.weights.kmeans_ranges`, step by step.
    """
    if s.weighting == "uniform":
        return np.array([0.0, n_windows])
    series = _Series.between(cuts, low, high)
    first, gain, count = series.first, series.gain, np.diff(cuts)

    def value(j: Float64) -> Float64:
        place = _place(cuts, j)
        return low[place] + gain[place] * (j - first[place])

    def edges_of(centres: Float64) -> Float64:
        middle = HALF_WAY * (centres[1:] + centres[:-1]) / 2
        place = np.maximum(np.searchsorted(low, middle, side="right") - 1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.floor((middle - low[place]) / gain[place]) + 1
        whole = (middle >= high[place]) | ~np.isfinite(inside)
        t = np.where(
            middle < low[place], 0.0, np.where(whole, count[place], np.clip(inside, 0, count[place]))
        )
        return np.concatenate([[0.0], np.maximum.accumulate(first[place] + t), [n_windows]])

    at = (np.arange(s.clusters) + 0.5) / s.clusters * (n_windows - 1)
    below = np.floor(at)
    above = np.minimum(below + 1, n_windows - 1)
    centres = value(below) + (at - below) * (value(above) - value(below))
    for _ in range(s.iterations):
        edges = edges_of(centres)
        counts, sums = np.diff(edges), np.diff(series.up_to(edges, _place(cuts, edges)))
        centres = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    return edges_of(centres)


def _spread(groups: TiedGroups, ends: Float64, cuts: Float64, tilt: list[Float64], m: float) -> Float64:
    """Return for every group the mean over its ranks of the sum of slopes of the windows that hold the rank.

    ``tilt`` are the slopes of the first and last window between cuts, linear in between. Their sum over the
    windows up to a position is quadratic there, so three values give the sum over any run of ranks without
    the loss of digits that long prefix sums would bring.
    """
    series = _Series.between(cuts, *tilt)
    bounds = _within(np.concatenate([ends, cuts - 1, cuts - 1 + m]), ends[-1])
    low, high = bounds[:-1], bounds[1:] - 1
    size = high - low + 1

    def summed(r: Float64, at: Float64) -> Float64:
        """Sum of slopes of the windows that hold rank r, both ends of the sum in the pieces of ``at``."""
        sides = []
        for shift in (1.0, 1.0 - m):
            place = _place(cuts, np.clip(at + shift, 0.0, cuts[-1]))
            sides.append(series.up_to(np.clip(r + shift, 0.0, cuts[-1]), place))
        return sides[0] - sides[1]

    middle = summed((low + high) / 2, low)
    bend = summed(low, low) + summed(high, low) - 2 * middle
    curved = np.where(size > 1, bend * size * (size + 1) / (6 * np.maximum(size - 1, 1)), 0.0)
    whole = size * middle + curved
    return np.add.reduceat(whole, np.searchsorted(bounds, ends[:-1])) / groups.size
