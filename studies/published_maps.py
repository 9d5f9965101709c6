"""The piecewise linear map as the published code computes it, which is not the one that the paper describes.

The paper's map g is continuous: segment j of width d begins at the knot τ = (j − 1)·d of t = −log p, where
minus the map has the value V₁, and goes on with the slope s = (V₂ − V₁)/d, so that −g(t) = V₁ + s·(t − τ). The
published code subtracts the value V₁ where it should subtract the knot τ: −g(t) = V₁ + s·(t − V₁). The two agree
where V₁ = τ, which holds as long as all slopes are 1. As soon as they are not, a segment begins at
V₁ + s·(τ − V₁) instead of V₁: the segments do not meet, and at a knot the order of two scores can be inverted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hcal.h_calibration.paper_maps import Reference
from hcal.h_calibration.trainable_maps import CellOrder, TrainableMap, build_trainable
from hcal.numerics import Float64, log_softmax

#: The map divides [−100, 0].
SPAN = 100.0


class PublishedPiecewise(TrainableMap):
    """softmax of the published piecewise map of x = log-softmax; z segments have z + 1 slopes.

    The first slope belongs to no segment: it only moves all the values at the knots. All slopes start at 1.

    >>> x = torch.log(torch.tensor([[0.2, 0.8]]))
    >>> PublishedPiecewise(10)(x).detach()
    tensor([[0.2000, 0.8000]])
    """

    def __init__(self, segments: int) -> None:
        super().__init__()
        self.width = SPAN / segments
        self.slopes = torch.nn.Parameter(torch.ones(segments + 1))
        self.register_buffer("knots", torch.arange(segments + 1) * self.width)

    def forward(self, x: Tensor, order: CellOrder | None = None) -> Tensor:
        """Return probabilities (N, K) of log-probabilities (N, K)."""
        return torch.softmax(self.scores(x), dim=1)

    def scores(self, x: Tensor) -> Tensor:
        """Return the map of log-probabilities of any shape."""
        t = -x
        total = torch.nn.functional.pad(torch.cumsum(self.slopes.abs(), 0), (1, 0)).to(x.dtype)
        knots = self.get_buffer("knots").to(x.dtype)
        # How many knots are not above t: the segment of t. Beyond the last knot the slope is 0.
        segment = torch.searchsorted(knots, t.contiguous(), right=True)
        following = (segment + 1).clamp_max(len(self.slopes))

        value = (total[segment] - 1) * self.width
        next_value = (total[following] - 1) * self.width
        slope = (next_value - value) / self.width
        # The published error: the paper's map has the knot here, and not its value.
        return -(value + slope * (t - value))

    def fitted(self, reference: Reference) -> Any:
        """Return the map that predicts."""
        with torch.no_grad():
            return PublishedMap(self.slopes.detach().double().numpy(), self.width)


@dataclass(frozen=True)
class PublishedMap:
    """The published map with fixed slopes, on arrays."""

    slopes: Float64
    width: float

    def __call__(self, logits: Float64) -> Float64:
        """Return log-probabilities (N, K) of logits (N, K)."""
        return log_softmax(self.scores(log_softmax(logits)))

    def scores(self, x: Float64) -> Float64:
        """Return the map of log-probabilities of any shape."""
        knots = np.arange(len(self.slopes)) * self.width
        total = np.append(0.0, np.cumsum(np.abs(self.slopes)))
        segment = np.searchsorted(knots, -x, side="right")
        following = np.minimum(segment + 1, len(self.slopes))

        value = (total[segment] - 1) * self.width
        slope = total[following] - total[segment]
        return -(value + slope * (-x - value))


def build_published(name: str, x: Tensor, **options: Any) -> TrainableMap:
    """Return a map by its name, with the published piecewise map in place of the paper's."""
    family, _, size = name.partition("-")
    if family == "piecewise":
        return PublishedPiecewise(int(size))
    return build_trainable(name, x, **options)
