"""Every example runs and shows what it says it shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # run by `make test-all`

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: int):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments)


def test_sklearn_wrapper() -> None:
    result = run("sklearn_wrapper")
    assert result["calibrated"] < 0.5 * result["plain"]


def test_calarena() -> None:
    result = run("calarena")
    assert result["after"] < 0.9 * result["before"]


def test_segmentation() -> None:
    result = run("segmentation")
    assert result["ECE after"] < 0.25 * result["ECE before"]


def test_train_with_h_loss() -> None:
    result = run("train_with_h_loss")
    plain, helped = result["cross-entropy"], result["with h-calibration"]
    assert helped["ece_ew"] < 0.6 * plain["ece_ew"]
    assert helped["nll"] < plain["nll"]
    assert helped["accuracy"] > plain["accuracy"] - 0.02


# PyTorch's own exporter warns of its own code.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_network() -> None:
    result = run("onnx_network")
    assert result["largest difference"] <= 1e-6
    assert result["ECE after"] < 0.25 * result["ECE before"]


def test_large_parquet() -> None:
    pytest.importorskip("pyarrow")
    result = run("large_parquet", 30_000)
    assert result["rows"] == 30_000
    assert 0.6 < result["accuracy"] < 0.65
    assert result["nll"] < 1.0  # 1.39 is what knows nothing


def test_lm_eval_samples() -> None:
    result = run("lm_eval_samples")
    assert result["after"]["accuracy"] == result["before"]["accuracy"]
    assert result["after"]["ece_ew"] < 0.3 * result["before"]["ece_ew"]
    assert result["after"]["nll"] < 0.75 * result["before"]["nll"]


def test_trainer_metrics() -> None:
    result = run("trainer_metrics")
    assert result["after"]["accuracy"] == result["before"]["accuracy"]
    assert result["after"]["ece_ew"] < 0.5 * result["before"]["ece_ew"]


def test_torchmetrics_loop() -> None:
    result = run("torchmetrics_loop")
    assert result["ece"] == pytest.approx(result["ece of the whole"], rel=1e-6)  # float32 logits
    assert result["accuracy"] > 0.4


def test_lightgbm_imbalanced() -> None:
    pytest.importorskip("lightgbm")
    result = run("lightgbm_imbalanced")
    share = result["truth"]["share"]
    plain, calibrated = result["plain"], result["calibrated"]
    assert plain["mean P(fraud)"] > 2 * share
    # 3,000 rows hold about 75 frauds: their share has a standard error of 12 %.
    assert calibrated["mean P(fraud)"] == pytest.approx(share, rel=0.3)
    assert calibrated["nll"] < plain["nll"]
    assert calibrated["brier"] < plain["brier"]


def test_every_example_is_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {p.stem for p in EXAMPLES.glob("*.py")} <= tested
