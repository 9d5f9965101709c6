"""Spline calibration (Gupta et al., ICLR 2021), extended to all ranks."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import numpy as np
from scipy.interpolate import CubicSpline

from hcal import xp
from hcal.maps.base import array, map_type
from hcal.methods._curves import (
    MOST,
    Curves,
    Points,
    columns,
    default_floor,
    end_to_end,
    read_curves,
)
from hcal.methods._scaling import by_rank
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import NotNegative, TwoOrMore, parameters
from hcal.numerics import Float64, run_starts, softmax
from hcal.rows import Rows
from hcal.xp import Array, namespace


@map_type
class RankCurves(Curves):
    """A curve for each rank: for the largest probability, the second largest, and so on."""

    knots: Array = array("calibration scores, rank after rank", "P", low=0, high=MOST)
    values: Array = array("recalibrated scores, cut to [0, 1] in use", "P")

    def raw(self, probs: Array) -> Array:
        """Return the curves at the probabilities, before rows are divided by their sum."""
        xp = namespace(probs)
        scores, order = xp.sort_rows(probs)
        curved = read_curves(scores, self.offsets, self.knots, self.values, self.shape)
        inside = xp.clip(curved, 0.0, 1.0)
        return xp.put_along(0 * probs, order, mean_of_ties(inside, scores))


def mean_of_ties(values: Array, keys: Array) -> Array:
    """Give classes of equal key the mean of their values; keys (N, K) are sorted along rows.

    >>> mean_of_ties(np.array([[0.5, 0.3, 0.2]]), np.array([[2.0, 1.0, 1.0]]))
    array([[0.5 , 0.25, 0.25]])
    """
    xp = namespace(values)
    no_change = keys[..., :1] < keys[..., :1]
    changes = xp.concat([no_change, keys[..., 1:] != keys[..., :-1]])
    run = xp.floor_index(xp.cumsum(xp.astype(changes, values)))
    sizes = xp.sum_by(0 * values + 1, run)
    means = xp.sum_by(values, run) / xp.maximum(sizes, 1.0)
    return xp.take_along(means, run)


@parameters
class SplineCalibration(Calibrator):
    """Moves the r-th largest probability by the slope of a spline through the cumulative gap of its rank.

    Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu, Hartley: Calibration of neural networks using splines,
    ICLR 2021. The original treats ranks 1 and 2; the comparison extends it to all K ranks and normalises.
    The map holds the calibration scores of every rank, about twice the calibration set.

    Parameters
    ----------
    knots : int
        Equally spaced knots of the natural cubic spline, at least 2.
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-20 as published.

    Examples
    --------
    >>> cal = SplineCalibration(floor=0, input="probs").fit([[0.1, 0.9]] * 40, [1, 1, 1, 0] * 10)
    >>> cal.predict_proba([[0.1, 0.9]]).round(1)
    array([[0.2, 0.8]])
    """

    name = "spline"
    title = "Spline calibration"
    map_types = (RankCurves,)

    knots: TwoOrMore = 6
    floor: NotNegative | None = None

    def _fit(self, rows: Rows) -> Fitted:
        probs = xp.rounded(softmax(rows.x))
        ranked, first = by_rank(probs, rows.labels)
        # Tied classes share their ranks: a hit counts as 1/ties at each.
        label_probs = ranked[np.arange(len(rows)), first]
        ties = (ranked == label_probs[:, None]).sum(axis=1)

        spline = CumulativeSpline.of(len(rows), self.knots)
        curves = []
        for rank, scores in columns(ranked):
            hit = ((first <= rank) & (rank < first + ties)) / ties
            curves.append(spline.recalibrated(scores, hit))
        floor = default_floor(self.floor, *probs.shape)
        return Fitted(RankCurves(shape="line", floor=floor, **end_to_end(curves)))


class CumulativeSpline(NamedTuple):
    """Least-squares natural cubic splines on [0, 1] for values at N equally spaced points."""

    solve: Float64  # (G, N): values at the points ↦ values at the knots
    slope: Float64  # (N, G): values at the knots ↦ slopes at the points

    @classmethod
    def of(cls, n_rows: int, n_knots: int) -> Self:
        """Return the splines with equally spaced knots."""
        points = np.linspace(0, 1, n_rows)
        knots = np.linspace(0, 1, n_knots)
        ends: Literal["natural", "not-a-knot"] = "natural" if n_knots > 2 else "not-a-knot"
        cardinal = CubicSpline(knots, np.eye(n_knots), bc_type=ends)
        values = np.asarray(cardinal(points), dtype=np.float64)
        slopes = np.asarray(cardinal(points, 1), dtype=np.float64)
        return cls(np.asarray(np.linalg.pinv(values), dtype=np.float64), slopes)

    def recalibrated(self, score: Float64, hit: Float64) -> Points:
        """Return the distinct scores of one rank, ascending, and their recalibrated values."""
        order = np.argsort(score, kind="stable")
        score = score[order]
        # Rows of equal score share their hits and get one value, so that the order of rows does not matter.
        first = run_starts(score)
        size = np.diff(first, append=len(score))
        hits = np.repeat(np.add.reduceat(hit[order], first) / size, size)

        cumulated_gap = np.cumsum(hits - score) / len(score)
        value = score + self.slope @ (self.solve @ cumulated_gap)
        return score[first], np.add.reduceat(value, first) / size
