"""Every example runs and shows what it says it shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # run by `make test-all`

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def halves_the_error(result: dict) -> bool:
    """The predictions stay, and the errors fall."""
    before = result["before"]
    after = result["after"]
    return after["accuracy"] == before["accuracy"] and after["ece_ew"] < 0.5 * before["ece_ew"]


def catches_fraud(result: dict) -> bool:
    """3,000 rows hold about 75 frauds: their share has a standard error of 12 %."""
    share = result["truth"]["share"]
    plain = result["plain"]
    calibrated = result["calibrated"]
    assert plain["mean P(fraud)"] > 2 * share
    assert calibrated["mean P(fraud)"] == pytest.approx(share, rel=0.3)
    return calibrated["nll"] < plain["nll"] and calibrated["brier"] < plain["brier"]


def trains_better(result: dict) -> bool:
    plain = result["cross-entropy"]
    helped = result["with h-calibration"]
    assert helped["accuracy"] > plain["accuracy"] - 0.02
    return helped["ece_ew"] < 0.6 * plain["ece_ew"] and helped["nll"] < plain["nll"]


SHOWN = {
    "sklearn_wrapper": lambda r: r["calibrated"] < 0.5 * r["plain"],
    "calarena": lambda r: r["after"] < 0.9 * r["before"],
    "segmentation": lambda r: r["ECE after"] < 0.25 * r["ECE before"],
    "train_with_h_loss": trains_better,
    "onnx_network": lambda r: (
        r["largest difference"] <= 1e-6 and r["ECE after"] < 0.25 * r["ECE before"]
    ),
    "large_parquet": lambda r: (
        r["rows"] == 30_000 and 0.6 < r["accuracy"] < 0.65 and r["nll"] < 1.0
    ),
    "lm_eval_samples": halves_the_error,
    "trainer_metrics": halves_the_error,
    "torchmetrics_loop": lambda r: (
        r["ece"] == pytest.approx(r["ece of the whole"], rel=1e-6) and r["accuracy"] > 0.4
    ),
    "lightgbm_imbalanced": catches_fraud,
}


# PyTorch's own exporter warns of its own code.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name: str) -> None:
    arguments = (30_000,) if name == "large_parquet" else ()
    assert SHOWN[name](runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments))


def test_every_example_is_tested() -> None:
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(SHOWN)
