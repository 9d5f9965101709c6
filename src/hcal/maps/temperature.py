"""One slope: softmax(e^θ x), temperature scaling as a map."""

from __future__ import annotations

import torch
from torch import Tensor

from hcal.maps.module import Init, TableMap, check_init


class TemperatureMap(TableMap):
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

    step = 1.0

    def __init__(self, *, init: Init = "identity", random_state: int = 0) -> None:
        super().__init__()
        check_init(init)
        self.log_beta = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def values(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return V (2,): one cell of width 1, whose slope continues."""
        return torch.nn.functional.pad(self.log_beta.exp(), (1, 0))
