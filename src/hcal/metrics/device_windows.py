"""Windows of sorted events on the device of the data: the sums of ``window_sums``, many classes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hcal.metrics.device import DEVICE_BLOCK, on, prefixes, sorted_columns
from hcal.metrics.window_sums import WindowSums, cover_of, shared_squares

if TYPE_CHECKING:
    from hcal.metrics.sample import Sample, Vector


class _Stretch:
    """Sums over some events, and all windows that hold them, of C sorted lists of n events.

    ``q`` and ``d`` (C, L) are probabilities, and probability less mark, of the events from ``start`` on;
    those from ``first`` to ``last`` − 1 are counted.
    """

    def __init__(self, q: Tensor, d: Tensor, start: int, first: int, last: int, n: int, m: int) -> None:
        self.m, self.cover = m, torch.as_tensor(cover_of(first, last, n, m), device=d.device)
        own = slice(first - start, last - start)
        self.own = d[:, own]
        prefix = prefixes(d)
        sums = prefix[:, m:] - prefix[:, :-m]
        self.squares = sums[:, first - start :].square().sum(dim=1)
        self.products = self.squares - self.own.square() @ self.cover
        variance = q[:, own] * (1 - q[:, own])
        edge = np.minimum(np.arange(first, last), n - 1 - np.arange(first, last))
        by_place = shared_squares(n, m)
        weight = torch.as_tensor(by_place[np.minimum(edge, len(by_place) - 1)], device=d.device)
        self.null_variance = 2 * (variance.square() @ weight)
        self._sums, self._place, self._ends = sums, np.arange(first, last), (start, n - m)

    def event_products(self) -> Tensor:
        """Return the part of the products that each event takes part in, shape (C, last − first)."""
        start, latest = self._ends
        total = prefixes(self._sums)
        ends = np.minimum(self._place, latest) + 1 - start, np.maximum(self._place - self.m + 1, 0) - start
        after, before = (total[:, torch.as_tensor(e, device=total.device)] for e in ends)
        return self.own * (after - before - self.cover * self.own)


def class_windows_on_device(s: Sample, window: int, se: bool) -> tuple[list[WindowSums], Vector | None]:
    """Return the sums of every class, and the influence of every row on all of them, shape (N,)."""
    n, m = s.n, min(window, s.n)
    pairs = float(n - m + 1) * m * (m - 1)
    y, members = on(s.data, s.y), []
    influence = torch.zeros(n, dtype=torch.float64, device=y.device)
    step = max(1, DEVICE_BLOCK // (2 * n))
    for first, values, rows in sorted_columns(s.data):
        classes = torch.arange(first, first + len(values), device=y.device)
        chosen = slice(1, 2) if s.k == 2 else slice(None)  # of two classes one says all
        values, rows, classes = (x[chosen] for x in (values, rows, classes))
        for i in range(0, len(values), step):
            q, row, k = values[i : i + step].double(), rows[i : i + step], classes[i : i + step]
            found = _Stretch(q, q - (y[row] == k[:, None]).double(), 0, 0, n, n, m)
            members.append(torch.stack([found.products, found.squares / m**2, found.null_variance]))
            if se and pairs > 0:
                share = found.event_products() - (found.products / pairs)[:, None] * found.cover * (m - 1)
                influence += torch.empty_like(share).scatter_(1, row, 2 * share / pairs).sum(dim=0)
    table = torch.cat(members, dim=1).T.tolist()
    return [WindowSums(pairs, a, b, n - m + 1, c, None, None) for a, b, c in table], (
        np.asarray(influence.cpu().numpy()) if se else None
    )


def pooled_windows_on_device(s: Sample, window: int) -> WindowSums:
    """Return the sums of all classes sorted together, pairs of events of one row taken out; remembered."""
    known: dict[int, WindowSums] = s.__dict__.setdefault("pooled_windows", {})
    if window not in known:
        known[window] = _pooled_windows(s, window)
    return known[window]


def _pooled_windows(s: Sample, window: int) -> WindowSums:
    n = s.n * s.k
    m = min(window, n)
    value, place = s.data.tensor.reshape(-1).sort(stable=True)
    row = place // s.k
    mark = on(s.data, s.y)[row] == place - row * s.k
    del row
    by_event = torch.empty(n, dtype=torch.float64, device=place.device)
    cover = torch.empty_like(by_event)
    sums = []
    step = max(DEVICE_BLOCK // 2, m)
    for first in range(0, n, step):
        last = min(first + step, n)
        start, stop = max(first - m + 1, 0), min(last, n - m + 1)
        q = value[None, start : stop + m - 1].double()
        found = _Stretch(q, q - mark[None, start : stop + m - 1].double(), start, first, last, n, m)
        sums.append(torch.cat([found.products, found.squares / m**2, found.null_variance]))
        by_event[place[first:last]] = found.event_products()[0]
        cover[place[first:last]] = found.cover
    del value, mark
    products, squares, null_variance = torch.stack(sums).sum(dim=0).tolist()
    row_products = by_event.reshape(s.n, s.k).sum(dim=1)
    row_pairs = cover.reshape(s.n, s.k).sum(dim=1) * (m - 1)
    del by_event, cover
    same, shared = _same_row_pairs(s, place, m)
    return WindowSums(
        pairs=float(n - m + 1) * m * (m - 1) - 2 * float(shared.sum()),
        products=products - 2 * float(same.sum()),
        squares=squares,
        windows=n - m + 1,
        null_variance=null_variance,
        row_products=np.asarray((row_products - 2 * same).cpu().numpy()),
        row_pairs=np.asarray((row_pairs - 2 * shared).cpu().numpy()),
    )


def _same_row_pairs(s: Sample, place: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return Σ shared·d_a·d_b and Σ shared over pairs of events of one row within a window; (N,) each."""
    n = len(place)
    position = torch.empty(n, dtype=torch.int32 if n < 2**31 else torch.int64, device=place.device)
    position[place] = torch.arange(n, dtype=position.dtype, device=place.device)
    table, y = position.reshape(s.n, s.k), on(s.data, s.y)
    parts = []
    step = max(1, DEVICE_BLOCK // (2 * s.k))
    for i in range(0, s.n, step):
        at, order = table[i : i + step].sort(dim=1)
        d = s.data.tensor[i : i + step].double()
        d = d.scatter_add(1, y[i : i + step, None], torch.full_like(d[:, :1], -1.0)).gather(1, order)
        parts.append(torch.stack(_close_pairs(at, d, n, m)).sum(dim=2))
    products, shares = torch.cat(parts, dim=1).unbind()
    return products, shares


def _close_pairs(at: Tensor, d: Tensor, n: int, m: int) -> tuple[Tensor, Tensor]:
    """Return shared·d_a·d_b and shared, summed over the pairs of a row that start at each event; (R, K)."""
    k = d.shape[1]
    product, share = torch.zeros_like(d).reshape(-1), torch.zeros_like(d).reshape(-1)
    position, gap = at.reshape(-1), d.reshape(-1)
    first = torch.arange(len(gap), device=d.device)
    for lag in range(1, min(k, m)):
        # What is near at one lag was near at all smaller ones: the list of events only shrinks.
        first = first[first % k + lag < k]
        first = first[position[first + lag] - position[first] < m]
        if len(first) == 0:
            break
        a, b = position[first], position[first + lag]
        shared = (a.clamp(max=n - m) - (b - (m - 1)).clamp(min=0) + 1).double()
        share[first] += shared
        product[first] += shared * gap[first] * gap[first + lag]
    return product.reshape(d.shape), share.reshape(d.shape)
