"""What several tests need: where things are, the real logits where they are, logits made up."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Collection, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from hcal.reporting.content import Content

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DATA = Path(os.environ.get("HCAL_DATA", SHARED / "data"))
GOLDEN = SHARED / "golden"


def load_task(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return calibration logits and labels, then test logits and labels, of a shared task."""
    path = DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs the shared data: {path.name} is not in ../shared/data or HCAL_DATA")
    with np.load(path) as f:
        y_cal = f["y_cal"].astype(np.int64)
        y_test = f["y_test"].astype(np.int64)
        if "logits_cal" in f:
            return f["logits_cal"], y_cal, f["logits_test"], y_test
        tiny = np.finfo(f["probs_cal"].dtype).smallest_subnormal
        logits_cal = np.log(np.maximum(f["probs_cal"], tiny))
        logits_test = np.log(np.maximum(f["probs_test"], tiny))
        return logits_cal, y_cal, logits_test, y_test


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


#: Smaller searches for the methods whose default one is long: one penalty in place of a grid.
QUICK: dict[str, dict[str, Any]] = {
    "ms": {"penalty": (0.1, 1e-3), "folds": 2, "max_iterations": 8},
    "dir": {"penalty": (0.1, 1e-3), "folds": 2, "max_iterations": 8},
    "beta": {"max_iterations": 40},
    "vs": {"max_iterations": 30},
    "diag": {"hidden": (2,), "max_iterations": 40},
    "dec": {"max_critics": 4},
    "gp": {"inducing": 4, "samples": 10, "max_iterations": 5},
    "h": {"maps": "piecewise-10", "epochs": 20},
}


def quick(name: str, **params: Any) -> Any:
    """Return an unfitted calibrator whose search is short, whatever the method."""
    import hcal

    parameters = hcal.make_calibrator(name).get_params()
    short = {k: v for k, v in QUICK.get(name, {}).items() if k in parameters}
    return hcal.make_calibrator(name, **(short | params))


def fit_quietly(cal: Any, scores: Any, y: Any, **kwargs: Any) -> Any:
    """Fit; a calibration warning is legal here, any other warning is an error."""
    import hcal

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        return cal.fit(scores, y, **kwargs)


def wait_for_release(missing: Collection[str], what: str) -> None:
    """Skip where a new method lacks what only a release needs; with HCAL_RELEASE set, fail.

    A method is one file: its tests are green from the first day. A release has all papers in order.
    """
    if missing and os.environ.get("HCAL_RELEASE"):
        pytest.fail(f"{', '.join(sorted(missing))}: {what}")
    if missing:
        pytest.skip(f"before a release: {', '.join(sorted(missing))}: {what}")


@cache
def measured_report(scale: float = 2.5, n: int = 4000) -> Content:
    """Logits that are over-confident (scale 2.5), calibrated (1) or under-confident (0.4), and a TS."""
    import hcal
    from hcal.reporting import Source, measure_report

    logits, y = synthetic(n, scale=scale, seed=1)
    calibrator = hcal.make_calibrator("ts").fit(*synthetic(4000, scale=scale))
    return measure_report(
        logits, y, calibrator, source=Source("task.npz", "test", "logits", "ab" * 32)
    )


def assert_as_before(lines: Iterable[str], expected: Path) -> None:
    """Compare lines with a file beside the test: words one by one, numbers within rounding."""
    number = re.compile(r"-?\d+\.?\d*(?:e[-+]\d+)?")
    lines_now = "\n".join(lines).splitlines()
    lines_before = expected.read_text("utf-8").splitlines()
    for now, before in zip(lines_now, lines_before, strict=True):
        assert number.sub("#", now) == number.sub("#", before)
        numbers = [float(x) for x in number.findall(now)]
        numbers_before = [float(x) for x in number.findall(before)]
        assert numbers == pytest.approx(numbers_before, rel=1e-4, abs=2e-6), before


def changeable_records(package: str) -> set[str]:
    """Return the dataclasses of a package that are not frozen: a reader could change them by mistake."""
    changeable = set()
    folder = ROOT / "src" / Path(*package.split("."))
    for file in folder.glob("*.py"):
        if file.stem.endswith("_triton"):
            continue  # needs a GPU
        module = import_module(f"{package}.{file.stem}")
        for name, value in vars(module).items():
            is_here = isinstance(value, type) and value.__module__ == module.__name__
            is_record = is_here and dataclasses.is_dataclass(value)
            if is_record and not value.__dataclass_params__.frozen:
                changeable.add(name)
    return changeable
