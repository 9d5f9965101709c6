"""Isotonic regression of each class against the rest: ``iso``, ``cir``, ``enir`` and ``venn_abers``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from hcal import inputs, xp
from hcal.calibrators._curves import (
    Curve,
    CurvePerClass,
    FitCurve,
    columns,
    end_to_end,
    pool_equal,
    read_curves,
)
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.binning import bic_weights, binary_cross_entropy
from hcal.calibrators.folds import deal_folds
from hcal.calibrators.log_odds import OddsMap, event_labels, events, log_odds, log_sigmoid
from hcal.calibrators.parameters import parameters
from hcal.maps.base import array, map_type
from hcal.maps.prediction import raise_to_floor
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums, run_starts
from hcal.xp import Array, namespace


class IsotonicRegression(CurvePerClass):
    """Per class, the non-decreasing curve closest to the labels; linear between its points.

    Zadrozny, Elkan: Transforming classifier scores into accurate multiclass probability estimates, KDD 2002.
    Only exactly equal p_k are pooled: pooling near ones (1e-6) would lump together the small probabilities.

    Parameters
    ----------
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> cal = IsotonicRegression(floor=0, input="probs").fit([[0.4, 0.6], [0.2, 0.8]] * 2, [0, 1, 1, 0])
    >>> cal.predict_proba([[0.1, 0.9]])
    array([[0.5, 0.5]])
    """

    name = "iso"
    title = "Isotonic regression"
    weighted = True
    shape = "line"

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        return _isotonic


def isotonic_points(p: Float64, hit: Float64, weight: Float64 | None) -> tuple[Float64, Float64, Float64]:
    """Return the distinct p, the mass of each and the value of the non-decreasing curve there.

    >>> isotonic_points(np.array([0.2, 0.5]), np.array([1.0, 0.0]), None)[2]
    array([0.5, 0.5])
    """
    knots, mass, hits = pool_equal(p, hit, weight)
    return knots, mass, np.clip(isotonic_regression(hits / mass, weights=mass).x, 0.0, 1.0)


def _isotonic(p: Float64, hit: Float64, weight: Float64 | None) -> Curve:
    knots, _, values = isotonic_points(p, hit, weight)
    # Only the two ends of a flat stretch matter to the interpolation.
    inner = np.zeros(len(values), dtype=bool)
    inner[1:-1] = (values[1:-1] == values[:-2]) & (values[1:-1] == values[2:])
    return knots[~inner], values[~inner]


class CenteredIsotonicRegression(CurvePerClass):
    """Isotonic regression whose flat stretches shrink to their centres, with lines between: nothing ties.

    A flat stretch says only that the rate cannot be told to rise there; a curve that rises through its centre
    fits as well and keeps the ranking. Stretches at 0 and 1 stay flat, as published: no line could pass them.

    Oron, Flournoy: Centered isotonic regression: point and interval estimation for dose-response studies,
    Statistics in Biopharmaceutical Research, 2017.

    Parameters
    ----------
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given.

    Examples
    --------
    >>> probs = [[0.8, 0.2], [0.6, 0.4], [0.4, 0.6], [0.2, 0.8]] * 2
    >>> cal = CenteredIsotonicRegression(floor=0, input="probs").fit(probs, [0, 1, 0, 1, 1, 0, 1, 1])
    >>> cal.predict_proba([[0.5, 0.5]]).round(3)
    array([[0.375, 0.625]])
    """

    name = "cir"
    title = "Centered isotonic regression"
    weighted = True
    shape = "line"

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        return _centered


def _centered(p: Float64, hit: Float64, weight: Float64 | None) -> Curve:
    knots, mass, values = isotonic_points(p, hit, weight)
    first = run_starts(values)
    level = values[first]
    centre = np.add.reduceat(knots * mass, first) / np.add.reduceat(mass, first)
    # A stretch at 0 or 1 keeps both its ends; any other becomes its centre.
    flat = (level <= 0) | (level >= 1)
    low, high = knots[first], knots[np.append(first[1:], len(knots)) - 1]
    points = np.concatenate([np.where(flat, low, centre), high[flat & (high > low)]])
    heights = np.concatenate([level, level[flat & (high > low)]])
    order = np.argsort(points)
    return points[order], heights[order]


# -- near-isotonic regressions ----------------------------------------------------------------------

# The path visits up to G models of up to G groups; each model must be scored, so the work is about G²/2.
# Measured 1e-8 s a group (20,000 rows of 2 classes): 2e10 is some four minutes of one core, extrapolated.
_MAX_WORK = 2e10
# Meeting times that are equal in exact arithmetic differ by rounding; they are one event on the path.
_SAME_TIME = 1e-12


class NearIsotonicEnsemble(CurvePerClass):
    """Per class, an average along the path from the labels to isotonic regression, weighted by BIC.

    Naeini, Cooper: Binary classifier calibration using an ensemble of near isotonic regression models,
    ICDM 2016; the path is the modified PAV algorithm of Tibshirani, Hoefling, Tibshirani: Nearly-isotonic
    regression, Technometrics 2011. Equal p_k are pooled first, so that the order of rows does not matter.

    Parameters
    ----------
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.6, 0.4], [0.5, 0.5], [0.2, 0.8]]
    >>> cal = NearIsotonicEnsemble(floor=0, input="probs").fit(probs, [0, 1, 0, 1])
    >>> cal.predict_proba([[0.55, 0.45]])
    array([[0.5, 0.5]])
    """

    name = "enir"
    title = "Ensemble of near-isotonic regressions"
    shape = "step"

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        # Refuse before hours of work: counting the starting groups of every class is cheap.
        groups = [len(start_groups(p, y == k)[1].beta) for k, p in columns(probs)]
        work = float((np.array(groups, dtype=np.float64) ** 2).sum() / 2)
        if work > _MAX_WORK:
            raise ValueError(
                f"enir would score {work:.1e} groups along its paths (limit {_MAX_WORK:.0e}, minutes of work): "
                f"{len(y)} rows are too many for {probs.shape[1]} classes; fit it on a subset of the rows, "
                "or use 'iso', where the path ends"
            )
        return _average_path


@dataclass(frozen=True)
class NearIsotonic:
    """One near-isotonic fit on the path."""

    beta: Float64  # (g,) values
    mass: Float64  # (g,) rows
    hits: Float64  # (g,) rows of the class
    width: IntArray  # (g,) starting groups merged into each


def start_groups(p: Float64, hit: NDArray[Any]) -> tuple[Float64, NearIsotonic]:
    """Return the start of the path, runs of equal label frequency along p (N,), and their upper ends."""
    p, mass, hits = pool_equal(p, hit, None)
    first = run_starts(hits / mass)
    mass, hits = np.add.reduceat(mass, first), np.add.reduceat(hits, first)
    upper = np.append((p[first[1:] - 1] + p[first[1:]]) / 2, 1.0)  # midpoints between neighbouring p
    return upper, NearIsotonic(hits / mass, mass, hits, np.ones(len(first), dtype=np.int64))


def _average_path(p: Float64, hit: Float64, _weight: Float64 | None) -> Curve:
    upper, start = start_groups(p, hit)
    # Two passes over the path: sizes and hits first, then only the kept models are added up. Memory stays O(G).
    scored = [
        (binary_cross_entropy(model.beta, model.hits, model.mass).sum(), len(model.beta))
        for model in path(start)
    ]
    entropies, sizes = np.array(scored).T
    mean = np.zeros(len(upper))
    for weight, model in zip(bic_weights(entropies, sizes, len(p)), path(start), strict=True):
        if weight > 0:
            mean += weight * np.repeat(model.beta, model.width)
    return upper, np.clip(mean, 0.0, 1.0)


def path(start: NearIsotonic) -> Iterator[NearIsotonic]:
    """Yield the models after each merge; where nothing ever merges, the start itself."""
    now, time = start, 0.0
    while len(now.beta) > 1:
        # A value moves down where it exceeds its right neighbour, up where the left exceeds it.
        above = np.pad((now.beta[:-1] > now.beta[1:]).astype(np.float64), 1)
        slope = np.diff(-above) / now.mass
        closing, gap = -np.diff(slope), np.diff(now.beta)
        wait = np.full(len(gap), np.inf)
        np.divide(gap, closing, out=wait, where=closing != 0)  # infinite where neighbours move alike
        soonest = float(wait.min())
        if not np.isfinite(soonest):
            break
        together = wait <= soonest + _SAME_TIME * (1 + time + soonest)
        time += soonest
        first = np.flatnonzero(np.concatenate([[True], ~together]))
        merged = (np.add.reduceat(a, first) for a in (now.mass, now.hits, now.width))
        now = NearIsotonic((now.beta + slope * soonest)[first], *merged)
        yield now
    if now is start:
        yield start


# -- Venn-Abers predictors --------------------------------------------------------------------------


@map_type
class VennAbersSteps(OddsMap):
    """For each side (hit, miss), fold and event, the probability of the side with the new row on it.

    The side of a miss is that of a hit with the log-odds turned around.
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
        """Return ln p1 and ln(1 − p0) (N, E), their means over the folds; without a curve, of p itself."""
        rounded = namespace(odds).rounded(odds)
        return self._log_mean(rounded, self.offsets[0]), self._log_mean(-rounded, self.offsets[1])

    def _log_mean(self, odds: Array, offsets: Array) -> Array:
        xp, total, plain = namespace(odds), 0.0, log_sigmoid(odds)
        for f in range(offsets.shape[0]):
            found = read_curves(odds, offsets[f], self.knots, self.values, "step")
            known = offsets[f][1:] > offsets[f][:-1]
            total = total + xp.where(known, xp.log(xp.where(known, found, 1.0)), plain)
        return total / offsets.shape[0]

    expansion = 4

    def check(self) -> None:
        """Raise a ValueError where fields do not fit each other."""
        flat = self.offsets.ravel()
        if flat.size == 0 or flat[0] != 0 or flat[-1] != len(self.knots) or (np.diff(flat) < 0).any():
            raise ValueError(f"'offsets' must rise from 0 to the {len(self.knots)} knots")


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
        odds, fold = events(xp.rounded(log_odds(x))), deal_folds(x, self.folds, groups)
        curves = []
        for side in (1, -1):
            for f in range(int(fold.max()) + 1):
                rows = fold == f
                own = None if weight is None else weight[rows]
                labels = event_labels(y[rows], x.shape[1])
                for k, o in columns(side * odds[rows]):
                    hit = labels == k
                    curves.append(_steps(o, hit if side > 0 else ~hit, own) if hit.any() else (_NONE, _NONE))
        steps = end_to_end(curves)
        starts = steps["offsets"]
        firsts, ends = (v.reshape(2, -1, odds.shape[1]) for v in (starts[:-1], starts[1:]))
        offsets = np.concatenate([firsts, ends[..., -1:]], axis=-1)
        return Fitted(VennAbersSteps(knots=steps["knots"], values=steps["values"], offsets=offsets))

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
        p1, miss = (np.exp(side) for side in self.map_.log_sides(events(odds)))
        # Geometric means over folds that disagree may cross; the probability then lies between them all the same.
        p0, p1 = np.minimum(1 - miss, p1), np.maximum(1 - miss, p1)
        if self.n_classes_ == 2:
            return np.hstack([1 - p1, p0]), np.hstack([1 - p0, p1])
        return p0, p1


_NONE = np.empty(0)


def _steps(odds: Float64, hit: NDArray[Any], weight: Float64 | None) -> Curve:
    """Return p1 as steps: that of a score is that of the smallest of the odds above or at it, 1 above all."""
    x, mass, hits = pool_equal(odds, hit, weight)
    high = with_a_hit(mass, hits)
    ends = np.flatnonzero(np.append(high[1:] != high[:-1], True))
    return np.append(x[ends], x[-1]), np.append(np.maximum(high[ends], 1e-200), 1.0)


def with_a_hit(mass: Float64, hits: Float64) -> Float64:
    """Return, for every point, the isotonic fit there after one more row, a hit, at that point.

    The fit at j is the slope with which the greatest convex minorant of the cumulated hits passes j. With a
    row added at j, it is the lower tangent that bridges the hull of the points before j and that of the
    points from j on, moved by the row; both hulls are chains that do not depend on j, and all bridges are
    walked at once. Shapes: mass, hits (n,), in the order of the scores.

    >>> with_a_hit(np.array([2.0, 2.0]), np.array([1.0, 1.0])).round(3)
    array([0.6  , 0.667])
    """
    w, s = prefix_sums(mass), prefix_sums(hits)
    before, after = _chain(w, s), len(w) - 1 - _chain(-w[::-1], s[::-1])[::-1]
    left, right = np.arange(len(mass)), np.arange(1, len(w))

    def slope(i: IntArray, j: IntArray) -> Float64:
        steepness: Float64 = (s[j] - s[i] + 1) / (w[j] - w[i] + 1)
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
            rise, run = height[i] - height[a], width[i] - width[a]
            if (height[b] - height[a]) * run < rise * (width[b] - width[a]):
                break  # b lies below the line from a to i: it stays on the hull
            chain.pop()
        previous[i] = chain[-1]
        chain.append(i)
    return previous
