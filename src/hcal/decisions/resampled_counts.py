"""Bootstrap samples of what each threshold decides and catches, by rows or by whole groups.

A curve is first coarsened to at most ``CUTS`` cuts, so that the work per sample does not grow with the rows. Without
groups, the numbers of rows and events between two cuts are then one multinomial draw, which is the bootstrap of rows
exactly. With groups, whole groups are drawn.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import sparse

from hcal.decisions.threshold_curve import Counts, ThresholdCurve
from hcal.numerics import Float64, IntArray

#: About so many thresholds take part in the bootstrap.
CUTS: Final = 400
#: Numbers of a block of drawn groups.
_BLOCK: Final = 4_000_000


def coarse_cuts(curve: ThresholdCurve, *always: int) -> IntArray:
    """Return the numbers of some cuts, ascending: even in rows, denser among few decided rows, and those named.

    >>> curve = ThresholdCurve.of_rows(np.array([0.1, 0.4, 0.8]), np.array([0, 0, 1]))
    >>> coarse_cuts(curve)
    array([0, 1, 2, 3])
    """
    last = len(curve.value)
    if last <= CUTS:
        return np.arange(last + 1)
    n_rows = float(curve.counts.decided[0])
    even = np.linspace(0, n_rows, CUTS // 2)
    fewest = min(1.0, n_rows / 2)
    dense = np.geomspace(fewest, n_rows, CUTS // 2)
    cuts = curve.cut_of_rows(np.concatenate([even, dense]))
    return np.unique(np.concatenate([cuts, [0, last], always])).astype(np.int64)


def drawn_rows(
    curve: ThresholdCurve, cuts: IntArray, resamples: int, rng: np.random.Generator
) -> Counts:
    """Return bootstrap samples of independent rows at some cuts, shape (B, C)."""
    counts = curve.counts.at(cuts)
    rows = counts.decided[:-1] - counts.decided[1:]
    events = np.clip(counts.caught[:-1] - counts.caught[1:], 0.0, rows)
    mass = np.concatenate([rows - events, events])
    n_rows = max(round(float(mass.sum())), 1)
    drawn = rng.multinomial(n_rows, mass / mass.sum(), size=resamples).astype(np.float64)
    return _counts(drawn)


def group_members(
    cell: IntArray, event: Float64, weight: Float64, groups: IntArray, n_cells: int
) -> sparse.csr_matrix:
    """Return the rows of each group in each cell, without the event and with it, shape (2·cells, groups).

    Parameters
    ----------
    cell : array of shape (N,)
        Between which two cuts each row lies.
    event, weight, groups : array of shape (N,)
    n_cells : int
    """
    unit = np.unique(groups, return_inverse=True)[1]
    place = cell + n_cells * event.astype(np.int64)
    return sparse.csr_matrix((weight, (place, unit)), shape=(2 * n_cells, int(unit.max()) + 1))


def drawn_groups(members: sparse.csr_matrix, resamples: int, rng: np.random.Generator) -> Counts:
    """Return bootstrap samples of whole groups, shape (B, C)."""
    n_groups = members.shape[1]
    step = max(1, _BLOCK // n_groups)
    parts = []
    for first in range(0, resamples, step):
        size = min(step, resamples - first)
        picked = rng.integers(0, n_groups, (size, n_groups))
        copies = np.stack([np.bincount(row, minlength=n_groups) for row in picked])
        parts.append(np.asarray((members @ copies.T).T, dtype=np.float64))
    return _counts(np.concatenate(parts))


def _counts(drawn: Float64) -> Counts:
    """Return what the cuts decide and catch from the rows without and with the event in each cell (B, 2·cells)."""
    quiet, events = np.split(drawn, 2, axis=1)
    return Counts(_from_the_top(quiet + events), _from_the_top(events))


def _from_the_top(cells: Float64) -> Float64:
    sums = np.cumsum(cells[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([sums, np.zeros((len(cells), 1))], axis=1)
