"""I-Max binning (Patel et al., ICLR 2021), one binning shared by all classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logit

from hcal.maps.base import ProbabilityMap, array, map_type
from hcal.methods._curves import MOST, default_floor, normalised
from hcal.methods._log_odds import expit, log_odds
from hcal.methods._scaling import EPS
from hcal.methods.base import Calibrator, Fitted
from hcal.methods.parameters import NotNegative, Seed, TwoOrMore, parameters
from hcal.numerics import Float64, prefix_sums
from hcal.rows import Rows
from hcal.xp import Array, namespace

_ITERATIONS = 200
# The seeding passes over all events about sixty times; if there are more than this, it uses a random sample of them.
_SEEDING_EVENTS = 2_000_000


@map_type
class SharedBins(ProbabilityMap):
    """A step function of the one-vs-rest log-odds, the same for all classes, and rows divided by their sum."""

    edges: Array = array("inner edges of the bins, in log-odds", "B-1", order="not falling")
    values: Array = array("of the bins", "B", low=0, high=MOST)
    floor: Array = array("added to every probability before the last normalisation", low=0)

    def probabilities(self, x: Array) -> Array:
        """Return probabilities (N, K) of logits (N, K)."""
        xp = namespace(x)
        bin_of_event = xp.searchsorted(self.edges, log_odds(x), side="right")
        raw = xp.take(self.values, bin_of_event)
        return normalised(raw, xp.softmax(x), self.floor)


@parameters
class IMaxBinning(Calibrator):
    """Bins of the pooled one-vs-rest log-odds that keep the most information about the label.

    Patel, Beluch, Yang, Pfeiffer, Zhang: Multi-class uncertainty calibration via mutual information
    maximization-based binning, ICLR 2021, in its shared class-wise form: all N·K events share one binning,
    so a class with few rows gains from the others. The start is random: see ``random_state``.

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

    bins: TwoOrMore = 15
    random_state: Seed = 755619
    floor: NotNegative | None = None

    def _fit(self, rows: Rows) -> Fitted:
        odds = log_odds(rows.x)
        positives = np.sort(odds[np.arange(len(rows)), rows.labels])
        # Sorted before the draws, so that the start depends neither on the order of rows nor on the class numbers.
        odds = np.sort(odds, axis=None)
        start = seed_centres(odds, self.bins, self.random_state)
        edges = maximise_information(odds, start)
        values = label_frequencies(odds, positives, edges)
        floor = default_floor(self.floor, *rows.x.shape)
        bins = SharedBins(edges=edges, values=values, floor=floor)
        return Fitted(bins, details={"edges": edges.tolist()})


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
    bernoullis = _Bernoullis(odds, expit(odds), np.logaddexp(0, odds))

    centres = [int(rng.randint(odds.size))]
    nearest = bernoullis.divergence(centres[0])
    for _ in range(1, n_centres):
        cumulated = np.cumsum(nearest)
        drawn = np.searchsorted(cumulated, rng.random_sample(trials) * cumulated[-1])
        drawn = np.minimum(drawn, odds.size - 1)
        rng.random_sample(trials)  # the published code draws these too and drops them

        candidates = [np.minimum(nearest, bernoullis.divergence(int(c))) for c in drawn]
        best = int(np.argmin([distances.sum() for distances in candidates]))
        centres.append(int(drawn[best]))
        nearest = candidates[best]
    return np.sort(odds[centres])


class _Bernoullis(NamedTuple):
    """Bernoulli distributions by their log-odds, with their probabilities and ln(1 + e^odds)."""

    odds: Float64
    p: Float64
    softplus: Float64

    def divergence(self, centre: int) -> Float64:
        """Return ½KL(a‖m) + ½KL(b‖m) of all and of one, m = (a + b)/2 in log-odds, with the KLs written out."""
        odds, p, softplus = self
        difference = (p - p[centre]) * (odds - odds[centre]) / 4
        of_mean = np.logaddexp(0, (odds + odds[centre]) / 2)
        bregman = of_mean - (softplus + softplus[centre]) / 2
        return np.asarray(np.maximum(difference + bregman, 0.0))


def maximise_information(odds: Float64, representatives: Float64) -> Float64:
    """Improve edges and representatives in turn; return the B − 1 inner edges.

    ``odds`` (n,) are ascending, so that a bin is a range and its mean follows from prefix sums.

    >>> maximise_information(np.array([-2.0, -2.0, 2.0, 2.0]), np.array([-1.0, 1.0])).round(6) + 0.0
    array([0.])
    """
    mass = prefix_sums(expit(odds))
    overall = mass[-1] / odds.size
    edges = _edges(representatives)
    for _ in range(_ITERATIONS):
        inner_cuts = np.searchsorted(odds, edges, side="left")
        cuts = np.concatenate([[0], inner_cuts, [odds.size]])
        count = np.diff(cuts)
        mean = np.where(count > 0, np.diff(mass[cuts]) / np.maximum(count, 1), overall)
        edges = _edges(logit(np.clip(mean, EPS, 1 - EPS)))
    return edges


def _edges(representatives: Float64) -> Float64:
    """Return the log-odds at which neighbouring representatives describe an event equally well."""
    up = np.abs(np.diff(np.logaddexp(0, representatives)))
    down = np.abs(np.diff(np.logaddexp(0, -1 * representatives)))
    return np.sort(np.log(np.maximum(up, EPS)) - np.log(np.maximum(down, EPS)))


def label_frequencies(odds: Float64, positives: Float64, edges: Float64) -> Float64:
    """Return the label frequency in each bin [lo, hi) of sorted log-odds, given those of the labels, sorted.

    An empty bin gets the probability at its middle.

    >>> label_frequencies(np.array([-1.0, 1.0, 2.0]), np.array([2.0]), np.array([0.0]))
    array([0. , 0.5])
    """
    cuts = np.searchsorted(odds, edges, side="left")
    count = np.diff(cuts, prepend=0, append=odds.size)
    cuts_of_hits = np.searchsorted(positives, edges, side="left")
    hits = np.diff(cuts_of_hits, prepend=0, append=positives.size)

    inner = (edges[1:] + edges[:-1]) / 2
    middle = expit(np.concatenate([edges[:1], inner, edges[-1:]]))
    return np.where(count > 0, hits / np.maximum(count, 1), middle)
