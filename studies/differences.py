"""What each difference between the paper, its published code and hcal changes, measured.

    python -m studies.differences run --data FOLDER     # writes results/differences.csv; goes on where it stopped
    python -m studies.differences page                  # writes the table of docs/paper.md

Three maps (one a family) are trained on each task in every variant; the test part says what the best epoch of the
best map is worth, chosen by each of the paper's selectors. The slow variants run on the paper's two tasks alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import hcal
from hcal import metrics
from hcal.h_calibration.candidates import TrainingPlan, train_candidates
from hcal.h_calibration.training import AdamSettings
from hcal.methods.base import Fitted
from hcal.numerics import Float64
from studies.drawing import replace_between
from studies.published_loss import PublishedLoss
from studies.published_maps import build_published
from studies.records import RESULTS, ROOT, add_rows, read_rows
from studies.tasks import DATA, Task, load_task

FILE: Final = RESULTS / "differences.csv"
PAGE: Final = ROOT / "docs" / "paper.md"
MARKS: Final = ("<!-- differences: begin -->", "<!-- differences: end -->")
#: The paper's two tasks first.
TASKS: Final = (
    "cifar10_resnet110",
    "cifar10_densenet40",
    "cifar10_resnet50",
    "cifar10_wideresnet",
    "agnews_gpt2",
    "pathmnist_resnet50",
)
SLOW: Final = TASKS[:2]
MEASURED: Final = ("ece_s1", "ece_ew", "cwece_a", "tcwece", "nll")
#: What the table shows: the selector that chose, and the metric.
COLUMNS: Final = (("top_label", "ece_s1"), ("class_wise", "tcwece"), ("score", "nll"))


@dataclass(frozen=True)
class Variant:
    """A way to train, and the tasks on which it is measured."""

    plan: TrainingPlan
    tasks: tuple[str, ...] = TASKS


HCAL: Final = TrainingPlan(
    maps=("piecewise-10", "monotonic-10", "ensemble-16"),
    select=("top_label", "class_wise", "score"),
)
PUBLISHED_MAP: Final = replace(HCAL, build=build_published, reference="log_softmax")
#: The variants by name, in the order of the table.
VARIANTS: Final[Mapping[str, Variant]] = {
    "hcal": Variant(HCAL),
    "log-softmax before the piecewise map": Variant(replace(HCAL, reference="log_softmax")),
    "k-means until nothing moves": Variant(
        replace(HCAL, objective=hcal.HCalibrationLoss(iterations=100_000))
    ),
    "patience 40": Variant(replace(HCAL, adam=AdamSettings(plateau=40))),
    "at most 600 epochs": Variant(replace(HCAL, adam=AdamSettings(epochs=600))),
    "identity start": Variant(replace(HCAL, init="identity")),
    "published windows and k-means, one pass": Variant(
        replace(HCAL, objective=PublishedLoss(leave_one_out=False))
    ),
    "mini-batches of 1000 rows": Variant(replace(HCAL, adam=AdamSettings(batch_size=1000)), SLOW),
    "events class by class": Variant(
        replace(HCAL, objective=hcal.HCalibrationLoss(events="class-wise")), SLOW
    ),
    "published loss, leave-one-class-out passes": Variant(
        replace(HCAL, objective=PublishedLoss()), SLOW
    ),
    "published map": Variant(PUBLISHED_MAP),
    "published map and loss": Variant(replace(PUBLISHED_MAP, objective=PublishedLoss()), SLOW),
}


def run(data: Path, file: Path = FILE) -> None:
    """Measure what the file lacks."""
    done = {(row["task"], row["variant"]) for row in read_rows(file)}
    for name, variant in VARIANTS.items():
        for task in variant.tasks:
            if (task, name) not in done:
                add_rows(file, measure(load_task(task, data), name))


def measure(task: Task, name: str) -> list[dict[str, Any]]:
    """Train and measure one variant on one task: a row for each selector."""
    start = time.process_time()
    chosen = train_candidates(task.logits_cal, task.y_cal, VARIANTS[name].plan)
    seconds = round(time.process_time() - start, 1)
    rows = []
    for select, fitted in chosen.items():
        run = {"task": task.name, "variant": name, "select": select, "seconds": seconds}
        rows.append(run | result_of(fitted, task))
    return rows


def result_of(fitted: Fitted, task: Task) -> dict[str, Any]:
    """Return the chosen map and epoch, and the errors on the test part."""
    probs = np.exp(fitted.map(task.logits_test))
    errors = {name: float(getattr(metrics, name)(probs, task.y_test)) for name in MEASURED}
    epochs = max(candidate["epochs"] for candidate in fitted.details["candidates"])
    return {
        "map": fitted.details["map"],
        "epoch": fitted.details["epoch"],
        "epochs": epochs,
        **errors,
    }


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the rows of a Markdown table: geometric means over tasks of the ratio to hcal, and the range."""
    lines = [
        "| variant | ECE^s, top-label | tCWECE, class-wise | NLL, score | tasks |",
        "|---|---|---|---|---|",
    ]
    variants = dict.fromkeys(row["variant"] for row in rows if row["variant"] != "hcal")
    for variant in variants:
        columns = [ratios(rows, variant, select, metric) for select, metric in COLUMNS]
        cells = " | ".join(_cell(column) for column in columns)
        lines.append(f"| {variant} | {cells} | {len(columns[0])} |")
    return lines


def ratios(rows: Sequence[Mapping[str, str]], variant: str, select: str, metric: str) -> Float64:
    """Return the error of a variant divided by that of hcal, one for each task on which the variant was measured."""
    errors = {
        (row["variant"], row["task"]): float(row[metric]) for row in rows if row["select"] == select
    }
    tasks = [task for task in TASKS if (variant, task) in errors]
    return np.array([errors[variant, task] / errors["hcal", task] for task in tasks])


def _cell(ratios: Float64) -> str:
    mean = np.exp(np.log(ratios).mean())
    return f"× {mean:.3f} ({ratios.min():.2f} to {ratios.max():.2f})"


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.data)
    else:
        replace_between(PAGE, MARKS, table(read_rows(FILE)))


if __name__ == "__main__":
    main()
