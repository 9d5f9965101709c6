"""``hcal.abstain_below``: answer where the confidence is high, and prove how often the answers are wrong.

Rows are sorted by their confidence. Answering the most confident ones gives a *coverage* (the share of rows that are
answered) and a *risk* (the share of the answers that are wrong); together they are the risk–coverage curve.

The risk is bounded at 10 to 200 coverages w/N that are fixed before the rows are seen. The threshold of each is the
confidence of rank w + 1, and rows of a *greater* confidence are answered. Given that confidence, the rows above it
are independent draws from all rows above it, also where confidences are equal, so their errors are binomial and
Clopper and Pearson's upper bound holds for the risk of new rows at that threshold. Each of the coverages gets an equal
share of the failure probability, so all bounds hold together, and the threshold may be chosen after looking at them
(Angelopoulos et al.: Learn then Test, 2021). A simulation in ``tests/decisions/test_abstention.py`` counts how often a
bound fails.

Rows of groups are not independent draws. There the bound holds given the confidences, that is for new labels of rows
with these confidences: errors of different groups are then independent, and Chernoff's bound counts groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtri

from hcal.certificates.bounds import kl_upper
from hcal.class_names import ClassName, positive_number
from hcal.decisions.rules import AbstainRule
from hcal.frames import AnyArray, ColumnName
from hcal.inputs import check_confidence
from hcal.metrics.clinical import Estimate
from hcal.numerics import Float64, IntArray, run_starts
from hcal.results import OnePanel, Result
from hcal.rows import ClassNames, Rows
from hcal.text import JsonObject, share_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The risk is bounded at about √N coverages, between these numbers: more rows pay for finer steps.
_FEWEST, _MOST = 10, 200
#: Points of the curve that a result keeps.
_SHOWN: Final = 400
#: The threshold above every confidence: no row is answered.
_NOBODY: Final = float(np.nextafter(1.0, 2.0))
_BLUE, _RED, _GREY = "#1d5fae", "#b3261e", "#8a93a0"


@dataclass(frozen=True)
class RiskCurve:
    """The risk–coverage curve: thresholds, descending, and what they answer, (P,) each.

    Attributes
    ----------
    threshold : array
    coverage : array
        The share of rows with at least that confidence.
    risk : array
        The share of errors among them.
    """

    threshold: Float64
    coverage: Float64
    risk: Float64


@dataclass(frozen=True)
class RiskBounds:
    """Upper bounds of the risk at some coverages, ascending, (B,) each; all hold together."""

    threshold: Float64
    coverage: Float64
    risk: Float64
    at_most: Float64


@dataclass(frozen=True, repr=False)
class Abstention(OnePanel, Result):
    """A confidence below which no answer is given, and what is proven about the answers above it.

    Attributes
    ----------
    error : float
        The share of wrong answers that was asked for.
    threshold : float
        Rows with at least this confidence are answered; above 1 where nothing can be proven.
    coverage : float
        The share of these rows that is answered.
    risk : Estimate
        The share of wrong answers among them, with an interval for this threshold alone (Wilson).
    at_most : float
        Proven: the share of wrong answers among rows of this confidence is at most this.
    aurc : float
        The area under the risk–coverage curve: the risk averaged over all coverages; smaller is better.
    best_aurc : float
        What it would be if every error had a lower confidence than every right answer.
    auroc : float
        How well the confidence tells right from wrong answers: the probability that a right one has more of it.
    curve : RiskCurve
    bounds : RiskBounds
    n, errors : int
        Rows, and wrong answers if all were answered.
    confidence : float
    rows_needed : int or None
        About how many rows like these would prove it, where these do not and the risk is low enough.
    positive : int or None
    names, columns : tuple of K names, or None
        Of the classes, and of the columns of a frame.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.beta(8, 1, 4000)
    >>> kept = abstain_below(p, rng.random(4000) < p, error=0.05, positive=1)
    >>> 0.4 < kept.coverage < 0.7, bool(kept.at_most <= 0.05)
    (True, True)
    """

    schema: ClassVar[str] = "hcal/abstention/1"

    error: float
    threshold: float
    coverage: float
    risk: Estimate
    at_most: float
    aurc: float
    best_aurc: float
    auroc: float
    curve: RiskCurve
    bounds: RiskBounds
    n: int
    errors: int
    confidence: float
    rows_needed: int | None = None
    positive: int | None = None
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None

    @property
    def rule(self) -> AbstainRule:
        """What :func:`hcal.decide` needs."""
        return AbstainRule(self.threshold, self.positive, self.names, self.columns)

    @property
    def proven(self) -> bool:
        """Whether there is a threshold that is proven to keep the error."""
        return self.threshold <= 1

    @property
    def sentences(self) -> list[str]:
        """The choice and what is proven, in words."""
        all_answers = self.errors / self.n
        ranking = (
            f"If all {self.n:,} rows are answered, {share_words(all_answers)} are wrong. Area "
            f"under the risk–coverage curve {self.aurc:.4f} (best possible {self.best_aurc:.4f}); "
            f"AUROC of the confidence {self.auroc:.3f}."
        )
        if not self.proven:
            return [self._why_not(), ranking]
        return [
            f"Answer {self._condition}: {share_words(self.coverage)} of the rows.",
            f"{share_words(self.risk.value)} of these answers are wrong here, and proven at "
            f"{share_words(self.confidence)} is at most {share_words(self.at_most)}.",
            ranking,
        ]

    @property
    def _condition(self) -> str:
        if self.threshold == 0:
            return "always"
        # The threshold is the next number after a confidence that is not answered.
        return f"where the confidence is above {np.nextafter(self.threshold, 0.0):.4g}"

    def _why_not(self) -> str:
        wanted = share_words(self.error)
        start = f"No threshold is proven to keep the error at {wanted} on {self.n:,} rows"
        if self.rows_needed is None:
            surest = "the answers of the highest confidence"
            return f"{start}: {surest} are wrong more often, or nearly so."
        return f"{start}: about {self.rows_needed:,} rows like these would prove it."

    def _headline(self) -> list[str]:
        return self.sentences

    def to_records(self) -> list[JsonObject]:
        """Return one dictionary for each coverage with a bound."""
        columns = vars(self.bounds)
        return [
            {name: float(values[row]) for name, values in columns.items()}
            for row in range(len(self.bounds.coverage))
        ]

    def _draw_on(self, ax: Axes) -> None:
        """Draw risk against coverage, the bound of the risk, and the choice."""
        curve = self.curve
        bounds = self.bounds
        ax.plot(100 * curve.coverage, 100 * curve.risk, color=_BLUE, label="wrong answers")
        ax.plot(
            100 * bounds.coverage,
            100 * bounds.at_most,
            color=_GREY,
            linestyle="--",
            label=f"at most, proven at {share_words(self.confidence)}",
        )
        ax.axhline(
            100 * self.error, color=_RED, linewidth=0.8, label=f"wanted: {share_words(self.error)}"
        )
        if self.proven:
            ax.plot(
                100 * self.coverage,
                100 * self.at_most,
                "o",
                color=_RED,
                label=f"answer {share_words(self.coverage)}",
            )
        highest = max(100 * self.error, 100 * float(curve.risk[-1]))
        ax.set_ylim(0, 1.6 * highest)
        ax.set_xlim(0, 100)
        ax.set_xlabel("answered, per cent of the rows")
        ax.set_ylabel("wrong, per cent of the answers")
        ax.legend(loc="upper left", frameon=False, fontsize=8)


def abstain_below(  # noqa: PLR0913 - a public door
    probs: AnyArray,
    y: AnyArray,
    *,
    error: float,
    confidence: float = 0.95,
    groups: AnyArray = None,
    positive: int | str | None = None,
    classes: Iterable[ClassName] | None = None,
) -> Abstention:
    """Choose the confidence below which no answer is given, so that few answers are wrong, with a proof.

    Of the thresholds whose proven error is at most ``error``, it takes the one that answers the most rows. The proof
    holds for rows that are drawn like these and are independent of each other, or of which groups are.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of two classes
        Probabilities of rows that neither the model nor the calibrator has seen.
    y : array-like of shape (N,)
    error : float
        The largest share of wrong answers, such as 0.02.
    confidence : float
        Probability with which the bounds hold, all of them together.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other; the bounds then count groups.
    positive : int or str, optional
        Give it where every row has one answer and the probability says whether it is right, as for the answers of a
        language model: the confidence is P(class ``positive``), and rows of the other class are errors. By default
        the answer is the most probable class, and the confidence its probability.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns.

    Returns
    -------
    Abstention

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(size=5000)
    >>> kept = abstain_below(p, rng.random(5000) < p, error=0.1)
    >>> bool(0.25 < kept.coverage < 0.35), round(kept.auroc, 1)
    (True, 0.7)
    """
    confidence = check_confidence(confidence)
    if isinstance(error, bool) or not isinstance(error, int | float) or not 0 < error < 1:
        raise ValueError(f"error must lie between 0 and 1, such as 0.02; got {error!r}")
    rows = Rows.of_predictions(probs, y, input="probs", groups=groups, classes=classes)
    right = _check_positive(positive, rows)
    sure, wrong = _answers(rows, right)
    members = None if rows.groups is None else np.unique(rows.groups, return_inverse=True)[1]
    order = np.argsort(-sure, kind="stable")
    ranked = _Ranked(
        sure=sure[order], wrong=wrong[order], group=None if members is None else members[order]
    )
    bounds = _bounds(ranked, 1 - confidence)
    chosen = _chosen(bounds, error)
    total = int(wrong.sum())
    answered = 0 if chosen is None else round(float(bounds.coverage[chosen]) * len(sure))
    missed = 0.0 if chosen is None else float(bounds.risk[chosen]) * answered
    return Abstention(
        error=float(error),
        threshold=_NOBODY if chosen is None else float(bounds.threshold[chosen]),
        coverage=answered / len(sure),
        risk=_wilson(missed, answered, confidence),
        at_most=float("nan") if chosen is None else float(bounds.at_most[chosen]),
        aurc=ranked.aurc,
        best_aurc=_best_aurc(len(sure), total),
        auroc=ranked.auroc,
        curve=ranked.curve(),
        bounds=bounds,
        n=len(sure),
        errors=total,
        confidence=confidence,
        rows_needed=None
        if chosen is not None
        else _rows_needed(ranked, bounds, error, 1 - confidence),
        positive=right,
        names=rows.names,
        columns=rows.columns,
    )


@dataclass(frozen=True)
class _Ranked:
    """Confidences (N,) in descending order, whether the answers are wrong, and the numbers of groups."""

    sure: Float64
    wrong: Float64
    group: IntArray | None

    @cached_property
    def ends(self) -> IntArray:
        """The rows with each different confidence or more: rows of equal confidence cannot be divided."""
        return np.append(run_starts(self.sure)[1:], len(self.sure))

    @property
    def errors(self) -> Float64:
        """Errors among the rows of each different confidence and above."""
        return np.asarray(np.cumsum(self.wrong)[self.ends - 1])

    @property
    def aurc(self) -> float:
        """The mean over k of the share of errors among the k most confident rows; ties in every order."""
        count = np.arange(1, len(self.sure) + 1)
        errors = np.interp(count, np.append(0, self.ends), np.append(0.0, self.errors))
        return float((errors / count).mean())

    @property
    def auroc(self) -> float:
        """The area under the ROC curve of the confidence; NaN where all answers are right, or all wrong."""
        wrong = np.append(0.0, self.errors)
        right = np.append(0.0, self.ends) - wrong
        if not wrong[-1] or not right[-1]:
            return float("nan")
        return float(np.trapezoid(right, wrong) / (wrong[-1] * right[-1]))

    def curve(self) -> RiskCurve:
        """Return at most so many points of the curve as are kept."""
        places = np.unique(np.linspace(0, len(self.ends) - 1, _SHOWN).astype(np.int64))
        ends = self.ends[places]
        return RiskCurve(
            threshold=self.sure[ends - 1],
            coverage=ends / len(self.sure),
            risk=self.errors[places] / ends,
        )


def _check_positive(positive: ClassName | None, rows: Rows) -> int | None:
    if positive is None:
        return None
    if rows.n_classes != 2:
        raise ValueError(
            f"positive= is for two classes, right and wrong, and probs has {rows.n_classes} columns"
        )
    return positive_number(positive, rows.names or rows.columns, rows.n_classes)


def _answers(rows: Rows, positive: int | None) -> tuple[Float64, Float64]:
    """Return the confidence (N,) of each answer, and whether it is wrong."""
    probs = rows.probs().astype(np.float64)
    if positive is not None:
        return probs[:, positive], (rows.labels != positive).astype(np.float64)
    answers = probs.argmax(axis=1)
    return probs.max(axis=1), (rows.labels != answers).astype(np.float64)


def _bounds(ranked: _Ranked, failure: float) -> RiskBounds:
    """Return bounds of the risk at coverages that depend on the confidences alone."""
    n = len(ranked.sure)
    points = _points(n)
    ranks = np.ceil(np.arange(1, points + 1) * n / points)
    # Of the rows up to a rank, those whose confidence is greater than that of the next row.
    places = np.unique(np.searchsorted(ranked.ends, ranks, side="right") - 1)
    places = places[places >= 0]
    answered = ranked.ends[places]
    wrong = ranked.errors[places]
    share = failure / points
    below = ranked.sure[np.minimum(answered, n - 1)]
    threshold = np.where(answered < n, np.nextafter(below, 2.0), 0.0)
    if ranked.group is None:
        at_most = binomial_upper(wrong, answered, share)
    else:
        at_most = _GroupsAnswered.of(answered, ranked.group).upper(wrong / answered, share)
    return RiskBounds(threshold, answered / n, wrong / answered, at_most)


def _points(n: int) -> int:
    """Return at how many coverages the risk of n rows is bounded."""
    return min(max(int(np.sqrt(n)), _FEWEST), _MOST, n)


def binomial_upper(count: ArrayLike, total: ArrayLike, failure: float) -> Float64:
    """Return Clopper and Pearson's upper bound of a probability.

    >>> binomial_upper([0, 5], [100, 100], 0.05).round(4)
    array([0.0295, 0.1023])
    """
    happened = np.asarray(count, dtype=np.float64)
    rest = np.asarray(total, dtype=np.float64) - happened
    bound = betaincinv(happened + 1, np.maximum(rest, 1e-9), 1 - failure)
    return np.where(rest > 0, bound, 1.0)


@dataclass(frozen=True)
class _GroupsAnswered:
    """Of some coverages: how many groups are answered, and the rows of the largest over those of the mean one, (B,)."""

    count: Float64
    unevenness: Float64

    @classmethod
    def of(cls, answered: IntArray, group: IntArray) -> _GroupsAnswered:
        count = np.empty(len(answered))
        unevenness = np.empty(len(answered))
        for place, rows in enumerate(answered.tolist()):
            sizes = np.bincount(group[:rows])
            count[place] = np.count_nonzero(sizes)
            unevenness[place] = sizes.max() * count[place] / rows
        return cls(count, unevenness)

    def upper(self, risk: Float64, share: float, growth: float = 1.0) -> Float64:
        """Return Chernoff's bounds of risks, if there were so many times as many groups.

        They count groups (:mod:`hcal.certificates.dependent`).
        """
        nats = np.log(1 / share) / (growth * self.count)
        means = risk / self.unevenness
        high = [float(kl_upper(mean, nat)) for mean, nat in zip(means, nats, strict=True)]
        return np.minimum(np.array(high) * self.unevenness, 1.0)


def _chosen(bounds: RiskBounds, error: float) -> int | None:
    """Return the number of the largest coverage that is proven; None where there is none."""
    kept = np.flatnonzero(bounds.at_most <= error)
    return int(kept[-1]) if len(kept) else None


def _wilson(count: float, total: int, confidence: float) -> Estimate:
    """Return a share with Wilson's interval; NaN without rows."""
    if not total:
        return Estimate(float("nan"), float("nan"), float("nan"))
    share = count / total
    z = float(ndtri((1 + confidence) / 2))
    weight = z**2 / total
    centre = (share + weight / 2) / (1 + weight)
    margin = float(np.sqrt(weight * share * (1 - share) + weight**2 / 4)) / (1 + weight)
    return Estimate(share, max(centre - margin, 0.0), min(centre + margin, 1.0))


def _best_aurc(n: int, errors: int) -> float:
    """Return the area where all errors come last."""
    count = np.arange(1, n + 1)
    return float((np.maximum(count - (n - errors), 0) / count).mean())


def _rows_needed(ranked: _Ranked, bounds: RiskBounds, error: float, failure: float) -> int | None:
    """Return about how many rows would prove the error at one of the coverages; None above a million."""
    n = len(ranked.sure)
    low_enough = bounds.risk < error
    risk = bounds.risk[low_enough]
    coverage = bounds.coverage[low_enough]
    groups = None
    if ranked.group is not None:
        groups = _GroupsAnswered.of(np.rint(coverage * n).astype(np.int64), ranked.group)
    for rows in np.unique(np.geomspace(n, 1_000_000, 60).astype(np.int64)):
        share = failure / _points(int(rows))
        if groups is None:
            at_most = binomial_upper(risk * coverage * rows, coverage * rows, share)
        else:
            at_most = groups.upper(risk, share, growth=rows / n)
        if (at_most <= error).any():
            digits = max(int(np.log10(rows)) - 1, 0)
            return int(np.ceil(rows / 10**digits) * 10**digits)
    return None
