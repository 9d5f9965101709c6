"""How much the constants of the h loss matter: M, ε, r, the number of clusters and the weights of windows.

    python -m studies.sensitivity run --data FOLDER [--device cuda]   # results/sensitivity.csv; goes on
    python -m studies.sensitivity page                                # the table of docs/theory.md and its figure

One constant at a time is changed. Three maps (one a family) are trained on the calibration part of the paper's two
tasks that are here, the top-label selector chooses, and the test part is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from hcal import metrics
from studies.drawing import SUBJECT, replace_between, save_figure, styled
from studies.paper import TASKS as TITLES
from studies.records import RESULTS, ROOT, add_rows, read_rows
from studies.tasks import DATA, SHARED, load_task

FILE: Final = RESULTS / "sensitivity.csv"
PAGE: Final = ROOT / "docs" / "theory.md"
FIGURE: Final = ROOT / "docs" / "assets" / "sensitivity.svg"
MARKS: Final = ("<!-- sensitivity: begin -->", "<!-- sensitivity: end -->")
#: The file of each task, and its title.
TASKS: Final = {SHARED[name]: title for name, title in TITLES.items()}
MAPS: Final = ("piecewise-10", "monotonic-10", "ensemble-16")
MEASURED: Final = ("ece_s1", "ece_ew", "tcwece", "nll")


class Constant:
    """A constant of the loss: its symbol, its value in the paper, and the values that are tried."""

    def __init__(self, symbol: str, paper: Any, *tried: Any) -> None:
        self.symbol = symbol
        self.paper = paper
        self.tried = tried


#: By the name of the parameter.
CONSTANTS: Final[Mapping[str, Constant]] = {
    "window": Constant("M", 200, 50, 100, 200, 500, 1000),
    "epsilon": Constant("ε", 1e-20, 1e-20, 1e-4, 1e-3, 1e-2, 1e-1),
    "scale": Constant("r", 1e5, 1e3, 1e5, 1e7),
    "clusters": Constant("C", 15, 5, 10, 15, 20, 30),
    "weighting": Constant("weights", "kmeans", "kmeans", "uniform"),
}


def settings() -> Iterator[tuple[str, Any]]:
    """Yield the constants and the values that are tried; the paper's values once, as ``("paper", "")``."""
    yield "paper", ""
    for name, constant in CONSTANTS.items():
        for value in constant.tried:
            if value != constant.paper:
                yield name, value


def run(data: Path, device: str, file: Path = FILE) -> None:
    """Train and measure what the file lacks."""
    done = {(row["task"], row["constant"], row["value"]) for row in read_rows(file)}
    for task in TASKS:
        for name, value in settings():
            if (task, name, str(value)) not in done:
                add_rows(file, [measure(data, device, task, name, value)])


def measure(data: Path, device: str, task_name: str, name: str, value: Any) -> dict[str, Any]:
    """Train with one constant changed, and measure the chosen map on the test part."""
    from hcal.h_calibration.candidates import TrainingPlan, train_candidates
    from hcal.h_calibration.loss import HCalibrationLoss

    changed = {} if name == "paper" else {name: value}
    task = load_task(task_name, data)
    plan = TrainingPlan(
        maps=MAPS, objective=HCalibrationLoss(check=False, **changed), device=device
    )
    fitted = train_candidates(task.logits_cal, task.y_cal, plan)["top_label"]
    probs = np.exp(fitted.map(task.logits_test))
    errors = {name: float(getattr(metrics, name)(probs, task.y_test)) for name in MEASURED}
    chosen = {"map": fitted.details["map"], "epoch": fitted.details["epoch"]}
    return {"task": task_name, "constant": name, "value": str(value), **chosen, **errors}


def errors_of(rows: Sequence[Mapping[str, str]], task: str, name: str, metric: str) -> list[float]:
    """Return the errors of a task at the values of a constant, in the order in which they are tried."""
    by_setting = {(row["task"], row["constant"], row["value"]): row for row in rows}
    constant = CONSTANTS[name]
    errors = []
    for value in constant.tried:
        key = ("paper", "") if value == constant.paper else (name, str(value))
        errors.append(float(by_setting[(task, *key)][metric]))
    return errors


def largest_change(rows: Sequence[Mapping[str, str]], name: str) -> float:
    """Return the largest relative change of ECE^s, over both tasks, against the paper's value of a constant."""
    constant = CONSTANTS[name]
    changes = []
    for task in TASKS:
        errors = np.array(errors_of(rows, task, name, "ece_s1"))
        changes.append(
            float(np.abs(errors / errors[constant.tried.index(constant.paper)] - 1).max())
        )
    return max(changes)


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a table: for each constant, its values and the ECE^s of both tasks."""
    titles = " | ".join(f"ECE^s, {title}" for title in TASKS.values())
    lines = [f"| constant | values | {titles} |", "|---|---|" + "---|" * len(TASKS)]
    for name, constant in CONSTANTS.items():
        values = ", ".join(
            f"**{_shown(value)}**" if value == constant.paper else _shown(value)
            for value in constant.tried
        )
        cells = []
        for task in TASKS:
            errors = errors_of(rows, task, name, "ece_s1")
            cells.append(", ".join(f"{error:.4f}" for error in errors))
        lines.append(f"| {constant.symbol} | {values} | {' | '.join(cells)} |")
    return lines


def draw(rows: Sequence[Mapping[str, str]], path: Path = FIGURE) -> Path:
    """Draw the error against each constant, relative to the paper's value."""
    with styled() as plt:
        figure, axes = plt.subplots(
            1, len(CONSTANTS), figsize=(9, 2.4), sharey=True, layout="constrained"
        )
        for axis, (name, constant) in zip(axes, CONSTANTS.items(), strict=True):
            places = range(len(constant.tried))
            for task, colour in zip(TASKS, (SUBJECT, "#8a8a8a"), strict=True):
                errors = np.array(errors_of(rows, task, name, "ece_s1"))
                paper = errors[constant.tried.index(constant.paper)]
                axis.plot(places, errors / paper, "o-", color=colour, label=TASKS[task])
            axis.axhline(1, color="black", linewidth=0.8)
            labels = [_shown(value) for value in constant.tried]
            axis.set_xticks(list(places), labels, rotation=45)
            axis.set(title=constant.symbol)
        axes[0].set_ylabel("ECE^s / that of the paper's constants")
        axes[0].legend(fontsize="small")
        return save_figure(figure, path)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.data, arguments.device)
    else:
        rows = read_rows(FILE)
        replace_between(PAGE, MARKS, table(rows))
        print(PAGE, draw(rows))


if __name__ == "__main__":
    main()
