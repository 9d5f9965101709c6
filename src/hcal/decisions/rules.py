"""Rules that turn probabilities into decisions, and the files in which they are saved.

A rule is what is left of a result when its rows are gone: a threshold, a table of costs, or a confidence below which
no answer is given. A result is saved with ``to_json()``; :func:`read_rule` checks each entry and takes nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal.class_names import check_classes
from hcal.frames import ColumnName, Origin, to_numpy
from hcal.io.files import open_regular
from hcal.numerics import Float64, FloatArray, IntArray
from hcal.rows import ClassNames, Rows, order_by
from hcal.text import one_line, quoted

#: The decision for a row without an answer.
ABSTAINED: Final = -1
#: The most bytes of a saved rule.
_MOST_BYTES: Final = 50_000_000


@dataclass(frozen=True)
class ThresholdRule:
    """Decide for the class ``positive`` of two where its probability is at least ``threshold``.

    >>> ThresholdRule(0.2).decide(np.array([[0.9, 0.1], [0.8, 0.2]]))
    array([0, 1])
    """

    threshold: float
    positive: int = 1
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None

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
        """Any number of classes."""
        return None if self.names is None else len(self.names)

    def decide(self, probs: FloatArray) -> IntArray:
        """Return the answer for each row, or −1."""
        if self.positive is not None:
            answered = probs[:, self.positive].astype(np.float64) >= self.threshold
            return np.where(answered, self.positive, ABSTAINED).astype(np.int64)
        answers = probs.argmax(axis=1)
        answered = probs.max(axis=1).astype(np.float64) >= self.threshold
        return np.where(answered, answers, ABSTAINED).astype(np.int64)


Rule = ThresholdRule | CostRule | AbstainRule


def places_in_rows(rule: Rule, rows: Rows) -> list[int] | None:
    """Return the place of each class of a rule among the columns of rows; None where either have no names.

    Columns that are other classes than those of the rule are refused with both lists.
    """
    of_rule = rule.names or rule.columns
    of_rows = rows.names or rows.columns
    if of_rule is None or of_rows is None:
        return None
    order = order_by(of_rule, of_rows)
    if order is None:
        raise ValueError(
            f"the rule is for the classes {one_line(', '.join(map(str, of_rule)), 120)}, and the "
            f"columns of probs are {one_line(', '.join(map(str, of_rows)), 120)}"
        )
    return order


def rule_for(rule: Rule, rows: Rows) -> Rule:
    """Return a rule whose classes are in the order of the columns of rows.

    >>> rows = Rows.of([[0.7, 0.3]], input="probs", classes=["yes", "no"])
    >>> rule_for(ThresholdRule(0.2, 1, ("no", "yes")), rows).positive
    0
    """
    places = places_in_rows(rule, rows)
    if places is None or places == sorted(places):
        return rule
    if isinstance(rule, CostRule):
        order = np.argsort(places)
        return replace(rule, costs=rule.costs[np.ix_(order, order)], names=rows.names)
    positive = None if rule.positive is None else places[rule.positive]
    return replace(rule, positive=positive, names=rows.names)


def named(decisions: IntArray, names: ClassNames | None) -> NDArray[Any]:
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
        return ThresholdRule(_number(content, path), positive, *_names(content, 2, path))
    if schema == "hcal/abstention/1":
        positive = content.get("positive")
        if positive is not None and (type(positive) is not int or positive not in (0, 1)):
            raise ValueError(f"{path.name}: 'positive' must be 0, 1 or null")
        titles = content.get("names") or content.get("columns")
        size = len(titles) if isinstance(titles, list) else 0
        return AbstainRule(_number(content, path), positive, *_names(content, size, path))
    if schema == "hcal/cost-table/1":
        costs = check_table(_entry(content, "costs", path))
        return CostRule(costs, *_names(content, len(costs), path))
    raise ValueError(
        f"{path.name} holds {quoted(schema)}, and a rule is the JSON of hcal.thresholds or "
        "hcal.abstain_below"
    )


def check_table(
    costs: Any, n_classes: int | None = None, names: ClassNames | None = None
) -> Float64:
    """Return a table of costs (K, K): the row is the true class, the column the decision.

    The rows and columns of a frame that have names are put in the order of the classes.

    >>> check_table([[0, 1], [20, 0]])
    array([[ 0.,  1.],
           [20.,  0.]])
    """
    try:
        array, origin = to_numpy(costs, "a table of costs")
        table = array.astype(np.float64)
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
    return table[np.ix_(*_places_in_table(origin, names, len(table)))]


def _places_in_table(
    origin: Origin, names: ClassNames | None, n_classes: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the place of each class among the rows, and among the columns, of a table of costs."""
    as_they_are = list(range(n_classes))
    titles = {"rows": origin.index, "columns": origin.columns}
    places = []
    for axis, axis_titles in titles.items():
        named = None
        if axis_titles is not None:
            listed_titles = list(axis_titles)
            named = order_by(names or as_they_are, listed_titles)
            if named is None and listed_titles != as_they_are:
                raise ValueError(
                    f"the {axis} of the table of costs are "
                    f"{one_line(', '.join(map(str, listed_titles)), 120)}, and the classes are "
                    f"{one_line(', '.join(map(str, names or as_they_are)), 120)}"
                )
        places.append(named)
    if None in places and any(place not in (None, as_they_are) for place in places):
        raise ValueError(
            "the rows or the columns of the table of costs have the names of the classes in another "
            "order, and the others have no names: name both"
        )
    rows, columns = (as_they_are if place is None else place for place in places)
    return rows, columns


def _entry(content: Mapping[str, Any], name: str, path: Path) -> Any:
    if name not in content:
        raise ValueError(f"{path.name} has no entry {name!r}, so it is no rule that hcal saved")
    return content[name]


def _number(content: Mapping[str, Any], path: Path) -> float:
    value = _entry(content, "threshold", path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2:
        raise ValueError(f"{path.name}: 'threshold' must be a number from 0 to 1")
    return float(value)


def _names(
    content: Mapping[str, Any], n_classes: int, path: Path
) -> tuple[ClassNames | None, tuple[ColumnName, ...] | None]:
    """Return the names of the classes and of the columns that a saved rule holds."""
    return (
        _titles(content, "names", n_classes, path),
        _titles(content, "columns", n_classes, path),
    )


def _titles(
    content: Mapping[str, Any], entry: str, n_classes: int, path: Path
) -> ClassNames | None:
    titles = content.get(entry)
    if titles is None:
        return None
    if not isinstance(titles, list):
        raise ValueError(f"{path.name}: {entry!r} must be a list of the names of the classes")
    return check_classes(titles, n_classes)
