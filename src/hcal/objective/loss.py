"""The h-calibration loss as a ``torch.nn.Module`` with its own backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hcal.objective.checks import check_tensors
from hcal.objective.engines import evaluate_loss
from hcal.objective.events import EventsArgument, Family, family_of
from hcal.objective.settings import ObjectiveSettings, Weighting
from hcal.runtime.fused import fused


class HCalibrationLoss(torch.nn.Module):
    """Loss of h-calibration (eq:finalloss): sorted events, windows of M, k-means weights.

    Order, clusters and weights carry no gradient; dL/dq_j = (r/M)·Σ w_k·sign(T_k) over the windows k that
    contain event j and whose error exceeds ε. Events that tie in probability and mark share their mean
    gradient, so value and gradient do not depend on the order of rows or classes.

    Parameters
    ----------
    window : int
        M. With fewer events there is one window of all of them.
    epsilon, scale : float
        ε and r.
    clusters : int
    weighting : {"kmeans", "uniform"}
    norm : {1, 2}
        2: max(|T| − ε, 0)², no root.
    events : {"pooled", "top-label", "class-wise"}, class index, list of subsets of classes, or Family
        ``"pooled"`` (once called ``"atomic"``) sorts the events of all classes together; any other family is
        averaged over its members.
    iterations : int
        Lloyd iterations of the k-means.
    check : bool
        Refuse labels outside 0..K−1, and probabilities that are NaN or outside [0, 1]. On a GPU the verdict
        must be read back, so every call waits for the device once: in a training loop, where batches should
        queue up, pass False once the labels are known to be good. Wrong input then gives a wrong loss without
        a word. On the CPU nothing waits and the check is always made; a call that a CUDA graph records never.

    Examples
    --------
    >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]], requires_grad=True)
    >>> loss = HCalibrationLoss(window=2)(probs, torch.tensor([0, 1]))
    >>> loss.backward()
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
        events: EventsArgument = "pooled",
        iterations: int = 25,
        check: bool = True,
    ) -> None:
        super().__init__()
        self.check = check
        self.settings = ObjectiveSettings(window, epsilon, scale, clusters, iterations, weighting, norm)
        self.events = family_of(events)

    @classmethod
    def from_settings(cls, settings: ObjectiveSettings, events: Family) -> HCalibrationLoss:
        """Return the loss with the given constants.

        Examples
        --------
        >>> HCalibrationLoss.from_settings(ObjectiveSettings(window=2), family_of("pooled")).settings.window
        2
        """
        new = cls(events=events)
        new.settings = settings
        return new

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can record it: nothing is read back to the host or made there."""
        return self.events.capturable and fused()

    @classmethod
    def published(cls, **keywords: Any) -> torch.nn.Module:
        """Return the published code's variant; see :class:`hcal.objective.published.PublishedLoss`.

        Examples
        --------
        >>> loss = HCalibrationLoss.published(window=2)
        >>> loss(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).ndim
        0
        """
        from hcal.objective.published import PublishedLoss

        return PublishedLoss(**keywords)

    def forward(self, probs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of probabilities (N, K) and labels (N,): a scalar in the dtype of ``probs``."""
        wide = check_tensors(probs, y, values=self.check)
        loss: Tensor = _Loss.apply(wide, y.to(torch.int64), self.settings, self.events)  # type: ignore[no-untyped-call]
        return loss.to(probs.dtype)

    def extra_repr(self) -> str:
        """Show the settings in ``repr``."""
        return f"{self.settings}, events={self.events!r}"


class _Loss(torch.autograd.Function):
    """Value and gradient are computed together: both need the one sort."""

    @staticmethod
    def forward(ctx: Any, probs: Tensor, y: Tensor, settings: ObjectiveSettings, family: Family) -> Tensor:
        loss, grad = evaluate_loss(probs.detach(), y, settings, family, ctx.needs_input_grad[0])
        if grad is not None:
            ctx.save_for_backward(grad)
        return loss.to(probs.dtype)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        grad = ctx.saved_tensors[0]
        # the loss itself is what is usually minimised; on a GPU to look would be to wait
        whole = upstream.device.type == "cpu" and float(upstream) == 1.0
        return grad if whole else grad * upstream, None, None, None
