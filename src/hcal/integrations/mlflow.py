"""MLflow: the metrics, its HTML report, and the calibrator as a pyfunc model, in the active run."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

try:
    import mlflow
    from mlflow.pyfunc import PythonModel
except ImportError:
    raise ImportError("hcal.integrations.mlflow needs MLflow: pip install 'hcal[mlflow]'") from None

from hcal._version import __version__
from hcal.calibrators.base import Calibrator
from hcal.evaluation import Evaluation
from hcal.io import load, save

__all__ = ["CalibratorModel", "log_evaluation", "log_model"]


def log_evaluation(
    evaluation: Evaluation,
    *,
    report: str | None = None,
    calibrator: Calibrator | None = None,
    prefix: str = "hcal",
    step: int | None = None,
) -> None:
    """Log what was measured to the active MLflow run.

    Parameters
    ----------
    evaluation : Evaluation
        Of :func:`hcal.evaluate`. Every metric becomes ``{prefix}/{name}``; with intervals also
        ``{prefix}/{name}_low`` and ``_high``. A value that does not exist (NaN) is left out.
    report : str, optional
        An HTML page of :func:`hcal.report.build_report`: the artifact ``{prefix}/report.html``.
    calibrator : Calibrator, optional
        Logged as the model ``{prefix}-calibrator`` (:func:`log_model`).
    prefix : str
    step : int, optional
    """
    values = {
        f"{prefix}/{name}": value for name, value in _values(evaluation).items() if math.isfinite(value)
    }
    mlflow.log_metrics(values, step=step)
    mlflow.log_text(evaluation.to_json(), f"{prefix}/evaluation.json")
    if report is not None:
        mlflow.log_text(report, f"{prefix}/report.html")
    if calibrator is not None:
        log_model(calibrator, f"{prefix}-calibrator")


def _values(evaluation: Evaluation) -> dict[str, float]:
    found = {**evaluation.to_dict(), "mean_confidence": evaluation.mean_confidence}
    for name in evaluation.results:
        interval = evaluation.interval(name)
        if interval is not None:
            found |= {f"{name}_low": interval[0], f"{name}_high": interval[1]}
    if evaluation.test is not None:
        found["calibration_test_p"] = evaluation.test.p_value
    return found


class CalibratorModel(PythonModel):  # type: ignore[misc]
    """A calibrator as an MLflow model: scores in, probabilities out, from the file of ``hcal.save``."""

    def load_context(self, context: Any) -> None:
        """Read the calibrator from the model's artifact."""
        self.calibrator = load(context.artifacts["calibrator"])

    def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Return calibrated probabilities of shape (N, K)."""
        return np.asarray(self.calibrator.predict_proba(np.asarray(model_input)))


def log_model(calibrator: Calibrator, name: str = "hcal-calibrator") -> Any:
    """Log a fitted calibrator as a pyfunc model of the active run.

    Parameters
    ----------
    calibrator : Calibrator
    name : str

    Returns
    -------
    mlflow.models.model.ModelInfo
        ``mlflow.pyfunc.load_model(info.model_uri).predict(scores)`` gives its probabilities.
    """
    with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
        path = Path(folder) / "calibrator.hcal"
        save(calibrator, path)
        return mlflow.pyfunc.log_model(
            name=name,
            python_model=CalibratorModel(),
            artifacts={"calibrator": str(path)},
            pip_requirements=[f"hcal=={__version__}"],
        )
