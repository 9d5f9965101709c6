"""Venn-Abers predictors, inductive and cross (Vovk, Petej & Fedorova, NeurIPS 2015), one against the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcal import inputs, xp
from hcal.calibrators._curves import columns, pool_equal
from hcal.calibrators._log_odds import OddsMap, events, log_odds, log_sigmoid
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.folds import deal_folds
from hcal.calibrators.parameters import parameters
from hcal.maps.base import array, map_type
from hcal.maps.prediction import raise_to_floor
from hcal.numerics import Float64, IntArray, prefix_sums, run_starts
from hcal.xp import Array, namespace

#: p0 is below 1 and p1 above 0, however many rows agree.
_MOST, _LEAST = 1 - 2.0**-53, 1e-200


@map_type
class VennAbersSteps(OddsMap):
    """The step functions p0 and p1 of each event's log-odds, in each fold."""

    low_knots: Array = array("where p0 changes, event after event, fold after fold", "P")
    low: Array = array("p0 from there on", "P", low=0, high=_MOST)
    high_knots: Array = array("where p1 changes", "Q")
    high: Array = array("p1 up to there", "Q", low=_LEAST, high=1)
    low_offsets: Array = array("which of low are whose", "F", "E+1", low=0, dtype="int64")
    high_offsets: Array = array("which of high are whose", "F", "E+1", low=0, dtype="int64")

    def curved(self, odds: Array) -> Array:
        """Return calibrated log-odds of log-odds, (N, E) → (N, E)."""
        miss, hit = self.log_sides(odds)
        return hit - miss

    def log_sides(self, odds: Array) -> tuple[Array, Array]:
        """Return ln(1 − p0) and ln p1 (N, E), their means over the folds; without a curve, of p itself."""
        xp = namespace(odds)
        odds = xp.rounded(odds)
        folds = range(self.low_offsets.shape[0])
        sides = [self._sides(odds, self.low_offsets[f], self.high_offsets[f]) for f in folds]
        return sum(miss for miss, _ in sides) / len(folds), sum(hit for _, hit in sides) / len(folds)

    def _sides(self, odds: Array, below: Array, above: Array) -> tuple[Array, Array]:
        miss, hit = log_sigmoid(-odds), log_sigmoid(odds)
        if self.low.shape[0] == 0 or self.high.shape[0] == 0:
            return miss, hit
        xp = namespace(odds)
        # Below all rows a miss stands alone: p0 is 0. Above all rows a hit does: p1 is 1.
        count = xp.segment_search(self.low_knots, below, odds, right=True)
        low = xp.take(self.low, xp.clip(below[:-1] + count - 1, 0, self.low.shape[0] - 1))
        low = xp.where(count > 0, low, 0.0)
        count, length = xp.segment_search(self.high_knots, above, odds), above[1:] - above[:-1]
        high = xp.take(self.high, xp.clip(above[:-1] + count, 0, self.high.shape[0] - 1))
        high = xp.where(count < length, high, 1.0)
        known = length > 0
        return xp.where(known, xp.log1p(-low), miss), xp.where(known, xp.log(high), hit)

    expansion = 4

    def check(self) -> None:
        """Raise a ValueError where fields do not fit each other."""
        for offsets, knots in ((self.low_offsets, self.low_knots), (self.high_offsets, self.high_knots)):
            flat = offsets.ravel()
            if flat.size == 0 or flat[0] != 0 or flat[-1] != len(knots) or (np.diff(flat) < 0).any():
                raise ValueError(f"offsets must rise from 0 to the {len(knots)} knots")


@parameters
class VennAbers(Calibrator):
    """Isotonic regression with the new row added once as a miss and once as a hit: an interval (p0, p1).

    One of the two is calibrated, whatever the distribution. The probability given is p1/(1 − p0 + p1), which
    loses least log-loss in the worse of the two cases; it is never 0 or 1. Two classes have one event; with
    more, each class against the rest, and rows divided by their sum. A class absent from the calibration rows
    keeps its probability. A weight counts rows, and the new row is one: weights that are all 7 make the interval
    about 7 times narrower.

    Vovk, Petej, Fedorova: Large-scale probabilistic predictors with and without guarantees of validity,
    NeurIPS 2015.

    Parameters
    ----------
    folds : int
        1: inductive, all rows in one regression, where the guarantee holds. More: cross, a regression a fold,
        merged by geometric means; smoother, without the guarantee.

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

    folds: int = 1

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        if self.folds < 1:
            raise ValueError(f"folds must be at least 1, got {self.folds!r}")
        fold = deal_folds(x, y, self.folds, groups)
        parts = [np.flatnonzero(fold == f) for f in np.unique(fold)]
        return Fitted(_fit_all(xp.rounded(log_odds(x)), y, weight, parts))

    def predict_interval(self, logits: Any) -> tuple[Float64, Float64]:
        """Return (p0, p1): between which calibrated probabilities each class lies, one against the rest.

        Parameters
        ----------
        logits : array-like of shape (N, K), or (N,) for a binary score

        Returns
        -------
        two arrays of shape (N, K)
            With several folds, the geometric means that the prediction merges. Rows do not sum to 1.
        """
        if self.prediction_.prior is not None:
            raise ValueError("intervals are of the class frequencies of the fit: ask before with_prior")
        x = inputs.check_logits(logits, input=self.input, n_classes=self.n_classes_)[0].astype(np.float64)
        floor = self.prediction_.floor
        odds = log_odds(x if floor is None else raise_to_floor(x, floor))
        assert isinstance(self.map_, VennAbersSteps)
        miss, p1 = (np.exp(side) for side in self.map_.log_sides(events(odds)))
        p0 = 1 - miss
        if self.n_classes_ == 2:
            return np.hstack([1 - p1, p0]), np.hstack([1 - p0, p1])
        return p0, p1


def _fit_all(odds: Float64, y: IntArray, weight: Float64 | None, parts: list[IntArray]) -> VennAbersSteps:
    """Return the steps of all folds and events end to end, events within folds."""
    used = events(odds)
    first = odds.shape[1] - used.shape[1]
    found: dict[str, list[Float64]] = {"low_knots": [], "low": [], "high_knots": [], "high": []}
    for rows in parts:
        own = None if weight is None else weight[rows]
        mass = np.bincount(y[rows], weights=own, minlength=odds.shape[1])
        for column, o in columns(used[rows]):
            known = mass[column + first] > 0 and np.count_nonzero(mass) > 1
            hit = (y[rows] == column + first).astype(np.float64)
            steps = _steps(*pool_equal(o, hit, own)) if known else (np.empty(0),) * 4
            for name, part in zip(found, steps, strict=True):
                found[name].append(part)
    low_offsets, high_offsets = (_offsets(found[name], len(parts)) for name in ("low", "high"))
    arrays = {name: np.concatenate(pieces) for name, pieces in found.items()}
    return VennAbersSteps(**arrays, low_offsets=low_offsets, high_offsets=high_offsets)


def _offsets(pieces: list[Float64], n_folds: int) -> IntArray:
    """Return (folds, events + 1): where the steps of each begin, and where those of its last end."""
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    starts = ends[:-1].reshape(n_folds, -1)
    return np.hstack([starts, ends[1:].reshape(n_folds, -1)[:, -1:]])


def _steps(x: Float64, mass: Float64, hits: Float64) -> tuple[Float64, Float64, Float64, Float64]:
    """Return p0 and p1 as step functions: where they change, and to what.

    p0 of a score is that of the greatest x below or at it, p1 that of the smallest above or at it.
    """
    low, high = _added(mass, hits, 0.0), _added(mass, hits, 1.0)
    starts = run_starts(low)
    ends = np.flatnonzero(np.concatenate([high[1:] != high[:-1], [True]]))
    low, high = np.minimum(low[starts], _MOST), np.maximum(high[ends], _LEAST)
    return x[starts], low, x[ends], high


def _added(mass: Float64, hits: Float64, label: float) -> Float64:
    """Return, for every point, the isotonic fit there after one more row with this label at that point.

    The fit at j is the slope with which the greatest convex minorant of the cumulated hits passes j. With a
    row added at j, it is the lower tangent that bridges the hull of the points before j and that of the
    points from j on, moved by the row; both hulls are chains that do not depend on j, and all bridges are
    walked at once.
    """
    w, s = prefix_sums(mass), prefix_sums(hits)
    before, after = _chain(w, s), len(w) - 1 - _chain(-w[::-1], s[::-1])[::-1]
    left, right = np.arange(len(mass)), np.arange(1, len(w))

    def slope(i: IntArray, j: IntArray) -> Float64:
        steepness: Float64 = (s[j] - s[i] + label) / (w[j] - w[i] + 1)
        return steepness

    while True:
        now = slope(left, right)
        further = after[right]
        moved = (further != right) & (slope(left, further) < now)
        right = np.where(moved, further, right)
        now = np.where(moved, slope(left, right), now)
        nearer = before[left]
        shifted = (nearer != left) & (slope(nearer, right) > now)
        left = np.where(shifted, nearer, left)
        if not (moved.any() or shifted.any()):
            return np.clip(now, 0.0, 1.0)


def _chain(w: Float64, s: Float64) -> IntArray:
    """Return, for every point, the one before it on the lower hull of all up to it; the first, itself."""
    previous = np.zeros(len(w), dtype=np.int64)
    width, height = w.tolist(), s.tolist()
    chain: list[int] = [0]
    for i in range(1, len(width)):
        while len(chain) > 1:
            a, b = chain[-2], chain[-1]
            # b leaves the hull when it does not lie below the line from a to i.
            if (height[b] - height[a]) * (width[i] - width[a]) < (height[i] - height[a]) * (
                width[b] - width[a]
            ):
                break
            chain.pop()
        previous[i] = chain[-1]
        chain.append(i)
    return previous
