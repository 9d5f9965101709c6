"""Metrics: pure functions ``(probs, y, *, sample_weight=None, ...) -> float`` on numpy, torch and frames.

All take ``probs`` of shape (N, K), integer labels ``y`` of shape (N,) and, optionally, a ``sample_weight`` of
shape (N,): any weights, or whole repetition counts where the metric counts rows.

>>> import hcal
>>> hcal.metrics.brier([[0.5, 0.5]], [0])
0.5
"""

from __future__ import annotations

from typing import Any

from hcal.metrics.canonical import skce
from hcal.metrics.class_wise import cwece_a, cwece_r2, cwece_s, tcwece, tcwece_k
from hcal.metrics.cumulated import kuiper
from hcal.metrics.decomposition import Decomposition, decompose
from hcal.metrics.dirichlet import dkde_ce
from hcal.metrics.expected_brier import spiegelhalter, spiegelhalter_p
from hcal.metrics.registry import LEVELS, METRICS, Metric, get_metric, list_metrics
from hcal.metrics.sample import Sample
from hcal.metrics.scores import accuracy, brier, mean_confidence, nll, sharpness
from hcal.metrics.streaming import StreamingMetrics
from hcal.metrics.testing import CalibrationTest, calibration_test
from hcal.metrics.top_label import (
    ace,
    dece,
    ece_em,
    ece_ew,
    ece_r2,
    ece_s1,
    ece_s2,
    kde_ece,
    ks,
    mce,
    mmce,
    smece,
)
from hcal.metrics.windowed import HError, h_error, hce, hce_pooled

__all__ = [
    "LEVELS",
    "METRICS",
    "CalibrationTest",
    "Decomposition",
    "HError",
    "Metric",
    "Sample",
    "StreamingMetrics",
    "accuracy",
    "ace",
    "brier",
    "calibration_test",
    "cwece_a",
    "cwece_r2",
    "cwece_s",
    "dece",
    "decompose",
    "dkde_ce",
    "ece_em",
    "ece_ew",
    "ece_r2",
    "ece_s1",
    "ece_s2",
    "get_metric",
    "h_error",
    "hce",
    "hce_pooled",
    "kde_ece",
    "ks",
    "kuiper",
    "list_metrics",
    "mce",
    "mean_confidence",
    "mmce",
    "nll",
    "sharpness",
    "skce",
    "smece",
    "spiegelhalter",
    "spiegelhalter_p",
    "tcwece",
    "tcwece_k",
]


def __getattr__(name: str) -> Any:
    if name in METRICS:  # a row of the registry is enough: its function is here too
        return METRICS[name].function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
