"""Calibration maps: what turns scores into calibrated probabilities.

The three order-preserving families of the paper (all on x = log-softmax of the logits) are one file each, as
torch modules: ``ensemble_linear``, ``piecewise_linear``, ``monotonic_net``; ``temperature`` is the one-slope
case. ``PAPER_MAPS`` lists the paper's twelve. ``scaling`` holds the numpy maps of the comparison methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcal.maps.ensemble_linear import EnsembleLinear
    from hcal.maps.monotonic_net import MonotonicNet
    from hcal.maps.piecewise_linear import PiecewiseLinear
    from hcal.maps.predict import predict_map
    from hcal.maps.presets import PAPER_MAPS, build_map
    from hcal.maps.temperature import TemperatureMap

__all__ = [
    "PAPER_MAPS",
    "EnsembleLinear",
    "MonotonicNet",
    "PiecewiseLinear",
    "TemperatureMap",
    "build_map",
    "predict_map",
]

_HOMES = {
    "EnsembleLinear": "ensemble_linear",
    "MonotonicNet": "monotonic_net",
    "PAPER_MAPS": "presets",
    "PiecewiseLinear": "piecewise_linear",
    "TemperatureMap": "temperature",
    "build_map": "presets",
    "predict_map": "predict",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
