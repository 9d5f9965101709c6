"""One cell of the benchmark: fit on the calibration part, measure on the test part, nothing else."""

from __future__ import annotations

import contextlib
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal._version import __version__
from hcal.bench.methods import Method
from hcal.bench.store import STATUS, Cell, Key
from hcal.bench.tasks import Task, TaskRef
from hcal.evaluation import collapse_reasons, reliability
from hcal.metrics import METRICS, Sample, nll
from hcal.metrics.resampling import replicates as resampled
from hcal.metrics.resampling import resample_blocks
from hcal.numerics import softmax

Probs = NDArray[np.float64]

# A loss curve in the results file has at most this many points: enough to draw, cheap to keep.
_CURVE_POINTS = 60


@dataclass(frozen=True)
class Job:
    """What one worker process does: methods that share a fit, on one task, with one seed."""

    task: TaskRef
    methods: tuple[Method, ...]
    seed: int
    metrics: tuple[str, ...]
    #: Replicates of the test rows; replicate b draws the same rows for every method of a task.
    bootstrap: int = 0
    #: The metrics of the uncalibrated test part; None for ``uncal`` itself.
    before: dict[str, float] | None = None
    threads: int = 1
    device: str | None = None  # of torch, for the methods that take one

    @property
    def keys(self) -> tuple[Key, ...]:
        """The cells this job fills."""
        return tuple(Key(self.task.name, m.name, self.seed) for m in self.methods)


def run_job(job: Job) -> Iterator[Cell]:
    """Fit and measure; every failure becomes a cell that says so.

    >>> ref = TaskRef("a", "synthetic", "temperature-k3-n200")
    >>> [cell] = run_job(Job(ref, (Method("ts", "ts"),), 0, ("nll",), before={"nll": 1.0}))
    >>> cell.ok, cell.post["argmax_changes"]
    (True, 0.0)
    """
    trained = _Trained()
    for method, key in zip(job.methods, job.keys, strict=True):
        start = time.perf_counter()
        status: dict[str, Any]
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                cell = _measure(job, method, key, trained)
            status = {"status": "ok", "warnings": sorted({str(w.message)[:300] for w in caught})}
        except Exception as error:
            cell = failed_cell(key, f"{type(error).__name__}: {error}")
            status = cell.notes[STATUS] | {"trace": traceback.format_exc(limit=-2)[-800:]}
        status |= {
            "hcal": __version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "cell_s": round(time.perf_counter() - start, 2),
        }
        cell.notes[STATUS] = status
        yield cell


def failed_cell(key: Key, error: str) -> Cell:
    """Return the record of a cell that gave no result.

    >>> failed_cell(Key("a", "ts", 0), "killed").error
    'killed'
    """
    return Cell(key, notes={STATUS: {"status": "failed", "error": error[:500]}})


@dataclass
class _Trained:
    """A fit that the next methods of the job may share, and what it cost."""

    calibrator: Any = None
    facts: dict[str, float] | None = None


def _measure(job: Job, method: Method, key: Key, trained: _Trained) -> Cell:
    task = job.task.load()
    logits_test = np.asarray(task.logits_test, dtype=np.float64)
    calibrator, probs, facts = _fit(task, method, job, logits_test, trained)
    sample = Sample(probs, task.y_test)
    cell = Cell(key, post=measure_all(sample, job.metrics) | facts)
    if task.true_test is not None:
        cell.post["truth_tv"] = float(0.5 * np.abs(probs - task.true_test).sum(axis=1).mean())
    before = cell.post if job.before is None else job.before
    cell.pre = {name: before[name] for name in cell.post if name in before and name not in facts}
    cell.post["argmax_changes"] = float((probs.argmax(axis=1) != logits_test.argmax(axis=1)).sum())
    cell.post["order_inversions"] = float(inverted_rows(logits_test, probs))
    # The rule looks at scores that may not be among the metrics asked for.
    after = measure_all(sample, ("accuracy", "nll"))
    raw = before if "nll" in before else {"nll": nll(softmax(logits_test), task.y_test)}
    cell.post["collapsed"] = float(collapsed(after, raw, task.n_classes))
    cell.notes["reliability"] = reliability_bins(sample)
    _note_fit(cell, calibrator)
    if job.bootstrap:
        for name, values in paired_replicates(sample, job.metrics, job.bootstrap).items():
            cell.notes[name] = {"boot": [float(f"{v:.5g}") for v in values]}
    return cell


def _fit(
    task: Task, method: Method, job: Job, logits_test: Probs, trained: _Trained
) -> tuple[Any, Probs, dict[str, float]]:
    """Return the fitted calibrator, its test probabilities, and what both cost."""
    memory = PeakMemory()
    shared = method.group and hasattr(trained.calibrator, "selected")
    if shared:
        calibrator = trained.calibrator.selected(method.params["select"])
        facts = dict(trained.facts or {})
    else:
        calibrator = method.build(job.seed, job.device)
        logits_cal = np.asarray(task.logits_cal, dtype=np.float64)
        clock, cpu = time.perf_counter(), time.process_time()
        calibrator.fit(logits_cal, task.y_cal)
        facts = {"fit_s": time.perf_counter() - clock, "fit_cpu_s": time.process_time() - cpu}
        trained.calibrator = calibrator
    clock = time.perf_counter()
    probs = np.asarray(calibrator.predict_proba(logits_test), dtype=np.float64)
    facts["predict_s"] = time.perf_counter() - clock
    facts["peak_mb"] = max(memory.peak_mb(), facts.get("peak_mb", 0.0))
    trained.facts = facts
    return calibrator, probs, facts


def _note_fit(cell: Cell, calibrator: Any) -> None:
    """Keep what the calibrator says of its own fit: convergence, choice, loss curve."""
    info = dict(getattr(calibrator, "info_", {}))
    curve = info.get("loss_curve")
    if isinstance(curve, Sequence) and len(curve) > 1:
        steps = np.unique(np.linspace(0, len(curve) - 1, _CURVE_POINTS).astype(int))
        cell.notes["loss_curve"] = {
            "step": steps.tolist(),
            "loss": [float(f"{float(curve[i]):.6g}") for i in steps],
        }
    chosen = {k: v for k, v in info.items() if isinstance(v, str | int | float | bool)}
    if chosen:
        cell.notes["info"] = chosen


def measure_all(sample: Sample, metrics: Sequence[str]) -> dict[str, float]:
    """Return the metrics and the mean confidence of a sample.

    >>> measure_all(Sample([[0.2, 0.8]], [1]), ["accuracy"])
    {'accuracy': 1.0, 'mean_confidence': 0.8}
    """
    out = {name: float(METRICS[name].function(sample)) for name in metrics}
    out["mean_confidence"] = float(sample.data.conf.mean())
    return out


def paired_replicates(
    sample: Sample, metrics: Sequence[str], replicates: int
) -> dict[str, NDArray[np.float64]]:
    """Return replicates (R,) of every metric under resampled test rows.

    Replicate b draws the same rows whatever the predictor, so two methods are compared replicate by
    replicate (a paired bootstrap). A metric that costs a pass over all pairs has first-order replicates: each
    row's share of the statistic is computed once and resampled.

    >>> paired_replicates(Sample([[0.2, 0.8], [0.7, 0.3]], [1, 1]), ["accuracy"], 3)["accuracy"].shape
    (3,)
    """
    rng = np.random.default_rng(sample.n)
    share = np.full(sample.n, 1 / sample.n)
    drawn = (rng.multinomial(sample.n, share, size) for size in resample_blocks(replicates, sample.n))
    parts = [resampled(sample, metrics, w.astype(np.float64), first_order=True) for w in drawn]
    return {name: np.concatenate([part[name] for part in parts]) for name in metrics}


def collapsed(post: dict[str, float], before: dict[str, float], n_classes: int) -> bool:
    """Return whether a predictor gave up its confidence: the rule of the public contract.

    >>> collapsed({"nll": 4.2, "accuracy": 0.75, "mean_confidence": 0.016}, {"nll": 1.0}, 100)
    True
    """
    scores = {name: post[name] for name in ("accuracy", "mean_confidence", "nll")}
    return bool(collapse_reasons(**scores, n_classes=n_classes, nll_before=before.get("nll")))


def inverted_rows(logits: Probs, probs: Probs) -> int:
    """Return in how many rows some class overtakes another that had the larger logit; ties are no inversion.

    Shapes: logits, probs (N, K).

    >>> inverted_rows(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.6, 0.4], [0.5, 0.5]]))
    1
    """
    order = np.argsort(logits, axis=1, kind="stable")
    z, p = np.take_along_axis(logits, order, axis=1), np.take_along_axis(probs, order, axis=1)
    # Ascending logits: an inversion is a probability below the largest one at a strictly smaller logit.
    highest = np.maximum.accumulate(p, axis=1)
    smaller = np.concatenate([np.full((len(z), 1), -np.inf), highest[:, :-1]], axis=1)
    for k in range(1, z.shape[1]):  # among equal logits the bound is that of the first of them
        tied = z[:, k] == z[:, k - 1]
        smaller[tied, k] = smaller[tied, k - 1]
    return int((p < smaller).any(axis=1).sum())


def reliability_bins(sample: Sample) -> dict[str, list[float]]:
    """Return count, mean confidence and accuracy of 15 equal-width bins (lo, hi]; 0 where a bin is empty.

    >>> [values[11] for values in reliability_bins(Sample([[0.25, 0.75]], [1])).values()]
    [1, 0.75, 1.0]
    """
    curve = reliability(sample, level="top-label")[0]
    means = (np.nan_to_num(curve.predicted), np.nan_to_num(curve.observed))
    conf, acc = (np.round(mean, 6).tolist() for mean in means)
    return {"n": curve.weight.astype(int).tolist(), "conf": conf, "acc": acc}


class PeakMemory:
    """The high-water mark of this process above where it stood when the object was made.

    >>> memory = PeakMemory()
    >>> block = np.ones(10_000_000)
    >>> memory.peak_mb() > 50
    True
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):  # Linux: reset, so that loading the data does not hide the fit
            Path("/proc/self/clear_refs").write_text("5")
        self._start = self._mark()

    @staticmethod
    def _mark() -> float:
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(float(x.split()[1]) / 1024 for x in lines if x.startswith("VmHWM"))
        except (OSError, StopIteration):
            import resource

            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def peak_mb(self) -> float:
        """Return the peak since the start, in MiB."""
        return max(0.0, self._mark() - self._start)
