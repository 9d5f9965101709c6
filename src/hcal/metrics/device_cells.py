"""Sums over the bins of every class on the device of the data, of one sample or of many replicates.

Entries are sorted by their (class, bin) once; a replicate's sums are then sums of runs, each added up by one
thread in the order of the rows: nothing depends on which thread comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hcal.metrics.class_wise import CellSums, ClassTotals, Cut, bin_of_entries
from hcal.metrics.device import DEVICE_BLOCK, on, run_sums
from hcal.metrics.device_replicates import Replicates
from hcal.metrics.sample import Data, Sample


@dataclass(frozen=True)
class _SortedEntries:
    """The entries that count, cell by cell."""

    row: Tensor  # (E,)
    value: Tensor  # (E,)
    lengths: Tensor  # (K·bins,): entries of each cell


def _replicates(s: Sample) -> Replicates:
    return s if isinstance(s, Replicates) else Replicates(s)


def _answer(s: Sample, x: Tensor) -> Tensor:
    """Drop the axis of replicates where one sample was asked about."""
    return x if isinstance(s, Replicates) else x[0]


def sum_cells_on_device(s: Sample, cut: Cut) -> CellSums:
    """Return the sums of the entries of every class and bin, tensors of shape (..., K, bins)."""
    many, shape = _replicates(s), (-1, s.k, cut.bins)
    e = _sorted_entries(s.data, cut)
    weight, claimed = [], []
    step = max(1, DEVICE_BLOCK // max(len(e.row), 1))
    for i in range(0, len(many.weights), step):
        of_entry = many.weights[i : i + step].T.contiguous()[e.row]
        weight.append(run_sums(of_entry, e.lengths).T)
        claimed.append(run_sums(of_entry * e.value[:, None], e.lengths).T)
    gap = torch.cat(claimed) - _happened(many, cut)
    return CellSums(
        _answer(s, torch.cat(weight).reshape(shape)).contiguous(), _answer(s, gap.reshape(shape)).contiguous()
    )


def _sorted_entries(data: Data, cut: Cut) -> _SortedEntries:
    key = ("entries", cut.threshold, cut.closed, cut.edges.tobytes())
    if key not in data.on_device:
        row, column = (data.tensor.double() > cut.threshold).nonzero(as_tuple=True)
        value = data.tensor[row, column].double()
        which = bin_of_entries(torch, cut, on(data, cut.edges), value, column)
        cell, order = (column * cut.bins + which).sort(stable=True)
        data.on_device[key] = _SortedEntries(row[order], value[order], run_lengths(cell, data.k * cut.bins))
    return data.on_device[key]  # type: ignore[no-any-return]


def run_lengths(keys: Tensor, size: int) -> Tensor:
    """Return how often each of 0..size−1 occurs among sorted keys."""
    ends = torch.searchsorted(keys, torch.arange(size + 1, device=keys.device))
    return torch.diff(ends)


def _happened(many: Replicates, cut: Cut) -> Tensor:
    """Weight of the labels in every cell, shape (B, K·bins): each label is one entry of its row."""
    data, cells = many.data, many.k * cut.bins
    y = many.labels
    own = data.tensor.gather(1, y.T).T.double().contiguous()
    which = bin_of_entries(torch, cut, on(data, cut.edges), own, y)
    return label_sums(many, torch.where(own > cut.threshold, y * cut.bins + which, cells), cells)


def label_sums(many: Replicates, cell: Tensor, cells: int) -> Tensor:
    """Return the weight of the rows of each cell 0..cells−1 (beyond: of none), shape (B, cells).

    Shapes: cell (1, N), or (D, N) where labels were drawn.
    """
    d = len(cell)
    if d == 1:
        key, order = cell[0].sort(stable=True)
        lengths = run_lengths(key, cells)
        return run_sums(many.weights.T.contiguous()[order][: int(lengths.sum())], lengths).T
    draw = torch.arange(d, device=cell.device)[:, None]
    key, order = (cell + draw * (cells + 1)).reshape(-1).sort(stable=True)
    lengths = run_lengths(key, d * (cells + 1))
    return run_sums(many.weights[0][order % many.n], lengths).reshape(d, cells + 1)[:, :cells]


def totals_on_device(s: Sample) -> ClassTotals:
    """Return the sums over all rows that the first bins are the rest of."""
    many, data = _replicates(s), s.data
    if "totals" in many.__dict__:
        return many.__dict__["totals"]  # type: ignore[no-any-return]
    w, p = many.weights, data.tensor.double()
    zeros = w @ (p == 0).double() if data.has_zeros else torch.zeros_like(w[:, :1])
    seen = data.tensor.gather(1, many.labels.T).T != 0  # a label at p = 0 lies in no bin
    happened = label_sums(many, torch.where(seen, many.labels, s.k), s.k)
    totals = [w.sum(dim=1, keepdim=True), w @ p, zeros, happened]
    many.__dict__["totals"] = found = ClassTotals(*(_answer(s, x) for x in totals))
    return found
