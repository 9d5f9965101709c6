"""Many replicates of sorted events at once, on the device of the data: see ``ranked``.

A bootstrap has B sets of weights and one of marks, drawn labels one set of weights and D of marks. Rows of
equal confidence are a run, bins and grid cells are runs of runs: every sum over rows is a difference of
prefix sums, so that no two threads add to one place and every run of the program gives the same bits.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hcal.metrics.device import prefixes, scan
from hcal.metrics.device_density import kde_errors, smooth_errors
from hcal.metrics.kernels import stretches
from hcal.metrics.ranked import Prefixes, Ranked
from hcal.numerics import Float64, IntArray


class DeviceRanked(Ranked):
    """Sorted events under many sets of weights, or with many sets of marks.

    Confidences (N,), ascending, are in host memory; hits (1, N) or (D, N) and weights (B, N) or (1, N) are
    float64 tensors.

    >>> one = torch.ones(1, 2, dtype=torch.float64)
    >>> r = DeviceRanked(np.array([0.5, 0.75]), one, one * torch.tensor([[1.0], [3.0]]))
    >>> r.walk()[1]
    array([-0.75, -2.25])
    """

    hit: Any
    weight: Any

    def __init__(self, conf: Float64, hit: Tensor, weight: Tensor) -> None:
        self.conf, self.hit, self.weight = conf, hit, weight
        self.place = self._here(conf)

    def _here(self, x: Any) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(x), device=self.weight.device)

    @cached_property
    def total(self) -> Float64:
        return np.asarray(host(self.weight.sum(dim=1)))

    @cached_property
    def _prefix(self) -> tuple[Tensor, Tensor, Tensor]:
        w = self.weight
        return prefixes(w), prefixes(w * self.place), prefixes(w * self.hit)

    def at_rows(self, positions: IntArray) -> Prefixes:
        where = self._here(np.atleast_2d(positions))
        weight, conf, hit = (host(torch.take_along_dim(x, where, dim=1)) for x in self._prefix)
        return weight, conf, hit

    def at_copies(self, copies: Float64) -> tuple[Float64, Float64]:
        weight, conf, hit = self._prefix
        at, low = self._rows(copies)
        low.clamp_(max=weight.shape[1] - 2)
        start, end = (torch.take_along_dim(weight, i, dim=1) for i in (low, low + 1))
        width = (end - start).masked_fill_(end == start, 1.0)
        ends = ([torch.take_along_dim(x, i, dim=1) for i in (low, low + 1)] for x in (conf, hit))
        # Slope first: that of hits is exactly 0 or 1, and equal accuracies stay equal.
        of_conf, of_hit = (host(a + (b - a) / width * (at - start)) for a, b in ends)
        return of_conf, of_hit

    def _rows(self, copies: Float64) -> tuple[Tensor, Tensor]:
        """Return numbers of copies, (B, P) or (1, P), and the rows that they fall in."""
        weight, at = self._prefix[0], self._here(np.atleast_2d(copies))
        if len(weight) > 1:
            at = at.expand(len(weight), -1).contiguous()
        return at, torch.searchsorted(weight if len(weight) > 1 else weight[0], at, right=True) - 1

    def row_of(self, copies: Float64) -> IntArray:
        return np.asarray(host(self._rows(copies)[1]))

    def sums(self, values: Float64, positions: IntArray) -> Float64:
        found = prefixes(self.weight * self._here(values))[:, self._here(positions)]
        return np.asarray(host(torch.diff(found)))

    @property
    def monotone(self) -> Any:
        row = torch.arange(len(self.conf), device=self.weight.device)
        there, hit = self.weight > 0, self.hit > 0
        last_miss = torch.where(there & ~hit, row, -1).amax(dim=1)
        first_hit = torch.where(there & hit, row, len(self.conf)).amin(dim=1)
        return host(last_miss < first_hit)

    def single(self, i: tuple[int, ...]) -> Ranked:
        hit, weight = (host(x[i[0] if len(x) > 1 else 0]) for x in (self.hit, self.weight))
        return Ranked(self.conf, hit, weight)

    def dot(self, values: Float64) -> Any:
        return host(self.weight @ self._here(values))

    def dot_hits(self, values: Float64) -> Any:
        return host((self.weight * self.hit) @ self._here(values))

    def walk(self, ends: IntArray | None = None) -> tuple[Any, Any]:
        gap = scan(self.weight * (self.place - self.hit))
        gap = gap if ends is None else gap[:, self._here(ends)]
        return host(gap.amax(dim=1)), host(gap.amin(dim=1))

    def kernel_sum(self, rate: float) -> Any:
        residual = self.weight * (self.hit - self.place)
        total, carry = torch.zeros_like(residual[:, 0]), torch.zeros_like(residual[:, :1])
        for start, stop, decay, grow in stretches(self.conf, rate):
            part, factor = residual[:, start:stop], self._here(grow)
            carry = carry * decay
            grown = part * factor
            before = carry + scan(grown) - grown
            total += (part * part).sum(dim=1) + 2 * (part * before / factor).sum(dim=1)
            carry = (carry + grown.sum(dim=1, keepdim=True)) / factor[-1]
        return host(total)

    def smooth_error(self) -> Any:
        return host(smooth_errors(self.conf, self.hit, self.weight))

    def kde_error(self, bandwidth: float | None) -> Any:
        return host(kde_errors(self.conf, self.hit, self.weight, bandwidth))


def host(x: Tensor) -> Any:
    """Return a tensor as an array in host memory."""
    return x.cpu().numpy()
