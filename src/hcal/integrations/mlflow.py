"""MLflow: the metrics, its HTML report, and the calibrator as a pyfunc model, in the active run."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from hcal._version import __version__
from hcal.evaluation import Evaluation
from hcal.extras import load_extra
from hcal.fit_record import refuse_segments
from hcal.frames import AnyArray
from hcal.methods.base import Calibrator
from hcal.methods.files import load, save
from hcal.numerics import NumpyArray

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.models.model import ModelInfo

__all__ = ["CalibratorModel", "log_evaluation", "log_model"]

_FILE = "calibrator.hcal"


def _mlflow() -> ModuleType:
    load_extra("this integration", "mlflow.pyfunc", "mlflow")
    mlflow: ModuleType = load_extra("this integration", "mlflow", "mlflow")
    return mlflow


def log_evaluation(
    evaluation: Evaluation,
    *,
    report: str | None = None,
    calibrator: Calibrator | None = None,
    prefix: str = "hcal",
) -> None:
    """Log what was measured to the active MLflow run.

    Parameters
    ----------
    evaluation : Evaluation
        Of :func:`hcal.evaluate`. Every metric becomes ``{prefix}/{name}``; with intervals also
        ``{prefix}/{name}_low`` and ``_high``. A value that does not exist (NaN) is left out.
    report : str, optional
        An HTML page of :func:`hcal.reporting.build_report`: the artifact ``{prefix}/report.html``.
    calibrator : Calibrator, optional
        Logged as the model ``{prefix}-calibrator`` (:func:`log_model`).
    prefix : str

    Examples
    --------
    >>> import hcal, mlflow  # doctest: +SKIP
    >>> with mlflow.start_run():  # doctest: +SKIP
    ...     log_evaluation(hcal.evaluate(cal, scores, y), calibrator=cal)
    """
    mlflow = _mlflow()
    found = {**evaluation.values, "mean_confidence": evaluation.mean_confidence}
    for name in evaluation.results:
        low, high = evaluation.interval(name) or (math.nan, math.nan)
        found |= {f"{name}_low": low, f"{name}_high": high}
    if evaluation.test is not None:
        found["calibration_test_p"] = evaluation.test.p_value
    values = {f"{prefix}/{name}": value for name, value in found.items() if math.isfinite(value)}
    mlflow.log_metrics(values)
    mlflow.log_text(evaluation.to_json(), f"{prefix}/evaluation.json")
    if report is not None:
        mlflow.log_text(report, f"{prefix}/report.html")
    if calibrator is not None:
        log_model(calibrator, f"{prefix}-calibrator")


class CalibratorModel:
    """A calibrator as MLflow's pyfunc loads it: scores in, probabilities out."""

    def __init__(self, calibrator: Calibrator) -> None:
        self.calibrator = calibrator

    def predict(self, model_input: AnyArray, params: dict[str, object] | None = None) -> NumpyArray:
        """Return calibrated probabilities.

        Parameters
        ----------
        model_input : array-like of shape (N, K)
        params : dict, optional
            MLflow passes it; there are none.

        Returns
        -------
        array of shape (N, K)
        """
        if getattr(model_input, "ndim", 1) == 2 and model_input.shape[1] == 1:
            model_input = np.asarray(model_input)[:, 0]
        return np.asarray(self.calibrator.predict_proba(model_input))


def log_model(
    calibrator: Calibrator, name: str = "hcal-calibrator", *, one_column: bool = False
) -> ModelInfo:
    """Log a fitted calibrator as a pyfunc model of the active run: the file of ``hcal.save``, and its reader.

    Parameters
    ----------
    calibrator : Calibrator
    name : str
    one_column : bool
        Whether the rows have one score, of the second of two classes, and not one for each class.

    Returns
    -------
    mlflow.models.model.ModelInfo
        ``mlflow.pyfunc.load_model(info.model_uri).predict(scores)`` gives its probabilities.

    Examples
    --------
    >>> import mlflow  # doctest: +SKIP
    >>> with mlflow.start_run():  # doctest: +SKIP
    ...     info = log_model(cal)
    """
    mlflow = _mlflow()
    refuse_segments(calibrator, "a pyfunc model")
    with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
        path = Path(folder) / _FILE
        save(calibrator, path)
        info: ModelInfo = mlflow.pyfunc.log_model(
            name=name,
            loader_module=__name__,  # a module and a file: no pickle
            data_path=str(path),
            pip_requirements=[f"hcal=={__version__}"],
            signature=_signature(calibrator.n_classes_, one_column=one_column),
        )
    return info


def _signature(n_classes: int, *, one_column: bool) -> ModelSignature:
    """Return what goes in and comes out: columns without names, so that arrays and frames are both taken."""
    models = load_extra("this integration", "mlflow.models", "mlflow")
    types = load_extra("this integration", "mlflow.types", "mlflow")
    if one_column and n_classes != 2:
        raise ValueError(f"one_column is for two classes; this calibrator has {n_classes}")
    columns = [types.ColSpec("double")] * (1 if one_column else n_classes)
    probs = types.TensorSpec(np.dtype(np.float64), (-1, n_classes))
    signature: ModelSignature = models.ModelSignature(types.Schema(columns), types.Schema([probs]))
    return signature


def _load_pyfunc(path: str) -> CalibratorModel:
    """Read a logged model; MLflow calls it by this name."""
    return CalibratorModel(load(path))
