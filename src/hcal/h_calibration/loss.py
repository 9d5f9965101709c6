"""The h-calibration loss as a ``torch.nn.Module`` with its own backward pass, and its formula in torch.

The formula works on any device, in float32 or float64, for several rows of events at once. Events are sorted by
(probability, mark): the mark is appended as the lowest bit to the bits of the float, so one sort of integers orders
both, and the loss does not depend on the order of the rows even if probabilities tie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hcal.h_calibration.definition import EVEN, HALF_WAY, ObjectiveSettings, Weighting
from hcal.h_calibration.engines import check_arrays, check_ranges, check_shapes, evaluate_loss
from hcal.h_calibration.events import ClassWise, EventsArgument, PooledEvents, TopLabel, family_of


class HCalibrationLoss(torch.nn.Module):
    """Loss of h-calibration (eq:finalloss): sorted events, windows of M, k-means weights.

    The gradient treats order, clusters and weights as constants: dL/dq_j = (r/M)·Σ w_k·sign(T_k) over the windows k
    that contain event j and whose error T_k exceeds ε. Events with equal probability and mark get the mean of their
    gradients, so value and gradient do not depend on the order of rows or classes.

    Parameters
    ----------
    window : int
        M, the number of events in a window; with fewer events there is one window of all events.
    epsilon, scale : float
        ε and r.
    clusters : int
    weighting : {"kmeans", "uniform"}
    norm : {1, 2}
        2: max(|T| − ε, 0)², no root.
    events : {"pooled", "top-label", "class-wise"}, class index, list of subsets of classes, or Family
        ``"pooled"`` sorts the events of all classes together; with several classes or subsets, each is sorted on its
        own and the losses are averaged.
    iterations : int
        Lloyd iterations of the k-means.
    check : bool
        Refuse labels outside 0..K−1, and probabilities that are NaN or outside [0, 1]. On a GPU the check makes
        every call wait for the device; in a training loop, pass False once you know that the labels are valid. Invalid
        input then gives a wrong loss without an error. On the CPU the check is always made.

    Examples
    --------
    >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]], requires_grad=True)
    >>> loss = HCalibrationLoss(window=2)(probs, torch.tensor([0, 1]))
    >>> loss.backward()
    >>> probs.grad.shape
    torch.Size([2, 2])
    """

    def __init__(  # noqa: PLR0913
        self,
        window: int = 200,
        epsilon: float = 1e-20,
        scale: float = 1e5,
        clusters: int = 15,
        weighting: Weighting = "kmeans",
        norm: int = 1,
        events: EventsArgument = "pooled",
        iterations: int = 25,
        check: bool = True,
    ) -> None:
        super().__init__()
        self.check = check
        self.settings = ObjectiveSettings(
            window, epsilon, scale, clusters, iterations, weighting, norm
        )
        self.events = family_of(events)

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold the loss and its gradient: nothing waits for the device."""
        return not self.check and isinstance(self.events, PooledEvents | TopLabel | ClassWise)

    def forward(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of probabilities (N, K) and labels (N,): a scalar in the dtype of ``probs``."""
        wide = check_tensors(probs, y, values=self.check)
        compute = partial(evaluate_loss, settings=self.settings, family=self.events)
        labels = y.to(torch.int64)
        loss: Tensor = WithGradient.apply(wide, labels, compute)  # type: ignore[no-untyped-call]
        return loss.to(probs.dtype)

    def extra_repr(self) -> str:
        """Show the settings in ``repr``."""
        return f"{self.settings}, events={self.events!r}"


class Context(Protocol):
    """What the forward pass of a function keeps for the backward pass; torch's own type names no attributes."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors."""


class WithGradient(torch.autograd.Function):
    """A loss whose value and gradient come from one call of ``compute(probs, y, need_grad=...)``, with one sort."""

    @staticmethod
    def forward(
        ctx: Context, probs: Tensor, y: Tensor, compute: Callable[..., tuple[Tensor, Tensor | None]]
    ) -> Tensor:
        """Return the loss, a scalar in the dtype of ``probs``, and keep its gradient."""
        loss, grad = compute(probs.detach(), y, need_grad=ctx.needs_input_grad[0])
        if grad is not None:
            ctx.save_for_backward(grad)
        return loss.to(probs.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, upstream: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient in the probabilities."""
        (grad,) = ctx.saved_tensors
        # usually the factor is 1 and a copy can be saved; on a GPU, reading the factor would wait for the device
        is_one = upstream.device.type == "cpu" and float(upstream) == 1.0
        return grad if is_one else grad * upstream, None, None


def check_tensors(probs: Tensor, y: Tensor, *, values: bool = True) -> Tensor:
    """Check that probs (N, K) lie in [0, 1] and y (N,) in 0..K−1; return probs as float32 or float64.

    On a GPU the values are checked only if ``values`` is true, which waits for the device once.

    >>> import torch
    >>> check_tensors(torch.tensor([[0.5, float("nan")]]), torch.tensor([0]))
    Traceback (most recent call last):
    ...
    ValueError: probs must lie in [0, 1]; they range from nan to nan
    """
    check_shapes(probs, y)
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"y must hold integers 0..K-1, got dtype {y.dtype}")
    wide = probs if probs.dtype in (torch.float32, torch.float64) else probs.float()
    if wide.device.type == "cpu":
        check_arrays(wide.detach().numpy(), y.numpy())
    elif values:
        # a minimum over NaN is NaN; float64 represents every valid label exactly
        ends = [*torch.aminmax(wide.detach()), *torch.aminmax(y)]
        least, most, first, last = torch.stack([end.to(torch.float64) for end in ends]).tolist()
        check_ranges(least, most, int(first), int(last), wide.shape[1])
    return wide


def families_loss(
    p: Tensor, marks: Tensor, s: ObjectiveSettings, need_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the mean loss (float64 scalar) over families and its gradient (F, n) in ``p``."""
    integer = torch.int32 if p.dtype == torch.float32 else torch.int64
    bits = p.clamp_min(0).contiguous().view(integer)
    key, order = torch.sort((bits << 1) | marks.to(integer), dim=1)
    q = (key >> 1).view(p.dtype)
    m = min(s.window, p.shape[1])
    centroid = sliding_sum(q, m) / m
    rate = sliding_sum(key & 1, m) / m
    error = centroid - rate
    weight = window_weights(centroid, s)

    excess = error.abs() - s.epsilon
    excess = torch.where(excess > EVEN * rate, excess, 0)
    loss = s.scale * (weight * excess**s.norm).sum() / len(p)
    if not need_grad:
        return loss, None

    d_excess = excess > 0 if s.norm == 1 else 2 * excess
    slope = weight * error.sign() * d_excess
    ranked = _spread_windows(slope, m) * (s.scale / (m * len(p)))
    ranked = mean_over_ties(ranked, key)
    grad = torch.empty_like(p).scatter_(1, order, ranked.to(p.dtype))
    return loss, grad


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
    if s.weighting == "uniform":
        return centroid.new_tensor(1 / centroid.shape[1])
    edges = kmeans_ranges(centroid, s.clusters, s.iterations)
    counts = edges.diff(dim=1).reshape(-1)
    of_cluster = 1 / (s.clusters * counts.to(torch.float64))
    weights = of_cluster.repeat_interleave(counts, output_size=centroid.numel())
    return weights.reshape(centroid.shape)


def kmeans_ranges(x: Tensor, clusters: int, iterations: int) -> Tensor:
    """Return the edges (F, C + 1) of the k-means clusters of ascending rows, as in ``definition.kmeans_ranges``."""
    x = x.contiguous()
    prefix = prefix_sum(x)
    last = x.shape[1] - 1
    number = torch.arange(clusters, device=x.device, dtype=torch.float64)
    place = (number + 0.5) / clusters * last
    low = place.long()
    high = (low + 1).clamp_max(last)
    centres = torch.lerp(x[:, low], x[:, high], place - low)
    for _ in range(iterations):
        edges = ranges_of(x, centres)
        counts = edges.diff(dim=1)
        sums = prefix.gather(1, edges).diff(dim=1)
        centres = torch.where(counts > 0, sums / counts, centres)
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
    """Give events with equal probability and mark the mean of their gradients."""
    n = key.shape[1]
    same = key[:, 1:] == key[:, :-1]
    position = torch.arange(n, device=key.device).expand_as(key)
    starts = torch.nn.functional.pad(~same, (1, 0), value=True)
    ends = torch.nn.functional.pad(~same, (0, 1), value=True)
    first = torch.where(starts, position, 0).cummax(dim=1).values
    from_the_end = torch.where(ends, position, n).flip(1)
    last = from_the_end.cummin(dim=1).values.flip(1)

    prefix = prefix_sum(ranked)
    total = prefix.gather(1, last + 1) - prefix.gather(1, first)
    mean = total / (last + 1 - first)
    return torch.where(first == last, ranked, mean)
