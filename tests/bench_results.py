"""Made-up results with known numbers, for tables, figures and pages."""

from __future__ import annotations

import numpy as np
import pytest

from hcal.bench.catalog import GROUPS
from hcal.bench.store import Cell, Key, Results

METHODS = ("uncal", "ts", "iso", "h_top", "h_class", "h_nll", "h")
TASKS = ("alpha", "beta", "gamma")


@pytest.fixture
def results() -> Results:
    """Three tasks, seven methods, two seeds of the seeded ones; h_class is collapsed on gamma."""
    rng = np.random.default_rng(0)
    metrics = [m for group in GROUPS.values() for m in group]
    cells = []
    for task in TASKS:
        before = dict(zip(metrics, rng.uniform(0.05, 0.2, len(metrics)), strict=True))
        before |= {"nll": 1.0, "accuracy": 0.9, "mean_confidence": 0.97}
        shift = rng.normal(size=40) * 0.002
        for i, method in enumerate(METHODS):
            for seed in range(2 if method.startswith("h") else 1):
                post = {m: v * (1 - 0.1 * i) * rng.uniform(0.9, 1.1) for m, v in before.items()}
                if method == "uncal":
                    post = dict(before)
                post |= {"accuracy": 0.9 - 0.01 * (method == "iso"), "mean_confidence": 0.9}
                bad = method == "h_class" and task == "gamma"
                post["mean_confidence"] = 0.02 if bad else 0.9
                facts = {"fit_s": 0.5 * i, "predict_s": 0.1, "peak_mb": 10.0, "collapsed": float(bad)}
                facts["argmax_changes"] = 7.0 if method == "iso" else 0.0
                noise = shift + rng.normal(size=40) * 0.0005
                notes: dict[str, object] = {"status": {"status": "ok"}}
                if task == "alpha":
                    notes |= {m: {"boot": (post[m] + noise).tolist()} for m in ("ece_s1", "ece_ew")}
                count = rng.integers(1, 100, 15)
                notes["reliability"] = {
                    "n": count.tolist(),
                    "conf": ((np.arange(15) + 0.5) / 15).round(6).tolist(),
                    "acc": rng.uniform(size=15).round(6).tolist(),
                }
                if method.startswith("h"):
                    notes["loss_curve"] = {"step": [0, 10, 20], "loss": [3.0, 2.0, 1.5 + seed]}
                cells.append(Cell(Key(task, method, seed), dict(before), post | facts, notes))
    cells.append(Cell(Key("alpha", "gp", 0), notes={"status": {"status": "failed", "error": "no memory"}}))
    return Results(cells)
