"""Bins, whose values are label frequencies or means of a curve: ``hb``, ``bbq``, ``scabin`` and ``imax``."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logit

from hcal import xp
from hcal.calibrators._curves import (
    MOST,
    Curve,
    CurvePerClass,
    Curves,
    FitCurve,
    columns,
    default_floor,
    fit_curves,
    floor_field,
    normalised,
    pool_equal,
    read_curves,
)
from hcal.calibrators._scaling import EPS
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.log_odds import expit, log_odds
from hcal.calibrators.parameters import parameters, whole_number
from hcal.maps.base import ProbabilityMap, array, map_type
from hcal.numerics import Float64, FloatArray, IntArray, prefix_sums, softmax
from hcal.solvers.nll import logistic
from hcal.xp import Array, namespace

_LOG_FLOOR = -100.0  # a certain but wrong bin costs 100 nats a row, not infinity
_ELBOW = 0.001  # the drop, in units of the variance of all scores, below which the sorted scores are flat
_CLIP = 1e-12
# The L2 penalty of C = 1e10: no shrinkage in effect, but a finite optimum where a class is separable.
_RIDGE = 1e-10
_ITERATIONS = 200
# The seeding visits every event some sixty times; beyond this many a seeded sample of them starts it.
_SEEDING_EVENTS = 2_000_000


# -- histograms -------------------------------------------------------------------------------------


@parameters
class HistogramBinning(CurvePerClass):
    """Per class, the label frequency in equal-width bins of p_k; an empty bin keeps its midpoint.

    Zadrozny, Elkan: Obtaining calibrated probability estimates from decision trees and naive Bayesian
    classifiers, ICML 2001. Fitting bins are [lo, hi), prediction bins (lo, hi].

    Parameters
    ----------
    bins : int
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> cal = HistogramBinning(bins=2, floor=0, input="probs").fit([[0.1, 0.9]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.3, 0.7]])
    array([[0.25, 0.75]])
    """

    name = "hb"
    title = "Histogram binning"
    weighted = True
    shape = "step"

    bins: int = 10

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        edges = np.linspace(0, 1, whole_number("bins", self.bins, 1) + 1)

        def learner(p: Float64, hit: Float64, weight: Float64 | None) -> Curve:
            p, mass, hits = pool_equal(p, hit, weight)
            return edges[1:], bin_rates(p, prefix_sums(mass), prefix_sums(hits), edges[:-1], edges[1:])

        return learner


def bin_rates(p: Float64, mass: Float64, hits: Float64, lower: Float64, upper: Float64) -> Float64:
    """Return the label frequency in every bin [lo, hi), the last one closed; the midpoint where it is empty.

    Probabilities (n,) ascend; ``mass`` and ``hits`` (n + 1,) are prefix sums; bins (B,) may overlap.

    >>> p, lower = np.array([0.2, 1.0]), np.array([0.0, 0.5])
    >>> bin_rates(p, np.array([0.0, 4.0, 5.0]), np.array([0.0, 1.0, 2.0]), lower, lower + 0.5)
    array([0.25, 1.  ])
    """
    inside = np.clip(p, EPS, 1 - EPS)
    start, stop = np.searchsorted(inside, lower), np.searchsorted(inside, upper)
    size = mass[stop] - mass[start]
    return np.where(size > 0, (hits[stop] - hits[start]) / np.where(size > 0, size, 1.0), (lower + upper) / 2)


class BayesianBinning(CurvePerClass):
    """Per class, an average of equal-width histograms with every bin count, weighted by their BIC.

    Naeini, Cooper, Hauskrecht: Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
    The paper's comparison scores equal-width histograms by BIC (the original: equal-mass ones by BDeu) and
    keeps the models before the elbow of the sorted scores; so does this class.

    Parameters
    ----------
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> cal = BayesianBinning(floor=0, input="probs").fit([[0.1, 0.9]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.1, 0.9]]).round(4)
    array([[0.25, 0.75]])
    """

    name = "bbq"
    title = "Bayesian binning into quantiles"
    shape = "step"

    def _curve(self, probs: FloatArray, y: IntArray) -> FitCurve:
        root = len(y) ** (1 / 3)
        low = max(1, int(root / 10))
        high = min(int(np.ceil(len(y) / 5)), int(np.ceil(root * 10)))
        return partial(_average_histograms, np.arange(low, max(low, high) + 1))


def _average_histograms(counts: IntArray, p: Float64, hit: Float64, _weight: Float64 | None) -> Curve:
    """Fit histograms of so many bins: their edges lie end to end, one sort serves them all."""
    edges = [np.linspace(0, 1, b + 1) for b in counts]
    lower, upper = np.concatenate([e[:-1] for e in edges]), np.concatenate([e[1:] for e in edges])
    first = np.cumsum(counts) - counts
    p, mass, hits = pool_equal(p, hit, None)
    mass, hits = prefix_sums(mass), prefix_sums(hits)
    values = bin_rates(p, mass, hits, lower, upper)
    # The cross-entropy of each histogram on its own rows, with the bins (lo, hi] of prediction.
    start = np.where(lower == 0.0, 0, np.searchsorted(p, lower, side="right"))
    stop = np.searchsorted(p, upper, side="right")
    entropy = binary_cross_entropy(values, hits[stop] - hits[start], mass[stop] - mass[start])
    weights = bic_weights(np.add.reduceat(entropy, first), counts, mass[-1])
    # The weighted mean of the kept histograms is again a step function, on the union of their edges.
    kept = np.flatnonzero(weights)
    knots = np.unique(np.concatenate([edges[m][1:] for m in kept]))
    mean = np.zeros(len(knots))
    for m in kept:
        mean += weights[m] * values[first[m] + np.searchsorted(edges[m][1:], knots)]
    return knots, mean


def binary_cross_entropy(values: Float64, hits: Float64, mass: Float64) -> Float64:
    """Return −[hits·log v + (mass − hits)·log(1 − v)] of each bin, each log at least −100.

    >>> binary_cross_entropy(np.array([0.0, 0.5]), np.array([1.0, 1.0]), np.array([2.0, 1.0])).round(4)
    array([100.    ,   0.6931])
    """
    with np.errstate(divide="ignore"):
        log_hit = np.maximum(np.log(values), _LOG_FLOOR)
        log_miss = np.maximum(np.log1p(-values), _LOG_FLOOR)
    return -(hits * log_hit + (mass - hits) * log_miss)


def bic_weights(cross_entropy: Float64, n_parameters: ArrayLike, n_rows: float) -> Float64:
    """Return averaging weights of models by BIC = 2·cross-entropy + parameters·ln N.

    Scores exp((min BIC − BIC)/2), summing to 1, of the models before the elbow of their sorted curve; 0 of the rest.

    >>> bic_weights(np.array([1.0, 1.0]), np.array([1, 3]), 10).round(3)
    array([0.909, 0.091])
    """
    bic = 2 * cross_entropy + np.asarray(n_parameters) * np.log(n_rows)
    return elbow_weights(np.exp((bic.min() - bic) / 2))


def elbow_weights(scores: Float64) -> Float64:
    """Return the scores before the elbow of their sorted curve, summing to 1; else 0.

    Sorted descending, first past equal scores, then on while a score drops by more than 0.001 variances of
    all scores: models up to that one are kept.

    >>> elbow_weights(np.array([0.5, 1.0, 0.0, 0.0]))
    array([0.33333333, 0.66666667, 0.        , 0.        ])
    """
    order = np.argsort(-scores, kind="stable")
    drop = -np.diff(scores[order])
    k = 0
    while k < len(drop) and drop[k] == 0:
        k += 1
    threshold = _ELBOW * float(np.var(scores))
    while k < len(drop) and drop[k] > threshold:
        k += 1
    weights = np.zeros(len(scores))
    weights[order[: k + 1]] = scores[order[: k + 1]]
    weights /= weights.sum()
    return weights


# -- scaling-binning --------------------------------------------------------------------------------


@map_type
class PlattCurves(Curves):
    """Curves of what Platt scaling makes of each class's probability."""

    slope: Array = array("of each class's Platt curve", "K")
    intercept: Array = array("of each class's Platt curve", "K")

    def raw(self, probs: Array) -> Array:
        """Return the curves at the probabilities, before rows are divided by their sum."""
        scores = _platt(probs, self.slope, self.intercept)
        return read_curves(scores, self.offsets, self.knots, self.values, self.shape)


@parameters
class ScalingBinning(Calibrator):
    """Per class, a Platt curve discretised: each equal-mass bin returns the mean of the curve inside it.

    Kumar, Liang, Ma: Verified uncertainty calibration, NeurIPS 2019.

    Parameters
    ----------
    bins : int, optional
        10·K unless given, but at least 5 rows in each; 15 as published. A class has only N/K positives: with
        few bins they share one, classes tie, and accuracy falls.
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> probs = [[0.2, 0.8], [0.8, 0.2]] * 2 + [[0.2, 0.8]]
    >>> cal = ScalingBinning(bins=5, floor=0, input="probs").fit(probs, [1, 0, 0, 1, 1])
    >>> cal.predict_proba([[0.1, 0.9]]).round(4)
    array([[0.3333, 0.6667]])
    """

    name = "scabin"
    title = "Scaling-binning"
    map_types = (PlattCurves,)

    bins: int | None = None
    floor: float | None = None

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        n, k = x.shape
        bins = max(1, min(10 * k, n // 5)) if self.bins is None else whole_number("bins", self.bins, 1)
        probs = xp.rounded(softmax(x))
        lines, failed = np.tile([[1.0], [0.0]], k), []  # a class without rows keeps its p_k
        ridge = np.diag([_RIDGE / n / 2, 0.0])
        for c, p in columns(probs):
            hit = (y == c).astype(np.float64)
            if hit.any():
                design = np.stack([_clipped_odds(p), np.ones(n)], axis=1)
                solved = logistic(design, hit, penalty=ridge, start=np.array([1.0, 0.0]))
                lines[:, c] = solved.theta
                failed += [] if solved.converged else [c]
        curves = fit_curves(_platt(probs, *lines), y, None, lambda score, *_: _discretise(score, bins))
        floor = default_floor(self.floor, n, k)
        found = PlattCurves(shape="step", slope=lines[0], intercept=lines[1], floor=floor, **curves)
        message = f"the Platt fit of {len(failed)} classes did not converge, first class {failed[:1]}"
        return Fitted(found, not failed, message if failed else "", {"bins": bins})


def _clipped_odds(p: Array) -> Array:
    xp = namespace(p)
    clipped = xp.clip(p, _CLIP, 1 - _CLIP)
    return xp.log(clipped / (1 - clipped))


def _platt(probs: Array, slope: Array, intercept: Array) -> Array:
    return expit(_clipped_odds(probs) * slope + intercept)


def _discretise(score: Float64, bins: int) -> Curve:
    """Equal-mass bins (lo, hi] of the scores; the value of a bin is the mean score in it."""
    parts = np.array_split(np.sort(score), min(bins, len(score)))
    upper = np.unique([*((a[-1] + b[0]) / 2 for a, b in pairwise(parts)), 1.0])
    which = np.searchsorted(upper, score)
    mass, total = np.bincount(which), np.bincount(which, weights=score)
    filled = np.flatnonzero(mass)
    return upper[filled], total[filled] / mass[filled]


# -- I-Max ------------------------------------------------------------------------------------------


@map_type
class SharedBins(ProbabilityMap):
    """A step function of the one-vs-rest log-odds, the same for all classes, and rows divided by their sum."""

    edges: Array = array("inner edges of the bins, in log-odds", "B-1", order="not falling")
    values: Array = array("of the bins", "B", low=0, high=MOST)
    floor: Array = floor_field()

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        raw = xp.take(self.values, xp.searchsorted(self.edges, log_odds(x), right=True))
        return normalised(raw, xp.softmax(x), self.floor)


@parameters
class IMaxBinning(Calibrator):
    """Bins of the pooled one-vs-rest log-odds that keep the most information about the label.

    Patel, Beluch, Yang, Pfeiffer, Zhang: Multi-class uncertainty calibration via mutual information
    maximization-based binning, ICLR 2021, in its shared class-wise form: all N·K events share one binning,
    so a class with few rows borrows from the others. The start is random: see ``random_state``.

    Parameters
    ----------
    bins : int
    random_state : int
        Seed of the start; the default is the published one.
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-25 as published.

    Examples
    --------
    >>> cal = IMaxBinning(bins=2, floor=0, input="probs").fit([[0.1, 0.9]] * 4, [1, 1, 1, 0])
    >>> cal.predict_proba([[0.1, 0.9]])
    array([[0.25, 0.75]])
    """

    name = "imax"
    title = "I-Max binning"
    map_types = (SharedBins,)

    bins: int = 15
    random_state: int = 755619
    floor: float | None = None

    def _fit(self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None) -> Fitted:
        bins = whole_number("bins", self.bins, 2)
        odds = log_odds(x)
        positives = np.sort(odds[np.arange(len(y)), y])
        # Sorted before the draws: neither the order of rows nor the numbers of classes decide the start.
        odds = np.sort(odds, axis=None)
        edges = maximise_information(odds, seed_centres(odds, bins, self.random_state))
        values = label_frequencies(odds, positives, edges)
        found = SharedBins(edges=edges, values=values, floor=default_floor(self.floor, *x.shape))
        return Fitted(found, info={"edges": edges.tolist()})


def seed_centres(odds: Float64, n_centres: int, random_state: int) -> Float64:
    """Choose starting representatives by greedy k-means++ under the log-odds divergence; return them sorted.

    Each new centre is the best of 2 + ⌊ln B⌋ candidates drawn with probability proportional to the distance
    to the nearest centre so far. Shapes: odds (n,) → (B,).

    >>> seed_centres(np.array([-3.0, 3.0]), 2, 0)
    array([-3.,  3.])
    """
    rng = np.random.RandomState(random_state)
    if odds.size > _SEEDING_EVENTS:
        odds = odds[rng.randint(odds.size, size=_SEEDING_EVENTS)]
    trials = 2 + int(np.log(n_centres))
    p, softplus = expit(odds), np.logaddexp(0, odds)

    def divergence(centre: int) -> Float64:
        """½KL(a‖m) + ½KL(b‖m) of Bernoullis given by log-odds, m = (a + b)/2, with the KLs written out."""
        difference = (p - p[centre]) * (odds - odds[centre]) / 4
        bregman = np.logaddexp(0, (odds + odds[centre]) / 2) - (softplus + softplus[centre]) / 2
        distance: Float64 = np.maximum(difference + bregman, 0.0)
        return distance

    centres = [int(rng.randint(odds.size))]
    nearest = divergence(centres[0])
    for _ in range(1, n_centres):
        reach = np.cumsum(nearest)
        drawn = np.searchsorted(reach, rng.random_sample(trials) * reach[-1])
        drawn = np.minimum(drawn, odds.size - 1)
        rng.random_sample(trials)  # the published code draws these too and drops them
        options = [np.minimum(nearest, divergence(int(c))) for c in drawn]
        best = int(np.argmin([option.sum() for option in options]))
        centres.append(int(drawn[best]))
        nearest = options[best]
    return np.sort(odds[centres])


def maximise_information(odds: Float64, representatives: Float64) -> Float64:
    """Alternate between edges and representatives; return the B − 1 inner edges.

    ``odds`` (n,) ascend: then a bin is a range, and its mean comes from one prefix sum.

    >>> maximise_information(np.array([-2.0, -2.0, 2.0, 2.0]), np.array([-1.0, 1.0])).round(6) + 0.0
    array([0.])
    """
    mass = prefix_sums(expit(odds))
    overall = mass[-1] / odds.size
    edges = _edges(representatives)
    for _ in range(_ITERATIONS):
        cut = np.concatenate([[0], np.searchsorted(odds, edges, side="left"), [odds.size]])
        count = np.diff(cut)
        mean = np.where(count > 0, np.diff(mass[cut]) / np.maximum(count, 1), overall)
        edges = _edges(logit(np.clip(mean, EPS, 1 - EPS)))
    return edges


def _edges(representatives: Float64) -> Float64:
    """Where neighbouring representatives describe an event equally well."""
    up, down = (np.abs(np.diff(np.logaddexp(0, sign * representatives))) for sign in (1, -1))
    return np.sort(np.log(np.maximum(up, EPS)) - np.log(np.maximum(down, EPS)))


def label_frequencies(odds: Float64, positives: Float64, edges: Float64) -> Float64:
    """Return the label frequency in each bin [lo, hi) of sorted log-odds, given those of the labels, sorted.

    An empty bin takes its place between its edges.

    >>> label_frequencies(np.array([-1.0, 1.0, 2.0]), np.array([2.0]), np.array([0.0]))
    array([0. , 0.5])
    """
    count = np.diff(np.searchsorted(odds, edges, side="left"), prepend=0, append=odds.size)
    hits = np.diff(np.searchsorted(positives, edges, side="left"), prepend=0, append=positives.size)
    inner = (edges[1:] + edges[:-1]) / 2
    middle = expit(np.concatenate([edges[:1], inner, edges[-1:]]))
    return np.where(count > 0, hits / np.maximum(count, 1), middle)
