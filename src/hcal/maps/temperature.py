"""One slope: softmax(e^θ x), temperature scaling as a map."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hcal.maps.base import CalibrationMap, Init, MapState, check_init
from hcal.maps.table import table_softmax


class TemperatureMap(CalibrationMap):
    """softmax(β x) with β = e^θ > 0; starts as the identity.

    Parameters
    ----------
    init, random_state
        As in the other maps; there is only one start.

    Examples
    --------
    >>> x = torch.log(torch.tensor([[0.2, 0.8]]))
    >>> TemperatureMap()(x).detach()
    tensor([[0.2000, 0.8000]])
    """

    def __init__(self, *, init: Init = "identity", random_state: int = 0) -> None:
        super().__init__()
        check_init(init)
        self.log_beta = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def values(self) -> Tensor:
        """Return V (2,): one cell of width 1, whose slope continues."""
        return torch.nn.functional.pad(self.log_beta.exp(), (1, 0))

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities (N, K) from log-probabilities x (N, K)."""
        return table_softmax(x, self.values(), 1.0)

    def export(self) -> MapState:
        """Return ``table`` (2,) and ``step``."""
        return {"table": self.values().detach().cpu().numpy(), "step": np.array(1.0)}
