"""The loss as the published code computes it, for comparison only: it differs from the paper.

Differences: the window has M + 1 events and is centred on every event, padded with zeros and always divided by M + 1;
the loss is averaged over K passes, each of which leaves out the rows of one class; the k-means clusters the probability
of the centre event; the mean of a cluster divides by N_c + 1e-5. A subset of a sorted list is sorted, so all passes
share one sort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hcal.h_calibration.definition import ObjectiveSettings
from hcal.h_calibration.loss import WithGradient, check_tensors, prefix_sum, ranges_of
from hcal.numerics import Float64, prefix_sums

#: Ascending probabilities (n,) to ascending cluster centres (C,).
KMeans = Callable[[Tensor], Tensor]


class PublishedLoss(torch.nn.Module):
    """The loss as the published code computes it.

    Parameters
    ----------
    window : int
        M, which must be even; a window has M + 1 events.
    leave_one_out : bool
        Average over passes that each leave out the rows of one class (as published, except for ImageNet).
    kmeans : callable, optional
        Ascending probabilities (n,) to ascending centres (C,); by default the published one,
        :func:`sampled_kmeans`.
    **constants
        ``epsilon``, ``scale``, ``clusters``, ``weighting``, ``norm`` and ``iterations`` of
        :class:`hcal.HCalibrationLoss`.

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
        *,
        leave_one_out: bool = True,
        kmeans: KMeans | None = None,
        **constants: Any,
    ) -> None:
        super().__init__()
        if window % 2:
            raise ValueError(f"the published kernel is centred: window must be even, got {window}")
        self.settings = ObjectiveSettings(window=window, **constants)
        self.leave_one_out = leave_one_out
        self.kmeans: KMeans = kmeans or self._sampled_centres

    def _sampled_centres(self, q: Tensor) -> Tensor:
        return torch.from_numpy(
            sampled_kmeans(q.cpu().numpy(), self.settings.clusters, self.settings.iterations)
        )

    def forward(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of probabilities (N, K) and labels (N,): a scalar in the dtype of ``probs``."""
        check_tensors(probs, y)
        compute = partial(_passes, variant=self)
        labels = y.to(torch.int64)
        loss: Tensor = WithGradient.apply(probs, labels, compute)  # type: ignore[no-untyped-call]
        return loss


def _passes(
    probs: Tensor, y: Tensor, variant: PublishedLoss, need_grad: bool
) -> tuple[Tensor, Tensor]:
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
    """Return for each element the sum of the window + 1 elements around it, with zeros beyond the ends."""
    prefix = prefix_sum(x[None])[0]
    at = torch.arange(len(x), device=x.device)
    return (
        prefix[(at + window // 2 + 1).clamp_max(len(x))] - prefix[(at - window // 2).clamp_min(0)]
    )


def _weights(q: Tensor, variant: PublishedLoss) -> Tensor:
    s = variant.settings
    if s.weighting == "uniform":
        return torch.full(q.shape, 1 / len(q), dtype=torch.float64, device=q.device)
    x = q.to(torch.float64)[None]
    counts = ranges_of(x, variant.kmeans(q).to(x)[None])[0].diff()
    return (1 / (s.clusters * (counts + 1e-5))).repeat_interleave(counts)


# The k-means of the published code takes a seeded random sub-sample, a random start and 25 Lloyd iterations. It draws
# with a 32-bit Mersenne twister, as the library that the published code calls does (Johnson, Douze, Jégou:
# Billion-scale similarity search with GPUs, 2019), so equal seeds pick equal positions; the tests compare its values.

_POINTS_PER_CLUSTER = 256
_SPLIT_SEED = 1234
_NUDGE = 1 / 1024


def sampled_kmeans(
    values: ArrayLike, clusters: int = 15, iterations: int = 25, random_state: int = 1234
) -> Float64:
    """Return the ascending centres (clusters,) of the published k-means.

    ``values`` (n,) must ascend, because their order decides the sub-sample.

    >>> sampled_kmeans([0.0, 0.1, 0.9, 1.0], clusters=2).round(3)
    array([0.05, 0.95])
    """
    x = np.asarray(values, dtype=np.float32)
    size = clusters * _POINTS_PER_CLUSTER
    if len(x) > size:
        x = x[list(_draw(len(x), size, random_state))]
    centres = x[list(_draw(len(x), min(clusters, len(x)), random_state + 1))].astype(np.float64)
    ordered = np.sort(x).astype(np.float64)
    prefix = prefix_sums(ordered)
    for _ in range(iterations):
        centres = _lloyd(ordered, prefix, centres)
    return np.sort(centres)


def _draw(n: int, take: int, random_state: int) -> tuple[int, ...]:
    """Return the first ``take`` positions of a seeded random permutation of n (Fisher and Yates)."""
    twister = _twister(random_state)
    moved: dict[int, int] = {}
    out = []
    for i in range(take):
        j = i + next(twister) % (n - i)
        out.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    return tuple(out)


def _twister(random_state: int) -> Iterator[int]:
    state = np.random.RandomState(random_state)
    while True:
        yield from state.randint(0, 1 << 32, size=256, dtype=np.uint32).tolist()


def _lloyd(x: Float64, prefix: Float64, centres: Float64) -> Float64:
    order = np.argsort(centres, kind="stable")
    ascending = centres[order]
    inner = np.searchsorted(x, (ascending[1:] + ascending[:-1]) / 2, side="right")
    edges = np.concatenate([[0], inner, [len(x)]])
    counts = np.empty(len(centres), dtype=np.int64)
    sums = np.empty(len(centres))
    counts[order], sums[order] = np.diff(edges), np.diff(prefix[edges])
    moved = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    return _split_for_empty(moved, counts, len(x))


def _split_for_empty(centres: Float64, counts: NDArray[np.int64], n: int) -> Float64:
    """Give each empty cluster half of another one, which is drawn with a probability that grows with its size."""
    k = len(centres)
    twister = _twister(_SPLIT_SEED)
    for empty in np.flatnonzero(counts == 0):
        if n <= k:  # nothing to split
            break
        donor = 0
        while next(twister) / (2**32 - 1) >= (counts[donor] - 1) / (n - k):
            donor = (donor + 1) % k
        centres[empty] = centres[donor] * (1 + _NUDGE)
        centres[donor] *= 1 - _NUDGE
        counts[empty] = counts[donor] // 2
        counts[donor] -= counts[empty]
    return centres
