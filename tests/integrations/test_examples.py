"""Every example runs and shows what it says it shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


def test_sklearn_wrapper() -> None:
    result = run("sklearn_wrapper")
    assert result["calibrated"] < 0.5 * result["plain"]


def test_multiple_choice() -> None:
    result = run("multiple_choice")
    assert result["after"]["accuracy"] == result["before"]["accuracy"]
    assert result["after"]["nll"] < 0.75 * result["before"]["nll"]
    assert abs(result["after"]["confidence"] - result["after"]["accuracy"]) < 0.03


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


def test_every_example_is_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {p.stem for p in EXAMPLES.glob("*.py")} <= tested
