"""Cost of every metric of hcal.evaluate: seconds and extra memory, at 10000 x 10 and 25000 x 1000.

Run on an otherwise idle machine:  python benchmarks/metrics.py [--sizes 10000x10,25000x1000], then --write
On a machine with a GPU:           python benchmarks/metrics.py --cuda
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import psutil

import hcal
from hcal.metrics import METRICS, Sample

SLOW = ("skce", "dkde_ce")
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "metrics_cost.json"
PAGE = HERE.parent / "docs" / "metrics.md"


class Peak:
    """Largest resident memory beyond the start, sampled every 5 ms."""

    def __enter__(self) -> Peak:
        self.process = psutil.Process()
        self.start = self.top = self.process.memory_info().rss
        self.running = True
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while self.running:
            self.top = max(self.top, self.process.memory_info().rss)
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self.running = False
        self.thread.join()
        self.extra = (self.top - self.start) / 2**20


def draw(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident float32 predictions of labels drawn from softmax(z)."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, k), scale=2.0)
    z[np.arange(n), rng.integers(0, k, n)] += 4 + np.log(k)
    p = hcal.softmax(z)
    y = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    return hcal.softmax((1.3 * z).astype(np.float32)), y


def one_size(n: int, k: int) -> dict[str, object]:
    """Do what hcal.evaluate does, metric by metric: check once, then each metric on the shared sample."""
    p, y = draw(n, k)
    rows: dict[str, dict[str, float]] = {}
    with Peak() as whole:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        s = Sample(p, y)
        for name, metric in METRICS.items():
            start, cpu = time.perf_counter(), time.process_time()
            with Peak() as peak:
                value = metric.function(s)
            rows[name] = {
                "value": value,
                "seconds": time.perf_counter() - start,
                "cpu_seconds": time.process_time() - cpu,
                "extra_mb": peak.extra,
            }
            seconds = rows[name]["cpu_seconds"]
            print(f"{n}x{k} {name:10s} {seconds:8.3f} CPU s {peak.extra:8.0f} MB  {value:.6g}", flush=True)
    total = {
        "n": n,
        "k": k,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu_begin,
        "extra_mb": whole.extra,
        "all_but_slow_cpu_seconds": sum(r["cpu_seconds"] for m, r in rows.items() if m not in SLOW),
    }
    print({key: round(value, 2) for key, value in total.items()}, flush=True)
    return total | {"metrics": rows}


def on_cuda(n: int, k: int) -> None:
    """Time every metric on a CUDA tensor, and print how far it is from numpy's answer in float64."""
    import torch

    p, y = draw(n, k)
    p = p.astype(np.float64)
    p /= p.sum(axis=1, keepdims=True)
    device, host = Sample(torch.from_numpy(p).cuda(), torch.from_numpy(y).cuda()), Sample(p, y)
    worst = 0.0
    for name, metric in METRICS.items():
        torch.cuda.synchronize()
        start = time.perf_counter()
        value = metric.function(device)
        seconds = time.perf_counter() - start
        gap = abs(value - metric.function(host)) / max(abs(value), 1e-12) if n * k < 10**6 else float("nan")
        worst = max(worst, gap)
        print(f"cuda {n}x{k} {name:10s} {seconds:8.3f} s  {value:.6g}  relative gap {gap:.1e}", flush=True)
    print(f"cuda {n}x{k}: largest relative gap to numpy {worst:.1e}", flush=True)


def table() -> str:
    """Return the stored figures as markdown."""
    content = json.loads(RESULTS.read_text())
    sizes = content["sizes"]
    head = " | ".join(f"{s['n']} x {s['k']}: CPU s | MB" for s in sizes)
    lines = [f"| metric | {head} |", "|---" * (1 + 2 * len(sizes)) + "|"]
    # a metric that came after the measurement has no row until it is repeated
    for name in (n for n in METRICS if all(n in s["metrics"] for s in sizes)):
        rows = [s["metrics"][name] for s in sizes]
        lines.append(
            f"| {name} | " + " | ".join(f"{r['cpu_seconds']:.3f} | {r['extra_mb']:.0f}" for r in rows) + " |"
        )
    last = " | ".join(f"{s['cpu_seconds']:.1f} | {s['extra_mb']:.0f}" for s in sizes)
    quick = " | ".join(f"{s['all_but_slow_cpu_seconds']:.1f} | " for s in sizes)
    machine = content["machine"]
    return "\n".join(
        [
            *lines,
            f"| all but skce and dkde_ce | {quick} |",
            f"| **all** | {last} |",
            "",
            f"float32 input, {machine['cores']} cores, numpy {machine['numpy']}; CPU seconds of all threads "
            f"together (load average {machine['load']:.1f}: other work ran beside it). Each row is the cost "
            "on top of those above it: one sort is shared. MB: resident memory beyond that at the start.",
        ]
    )


def write_page() -> None:
    begin, end = "<!-- cost: begin -->", "<!-- cost: end -->"
    text = PAGE.read_text()
    before, after = text.split(begin)[0], text.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n{table()}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="only rewrite the table of docs/metrics.md")
    parser.add_argument("--sizes", default="10000x10,25000x1000")
    parser.add_argument("--cuda", action="store_true", help="compare with and time a CUDA device instead")
    options = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",")]
    if options.write:
        write_page()
        return
    if options.cuda:
        for n, k in sizes:
            on_cuda(n, k)
        return
    hcal.evaluate(*draw(200, 3))  # imports and thread pools are not part of the cost
    found = [one_size(n, k) for n, k in sizes]
    machine = {"cores": len(os.sched_getaffinity(0)), "numpy": np.__version__, "load": os.getloadavg()[0]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine, "sizes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
