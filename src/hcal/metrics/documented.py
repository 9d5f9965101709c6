"""What the docstrings of all metrics have in common, written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_SHARED = """Parameters
----------
probs : array-like of shape (N, K)
y : array-like of shape (N,)
sample_weight : array-like of shape (N,), optional
"""


def documented_metric(weights: Literal["any", "counts"] = "any") -> Callable[[F], F]:
    """Complete the docstring of a metric: what all take, before its own parameters, and that it is a number.

    >>> from hcal.metrics import brier
    >>> "sample_weight : array-like of shape (N,), optional" in brier.__doc__
    True
    """
    shared = _SHARED + ("    Whole repetition counts.\n" if weights == "counts" else "")

    def complete(function: F) -> F:
        text, mark, example = inspect.cleandoc(function.__doc__ or "").partition("Examples\n--------\n")
        words, _, own = text.partition("Parameters\n----------\n")
        returns = "" if "Returns\n-------\n" in own else "Returns\n-------\nfloat\n\n"
        own = own if own else "\n"
        function.__doc__ = f"{words}{shared}{own}{returns}{mark}{example}"
        return function

    return complete
