"""Metrics: pure functions ``(probs, y, *, sample_weight=None, ...) -> float`` on numpy, torch and frames.

All take ``probs`` of shape (N, K), integer labels ``y`` of shape (N,) and, optionally, a ``sample_weight`` of
shape (N,). Metrics that count rows need whole weights, which stand for repeated rows; the others take any weights.

>>> import hcal
>>> hcal.metrics.brier([[0.5, 0.5]], [0])
0.5
"""

from __future__ import annotations

from collections.abc import Callable

# Tables list the metrics in the order in which these modules are imported.
# isort: off
from hcal.metrics.binned import ace, dece, ece_em, ece_ew, ece_r2, ece_s1, ece_s2, mce
from hcal.metrics.smooth import kde_ece, ks, kuiper, mmce, smece, spiegelhalter
from hcal.metrics.class_wise import cwece_a, cwece_r2, cwece_s, tcwece, tcwece_k
from hcal.metrics.windowed import HError, h_error, hce, hce_pooled
from hcal.metrics.canonical import dkde_ce, skce
from hcal.metrics.scores import (
    Decomposition,
    accuracy,
    auc,
    brier,
    d2_brier,
    d2_nll,
    decompose,
    mean_confidence,
    nll,
    sharpness,
)

# isort: on
from hcal.metrics.registry import LEVELS, METRICS, Metric, get_metric, list_metrics, register_metric
from hcal.metrics.sample import Sample
from hcal.metrics.streaming import StreamingMetrics
from hcal.metrics.testing import CalibrationTest, calibration_test

__all__ = [
    "LEVELS", "METRICS", "CalibrationTest", "Decomposition", "HError", "Metric", "Sample",
    "StreamingMetrics", "accuracy", "ace", "auc", "brier", "calibration_test", "cwece_a",
    "cwece_r2", "cwece_s", "d2_brier", "d2_nll", "dece", "decompose", "dkde_ce", "ece_em",
    "ece_ew", "ece_r2", "ece_s1", "ece_s2", "get_metric", "h_error", "hce", "hce_pooled",
    "kde_ece", "ks", "kuiper", "list_metrics", "mce", "mean_confidence", "mmce", "nll",
    "register_metric", "sharpness", "skce", "smece", "spiegelhalter", "tcwece", "tcwece_k",
]  # fmt: skip


def __getattr__(name: str) -> Callable[..., float]:
    if name in METRICS:  # metrics that users registered
        return METRICS[name].function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
