"""``hcal.decide``: decisions for rows without labels, by a threshold, a table of costs or a saved result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.decisions.rules import AbstainRule, CostRule, Rule, ThresholdRule, named, read_rule
from hcal.rows import Rows


def decide(probs: Any, rule: Any, *, classes: Any = None) -> NDArray[Any]:
    """Return a decision for each row; no labels are needed.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of two classes
        Calibrated probabilities.
    rule : result, float or path
        What :func:`hcal.thresholds` or :func:`hcal.abstain_below` returned, the file of such a result, or a
        threshold of P(class 1).
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns, where the rule knows none.

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
    names = chosen.names if classes is None else classes
    rows = Rows.of_predictions(probs, None, input="probs", classes=names)
    if chosen.n_classes not in (None, rows.n_classes):
        raise ValueError(
            f"the rule is for {chosen.n_classes} classes, and probs has {rows.n_classes} columns"
        )
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


def as_rule(rule: Any) -> Rule:
    """Return the rule of a result, of a file or of a threshold."""
    if isinstance(rule, ThresholdRule | CostRule | AbstainRule):
        return rule
    if isinstance(rule, str | Path):
        return read_rule(rule)
    if isinstance(rule, int | float | np.number) and not isinstance(rule, bool):
        return ThresholdRule(check_threshold(rule))
    result_rule = getattr(rule, "rule", None)
    if isinstance(result_rule, ThresholdRule | CostRule | AbstainRule):
        return result_rule
    raise ValueError(
        "rule must be a result of hcal.thresholds or hcal.abstain_below, its file, or a threshold; "
        f"got {type(rule).__name__}"
    )
