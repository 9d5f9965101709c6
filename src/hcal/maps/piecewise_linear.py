"""The paper's piecewise linear map: continuous, z equal segments of [−100, 0], positive slopes."""

from __future__ import annotations

import torch
from torch import Tensor

from hcal.maps.module import Init, TableMap, check_init
from hcal.maps.table import table_of_slopes

SPAN = 100.0
_SOFTNESS = 0.02


class PiecewiseLinear(TableMap):
    """softmax of g(x), g continuous with z slopes, g(0) = 0; the last slope continues below −100.

    The published code's formula is discontinuous once slopes leave 1; this is the map that the paper
    describes (its appendix on maps). The parameters are the slopes themselves, as published, through a
    smooth positive part (θ + √(θ² + δ²))/2 that differs from θ by less than 1e-4 where slopes are usual, so
    they are positive whatever the optimiser does.

    Parameters
    ----------
    segments : int
        z; the paper's sizes are 1, 10, 100, 500.
    init : {"identity", "published"}
        Both are slopes of 1: the published start is the identity.
    random_state : int
        Unused: the start is not random. Present so that all maps are built alike.

    Examples
    --------
    >>> x = torch.log(torch.tensor([[0.2, 0.8]]))
    >>> PiecewiseLinear(10)(x).detach()
    tensor([[0.2000, 0.8000]])
    """

    def __init__(self, segments: int = 100, *, init: Init = "identity", random_state: int = 0) -> None:
        super().__init__()
        if segments < 1:
            raise ValueError(f"segments must be at least 1, got {segments}")
        check_init(init)
        start = torch.full((segments,), 1 - _SOFTNESS**2 / 4, dtype=torch.float64)
        self.theta, self.step = torch.nn.Parameter(start), SPAN / segments

    def slopes(self) -> Tensor:
        """Return the positive slopes (z,), the first one next to x = 0."""
        return (self.theta + torch.sqrt(self.theta**2 + _SOFTNESS**2)) / 2

    def values(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return V (z + 1,), minus the map at the knots."""
        return table_of_slopes(self.slopes(), self.step)
