"""How time and memory grow with rows and classes, beside scikit-learn, probmetrics and netcal, in one run.

    python -m venv peers && peers/bin/pip install torch==2.13.0 probmetrics netcal pandas '.[fast,plot]'
    peers/bin/python benchmarks/growth.py            # results/growth.csv and docs/assets/growth.svg

Every number is of a process of its own: CPU seconds of one call after a call on 200 rows (imports, compiled code), and
the peak of its memory above what it held before the call. A call may take a minute; longer ones are left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ROWS = [(n, 10) for n in (1_000, 10_000, 100_000, 1_000_000)]
CLASSES = [(10_000, k) for k in (2, 10, 100, 1_000)]
LIMIT = 60
PACKAGES = {
    "fit": (
        "hcal pool",
        "hcal ts",
        "scikit-learn temperature",
        "probmetrics svs",
        "netcal temperature",
    ),
    "predict": (
        "hcal pool",
        "hcal ts",
        "scikit-learn temperature",
        "probmetrics svs",
        "netcal temperature",
    ),
    "evaluate": (
        "hcal all metrics",
        "scikit-learn log-loss, Brier",
        "probmetrics ECE, log-loss, Brier",
        "netcal ECE",
    ),
    "certify": ("hcal",),
}


def data(n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return logits, probabilities and labels of an over-confident classifier."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((n, k)) * 2
    y = rng.integers(0, k, n)
    logits[np.arange(n), y] += 3
    below = np.exp(logits - logits.max(axis=1, keepdims=True))
    return logits, below / below.sum(axis=1, keepdims=True), y


def fitter(package: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return fit(logits, probs, y) and predict(fitted, logits, probs) of a package's calibrator."""
    name, _, method = package.partition(" ")
    if name == "hcal":
        import hcal

        return lambda z, p, y: hcal.make_calibrator(method).fit(
            z, y
        ), lambda c, z, p: c.predict_proba(z)
    if name == "scikit-learn":
        from sklearn.calibration import _TemperatureScaling

        return lambda z, p, y: _TemperatureScaling().fit(z, y), lambda c, z, p: c.predict(z)
    if name == "probmetrics":
        from probmetrics.calibrators import get_calibrator

        return lambda z, p, y: get_calibrator("svs").fit(p, y), lambda c, z, p: c.predict_proba(p)
    from netcal.scaling import TemperatureScaling

    return lambda z, p, y: TemperatureScaling().fit(
        p, y, tensorboard=False
    ), lambda c, z, p: c.transform(p)


def judge(package: str) -> Callable[..., Any]:
    """Return evaluate(probs, y) of a package."""
    if package.startswith("hcal"):
        import hcal

        return hcal.evaluate
    if package.startswith("scikit-learn"):
        from sklearn.metrics import brier_score_loss, log_loss

        labels = np.arange
        return lambda p, y: (
            log_loss(y, p, labels=labels(p.shape[1])),
            brier_score_loss(y, p, labels=labels(p.shape[1])),
        )
    if package.startswith("probmetrics"):
        import torch
        from probmetrics.metrics import Metrics

        metrics = Metrics.from_names(["logloss", "brier", "ece-15"])
        return lambda p, y: metrics.compute_all_from_labels_probs(
            torch.from_numpy(y), torch.from_numpy(p)
        )
    from netcal.metrics import ECE

    return lambda p, y: ECE(15).measure(p, y)


def work(what: str, package: str) -> Callable[[int, int], Callable[[], Any]]:
    """Return what prepares a size and gives the call to be measured."""

    def prepare(n: int, k: int) -> Callable[[], Any]:
        logits, probs, y = data(n, k)
        if what == "fit":
            return lambda: fitter(package)[0](logits, probs, y)
        if what == "predict":
            fit, predict = fitter(package)
            few = slice(None, 2_000)
            fitted = fit(logits[few], probs[few], y[few])
            return lambda: predict(fitted, logits, probs)
        if what == "evaluate":
            return lambda: judge(package)(probs, y)
        import hcal

        return lambda: hcal.certify(probs, y)

    return prepare


def measure(what: str, package: str, n: int, k: int) -> dict[str, float]:
    """Return CPU seconds and memory of one call, in this process."""
    warnings.simplefilter("ignore")
    prepare = work(what, package)
    prepare(max(200, 2 * k), k)()
    call = prepare(n, k)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    call()
    seconds = time.process_time() - start
    return {
        "cpu_s": seconds,
        "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def run() -> list[dict[str, Any]]:
    """Measure everything, each in a process of its own."""
    rows = []
    environment = os.environ | dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
    )
    for what, packages in PACKAGES.items():
        for package in packages:
            for sizes in (ROWS, CLASSES):
                for n, k in sizes:
                    done_cells = {(r["what"], r["package"], r["rows"], r["classes"]) for r in rows}
                    if (what, package, n, k) in done_cells:
                        continue
                    request = json.dumps([what, package, n, k])
                    try:
                        command = [sys.executable, __file__, "--one", request]
                        done = subprocess.run(
                            command,
                            env=environment,
                            capture_output=True,
                            text=True,
                            timeout=2 * LIMIT,
                        )
                    except subprocess.TimeoutExpired:
                        print(
                            f"{what:9} {package:34} {n:8} x {k:4}: not within {2 * LIMIT} s",
                            flush=True,
                        )
                        break
                    if done.returncode:
                        reason = done.stderr.strip().splitlines()[-1][:90]
                        print(f"{what:9} {package:34} {n:8} x {k:4}: {reason}", flush=True)
                        break
                    measured = json.loads(done.stdout.splitlines()[-1])
                    rows.append(
                        {"what": what, "package": package, "rows": n, "classes": k, **measured}
                    )
                    print(
                        f"{what:9} {package:34} {n:8} x {k:4} "
                        f"{measured['cpu_s']:9.3f} s {measured['mb']:7.0f} MB",
                        flush=True,
                    )
                    if measured["cpu_s"] > LIMIT:
                        break
    return rows


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw time and memory against rows and against classes."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "hcal", "svg.fonttype": "none", "font.size": 8})
    figure, axes = plt.subplots(4, 4, figsize=(11, 10), sharey="row", constrained_layout=True)
    colours = {
        "hcal": ("#0b6e99", "#5fb3d4"),
        "scikit-learn": ("#d9822b",),
        "probmetrics": ("#7a4fa3",),
        "netcal": ("#6b8e23",),
    }
    for line, (quantity, unit) in enumerate((("cpu_s", "CPU seconds"), ("mb", "peak memory, MB"))):
        for part, (axis, sizes) in enumerate((("rows", ROWS), ("classes", CLASSES))):
            for column, what in enumerate(PACKAGES):
                place = axes[2 * line + part, column]
                for package in PACKAGES[what]:
                    of_package = [r for r in rows if r["what"] == what and r["package"] == package]
                    points = [r for r in of_package if (int(r["rows"]), int(r["classes"])) in sizes]
                    points.sort(key=lambda r: int(r[axis]))
                    colour = colours[package.split()[0]][package == "hcal ts"]
                    least = 1e-3 if quantity == "cpu_s" else 1.0
                    across = [int(point[axis]) for point in points]
                    up = [max(float(point[quantity]), least) for point in points]
                    place.plot(
                        across, up, "o-", color=colour, markersize=3, linewidth=1, label=package
                    )
                place.set(xscale="log", yscale="log", xlabel=axis)
                place.grid(alpha=0.3)
                if column == 0:
                    fixed = "10 classes" if axis == "rows" else "10,000 rows"
                    place.set_ylabel(f"{unit} ({fixed})")
                if line == part == 0:
                    place.set_title(what)
                    place.legend(fontsize=6, frameon=False)
    figure.savefig(ROOT / "docs" / "assets" / "growth.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--draw", action="store_true", help="draw results/growth.csv again")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    path = ROOT / "results" / "growth.csv"
    if options.draw:
        with path.open(newline="", encoding="utf-8") as file:
            draw(list(csv.DictReader(file)))
        return
    rows = run()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["what", "package", "rows", "classes", "cpu_s", "mb"])
        writer.writeheader()
        writer.writerows(
            {**row, "cpu_s": f"{row['cpu_s']:.4g}", "mb": f"{row['mb']:.0f}"} for row in rows
        )
    draw(rows)


if __name__ == "__main__":
    main()
