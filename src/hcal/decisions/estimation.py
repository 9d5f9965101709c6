"""``hcal.estimate``: accuracy, recall, cost, … of rows that have no labels yet, from their calibrated probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from scipy.special import ndtri

from hcal.class_names import ClassName, positive_number
from hcal.columns import order_by
from hcal.decisions.deciding import as_rule, rows_of_rule
from hcal.decisions.expectation import ASSUMPTIONS, Unlabelled, expect
from hcal.decisions.rules import (
    AbstainRule,
    CostRule,
    RuleLike,
    ThresholdRule,
    check_table,
    table_of,
)
from hcal.decisions.threshold_curve import Costs, check_costs
from hcal.extras import pyplot
from hcal.frames import AnyArray
from hcal.inputs import check_confidence
from hcal.numerics import Float64, IntArray
from hcal.results import Result
from hcal.rows import ClassNames, Rows
from hcal.text import JsonObject, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Metrics of which more is never above 1.
_SHARES: Final = frozenset({"accuracy", "precision", "recall", "specificity", "f1", "auc", "rate"})
#: What is estimated where nothing is asked for.
_USUAL: Final = ("rate", "accuracy", "precision", "recall", "auc", "brier", "nll")
#: The most segments that the text and the picture show.
_MOST_SEGMENTS: Final = 30
_BLUE: Final = "#1d5fae"


@dataclass(frozen=True)
class EstimatedMetric:
    """The expected value of one metric, the interval that the chance of the labels gives it, and what it assumes.

    Examples
    --------
    >>> import hcal
    >>> metric = hcal.estimate([[0.2, 0.8], [0.9, 0.1]], ["accuracy"]).metrics[0]
    >>> metric.name, round(metric.value, 2)
    ('accuracy', 0.85)
    """

    name: str
    value: float
    low: float
    high: float
    assumes: str

    def __str__(self) -> str:
        if np.isnan(self.value):
            return f"{self.name} –"
        return f"{self.name} {self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class SegmentEstimate:
    """The estimates of one segment.

    Examples
    --------
    >>> import hcal
    >>> probs = [[0.2, 0.8], [0.9, 0.1]]
    >>> segment = hcal.estimate(probs, ["accuracy"], by=["DE", "FR"]).segments[0]
    >>> segment.segment, segment.n
    ('DE', 1)
    """

    segment: str
    n: int
    metrics: tuple[EstimatedMetric, ...]


@dataclass(frozen=True, repr=False)
class LabelFreeEstimates(Result):
    """What metrics of unlabelled rows are expected to be.

    Attributes
    ----------
    metrics : tuple of EstimatedMetric
        With ``name``, ``value``, ``low``, ``high`` and ``assumes``.
    segments : tuple of SegmentEstimate
        The same by segment, in the order of their names; empty without ``by``.
    segment_title : str or None
    n : int
    decision : str
        How rows were decided, in words.
    confidence : float
    names : tuple of K names, or None

    Examples
    --------
    >>> estimates = estimate([0.1, 0.2, 0.7, 0.9], metrics=["accuracy", "recall"])
    >>> round(estimates["accuracy"].value, 3), round(estimates["recall"].value, 3)
    (0.825, 0.842)
    """

    schema: ClassVar[str] = "hcal/estimate/1"

    metrics: tuple[EstimatedMetric, ...]
    segments: tuple[SegmentEstimate, ...]
    segment_title: str | None
    n: int
    decision: str
    confidence: float
    names: ClassNames | None = None

    def __getitem__(self, name: str) -> EstimatedMetric:
        for metric in self.metrics:
            if metric.name == name:
                return metric
        listed = ", ".join(metric.name for metric in self.metrics)
        raise KeyError(f"{name!r} was not estimated; there are {listed}")

    @property
    def values(self) -> dict[str, float]:
        """The expected value of each metric by its name."""
        return {metric.name: metric.value for metric in self.metrics}

    def gate_values(self) -> dict[str, float | str]:
        """Return the values that :func:`hcal.require` can name."""
        return dict(self.values)

    @property
    def sentences(self) -> list[str]:
        """What the numbers are, and what they assume."""
        return [
            f"Expected of {self.n:,} rows without labels, where {self.decision}.",
            "The numbers are right if the calibrator is as good on these rows as on its own. "
            "Another mix of the same kinds of rows keeps that; a change in how outcomes follow "
            "from inputs does not, and only labels show it.",
            f"The {100 * self.confidence:g} % intervals hold the chance of the labels alone.",
        ]

    def __str__(self) -> str:
        lines = [*self.sentences, "", *self._lines()]
        if self.segments:
            lines += ["", *self._segment_lines()]
        return "\n".join(lines)

    def _lines(self) -> list[str]:
        interval = f"{100 * self.confidence:g} % interval"
        lines = [f"{'metric':<12} {'expected':>9}  {interval:>18}  assumes that"]
        for metric in self.metrics:
            span = "–" if np.isnan(metric.low) else f"{metric.low:.4f} to {metric.high:.4f}"
            lines.append(f"{metric.name:<12} {metric.value:>9.4f}  {span:>18}  {metric.assumes}")
        return lines

    def _segment_lines(self) -> list[str]:
        names = [metric.name for metric in self.metrics]
        title = printable(self.segment_title or "segment")
        wide = max([len(title), *(len(printable(entry.segment)) for entry in self.segments)])
        lines = [f"{title:<{wide}}  {'rows':>9}  " + "  ".join(f"{name:>11}" for name in names)]
        for entry in self.segments[:_MOST_SEGMENTS]:
            cells = "  ".join(f"{metric.value:>11.4f}" for metric in entry.metrics)
            lines.append(f"{printable(entry.segment):<{wide}}  {entry.n:>9,}  {cells}")
        if len(self.segments) > _MOST_SEGMENTS:
            lines.append(f"… and {len(self.segments) - _MOST_SEGMENTS:,} more segments")
        return lines

    def _headline(self) -> list[str]:
        numbers = ", ".join(map(str, self.metrics[:4]))
        return [self.sentences[0], numbers]

    def to_records(self) -> list[JsonObject]:
        """Return one dictionary for each metric; with segments, for each segment and metric too."""
        records = [{"segment": "", "rows": self.n, **vars(metric)} for metric in self.metrics]
        for entry in self.segments:
            head = {"segment": entry.segment, "rows": entry.n}
            records += [{**head, **vars(metric)} for metric in entry.metrics]
        return records

    def plot(self, ax: Axes | None = None, *, metric: str | None = None) -> Axes:
        """Draw one metric of each segment with its interval.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        metric : str, optional
            By default the first one.

        Returns
        -------
        matplotlib Axes
        """
        if not self.segments:
            raise ValueError("a picture shows segments: pass by= to hcal.estimate")
        chosen = self.metrics[0].name if metric is None else self[metric].name
        if ax is None:
            ax = pyplot().subplots(figsize=(5.5, self._height), layout="constrained")[1]
        self._draw_on(ax, chosen)
        return ax

    @property
    def _height(self) -> float:
        return 1.2 + 0.28 * min(len(self.segments), _MOST_SEGMENTS)

    def _draw(self, figure: Figure) -> bool:
        if not self.segments:
            return False
        figure.set_size_inches(5.5, self._height)
        self._draw_on(figure.add_subplot(), self.metrics[0].name)
        return True

    def _draw_on(self, ax: Axes, name: str) -> None:
        segments = self.segments[:_MOST_SEGMENTS][::-1]
        place = [metric.name for metric in self.metrics].index(name)
        figures = [entry.metrics[place] for entry in segments]
        values = np.array([figure.value for figure in figures])
        lows = np.array([figure.low for figure in figures])
        highs = np.array([figure.high for figure in figures])
        heights = np.arange(len(segments))
        ax.hlines(heights, lows, highs, color=_BLUE, linewidth=2, alpha=0.5)
        ax.plot(values, heights, "o", color=_BLUE, markersize=4)
        ax.axvline(self[name].value, color="black", linewidth=0.8, linestyle=":", label="all rows")
        names = [f"{entry.segment} ({entry.n:,})" for entry in segments]
        ax.set_yticks(heights, names, fontsize=8)
        ax.set_xlabel(f"expected {name}")
        ax.legend(fontsize=8, frameon=False)


def estimate(  # noqa: PLR0913 - a public door
    probs: AnyArray,
    metrics: Iterable[str] | str | None = None,
    *,
    rule: RuleLike | None = None,
    cost: Costs | None = None,
    by: AnyArray = None,
    sample_weight: AnyArray = None,
    positive: int | str | None = None,
    classes: Iterable[ClassName] | None = None,
    confidence: float = 0.95,
) -> LabelFreeEstimates:
    """Return what metrics of rows without labels are expected to be, from their calibrated probabilities.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of two classes
        Calibrated probabilities of new rows.
    metrics : str, or sequence of str, optional
        ``rate`` (share of positives), ``accuracy``, ``precision``, ``recall``, ``specificity``, ``f1``, ``cost``,
        ``auc``, ``brier`` and ``nll``. With more than two classes, ``precision`` to ``f1`` and ``auc`` are means
        over the classes, each against the rest.
    rule : result, float or path, optional
        How rows are decided: what :func:`hcal.thresholds` returned, its file, or a threshold of P(positive). By
        default for the most probable class, or with ``cost`` for the class of the least expected cost. A rule that
        was chosen by costs brings them along.
    cost : dict, or array-like of shape (K, K), optional
        ``{"fn": 20, "fp": 1}``, or a table with the cost of deciding class j where class k is true in row k and
        column j; adds the metric ``cost``, the mean cost of a row.
    by : array-like of shape (N,), frame, or dict of columns, optional
        Segments to estimate one by one.
    sample_weight : array-like of shape (N,), optional
        How many rows each row stands for.
    positive : int or str, optional
        The positive one of two classes, by its number or name: by default that of the rule, else class 1.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns.
    confidence : float
        Level of the intervals, which hold the chance of the labels of these rows.

    Returns
    -------
    LabelFreeEstimates

    Examples
    --------
    >>> p = np.random.default_rng(0).beta(1, 9, 10_000)
    >>> print(estimate(p, ["recall", "cost"], rule=0.05, cost={"fn": 20, "fp": 1})["cost"])
    cost 0.71 (0.6734 to 0.7467)
    """
    confidence = check_confidence(confidence)
    rows = Rows.of_predictions(
        probs, None, input="probs", weight=sample_weight, by=by, classes=classes
    )
    number = None
    if positive is not None:
        number = positive_number(positive, rows.names or rows.columns, rows.n_classes)
    chosen = None
    if rule is not None:
        of_rule = rows_of_rule(as_rule(rule), probs, classes, weight=sample_weight, by=by)
        number = _number_in(of_rule, rows, number)
        chosen = _checked_rule(rule, number)
        rows = of_rule
    unlabelled, decision = _decided(rows, chosen, cost, 1 if number is None else number)
    names = _checked_metrics(metrics, unlabelled)
    z = float(ndtri((1 + confidence) / 2))
    return LabelFreeEstimates(
        metrics=_estimates(names, unlabelled, z),
        segments=_by_segment(rows, unlabelled, names, z),
        segment_title=None if rows.by is None else rows.by.title,
        n=len(rows),
        decision=decision,
        confidence=confidence,
        names=rows.names,
    )


def _number_in(turned: Rows, rows: Rows, number: int | None) -> int | None:
    """Return the number of a class of rows among the columns of the same rows in another order."""
    titles = rows.names or rows.columns
    turned_titles = turned.names or turned.columns
    if number is None or titles is None or turned_titles is None:
        return number
    order = order_by(titles, turned_titles)
    return number if order is None else order[number]


def _checked_rule(rule: RuleLike, positive: int | None) -> ThresholdRule | CostRule:
    """Return the rule of a result, a file or a threshold; refuse one that decides for another positive class."""
    chosen = as_rule(rule, positive)
    if isinstance(chosen, AbstainRule):
        raise ValueError(
            "rule leaves rows without an answer: pass the answered rows alone, where "
            "hcal.decide is not None or −1"
        )
    if isinstance(chosen, ThresholdRule) and positive not in (None, chosen.positive):
        raise ValueError(
            f"positive is class {positive}, and the rule is a threshold of P(class "
            f"{chosen.positive}): leave out positive"
        )
    return chosen


def _decided(
    rows: Rows, rule: ThresholdRule | CostRule | None, cost: Costs | None, positive: int
) -> tuple[Unlabelled, str]:
    """Return the rows with their decisions, and how these were made in words."""
    probs = rows.probs().astype(np.float64)
    if isinstance(rule, ThresholdRule):
        positive = rule.positive
    costs = _costs(cost, rule, rows, positive)
    if isinstance(rule, ThresholdRule):
        decided = rule.decide(probs)
        title = positive if rows.names is None else rows.names[positive]
        words = f"a row is decided for class {title} from P = {rule.threshold:.4g} on"
    elif costs is not None:
        decided = (CostRule(costs) if rule is None else rule).decide(probs)
        words = "each row is decided for the class of the least expected cost"
    else:
        decided = probs.argmax(axis=1)
        words = "each row is decided for its most probable class"
    return Unlabelled(probs, rows.weights, decided, positive, costs), words


def _costs(
    cost: Costs | None, rule: ThresholdRule | CostRule | None, rows: Rows, positive: int
) -> Float64 | None:
    """Return the table of costs (K, K) that was passed in, or with which the rule was chosen."""
    if cost is None:
        return None if rule is None else rule.costs
    if not isinstance(cost, dict):
        return check_table(cost, rows.n_classes, rows.names or rows.columns)
    if rows.n_classes != 2:
        raise ValueError(
            f"cost of fn and fp is for two classes, and probs has {rows.n_classes} columns: pass "
            "a table of K x K costs"
        )
    return table_of(check_costs(cost), positive)


def _checked_metrics(metrics: Iterable[str] | str | None, rows: Unlabelled) -> list[str]:
    if metrics is None:
        # With more classes the share of positives is a mean over the classes, 1/K whatever the rows are.
        left_out = {"rate"} if rows.probs.shape[1] > 2 else set[str]()
        usual = [name for name in _USUAL if name not in left_out]
        return [*usual, *([] if rows.costs is None else ["cost"])]
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    unknown = [name for name in names if name not in ASSUMPTIONS]
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} cannot be estimated without labels; there are {', '.join(ASSUMPTIONS)}"
        )
    if "cost" in names and rows.costs is None:
        raise ValueError("the metric 'cost' needs cost={'fn': …, 'fp': …}, or a table of costs")
    return names


def _estimates(names: list[str], rows: Unlabelled, z: float) -> tuple[EstimatedMetric, ...]:
    return tuple(_estimate(name, rows, z) for name in names)


def _estimate(name: str, rows: Unlabelled, z: float) -> EstimatedMetric:
    expected = expect(name, rows)
    margin = z * expected.deviation
    low = expected.value - margin
    high = expected.value + margin
    if name != "cost":  # a cost may be negative, where a decision earns something
        low = max(low, 0.0) if not np.isnan(low) else low
    if name in _SHARES and not np.isnan(high):
        high = min(high, 1.0)
    return EstimatedMetric(name, expected.value, low, high, ASSUMPTIONS[name])


def _by_segment(
    rows: Rows, unlabelled: Unlabelled, names: list[str], z: float
) -> tuple[SegmentEstimate, ...]:
    if rows.by is None:
        return ()
    order = np.argsort(rows.by.codes, kind="stable")
    sizes = np.bincount(rows.by.codes, minlength=len(rows.by.names))
    members: list[IntArray] = np.split(order, np.cumsum(sizes)[:-1])
    return tuple(
        SegmentEstimate(segment, len(index), _estimates(names, unlabelled[index], z))
        for segment, index in zip(rows.by.names, members, strict=True)
        if len(index)
    )
