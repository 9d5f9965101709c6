"""The runner: cells, failures, kill -9, parallel equals serial."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from hcal.bench.cell import Job, collapsed, paired_replicates, run_job
from hcal.bench.methods import Method, resolve_methods
from hcal.bench.run import Plan, run
from hcal.bench.store import Key, read_results
from hcal.bench.tasks import TaskRef, find_tasks
from hcal.metrics import METRICS, Sample
from hcal.numerics import softmax

METRICS_USED = ("ece_ew", "nll", "brier", "accuracy")


def tasks(*names: str) -> list[TaskRef]:
    return find_tasks([f"synthetic:{n}" for n in names])[0]


def plan(**changes: object) -> Plan:
    base: dict[str, object] = {
        "tasks": tasks("temperature-k3-n300", "calibrated-k3-n300"),
        "methods": resolve_methods("ts"),
        "metrics": METRICS_USED,
    }
    return Plan(**(base | changes))  # type: ignore[arg-type]


def test_a_cell_holds_what_was_measured() -> None:
    ref = tasks("temperature-k3-n400")[0]
    [before] = run_job(Job(ref, (Method("uncal", "uncal"),), 0, METRICS_USED))
    [after] = run_job(Job(ref, (Method("ts", "ts"),), 0, METRICS_USED, before=before.post, bootstrap=5))
    task = ref.load()
    shown = Sample(softmax(task.logits_test), task.y_test)
    for name in METRICS_USED:
        assert after.pre[name] == pytest.approx(METRICS[name].function(shown), rel=1e-12)
        assert len(after.notes[name]["boot"]) == 5
    assert after.post["nll"] < after.pre["nll"]
    assert after.post["truth_tv"] < before.post["truth_tv"]
    assert after.post["argmax_changes"] == 0
    assert after.post["collapsed"] == 0
    bins = after.notes["reliability"]
    count = np.array(bins["n"])
    ece = (count * np.abs(np.array(bins["conf"]) - np.array(bins["acc"]))).sum() / count.sum()
    assert ece == pytest.approx(after.post["ece_ew"], abs=2e-6)  # bins are stored with 6 digits


class Flattened:
    """Says next to nothing: confident by far less than it is right."""

    def fit(self, logits: np.ndarray, y: np.ndarray) -> Flattened:
        return self

    def predict_proba(self, logits: np.ndarray) -> np.ndarray:
        return softmax(0.1 * logits)


@pytest.mark.parametrize("metrics", [("ece_ew",), ("nll", "accuracy")])
def test_a_collapse_is_recognised_whatever_is_measured(metrics: tuple[str, ...]) -> None:
    flat = Method("flat", f"{__name__}:Flattened")
    [cell] = run_job(Job(tasks("calibrated-k3-n400")[0], (flat,), 0, metrics, before={}))
    assert cell.ok, cell.error
    assert cell.post["mean_confidence"] > 1.05 / 3
    assert cell.post["collapsed"] == 1
    assert {"nll", "accuracy"} & set(cell.post) == {"nll", "accuracy"} & set(metrics)


def test_bootstrap_is_paired_and_centred() -> None:
    task = tasks("temperature-k4-n800")[0].load()
    sample = Sample(softmax(task.logits_test), task.y_test)
    names = ("nll", "skce", "dkde_ce")
    one = paired_replicates(sample, names, 60)
    two = paired_replicates(sample, names, 60)
    for name in names:
        np.testing.assert_array_equal(one[name], two[name])
        value = METRICS[name].function(sample)
        assert abs(one[name].mean() - value) < 0.6 * one[name].std()
        assert one[name].std() > 0


def test_failure_is_recorded_and_not_fatal(tmp_path: Path) -> None:
    methods = [*resolve_methods("ts"), Method("broken", "ts", {"input": "nonsense"})]
    results = run(plan(methods=methods, jobs=2), tmp_path / "r.csv")
    assert {c.key.method for c in results.failures()} == {"broken"}
    assert "nonsense" in results.failures()[0].error
    assert results.methods == ["uncal", "ts"]
    # A second run has nothing to do; with retry it tries the failures again.
    size = (tmp_path / "r.csv").stat().st_size
    run(plan(methods=methods), tmp_path / "r.csv")
    assert (tmp_path / "r.csv").stat().st_size == size
    run(plan(methods=methods, retry_failed=True), tmp_path / "r.csv")
    assert (tmp_path / "r.csv").stat().st_size > size


def test_crash_and_timeout_are_recorded(tmp_path: Path) -> None:
    results = run(plan(tasks=tasks("temperature-k3-n300"), timeout_s=0.0), tmp_path / "r.csv")
    assert "longer than" in results.failures()[0].error
    assert any("the uncalibrated cell" in c.error for c in results.failures())


def test_progress_counts_every_cell(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    run(plan(), tmp_path / "r.csv", lambda done, total, _: seen.append((done, total)))
    assert seen == [(i, 4) for i in range(5)]


def test_more_metrics_later_fill_the_cells(tmp_path: Path) -> None:
    run(plan(metrics=("nll",)), tmp_path / "r.csv")
    results = run(plan(metrics=("nll", "ks")), tmp_path / "r.csv")
    assert set(results.metrics) == {"ks", "nll", "truth_tv"}
    assert np.isfinite(results.table("ks")).all()


def test_replicates_asked_for_later_fill_the_cells(tmp_path: Path) -> None:
    run(plan(metrics=("nll",)), tmp_path / "r.csv")
    results = run(plan(metrics=("nll",), bootstrap=4), tmp_path / "r.csv")
    assert {len(c.notes["nll"]["boot"]) for c in results.good.values()} == {4}
    seen: list[int] = []
    run(plan(metrics=("nll",), bootstrap=4), tmp_path / "r.csv", lambda done, *_: seen.append(done))
    assert seen == [4]  # nothing left to do


@pytest.mark.parametrize(("granted", "jobs", "each"), [("1", 1, 1), ("1", 4, 1)])
def test_threads_are_shared_out_of_those_that_were_granted(
    granted: str, jobs: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", granted)
    shared_out = plan(jobs=jobs)
    assert {shared_out.threads, *(job.threads for job in shared_out.all_jobs())} == {each}


def test_kill_9_half_way_then_continue_equals_one_run(tmp_path: Path) -> None:
    """The parent is killed without warning while cells are running; nothing is lost but those cells."""
    names = [f"temperature-k3-n300-s{i}" for i in range(6)]
    script = f"""
from hcal.bench.run import Plan, run
from hcal.bench.methods import resolve_methods
from hcal.bench.tasks import find_tasks
if __name__ == "__main__":
    found, _ = find_tasks({[f"synthetic:{n}" for n in names]!r})
    run(Plan(found, resolve_methods("ts"), {METRICS_USED!r}, jobs=2), {str(tmp_path / "killed.csv")!r})
"""
    (tmp_path / "child.py").write_text(script)
    child = subprocess.Popen([sys.executable, str(tmp_path / "child.py")], start_new_session=True)
    path = tmp_path / "killed.csv"
    deadline = time.monotonic() + 300  # a loaded machine takes its time to start a process
    while time.monotonic() < deadline and (not path.exists() or len(read_results(path).cells) < 3):
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    survived = set(read_results(path).cells)
    assert 3 <= len(survived) < 12
    whole = plan(tasks=tasks(*names))
    continued = run(whole, path)
    fresh = run(whole, tmp_path / "fresh.csv")
    assert set(continued.cells) == set(fresh.cells)
    assert survived <= set(continued.cells)
    for metric in METRICS_USED:
        np.testing.assert_array_equal(continued.table(metric), fresh.table(metric))


@pytest.mark.slow
def test_no_worker_outlives_a_runner_that_was_killed(tmp_path: Path) -> None:
    """The fork server, parent of the workers, lives as long as they do: it cannot tell them."""
    script = f"""
import os, time
from pathlib import Path
from hcal.bench import run as runner
from hcal.bench.methods import resolve_methods
from hcal.bench.tasks import find_tasks

def endless(job):  # imported by the worker with this file: it replaces the work there
    Path({str(tmp_path / "new")!r}).write_text(str(os.getpid()))
    Path({str(tmp_path / "new")!r}).rename({str(tmp_path / "pid")!r})
    time.sleep(600)
    yield

runner.run_job = endless
if __name__ == "__main__":
    found, _ = find_tasks(["synthetic:temperature-k3-n300"])
    runner.run(runner.Plan(found, resolve_methods("ts"), ("nll",)), {str(tmp_path / "r.csv")!r})
"""
    (tmp_path / "child.py").write_text(script)
    child = subprocess.Popen([sys.executable, str(tmp_path / "child.py")], start_new_session=True)
    try:
        assert _becomes_true((tmp_path / "pid").exists, 300), "no worker started"
        worker = int((tmp_path / "pid").read_text())
        os.kill(worker, 0)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert _becomes_true(lambda: not _alive(worker), 20), "the worker lives on"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _becomes_true(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_collapse_rule() -> None:
    good = {"nll": 0.9, "accuracy": 0.75, "mean_confidence": 0.74}
    assert not collapsed(good, {"nll": 1.0}, 100)
    assert collapsed(good | {"mean_confidence": 0.02}, {"nll": 1.0}, 100)
    assert collapsed(good | {"mean_confidence": 0.5, "nll": 1.2}, {"nll": 1.0}, 100)
    assert not collapsed(good | {"mean_confidence": 0.5, "nll": 1.05}, {"nll": 1.0}, 100)


def test_unknown_method_lists_valid_ones() -> None:
    with pytest.raises(ValueError, match="quick"):
        resolve_methods("nonsense")


def test_keys_name_the_cells() -> None:
    job = Job(tasks("temperature-k3")[0], tuple(resolve_methods("ts")), 2, ("nll",))
    assert job.keys == (Key("temperature-k3", "uncal", 2), Key("temperature-k3", "ts", 2))
