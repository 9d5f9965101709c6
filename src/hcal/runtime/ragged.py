"""Rows of different lengths as one rectangle: an option that a question does not have is −inf, or 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hcal.numerics import Float64


def is_ragged(rows: Any) -> bool:
    """Return whether this is a list of rows of which some are longer than others.

    >>> is_ragged([[0.5, 0.5], [0.2, 0.3, 0.5]]), is_ragged([[0.5, 0.5]]), is_ragged(np.eye(2))
    (True, False, False)
    """
    if not isinstance(rows, list | tuple) or not all(hasattr(row, "__len__") for row in rows):
        return False
    return not any(isinstance(row, str) for row in rows) and len({len(row) for row in rows}) > 1


def pad_options(rows: Iterable[Any], fill: float) -> Float64:
    """Return rows of different lengths as one array, the end of the short ones filled: (N, longest row).

    ``fill`` is 0 for probabilities, −inf for scores.

    >>> pad_options([[0.5, 0.5], [0.2, 0.3, 0.5]], 0.0)
    array([[0.5, 0.5, 0. ],
           [0.2, 0.3, 0.5]])
    """
    parts = [_numbers(row, i) for i, row in enumerate(rows)]
    out = np.full((len(parts), max(map(len, parts), default=0)), fill)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return out


def log_softmax_options(scores: Float64) -> Float64:
    """Return log-probabilities of rows in which −inf marks what is not there; the argmax stays.

    Shapes: scores (N, K) → (N, K).

    >>> log_softmax_options(np.array([[0.0, 0.0, -np.inf]])).round(3)
    array([[-0.693, -0.693,   -inf]])
    """
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    top = scores.argmax(axis=1)
    rows = np.flatnonzero(logs.argmax(axis=1) != top)  # rounding may tie the best with an earlier one
    logs[rows, top[rows]] = np.nextafter(logs[rows].max(axis=1, initial=-np.inf), np.inf)
    return logs


def _numbers(row: Any, number: int) -> Float64:
    try:
        return np.asarray(row, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise ValueError(f"row {number} of the probs or scores holds something that is no number") from None
