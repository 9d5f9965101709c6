"""How fast: one command, one table, every ratio from the same run.

    python benchmarks/speed.py                       # all sections, all sizes (about half an hour on 2 cores)
    python benchmarks/speed.py --sections a b --sizes 5000x100
    python benchmarks/speed.py --growth growth.png   # doubling N, K and the candidates

Times are medians of repeats: wall-clock seconds, and CPU seconds of all threads, which stay comparable on
a machine that is busy with other work; what is compared runs in turns. Memory is the peak growth of the
resident set while the call runs. The data are synthetic logits with the spread of a trained network.
OMP_NUM_THREADS=1 measures one thread; without it all cores are used, by torch too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import torch

import hcal
from hcal.cli.warm import warm_kernels
from hcal.integrations.torch import CalibrationHead
from hcal.maps import build_map
from hcal.objective.engines import loss_and_grad
from hcal.runtime.buffers import reused_buffers
from hcal.runtime.jit import compiled
from hcal.numerics import log_softmax, softmax
from hcal.runtime.threads import thread_count
from hcal.solvers.adam import threads_for

SIZES = {
    "5000x10": (5000, 10),
    "5000x100": (5000, 100),
    "4020x196": (4020, 196),
    "25000x1000": (25000, 1000),
    "100000x1000": (100_000, 1000),  # sections a, b and e: that memory stays bounded
}
_HUGE = 50_000_000
# CPU-seconds of the published code for one step of its ensemble-16 (shared/spec/method.md, section 5)
PUBLISHED_STEP = {"5000x10": 1.2, "5000x100": 91.0, "25000x1000": 63.0}
STEPS = ("piecewise-500", "monotonic-50", "ensemble-16")


@dataclass(frozen=True)
class Time:
    """Wall-clock and CPU seconds."""

    wall: float
    cpu: float


@dataclass
class Row:
    section: str
    size: str
    what: str
    time: Time
    against: str = ""
    base: Time | None = None
    extra_mb: float | None = None

    def show(self) -> str:
        memory = "" if self.extra_mb is None else f"{self.extra_mb:6.0f} MB"
        times = f"{self.time.wall:10.4f} s {self.time.cpu:10.4f} CPU-s"
        line = f"{self.section:3} {self.size:12} {self.what:28} {times}"
        if self.base is None:
            return f"{line} {memory:9}"
        wall, cpu = self.time.wall / self.base.wall, self.time.cpu / self.base.cpu
        return f"{line} {memory:9} {wall:8.3f} x {self.against} ({cpu:.3f} x in CPU)"


def problem(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits like a trained network's: one class stands out, labels follow a cooler softmax."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k), dtype=np.float32)
    z *= 2
    y = rng.integers(0, k, n)
    z[np.arange(n), y] += rng.normal(np.log(k) + 4, 4, n).astype(np.float32)
    return z, y


def once(call: Callable[[], object]) -> Time:
    """Seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Time(time.perf_counter() - wall, time.process_time() - cpu)


def timed(call: Callable[[], object], repeats: int) -> Time:
    """Median seconds of a call, after one that warms up."""
    return in_turns(repeats, call)[0]


def in_turns(
    repeats: int, *calls: Callable[[], object], of: Callable[[Iterator[float]], float] = statistics.median
) -> list[Time]:
    """Median seconds of calls that run one after the other, again and again: all see the same machine."""
    for call in calls:
        call()
    rounds = [[once(call) for call in calls] for _ in range(repeats)]
    return [
        Time(of(t.wall for t in column), of(t.cpu for t in column)) for column in zip(*rounds, strict=True)
    ]


def peak_mb(call: Callable[[], object]) -> float:
    """Peak growth of the resident set during a call, sampled every 2 ms."""
    process, done = psutil.Process(), threading.Event()
    base = process.memory_info().rss
    peak = base

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return (peak - base) / 1e6


def repeats_for(n: int, k: int) -> int:
    return 30 if n * k <= 100_000 else 15 if n * k <= 1_000_000 else 5 if n * k <= _HUGE else 3


def loss_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    logits, y = problem(n, k)
    probs = softmax(logits)
    tensor, repeats = torch.from_numpy(probs).reshape(-1), repeats_for(n, k)
    sort = timed(lambda: torch.sort(tensor), repeats)
    yield Row("a", size, "torch.sort", sort)
    # not in turns: the kernel would spend half a second on making huge pages of what torch.sort gave back
    seconds = timed(lambda: loss_and_grad(probs, y), repeats)
    memory = peak_mb(lambda: loss_and_grad(probs, y))
    yield Row("a", size, "loss + gradient", seconds, "torch.sort", sort, memory)
    tied = np.round(probs, 3)
    seconds = timed(lambda: loss_and_grad(tied, y), repeats)
    yield Row("a", size, "loss + gradient, with ties", seconds, "torch.sort", sort)
    if probs.nbytes > 1e7:  # below that the sampling and the allocator hide it
        print(f"    peak extra memory: {memory * 1e6 / probs.nbytes:.1f} float32 arrays of the input's size")


def step_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    logits, y = problem(n, k)
    x = torch.from_numpy(log_softmax(logits))
    labels = torch.from_numpy(y)
    objective = hcal.HCalibrationLoss()
    published = PUBLISHED_STEP.get(size)
    base = None if published is None else Time(published, published)
    for name in STEPS:
        new = build_map(name, x)
        optimiser = torch.optim.Adam(new.parameters(), lr=0.005)

        def step(new: torch.nn.Module = new, optimiser: torch.optim.Optimizer = optimiser) -> None:
            optimiser.zero_grad()
            objective(new(x), labels).backward()
            optimiser.step()

        with threads_for(x), reused_buffers():  # as training does
            seconds, softmaxed = in_turns(repeats_for(n, k), step, lambda: torch.softmax(x, dim=1))
        memory = peak_mb(step) if n * k > 1_000_000 else None
        yield Row("b", size, f"step of {name}", seconds, "published", base, memory)
        if name.startswith("ensemble"):
            each = Time(*(v / int(name.partition("-")[2]) for v in (seconds.wall, seconds.cpu)))
            yield Row("b", size, f"a member of {name}", each, "softmax", softmaxed)
    if n * k <= _HUGE:
        yield Row("b", size, "step of the default", default_step(logits, y), "published", base)


def default_step(logits: np.ndarray, y: np.ndarray) -> Time:
    """Value and gradient of the default's largest problem, stage 1, on all rows."""
    from hcal.calibrators.h.refine import _compress
    from hcal.calibrators.h.refine_problem import RefineProblem, problem_blocks, sum_blocks
    from hcal.calibrators.h.rows import fit_scaler

    weight = np.ones(len(y))
    seen, label, counts, feature = _compress(logits.astype(np.float64), y, 1.0)
    parts = problem_blocks(seen, label, counts, fit_scaler(feature, weight)(feature), weight)
    stage = RefineProblem(partial(sum_blocks, parts), float(len(y)), float((label > 0).sum()))
    theta = np.zeros(stage.size)
    return timed(lambda: stage(theta), repeats_for(*logits.shape))


def fit_rows(size: str) -> Iterator[Row]:
    from sklearn.calibration import _TemperatureScaling

    n, k = SIZES[size]
    if n * k > _HUGE:
        return
    logits, y = problem(n, k)
    wide = logits.astype(np.float64)
    measure = once if n * k > 1_000_000 else (lambda call: timed(call, 3))
    ts = measure(lambda: _TemperatureScaling().fit(wide, y))
    yield Row("c", size, "scikit-learn temperature", ts)
    seconds = measure(lambda: hcal.HCalibrator().fit(logits, y))
    memory = peak_mb(lambda: hcal.HCalibrator().fit(logits, y))
    yield Row("c", size, "HCalibrator().fit", seconds, "scikit-learn", ts, memory)
    if size in PUBLISHED_STEP:
        print(f"    the whole fit is {seconds.cpu / PUBLISHED_STEP[size]:.3f} steps of the published code")


def paper_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    if n * k > 1_000_000:  # hours on a CPU; benchmarks/speed_gpu.py has it
        return
    logits, y = problem(n, k)
    yield Row(
        "d", size, "12-candidate protocol", once(lambda: hcal.HCalibrator(protocol="paper").fit(logits, y))
    )


def predict_rows(size: str) -> Iterator[Row]:
    """The pool, fitted on a part of the rows: what a prediction costs does not depend on the fit."""
    n, k = SIZES[size]
    logits, y = problem(n, k)
    some, labels = logits[:3000], y[:3000]
    array = softmax(logits)
    probs = torch.from_numpy(array)
    cal, order, of_probs = (
        hcal.HCalibrator(**kind) for kind in ({}, {"preserve": "order"}, {"input": "probs"})
    )
    tensor, module = torch.from_numpy(logits), CalibrationHead(cal.fit(some, labels))
    other, whole = CalibrationHead(of_probs.fit(softmax(some), labels)), order.fit(some, labels)
    calls = {
        "predict_proba": lambda: cal.predict_proba(logits),
        'predict_proba, "order"': lambda: whole.predict_proba(logits),
        "CalibratedModule": lambda: module(tensor),
        "predict_proba, probs": lambda: of_probs.predict_proba(array),
        "CalibratedModule, probs": lambda: other(probs),
    }
    repeats = repeats_for(n, k)
    base, *measured = in_turns(repeats, lambda: softmax(logits), *calls.values())
    # not in turns: its threads go on turning, and its small pages cost whoever asks for huge ones next
    other_base = timed(lambda: torch.softmax(tensor, dim=1), repeats)
    for what, time_of in zip(calls, measured, strict=True):
        yield Row("e", size, what, time_of, "numpy's softmax", base)
        yield Row("e", size, what, time_of, "torch.softmax", other_base)
    if n * k > 1_000_000:
        beyond = peak_mb(calls["predict_proba"]) - logits.nbytes / 1e6
        print(f"    peak memory beyond the result: {max(beyond, 0.0):.0f} MB of {logits.nbytes / 1e6:.0f}")


def evaluate_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    if n * k > _HUGE:
        return
    logits, y = problem(n, k)
    probs = softmax(logits)
    yield Row("f", size, "hcal.evaluate", timed(lambda: hcal.evaluate(probs, y), 1))


def start_rows() -> Iterator[Row]:
    def process(*words: str, folder: str | None = None) -> Time:
        """Seconds of a fresh interpreter; its CPU time is the children's, not ours."""
        before, wall = os.times(), time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=folder)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return Time(time.perf_counter() - wall, cpu)

    for line in ("import hcal", "pass"):
        times = [process("-c", line) for _ in range(6)][1:]
        median = Time(*(statistics.median(v) for v in zip(*((t.wall, t.cpu) for t in times), strict=True)))
        yield Row("g", "", f"python -c '{line}'", median)
    with tempfile.TemporaryDirectory() as folder:
        yield Row("g", "", "hcal demo", process("-m", "hcal", "demo", folder=folder))


SECTIONS: dict[str, Callable[[str], Iterator[Row]]] = {
    "a": loss_rows,
    "b": step_rows,
    "c": fit_rows,
    "d": paper_rows,
    "e": predict_rows,
    "f": evaluate_rows,
}


def growth(path: Path) -> None:
    """Doubling N, K and the number of candidates: time against the first, in one figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    def loss(n: int, k: int) -> Callable[[], object]:
        logits, y = problem(n, k)
        probs = softmax(logits)
        return lambda: loss_and_grad(probs, y)

    def candidates(count: int) -> Callable[[], object]:
        from hcal.calibrators.h.paper import PaperSettings, fit_paper
        from hcal.solvers.adam import AdamSettings

        logits, y = problem(5000, 10)
        settings = PaperSettings(("nll",), maps=("monotonic-20",) * count, adam=AdamSettings(epochs=30))
        return lambda: fit_paper(logits, y, settings)

    series = {
        "N (K = 100)": ([5000, 10000, 20000, 40000], lambda n: loss(n, 100)),
        "K (N = 5000)": ([100, 200, 400, 800], lambda k: loss(5000, k)),
        "candidates": ([1, 2, 4, 8], candidates),
    }
    figure, axes = plt.subplots(figsize=(5, 4))
    for name, (values, measure) in series.items():
        seconds = [t.cpu for t in in_turns(9, *(measure(v) for v in values), of=min)]
        worst = max(b / a for a, b in pairwise(seconds))
        shown = ", ".join(f"{t:.3f}" for t in seconds)
        print(f"growth {name:14} {values}: {shown} CPU-s; a doubling costs x {worst:.2f} at most")
        axes.plot([v / values[0] for v in values], [s / seconds[0] for s in seconds], marker="o", label=name)
    axes.plot([1, 8], [1, 8], color="grey", linestyle=":", label="proportional")
    axes.set(xscale="log", yscale="log", xlabel="size, relative", ylabel="CPU time, relative")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.FixedLocator([1, 2, 4, 8]))
        axis.set_minor_locator(ticker.NullLocator())
        axis.set_major_formatter(ticker.FormatStrFormatter("%d"))
    axes.grid(color="0.92")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", nargs="+", default=[*SECTIONS, "g"], choices=[*SECTIONS, "g"])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--growth", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(thread_count())
    print(f"{thread_count()} threads of {os.cpu_count()}, torch {torch.__version__}, numpy {np.__version__}")
    if arguments.growth:
        growth(arguments.growth)
        return
    if compiled():
        warm_kernels()  # else the first calls are numpy's, until the kernels are worth compiling
    for section in arguments.sections:
        rows = start_rows() if section == "g" else (r for s in arguments.sizes for r in SECTIONS[section](s))
        for row in rows:
            print(row.show(), flush=True)


if __name__ == "__main__":
    main()
