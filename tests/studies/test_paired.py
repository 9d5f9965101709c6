"""Paired intervals cover what they should and use the pairing."""

from __future__ import annotations

import numpy as np

from hcal.bench.store import Results
from studies.paired import mean_replicates, paired_on_task, paired_over_tasks


def test_paired_interval_uses_the_pairing(results: Results) -> None:
    interval = paired_on_task(results, "alpha", "h", "uncal", "ece_ew")
    assert interval.verdict == "lower"
    assert interval.low < interval.value < interval.high
    a, b = (mean_replicates(results, "alpha", m, "ece_ew") for m in ("h", "uncal"))
    assert a is not None
    assert b is not None
    assert interval.high - interval.low < np.quantile(a, 0.975) - np.quantile(
        a, 0.025
    )  # shared noise cancels
    assert paired_on_task(results, "beta", "h", "uncal", "ece_ew").verdict == "unknown"


def test_interval_over_tasks_covers_the_mean_difference() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 10):
        intervals = [paired_over_tasks(rng.normal(0.3, 1.0, size=n)) for _ in range(1500)]
        inside = np.mean([i.low <= 0.3 <= i.high for i in intervals])
        assert 0.93 <= inside <= 0.97  # 95 % nominal; 1500 draws have a standard error of 0.6 points
    assert paired_over_tasks(np.array([np.nan, 1.0])).value == 1.0
    assert paired_over_tasks(np.array([1.0, 1.1])).verdict == "unknown"
