"""Use hcal where nothing but its own dependencies is installed: ``make fresh`` runs this in an empty
environment."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import numpy as np

import hcal

OPTIONAL = ("torch", "pandas", "pyarrow", "matplotlib", "numba", "onnx", "dask")


def use(k: int, folder: Path) -> str:
    """Fit, predict, save, load, evaluate, certify and report k classes; return a line about it."""
    rng = np.random.default_rng(k)
    truth = rng.normal(size=(4000, k)) * 1.5
    cumulated = hcal.softmax(truth).cumsum(axis=1)
    y = (cumulated > rng.random((4000, 1))).argmax(axis=1)
    scores = 2.5 * truth
    cal = hcal.PooledCalibrator().fit(scores[:2000], y[:2000])
    hcal.save(cal, folder / "model.hcal")
    loaded = hcal.load(folder / "model.hcal")
    probs = loaded.predict_proba(scores[2000:])
    assert np.array_equal(probs, cal.predict_proba(scores[2000:]))
    new_probs = hcal.softmax(scores[2000:])
    before = hcal.evaluate(new_probs, y[2000:], metrics=["ece_ew", "nll"]).values
    after = hcal.evaluate(probs, y[2000:], metrics=["ece_ew", "nll"]).values
    assert after["nll"] < before["nll"]
    assert str(hcal.certify(cal, scores[2000:], y[2000:]))
    hcal.report(cal, scores[2000:], y[2000:], folder / "report.html")
    assert (folder / "report.html").stat().st_size > 10_000
    return f"{k:2} classes: ECE {before['ece_ew']:.3f} -> {after['ece_ew']:.3f}"


if __name__ == "__main__":
    present = [name for name in OPTIONAL if importlib.util.find_spec(name)]
    print(f"hcal {hcal.__version__}, extras installed: {', '.join(present) or 'none'}")
    with tempfile.TemporaryDirectory() as folder:
        for classes in (2, 10):
            print(use(classes, Path(folder)))
