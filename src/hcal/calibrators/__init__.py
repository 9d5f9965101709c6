"""Calibrators: one method a file. The registry finds them; nothing is listed by hand."""

from __future__ import annotations

from hcal.calibrators.base import CalibrationWarning, Calibrator, Fitted
from hcal.calibrators.registry import get_calibrator, list_calibrators, make_calibrator, register

__all__ = [
    "CalibrationWarning",
    "Calibrator",
    "Fitted",
    "get_calibrator",
    "list_calibrators",
    "make_calibrator",
    "register",
]
