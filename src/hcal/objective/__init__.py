"""The h-calibration objective: windows of sorted events, k-means weights and the loss.

``definition`` is the oracle, ``engines`` the value and gradient on arrays, ``loss`` the ``torch.nn.Module`` and
``published`` the published code's variant. Importing this package imports neither torch nor numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcal.objective.definition import ObjectiveSettings
    from hcal.objective.engines import loss_and_grad
    from hcal.objective.loss import HCalibrationLoss

__all__ = ["HCalibrationLoss", "ObjectiveSettings", "loss_and_grad"]

_HOMES = {"HCalibrationLoss": "loss", "ObjectiveSettings": "definition", "loss_and_grad": "engines"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
