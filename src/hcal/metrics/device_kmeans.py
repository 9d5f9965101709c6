"""The one-dimensional k-means of every class at once, on the device of the data: see ``kmeans``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hcal.metrics.device import on, prefixes, sorted_columns
from hcal.metrics.kmeans import STOP, move_centres
from hcal.metrics.sample import Data, Vector
from hcal.numerics import Float64, IntArray


def cluster_columns_on_device(data: Data, weight: Vector | None, starts: IntArray, clusters: int) -> Float64:
    """Return the boundaries between the clusters of every class, shape (K, clusters − 1).

    ``starts`` (K, restarts, at most clusters) are the copies whose values are the first centres.
    """
    edges = []
    for first, values, rows in sorted_columns(data):
        x = values.double()
        w = torch.ones_like(x) if weight is None else on(data, weight)[rows]
        counts, sums = (prefixes(v) for v in (w, w * x))
        copies = on(data, starts[first : first + len(x)])
        centres = _first_centres(x, counts, copies, clusters)
        best = _lloyds(x, counts, sums, centres)
        edges.append((best[:, 1:] + best[:, :-1]) / 2)
    return np.asarray(torch.cat(edges).cpu().numpy())


def _first_centres(x: Tensor, counts: Tensor, copies: Tensor, clusters: int) -> Tensor:
    classes, restarts, size = copies.shape
    row = torch.searchsorted(counts, copies.reshape(classes, -1).double(), right=True) - 1
    drawn = x.gather(1, row).reshape(classes, restarts, size).sort(dim=2).values
    return torch.nn.functional.pad(drawn, (0, clusters - size), value=torch.inf)


def _lloyds(x: Tensor, counts: Tensor, sums: Tensor, centres: Tensor) -> Tensor:
    """Iterate every class and restart until its mean distance stands; the best centres, (C, clusters)."""
    classes = len(centres)

    def rank(at: Tensor) -> Tensor:
        return torch.searchsorted(x, at.reshape(classes, -1), right=True).reshape(at.shape)

    def at_ranks(prefix: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda place: prefix.gather(1, place.reshape(classes, -1)).reshape(place.shape)

    distance = torch.full_like(centres[..., 0], torch.inf)
    running = torch.ones_like(distance, dtype=torch.bool)
    while bool(running.any()):
        moved, total = move_centres(torch, centres, rank, at_ranks(counts), at_ranks(sums), x.shape[1])
        found = total / counts[:, -1:]
        done = (distance - found).abs() <= STOP
        centres = torch.where(running[..., None], moved.sort(dim=2).values, centres)
        distance = torch.where(running, found, distance)
        running &= ~done
    best = distance.argmin(dim=1)[:, None, None].expand(-1, 1, centres.shape[2])
    return centres.gather(1, best)[:, 0]
