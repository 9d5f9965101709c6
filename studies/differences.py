"""What each difference between the paper, its published code and hcal changes, measured.

    python -m studies.differences run --data FOLDER     # writes results/differences.csv; goes on where it stopped
    python -m studies.differences page                  # writes the table of docs/paper.md

Three maps (one a family) are trained on each task in every variant; the test part says what the best epoch of the
best map is worth, chosen by each of the paper's selectors. The slow variants run on the paper's two tasks alone.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import hcal
from hcal import metrics
from studies.drawing import replace_between
from studies.tasks import load_task

ROOT: Final = Path(__file__).resolve().parents[1]
FILE: Final = ROOT / "results" / "differences.csv"
PAGE: Final = ROOT / "docs" / "paper.md"
MARKS: Final = ("<!-- differences: begin -->", "<!-- differences: end -->")
TASKS: Final = (
    "cifar10_resnet110",
    "cifar10_densenet40",
    "cifar10_resnet50",
    "cifar10_wideresnet",
    "agnews_gpt2",
    "pathmnist_resnet50",
)
MAPS: Final = ("piecewise-10", "monotonic-10", "ensemble-16")
SELECT: Final = ("top_label", "class_wise", "score")
MEASURED: Final = ("ece_s1", "ece_ew", "cwece_a", "tcwece", "nll")
FIELDS: Final = (
    "version",
    "task",
    "variant",
    "select",
    "map",
    "epoch",
    "epochs",
    "seconds",
    *MEASURED,
)


def _loss(**constants: Any) -> Callable[[], Any]:
    return lambda: hcal.HCalibrationLoss(**constants)


def _published(**constants: Any) -> Callable[[], Any]:
    return lambda: hcal.HCalibrationLoss.published(**constants)


#: Name -> what of the training it changes, and on how many tasks it is measured (the slow ones on the paper's two).
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "hcal": {},
    "log-softmax before the piecewise map": {"reference": "log_softmax"},
    "k-means until nothing moves": {"objective": _loss(iterations=100_000)},
    "patience 40": {"plateau": 40},
    "at most 600 epochs": {"epochs": 600},
    "identity start": {"init": "identity"},
    "published windows and k-means, one pass": {
        "objective": _published(leave_one_out=False),
        "tasks": 2,
    },
    "mini-batches of 1000 rows": {"batch_size": 1000, "tasks": 2},
    "events class by class": {"objective": _loss(events="class-wise"), "tasks": 2},
    "published loss, leave-one-class-out passes": {"objective": _published(), "tasks": 2},
}


def run(data: Path, file: Path = FILE) -> None:
    """Measure what the file lacks."""
    done = {(row["task"], row["variant"]) for row in read(file)} if file.exists() else set()
    with file.open("a", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, FIELDS)
        if not done:
            table.writeheader()
        for variant in VARIANTS:
            for task in TASKS[: VARIANTS[variant].get("tasks", len(TASKS))]:
                if (task, variant) not in done:
                    table.writerows(measure(data, task, variant))
                    out.flush()


def measure(data: Path, name: str, variant: str) -> list[dict[str, Any]]:
    """Train and measure one variant on one task: a row for each selector."""
    from hcal.h_calibration.calibrator import train_candidates
    from hcal.h_calibration.training import AdamSettings

    task, change = load_task(name, data), dict(VARIANTS[variant])
    change.pop("tasks", None)
    objective = change.pop("objective", hcal.HCalibrationLoss)()
    adam = {key: change.pop(key) for key in ("plateau", "epochs", "batch_size") if key in change}
    start = time.process_time()
    found = train_candidates(
        task.logits_cal,
        task.y_cal,
        MAPS,
        select=SELECT,
        settings=AdamSettings(**adam),
        objective=objective,
        **change,
    )
    seconds = time.process_time() - start
    rows = []
    for select, fitted in found.items():
        probs = np.exp(fitted.map(task.logits_test))
        rows.append(
            {
                "version": hcal.__version__,
                "task": name,
                "variant": variant,
                "select": select,
                "map": fitted.details["map"],
                "epoch": fitted.details["epoch"],
                "epochs": max(c["epochs"] for c in fitted.details["candidates"]),
                "seconds": round(seconds, 1),
            }
            | {metric: f"{getattr(metrics, metric)(probs, task.y_test):.6g}" for metric in MEASURED}
        )
    return rows


def read(file: Path = FILE) -> list[dict[str, str]]:
    """Return the rows of the file."""
    with file.open(newline="", encoding="utf-8") as rows:
        return list(csv.DictReader(rows))


#: What the table shows: the selector that chose, and the metric.
COLUMNS: Final = (("top_label", "ece_s1"), ("class_wise", "tcwece"), ("score", "nll"))


def table(rows: list[dict[str, str]]) -> list[str]:
    """Return the rows of a Markdown table: geometric means over tasks of the ratio to hcal, and the range."""
    value = {(r["variant"], r["task"], r["select"], m): float(r[m]) for r in rows for m in MEASURED}
    out = [
        "| variant | ECE^s, top-label | tCWECE, class-wise | NLL, score | tasks |",
        "|---|---|---|---|---|",
    ]
    for variant in dict.fromkeys(r["variant"] for r in rows):
        tasks = [t for t in TASKS if (variant, t, "score", "nll") in value]
        cells = []
        for select, metric in COLUMNS:
            ratio = np.array(
                [
                    value[variant, t, select, metric] / value["hcal", t, select, metric]
                    for t in tasks
                ]
            )
            cells.append(
                f"× {np.exp(np.log(ratio).mean()):.3f} ({ratio.min():.2f} to {ratio.max():.2f})"
            )
        out.append(f"| {variant} | {' | '.join(cells)} | {len(tasks)} |")
    return out


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    given = parser.parse_args()
    if given.command == "run":
        run(given.data)
    else:
        replace_between(PAGE, MARKS, table(read()))


if __name__ == "__main__":
    main()
