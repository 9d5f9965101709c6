"""How much better a predictor is than the base rates (D²), and how well it ranks (the area under the ROC curve).

D² is 1 less the ratio of a proper score to that of a predictor that always states the class frequencies of these rows:
1 is perfect, 0 is no use, and below 0 the base rates are better. With NLL it is McFadden's R², and scikit-learn's
``d2_log_loss_score``; with the Brier score it is ``d2_brier_score``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hcal.frames import AnyArray
from hcal.metrics.estimates import (
    FEWEST_OUTCOMES,
    Outcome,
    area,
    area_influence,
    concordance,
    skewed_interval,
)
from hcal.metrics.registry import metric
from hcal.metrics.sample import Sample, Vector, as_sample
from hcal.metrics.scores import brier_rows, nll_rows
from hcal.numerics import Float64, IntArray

#: Below this share of the weight, rows of other classes are rounding errors.
_VANISHING: Final = 1e-12


def one_class(s: Sample) -> str:
    """Return why neither skill nor ranking has a value: rows of one class; empty where they have one.

    >>> one_class(Sample([[0.9, 0.1], [0.8, 0.2]], [0, 0]))
    'all rows have one class'
    """
    return "all rows have one class" if 1 - _frequencies(s).max() < _VANISHING else ""


class _Base(NamedTuple):
    """The score of the base rates, and what each row contributes to it to first order, (N,)."""

    score: float
    rows: Vector


def _frequencies(s: Sample) -> Float64:
    """Return the share of each class, by weight, shape (K,)."""
    # Weights may be so small that their sums lose digits.
    mass = np.bincount(s.y, s.w / s.w.max(), s.k)
    return np.asarray(mass / mass.sum())


def _base_nll(s: Sample) -> _Base:
    frequencies = _frequencies(s)
    seen = frequencies[frequencies > 0]
    entropy = float(-(seen * np.log(seen)).sum())
    of_rows = np.maximum(frequencies[s.y], np.finfo(np.float64).tiny)
    return _Base(entropy, -np.log(of_rows))


def _base_brier(s: Sample) -> _Base:
    frequencies = _frequencies(s)
    concentration = float(frequencies @ frequencies)
    return _Base(1 - concentration, 1 - 2 * frequencies[s.y] + concentration)


def _skill(s: Sample, losses: Vector, base: _Base) -> float:
    """Return 1 − score/base; NaN where all rows have one class."""
    return float("nan") if one_class(s) else 1 - s.mean(losses) / base.score


def _skill_ends(s: Sample, losses: Vector, base: _Base, z: float) -> tuple[float, float] | None:
    """Return the interval of D² of unweighted rows; None where fewer than 10 rows have the rarest class but one."""
    if np.sort(np.bincount(s.y, minlength=s.k))[-2] < FEWEST_OUTCOMES:
        return None
    score = float(losses.mean())
    # To first order D² moves by what a row adds to the score and to that of the base rates.
    from_base = score * (base.rows - base.score) / base.score
    influence = (from_base - (losses - score)) / base.score
    value = 1 - score / base.score
    estimate = skewed_interval(Outcome.at(z, s.n), value, influence / s.n)
    return estimate.low, estimate.high


def _ends_nll(s: Sample, value: float, z: float) -> tuple[float, float] | None:
    return _skill_ends(s, nll_rows(s), _base_nll(s), z)


def _ends_brier(s: Sample, value: float, z: float) -> tuple[float, float] | None:
    return _skill_ends(s, brier_rows(s), _base_brier(s), z)


@metric(
    "score",
    "D² of NLL",
    "share of the base rates' NLL that the predictor removes; 1 is perfect, 0 no use",
    label="D² NLL",
    kind="score",
    lower_is_better=False,
    ends=_ends_nll,
    undefined=one_class,
)
def d2_nll(probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None) -> float:
    """Return 1 − NLL / NLL of the class frequencies of these rows; NaN where all rows have one class.

    Examples
    --------
    >>> round(d2_nll([[0.9, 0.1], [0.1, 0.9]], [0, 1]), 3)
    0.848
    """
    s = as_sample(probs, y, sample_weight)
    return _skill(s, nll_rows(s), _base_nll(s))


@metric(
    "score",
    "D² of Brier",
    "share of the base rates' Brier score that the predictor removes; 1 is perfect",
    label="D² Brier",
    kind="score",
    lower_is_better=False,
    ends=_ends_brier,
    undefined=one_class,
)
def d2_brier(probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None) -> float:
    """Return 1 − Brier score / Brier score of the class frequencies of these rows; NaN where all have one class.

    Examples
    --------
    >>> round(d2_brier([[0.9, 0.1], [0.1, 0.9]], [0, 1]), 3)
    0.96
    """
    s = as_sample(probs, y, sample_weight)
    return _skill(s, brier_rows(s), _base_brier(s))


def _area_ends(s: Sample, value: float, z: float) -> tuple[float, float] | None:
    """Return the interval of the area; None where outcomes are few, or with more classes at an area of 0 or 1."""
    if s.k > 2:
        return _mean_area_ends(s, value, z)
    event = (s.y == 1).astype(np.float64)
    if not 0 < event.sum() < s.n:
        return None
    estimate = area(Outcome.at(z, s.n, s.data.column(1), event))
    return None if np.isnan(estimate.low) else (estimate.low, estimate.high)


def _mean_area_ends(s: Sample, value: float, z: float) -> tuple[float, float] | None:
    """Return the interval of a mean of areas, on the scale of its log-odds, from what each row adds to all of them."""
    rarest = np.bincount(s.y, minlength=s.k)
    # A class of few rows looks more certain than it is: its rows show too little of their spread.
    if not 0 < value < 1 or rarest[rarest > 0].min() < FEWEST_OUTCOMES:
        return None
    influence = np.zeros(s.n)
    tested = 0
    for k in range(s.k):
        happened = s.y == k
        if happened.any() and not happened.all():
            influence += area_influence(s.data.column(k), happened)
            tested += 1
    error = float(np.sqrt(influence @ influence)) / tested
    margin = z * error / (value * (1 - value))
    log_odds = np.log(value / (1 - value))
    return float(expit(log_odds - margin)), float(expit(log_odds + margin))


@metric(
    "score",
    "AUC",
    "area under the ROC curve, one class against the rest: how well the predictor ranks",
    kind="score",
    lower_is_better=False,
    ends=_area_ends,
    undefined=one_class,
)
def auc(probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None) -> float:
    """Return the area under the ROC curve of P(class 1); of K classes the mean of each against the rest.

    It does not depend on calibration: any increasing change of the probabilities of two classes leaves it as it is.
    Classes that no row has, or that all rows have, are left out; NaN if that leaves none.

    Examples
    --------
    >>> auc([0.2, 0.6, 0.4, 0.9], [0, 0, 1, 1])
    0.75
    """
    s = as_sample(probs, y, sample_weight)
    if one_class(s):
        return float("nan")
    areas = []
    for k in np.flatnonzero(_frequencies(s) > 0).tolist():
        if s.k == 2 and k == 0:  # the area of one class is that of the other
            continue
        areas.append(_weighted_area(s.data.column(k), s.y == k, s.weight))
    return float(np.mean(areas))


def _weighted_area(p: Vector, event: NDArray[np.bool_], weight: Vector | None) -> float:
    """Return the share of pairs, by weight, in which the event has the higher probability; ties count half."""
    if weight is None:
        return concordance(p, event)
    place = np.unique(p, return_inverse=True)[1]
    yes = _shares(place, weight * event)
    no = _shares(place, weight * ~event)
    below = np.cumsum(no) - no / 2
    return float(yes @ below)


def _shares(place: IntArray, weight: Vector) -> Vector:
    """Return the share of the weight at each place; the largest weight is 1 first, so that no sum underflows."""
    mass = np.bincount(place, weight / weight.max())
    return np.asarray(mass / mass.sum())
