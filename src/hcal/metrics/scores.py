"""Proper scores, accuracy and sharpness, which are weighted means over rows; and skill, which compares them.

A proper score is the sum of calibration and refinement, where refinement is the score after the best recalibration.
:func:`decompose` recalibrates with a temperature that is fitted on other rows than it is measured on (cross-fitting, so
that noise does not count as miscalibration). A temperature has one parameter, so this works for any K; errors that no
temperature can repair count as refinement, hence the calibration part is a lower bound. Berta, Holzmüller, Jordan,
Bach: Rethinking Early Stopping: Refine, Then Calibrate, 2025.

D² is 1 less the ratio of a proper score to that of a predictor that always states the class frequencies of these rows:
1 is perfect, 0 is no use, and below 0 the base rates are better. With NLL it is McFadden's R², and scikit-learn's
``d2_log_loss_score``; with the Brier score it is ``d2_brier_score``. The area under the ROC curve says how well a
predictor ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, rel_entr

from hcal.frames import AnyArray
from hcal.metrics.binned import ece_ew
from hcal.metrics.estimates import (
    FEWEST_OUTCOMES,
    Outcome,
    area,
    area_influence,
    concordance,
    skewed_interval,
)
from hcal.metrics.registry import complete_docstring, metric
from hcal.metrics.sample import Sample, Vector, as_sample
from hcal.numerics import Float64, IntArray, softmax

#: A label with probability 0 costs −log of this (708.4) instead of infinity, so that averages can be compared.
SMALLEST = float(np.finfo(np.float64).tiny)

Scores = dict[str, float]
#: Below this share of the weight, rows of other classes are rounding errors.
_VANISHING: Final = 1e-12


def kl(c: ArrayLike, q: ArrayLike) -> Vector:
    """Return the binary relative entropy kl(c, q) = c·log(c/q) + (1−c)·log((1−c)/(1−q)).

    >>> kl(0.5, [0.5, 0.9]).round(4)
    array([0.    , 0.5108])
    """
    c, q = np.asarray(c, dtype=np.float64), np.asarray(q, dtype=np.float64)
    return np.asarray(np.maximum(rel_entr(c, q) + rel_entr(1 - c, 1 - q), 0.0))


def nll_rows(s: Sample) -> Vector:
    """Return −log p(label) of every row, shape (N,)."""
    return np.asarray(-np.log(np.maximum(s.data.chosen, SMALLEST)))


def brier_rows(s: Sample) -> Vector:
    """Return Σ_k (p_k − [y = k])² of every row, shape (N,)."""
    return s.data.squares - 2 * s.data.chosen + 1


@metric(
    "score",
    "NLL",
    "mean −log of the label's probability: rewards calibration and sharpness together",
    kind="score",
    rows=nll_rows,
)
def nll(probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None) -> float:
    """Return the mean negative log-likelihood; a label with probability 0 counts 708.4 instead of infinity.

    Examples
    --------
    >>> round(nll([[0.5, 0.5]], [0]), 4)
    0.6931
    """
    s = as_sample(probs, y, sample_weight)
    return s.mean(nll_rows(s))


@metric(
    "score",
    "Brier",
    "mean squared error of the whole vector: a bounded proper score",
    kind="score",
    rows=brier_rows,
)
def brier(probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None) -> float:
    """Return the Brier score: the mean over rows of the squared error summed over classes.

    Examples
    --------
    >>> brier([[0.5, 0.5]], [0])
    0.5
    """
    s = as_sample(probs, y, sample_weight)
    return s.mean(brier_rows(s))


@metric(
    "score",
    "accuracy",
    "share of rows whose most probable class is the label",
    kind="score",
    lower_is_better=False,
    rows=lambda s: s.data.top_hit,
)
def accuracy(probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None) -> float:
    """Return the accuracy of the argmax (the first one, on ties).

    Examples
    --------
    >>> accuracy([[0.3, 0.7]], [1])
    1.0
    """
    s = as_sample(probs, y, sample_weight)
    return s.mean(s.data.top_hit)


def mean_confidence(
    probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None
) -> float:
    """Return the mean of the largest probability of every row.

    Examples
    --------
    >>> mean_confidence([[0.3, 0.7]], [1])
    0.7
    """
    s = as_sample(probs, y, sample_weight)
    return s.mean(s.data.top_conf)


def sharpness(probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None) -> float:
    """Return how far predictions are from uniform: mean of (Σ_k p_k² − 1/K)/(1 − 1/K), in [0, 1].

    It is 0 for a uniform predictor and 1 for one that always gives one class probability 1. It does not depend on the
    labels. Read it together with a calibration error, which an uninformative predictor can bring to 0.

    Examples
    --------
    >>> sharpness([[0.5, 0.5], [0.0, 1.0]], [1, 1])
    0.5
    """
    s = as_sample(probs, y, sample_weight)
    uniform = 1 / s.k
    return float((s.mean(s.data.squares) - uniform) / (1 - uniform))


for _function in (mean_confidence, sharpness):
    _function.__doc__ = complete_docstring(_function.__doc__)


def score_probs(probs: AnyArray, y: AnyArray = None, sample_weight: AnyArray = None) -> Scores:
    """Return the scores that every fit records before and after calibration.

    Parameters
    ----------
    probs : array-like of shape (N, K), or Sample
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional

    Examples
    --------
    >>> score_probs(np.array([[0.5, 0.5]]), np.array([0]))["accuracy"]
    1.0
    """
    s = as_sample(probs, y, sample_weight)
    return {f.__name__: f(s) for f in (nll, brier, accuracy, ece_ew, mean_confidence)}


@dataclass(frozen=True)
class Decomposition:
    """A proper score and its parts; for a calibrated predictor ``calibration`` can be slightly negative.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> probs = rng.dirichlet([1, 1, 1], 200)
    >>> y = (probs.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
    >>> import hcal
    >>> parts = hcal.metrics.decompose(probs, y)
    >>> bool(np.isclose(parts.score, parts.calibration + parts.refinement))
    True
    """

    score: float
    calibration: float
    refinement: float


def swapped(probs: AnyArray, y: AnyArray, name: str = "class 1") -> list[str]:
    """Return a warning if, with two classes, P(class 1) is clearly lower on rows of class 1 than on the others.

    >>> swapped([0.9, 0.8] * 9, [0, 0] * 9), swapped([0.9, 0.2, 0.8] * 9, [0, 1, 0] * 9)[0][:31]
    ([], 'the probability of class 1 is l')
    """
    s = as_sample(probs, y, None)
    p = s.data.column(1)
    event = s.y == 1
    if s.k != 2 or not 1 < event.sum() < s.n - 1:
        return []
    yes = p[event]
    no = p[~event]
    gap = float(yes.mean() - no.mean())
    variance = yes.var() / len(yes) + no.var() / len(no)
    spread = float(np.sqrt(variance))
    if gap > -5 * spread or gap == 0:
        return []
    return [
        f"the probability of {name} is lower on its own rows, by {-gap:.2f} on average: "
        "are the class names, the columns or the labels swapped?"
    ]


def decompose(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    score: Literal["nll", "brier"] = "nll",
    sample_weight: AnyArray = None,
    folds: int = 5,
    random_state: int = 0,
) -> Decomposition:
    """Split NLL or Brier into calibration (what a temperature can remove) and refinement (the rest).

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    score : {"nll", "brier"}
    sample_weight : array-like of shape (N,), optional
    folds, random_state : int
        Number of folds of the cross-fitting, and the seed that draws them.

    Returns
    -------
    Decomposition

    Examples
    --------
    >>> p = np.array([[0.01, 0.99]] * 50 + [[0.99, 0.01]] * 50)
    >>> parts = decompose(p, [1] * 40 + [0] * 10 + [0] * 40 + [1] * 10)
    >>> round(parts.score, 2), round(parts.calibration, 2), round(parts.refinement, 2)
    (0.93, 0.42, 0.51)
    """
    if score not in ("nll", "brier"):
        raise ValueError(f"score must be 'nll' or 'brier', got {score!r}")
    s = as_sample(probs, y, sample_weight)
    if not isinstance(folds, int | np.integer) or not 2 <= folds <= s.n:
        raise ValueError(
            f"folds must be an integer from 2 to the number of rows ({s.n}), got {folds!r}"
        )
    rows = nll_rows if score == "nll" else brier_rows
    total = s.mean(rows(s))
    refinement = s.mean(_recalibrated_rows(s, rows, int(folds), random_state))
    return Decomposition(total, total - refinement, refinement)


def _recalibrated_rows(
    s: Sample, rows: Callable[[Sample], Vector], folds: int, random_state: int
) -> Vector:
    """Return the score of every row after a temperature that was found without it."""
    from hcal.solvers.temperature import solve_temperature

    logits = np.log(np.maximum(s.data.probs.astype(np.float64), SMALLEST))
    fold = np.random.default_rng(random_state).permutation(s.n) % folds
    losses = np.empty(s.n)
    for f in range(folds):
        fitted = np.flatnonzero(fold != f)
        tested = np.flatnonzero(fold == f)
        weight = None if s.weight is None else s.weight[fitted]
        if weight is not None and weight.sum() == 0:
            weight = None  # all weights are 0: fit with equal weights
        beta = solve_temperature(logits[fitted], s.y[fitted], weight).beta
        recalibrated = softmax(beta * logits[tested])
        losses[tested] = rows(Sample(recalibrated, s.y[tested]))
    return losses


# -- collapse ---------------------------------------------------------------------------------------


def collapse_of(sample: Sample, before: Sample) -> list[str]:
    """Return why the predictor of a sample counts as collapsed; ``before`` has its rows without calibration.

    >>> before = Sample(np.array([[0.9, 0.1], [0.2, 0.8]] * 50), np.array([0, 1] * 50))
    >>> flat = Sample(np.array([[0.51, 0.49], [0.49, 0.51]] * 50), np.array([0, 1] * 50))
    >>> len(collapse_of(flat, before)), collapse_of(before, before)
    (2, [])
    """
    return collapse_reasons(
        accuracy=accuracy(sample),
        mean_confidence=mean_confidence(sample),
        nll=nll(sample),
        n_classes=sample.k,
        nll_before=nll(before),
        rows=sample.n,
    )


def collapse_reasons(
    *,
    accuracy: float,
    mean_confidence: float,
    nll: float,
    n_classes: int,
    nll_before: float | None = None,
    rows: int | None = None,
) -> list[str]:
    """Return why a predictor counts as collapsed, in plain words; an empty list if it does not.

    With K ≥ 100, almost all class probabilities fall into the first of fifteen equal-width bins, and a nearly uniform
    predictor has a lower class-wise error than the true probabilities. So every table with such errors calls this.

    Parameters
    ----------
    accuracy, mean_confidence, nll : float
    n_classes : int
    nll_before : float, optional
        NLL of the uncalibrated predictions on the same rows.
    rows : int, optional
        How many rows were measured. An accuracy that a calibrated predictor reaches by chance on so few rows is then
        no reason.

    Examples
    --------
    >>> collapse_reasons(accuracy=0.76, mean_confidence=0.016, nll=4.2, n_classes=100)
    ['mean confidence is 0.0160 (a uniform guess: 0.01) while 76.0 % of the predictions are right']
    >>> collapse_reasons(accuracy=0.424, mean_confidence=0.2686, nll=1.34, n_classes=4)
    ['mean confidence is 0.2686 (a uniform guess: 0.25) while 42.4 % of the predictions are right']
    >>> collapse_reasons(accuracy=0.6, mean_confidence=0.53, nll=0.69, n_classes=2, rows=30)
    []
    """
    reasons = []
    uniform = 1 / n_classes
    # Confidence and accuracy on a scale from 0 (a uniform guess) to 1 (certainty).
    stated_scale = (mean_confidence - uniform) / (1 - uniform)
    accuracy_scale = (accuracy - uniform) / (1 - uniform)
    # With few classes no accuracy can be above 10/K, so the second rule does not depend on K.
    too_timid = (mean_confidence < 3 * uniform and accuracy > 10 * uniform) or (
        accuracy_scale > 0.1 and stated_scale < accuracy_scale / 5
    )
    by_chance = rows is not None and _right_by_chance(accuracy, mean_confidence, rows)
    if too_timid and not by_chance:
        reasons.append(
            f"mean confidence is {mean_confidence:.4f} (a uniform guess: {uniform:.4g}) "
            f"while {accuracy:.1%} of the predictions are right".replace("%", " %")
        )
    elif mean_confidence < 1.05 * uniform:
        reasons.append(
            f"mean confidence is {mean_confidence:.4f}, that of a uniform guess {uniform:.4g}: "
            "the predictions say nothing"
        )
    rose = nll_before is not None and nll > 1.1 * nll_before
    if rose and mean_confidence < accuracy - 0.2 and not by_chance:
        reasons.append(
            f"NLL rose from {nll_before:.4g} to {nll:.4g} and mean confidence "
            f"{mean_confidence:.3f} lies far below the accuracy {accuracy:.3f}"
        )
    return reasons


def _right_by_chance(accuracy: float, mean_confidence: float, rows: int) -> bool:
    """Say whether a calibrated predictor may be right so often: Chernoff's bound on that is above 1 %."""
    if accuracy <= mean_confidence:
        return True
    return bool(rows * float(kl(accuracy, mean_confidence)) < -np.log(0.01))


# -- skill: how much better than the base rates, and how well it ranks ------------------------------


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
