"""Smooth errors of many replicates at once, on their device: the formulas of ``smooth`` and ``kernels``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hcal.metrics.device import prefixes
from hcal.metrics.kernels import GRID, RESOLVED, TINY, WIDEST, grid_place
from hcal.metrics.smooth import CELLS, cell_place
from hcal.numerics import Float64, IntArray

_HALVINGS = 44  # of [0, 1]: to 6e-14
_STEP = float(GRID[1] - GRID[0])


def smooth_errors(conf: Float64, hit: Tensor, weight: Tensor) -> Tensor:
    """Return the width σ for which smoothed residuals have the mean size σ, of every replicate.

    Shapes: conf (N,), ascending; hit and weight (B, N) or (1, N) → (B,).
    """
    place = torch.as_tensor(conf, device=weight.device)
    mass = weight * (hit - place) / weight.sum(dim=1, keepdim=True)
    cells = _shared(mass, *cell_place(conf), CELLS)
    # The cells and their mirror image: there the reflected kernel is a circular one.
    waves = torch.fft.rfft(torch.cat([cells, cells.flip(1)], dim=1))
    rate = -0.5 * (torch.pi * torch.arange(CELLS + 1, device=cells.device, dtype=torch.float64)) ** 2

    def excess(sigma: Tensor) -> Tensor:
        decay = torch.exp(rate * sigma[:, None] ** 2)
        smooth: Tensor = torch.fft.irfft(waves * decay, n=2 * CELLS)[:, :CELLS]
        return smooth.abs().sum(dim=1) - sigma

    low, high = torch.zeros_like(cells[:, 0]), torch.ones_like(cells[:, 0])
    perfect, worst = excess(low) <= 0, excess(high) >= 0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = excess(middle) > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    found = torch.where(worst, 1.0, (low + high) / 2)
    return torch.where(perfect, 0.0, found)


def _shared(mass: Tensor, left: IntArray, share: Float64, size: int) -> Tensor:
    """Share masses (B, N) between two neighbouring points of a grid; ``left`` ascends: (B, size)."""
    cuts = torch.as_tensor(np.searchsorted(left, np.arange(size + 1)), device=mass.device)
    right = mass * torch.as_tensor(share, device=mass.device)
    ends = prefixes(torch.stack([mass - right, right]))[..., cuts]
    here, there = torch.diff(ends).unbind()
    moved: Tensor = torch.nn.functional.pad(there[:, :-1], (1, 0))
    return here.add(moved)


def kde_errors(conf: Float64, hit: Tensor, weight: Tensor, bandwidth: float | None) -> Tensor:
    """Return ∫|x − P(event | score = x)| dP(score) of every replicate, see ``kernels.kde_error``.

    Shapes: conf (N,), ascending; hit and weight (B, N) or (1, N) → (B,).
    """
    if bandwidth is not None and bandwidth > WIDEST:
        raise ValueError(f"bandwidth must be at most 0.2 (the grid ends 0.6 beyond [0, 1]), got {bandwidth}")
    place = torch.as_tensor(conf, device=weight.device)
    correct, n = weight * hit, weight.sum(dim=1)
    right = correct.sum(dim=1)
    safe = right.masked_fill(right == 0, 1.0)
    if bandwidth is None:
        mean = correct @ place / safe
        spread = torch.sqrt((correct * (place - mean[:, None]) ** 2).sum(dim=1) / safe)
        width = (spread * (2 * n) ** -0.2).clamp(max=WIDEST)
    else:
        width = torch.full_like(right, bandwidth)
    half = (3 * width).clamp(min=_STEP)
    density_event = _density(conf, correct / safe[:, None], half)
    density = _density(conf, weight / n[:, None], half)
    found = _integrate(density_event, density, right / n, half)
    return torch.where(right == 0, weight @ place / n, found)


def _density(conf: Float64, mass: Tensor, half: Tensor) -> Tensor:
    """Densities on the grid of scores and mirror images, 0 outside (0, 1), doubled inside: (B, grid)."""
    # Images of the lower half lie below 0, the others above 1; both run down where scores run up.
    lower = int(np.searchsorted(conf, 0.5, side="left"))
    order = np.concatenate([np.arange(lower)[::-1], np.arange(lower, len(conf))[::-1]])
    mirror = np.where(order < lower, -conf[order], 2 - conf[order])
    images = mass[:, torch.as_tensor(order, device=mass.device)]
    points = len(GRID)
    grid = _shared(mass, *grid_place(conf), points) + _shared(images, *grid_place(mirror), points)
    reach = (half / _STEP).floor()[:, None]
    step = torch.arange(points, device=mass.device, dtype=torch.float64)
    step = torch.minimum(step, points - step)  # circular
    u = step * _STEP / half[:, None]
    kernel = torch.where(step <= reach, 35 / (32 * half[:, None]) * (1 - u * u) ** 3, 0.0)
    density = torch.fft.irfft(torch.fft.rfft(grid / 2) * torch.fft.rfft(kernel), n=points).clamp_(min=0)
    inside = torch.as_tensor((GRID > 0) & (GRID < 1), device=mass.device)
    return torch.where(inside, 2 * density, 0.0)


def _integrate(density_event: Tensor, density: Tensor, rate: Tensor, half: Tensor) -> Tensor:
    inside = (GRID >= 0) & (GRID <= 1)
    first, last = np.flatnonzero(inside)[[0, -1]]
    x = torch.as_tensor(GRID[inside], device=density.device)
    event, every = density_event[:, first : last + 1], density[:, first : last + 1]
    accuracy = (rate[:, None] * event / every).clamp(max=1.0)
    integrand = torch.nan_to_num((x - accuracy).abs() * every, nan=0.0)
    valid = torch.maximum(event, every) > TINY
    # Elsewhere the previous valid value is copied, where the kernel is resolved; see ``kernels``.
    before = torch.where(valid, torch.arange(len(x), device=x.device), -1).cummax(dim=1).values
    before = torch.where((half < RESOLVED * _STEP)[:, None] & ~valid, -1, before)
    filled = torch.where(before >= 0, integrand.gather(1, before.clamp(min=0)), 0.0)
    return torch.trapezoid(filled, x) / torch.trapezoid(every, x)
