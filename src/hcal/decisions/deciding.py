"""``hcal.decide``: decisions for rows without labels, by a threshold, a table of costs or a saved result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hcal.decisions.rules import AbstainRule, CostRule, Rule, ThresholdRule, named, read_rule
from hcal.frames import AnyArray, ColumnName
from hcal.numerics import NumpyArray
from hcal.rows import ClassNames, Rows


def decide(probs: AnyArray, rule: Any, *, classes: Any = None) -> NumpyArray:
    """Return a decision for each row; no labels are needed.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of two classes
        Calibrated probabilities. Columns that have names are put in the order of the rule's classes.
    rule : result, float or path
        What :func:`hcal.thresholds` or :func:`hcal.abstain_below` returned, the file of such a result, or a
        threshold of P(class 1).
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns. The rule's classes are found by name.

    Returns
    -------
    array of shape (N,)
        Names of classes where they are known, else their numbers. Rows without an answer have None, or −1.

    Examples
    --------
    >>> decide([0.1, 0.3, 0.6], 0.25)
    array([0, 1, 1])
    >>> decide([0.1, 0.3, 0.6], 0.25, classes=["stays", "leaves"]).tolist()
    ['stays', 'leaves', 'leaves']
    """
    chosen = as_rule(rule)
    rows = rows_of_rule(chosen, probs, classes)
    return named(chosen.decide(rows.probs()), rows.names)


def check_threshold(threshold: float | np.number[Any]) -> float:
    """Return a threshold of a probability; NaN, and a number above which no probability lies, are refused.

    >>> check_threshold(float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: a threshold must lie between 0 and 1, got nan
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"a threshold must lie between 0 and 1, got {threshold}")
    return float(threshold)


@dataclass(frozen=True)
class _OrderOfClasses:
    """The order of classes in which a rule counts them: rows are put into it."""

    n_classes: int
    names: ClassNames | None
    columns: tuple[ColumnName, ...] | None
    score_range: tuple[float, float] | None = None


def rows_of_rule(rule: Rule, probs: AnyArray, classes: Any, **others: Any) -> Rows:
    """Return checked probabilities with the classes in the order in which a rule counts them.

    ``others`` are arguments of :meth:`hcal.rows.Rows.of`.
    """
    names = rule.names if classes is None else classes
    rows = Rows.of_predictions(probs, None, input="probs", classes=names, **others)
    if rule.n_classes not in (None, rows.n_classes):
        raise ValueError(
            f"the rule is for {rule.n_classes} classes, and probs has {rows.n_classes} columns"
        )
    if rule.names is None and rule.columns is None:
        return rows
    order = _OrderOfClasses(rows.n_classes, rule.names, rule.columns)
    return rows.in_order_of(order, "probs")


def as_rule(rule: Any, positive: int | None = None) -> Rule:
    """Return the rule of a result, of a file or of a threshold of P(class ``positive``), by default class 1."""
    if isinstance(rule, ThresholdRule | CostRule | AbstainRule):
        return rule
    if isinstance(rule, str | Path):
        return read_rule(rule)
    if isinstance(rule, int | float | np.number) and not isinstance(rule, bool):
        return ThresholdRule(check_threshold(rule), 1 if positive is None else positive)
    result_rule = getattr(rule, "rule", None)
    if isinstance(result_rule, ThresholdRule | CostRule | AbstainRule):
        return result_rule
    raise ValueError(
        "rule must be a result of hcal.thresholds or hcal.abstain_below, its file, or a threshold; "
        f"got {type(rule).__name__}"
    )
