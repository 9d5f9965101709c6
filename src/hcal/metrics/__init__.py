"""Metrics: pure functions ``(probs, y, *, sample_weight=None, ...) -> float``."""

from __future__ import annotations

from hcal.metrics.scores import accuracy, brier, nll
from hcal.metrics.top_label import ece_ew

__all__ = ["accuracy", "brier", "ece_ew", "nll"]
