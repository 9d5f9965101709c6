"""Walk from a calibrated network to the uniform predictor and see the class-wise error fall.

    python -m studies.selector_trap    # results/selector_trap.csv, the picture and the table of the page

The walk: softmax(s·x), x = log-probabilities after temperature scaling, s from 1 down to 0; every step keeps the
argmax, and so the accuracy.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

import hcal
from hcal.numerics import softmax
from studies.drawing import replace_between, save_figure, styled
from studies.tasks import load_task

TASK = "cifar100_wideresnet_probs"
STEPS = [1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.0]
METRICS = ["cwece_a", "tcwece", "dkde_ce", "ece_ew", "nll", "brier"]
ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "results" / "selector_trap.csv"
PAGE = ROOT / "docs" / "why-not-the-papers-selector.md"
MARKS = ("<!-- trap -->", "<!-- end -->")
#: The points of the page's table.
SHOWN = ("1", "0.5", "0.2", "0.1", "0", "pool")


def measure(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    found = {name: float(getattr(hcal.metrics, name)(probs, y)) for name in METRICS}
    return {**found, "mean_confidence": float(probs.max(axis=1).mean())}


def walk(data: Path) -> list[dict[str, object]]:
    task = load_task(TASK, data)
    scaled = np.log(
        hcal.make_calibrator("ts").fit(task.logits_cal, task.y_cal).predict_proba(task.logits_test)
    )
    pool = hcal.PooledCalibrator().fit(task.logits_cal, task.y_cal).predict_proba(task.logits_test)
    points = [(f"{s:g}", softmax(s * scaled)) for s in STEPS] + [("pool", pool)]
    return [
        {"point": name, **measure(p, task.y_test), "version": hcal.__version__}
        for name, p in points
    ]


def draw(rows: list[dict[str, str]]) -> Path:
    *path, ours = rows
    titles = {"cwece_a": "CWECE_a: the selector of the paper", "nll": "NLL: a proper score"}
    with styled() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), sharex=True, layout="constrained")
        for axis, (name, title) in zip(axes, titles.items(), strict=True):
            x, y = ([float(r[key]) for r in path] for key in ("mean_confidence", name))
            axis.plot(x, y, "o-", color="#3b6fb6")
            axis.plot(
                float(ours["mean_confidence"]),
                float(ours[name]),
                "D",
                color="#c2571a",
                label="pool (default)",
            )
            axis.annotate(
                "temperature scaling",
                (x[0], y[0]),
                (-8, 10),
                textcoords="offset points",
                ha="right",
            )
            axis.annotate("uniform", (x[-1], y[-1]), (8, 0), textcoords="offset points")
            axis.set(title=title, xlabel="mean confidence (accuracy is the same everywhere)")
            axis.set_ylim(bottom=0)
            axis.legend()
        return save_figure(figure, ROOT / "docs" / "assets" / "selector-trap.svg")


def table(rows: list[dict[str, str]]) -> list[str]:
    """Return the table of the page."""
    names = [*METRICS, "mean_confidence"]
    out = ["| s | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for row in rows:
        if row["point"] in SHOWN:
            out.append(
                f"| {row['point']} | "
                + " | ".join(f"{float(row[name]):.4f}" for name in names)
                + " |"
            )
    return out


def read() -> list[dict[str, str]]:
    """Return the rows of the file."""
    with FILE.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    rows = walk(parser.parse_args().data)
    with FILE.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(
            {k: v if isinstance(v, str) else f"{v:.6g}" for k, v in row.items()} for row in rows
        )
    replace_between(PAGE, MARKS, table(read()))
    print(draw(read()))


if __name__ == "__main__":
    main()
