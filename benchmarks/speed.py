"""How fast: one command, one table, every ratio from the same run.

    python benchmarks/speed.py                       # all sections, all sizes (about ten minutes on 2 cores)
    python benchmarks/speed.py --sections a b --sizes 5000x100
    python benchmarks/speed.py --growth growth.png   # doubling N, K and the candidates

Times are medians of repeats: wall-clock seconds, and CPU seconds of all threads, which stay comparable on
a machine that is busy with other work. Memory is the peak growth of the resident set while the call runs. The
data are synthetic logits with the spread of a trained network.
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
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import torch

import hcal
from hcal.maps import build_map
from hcal.numerics import log_softmax, softmax
from hcal.objective.kernels import loss_and_grad
from hcal.objective.threads import thread_count
from hcal.solvers.adam import threads_for

SIZES = {"5000x10": (5000, 10), "5000x100": (5000, 100), "4020x196": (4020, 196), "25000x1000": (25000, 1000)}
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
    z = rng.normal(0, 2, (n, k)).astype(np.float32)
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
    call()
    times = [once(call) for _ in range(repeats)]
    return Time(*(statistics.median(v) for v in zip(*((t.wall, t.cpu) for t in times), strict=True)))


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
    return 30 if n * k <= 100_000 else 15 if n * k <= 1_000_000 else 2


def loss_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    logits, y = problem(n, k)
    probs = softmax(logits)
    tensor, repeats = torch.from_numpy(probs).reshape(-1), repeats_for(n, k)
    sort = timed(lambda: torch.sort(tensor), repeats)
    yield Row("a", size, "torch.sort", sort)
    seconds = timed(lambda: loss_and_grad(probs, y), repeats)
    memory = peak_mb(lambda: loss_and_grad(probs, y))
    yield Row("a", size, "loss + gradient", seconds, "torch.sort", sort, memory)
    if probs.nbytes > 1e7:  # below that the sampling and the allocator hide it
        print(f"    peak extra memory: {memory * 1e6 / probs.nbytes:.1f} float32 arrays of the input's size")


def step_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    logits, y = problem(n, k)
    x = torch.from_numpy(log_softmax(logits))
    labels = torch.from_numpy(y)
    objective = hcal.HCalibrationLoss()
    for name in STEPS:
        new = build_map(name, x)
        optimiser = torch.optim.Adam(new.parameters(), lr=0.005)

        def step(new: torch.nn.Module = new, optimiser: torch.optim.Optimizer = optimiser) -> None:
            optimiser.zero_grad()
            objective(new(x), labels).backward()
            optimiser.step()

        with threads_for(x):
            seconds = timed(step, repeats_for(n, k))
        published = PUBLISHED_STEP.get(size)
        base = None if published is None else Time(published, published)
        yield Row("b", size, f"step of {name}", seconds, "published", base)


def fit_rows(size: str) -> Iterator[Row]:
    from sklearn.calibration import _TemperatureScaling

    n, k = SIZES[size]
    logits, y = problem(n, k)
    wide = logits.astype(np.float64)
    measure = once if n * k > 1_000_000 else (lambda call: timed(call, 3))
    ts = measure(lambda: _TemperatureScaling().fit(wide, y))
    yield Row("c", size, "scikit-learn temperature", ts)
    seconds = measure(lambda: hcal.HCalibrator().fit(logits, y))
    memory = peak_mb(lambda: hcal.HCalibrator().fit(logits, y))
    yield Row("c", size, "HCalibrator().fit", seconds, "scikit-learn", ts, memory)


def paper_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    if n * k > 1_000_000:  # hours on a CPU; benchmarks/speed_gpu.py has it
        return
    logits, y = problem(n, k)
    yield Row(
        "d", size, "12-candidate protocol", once(lambda: hcal.HCalibrator(protocol="paper").fit(logits, y))
    )


def predict_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    logits, y = problem(n, k)
    rows = slice(0, min(n, 5000))
    cal = hcal.HCalibrator().fit(logits[rows], y[rows])
    repeats = repeats_for(n, k)
    base = timed(lambda: softmax(logits), repeats)
    seconds = timed(lambda: cal.predict_proba(logits), repeats)
    yield Row("e", size, "predict_proba", seconds, "softmax", base)


def evaluate_rows(size: str) -> Iterator[Row]:
    n, k = SIZES[size]
    logits, y = problem(n, k)
    probs = softmax(logits)
    yield Row("f", size, "hcal.evaluate", timed(lambda: hcal.evaluate(probs, y), 1))


def start_rows() -> Iterator[Row]:
    def command(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True)

    yield Row("g", "", "python -c 'import hcal'", timed(command("-c", "import hcal"), 5))
    yield Row("g", "", "python -c 'pass'", timed(command("-c", "pass"), 5))
    with tempfile.TemporaryDirectory() as folder:
        demo = [sys.executable, "-m", "hcal.cli", "demo"]
        run = once(lambda: subprocess.run(demo, check=True, capture_output=True, cwd=folder))
        yield Row("g", "", "hcal demo", run)


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

    def loss(n: int, k: int) -> float:
        logits, y = problem(n, k)
        probs = softmax(logits)
        return timed(lambda: loss_and_grad(probs, y), 7).cpu

    def candidates(count: int) -> float:
        from hcal.calibrators._paper import PaperSettings, fit_paper
        from hcal.solvers.adam import AdamSettings

        logits, y = problem(5000, 10)
        maps = ("piecewise-10", "monotonic-10", "piecewise-100", "monotonic-20") * 2
        settings = PaperSettings(("nll",), maps=maps[:count], adam=AdamSettings(epochs=30))
        return timed(lambda: fit_paper(logits, y, settings), 3).cpu

    series = {
        "N (K = 100)": ([5000, 10000, 20000, 40000], lambda n: loss(n, 100)),
        "K (N = 5000)": ([100, 200, 400, 800], lambda k: loss(5000, k)),
        "candidates": ([1, 2, 4, 8], candidates),
    }
    figure, axes = plt.subplots(figsize=(5, 4))
    for name, (values, measure) in series.items():
        seconds = [measure(v) for v in values]
        worst = max(b / a for a, b in pairwise(seconds))
        shown = ", ".join(f"{t:.3f}" for t in seconds)
        print(f"growth {name:14} {values}: {shown} CPU-s; a doubling costs x {worst:.2f} at most")
        axes.plot([v / values[0] for v in values], [s / seconds[0] for s in seconds], marker="o", label=name)
    axes.plot([1, 8], [1, 8], color="grey", linestyle=":", label="proportional")
    axes.set(xscale="log", yscale="log", xlabel="size, relative", ylabel="CPU time, relative")
    axes.legend()
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
    for section in arguments.sections:
        rows = start_rows() if section == "g" else (r for s in arguments.sizes for r in SECTIONS[section](s))
        for row in rows:
            print(row.show(), flush=True)


if __name__ == "__main__":
    main()
