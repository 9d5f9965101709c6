"""hcal: turn the scores of any trained classifier into probabilities that can be trusted.

>>> import numpy as np, hcal
>>> rng = np.random.default_rng(0)
>>> logits = rng.normal(size=(500, 3)) * 4
>>> y = np.array([rng.choice(3, p=p) for p in hcal.softmax(logits / 3)])
>>> cal = hcal.make_calibrator("ts").fit(logits, y)
>>> bool(hcal.metrics.ece_ew(cal.predict_proba(logits), y) < hcal.metrics.ece_ew(hcal.softmax(logits), y))
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hcal._version import __version__

if TYPE_CHECKING:
    from hcal import integrations, maps, metrics, objective
    from hcal.calibrators import list_calibrators, make_calibrator, register
    from hcal.calibrators.base import CalibrationWarning
    from hcal.calibrators.batches import fit_batches
    from hcal.calibrators.files import load, save
    from hcal.calibrators.h import HCalibrator
    from hcal.calibrators.multilabel import MultilabelCalibrator
    from hcal.calibrators.pool import PooledCalibrator
    from hcal.certificates import Certificate, Monitor, certify
    from hcal.certificates.drift import drift
    from hcal.evaluation import Evaluation, evaluate, reliability
    from hcal.evaluation.comparison import compare
    from hcal.evaluation.crossfit import cross_fit
    from hcal.integrations.export import export
    from hcal.integrations.onnx import export_onnx
    from hcal.io.class_names import drop_unlabelled
    from hcal.metrics import list_metrics, register_metric
    from hcal.metrics.clinical import clinical
    from hcal.numerics import softmax
    from hcal.objective.loss import HCalibrationLoss
    from hcal.reporting import report

# name -> where it lives. Nothing below is imported until it is used: `import hcal` stays light.
_LAZY = {
    "PooledCalibrator": "hcal.calibrators.pool",
    "HCalibrator": "hcal.calibrators.h",
    "MultilabelCalibrator": "hcal.calibrators.multilabel",
    "HCalibrationLoss": "hcal.objective.loss",
    "CalibrationWarning": "hcal.calibrators.base",
    "make_calibrator": "hcal.calibrators",
    "list_calibrators": "hcal.calibrators",
    "register": "hcal.calibrators",
    "list_metrics": "hcal.metrics",
    "register_metric": "hcal.metrics",
    "clinical": "hcal.metrics.clinical",
    "certify": "hcal.certificates",
    "Certificate": "hcal.certificates",
    "Monitor": "hcal.certificates",
    "drift": "hcal.certificates.drift",
    "compare": "hcal.evaluation.comparison",
    "cross_fit": "hcal.evaluation.crossfit",
    "evaluate": "hcal.evaluation",
    "Evaluation": "hcal.evaluation",
    "reliability": "hcal.evaluation",
    "fit_batches": "hcal.calibrators.batches",
    "drop_unlabelled": "hcal.io.class_names",
    "save": "hcal.calibrators.files",
    "load": "hcal.calibrators.files",
    "export": "hcal.integrations.export",
    "export_onnx": "hcal.integrations.onnx",
    "report": "hcal.reporting",
    "softmax": "hcal.numerics",
    # submodules
    "calibrators": "",
    "certificates": "",
    "integrations": "",
    "maps": "",
    "metrics": "",
    "objective": "",
    "reporting": "",
}

__all__ = [
    "CalibrationWarning",
    "Certificate",
    "Evaluation",
    "HCalibrationLoss",
    "HCalibrator",
    "Monitor",
    "MultilabelCalibrator",
    "PooledCalibrator",
    "__version__",
    "certify",
    "clinical",
    "compare",
    "cross_fit",
    "drift",
    "drop_unlabelled",
    "evaluate",
    "export",
    "export_onnx",
    "fit_batches",
    "integrations",
    "list_calibrators",
    "list_metrics",
    "load",
    "make_calibrator",
    "maps",
    "metrics",
    "objective",
    "register",
    "register_metric",
    "reliability",
    "report",
    "save",
    "softmax",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hcal' has no attribute {name!r}")
    home = _LAZY[name]
    value = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"hcal.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
