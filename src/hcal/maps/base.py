"""What a trainable map is: a torch module from x = log-softmax(logits) to probabilities, and its arrays."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Init = Literal["identity", "published"]
MapState = dict[str, NDArray[np.float64]]


class CalibrationMap(torch.nn.Module):
    """A strictly increasing map of x, followed by a softmax (or a mixture of such).

    Subclasses write :meth:`forward` and :meth:`export`; they know nothing of objectives or solvers.
    """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities (N, K) from log-probabilities x (N, K)."""

    @abstractmethod
    def export(self) -> MapState:
        """Return all that :func:`hcal.maps.predict_map` needs, as float64 arrays."""


def check_init(init: Any) -> Init:
    """Return ``init`` if it is a known initialisation.

    Examples
    --------
    >>> check_init("identity")
    'identity'
    """
    if init not in ("identity", "published"):
        raise ValueError(f"init must be 'identity' or 'published', got {init!r}")
    return init  # type: ignore[no-any-return]


def generator(random_state: int) -> torch.Generator:
    """Return a seeded generator on the CPU: the same start on every device.

    Examples
    --------
    >>> generator(3).initial_seed()
    3
    """
    return torch.Generator().manual_seed(random_state)


def uniform(bound: float, *shape: int, draw: torch.Generator) -> Tensor:
    """Return a float64 tensor of U(−bound, bound).

    Examples
    --------
    >>> bool(uniform(0.5, 3, draw=generator(0)).abs().max() <= 0.5)
    True
    """
    return (torch.rand(*shape, generator=draw, dtype=torch.float64) * 2 - 1) * bound
