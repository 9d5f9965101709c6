"""Ranks and critical differences: which gaps are real and which are noise."""

from __future__ import annotations

import numpy as np

from hcal.runtime.numerics import Float64


def ranks(table: Float64) -> Float64:
    """Rank each row, 1 for the smallest, ties shared; NaN stays NaN.

    Shapes: table (tasks, methods) → (tasks, methods).

    >>> ranks(np.array([[0.3, 0.1, 0.1]]))
    array([[3. , 1.5, 1.5]])
    """
    from scipy.stats import rankdata

    return np.asarray(rankdata(table, axis=1, nan_policy="omit"), dtype=np.float64)


def critical_difference(n_tasks: int, n_methods: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at 5 % (Demšar, JMLR 2006).

    >>> round(critical_difference(14, 4), 2)
    1.25
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, n_methods, np.inf)) / np.sqrt(2)
    return float(q * np.sqrt(n_methods * (n_methods + 1) / (6 * n_tasks)))
