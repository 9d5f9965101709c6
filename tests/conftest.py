"""Fixtures shared by all tests: the real logits and the golden values, where they are."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

# One conftest for all folders: tests import helpers from it by name, and two modules cannot share a name.
from bench_results import results

__all__ = ["results"]

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DATA = Path(os.environ.get("HCAL_DATA", SHARED / "data"))
GOLDEN = SHARED / "golden"
TASKS = (
    "agnews_gpt2",
    "cifar100_resnet110",
    "cifar100_resnet50",
    "cifar100_wideresnet_probs",
    "cifar10_resnet110",
    "cifar10_resnet50",
    "cifar10_resnet50_weak",
    "cifar10_wideresnet",
    "cifar10lt_resnet110",
    "pathmnist_resnet50",
)


def load_task(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return calibration logits and labels, then test logits and labels, of a shared task."""
    path = DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs the shared data: {path.name} is not in ../shared/data or HCAL_DATA")
    with np.load(path) as f:
        y_cal, y_test = f["y_cal"].astype(np.int64), f["y_test"].astype(np.int64)
        if "logits_cal" in f:
            return f["logits_cal"], y_cal, f["logits_test"], y_test
        tiny = np.finfo(f["probs_cal"].dtype).smallest_subnormal
        return (
            np.log(np.maximum(f["probs_cal"], tiny)),
            y_cal,
            np.log(np.maximum(f["probs_test"], tiny)),
            y_test,
        )


def pytest_configure(config: pytest.Config) -> None:
    """Without the extra "fast" the compiled modules cannot be imported; with it, failing to is an error."""
    if find_spec("numba") is None:
        config.option.doctest_ignore_import_errors = True


@pytest.fixture
def golden() -> Path:
    """The folder of golden values; skips where it is absent."""
    if not GOLDEN.exists():
        pytest.skip("needs ../shared/golden")
    return GOLDEN


def synthetic(
    n: int = 400, k: int = 4, *, scale: float = 2.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident logits: labels are drawn from softmax(z), the logits shown are scale·z."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * 1.5
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    y = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    return scale * z, y
