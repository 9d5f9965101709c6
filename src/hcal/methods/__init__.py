"""Calibrators: each method has its own file, and the registry finds the files by name."""

from __future__ import annotations

from hcal.methods.base import CalibrationWarning, Calibrator, Fitted
from hcal.methods.registry import get_calibrator, list_calibrators, make_calibrator, register

__all__ = [
    "CalibrationWarning",
    "Calibrator",
    "Fitted",
    "get_calibrator",
    "list_calibrators",
    "make_calibrator",
    "register",
]
