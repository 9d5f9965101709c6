"""``hcal.decide``: decisions for rows without labels, by a threshold, a table of costs or a saved result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hcal.class_names import ClassName
from hcal.columns import order_by
from hcal.decisions.rules import (
    AbstainRule,
    CostRule,
    Rule,
    RuleLike,
    ThresholdRule,
    named,
    read_rule,
)
from hcal.frames import AnyArray
from hcal.numerics import NumpyArray
from hcal.rows import Rows
from hcal.text import one_line


def decide(
    probs: AnyArray, rule: RuleLike, *, classes: Iterable[ClassName] | None = None
) -> NumpyArray:
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


def check_threshold(threshold: float | np.number) -> float:
    """Return a threshold of a probability; NaN, and a number above which no probability lies, are refused.

    >>> check_threshold(float("nan"))
    Traceback (most recent call last):
    ...
    ValueError: a threshold must lie between 0 and 1, got nan
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"a threshold must lie between 0 and 1, got {threshold}")
    return float(threshold)


def rows_of_rule(
    rule: Rule, probs: AnyArray, classes: Iterable[ClassName] | None, **others: AnyArray
) -> Rows:
    """Return checked probabilities with the classes in the order in which a rule counts them.

    ``others`` are arguments of :meth:`hcal.rows.Rows.of`.
    """
    rows = Rows.of_predictions(probs, None, input="probs", classes=classes, **others)
    if rule.n_classes not in (None, rows.n_classes):
        raise ValueError(
            f"the rule is for {rule.n_classes} classes, and probs has {rows.n_classes} columns"
        )
    of_rule = rule.names or rule.columns
    of_rows = rows.names or rows.columns
    if of_rule is None:
        return rows
    if of_rows is None:
        return replace(rows, names=rule.names)
    order = order_by(of_rule, of_rows)
    if order is None:
        raise ValueError(
            f"the columns are {one_line(', '.join(map(str, of_rows)), 120)}, and the classes are "
            f"{one_line(', '.join(map(str, of_rule)), 120)}: rename the columns, or pass an array "
            "whose columns are in the order of the classes"
        )
    turned = rows.with_columns(order)
    return turned if rule.names is None else replace(turned, names=rule.names)


def as_rule(rule: RuleLike, positive: int | None = None) -> Rule:
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
