"""Walk from a calibrated network to the uniform predictor and watch the class-wise error fall.

    python -m studies.selector_trap    # writes results/selector_trap.csv, docs/assets/selector-trap.svg

Needs ../shared/data (or HCAL_DATA). The walk: softmax(s·x), x = log-probabilities after temperature scaling,
s from 1 down to 0; every step keeps the argmax, and so the accuracy.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

import hcal
from hcal.numerics import softmax
from studies.pool import load

TASK = "cifar100_wideresnet_probs"
STEPS = [1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.0]
METRICS = ["cwece_a", "tcwece", "dkde_ce", "ece_ew", "nll", "brier"]
ROOT = Path(__file__).resolve().parents[1]


def measure(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    found = {name: float(getattr(hcal.metrics, name)(probs, y)) for name in METRICS}
    return {**found, "mean_confidence": float(probs.max(axis=1).mean())}


def walk() -> list[dict[str, object]]:
    cal, y, test, y_test = load(TASK)
    scaled = np.log(hcal.make_calibrator("ts").fit(cal, y).predict_proba(test))
    rows: list[dict[str, object]] = [
        {"point": f"{s:g}", **measure(softmax(s * scaled), y_test)} for s in STEPS
    ]
    default = hcal.HCalibrator().fit(cal, y).predict_proba(test)
    return [*rows, {"point": "default h", **measure(default, y_test)}]


def draw(rows: list[dict[str, object]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path = [r for r in rows if r["point"] != "default h"]
    ours = rows[-1]
    plt.rcParams["svg.hashsalt"] = "hcal"
    figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), sharex=True, layout="constrained")
    titles = {"cwece_a": "CWECE_a: the selector of the paper", "nll": "NLL: a proper score"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        axis.plot([r["mean_confidence"] for r in path], [r[name] for r in path], "o-", color="#3b6fb6", ms=4)
        axis.plot(ours["mean_confidence"], ours[name], "D", color="#c2571a", label="default h")
        axis.annotate(
            "temperature scaling",
            (path[0]["mean_confidence"], path[0][name]),
            (-8, 10),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
        axis.annotate(
            "uniform",
            (path[-1]["mean_confidence"], path[-1][name]),
            (8, 0),
            textcoords="offset points",
            fontsize=8,
        )
        axis.set(title=title, xlabel="mean confidence (accuracy is the same everywhere)")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    (ROOT / "docs" / "assets").mkdir(exist_ok=True)
    figure.savefig(ROOT / "docs" / "assets" / "selector-trap.svg", metadata={"Date": None})


def main() -> None:
    rows = walk()
    with open(ROOT / "results" / "selector_trap.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: v if isinstance(v, str) else f"{v:.6g}" for k, v in row.items()} for row in rows)
    draw(rows)
    for row in rows:
        print("  ".join(str(v) if isinstance(v, str) else f"{v:.5f}" for v in row.values()))


if __name__ == "__main__":
    main()
