"""Metrics on CUDA tensors: the N x K work stays on the device, only small results come back.

Tensors in host memory are viewed as numpy arrays and never come here; the functions run on any torch device,
which is how they are tested without a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hcal.metrics.canonical import ROUNDING
from hcal.metrics.sample import BLOCK, Vector

if TYPE_CHECKING:
    from hcal.metrics.sample import Sample


def check_tensor(probs: Any) -> torch.Tensor:
    """Check probabilities on their device and renormalise the rows; errors as in ``hcal.inputs``."""
    from hcal import inputs

    x: torch.Tensor = probs.detach()
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    if x.dtype not in (torch.float32, torch.float64):
        x = x.double()
    legal = x.ndim == 2 and x.shape[0] > 0 and x.shape[1] > 1
    if legal:
        sums = x.sum(dim=1, dtype=torch.float64)
        tolerance = 1e-3 if x.dtype == torch.float32 else 1e-4
        legal = bool(((sums - 1).abs() <= tolerance).all()) and bool((x >= 0).all())
    if not legal:  # the host's check finds the place and words the error (or spreads a binary score)
        return torch.from_numpy(inputs.check_probs(x.cpu())[0]).to(x.device)
    if float((sums - 1).abs().max()) > torch.finfo(x.dtype).eps:
        x = x / sums[:, None].to(x.dtype)
    return x


def _on(s: Sample, array: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(s.data.tensor.device)


def pair_sums_on_device(s: Sample, bandwidth: float) -> tuple[Vector, float]:
    """Return Σ_{j ≠ i} w_j·h_ij for every row, shape (N,), and Σ_{i ≠ j} h_ij²."""
    p = s.data.tensor.double()
    y, w = _on(s, s.y), _on(s, s.w)
    squares = p.square().sum(dim=1)
    out = torch.zeros(s.n, dtype=torch.float64, device=p.device)
    total = torch.zeros((), dtype=torch.float64, device=p.device)
    step = max(1, 8 * BLOCK // s.n)
    for i in range(0, s.n, step):
        rows = slice(i, min(i + step, s.n))
        gram = p[rows] @ p.T
        distance = (squares[rows, None] - ROUNDING + squares[None, :] - 2 * gram).clamp_(min=0).sqrt_()
        gram -= p[rows][:, y]
        gram -= p[:, y[rows]].T
        gram += y[rows, None] == y[None, :]
        gram *= torch.exp_(distance.mul_(-1 / bandwidth))
        index = torch.arange(rows.start, rows.stop, device=p.device)
        gram[index - i, index] = 0.0
        out[rows] = gram @ w
        total += gram.square().sum()
    return np.asarray(out.cpu().numpy()), float(total)


def dkde_rows_on_device(s: Sample, bandwidth: float, floor: float) -> Vector:
    """Return ‖π_i − p_i‖² of every row, shape (N,)."""
    p = s.data.tensor.double().clamp(min=floor)
    y, w = _on(s, s.y), _on(s, s.w)
    shape = p / bandwidth
    constant = torch.lgamma(shape + 1).sum(dim=1) - torch.lgamma(shape.sum(dim=1) + s.k)
    offset = torch.log(w) - constant
    fewer = torch.where(w > 1, torch.log((w - 1).clamp(min=0)) - torch.log(w), -torch.inf)
    one_hot = torch.nn.functional.one_hot(y, s.k).double()
    out = torch.empty(s.n, dtype=torch.float64, device=p.device)
    step = max(1, 8 * BLOCK // s.n)
    for i in range(0, s.n, step):
        rows = slice(i, min(i + step, s.n))
        kernel = torch.log(p[rows]) @ shape.T
        kernel += offset
        index = torch.arange(rows.start, rows.stop, device=p.device)
        kernel[index - i, index] += fewer[rows]
        kernel = torch.softmax(kernel, dim=1)
        out[rows] = (kernel @ one_hot - p[rows]).square().sum(dim=1)
    return np.asarray(out.cpu().numpy())
