"""Time and memory of every method on an ImageNet-sized task; a refusal is a result, not a failure.

    python benchmarks/large_task.py --methods hb,iso --rows 25000 --classes 1000

Each method runs in a process of its own. Memory is the peak above what the process held once the data was
made (Linux only); labels are drawn from the softmax of softened logits, so there is something to calibrate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np


def make_task(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits in float32 with about 76 % accuracy at K = 1000, over-confident by a factor of 1.5."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, classes), dtype=np.float32)
    logits *= 1.3
    y = rng.integers(0, classes, rows)
    logits[np.arange(rows), y] += rng.normal(7, 3, rows).astype(np.float32)
    logits *= 1.5
    return logits, y


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def measure(method: str, params: dict[str, object], rows: int, classes: int) -> dict[str, object]:
    import hcal

    warnings.simplefilter("ignore")
    logits, y = make_task(rows, classes)
    test, y_test = make_task(2000, classes, seed=1)
    hcal.make_calibrator(method, **params)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    held = _memory("VmRSS")
    out: dict[str, object] = {"method": method, "rows": rows, "classes": classes}
    start, cpu = time.perf_counter(), time.process_time()
    try:
        cal = hcal.make_calibrator(method, **params).fit(logits, y)
    except (ValueError, MemoryError) as error:
        return out | {"refused": str(error), "fit_s": round(time.perf_counter() - start, 1)}
    out["fit_s"] = round(time.perf_counter() - start, 1)
    out["fit_cpu_s"] = round(time.process_time() - cpu, 1)
    out["extra_gb"] = round((_memory("VmHWM") - held) / 1e9, 2)
    start = time.perf_counter()
    p = cal.predict_proba(test)
    out["predict_2000_s"] = round(time.perf_counter() - start, 2)
    before = hcal.softmax(test.astype(np.float64))
    for label, q in (("before", before), ("after", p)):
        out[label] = {m: round(getattr(hcal.metrics, m)(q, y_test), 4) for m in ("ece_ew", "nll", "accuracy")}
    out["info"] = str(cal.info_)[:160]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="hb,iso", help="names, or all")
    parser.add_argument("--rows", type=int, default=25_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--params", default="{}", help="JSON")
    parser.add_argument("--limit", type=int, default=900, help="seconds a method")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, json.loads(args.params), args.rows, args.classes)))
        return
    import hcal

    for method in hcal.list_calibrators() if args.methods == "all" else args.methods.split(","):
        size = ["--rows", str(args.rows), "--classes", str(args.classes)]
        command = [sys.executable, __file__, "--one", method, "--params", args.params, *size]
        try:
            done = subprocess.run(command, timeout=args.limit, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            print(json.dumps({"method": method, "ran_past_s": args.limit}), flush=True)
            continue
        print(done.stdout.strip() or f"{method} failed: {done.stderr.strip()[-800:]}", flush=True)


if __name__ == "__main__":
    main()
