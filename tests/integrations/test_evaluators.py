"""hcal inside the evaluators that people run: torchmetrics, Ignite, Hugging Face, MLflow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import hcal
from helpers import synthetic

LOGITS, Y = synthetic(600, 4)
P = hcal.softmax(LOGITS)


# -- torchmetrics ------------------------------------------------------------------------------------


def test_torchmetrics_in_parts_is_hcal_on_the_whole() -> None:
    from hcal.integrations.torchmetrics import CalibrationMetrics, CalibrationScore
    from hcal.metrics.streaming import NAMES

    all_metrics = CalibrationMetrics(4)
    one = CalibrationScore(4, "ece_ew", input="logits")
    sizes = {name: value.shape for name, value in all_metrics.metric_state.items()}
    for rows in np.array_split(np.arange(600), 7):
        all_metrics.update(torch.from_numpy(P[rows]), torch.from_numpy(Y[rows]))
        one.update(torch.from_numpy(LOGITS[rows]), torch.from_numpy(Y[rows]))
    assert {
        name: value.shape for name, value in all_metrics.metric_state.items()
    } == sizes  # constant size
    expected = hcal.metrics.StreamingMetrics(4).update(P, Y).compute()
    values = all_metrics.compute()
    assert set(values) == set(NAMES)
    for name, value in expected.items():
        assert float(values[name]) == pytest.approx(value, rel=1e-9), name
    expected = hcal.metrics.ece_ew(P, Y)
    assert float(one.compute()) == pytest.approx(expected, rel=1e-9)
    one.reset()
    of_batch = float(one(torch.from_numpy(LOGITS), torch.from_numpy(Y)))
    assert of_batch == pytest.approx(hcal.metrics.ece_ew(P, Y), rel=1e-9)


def test_torchmetrics_agrees_with_its_own_calibration_error() -> None:
    from torchmetrics.classification import MulticlassCalibrationError

    from hcal.integrations.torchmetrics import CalibrationScore

    theirs = MulticlassCalibrationError(4, n_bins=15)
    ours = CalibrationScore(4)
    for metric in (theirs, ours):
        metric.update(torch.from_numpy(P), torch.from_numpy(Y))
    assert float(ours.compute()) == pytest.approx(
        float(theirs.compute()), rel=1e-5
    )  # theirs is float32


def test_torchmetrics_states_add_up_as_across_processes() -> None:
    """What a reduction of two processes does: the sum of the states, entry by entry."""
    from hcal.integrations.torchmetrics import CalibrationMetrics

    a, b, both = (CalibrationMetrics(4, ["ece_ew", "nll", "cwece_a"]) for _ in range(3))
    a.update(torch.from_numpy(P[:200]), torch.from_numpy(Y[:200]))
    b.update(torch.from_numpy(P[200:]), torch.from_numpy(Y[200:]))
    for name, value in both.metric_state.items():
        assert both._reductions[name] is not None
        setattr(both, name, value + a.metric_state[name] + b.metric_state[name])
    both._update_count = 1
    expected = hcal.evaluate(P, Y, metrics=["ece_ew", "nll", "cwece_a"]).values
    values = {name: float(value) for name, value in both.compute().items()}
    assert values == pytest.approx(expected, rel=1e-9)


def test_torchmetrics_dense_ignored_binary_and_wrong_input() -> None:
    from torchmetrics import MetricCollection

    from hcal.integrations.torchmetrics import CalibrationMetrics, CalibrationScore

    images = torch.from_numpy(P[:480].reshape(8, 6, 10, 4))
    dense = images.movedim(-1, 1)
    target = torch.from_numpy(Y[:480].reshape(8, 6, 10).copy())
    target[0] = 255
    metric = CalibrationScore(4, "brier", ignore_index=255).half()
    metric.update(dense, target)
    expected = hcal.metrics.brier(P[60:480], Y[60:480])
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-9)
    binary = CalibrationScore(2, "nll")
    binary.update(torch.tensor([0.8, 0.3]), torch.tensor([1, 0]))
    expected = hcal.metrics.nll([0.8, 0.3], [1, 0])
    assert float(binary.compute()) == pytest.approx(expected)
    both = MetricCollection(
        {"a": CalibrationScore(4, "ece_ew"), "b": CalibrationScore(4, "accuracy")}
    )
    both.update(torch.from_numpy(P), torch.from_numpy(Y))
    expected = hcal.metrics.accuracy(P, Y)
    assert float(both.compute()["b"]) == expected
    with pytest.raises(ValueError, match="cannot be streamed"):
        CalibrationMetrics(4, ["skce"])
    with pytest.raises(ValueError, match="must sum to 1"):
        binary.update(torch.tensor([[3.0, 1.0]]), torch.tensor([1]))


@pytest.mark.filterwarnings("ignore")  # Lightning's own, of workers and loggers
def test_lightning_logs_the_whole_epoch(tmp_path) -> None:
    lightning = pytest.importorskip("lightning", reason="`make test-evaluators` installs it")
    from torch.utils.data import DataLoader, TensorDataset

    from hcal.integrations.torchmetrics import CalibrationMetrics, CalibrationScore

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4).double()
            self.ece = CalibrationScore(4, input="logits")
            self.every = CalibrationMetrics(4, ["nll", "brier"], input="logits")

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def validation_step(self, batch, _) -> None:
            self.ece.update(batch[0], batch[1])
            self.every.update(batch[0], batch[1])
            self.log("val_ece", self.ece)

        def on_validation_epoch_end(self) -> None:
            self.log_dict({f"val_{name}": value for name, value in self.every.compute().items()})
            self.every.reset()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = DataLoader(TensorDataset(torch.from_numpy(LOGITS), torch.from_numpy(Y)), batch_size=128)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        **quiet,
    )
    trainer.fit(Model(), rows, rows)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    expected = hcal.evaluate(P, Y, metrics=["ece_ew", "nll", "brier"]).values
    assert logged == pytest.approx(
        {f"val_{k.removesuffix('_ew')}": v for k, v in expected.items()}, rel=1e-6
    )


# -- Hugging Face ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["object", "pair", "tuple of outputs", "tokens"])
def test_compute_metrics_for_trainer(form: str) -> None:
    from hcal.integrations.evaluate import HEADLINE, compute_metrics

    predictions = LOGITS.astype(np.float32)
    labels = Y
    if form == "tokens":
        predictions = predictions.reshape(60, 10, 4)
        labels = Y.reshape(60, 10).copy()
        labels[:, -1] = -100
    kept = (labels != -100).reshape(-1)
    several_outputs = (predictions, np.zeros(3))
    if form == "pair":
        batch = (predictions, labels)
    elif form == "tuple of outputs":
        batch = SimpleNamespace(predictions=several_outputs, label_ids=labels)
    else:
        batch = SimpleNamespace(predictions=predictions, label_ids=labels)
    values = compute_metrics()(batch)
    scores = LOGITS.astype(np.float32)[kept]
    expected = hcal.evaluate(scores, Y[kept], metrics=HEADLINE, input="logits").values
    assert values == pytest.approx(expected)
    assert all(type(value) is float for value in values.values())


def test_compute_metrics_names_what_is_wrong() -> None:
    from hcal.integrations.evaluate import compute_metrics

    with pytest.raises(ValueError, match="unknown metric 'ece'"):
        compute_metrics(["ece"])
    with pytest.raises(ValueError, match="need labels of shape"):
        compute_metrics()((LOGITS, Y[:5]))


@pytest.mark.filterwarnings("ignore")  # of the other library's own dependencies
def test_a_module_of_hugging_face_evaluate(tmp_path) -> None:
    pytest.importorskip("evaluate")
    from hcal.integrations.evaluate import load

    module = load("ece_ew", cache_dir=str(tmp_path))
    ece = module.compute(predictions=P, references=Y)["ece_ew"]
    assert ece == pytest.approx(hcal.metrics.ece_ew(P, Y))
    batched = load("nll", input="logits", cache_dir=str(tmp_path))
    for rows in np.array_split(np.arange(600), 3):
        batched.add_batch(predictions=LOGITS[rows], references=Y[rows])
    expected = hcal.metrics.nll(P, Y)
    assert batched.compute()["nll"] == pytest.approx(expected)
    assert "ECE" in module.description
    with pytest.raises(ValueError, match="unknown metric"):
        load("nonsense")


# -- MLflow ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of the other library's own dependencies
def test_mlflow_gets_metrics_page_and_model(tmp_path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    from hcal.integrations.mlflow import log_evaluation, log_model

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    calibrator = hcal.make_calibrator("ts").fit(LOGITS, Y)
    test, labels = synthetic(300, 4, seed=1)
    probs = calibrator.predict_proba(test)
    names = ["ece_ew", "nll"]
    evaluation = hcal.evaluate(probs, labels, metrics=names, confidence=0.9, resamples=50)
    page = hcal.reporting.build_report(test, labels, calibrator)
    with mlflow.start_run() as run:
        log_evaluation(evaluation, report=page, calibrator=calibrator)
        info = log_model(calibrator)
    logged = mlflow.get_run(run.info.run_id).data.metrics
    assert logged["hcal/nll"] == pytest.approx(evaluation["nll"])
    assert logged["hcal/nll_low"] == pytest.approx(evaluation.interval("nll")[0])
    stored = mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/hcal/report.html")
    assert stored == page
    text = mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/hcal/evaluation.json")
    assert json.loads(text)["n"] == 300
    model = mlflow.pyfunc.load_model(info.model_uri)
    np.testing.assert_allclose(model.predict(test), calibrator.predict_proba(test), rtol=1e-12)
    # The signature takes arrays of any float width and frames, and refuses another number of columns.
    narrow = test.astype(np.float32)
    np.testing.assert_allclose(model.predict(narrow), calibrator.predict_proba(narrow), rtol=1e-5)
    frame = pd.DataFrame(test, columns=list("abcd"))
    np.testing.assert_allclose(model.predict(frame), calibrator.predict_proba(test), rtol=1e-12)
    assert len(info.signature.inputs) == 4
    assert info.signature.outputs.inputs[0].shape == (-1, 4)
    with pytest.raises(mlflow.exceptions.MlflowException, match="missing"):
        model.predict(test[:, :3])
    two = hcal.make_calibrator("platt").fit(test[:, 0], labels > 1)
    with mlflow.start_run():
        info = log_model(two, one_column=True)
    model = mlflow.pyfunc.load_model(info.model_uri)
    expected = two.predict_proba(test[:, 0])
    np.testing.assert_allclose(model.predict(test[:, :1]), expected, rtol=1e-12)


# -- without them ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("hcal.integrations.torchmetrics", "torchmetrics", "torchmetrics"),
        ("hcal.integrations.mlflow; hcal.integrations.mlflow.log_model(None)", "mlflow", "mlflow"),
        (
            "hcal.integrations.evaluate; hcal.integrations.evaluate.load('nll')",
            "evaluate",
            "evaluate",
        ),
        ("hcal.integrations.dask", "dask", "dask"),
        ("hcal.integrations.dask", "distributed", "dask"),
    ],
)
def test_a_missing_package_is_named_in_one_line(module: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert re.search(rf"pip install .*\[{extra}\]'", last)
