"""Scores that a training loop needs at every epoch, in torch operations on the device of the probabilities.

They are the metrics of :mod:`hcal.metrics` of the same names, without their input checks; the tests hold
them together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hcal.maps.table import range_sums

BINS = 15
_FIRST_EDGE = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1].item()
#: Up to so many entries a GPU puts all of them into bins rather than wait to hear how many there are.
DENSE = 4_000_000

#: (probabilities (N, K), labels (N,)) to a scalar tensor, lower is better.
EpochScore = Callable[[Tensor, Tensor], Tensor]


def epoch_ece_ew(probs: Tensor, y: Tensor) -> Tensor:
    """Return the equal-width top-label error.

    >>> epoch_ece_ew(torch.tensor([[0.25, 0.75]]), torch.tensor([1])).item()
    0.25
    """
    conf, label = probs.max(dim=1)
    gap = conf.double() - (label == y).double()
    which = torch.bucketize(conf.double(), _edges(probs.device)) - 1
    return torch.zeros(BINS, dtype=torch.float64, device=probs.device).index_add_(
        0, which.clamp(0, BINS - 1), gap
    ).abs().sum() / len(y)


def epoch_dece(probs: Tensor, y: Tensor) -> Tensor:
    """Return the debiased equal-mass top-label error (signed).

    >>> epoch_dece(torch.tensor([[0.0, 1.0]] * 30), torch.tensor([1] * 30)).item()
    0.0
    """
    n = len(y)
    conf, label = probs.max(dim=1)
    conf, order = conf.double().sort(stable=True)
    hit = (label == y)[order].double()
    cuts = (torch.arange(BINS + 1, device=probs.device, dtype=torch.float64) * n / BINS).round().long()
    size = cuts.diff().double()
    full = size > 0
    size = size.clamp_min(1)
    acc, mean = (range_sums(v, cuts) / size for v in (hit, conf))
    mu, sigma = acc - mean, (acc * (1 - acc) / size).clamp_min(0).sqrt()
    plug_in = (size * full * mu.abs()).sum() / n
    z = mu / sigma.clamp_min(1e-300)
    density = torch.exp(-0.5 * z**2) * (2 / torch.pi) ** 0.5
    folded = sigma * density + mu * torch.erf(z / 2**0.5)
    expected = torch.where(sigma > 0, folded, mu.abs())
    return 2 * plug_in - (expected * full).sum() / full.sum()


def epoch_cwece_a(probs: Tensor, y: Tensor) -> Tensor:
    """Return the equal-width class-wise error, averaged over classes.

    Only entries above 1/15 are put into bins, at most 14 a row; the first bin is what is left of the column.

    >>> epoch_cwece_a(torch.tensor([[0.0, 1.0]]), torch.tensor([1])).item()
    0.0
    """
    n, k = probs.shape
    cells = torch.zeros(k * BINS, dtype=torch.float64, device=probs.device)
    cell, gap = _cells(probs, y)
    cells.index_add_(0, cell, gap)
    cells = cells.reshape(k, BINS)
    own = probs.gather(1, y[:, None])[:, 0]
    marks = torch.zeros(k, dtype=torch.float64, device=probs.device).index_add_(0, y, (own > 0).double())
    total = probs.sum(dim=0, dtype=torch.float64) - marks
    cells[:, 0] += total - cells.sum(dim=1)
    return cells.abs().sum() / (n * k)


def _cells(probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cell (class, bin) and the gap of the entries beyond the first bin, or of all."""
    n, k = probs.shape
    edges = _edges(probs.device)
    if probs.is_cuda and probs.numel() <= DENSE:  # how many entries there are is known to the GPU only
        flat = torch.arange(n * k, device=probs.device)
        row, column = flat // k, flat % k
    else:
        row, column = torch.nonzero(probs > _FIRST_EDGE, as_tuple=True)
    value = probs[row, column].double()
    gap = value - (y[row] == column).double()
    # A float32 mixture may sum to one ulp above 1: that is still the last bin.
    which = (torch.bucketize(value, edges) - 1).clamp(0, BINS - 1)
    return column * BINS + which, gap


def epoch_nll(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean negative log-likelihood, probabilities floored at the smallest normal number.

    >>> epoch_nll(torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([0])).item()
    0.6931471805599453
    """
    own = probs.gather(1, y[:, None])
    return -own.clamp_min(torch.finfo(probs.dtype).tiny).double().log().mean()


#: The paper's selectors, by name.
SELECTORS: dict[str, EpochScore] = {"top-label": epoch_dece, "class-wise": epoch_cwece_a, "nll": epoch_nll}


def _edges(device: torch.device) -> Tensor:
    return torch.linspace(0, 1, BINS + 1, dtype=torch.float64, device=device)
