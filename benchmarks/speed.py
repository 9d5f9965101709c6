"""What users wait for, as ratios within one run: fits, predictions, the h loss, metrics, the start of the command.

    OMP_NUM_THREADS=1 python benchmarks/speed.py            # prints a table
    OMP_NUM_THREADS=1 python benchmarks/speed.py --write    # results/speed.csv and the table of docs/performance.md

Times are CPU seconds (the least of several calls), so that a busy machine changes them little. References: numpy's
softmax of the same array, scikit-learn's temperature scaling, torch's sort of all events.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from kernels import data

import hcal

SIZES = {"5000 x 10": (5000, 10), "5000 x 100": (5000, 100), "25000 x 1000": (25_000, 1000)}
Row = dict[str, object]


def cpu(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the least CPU seconds of a call, after one that is not counted."""
    if repeats > 1:
        work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def sklearn_temperature(scores: np.ndarray, y: np.ndarray) -> None:
    """Fit scikit-learn's temperature scaling on given scores, without its wrapper."""
    from sklearn.calibration import _TemperatureScaling

    _TemperatureScaling().fit(scores.astype(np.float64), y)


def of_size(size: str) -> list[Row]:
    """Measure one size."""
    n, k = SIZES[size]
    scores, y = data(n, k)
    repeats = 3 if n * k < 10**7 else 1
    rows: list[Row] = []

    def add(what: str, seconds: float, reference: str = "", of: float = 0.0) -> None:
        rows.append({"size": size, "what": what, "cpu_s": f"{seconds:.4g}", "reference": reference,
                     "ratio": f"{seconds / of:.3g}" if of else ""})  # fmt: skip

    often = 30 if n * k < 10**7 else 8
    softmax = cpu(lambda: hcal.softmax(scores), often)
    temperature = cpu(lambda: sklearn_temperature(scores, y), repeats)
    cal = hcal.PooledCalibrator().fit(scores, y)
    add(
        "pool: fit",
        cpu(lambda: hcal.PooledCalibrator().fit(scores, y), repeats),
        "scikit-learn's temperature",
        temperature,
    )
    add("pool: predict", cpu(lambda: cal.predict_proba(scores), often), "numpy's softmax", softmax)
    ts = hcal.make_calibrator("ts")
    add(
        "ts: fit",
        cpu(lambda: ts.fit(scores, y), repeats),
        "scikit-learn's temperature",
        temperature,
    )
    if n * k < 10**7:
        probs = cal.predict_proba(scores)
        add("evaluate, all metrics", cpu(lambda: hcal.evaluate(probs, y), 1))
    if find_spec("torch"):
        import torch

        p = torch.from_numpy(hcal.softmax(scores)).requires_grad_()
        labels = torch.from_numpy(y)
        loss = hcal.HCalibrationLoss()
        sort = cpu(lambda: torch.sort(p.detach().reshape(-1)), repeats)
        add(
            "h loss and gradient",
            cpu(lambda: loss(p, labels).backward(), repeats),
            "torch's sort of the events",
            sort,
        )
    return rows


def of_the_rest() -> list[Row]:
    """Measure a million rows of two classes, and the start of a process."""
    scores, y = data(1_000_000, 2)
    fit = cpu(lambda: hcal.PooledCalibrator().fit(scores, y), 1)
    rows: list[Row] = [{"size": "1000000 x 2", "what": "pool: fit", "cpu_s": f"{fit:.4g}"}]
    for line in ("import hcal", "import hcal.cli.app"):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", line], check=True)
        rows.append(
            {
                "size": "",
                "what": f"python -c '{line}'",
                "cpu_s": f"{time.perf_counter() - start:.3g}",
            }
        )
    return rows


def write(rows: list[Row]) -> None:
    """Write results/speed.csv, and the table of docs/performance.md from it."""
    root = Path(__file__).resolve().parents[1]
    with (root / "results" / "speed.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["version", "size", "what", "cpu_s", "reference", "ratio"])
        writer.writeheader()
        writer.writerows({"version": hcal.__version__, **row} for row in rows)
    lines = ["| size | what | CPU seconds | as a multiple of |", "|---|---|---|---|"]
    for row in rows:
        ratio = f"{row['ratio']} × {row['reference']}" if row.get("ratio") else ""
        lines.append(f"| {row['size']} | {row['what']} | {row['cpu_s']} | {ratio} |")
    page = root / "docs" / "performance.md"
    head, rest = page.read_text(encoding="utf-8").split("<!-- speed -->\n")
    table = "\n".join(lines)
    page.write_text(
        f"{head}<!-- speed -->\n{table}\n<!-- end -->{rest.split('<!-- end -->')[1]}",
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for size in options.sizes for row in of_size(size)] + of_the_rest()
    for row in rows:
        ratio = f"{row['ratio']} x {row['reference']}" if row.get("ratio") else ""
        print(f"{row['size']:14} {row['what']:28} {row['cpu_s']:>8} CPU-s  {ratio}")
    if options.write:
        write(rows)


if __name__ == "__main__":
    main()
