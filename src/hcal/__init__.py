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
from typing import TYPE_CHECKING

from hcal._version import __version__
from hcal.renamed import GONE

if TYPE_CHECKING:
    from hcal import h_calibration, integrations, maps, methods, metrics
    from hcal.certificates import Certificate, Monitor, certify
    from hcal.certificates.drift import drift
    from hcal.class_names import drop_unlabelled
    from hcal.decisions import abstain_below, decide, estimate, thresholds, validate
    from hcal.evaluation import Evaluation, evaluate, reliability
    from hcal.evaluation.comparison import compare
    from hcal.evaluation.crossfit import cross_fit
    from hcal.h_calibration.calibrator import HCalibrator
    from hcal.h_calibration.loss import HCalibrationLoss
    from hcal.integrations.export import export
    from hcal.integrations.onnx import export_onnx
    from hcal.methods import CalibrationWarning, list_calibrators, make_calibrator, register
    from hcal.methods.bbq import BayesianBinning
    from hcal.methods.beta import BetaCalibration
    from hcal.methods.cir import CenteredIsotonicRegression
    from hcal.methods.dec import DecisionCalibration
    from hcal.methods.diag import DiagonalOrderPreserving
    from hcal.methods.dir import DirichletCalibration
    from hcal.methods.ec import ExpectationConsistency
    from hcal.methods.enir import NearIsotonicEnsemble
    from hcal.methods.ets import EnsembleTemperatureScaling
    from hcal.methods.files import load, save
    from hcal.methods.gp import GaussianProcessCalibration
    from hcal.methods.hb import HistogramBinning
    from hcal.methods.imax import IMaxBinning
    from hcal.methods.iso import IsotonicRegression
    from hcal.methods.lece import LocallyEqualErrors
    from hcal.methods.ms import MatrixScaling
    from hcal.methods.multilabel import MultilabelCalibrator
    from hcal.methods.offset import RecalibrationInTheLarge
    from hcal.methods.platt import PlattScaling
    from hcal.methods.quadratic import QuadraticScaling
    from hcal.methods.scabin import ScalingBinning
    from hcal.methods.sctl import ScaledClassLosses
    from hcal.methods.smooth_spline import SmoothSpline
    from hcal.methods.sms import StructuredMatrixScaling
    from hcal.methods.softbin import SoftBinning
    from hcal.methods.spline import SplineCalibration
    from hcal.methods.svs import StructuredVectorScaling
    from hcal.methods.ts import TemperatureScaling
    from hcal.methods.ts_lece import TemperatureThenLocallyEqualErrors
    from hcal.methods.uncal import Uncalibrated
    from hcal.methods.venn_abers import VennAbers
    from hcal.methods.vs import VectorScaling
    from hcal.metrics import list_metrics, register_metric
    from hcal.metrics.clinical import clinical
    from hcal.numerics import softmax
    from hcal.operation import ScoreStore, apply, refit, require
    from hcal.pool import PooledCalibrator
    from hcal.reporting import report
    from hcal.segments import SegmentedCalibrator

__all__ = [
    "BayesianBinning",
    "BetaCalibration",
    "CalibrationWarning",
    "CenteredIsotonicRegression",
    "Certificate",
    "DecisionCalibration",
    "DiagonalOrderPreserving",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "Evaluation",
    "ExpectationConsistency",
    "GaussianProcessCalibration",
    "HCalibrationLoss",
    "HCalibrator",
    "HistogramBinning",
    "IMaxBinning",
    "IsotonicRegression",
    "LocallyEqualErrors",
    "MatrixScaling",
    "Monitor",
    "MultilabelCalibrator",
    "NearIsotonicEnsemble",
    "PlattScaling",
    "PooledCalibrator",
    "QuadraticScaling",
    "RecalibrationInTheLarge",
    "ScaledClassLosses",
    "ScalingBinning",
    "ScoreStore",
    "SegmentedCalibrator",
    "SmoothSpline",
    "SoftBinning",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "TemperatureThenLocallyEqualErrors",
    "Uncalibrated",
    "VectorScaling",
    "VennAbers",
    "__version__",
    "abstain_below",
    "apply",
    "certify",
    "clinical",
    "compare",
    "cross_fit",
    "decide",
    "drift",
    "drop_unlabelled",
    "estimate",
    "evaluate",
    "export",
    "export_onnx",
    "h_calibration",
    "integrations",
    "language_models",
    "list_calibrators",
    "list_metrics",
    "load",
    "make_calibrator",
    "maps",
    "methods",
    "metrics",
    "refit",
    "register",
    "register_metric",
    "reliability",
    "report",
    "require",
    "save",
    "softmax",
    "thresholds",
    "validate",
]

#: The module of each public name. A module is imported when its name is first used, so that `import hcal` is fast.
_HOMES = {
    "hcal": (
        "certificates",
        "h_calibration",
        "integrations",
        "language_models",
        "maps",
        "methods",
        "metrics",
        "reporting",
    ),
    "hcal.methods": ("CalibrationWarning", "list_calibrators", "make_calibrator", "register"),
    "hcal.methods.files": ("load", "save"),
    "hcal.methods.bbq": ("BayesianBinning",),
    "hcal.methods.beta": ("BetaCalibration",),
    "hcal.methods.cir": ("CenteredIsotonicRegression",),
    "hcal.methods.dec": ("DecisionCalibration",),
    "hcal.methods.diag": ("DiagonalOrderPreserving",),
    "hcal.methods.dir": ("DirichletCalibration",),
    "hcal.methods.ec": ("ExpectationConsistency",),
    "hcal.methods.enir": ("NearIsotonicEnsemble",),
    "hcal.methods.ets": ("EnsembleTemperatureScaling",),
    "hcal.methods.gp": ("GaussianProcessCalibration",),
    "hcal.methods.hb": ("HistogramBinning",),
    "hcal.methods.imax": ("IMaxBinning",),
    "hcal.methods.iso": ("IsotonicRegression",),
    "hcal.methods.lece": ("LocallyEqualErrors",),
    "hcal.methods.ms": ("MatrixScaling",),
    "hcal.methods.offset": ("RecalibrationInTheLarge",),
    "hcal.methods.platt": ("PlattScaling",),
    "hcal.methods.quadratic": ("QuadraticScaling",),
    "hcal.methods.scabin": ("ScalingBinning",),
    "hcal.methods.sctl": ("ScaledClassLosses",),
    "hcal.methods.smooth_spline": ("SmoothSpline",),
    "hcal.methods.sms": ("StructuredMatrixScaling",),
    "hcal.methods.softbin": ("SoftBinning",),
    "hcal.methods.spline": ("SplineCalibration",),
    "hcal.methods.svs": ("StructuredVectorScaling",),
    "hcal.methods.ts": ("TemperatureScaling",),
    "hcal.methods.ts_lece": ("TemperatureThenLocallyEqualErrors",),
    "hcal.methods.uncal": ("Uncalibrated",),
    "hcal.methods.venn_abers": ("VennAbers",),
    "hcal.methods.vs": ("VectorScaling",),
    "hcal.h_calibration.calibrator": ("HCalibrator",),
    "hcal.methods.multilabel": ("MultilabelCalibrator",),
    "hcal.pool": ("PooledCalibrator",),
    "hcal.certificates": ("Certificate", "Monitor", "certify"),
    "hcal.certificates.drift": ("drift",),
    "hcal.decisions": ("abstain_below", "decide", "estimate", "thresholds", "validate"),
    "hcal.evaluation": ("Evaluation", "evaluate", "reliability"),
    "hcal.evaluation.comparison": ("compare",),
    "hcal.evaluation.crossfit": ("cross_fit",),
    "hcal.integrations.export": ("export",),
    "hcal.integrations.onnx": ("export_onnx",),
    "hcal.class_names": ("drop_unlabelled",),
    "hcal.metrics": ("list_metrics", "register_metric"),
    "hcal.metrics.clinical": ("clinical",),
    "hcal.numerics": ("softmax",),
    "hcal.operation": ("ScoreStore", "apply", "refit", "require"),
    "hcal.h_calibration.loss": ("HCalibrationLoss",),
    "hcal.reporting": ("report",),
    "hcal.segments": ("SegmentedCalibrator",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in GONE:
        raise AttributeError(f"hcal.{name} is gone: since 0.4 it is {GONE[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'hcal' has no attribute {name!r}")
    if _HOME[name] == "hcal":
        return importlib.import_module(f"hcal.{name}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value  # so that the next use of the name does not come here
    return value


def __dir__() -> list[str]:
    return __all__
