"""The published code's variant of the loss (it departs from the paper; for comparison only).

Differences: a kernel of M + 1 events centred on every event, zero-padded and always divided by M + 1; the
average over K passes, each of which leaves out the rows of one class; k-means on the centre event's
probability; a cluster mean that divides by N_c + 1e-5. A subset of a sorted list is sorted, so all passes
share ONE sort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hcal.objective._torch import prefix_sum, ranges_of
from hcal.objective.checks import check_tensors
from hcal.objective.sampled_kmeans import sampled_kmeans
from hcal.objective.settings import ObjectiveSettings, Weighting

#: Ascending probabilities (n,) to ascending cluster centres (C,).
KMeans = Callable[[Tensor], Tensor]


class PublishedLoss(torch.nn.Module):
    """The loss as the published code computes it.

    Parameters
    ----------
    window : int
        M, even; the kernel has M + 1 taps.
    epsilon, scale, clusters, weighting, norm, iterations
        As in :class:`hcal.HCalibrationLoss`.
    leave_one_out : bool
        Average the passes that leave out the rows of one class (the published code does, but on ImageNet).
    kmeans : callable, optional
        Ascending probabilities (n,) to ascending centres (C,); by default the published one,
        :func:`hcal.objective.sampled_kmeans.sampled_kmeans`.

    Examples
    --------
    >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]], requires_grad=True)
    >>> PublishedLoss(window=2)(probs, torch.tensor([0, 1])).backward()
    >>> probs.grad.shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        window: int = 200,
        epsilon: float = 1e-20,
        scale: float = 1e5,
        clusters: int = 15,
        weighting: Weighting = "kmeans",
        norm: int = 1,
        iterations: int = 25,
        leave_one_out: bool = True,
        kmeans: KMeans | None = None,
    ) -> None:
        super().__init__()
        if window % 2:
            raise ValueError(f"the published kernel is centred: window must be even, got {window}")
        self.settings = ObjectiveSettings(window, epsilon, scale, clusters, iterations, weighting, norm)
        self.leave_one_out = leave_one_out
        self.kmeans = kmeans

    def forward(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of probabilities (N, K) and labels (N,): a scalar in the dtype of ``probs``."""
        check_tensors(probs, y)
        loss: Tensor = _Published.apply(probs, y.to(torch.int64), self)  # type: ignore[no-untyped-call]
        return loss


class _Published(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probs: Tensor, y: Tensor, variant: PublishedLoss) -> Tensor:
        loss, grad = _passes(probs.detach(), y, variant)
        ctx.save_for_backward(grad)
        return loss.to(probs.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * upstream, None, None


def _passes(probs: Tensor, y: Tensor, variant: PublishedLoss) -> tuple[Tensor, Tensor]:
    """Sort once, then run each pass on the sorted events that it keeps."""
    n_classes = probs.shape[1]
    key = torch.log(probs.float() + 1e-20).reshape(-1)
    order = torch.sort(key, stable=True).indices
    q = probs.reshape(-1)[order]
    row_label = y.repeat_interleave(n_classes)[order]
    o = (row_label == order % n_classes).to(torch.float64)
    loss = torch.zeros((), dtype=torch.float64, device=probs.device)
    ranked = torch.zeros(len(q), dtype=torch.float64, device=probs.device)
    left_out = range(n_classes) if variant.leave_one_out else [-1]
    for label in left_out:
        keep = torch.nonzero(row_label != label)[:, 0]
        if len(keep):
            value, slope = _one_pass(q[keep], o[keep], variant)
            loss += value / len(left_out)
            ranked[keep] += slope / len(left_out)
    grad = torch.empty_like(q)
    grad[order] = ranked.to(q.dtype)
    return loss, grad.reshape(probs.shape)


def _one_pass(q: Tensor, o: Tensor, variant: PublishedLoss) -> tuple[Tensor, Tensor]:
    s = variant.settings
    error = _centred_sum(q.to(torch.float64) - o, s.window) / (s.window + 1)
    excess = (error.abs() - s.epsilon).clamp_min(0)
    weight = _weights(q, variant)
    loss = s.scale * (weight * excess**s.norm).sum()
    slope = weight * error.sign() * (excess > 0 if s.norm == 1 else 2 * excess)
    return loss, _centred_sum(slope, s.window) * (s.scale / (s.window + 1))


def _centred_sum(x: Tensor, window: int) -> Tensor:
    """Sum over the window + 1 neighbours of each element, zeros beyond the ends."""
    prefix = prefix_sum(x[None])[0]
    at = torch.arange(len(x), device=x.device)
    return prefix[(at + window // 2 + 1).clamp_max(len(x))] - prefix[(at - window // 2).clamp_min(0)]


def _weights(q: Tensor, variant: PublishedLoss) -> Tensor:
    s = variant.settings
    if s.weighting == "uniform":
        return torch.full(q.shape, 1 / len(q), dtype=torch.float64, device=q.device)
    x = q.to(torch.float64)[None]
    if variant.kmeans is not None:
        centres = variant.kmeans(q)
    else:
        centres = torch.from_numpy(sampled_kmeans(q.cpu().numpy(), s.clusters, s.iterations))
    edges = ranges_of(x, centres.to(x)[None])[0]
    counts = edges.diff()
    return (1 / (s.clusters * (counts + 1e-5))).repeat_interleave(counts)
