"""Segments (countries, tenants, tasks): one common calibrator, and a correction of each segment shrunk towards it."""

from __future__ import annotations

from hcal.segments.calibrator import SegmentedCalibrator, UnknownSegmentWarning

__all__ = ["SegmentedCalibrator", "UnknownSegmentWarning"]
