"""The short form of ``make fuzz``: a few cases of the properties in every run, and the runner itself."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import properties
import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("number", "seed"), [*((n, 1) for n in range(30)), (540, 5)]
)  # the last was found once
def test_properties_hold(number: int, seed: int) -> None:
    counts, faults = properties.run_case(number, seed)
    assert sum(counts.values()) > 10
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("wrong", properties.ILLEGAL)
def test_what_is_illegal_is_refused_by_every_door(wrong: str) -> None:
    case = properties.draw_case(np.random.default_rng(3))
    for door in ("evaluate", "ece_ew", "skce", "nll"):
        properties.check_refusal(door, case, wrong)


def test_a_wrong_metric_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(properties.METRICS["ks"], function=lambda *a, **k: float("nan"))
    monkeypatch.setitem(properties.METRICS, "ks", broken)
    assert any(", ks: AssertionError: nan" in fault for fault in properties.run_case(0, seed=1)[1])


@pytest.mark.slow
def test_the_runner_runs_one_fuzzer_and_refuses_an_unknown_one() -> None:
    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(HERE), "--count", "1", "--seed", "1", "--only", name]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("properties")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "properties: 1 cases" in done.stdout
    assert "unknown fuzzer 'nonsense'; there are" in run("nonsense").stderr
