"""The paper's twelve candidates: three families in four sizes, by name."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from hcal.maps.module import CalibrationMap, Init
from hcal.maps.ensemble_linear import EnsembleLinear
from hcal.maps.monotonic_net import MonotonicNet, standardisation
from hcal.maps.piecewise_linear import PiecewiseLinear
from hcal.maps.temperature import TemperatureMap

#: Names of the paper's candidates, cheapest family first.
PAPER_MAPS: tuple[str, ...] = (
    *(f"piecewise-{z}" for z in (1, 10, 100, 500)),
    *(f"monotonic-{h}" for h in (2, 10, 20, 50)),
    *(f"ensemble-{m}" for m in (16, 32, 64, 128)),
)


def build_map(
    name: str, x: NDArray[Any] | Tensor, *, init: Init = "identity", random_state: int = 0
) -> CalibrationMap:
    """Return a map by family and size, e.g. ``"monotonic-50"``; any size, not only the paper's.

    Parameters
    ----------
    name : str
        ``piecewise-z``, ``monotonic-h``, ``ensemble-m`` or ``temperature``.
    x : array or tensor of shape (N, K)
        Training log-softmax values: a MonotonicNet standardises with them.
    init : {"identity", "published"}

    Examples
    --------
    >>> import numpy as np
    >>> len(PAPER_MAPS), build_map("piecewise-10", np.zeros((1, 2))).step
    (12, 10.0)
    """
    family, _, size = name.partition("-")
    if family == "temperature" and not size:
        return TemperatureMap(init=init, random_state=random_state)
    if size.isdigit() and int(size) > 0:
        if family == "piecewise":
            return PiecewiseLinear(int(size), init=init, random_state=random_state)
        if family == "ensemble":
            return EnsembleLinear(int(size), init=init, random_state=random_state)
        if family == "monotonic":
            return MonotonicNet(int(size), **standardisation(x), init=init, random_state=random_state)  # type: ignore[arg-type]
    raise ValueError(
        f"unknown map {name!r}; use 'temperature', 'piecewise-Z', 'monotonic-H' or 'ensemble-M' with a size"
    )
