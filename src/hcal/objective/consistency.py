"""Expectation consistency (Clarté et al., 2023) as an objective, in numpy."""

from __future__ import annotations

import numpy as np

from hcal.objective.protocol import Objective
from hcal.runtime.gradients import Gradient, OneEntry
from hcal.numerics import Float64, IntArray


def _gap(log_probs: Float64, y: IntArray, weight: Float64) -> tuple[float, Gradient]:
    rows, top = np.arange(len(y)), log_probs.argmax(axis=1)
    confidence = np.exp(log_probs[rows, top])
    gap = float(weight @ (confidence - (top == y)))
    return gap**2, OneEntry(top, 2 * gap * weight * confidence)


def consistency() -> Objective:
    """Return (mean confidence − accuracy)²: zero where expectation consistency holds.

    >>> value, _ = consistency().value_and_grad(np.log([[0.25, 0.75]]), np.array([1]), np.ones(1))
    >>> value
    0.0625
    """
    return Objective("consistency", _gap, by_rows=False)
