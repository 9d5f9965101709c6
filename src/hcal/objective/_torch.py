"""The objective in plain torch operations: any device, float32 or float64, several families at once.

The order is by (probability, mark): the mark rides below the lowest bit of the float, so ONE sort of
integers orders both, and the loss does not depend on the order of the rows even where probabilities tie.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hcal.objective.settings import EVEN, HALF_WAY, ObjectiveSettings

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def families_loss(
    p: Tensor, marks: Tensor, s: ObjectiveSettings, need_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the mean loss (float64 scalar) over families and its gradient (F, n) in ``p``."""
    key, order = _sort(p, marks)
    q, o = (key >> 1).view(p.dtype), key & 1
    m = min(s.window, p.shape[1])
    centroid = sliding_sum(q, m) / m
    rate = sliding_sum(o, m) / m
    error = centroid - rate
    weight = window_weights(centroid, s)
    excess = error.abs() - s.epsilon
    excess = torch.where(excess > EVEN * rate, excess, 0)
    loss = s.scale * (weight * excess**s.norm).sum() / len(p)
    if not need_grad:
        return loss, None
    slope = weight * error.sign() * (excess > 0 if s.norm == 1 else 2 * excess)
    ranked = _spread_windows(slope, m) * (s.scale / (m * len(p)))
    ranked = mean_over_ties(ranked, key)
    grad = torch.empty_like(p).scatter_(1, order, ranked.to(p.dtype))
    return loss, grad


def _sort(p: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
    bits = p.clamp_min(0).contiguous().view(_BITS[p.dtype])
    key = (bits << 1) | marks.to(bits.dtype)
    return torch.sort(key, dim=1)


def prefix_sum(x: Tensor) -> Tensor:
    """Return the prefix sums of rows in float64 with a leading 0: (F, n) to (F, n + 1)."""
    out = x.new_zeros((x.shape[0], x.shape[1] + 1), dtype=torch.float64)
    torch.cumsum(x, dim=1, dtype=torch.float64, out=out[:, 1:])
    return out


def sliding_sum(x: Tensor, window: int) -> Tensor:
    """Return the sums of all runs of ``window`` columns in float64."""
    prefix = prefix_sum(x)
    return prefix[:, window:] - prefix[:, :-window]


def window_weights(centroid: Tensor, s: ObjectiveSettings) -> Tensor:
    """Return the weight of each window, (F, m) or a scalar for uniform weights."""
    m = centroid.shape[1]
    if s.weighting == "uniform":
        return centroid.new_tensor(1 / m)
    edges = kmeans_ranges(centroid, s.clusters, s.iterations)
    return range_weights(edges, m)


def range_weights(edges: Tensor, m: int) -> Tensor:
    """Return 1/(C·N_c) for m values in the ranges ``edges`` (F, C + 1)."""
    counts = edges.diff(dim=1)
    table = 1 / (counts.shape[1] * counts.clamp_min(1)).to(torch.float64)
    position = torch.arange(m, device=edges.device).expand(len(edges), m).contiguous()
    cluster = torch.searchsorted(edges[:, 1:-1].contiguous(), position, right=True)
    return table.gather(1, cluster)


def kmeans_ranges(x: Tensor, clusters: int, iterations: int) -> Tensor:
    """Return the edges (F, C + 1) of the k-means clusters of ascending rows; see ``weights``."""
    x = x.contiguous()
    prefix = prefix_sum(x)
    at = (torch.arange(clusters, device=x.device, dtype=torch.float64) + 0.5) / clusters * (x.shape[1] - 1)
    low = at.long()
    high = (low + 1).clamp_max(x.shape[1] - 1)
    centres = torch.lerp(x[:, low], x[:, high], at - low)
    for _ in range(iterations):
        edges = ranges_of(x, centres)
        counts = edges.diff(dim=1)
        sums = prefix.gather(1, edges).diff(dim=1)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return ranges_of(x, centres)


def ranges_of(x: Tensor, centres: Tensor) -> Tensor:
    """Return the edges (F, C + 1) of the ranges of ascending rows nearest to each centre."""
    middle = HALF_WAY * (centres[:, 1:] + centres[:, :-1]) / 2
    inner = torch.searchsorted(x, middle, right=True)
    ends = torch.nn.functional.pad(inner, (1, 1))
    ends[:, -1] = x.shape[1]
    return ends


def _spread_windows(slope: Tensor, window: int) -> Tensor:
    """Return for each rank the sum of ``slope`` over the windows that contain it."""
    prefix = prefix_sum(slope)
    tail = prefix[:, -1:].expand(-1, window - 1)
    head = prefix.new_zeros((len(prefix), window - 1))
    upper = torch.cat([prefix[:, 1:], tail], dim=1)
    upper -= torch.cat([head, prefix[:, :-1]], dim=1)
    return upper


def mean_over_ties(ranked: Tensor, key: Tensor) -> Tensor:
    """Give events that tie in probability and mark their mean gradient, whatever their rows."""
    n = key.shape[1]
    same = key[:, 1:] == key[:, :-1]
    position = torch.arange(n, device=key.device).expand_as(key)
    starts = torch.nn.functional.pad(~same, (1, 0), value=True)
    ends = torch.nn.functional.pad(~same, (0, 1), value=True)
    first = torch.where(starts, position, 0).cummax(dim=1).values
    last = torch.where(ends, position, n).flip(1).cummin(dim=1).values.flip(1)
    prefix = prefix_sum(ranked)
    mean = (prefix.gather(1, last + 1) - prefix.gather(1, first)) / (last + 1 - first)
    return torch.where(first == last, ranked, mean)
