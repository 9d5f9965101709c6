"""The paper's printed numbers, with the map, the loss and the selector of the published code.

    python -m studies.published          # trains the published mode, and compares it with the paper's numbers
    python -m studies.published run      # writes results/published.csv; goes on where it stopped
    python -m studies.published page     # writes the tables of docs/reproduction.md

The published code differs from the paper in its piecewise map (:mod:`studies.published_maps`) and in its loss
(:mod:`studies.published_loss`). It chooses the epoch of the least signed error, and of equal errors the last epoch.
The paper prints, for each task and metric, one configuration; these are trained here, with each map and each loss.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hcal import metrics
from hcal.h_calibration.candidates import seed_of
from hcal.h_calibration.loss import HCalibrationLoss
from hcal.h_calibration.trainable_maps import build_trainable
from hcal.h_calibration.training import SELECTORS, AdamSettings, train
from hcal.numerics import Float64, IntArray, softmax
from studies.drawing import replace_between
from studies.paper import FILE as PAPER_FILE
from studies.paper import network, ours
from studies.published_loss import PublishedLoss
from studies.published_maps import build_published
from studies.records import RESULTS, ROOT, add_rows, read_rows
from studies.tasks import DATA, load_task

FILE: Final = RESULTS / "published.csv"
PAGE: Final = ROOT / "docs" / "reproduction.md"
MARKS: Final = ("<!-- published: begin -->", "<!-- published: end -->")
FACTOR_MARKS: Final = ("<!-- factors: begin -->", "<!-- factors: end -->")
MEASURED: Final = ("ece_s1", "tcwece", "dkde_ce", "nll")
SEEDS: Final = (0, 1, 2)
#: The paper's own method in our tables, by metric: the selector that the paper prints it for.
OF_HCAL: Final = {"ece_s1": "h", "tcwece": "h:class_wise", "dkde_ce": "h:class_wise"}
TITLES: Final = {"ece_s1": "ECE^s", "tcwece": "tCWECE", "dkde_ce": "DKDE-CE"}


@dataclass(frozen=True)
class Configuration:
    """What the paper trained for some of its numbers, and these numbers by metric."""

    task: str
    select: str
    map: str
    printed: Mapping[str, float]
    plateau: int = AdamSettings.plateau
    seeds: tuple[int, ...] = (0,)


#: The paper's configurations on the two tasks that are here.
CONFIGURATIONS: Final = (
    Configuration("resnet110_c10", "top_label", "monotonic-50", {"ece_s1": 0.0043}, 40, SEEDS),
    Configuration(
        "resnet110_c10", "class_wise", "piecewise-500", {"tcwece": 0.0258, "dkde_ce": 0.00089}
    ),
    Configuration("densenet40_c10", "top_label", "piecewise-100", {"ece_s1": 0.0073}),
    Configuration(
        "densenet40_c10", "class_wise", "piecewise-100", {"tcwece": 0.0247, "dkde_ce": 0.00091}
    ),
)
#: How often ``check`` trains.
N_TRAININGS: Final = sum(len(configuration.seeds) for configuration in CONFIGURATIONS)
#: The code that computes the map, and the code that computes the loss.
MODES: Final = tuple(product(("published", "hcal"), repeat=2))


def run(data: Path, file: Path = FILE) -> None:
    """Train and measure what the file lacks."""
    key = ("task", "select", "map_code", "loss_code", "seed")
    done = {tuple(row[name] for name in key) for row in read_rows(file)}
    for configuration in CONFIGURATIONS:
        for map_code, loss_code in modes_of(configuration):
            for seed in configuration.seeds:
                names = (configuration.task, configuration.select, map_code, loss_code, str(seed))
                if names not in done:
                    add_rows(file, [measure(data, configuration, map_code, loss_code, seed)])


class Reproduction(NamedTuple):
    """A printed number of the paper, and the errors of the published mode, one a seed."""

    configuration: Configuration
    metric: str
    printed: float
    errors: tuple[float, ...]

    @property
    def tolerance(self) -> float:
        """Return how far the mean may be from the printed number; seeds differ, so a mean of them has more room."""
        return 0.12 if len(self.errors) > 1 else 0.05

    @property
    def difference(self) -> float:
        """Return the relative difference of the mean from the printed number."""
        return statistics.fmean(self.errors) / self.printed - 1

    @property
    def is_close(self) -> bool:
        """Return whether the difference is within the tolerance."""
        return abs(self.difference) <= self.tolerance

    def __str__(self) -> str:
        name = network(self.configuration.task)
        seeds = f", mean of {len(self.errors)} seeds" if len(self.errors) > 1 else ""
        verdict = "within" if self.is_close else "NOT within"
        return (
            f"{name}, {TITLES[self.metric]}: paper {self.printed:.5f}, published mode "
            f"{statistics.fmean(self.errors):.5f}{seeds} ({self.difference:+.1%}, {verdict} "
            f"{self.tolerance:.0%})"
        )


def reproductions(rows: Sequence[Mapping[str, Any]]) -> list[Reproduction]:
    """Return the paper's six numbers beside the errors that some rows have in the published mode."""
    compared = []
    for configuration in CONFIGURATIONS:
        for metric, printed in configuration.printed.items():
            errors = tuple(published_errors(rows, configuration, metric))
            compared.append(Reproduction(configuration, metric, printed, errors))
    return compared


def check(data: Path) -> bool:
    """Train the published mode, print its errors beside the paper's, and return whether all are close."""
    rows: list[Mapping[str, Any]] = []
    for configuration in CONFIGURATIONS:
        for seed in configuration.seeds:
            rows.append(measure(data, configuration, "published", "published", seed))
            print(f"trained {len(rows)} of {N_TRAININGS}", end="\r", file=sys.stderr, flush=True)
    compared = reproductions(rows)
    print(*compared, sep="\n")
    return all(reproduction.is_close for reproduction in compared)


def modes_of(configuration: Configuration) -> Sequence[tuple[str, str]]:
    """Return the combinations of codes that are trained: all four for piecewise maps."""
    return MODES if configuration.map.startswith("piecewise") else MODES[:1]


def measure(
    data: Path, configuration: Configuration, map_code: str, loss_code: str, seed: int
) -> dict[str, Any]:
    """Train one configuration and measure the chosen epoch on the test part."""
    task = load_task(configuration.task, data)
    published = map_code == "published"
    arguments = log_probs if published else below_largest
    build = build_published if published else build_trainable
    seed_of_start = seed_of(configuration.map, seed)

    x = arguments(task.logits_cal)
    module = build(configuration.map, x, init="published", random_state=seed_of_start)
    trained = train(
        module,
        x,
        torch.as_tensor(task.y_cal),
        PublishedLoss() if loss_code == "published" else HCalibrationLoss(),
        select={configuration.select: SELECTORS[configuration.select]},
        settings=AdamSettings(plateau=configuration.plateau, ties="last"),
        random_state=seed_of_start,
    )
    with torch.no_grad():
        probs = module(arguments(task.logits_test)).double().numpy()
    best = trained.best[configuration.select]
    return {
        "task": configuration.task,
        "select": configuration.select,
        "map": configuration.map,
        "map_code": map_code,
        "loss_code": loss_code,
        "seed": seed,
        "score": best.score,
        "epoch": best.epoch,
        "epochs": trained.epochs,
        **errors(probs, task.y_test),
        **broken_order(task.logits_test, probs),
    }


def log_probs(logits: Float64) -> Tensor:
    """Return the input of the published maps, in float32 from the start, as the published code computes it.

    The k-means draws a sub-sample by rank: where another rounding makes two probabilities equal or not, the training
    takes another way.
    """
    return torch.log_softmax(torch.as_tensor(logits, dtype=torch.float32), dim=1)


def below_largest(logits: Float64) -> Tensor:
    """Return the input of the paper's piecewise map: the logits minus the largest of the row."""
    x = torch.as_tensor(logits, dtype=torch.float32)
    return x - x.max(dim=1, keepdim=True).values


def errors(probs: Float64, y: IntArray) -> dict[str, float]:
    """Return the metrics of test probabilities."""
    return {name: float(getattr(metrics, name)(probs, y)) for name in MEASURED}


def broken_order(logits: Float64, probs: Float64) -> dict[str, int]:
    """Return in how many rows the predicted class changes, and in how many a pair of classes is inverted.

    >>> broken_order(np.array([[0.0, 1.0, 2.0]]), np.array([[0.3, 0.1, 0.6]]))
    {'changed_predictions': 0, 'rows_with_inversions': 1}
    """
    before = softmax(logits)
    order = np.argsort(before, axis=1, kind="stable")
    steps_before = np.diff(np.take_along_axis(before, order, axis=1), axis=1)
    steps_after = np.diff(np.take_along_axis(probs, order, axis=1), axis=1)
    inverted = (steps_before > 0) & (steps_after < 0)
    changed = probs.argmax(axis=1) != before.argmax(axis=1)
    return {
        "changed_predictions": int(changed.sum()),
        "rows_with_inversions": int(inverted.any(axis=1).sum()),
    }


def published_errors(
    rows: Sequence[Mapping[str, Any]], configuration: Configuration, metric: str
) -> list[float]:
    """Return the errors of the published mode, one a seed."""
    mode = {
        "task": configuration.task,
        "select": configuration.select,
        "map_code": "published",
        "loss_code": "published",
    }
    return [float(row[metric]) for row in rows if mode.items() <= row.items()]


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the table of the six printed numbers: the paper, the published mode, and hcal."""
    of_hcal = ours(read_rows(PAPER_FILE))
    lines = [
        "| task, metric | map | paper | published mode | hcal's `h` |",
        "|---|---|---:|---:|---:|",
    ]
    for configuration, metric, printed, errors in reproductions(rows):
        mean = statistics.fmean(errors)
        seeds = f" ({', '.join(f'{error:.5f}' for error in errors)})" if len(errors) > 1 else ""
        error_of_h = of_hcal[configuration.task, OF_HCAL[metric], metric]
        lines.append(
            f"| {network(configuration.task)}, {TITLES[metric]} | `{configuration.map}` | "
            f"{printed:.5f} | {mean:.5f}{seeds} | {error_of_h:.5f} |"
        )
    return lines


def factor_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a table of map × loss for the class-wise configurations."""
    lines = [
        "| task | map of | loss of | tCWECE | DKDE-CE | NLL | predictions changed | rows with "
        "inverted pairs |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if row["select"] == "class_wise":
            lines.append(
                f"| {network(row['task'])} | {row['map_code']} | {row['loss_code']} | "
                f"{float(row['tcwece']):.4f} | {float(row['dkde_ce']):.5f} | "
                f"{float(row['nll']):.4f} | {row['changed_predictions']} | "
                f"{row['rows_with_inversions']} |"
            )
    return lines


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=["check", "run", "page"], default="check")
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    if arguments.command == "check":
        sys.exit(not check(arguments.data))
    elif arguments.command == "run":
        run(arguments.data)
    else:
        rows = read_rows(FILE)
        replace_between(PAGE, MARKS, table(rows))
        replace_between(PAGE, FACTOR_MARKS, factor_table(rows))


if __name__ == "__main__":
    main()
