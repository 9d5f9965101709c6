"""MonotonicNet (Wehenkel and Louppe, NeurIPS 2019): an integral of a positive network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcal.maps.module import Init, TableMap, check_init, generator, uniform
from hcal.maps.table import table_of_slopes

#: Cells of the table. Linear interpolation is then within about 1e-6 of the integral in probabilities.
CELLS = 2048


class MonotonicNet(TableMap):
    """softmax of g(u) = ∫₀ᵘ (ELU(f(v)) + 1) dv on standardised x, f an MLP with ReLU.

    g is a function of one scalar. So the network is evaluated at the midpoints of a grid over the range of
    the data, never at the events: its values are the slopes of a strictly increasing piecewise linear table
    (the midpoint rule). Below the range of the data the last slope continues.

    Parameters
    ----------
    hidden : int or sequence of int
        Widths of the hidden layers; an integer h means the paper's two layers of h (2, 10, 20 or 50).
    mean, std : float
        Of all training log-softmax values (see :func:`standardisation`).
    lowest : float
        The lowest x that the table covers.
    init : {"identity", "published"}
        Identity: g(x) = x. Published: the default start of a linear layer, and no multiplication by std.
    random_state : int
    cells : int

    Examples
    --------
    >>> x = torch.log(torch.tensor([[0.2, 0.8]]))
    >>> MonotonicNet(2, mean=-1.0, std=0.5)(x).detach()
    tensor([[0.2000, 0.8000]])
    """

    def __init__(
        self,
        hidden: int | Sequence[int] = 10,
        *,
        mean: float = 0.0,
        std: float = 1.0,
        lowest: float = -100.0,
        init: Init = "identity",
        random_state: int = 0,
        cells: int = CELLS,
    ) -> None:
        super().__init__()
        widths = (hidden, hidden) if isinstance(hidden, int) else tuple(hidden)
        if not widths or min(widths) < 1:
            raise ValueError(f"hidden must hold widths of at least 1, got {hidden}")
        if not (std > 0 and lowest < 0 and cells >= 1):
            raise ValueError(f"need std > 0, lowest < 0, cells >= 1; got {std}, {lowest}, {cells}")
        self.mean, self.std, self.step = float(mean), float(std), -float(lowest) / cells
        # g in logits is scale times the integral over u: std makes the zero network the identity.
        self.scale = std if check_init(init) == "identity" else 1.0
        self.layers = torch.nn.ParameterList()
        draw = generator(random_state)
        sizes = (1, *widths, 1)
        for fan_in, fan_out in pairwise(sizes):
            bound = 1 / math.sqrt(fan_in)
            self.layers.append(torch.nn.Parameter(uniform(bound, fan_out, fan_in, draw=draw)))
            self.layers.append(torch.nn.Parameter(uniform(bound, fan_out, draw=draw)))
        if init == "identity":
            for last in list(self.layers)[-2:]:
                last.data.zero_()
        middle = -(torch.arange(cells, dtype=torch.float64) + 0.5) * self.step
        self.register_buffer("grid", ((middle - self.mean) / self.std)[:, None])

    def slopes(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return dg/dx (cells,) at the midpoints of the cells, from x = 0 downwards."""
        v = self.get_buffer("grid").to(dtype)
        layers = [p.to(dtype) for p in self.layers]
        for weight, bias in zip(layers[0:-2:2], layers[1:-2:2], strict=True):
            v = torch.relu(v @ weight.T + bias)
        f = (v @ layers[-2].T + layers[-1])[:, 0]
        return (torch.nn.functional.elu(f) + 1) * (self.scale / self.std)

    def values(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return V (cells + 1,), minus the map at the knots, anchored at x = 0; summed in float64."""
        return table_of_slopes(self.slopes(dtype).double(), self.step)


def standardisation(x: NDArray[Any] | Tensor) -> dict[str, float]:
    """Return ``mean``, unbiased ``std`` and ``lowest`` of all N·K log-softmax values (N, K); x (N, K).

    Examples
    --------
    >>> standardisation(np.array([[-1.0, -3.0]]))["mean"]
    -2.0
    """
    if isinstance(x, Tensor):
        std, mean = torch.std_mean(x.double())
        low, mid, wide = float(x.min()), float(mean), float(std)
    else:
        low, mid = float(x.min()), float(x.mean(dtype=np.float64))
        wide = float(x.std(dtype=np.float64, ddof=1)) if x.size > 1 else 1.0
    # identical logits everywhere have no spread: any positive number serves
    return {"mean": mid, "std": wide if wide > 0 else 1.0, "lowest": min(low, -1e-6)}
