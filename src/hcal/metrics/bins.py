"""Bins on sorted confidences, all through prefix sums, and the errors over them.

Positions are counts of *copies*: an integer weight equals repetition, so a boundary may fall inside a row
of weight 3. Copies of a row are identical, hence linear interpolation of the prefix sums is exact there.
Arrays end in an axis of bins; what comes before is the axis of replicates, where there are many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.metrics.ranked import Ranked
from hcal.metrics.sample import as_value
from hcal.numerics import Float64, IntArray

# Bounds of bins that a sweep tries at once, in all replicates.
_TRIED = 1 << 21


@dataclass(frozen=True)
class Bins:
    """Weight, mean confidence and accuracy of bins, each of shape (..., bins); 0 where a bin is empty."""

    weight: Float64
    conf: Float64
    acc: Float64

    @property
    def gap(self) -> Float64:
        """|confidence − accuracy| of each bin."""
        return np.abs(self.conf - self.acc)


def _bins(weight: Float64, conf: Float64, hit: Float64) -> Bins:
    full = weight > 0
    safe = np.where(full, weight, 1.0)
    return Bins(weight, np.where(full, conf / safe, 0.0), np.where(full, hit / safe, 0.0))


def at_rows(r: Ranked, positions: IntArray) -> Bins:
    """Return the bins between consecutive positions in the sorted rows."""
    return _bins(*(np.diff(x) for x in r.at_rows(positions)))


def at_copies(r: Ranked, copies: Float64) -> Bins:
    """Return the bins between consecutive numbers of copies, counted from the least confident."""
    conf, hit = r.at_copies(copies)
    return _bins(np.diff(copies), np.diff(conf), np.diff(hit))


def check_bins(bins: int) -> int:
    """Check a number of bins."""
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise ValueError(f"bins must be a positive integer, got {bins!r}")
    return int(bins)


def equal_width(r: Ranked, bins: int) -> Bins:
    """Bins (lo, hi] of equal width on [0, 1]. A confidence is never 0, so none is lost."""
    edges = np.linspace(0, 1, check_bins(bins) + 1)
    return at_rows(r, np.searchsorted(r.conf, edges, side="right").astype(np.int64))


def equal_mass(r: Ranked, bins: int) -> Bins:
    """Bins with boundaries round(N·k/bins), half to even; fewer bins where N is smaller."""
    return at_copies(r, np.rint(_last(r.total) * np.arange(check_bins(bins) + 1) / bins))


def quantile_edges(r: Ranked, bins: int) -> Bins:
    """Bins (lo, hi] between interpolated quantiles of the confidences; the smallest one is in no bin."""
    last = _last(r.total) - 1
    where = np.minimum(np.linspace(0, r.total, check_bins(bins) + 1, axis=-1), last)
    low = np.floor(where)
    copy = [r.conf[r.row_of(np.minimum(i, last))] for i in (low, low + 1)]
    edges = copy[0] + (where - low) * (copy[1] - copy[0])
    return at_rows(r, np.searchsorted(r.conf, edges, side="right").astype(np.int64))


def sweep_error(r: Ranked, order: float) -> float:
    """Return the error over the most equal-mass bins, counting up from 2, that keep accuracy monotone."""
    n = np.rint(r.total).astype(np.int64)
    # Hits that follow all misses pass for every number of bins; do not try all of them.
    perfect = r.monotone & (n > 2)
    out = np.asarray(error(at_copies(r, _sweep_bounds(n, _most_bins(r, n, ~perfect))), r.total, order))
    for i in np.ndindex(perfect.shape):
        if perfect[i]:
            one = r.single(i)
            # n − 1 bins: two copies in the first, one in each other; those of one row have the same gap.
            copies = np.concatenate([[0.0, 2.0], one.prefix[0][one.prefix[0] > 2]])
            out[i] = error(at_copies(one, copies), one.total, order)
    return as_value(out)


def _most_bins(r: Ranked, n: IntArray, going: Any) -> IntArray:
    most = np.ones_like(n)
    first, tries = 2, 1
    while going.any():
        counts = range(first, first + tries)
        bounds = [_sweep_bounds(n, b) for b in counts]
        hits = r.at_copies(np.concatenate(bounds, axis=-1))[1]
        parts = np.split(hits, np.cumsum([b + 1 for b in counts])[:-1], axis=-1)
        for b, bound, hit in zip(counts, bounds, parts, strict=True):
            accuracy = np.diff(hit) / np.maximum(np.diff(bound), 1)
            going = going & (b < n) & (np.diff(accuracy) >= 0).all(axis=-1)
            most = np.where(going, b, most)
        first += tries
        tries = max(1, min(2 * tries, _TRIED // (first * n.size)))
    return most


def _sweep_bounds(n: Any, b: Any) -> Float64:
    """First ranks of the bins of rank i -> floor(i·b/n), and n itself; bins beyond b are empty."""
    i = np.minimum(np.arange(np.max(b) + 1), _last(b))
    return np.asarray(-(-i * _last(n) // _last(b)), dtype=np.float64)


def error(bins: Bins, total: Any, order: float = 1) -> float:
    """Return (Σ_b (n_b/N)·gap_b^r)^(1/r)."""
    return as_value((bins.weight / _last(total) * bins.gap**order).sum(axis=-1) ** (1 / order))


def _last(x: Any) -> Any:
    """Return one number a replicate as an array with an axis of bins."""
    return np.asarray(x)[..., None]
