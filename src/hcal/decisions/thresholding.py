"""``hcal.thresholds``: the threshold for a cost, a capacity, a precision or a recall, and what it costs and catches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from hcal.class_names import ClassName, positive_number
from hcal.decisions.choosing import Draws, choose, odds_of
from hcal.decisions.rules import CostRule, ThresholdRule, check_table
from hcal.decisions.threshold_curve import (
    Costs,
    Counts,
    Criterion,
    LeastCost,
    ThresholdCurve,
    criterion_of,
)
from hcal.frames import AnyArray, ColumnName
from hcal.inputs import check_confidence
from hcal.metrics.estimates import Estimate, weighted_mean
from hcal.metrics.sample import check_integer
from hcal.numerics import Float64
from hcal.results import OnePanel, Result
from hcal.rows import ClassNames, Rows
from hcal.text import JsonObject, share_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The neighbours of the chosen threshold decide these multiples of its rows.
_MULTIPLES: Final = (4.0, 2.0, 1.5, 1.25, 1.1, 0.9, 0.8, 0.67, 0.5, 0.25)
#: Why a threshold is in the table.
_ALL, _NONE, _THEORY = "all rows", "no row", "fp / (fp + fn)"
_BLUE, _RED, _GREY = "#1d5fae", "#b3261e", "#8a93a0"


@dataclass(frozen=True)
class DecisionPoint:
    """What one threshold decides and catches."""

    threshold: float
    why: str
    rows: float
    share: float
    precision: float
    recall: float
    net_benefit: float
    cost: float | None = None


@dataclass(frozen=True)
class DecisionCurvePoints:
    """What thresholds decide and catch, ascending, shape (P,) each; ``cost`` of a row where costs were given."""

    threshold: Float64
    share: Float64
    precision: Float64
    recall: Float64
    cost: Float64 | None = None


@dataclass(frozen=True, repr=False)
class Thresholds(OnePanel, Result):
    """A chosen threshold of P(positive): rows at or above it are decided positive.

    Attributes
    ----------
    criterion : {"cost", "capacity", "precision", "recall"}
    wanted : dict of float
        The numbers that were asked for.
    threshold : float
    threshold_low, threshold_high : float
        Interval of the threshold: chosen again in each bootstrap sample.
    n, events : float
        Rows, and rows of the positive class (sums of weights).
    share, precision, recall, net_benefit : Estimate
        The share of rows decided positive, the share of positives among them, and the share of all positives that is
        caught. The bootstrap intervals allow for the choice of the threshold on the same rows.
    cost : Estimate or None
        Mean cost of a row.
    on_new_rows : float
        What to expect of the chosen figure (cost, recall or precision) on new rows: the figure less the optimism
        that comes from choosing the threshold on the same rows.
    theory : float or None
        The best threshold of calibrated probabilities, fp / (fp + fn), where costs were given.
    points : tuple of DecisionPoint
        The chosen threshold, its neighbours and the theory's, ascending. None of them beats the chosen one.
    curve : DecisionCurvePoints
    confidence : float
    positive : int
    names, columns : tuple of 2 names, or None
        Of the classes, and of the columns of a frame.
    words : str
        The criterion in words.
    notes : tuple of str

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.beta(1, 9, 5000)
    >>> chosen = thresholds(p, rng.random(5000) < p, cost={"fn": 20, "fp": 1})
    >>> chosen.theory, bool(chosen.threshold_low < chosen.theory < chosen.threshold_high)
    (0.047619047619047616, True)
    """

    schema: ClassVar[str] = "hcal/thresholds/1"

    criterion: str
    wanted: dict[str, float]
    threshold: float
    threshold_low: float
    threshold_high: float
    n: float
    events: float
    share: Estimate
    precision: Estimate
    recall: Estimate
    net_benefit: Estimate
    cost: Estimate | None
    on_new_rows: float
    theory: float | None
    points: tuple[DecisionPoint, ...]
    curve: DecisionCurvePoints
    confidence: float
    positive: int = 1
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None
    words: str = ""
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> ThresholdRule:
        """What :func:`hcal.decide` needs."""
        cost = (self.wanted["fn"], self.wanted["fp"]) if self.criterion == "cost" else None
        return ThresholdRule(self.threshold, self.positive, self.names, self.columns, cost)

    @property
    def title(self) -> str:
        """How the positive class is called."""
        return f"class {self.positive}" if self.names is None else str(self.names[self.positive])

    @property
    def sentences(self) -> list[str]:
        """The choice and what it means, in words."""
        level = f"{100 * self.confidence:g} %"
        between = f"{level} interval {self.threshold_low:.3g} to {self.threshold_high:.3g}"
        sentences = [
            f"Decide {self.title} where P({self.title}) is at least {self.threshold:.3g} "
            f"({between}): {self.words}.",
            f"These are {_shares(self.share)} of the {self.n:,.0f} rows. Of them "
            f"{_shares(self.precision)} "
            f"are {self.title}, and {_shares(self.recall)} of all {self.events:,.0f} are caught.",
        ]
        if self.cost is not None:
            sentences.append(self._cost_sentence(self.cost))
        else:
            sentences.append(
                "On new rows expect a "
                f"{'recall' if self.criterion == 'capacity' else self.criterion} of "
                f"{share_words(self.on_new_rows)}, because the threshold was chosen on these rows."
            )
        return [*sentences, *self.notes]

    def _cost_sentence(self, cost: Estimate) -> str:
        everybody = self.points[0].cost or 0.0
        nobody = self.points[-1].cost or 0.0
        return (
            f"1,000 rows cost {1000 * cost.value:,.0f} ({1000 * cost.low:,.0f} to "
            f"{1000 * cost.high:,.0f}); on new rows expect {1000 * self.on_new_rows:,.0f}. "
            f"Deciding {self.title} for all costs {1000 * everybody:,.0f}, for none "
            f"{1000 * nobody:,.0f}."
        )

    def __str__(self) -> str:
        head = f"{'at least':>9}  {'rows':>7}  {'precision':>9}  {'recall':>7}  {'net benefit':>11}"
        head += f"  {'cost of 1,000':>13}" if self.cost is not None else ""
        return "\n".join([*self.sentences, "", head, *(_line(point) for point in self.points)])

    def _headline(self) -> list[str]:
        return self.sentences

    def to_records(self) -> list[JsonObject]:
        """Return the chosen threshold and its neighbours, one dictionary each."""
        return [dict(vars(point)) for point in self.points]

    def _draw_on(self, ax: Axes) -> None:
        """Draw the cost of 1,000 rows, or precision and recall, against the threshold."""
        curve = self.curve
        if curve.cost is not None:
            ax.plot(curve.threshold, 1000 * curve.cost, color=_BLUE, label="cost of 1,000 rows")
            ax.set_ylabel("cost of 1,000 rows")
        else:
            ax.plot(curve.threshold, 100 * curve.precision, color=_BLUE, label="precision")
            ax.plot(curve.threshold, 100 * curve.recall, color=_RED, label="recall")
            ax.set_ylabel("per cent")
        ax.axvspan(self.threshold_low, self.threshold_high, color=_GREY, alpha=0.2, linewidth=0,
                   label=f"{self.confidence:.0%} interval")  # fmt: skip
        ax.axvline(
            self.threshold, color="black", linewidth=1, label=f"chosen: {self.threshold:.3g}"
        )
        if self.theory is not None:
            ax.axvline(
                self.theory, color=_GREY, linestyle=":", label=f"fp/(fp + fn): {self.theory:.3g}"
            )
        ax.set_xlim(0, self._right_end())
        ax.set_xlabel(f"threshold of P({self.title})")
        ax.legend(fontsize=8, frameon=False)

    def _right_end(self) -> float:
        """Return where the axis ends: beyond the interval, and beyond almost all rows that are decided."""
        few = self.curve.threshold[self.curve.share >= 0.002]
        farthest = float(few.max()) if len(few) else 1.0
        return min(1.0, max(1.5 * self.threshold_high, 2 * (self.theory or 0.0), farthest))


@dataclass(frozen=True, repr=False)
class CostTable(Result):
    """Decisions by a table of costs: for each row the class of the least expected cost.

    Attributes
    ----------
    costs : array of shape (K, K)
        The cost of deciding class j where class k is true, in row k and column j.
    cost : Estimate
        Mean cost of a row of these decisions.
    predicted_cost : float
        The mean cost that the probabilities expect; far from ``cost`` they are not calibrated where it matters.
    most_probable_cost : float
        Mean cost if the most probable class were always decided.
    decided : array of shape (K,)
        The share of rows decided for each class.
    n : int
    confidence : float
    names, columns : tuple of K names, or None
        Of the classes, and of the columns of a frame.

    Examples
    --------
    >>> import hcal
    >>> costs = [[0, 1, 1], [1, 0, 1], [5, 5, 0]]  # class 2 must not be missed
    >>> probs = [[0.1, 0.2, 0.7], [0.8, 0.1, 0.1], [0.2, 0.6, 0.2]]
    >>> hcal.thresholds(probs, [2, 0, 1], cost=costs).decided
    array([0.33333333, 0.        , 0.66666667])
    """

    schema: ClassVar[str] = "hcal/cost-table/1"

    costs: Float64
    cost: Estimate
    predicted_cost: float
    most_probable_cost: float
    decided: Float64
    n: int
    confidence: float
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None

    @property
    def rule(self) -> CostRule:
        """What :func:`hcal.decide` needs."""
        return CostRule(self.costs, self.names, self.columns)

    def _headline(self) -> list[str]:
        return [
            f"1,000 rows cost {1000 * self.cost.value:,.4g} ({1000 * self.cost.low:,.4g} to "
            f"{1000 * self.cost.high:,.4g}); the probabilities expected "
            f"{1000 * self.predicted_cost:,.4g}.",
            f"Always deciding the most probable class costs {1000 * self.most_probable_cost:,.4g}.",
        ]

    def to_records(self) -> list[JsonObject]:
        """Return one dictionary for each class: its name, and the share of rows decided for it."""
        labels = self.names or tuple(range(len(self.costs)))
        shares = zip(labels, self.decided.tolist(), strict=True)
        return [{"class": label, "decided": share} for label, share in shares]


def thresholds(  # noqa: PLR0913 - a public door
    probs: AnyArray,
    y: AnyArray,
    *,
    cost: Costs | None = None,
    capacity: float | None = None,
    precision: float | None = None,
    recall: float | None = None,
    sample_weight: AnyArray = None,
    groups: AnyArray = None,
    confidence: float = 0.95,
    positive: int | str | None = None,
    classes: Iterable[ClassName] | None = None,
    resamples: int = 1000,
    random_state: int = 0,
) -> Thresholds | CostTable:
    """Choose the threshold at which decisions are made, and say what it costs and catches.

    Give one of ``cost``, ``capacity``, ``precision`` and ``recall``. No threshold is better on these rows than the
    chosen one. Because it was chosen on them, it looks a little better here than on new rows; ``on_new_rows`` is
    corrected for that.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of two classes
        Calibrated probabilities of rows that the calibrator has not seen.
    y : array-like of shape (N,)
    cost : dict, or array-like of shape (K, K)
        ``{"fn": 20, "fp": 1}``: a missed positive costs 20, a false alarm 1; chooses the least cost. A table holds
        the cost of deciding class j where class k is true, in row k and column j; then each row is decided for
        the class of the least expected cost, and nothing is chosen.
    capacity : float
        At most this share of the rows can be acted on, such as 0.05.
    precision : float
        At least this share of the rows decided positive is positive; chooses the lowest such threshold.
    recall : float
        At least this share of all positives is caught; chooses the highest such threshold.
    sample_weight : array-like of shape (N,), optional
        How many rows each row stands for.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other: the bootstrap draws whole groups.
    confidence : float
        Level of the intervals.
    positive : int or str, optional
        The positive one of two classes, by its number or name; the second by default.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns.
    resamples, random_state : int
        Bootstrap samples behind the intervals, and their seed.

    Returns
    -------
    Thresholds, or CostTable for a table of costs

    Examples
    --------
    >>> chosen = thresholds([0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1], recall=0.5)
    >>> round(chosen.threshold, 3), chosen.precision.value
    (0.8, 1.0)
    """
    confidence = check_confidence(confidence)
    check_integer("resamples", resamples, 20)
    rows = Rows.of_predictions(
        probs, y, input="probs", weight=sample_weight, groups=groups, classes=classes
    )
    draws = Draws(confidence, int(resamples), int(random_state))
    if cost is not None and not isinstance(cost, dict):
        if any(value is not None for value in (capacity, precision, recall)):
            raise ValueError("give one of cost, capacity, precision and recall")
        return _by_table(rows, check_table(cost, rows.n_classes, rows.names or rows.columns), draws)
    criterion = criterion_of(cost, capacity, precision, recall)
    return _by_threshold(rows, criterion, _checked_positive(positive, rows), draws)


def _checked_positive(positive: ClassName | None, rows: Rows) -> int:
    if rows.n_classes != 2:
        raise ValueError(
            f"a threshold divides two classes, and probs has {rows.n_classes} columns: pass a "
            "table of K x K costs, or P(one class) against the rest"
        )
    return positive_number(positive, rows.names or rows.columns, rows.n_classes)


def _by_threshold(rows: Rows, criterion: Criterion, positive: int, draws: Draws) -> Thresholds:
    """Choose a cut on all rows, and draw intervals by the bootstrap."""
    choice = choose(rows, criterion, positive, draws)
    curve = choice.curve
    counts = curve.counts
    low, high = choice.range
    costs = choice.costs
    return Thresholds(
        criterion=criterion.name,
        wanted=criterion.numbers,
        threshold=choice.threshold,
        threshold_low=low,
        threshold_high=high,
        n=float(counts.decided[0]),
        events=float(counts.caught[0]),
        share=choice.share,
        precision=choice.precision,
        recall=choice.recall,
        net_benefit=choice.net_benefit,
        cost=choice.cost,
        on_new_rows=choice.on_new_rows,
        theory=None if costs is None else costs.theory,
        points=_points(curve, choice.cut, costs),
        curve=_curve_points(counts.at(choice.cuts), choice.thresholds, costs),
        confidence=draws.confidence,
        positive=positive,
        names=rows.names,
        columns=rows.columns,
        words=criterion.words(),
        notes=_notes(curve, choice.cut, criterion),
    )


def _points(curve: ThresholdCurve, cut: int, costs: LeastCost | None) -> tuple[DecisionPoint, ...]:
    """Return the chosen cut and its neighbours, ascending."""
    last = len(curve.value)
    decided = curve.counts.decided[cut]
    why = dict.fromkeys(curve.cut_of_rows([m * decided for m in _MULTIPLES]).tolist(), "")
    if costs is not None:
        why[curve.cut_of(costs.theory)] = _THEORY
    why[0] = _ALL
    why[last] = _NONE
    why[cut] = "chosen" if 0 < cut < last else f"{why[cut]}, chosen"
    return tuple(_point(curve, number, why[number], costs) for number in sorted(why))


def _point(curve: ThresholdCurve, cut: int, why: str, costs: LeastCost | None) -> DecisionPoint:
    counts = curve.counts
    threshold = curve.threshold(cut)
    if costs is not None and why == _THEORY:
        threshold = costs.theory
    return DecisionPoint(
        threshold=threshold,
        why=why,
        rows=float(counts.decided[cut]),
        share=float(counts.share[cut]),
        precision=float(counts.precision[cut]),
        recall=float(counts.recall[cut]),
        net_benefit=float(counts.net_benefit(odds_of(threshold, costs))[cut]),
        cost=None if costs is None else float(costs.measure(counts)[cut]),
    )


def _curve_points(counts: Counts, at: Float64, costs: LeastCost | None) -> DecisionCurvePoints:
    cost = None if costs is None else counts.cost(costs.fn, costs.fp)
    return DecisionCurvePoints(at, counts.share, counts.precision, counts.recall, cost)


def _notes(curve: ThresholdCurve, cut: int, criterion: Criterion) -> tuple[str, ...]:
    last = len(curve.value)
    if criterion.name == "capacity" and 0 < cut < last:
        lower = float(curve.counts.share[cut - 1])
        share = float(curve.counts.share[cut])
        if lower > 1.1 * share + 0.001:
            return (
                "Equal probabilities cannot be divided: the next lower threshold decides "
                f"{share_words(lower)} of the rows.",
            )
    if cut == last and criterion.name == "capacity":
        highest = share_words(float(curve.counts.share[last - 1]))
        return (
            f"No row is decided positive: {highest} of the rows share the highest probability, and "
            "equal probabilities cannot be divided.",
        )
    if cut == last:
        return ("No row is decided positive: each threshold costs more than deciding none.",)
    if cut == 0:
        return ("All rows are decided positive.",)
    return ()


def _by_table(rows: Rows, costs: Float64, draws: Draws) -> CostTable:
    """Decide each row for the class of the least expected cost, and measure the true cost."""
    rule = CostRule(costs)
    probs = rows.probs()
    expected = rule.expected(probs)
    decisions = expected.argmin(axis=1)
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight
    paid = costs[rows.labels, decisions]
    most_probable = costs[rows.labels, probs.argmax(axis=1)]
    predicted = expected[np.arange(len(rows)), decisions]
    decided = np.bincount(decisions, weights=weight, minlength=rows.n_classes) / weight.sum()
    return CostTable(
        costs=costs,
        cost=weighted_mean(paid, weight, rows.groups, draws.confidence),
        predicted_cost=float(np.average(predicted, weights=weight)),
        most_probable_cost=float(np.average(most_probable, weights=weight)),
        decided=decided,
        n=len(rows),
        confidence=draws.confidence,
        names=rows.names,
        columns=rows.columns,
    )


def _line(point: DecisionPoint) -> str:
    cells = f"{point.threshold:>9.3g}  {point.share:>7.2%}"
    cells += f"  {_cell(point.precision, 9)}  {_cell(point.recall, 7)}"
    cells += f"  {point.net_benefit:>11.4f}" if np.isfinite(point.net_benefit) else f"  {'–':>11}"
    cells += "" if point.cost is None else f"  {1000 * point.cost:>13,.0f}"
    return f"{cells}  {point.why}".rstrip()


def _cell(share: float, width: int) -> str:
    return f"{'–':>{width}}" if np.isnan(share) else f"{share:>{width}.1%}"


def _shares(estimate: Estimate) -> str:
    if np.isnan(estimate.low):
        return share_words(estimate.value)
    return f"{share_words(estimate.value)} ({100 * estimate.low:.3g} to {100 * estimate.high:.3g})"
