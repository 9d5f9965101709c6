"""Venn-Abers predictors, inductive and cross (Vovk, Petej & Fedorova, NeurIPS 2015), one against the rest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hcal import xp
from hcal.frames import AnyArray
from hcal.maps.base import array, map_type, raise_to_floor
from hcal.methods._curves import NO_POINTS, Points, columns, end_to_end, pool_equal, read_curves
from hcal.methods._log_odds import OddsMap, event_labels, events, log_odds
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.folds import deal_folds
from hcal.methods.parameters import Count, parameters
from hcal.numerics import Float64, IntArray, prefix_sums
from hcal.rows import Rows
from hcal.xp import Array, log_sigmoid, namespace


@map_type
class VennAbersSteps(OddsMap):
    """Step functions for each side (hit, miss), fold and event: P(side) after the new row was added as that side.

    The side "miss" is the side "hit" with the sign of the log-odds reversed.
    """

    knots: Array = array("where the curves end their steps, curve after curve", "P")
    values: Array = array("of the curves up to there", "P", low=1e-200, high=1)
    offsets: Array = array(
        "which points are whose: sides, folds, events", 2, "F", "E+1", low=0, dtype="int64"
    )

    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""
        hit, miss = self.log_sides(odds)
        return hit - miss

    def log_sides(self, odds: Array) -> tuple[Array, Array]:
        """Return ln p1 and ln(1 − p0) (N, E), averaged over the folds; an event without a curve has p0 = p1 = p."""
        rounded = namespace(odds).rounded(odds)
        log_hit = self._log_mean(rounded, self.offsets[0])
        log_miss = self._log_mean(-rounded, self.offsets[1])
        return log_hit, log_miss

    def _log_mean(self, odds: Array, offsets: Array) -> Array:
        xp = namespace(odds)
        plain = log_sigmoid(odds)
        total = 0.0
        for f in range(offsets.shape[0]):
            probs = read_curves(odds, offsets[f], self.knots, self.values, "step")
            has_curve = offsets[f][1:] > offsets[f][:-1]
            log_probs = xp.log(xp.where(has_curve, probs, 1.0))
            total = total + xp.where(has_curve, log_probs, plain)
        return total / offsets.shape[0]

    expansion = 4

    def check(self) -> None:
        """Raise a ValueError if fields contradict each other."""
        size = len(self.knots)
        flat = self.offsets.ravel()
        spans_all = flat.size > 0 and flat[0] == 0 and flat[-1] == size
        if not spans_all or (np.diff(flat) < 0).any():
            raise ValueError(f"'offsets' must rise from 0 to the {size} knots")


@parameters
class VennAbers(Calibrator):
    """Isotonic regression with the new row added once as a miss and once as a hit: an interval (p0, p1).

    One of the two is calibrated, whatever the distribution. The predicted probability is p1/(1 − p0 + p1), which loses
    the least log-loss in the worse of the two cases; it is never 0 or 1. Two classes have one event; with more, there
    is one for each class against the rest, and rows are divided by their sum. A class without calibration rows keeps
    its probability. A weight counts rows, and the new row counts as one: weights of 7 make the interval about 7 times
    narrower.

    Vovk, Petej, Fedorova: Large-scale probabilistic predictors with and without guarantees of validity,
    NeurIPS 2015.

    Parameters
    ----------
    folds : int
        1: the inductive form, one regression on all rows, for which the guarantee holds. More: the cross form, one
        regression in each fold, merged by geometric means; smoother, but without the guarantee.

    Examples
    --------
    >>> cal = VennAbers(input="probs").fit([[0.4, 0.6], [0.2, 0.8]] * 2, [0, 1, 1, 0])
    >>> cal.predict_proba([[0.1, 0.9]]).round(3)
    array([[0.375, 0.625]])
    >>> [edge[0, 1].round(3) for edge in cal.predict_interval([[0.1, 0.9]])]
    [np.float64(0.4), np.float64(1.0)]
    """

    name = "venn_abers"
    title = "Venn-Abers"
    weighted = True
    grouped = True
    map_types = (VennAbersSteps,)

    folds: Count = 1

    def _fit(self, rows: Rows) -> Fitted:
        odds = events(xp.rounded(log_odds(rows.x)))
        fold = deal_folds(rows.x, self.folds, rows.groups)
        curves = []
        for side in (1, -1):
            for f in range(int(fold.max()) + 1):
                curves += _side_curves(rows[fold == f], odds[fold == f], side)

        steps = end_to_end(curves)
        starts = steps["offsets"]
        n_events = odds.shape[1]
        firsts = starts[:-1].reshape(2, -1, n_events)
        ends = starts[1:].reshape(2, -1, n_events)
        offsets = np.concatenate([firsts, ends[..., -1:]], axis=-1)
        return Fitted(VennAbersSteps(knots=steps["knots"], values=steps["values"], offsets=offsets))

    def predict_interval(self, logits: AnyArray) -> tuple[Float64, Float64]:
        """Return (p0, p1), the interval of the calibrated probability of each class against the rest.

        Parameters
        ----------
        logits : array-like of shape (N, K), or (N,) for a binary score

        Returns
        -------
        two arrays of shape (N, K)
            With several folds, geometric means over the folds. Rows do not sum to 1.
        """
        if self.prediction_.prior is not None:
            raise ValueError(
                "intervals are of the class frequencies of the fit: ask before with_prior"
            )
        x = self.rows_like(logits).logits().astype(np.float64)
        floor = self.prediction_.floor
        odds = log_odds(x if floor is None else raise_to_floor(x, floor))
        assert isinstance(self.map_, VennAbersSteps)
        log_hit, log_miss = self.map_.log_sides(events(odds))
        by_hit = np.exp(log_hit)
        by_miss = 1 - np.exp(log_miss)
        # The geometric means of folds that disagree may cross; the probability still lies between them.
        p0 = np.minimum(by_miss, by_hit)
        p1 = np.maximum(by_miss, by_hit)
        if self.n_classes_ == 2:
            return np.hstack([1 - p1, p0]), np.hstack([1 - p0, p1])
        return p0, p1


def _side_curves(rows: Rows, odds: Float64, side: int) -> list[Points]:
    """Return the steps of every event for one side, of the rows of a fold; an event without rows has none."""
    labels = event_labels(rows.labels, rows.n_classes)
    curves = []
    for k, column in columns(side * odds):
        hit = labels == k
        if hit.any():
            curves.append(_steps(column, hit if side > 0 else ~hit, rows.weight))
        else:
            curves.append(NO_POINTS)
    return curves


def _steps(odds: Float64, hit: NDArray[np.bool_], weight: Float64 | None) -> Points:
    """Return p1 as steps: a score gets the value of the smallest of the odds at or above it, and 1 above all."""
    x, mass, hits = pool_equal(odds, hit, weight)
    high = with_a_hit(mass, hits)
    ends = np.flatnonzero(np.append(high[1:] != high[:-1], True))
    return np.append(x[ends], x[-1]), np.append(np.maximum(high[ends], 1e-200), 1.0)


def with_a_hit(mass: Float64, hits: Float64) -> Float64:
    """Return, for every point, the isotonic fit at that point after one more row, a hit, was added there.

    The isotonic fit at j is the slope at j of the greatest convex minorant of the cumulated hits. With a row added at
    j, it is the slope of the common lower tangent of two convex hulls: that of the points before j, and that of the
    points from j on, shifted by the row. Both hulls are chains that do not depend on j, so all tangents are found at
    once. Shapes: mass, hits (n,), in the order of the scores.

    >>> with_a_hit(np.array([2.0, 2.0]), np.array([1.0, 1.0])).round(3)
    array([0.6  , 0.667])
    """
    w = prefix_sums(mass)
    s = prefix_sums(hits)
    before = _chain(w, s)
    after = len(w) - 1 - _chain(-w[::-1], s[::-1])[::-1]
    left = np.arange(len(mass))
    right = np.arange(1, len(w))
    while True:
        slope = _slope_with_a_hit(w, s, left, right)
        further = after[right]
        moved = (further != right) & (_slope_with_a_hit(w, s, left, further) < slope)
        right = np.where(moved, further, right)

        slope = np.where(moved, _slope_with_a_hit(w, s, left, right), slope)
        nearer = before[left]
        shifted = (nearer != left) & (_slope_with_a_hit(w, s, nearer, right) > slope)
        left = np.where(shifted, nearer, left)
        if not (moved.any() or shifted.any()):
            return np.clip(slope, 0.0, 1.0)


def _slope_with_a_hit(w: Float64, s: Float64, left: IntArray, right: IntArray) -> Float64:
    """Return the slope of the cumulated hits s over the mass w from ``left`` to ``right``, a row and a hit added."""
    return np.asarray((s[right] - s[left] + 1) / (w[right] - w[left] + 1))


def _chain(w: Float64, s: Float64) -> IntArray:
    """Return, for every point, its predecessor on the lower hull of the points up to it; the first has itself."""
    previous = np.zeros(len(w), dtype=np.int64)
    width = w.tolist()
    height = s.tolist()
    chain = [0]
    for i in range(1, len(width)):
        while len(chain) > 1:
            a, b = chain[-2:]
            rise = height[i] - height[a]
            run = width[i] - width[a]
            if (height[b] - height[a]) * run < rise * (width[b] - width[a]):
                break  # b lies below the line from a to i: it stays on the hull
            chain.pop()
        previous[i] = chain[-1]
        chain.append(i)
    return previous
