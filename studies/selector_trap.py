"""Walk from a calibrated network to the uniform predictor and see the class-wise error fall.

    python -m studies.selector_trap    # results/selector_trap.csv, the picture and the table of the page

The walk: softmax(s·x), x = log-probabilities after temperature scaling, s from 1 down to 0; every step keeps the
argmax, and so the accuracy.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import hcal
from hcal.numerics import softmax
from studies.drawing import PALETTE, SUBJECT, replace_between, save_figure, styled
from studies.records import RESULTS, ROOT, read_rows, stamped, write_rows
from studies.tasks import DATA, load_task

TASK = "cifar100_wideresnet_probs"
STEPS = [1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.0]
METRICS = ["cwece_a", "tcwece", "dkde_ce", "ece_ew", "nll", "brier"]
FILE = RESULTS / "selector_trap.csv"
PAGE = ROOT / "docs" / "why-not-the-papers-selector.md"
MARKS = ("<!-- trap -->", "<!-- end -->")
#: The points of the page's table.
SHOWN = ("1", "0.5", "0.2", "0.1", "0", "pool")


def measure(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return the metrics of the page, and the mean confidence."""
    values = {name: float(getattr(hcal.metrics, name)(probs, y)) for name in METRICS}
    return {**values, "mean_confidence": float(probs.max(axis=1).mean())}


def walk(data: Path) -> list[dict[str, object]]:
    """Return a row for each step, and one for the default."""
    task = load_task(TASK, data)
    temperature = hcal.make_calibrator("ts").fit(task.logits_cal, task.y_cal)
    pool = hcal.PooledCalibrator().fit(task.logits_cal, task.y_cal)
    start = np.log(temperature.predict_proba(task.logits_test))
    points = {f"{step:g}": softmax(step * start) for step in STEPS}
    points["pool"] = pool.predict_proba(task.logits_test)
    return [
        stamped({"point": name, **measure(probs, task.y_test)}) for name, probs in points.items()
    ]


def draw(rows: list[dict[str, str]]) -> Path:
    """Draw the selector's metric and a proper score along the walk."""
    *steps, default = rows
    titles = {"cwece_a": "CWECE_a: the selector of the paper", "nll": "NLL: a proper score"}
    with styled() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), sharex=True, layout="constrained")
        for axis, (name, title) in zip(axes, titles.items(), strict=True):
            _draw_walk(axis, steps, default, name)
            axis.set(title=title, xlabel="mean confidence (accuracy is the same everywhere)")
            axis.set_ylim(bottom=0)
            axis.legend()
        return save_figure(figure, ROOT / "docs" / "assets" / "selector-trap.svg")


def _draw_walk(axis: Any, steps: list[dict[str, str]], default: dict[str, str], name: str) -> None:
    """Draw one metric against the mean confidence."""
    x = [float(row["mean_confidence"]) for row in steps]
    y = [float(row[name]) for row in steps]
    axis.plot(x, y, "o-", color=PALETTE[0])
    point = float(default["mean_confidence"]), float(default[name])
    axis.plot(*point, "D", color=SUBJECT, label="pool (default)")
    beside = {"textcoords": "offset points"}
    axis.annotate("temperature scaling", (x[0], y[0]), (-8, 10), ha="right", **beside)
    axis.annotate("uniform", (x[-1], y[-1]), (8, 0), **beside)


def table(rows: list[dict[str, str]]) -> list[str]:
    """Return the table of the page."""
    names = [*METRICS, "mean_confidence"]
    lines = ["| s | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for row in rows:
        if row["point"] in SHOWN:
            cells = [f"{float(row[name]):.4f}" for name in names]
            lines.append(f"| {row['point']} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Walk, write and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    write_rows(FILE, walk(parser.parse_args().data))
    rows = read_rows(FILE)
    replace_between(PAGE, MARKS, table(rows))
    print(draw(rows))


if __name__ == "__main__":
    main()
