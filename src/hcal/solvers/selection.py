"""Cross-validated choice of a hyperparameter from a grid, with warm starts along the grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

CandidateT = TypeVar("CandidateT")
ModelT = TypeVar("ModelT")
SideT = TypeVar("SideT")


@dataclass(frozen=True)
class Selection(Generic[CandidateT, ModelT]):
    """The chosen candidate, its model of every fold, and the mean held-out score of all candidates."""

    chosen: CandidateT
    models: list[ModelT]
    scores: list[float]


def select(
    grid: Sequence[CandidateT],
    folds: Sequence[tuple[SideT, SideT]],
    fit: Callable[[CandidateT, SideT, ModelT | None], ModelT],
    score: Callable[[ModelT, SideT], float],
) -> Selection[CandidateT, ModelT]:
    """Choose the candidate of lowest mean held-out score; the first one on ties.

    ``grid`` stands in an order in which neighbours have similar models: ``fit`` (candidate, side to fit on,
    previous model or None) is handed the one before. ``score`` (model, side held out) is better where it is
    lower. Sides are arrays of rows, or rows with weights, as the two take them.

    >>> from hcal.io.folds import kfold
    >>> data = np.arange(10.0)
    >>> found = select([0.0, 1.0], kfold(10, 5), lambda c, rows, _: c * data[rows].mean(),
    ...                lambda m, rows: float(((data[rows] - m) ** 2).mean()))
    >>> found.chosen
    1.0
    """
    scores = np.zeros(len(grid))
    models: list[list[ModelT]] = []
    for train, held_out in folds:
        row: list[ModelT] = []
        for i, candidate in enumerate(grid):
            row.append(fit(candidate, train, row[-1] if row else None))
            value = score(row[-1], held_out)
            scores[i] += value if np.isfinite(value) else np.inf
        models.append(row)
    best = int(np.argmin(scores))
    return Selection(grid[best], [row[best] for row in models], [float(s) / len(folds) for s in scores])
