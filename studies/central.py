"""The paper's central experiment: does the h objective beat the NLL, all else equal?

    python -m studies.central train --data FOLDER --device cuda   # studies/results/central_maps.npz; goes on
    python -m studies.central measure --data FOLDER               # results/central.csv, all metrics of the paper
    python -m studies.central page                                # its page and figure

Both objectives are trained on the paper's twelve maps for at most 2,000 epochs, from the identity. Each of the paper's
three selectors chooses an epoch and a map. The chosen maps are kept, so that a metric can be added without training.
``results/central-0.2.csv`` holds an older and wider experiment: version 0.2, 36 tasks, five objectives, two starts, at
most 1,000 epochs.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hcal import metrics
from hcal.evaluation import collapse_reasons
from hcal.h_calibration.paper_maps import MixtureMap, TableMap
from hcal.numerics import Float64, softmax
from studies.drawing import SUBJECT, save_figure, styled, write_text
from studies.paper import METRICS
from studies.records import RESULTS, ROOT, origins, read_rows, stamped, write_rows
from studies.tasks import DATA, load_task

if TYPE_CHECKING:
    from torch import Tensor

MAPS: Final = ROOT / "studies" / "results" / "central_maps.npz"
FILE: Final = RESULTS / "central.csv"
OLD_FILE: Final = RESULTS / "central-0.2.csv"
PAGE: Final = ROOT / "studies" / "central-experiment.md"
FIGURE: Final = ROOT / "docs" / "assets" / "central.svg"

#: Task by task, the data set that it belongs to: networks of one data set are not independent of each other.
TASKS: Final[Mapping[str, str]] = {
    "cifar10_resnet110": "CIFAR-10",
    "cifar10_resnet50": "CIFAR-10",
    "cifar10_resnet50_weak": "CIFAR-10",
    "cifar10_wideresnet": "CIFAR-10",
    "cifar10lt_resnet110": "CIFAR-10-LT",
    "cifar100_resnet50": "CIFAR-100",
    "cifar100_resnet110": "CIFAR-100",
    "cifar100_wideresnet_probs": "CIFAR-100",
    "pathmnist_resnet50": "PathMNIST",
    "agnews_gpt2": "AG News",
}
OBJECTIVES: Final = ("h", "nll")
EPOCHS: Final = 2000
MEASURED: Final = (*METRICS, "brier", "accuracy", "mean_confidence")


@dataclass(frozen=True)
class Level:
    """What one of the paper's selectors is for, and the errors that measure it.

    ``dece`` and ``skce`` estimate without bias and can be below 0, so no ratio of them exists; the results file has
    them. ``mmce`` and the others are never below 0.
    """

    title: str
    selector: str
    metrics: tuple[str, ...]


LEVELS: Final = (
    Level(
        "top-label",
        "top_label",
        ("ece_s1", "ece_s2", "kde_ece", "mmce", "ks", "ece_em", "ece_ew", "ece_r2"),
    ),
    Level("class-wise", "class_wise", ("cwece_s", "cwece_a", "cwece_r2", "tcwece", "tcwece_k")),
    Level("canonical", "class_wise", ("dkde_ce",)),
    Level("proper score", "score", ("nll", "brier")),
)


# -- training ---------------------------------------------------------------------------------------------


def train(data: Path, device: str, seeds: int, minutes: float, file: Path = MAPS) -> None:
    """Train what the file lacks, seed by seed, and stop to begin new trainings after some minutes."""
    end = time.monotonic() + 60 * minutes
    kept = KeptMaps.read(file)
    for seed in range(seeds):
        for name in TASKS:
            for objective in OBJECTIVES:
                if kept.has(name, objective, seed):
                    continue
                if time.monotonic() > end:
                    return
                start = time.monotonic()
                kept.add(_trained(name, data, objective, seed, device))
                kept.write(file)
                print(name, objective, seed, f"{time.monotonic() - start:.1f} s", flush=True)


def _trained(
    name: str, data: Path, objective: str, seed: int, device: str
) -> list[tuple[dict[str, Any], TableMap | MixtureMap]]:
    """Return the chosen map of each selector, with the facts of its training."""
    from hcal.h_calibration.candidates import TrainingPlan, train_candidates
    from hcal.h_calibration.training import SELECTORS, AdamSettings

    task = load_task(name, data)
    plan = TrainingPlan(
        select=tuple(SELECTORS),
        objective=_objective(objective),
        adam=AdamSettings(epochs=EPOCHS),
        init="identity",
        random_state=seed,
        device=device,
    )
    chosen = train_candidates(task.logits_cal, task.y_cal, plan)
    labelled = []
    for selector, fitted in chosen.items():
        facts = {
            "task": name,
            "objective": objective,
            "seed": seed,
            "selector": selector,
            "map": fitted.details["map"],
            "epoch": fitted.details["epoch"],
        }
        assert isinstance(fitted.map, TableMap | MixtureMap)
        labelled.append((stamped(facts), fitted.map))
    return labelled


def _objective(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    from hcal.h_calibration.loss import HCalibrationLoss
    from hcal.h_calibration.training import torch_nll

    return HCalibrationLoss(check=False) if name == "h" else torch_nll


class KeptMaps:
    """The chosen maps of all trainings, with their facts, in one file of arrays."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []
        self.maps: list[TableMap | MixtureMap] = []

    @classmethod
    def read(cls, file: Path) -> KeptMaps:
        """Return the maps of a file; none where there is no file."""
        kept = cls()
        if not file.exists():
            return kept
        with np.load(file, allow_pickle=False) as arrays:
            kept.facts = json.loads(str(arrays["facts"]))
            kept.maps = [_map_of(facts, arrays, i) for i, facts in enumerate(kept.facts)]
        return kept

    def write(self, file: Path) -> None:
        """Write all maps; the file is replaced as a whole."""
        arrays: dict[str, Any] = {"facts": np.array(json.dumps(self.facts))}
        for i, chosen in enumerate(self.maps):
            if isinstance(chosen, TableMap):
                arrays[f"{i}/table"] = np.asarray(chosen.table)
                arrays[f"{i}/step"] = np.asarray(chosen.step)
            else:
                arrays[f"{i}/slopes"] = np.asarray(chosen.slopes)
                arrays[f"{i}/shares"] = np.asarray(chosen.shares)
        file.parent.mkdir(exist_ok=True)
        temporary = file.with_suffix(".part.npz")
        np.savez_compressed(temporary, **arrays)
        temporary.replace(file)

    def has(self, task: str, objective: str, seed: int) -> bool:
        """Return whether this training is there."""
        labels = {"task": task, "objective": objective, "seed": seed}
        return any(labels.items() <= facts.items() for facts in self.facts)

    def add(self, labelled: Iterable[tuple[dict[str, Any], TableMap | MixtureMap]]) -> None:
        """Add maps with their facts."""
        for facts, chosen in labelled:
            reference = chosen.reference if isinstance(chosen, TableMap) else "log_softmax"
            self.facts.append({**facts, "reference": reference})
            self.maps.append(chosen)


def _map_of(facts: Mapping[str, Any], arrays: Any, index: int) -> TableMap | MixtureMap:
    if f"{index}/table" in arrays:
        table = arrays[f"{index}/table"]
        return TableMap(table=table, step=arrays[f"{index}/step"], reference=facts["reference"])
    return MixtureMap(slopes=arrays[f"{index}/slopes"], shares=arrays[f"{index}/shares"])


# -- measuring --------------------------------------------------------------------------------------------


def measure(data: Path, jobs: int, maps: Path = MAPS, file: Path = FILE) -> None:
    """Measure every kept map, and every task before calibration, on the test part."""
    from joblib import Parallel, delayed

    kept = KeptMaps.read(maps)
    before = [(stamped({"task": name, "objective": "uncal"}), None) for name in TASKS]
    work = [*before, *zip(kept.facts, kept.maps, strict=True)]
    tasks = [delayed(_measured)(data, facts, chosen) for facts, chosen in work]
    rows = Parallel(n_jobs=jobs)(tasks)
    write_rows(file, rows)


def _measured(
    data: Path, facts: Mapping[str, Any], chosen: TableMap | MixtureMap | None
) -> dict[str, Any]:
    """Return one row of the results file."""
    task = load_task(str(facts["task"]), data)
    logits = task.logits_test
    probs = softmax(logits) if chosen is None else np.exp(chosen(logits))
    columns = ("version", "commit", "task", "objective", "seed", "selector", "map", "epoch")
    row = {name: facts.get(name, "") for name in columns}
    for name in MEASURED:
        if name == "mean_confidence":
            row[name] = float(probs.max(axis=1).mean())
        else:
            row[name] = float(getattr(metrics, name)(probs, task.y_test))
    return row


# -- the page ---------------------------------------------------------------------------------------------


class Experiment:
    """The measured rows, by what the page asks of them."""

    def __init__(self, rows: Sequence[Mapping[str, str]], data_sets: Mapping[str, str]) -> None:
        self.rows = rows
        self.data_sets = data_sets

    def log_error(self, task: str, objective: str, level: Level) -> float:
        """Return the mean over seeds and the metrics of a level of log(error); NaN where nothing ran."""
        values = []
        for row in self._rows_of(task, objective, level.selector):
            errors = [float(row[metric]) for metric in level.metrics]
            values += [math.log(max(error, 1e-12)) for error in errors]
        return float(np.mean(values)) if values else math.nan

    def differences(self, level: Level) -> Float64:
        """Return log(error of h / error of the NLL), one for each data set."""
        by_data_set: dict[str, list[float]] = defaultdict(list)
        for task, data_set in self.data_sets.items():
            difference = self.log_error(task, "h", level) - self.log_error(task, "nll", level)
            if math.isfinite(difference):
                by_data_set[data_set].append(difference)
        return np.array([np.mean(differences) for differences in by_data_set.values()])

    def ratio(self, level: Level) -> tuple[float, float, float, int]:
        """Return the geometric mean over data sets of h / NLL, its 95 % Student interval, and their number."""
        return geometric_mean(self.differences(level))

    def task_ratio(self, task: str, level: Level) -> float:
        """Return error of h / error of the NLL on one task."""
        difference = self.log_error(task, "h", level) - self.log_error(task, "nll", level)
        return math.exp(difference)

    def n_seeds(self) -> int:
        """Return the largest number of seeds."""
        return len({row["seed"] for row in self.rows if row["objective"] == "h"})

    def _rows_of(self, task: str, objective: str, selector: str) -> list[Mapping[str, str]]:
        labels = {"task": task, "objective": objective, "selector": selector}
        return [row for row in self.rows if labels.items() <= row.items()]


def geometric_mean(logs: Float64) -> tuple[float, float, float, int]:
    """Return the geometric mean, its 95 % Student interval, and how many values there are.

    >>> geometric_mean(np.zeros(3))
    (1.0, 1.0, 1.0, 3)
    """
    from scipy.stats import t

    if len(logs) < 2:
        return math.nan, math.nan, math.nan, len(logs)
    mean = logs.mean()
    standard_error = logs.std(ddof=1) / math.sqrt(len(logs))
    half_width = t.ppf(0.975, len(logs) - 1) * standard_error
    low = math.exp(mean - half_width)
    high = math.exp(mean + half_width)
    return math.exp(mean), low, high, len(logs)


def experiment_of(file: Path = FILE) -> Experiment:
    """Return the experiment of the results file."""
    return Experiment(read_rows(file), TASKS)


def page(experiment: Experiment) -> list[str]:
    """Return the lines of the page."""
    titles = [level.title for level in LEVELS]
    ratios = [cell(experiment.ratio(level)) for level in LEVELS]
    lines = [
        "# The central experiment",
        "",
        "Generated by `python -m studies.central page` from `results/central.csv`, which was "
        f"written by {origins(experiment.rows)}. Each cell is the error of h divided by the error "
        f"of the NLL: below 1, h is better. Maps, training (at most {EPOCHS} epochs from the "
        f"identity), seeds (up to {experiment.n_seeds()}) and selectors are the same. The mean is "
        "geometric over seeds and the metrics of a level; the last line is over data sets, with "
        "its 95 % Student interval.",
        "",
        "| task | " + " | ".join(titles) + " |",
        "|---|" + "---:|" * len(titles),
    ]
    for task in TASKS:
        cells = [f"{experiment.task_ratio(task, level):.3f}" for level in LEVELS]
        lines.append(f"| `{task}` | {' | '.join(cells)} |")
    lines.append(f"| **data sets** | {' | '.join(ratios)} |")
    lines += ["", "| level | chosen by | errors |", "|---|---|---|"]
    for level in LEVELS:
        names = ", ".join(f"`{name}`" for name in level.metrics)
        lines.append(f"| {level.title} | `{level.selector}` | {names} |")
    return lines


def cell(ratio: tuple[float, float, float, int]) -> str:
    """Return a ratio with its interval as text.

    >>> cell((0.94, 0.81, 1.09, 5))
    '0.94 [0.81, 1.09] (5)'
    """
    value, low, high, count = ratio
    return "–" if math.isnan(value) else f"{value:.2f} [{low:.2f}, {high:.2f}] ({count})"


def draw(experiment: Experiment, path: Path = FIGURE) -> Path:
    """Draw the ratios of all tasks and their mean over data sets, a panel a level."""
    with styled() as plt:
        figure, axes = plt.subplots(
            1, len(LEVELS), figsize=(9, 2.8), sharey=True, layout="constrained"
        )
        names = [*TASKS, "data sets"]
        for axis, level in zip(axes, LEVELS, strict=True):
            for height, task in enumerate(TASKS):
                axis.plot(experiment.task_ratio(task, level), height, "o", color="#8a8a8a")
            mean, low, high, _ = experiment.ratio(level)
            axis.plot([low, high], [len(TASKS)] * 2, color=SUBJECT)
            axis.plot(mean, len(TASKS), "D", color=SUBJECT)
            axis.axvline(1, color="black", linewidth=0.8)
            axis.set(title=level.title, xscale="log", xlabel="error of h / error of NLL")
            axis.set_xticks([0.7, 1, 1.4], ["0.7", "1", "1.4"])
            axis.set_xticks([], minor=True)
            axis.set_yticks(range(len(names)), names)
        axes[0].invert_yaxis()
        return save_figure(figure, path)


# -- the older experiment ---------------------------------------------------------------------------------

_OLD_TOP_LABEL: Final = ("ece_ew", "ks")


def old_ratio(start: str, rows: Sequence[Mapping[str, str]]) -> tuple[float, float, float, int]:
    """Return the ratio h / NLL of the top-label errors in the experiment of 0.2, over data sets.

    The networks of one data set count as one, and so do the tables of one data set.
    """
    logs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if (row["schedule"], row["start"], row["selector"]) == ("early-stop", start, "top-label"):
            values = [math.log(max(float(row[metric]), 1e-12)) for metric in _OLD_TOP_LABEL]
            logs[row["task"], row["objective"]].append(float(np.mean(values)))
    by_data_set: dict[str, list[float]] = defaultdict(list)
    for task in sorted({task for task, _ in logs}):
        if (task, "h") in logs and (task, "nll") in logs:
            difference = np.mean(logs[task, "h"]) - np.mean(logs[task, "nll"])
            by_data_set[_old_data_set(task)].append(float(difference))
    return geometric_mean(np.array([np.mean(part) for part in by_data_set.values()]))


def old_collapses(rows: Sequence[Mapping[str, str]], objective: str) -> tuple[int, int]:
    """Return how many maps of the class-wise selector are nearly uniform, and how many there are.

    Training began at the published start. The rule is that of the warning of ``hcal.evaluate``, on the test rows.
    """
    before = {row["task"]: float(row["nll"]) for row in rows if row["objective"] == "uncal"}
    setting = {
        "schedule": "early-stop",
        "start": "published",
        "selector": "class-wise",
        "objective": objective,
    }
    chosen = [row for row in rows if setting.items() <= row.items()]
    collapsed = [row for row in chosen if _reasons(row, before[row["task"]])]
    return len(collapsed), len(chosen)


def _reasons(row: Mapping[str, str], nll_before: float) -> list[str]:
    """Return why the predictor of a row counts as nearly uniform."""
    return collapse_reasons(
        accuracy=float(row["accuracy"]),
        mean_confidence=float(row["mean_confidence"]),
        nll=float(row["nll"]),
        n_classes=int(row["n_classes"]),
        nll_before=nll_before,
    )


def _old_data_set(task: str) -> str:
    """Return the data set of a task: what its name begins with; generated data are one."""
    return "generated" if "-k1000-" in task else task.partition("_")[0]


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["train", "measure", "page"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no training after")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.command == "train":
        train(arguments.data, arguments.device, arguments.seeds, arguments.minutes)
    elif arguments.command == "measure":
        measure(arguments.data, arguments.jobs)
    else:
        experiment = experiment_of()
        write_text(PAGE, "\n".join(page(experiment)) + "\n")
        print(PAGE, draw(experiment))


if __name__ == "__main__":
    main()
