"""The certificates of all classes at once, on the device of the predictions.

Windows end between rows and the curve is read at every row, so that nothing but the sums at the windows' ends
leaves the device; their intervals are those of :mod:`hcal.certificates.bounds`, all classes in one array.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from hcal.certificates.bounds import bennett, kl_interval
from hcal.certificates.event import EventCertificate, Refutation, refutation_of
from hcal.certificates.windows import Windows, deepest_level, variance_bound
from hcal.metrics.data import Data, Vector
from hcal.metrics.device import DEVICE_BLOCK, on, prefixes, sorted_columns
from hcal.numerics import Float64


def class_columns(
    data: Data, failure: float, full: Callable[[int], EventCertificate]
) -> tuple[Float64, dict[int, Refutation]]:
    """Return what is proven about every class of a tensor, and the refutations by class, for those with one.

    The columns (8, K) are frequency, stated, low, high, smooth, reach, at_least and exact_refuted, as in
    ``ClassCertificates``. ``failure`` is that of one class; ``full`` certifies one class of few values: each
    of these has a window of its own.
    """
    step = max(1, DEVICE_BLOCK // (2 * data.n))
    parts: list[Float64] = []
    refutations: dict[int, Refutation] = {}
    for start, values, rows in sorted_columns(data):
        for i in range(0, len(values), step):
            first = start + i
            columns, windows, claims = _block(data, first, values[i : i + step], rows[i : i + step], failure)
            _replace_discrete(columns, windows, claims, first, full, refutations)
            parts.append(columns[:-1])
    return np.concatenate(parts, axis=1), refutations


def _replace_discrete(
    columns: Float64,
    windows: Windows,
    claims: Float64,
    first: int,
    full: Callable[[int], EventCertificate],
    refutations: dict[int, Refutation],
) -> None:
    """Fill in the classes of few values by their full certificates, and every class's refutation."""
    for i in np.flatnonzero(columns[-1] + columns[6]):
        if columns[-1, i]:
            found = full(int(first + i))
            refutation = found.refutation
            columns[2:8, i] = (
                *found.overall, found.smooth, found.band.reach, found.at_least, found.exact_refuted
            )  # fmt: skip
        else:
            one = windows.of_class(int(i))
            j = int(one.at_least.argmax())
            refutation = refutation_of(one, j, *claims[i, j])
        if refutation is not None:
            refutations[int(first + i)] = refutation


def _block(
    data: Data, first: int, values: Tensor, rows: Tensor, failure: float
) -> tuple[Float64, Windows, Float64]:
    """Return the eight columns and whether claims are discrete, (9, C); the windows, and their claims."""
    n, x = data.n, values.double()
    classes = torch.arange(first, first + len(x), device=x.device)[:, None]
    claimed = prefixes(x)
    happened = prefixes((on(data, data.y)[rows] == classes).double())
    windows, claims = _windows(x, claimed, happened, failure / 2)
    reach = bennett(variance_bound(windows), float(np.log(2 / (failure / 2)))) / n
    whole = windows.gap_low[:, 0], windows.gap_high[:, 0]
    low, high, smooth, refuted = _band(x, claimed, happened, reach, whole)
    distinct = 1 + torch.diff(x).gt(0).sum(dim=1)
    ends = torch.stack([happened[:, -1], claimed[:, -1], distinct.double()])
    frequency, stated, values_of = ends.cpu().numpy()
    at_least = windows.at_least.max(axis=1)
    columns = [frequency / n, stated / n, low, high, smooth, reach, at_least, refuted | (at_least > 0)]
    return np.stack([*columns, (values_of >= 2) & (values_of * 20 <= n)]), windows, claims


def _windows(x: Tensor, claimed: Tensor, happened: Tensor, failure: float) -> tuple[Windows, Float64]:
    """Return the windows of every class, arrays of shape (C, W); one that ties leave empty has no rows."""
    n = x.shape[1]
    families = deepest_level(n) + 1
    parts = [_level(x, level) for level in range(families)]
    level = np.concatenate([np.full(f.shape[1], i) for i, (f, _) in enumerate(parts)])
    aligned = np.concatenate([np.repeat([1.0, 0.0], [2**i, 2**i - 1]) for i in range(families)])
    first, last = (torch.cat([p[i] for p in parts], dim=1) for i in (0, 1))
    sums = [s.gather(1, last) - s.gather(1, first) for s in (claimed, happened)]
    ends = [x.gather(1, r.clamp(0, n - 1)) for r in (first, last - 1)]
    table = torch.stack([*sums, *ends, first.double(), last.double()]).cpu().numpy()
    start, stop = table[4].astype(np.int64), table[5].astype(np.int64)
    rows = (stop - start).astype(np.float64)
    full, safe = rows > 0, np.maximum(rows, 1.0)
    many = np.stack([full[:, level == i].sum(axis=1) for i in range(families)], axis=1)[:, level]
    observed = np.clip(table[1] / safe, 0.0, 1.0)
    low, high = kl_interval(observed, np.log(2 * many * families / failure) / safe)
    windows = Windows(
        level, aligned, start, stop, rows,
        np.where(full, table[0] / safe, 0.0), observed, np.where(full, low, 0.0), np.where(full, high, 1.0),
    )  # fmt: skip
    return windows, np.stack([table[2], table[3]], axis=-1)


def _level(x: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """Rows where the windows of a level start and end, (C, W): equal mass, moved to an end of ties."""
    n, pieces = x.shape[1], 2**level
    cuts = np.arange(2 * pieces + 1) * (n / (2 * pieces))
    rows = torch.as_tensor(np.maximum(np.ceil(cuts) - 1, 0).astype(np.int64), device=x.device)
    at = x[:, rows]
    before, after = torch.searchsorted(x, at), torch.searchsorted(x, at, right=True)
    cut = torch.as_tensor(cuts, device=x.device)
    nearer = torch.where(cut - before < after - cut, before, after)
    nearer[:, 0], nearer[:, -1] = 0, n
    even, odd = nearer[:, ::2], nearer[:, 1::2]
    return torch.cat([even[:, :-1], odd[:, :-1]], dim=1), torch.cat([even[:, 1:], odd[:, 1:]], dim=1)


def _band(
    x: Tensor, claimed: Tensor, happened: Tensor, reach: Vector, whole: tuple[Vector, Vector]
) -> tuple[Vector, Vector, Vector, Vector]:
    """Return the band at the end of the curve, the smooth bounds, and whether it refutes; (C,) each."""
    n, claimed = x.shape[1], claimed[:, 1:]
    estimate, s = (claimed - happened[:, 1:]) / n, torch.as_tensor(reach, device=x.device)[:, None]
    rows = torch.arange(1, n + 1, device=x.device)
    low = torch.maximum(estimate - s, (claimed - rows) / n)
    high = torch.minimum(estimate + s, claimed / n)
    ends = [torch.as_tensor(w, device=x.device) for w in whole]
    low[:, -1] = torch.maximum(low[:, -1], ends[0])
    high[:, -1] = torch.minimum(high[:, -1], ends[1])
    step = torch.diff(x)
    most = torch.maximum(low.abs(), high.abs())
    # Between equal claims the curve is not read: there the step is 0.
    smooth = (most[:, -1] + (step * most[:, :-1]).sum(dim=1)).clamp(max=1.0)
    read = pad(step > 0, (0, 1), value=True)
    refuted = (((low > 1e-12) | (high < -1e-12)) & read).any(dim=1)
    out = torch.stack([low[:, -1], high[:, -1], smooth, refuted.double()]).cpu().numpy()
    return out[0], out[1], out[2], out[3] > 0
