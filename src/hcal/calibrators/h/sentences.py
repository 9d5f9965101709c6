"""What a fit of the default says in words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit


def sides_told(changed: float, total: float, turn: float) -> str:
    """Return a sentence on how many predictions of two classes change, and from which log-odds on.

    >>> sides_told(12.0, 300.0, -0.8)
    '12 of 300 predictions change side: class 1 is now the likelier from 31.0 % on instead of 50 %'
    >>> sides_told(0.0, 300.0, 0.0)
    'no prediction of 300 changes side'
    """
    if changed == 0:
        return f"no prediction of {total:,.0f} changes side"
    return (
        f"{changed:,.0f} of {total:,.0f} predictions change side: class 1 is now the likelier from "
        f"{100 * expit(turn):.1f} % on instead of 50 %"
    )


def one_class(mass: NDArray[Any]) -> list[str]:
    """Return a sentence where all labels are one class (mass of every class, (K,)).

    >>> one_class(np.array([0.0, 5.0]))
    ['every label is class 1: nothing can be learned of the other classes']
    """
    present = np.flatnonzero(mass)
    if len(present) != 1:
        return []
    return [f"every label is class {present[0]}: nothing can be learned of the other classes"]
