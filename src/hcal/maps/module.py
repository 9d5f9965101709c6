"""What a trainable map is: a torch module from x = log-softmax(logits) to probabilities, and its arrays."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcal.maps.table import table_softmax

Init = Literal["identity", "published"]
MapState = dict[str, NDArray[np.float64]]


class CalibrationMap(torch.nn.Module):
    """A strictly increasing map of x, followed by a softmax (or a mixture of such).

    Subclasses write :meth:`forward` and :meth:`export`, or, where the map is a function of one scalar, what a
    :class:`TableMap` asks for; they know nothing of objectives or solvers.
    """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities (N, K) from log-probabilities x (N, K)."""

    @abstractmethod
    def export(self) -> MapState:
        """Return all that :func:`hcal.maps.predict_map` needs, as float64 arrays."""


class TableMap(CalibrationMap):
    """softmax of a piecewise linear function of x, knots ``step`` apart: see :mod:`hcal.maps.table`."""

    step: float

    @abstractmethod
    def values(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return V (G + 1,), minus the map at the knots; what is costly may be computed in ``dtype``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities (N, K) from log-probabilities x (N, K)."""
        return table_softmax(x, self.values(x.dtype), self.step)

    def export(self) -> MapState:
        """Return ``table`` (G + 1,) and ``step``."""
        return {"table": self.values().detach().cpu().numpy(), "step": np.array(self.step)}


def check_init(init: Any) -> Init:
    """Return ``init`` if it is a known initialisation.

    >>> check_init("identity")
    'identity'
    """
    if init not in ("identity", "published"):
        raise ValueError(f"init must be 'identity' or 'published', got {init!r}")
    return init  # type: ignore[no-any-return]


def generator(random_state: int) -> torch.Generator:
    """Return a seeded generator on the CPU: the same start on every device.

    >>> generator(3).initial_seed()
    3
    """
    return torch.Generator().manual_seed(random_state)


def uniform(bound: float, *shape: int, draw: torch.Generator) -> Tensor:
    """Return a float64 tensor of U(−bound, bound).

    >>> bool(uniform(0.5, 3, draw=generator(0)).abs().max() <= 0.5)
    True
    """
    return (torch.rand(*shape, generator=draw, dtype=torch.float64) * 2 - 1) * bound
