"""Rules that turn probabilities into decisions, and the files in which they are saved.

A rule is what is left of a result when its rows are gone: a threshold, a table of costs, or a confidence below which
no answer is given. A result is saved with ``to_json()``; :func:`read_rule` checks each entry and takes nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from hcal.class_names import check_classes
from hcal.decisions.threshold_curve import check_costs
from hcal.frames import AnyArray, ColumnName, columns_by_name, index_of
from hcal.io.files import open_regular
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray
from hcal.rows import ClassNames
from hcal.text import one_line, quoted

#: The decision for a row without an answer.
ABSTAINED: Final = -1
#: The most bytes of a saved rule.
_MOST_BYTES: Final = 50_000_000


@dataclass(frozen=True)
class ThresholdRule:
    """Decide for the class ``positive`` of two where its probability is at least ``threshold``.

    ``names`` and ``columns`` of the classes, here and in the other rules, are those of the rows that it was chosen
    on. ``cost`` of a missed positive and of a false alarm is known where the threshold was chosen by them.

    >>> ThresholdRule(0.2).decide(np.array([[0.9, 0.1], [0.8, 0.2]]))
    array([0, 1])
    """

    threshold: float
    positive: int = 1
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None
    cost: tuple[float, float] | None = None

    @property
    def costs(self) -> Float64 | None:
        """The table of costs (2, 2) with which the threshold was chosen, where it was."""
        return None if self.cost is None else table_of(self.cost, self.positive)

    @property
    def n_classes(self) -> int:
        """Two."""
        return 2

    def decide(self, probs: FloatArray) -> IntArray:
        """Return the class decided for each row (N, 2)."""
        # In float64, because a threshold may lie between two neighbouring numbers of float32.
        decided = probs[:, self.positive].astype(np.float64) >= self.threshold
        return np.where(decided, self.positive, 1 - self.positive).astype(np.int64)


@dataclass(frozen=True)
class CostRule:
    """Decide for the class of the least expected cost; ``costs[k, j]`` is that of deciding j where k is true.

    >>> CostRule(np.array([[0.0, 1.0], [20.0, 0.0]])).decide(np.array([[0.9, 0.1], [0.99, 0.01]]))
    array([1, 0])
    """

    costs: Float64
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None

    @property
    def n_classes(self) -> int:
        """The number K of classes."""
        return len(self.costs)

    def expected(self, probs: FloatArray) -> Float64:
        """Return the expected cost (N, K) of each decision."""
        return np.asarray(probs.astype(np.float64, copy=False) @ self.costs)

    def decide(self, probs: FloatArray) -> IntArray:
        """Return the class decided for each row (N, K)."""
        return np.asarray(self.expected(probs).argmin(axis=1), dtype=np.int64)


@dataclass(frozen=True)
class AbstainRule:
    """Answer with the most probable class where the confidence is at least ``threshold``; else abstain, −1.

    The confidence is the probability of the answer, or that of ``positive`` where every row has one answer and the
    probability says whether it is right.

    >>> AbstainRule(0.9).decide(np.array([[0.95, 0.05], [0.6, 0.4]]))
    array([ 0, -1])
    """

    threshold: float
    positive: int | None = None
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None

    @property
    def n_classes(self) -> int | None:
        """None, which fits every number of classes, unless they have names."""
        titles = self.names or self.columns
        return None if titles is None else len(titles)

    def decide(self, probs: FloatArray) -> IntArray:
        """Return the answer for each row, or −1."""
        if self.positive is not None:
            answered = probs[:, self.positive].astype(np.float64) >= self.threshold
            return np.where(answered, self.positive, ABSTAINED).astype(np.int64)
        answers = probs.argmax(axis=1)
        answered = probs.max(axis=1).astype(np.float64) >= self.threshold
        return np.where(answered, answers, ABSTAINED).astype(np.int64)


Rule = ThresholdRule | CostRule | AbstainRule


class HasRule(Protocol):
    """A result that chose a rule."""

    @property
    def rule(self) -> Rule:
        """The rule."""


#: A rule as users pass it: a result, the file of one, or a threshold.
RuleLike = Rule | HasRule | str | Path | float | np.number


def named(decisions: IntArray, names: ClassNames | None) -> NumpyArray:
    """Return decisions as names of classes, None for rows without an answer; without names, as they are."""
    if names is None:
        return decisions
    if (decisions != ABSTAINED).all():
        return np.asarray(names)[decisions]
    listed = np.array([*names, None], dtype=object)
    return np.asarray(listed[decisions])


def read_rule(path: str | Path) -> Rule:
    """Return the rule of a result that was saved as JSON.

    Parameters
    ----------
    path : path-like
        A file that holds ``result.to_json()`` of :func:`hcal.thresholds` or :func:`hcal.abstain_below`, or what
        ``hcal decide --save`` wrote.

    Returns
    -------
    ThresholdRule, CostRule or AbstainRule
    """
    path = Path(path)
    with open_regular(path) as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"{path.name} is too large for a saved rule")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is no JSON, so it is no rule that hcal saved") from None
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if schema == "hcal/thresholds/1":
        positive = _entry(content, "positive", path)
        if type(positive) is not int or positive not in (0, 1):
            raise ValueError(f"{path.name}: 'positive' must be 0 or 1")
        return ThresholdRule(
            threshold=_number(content, path),
            positive=positive,
            names=_names(content, "names", 2, path),
            columns=_names(content, "columns", 2, path),
            cost=_cost(content, path),
        )
    if schema == "hcal/abstention/1":
        positive = content.get("positive")
        if positive is not None and (type(positive) is not int or positive not in (0, 1)):
            raise ValueError(f"{path.name}: 'positive' must be 0, 1 or null")
        return AbstainRule(
            threshold=_number(content, path),
            positive=positive,
            names=_names(content, "names", None, path),
            columns=_names(content, "columns", None, path),
        )
    if schema == "hcal/cost-table/1":
        costs = check_table(_entry(content, "costs", path))
        return CostRule(
            costs=costs,
            names=_names(content, "names", len(costs), path),
            columns=_names(content, "columns", len(costs), path),
        )
    raise ValueError(
        f"{path.name} holds {quoted(schema)}, and a rule is the JSON of hcal.thresholds or "
        "hcal.abstain_below"
    )


def check_table(
    costs: AnyArray, n_classes: int | None = None, names: ClassNames | None = None
) -> Float64:
    """Return a table of costs (K, K): the row is the true class, the column the decision.

    Rows and columns of a frame that have the names of classes are put in their order.

    >>> check_table([[0, 1], [20, 0]])
    array([[ 0.,  1.],
           [20.,  0.]])
    """
    in_order = _by_name(costs, names)
    try:
        table = np.asarray(in_order, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("a table of costs must hold K x K numbers") from None
    if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
        raise ValueError(f"a table of costs has K rows and K columns, got shape {table.shape}")
    if n_classes is not None and len(table) != n_classes:
        raise ValueError(
            f"the table of costs has {len(table)} rows and columns for {n_classes} classes"
        )
    if not np.isfinite(table).all():
        raise ValueError("a table of costs holds finite numbers alone")
    return table


def _by_name(costs: AnyArray, names: ClassNames | None) -> AnyArray:
    """Return a table of pandas with its rows and columns in the order of the classes; others as they are."""
    titles = getattr(costs, "columns", None)
    if index_of(costs) is None or titles is None:
        _refuse_other_titles(costs, names)
        return costs
    decided = [str(title) for title in titles]
    true = [str(title) for title in costs.index]
    wanted = [str(name) for name in names or range(len(decided))]
    numbers = [str(number) for number in range(len(wanted))]
    for titles_of_axis in (true, decided):
        if set(titles_of_axis) != set(wanted) and titles_of_axis != numbers:
            if names is None and true == decided:
                return costs.to_numpy()
            raise ValueError(
                f"the table of costs is of {one_line(', '.join(titles_of_axis), 120)}, and the "
                f"classes are {one_line(', '.join(wanted), 120)}: pass costs.to_numpy(), with the "
                "true classes in rows and the decisions in columns, in the order of the classes"
            )
    rows = [true.index(name) if name in true else place for place, name in enumerate(wanted)]
    columns = [
        decided.index(name) if name in decided else place for place, name in enumerate(wanted)
    ]
    return costs.to_numpy()[np.ix_(rows, columns)]


def _refuse_other_titles(costs: AnyArray, names: ClassNames | None) -> None:
    """Refuse a frame without names of its rows whose columns are in another order than the classes."""
    titled = columns_by_name(costs, "cost")
    classes = [str(name) for name in names or ()]
    if titled is not None and set(titled) == set(classes) and list(titled) != classes:
        raise ValueError(
            f"the columns of the table of costs are {one_line(', '.join(titled), 120)}, and the "
            f"classes are {one_line(', '.join(classes), 120)}: pass an array, with the true "
            "classes in rows and the decisions in columns, in the order of the classes"
        )


def table_of(costs: tuple[float, float], positive: int) -> Float64:
    """Return the table of costs (2, 2) of a missed positive and of a false alarm.

    >>> table_of((20.0, 1.0), positive=1)
    array([[ 0.,  1.],
           [20.,  0.]])
    """
    table = np.zeros((2, 2))
    table[positive, 1 - positive] = costs[0]
    table[1 - positive, positive] = costs[1]
    return table


def _entry(content: Mapping[str, object], name: str, path: Path) -> object:
    if name not in content:
        raise ValueError(f"{path.name} has no entry {name!r}, so it is no rule that hcal saved")
    return content[name]


def _number(content: Mapping[str, object], path: Path) -> float:
    value = _entry(content, "threshold", path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2:
        raise ValueError(f"{path.name}: 'threshold' must be a number from 0 to 1")
    return float(value)


def _cost(content: Mapping[str, object], path: Path) -> tuple[float, float] | None:
    """Return the costs by which a threshold was chosen; None where it was chosen by something else."""
    if content.get("criterion") != "cost":
        return None
    try:
        return check_costs(content.get("wanted"))
    except (TypeError, ValueError):
        raise ValueError(f"{path.name}: 'wanted' must hold the costs 'fn' and 'fp'") from None


def _names(
    content: Mapping[str, object], entry: str, n_classes: int | None, path: Path
) -> ClassNames | None:
    """Return the names of the classes, or those of their columns."""
    names = content.get(entry)
    if names is None:
        return None
    if not isinstance(names, list):
        raise ValueError(f"{path.name}: {entry!r} must be a list of the names of the classes")
    return check_classes(names, len(names) if n_classes is None else n_classes)
