"""The paper's central experiment: does the h objective beat its rivals, all else equal?

    python -m studies.central run --data FOLDER --tasks cifar10_resnet110 --out results/central-new.csv
    python -m studies.central page     # writes studies/central-experiment.md from results/central.csv

Every objective (h, NLL, Brier, focal loss, smoothed labels) is trained on the paper's twelve maps, from the published
and from the identity start, and the best map and epoch are chosen by the same three selectors. ``run`` continues a
file that is there. ``results/central.csv`` was written by version 0.2 on an H200, with at most 1000 epochs (600 without
the early stop) where the paper has 2000.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hcal import metrics
from hcal.numerics import Float64, softmax
from studies.drawing import SUBJECT, save_figure, styled, write_text
from studies.tasks import load_task

if TYPE_CHECKING:
    from torch import Tensor

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "results" / "central.csv"
PAGE: Final = ROOT / "studies" / "central-experiment.md"
FIGURE: Final = ROOT / "docs" / "assets" / "central.svg"

#: γ of the focal loss and the share of the uniform distribution in smoothed labels: the usual values.
FOCUS: Final = 3.0
SMOOTHING: Final = 0.05
RIVALS: Final = {
    "nll": "NLL",
    "brier": "Brier",
    "focal": "focal loss",
    "smoothing": "smoothed labels",
}
STARTS: Final = ("identity", "published")
TABULAR: Final = ("car", "digits", "letter", "pendigits", "thyroid", "yeast")
MEASURED: Final = (
    "ece_ew",
    "dece",
    "ks",
    "cwece_a",
    "tcwece",
    "nll",
    "brier",
    "accuracy",
    "mean_confidence",
)
FIELDS: Final = (
    "task", "objective", "schedule", "start", "seed", "selector", "map", "epoch", "n_classes", *MEASURED, "version",
)  # fmt: skip
#: Level -> the selector that the paper takes for it, as the file names it, and the metrics that are averaged.
LEVELS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "top-label": ("top-label", ("ece_ew", "ks")),
    "class-wise": ("class-wise", ("cwece_a", "tcwece")),
    "proper score": ("nll", ("nll", "brier")),
}
_SELECTOR: Final = {"top_label": "top-label", "class_wise": "class-wise", "score": "nll"}


def brier(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean Brier score, summed over classes; proper."""
    own = probs.gather(1, y[:, None])[:, 0]
    return ((probs * probs).sum(dim=1) - 2 * own + 1).mean()


def focal(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean focal loss −(1 − p_y)³ log p_y (Lin et al., ICCV 2017); not proper."""
    own = _floored(probs).gather(1, y[:, None])[:, 0]
    return -((1 - own).clamp_min(0) ** FOCUS * own.log()).mean()


def smoothed_nll(probs: Tensor, y: Tensor) -> Tensor:
    """Return the NLL of labels smoothed by 0.05; not proper for the labels themselves."""
    log_probs = _floored(probs).log()
    own = log_probs.gather(1, y[:, None])[:, 0]
    return -((1 - SMOOTHING) * own + SMOOTHING * log_probs.mean(dim=1)).mean()


def _floored(probs: Tensor) -> Tensor:
    import torch

    return probs.clamp_min(torch.finfo(probs.dtype).tiny)


def new_objective(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return an objective by name; ``h:window=100`` is the h loss with one constant changed.

    >>> new_objective("h:window=100").settings.window
    100
    """
    from hcal.h_calibration.loss import HCalibrationLoss
    from hcal.h_calibration.training import torch_nll

    rivals = {
        "nll": torch_nll,
        "brier": brier,
        "focal": focal,
        "smoothing": smoothed_nll,
        "h": HCalibrationLoss(),
    }
    if name in rivals:
        return rivals[name]  # type: ignore[return-value]
    constant, _, value = name.removeprefix("h:").partition("=")
    kind = {"window": int, "weighting": str}.get(constant, float)
    return HCalibrationLoss(**{constant: kind(value)})


def run(
    data: Path, out: Path, tasks: Sequence[str], starts: Sequence[str], seeds: int, epochs: int
) -> None:
    """Train and measure what the file lacks."""
    done = (
        {(r["task"], r["objective"], r["start"], r["seed"]) for r in _rows(out)}
        if out.exists()
        else set()
    )
    with out.open("a", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, FIELDS)
        if not done:
            table.writeheader()
        for name in tasks:
            for objective in ("uncal", "h", *RIVALS):
                for start in starts if objective != "uncal" else [""]:
                    for seed in range(seeds if objective != "uncal" else 1):
                        if (name, objective, start, str(seed)) not in done:
                            table.writerows(measure(data, name, objective, start, seed, epochs))
                            file.flush()


def measure(
    data: Path, name: str, objective: str, start: str, seed: int, epochs: int
) -> list[dict[str, Any]]:
    """Return the rows of one task, objective, start and seed: one a selector."""
    import hcal
    from hcal.h_calibration.candidates import TrainingPlan, train_candidates
    from hcal.h_calibration.training import SELECTORS, AdamSettings

    task = load_task(name, data)
    fixed = {
        "task": name,
        "objective": objective,
        "start": start,
        "seed": seed,
        "version": hcal.__version__,
    }
    fixed["n_classes"] = task.logits_cal.shape[1]

    def scores(probs: Float64) -> dict[str, float]:
        found = {
            m: float(getattr(metrics, m)(probs, task.y_test))
            for m in MEASURED
            if m != "mean_confidence"
        }
        return {**found, "mean_confidence": float(probs.max(axis=1).mean())}

    if objective == "uncal":
        return [fixed | scores(softmax(task.logits_test))]
    plan = TrainingPlan(
        select=tuple(SELECTORS),
        objective=new_objective(objective),
        adam=AdamSettings(epochs=epochs),
        init=start,  # type: ignore[arg-type]
        random_state=seed,
    )
    fitted = train_candidates(task.logits_cal, task.y_cal, plan)
    return [
        fixed
        | {
            "schedule": "early-stop",
            "selector": _SELECTOR[select],
            "map": f.details["map"],
            "epoch": f.details["epoch"],
        }
        | scores(np.exp(f.map(task.logits_test)))
        for select, f in fitted.items()
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Experiment:
    """The results, by what the page asks of them."""

    def __init__(self, rows: Iterable[Mapping[str, str]]) -> None:
        last = {
            tuple(
                r[key] for key in ("task", "objective", "schedule", "start", "seed", "selector")
            ): r
            for r in rows
        }
        self.before = {r["task"]: r for r in last.values() if r["objective"] == "uncal"}
        self.tasks = sorted(self.before)
        self._cells: dict[tuple[str, ...], list[Mapping[str, str]]] = defaultdict(list)
        for key, row in last.items():
            self._cells[(*key[:4], key[5])].append(row)

    def log_error(self, task: str, objective: str, start: str, level: str, schedule: str) -> float:
        """Return the mean over seeds and the metrics of a level of log(error); NaN where nothing ran."""
        selector, names = LEVELS[level]
        found = self._cells.get((task, objective, schedule, start, selector), [])
        values = [math.log(max(float(r[m]), 1e-12)) for r in found for m in names]
        return float(np.mean(values)) if values else math.nan

    def differences(
        self, rival: str, start: str, level: str, tasks: Sequence[str], schedule: str = "early-stop"
    ) -> Float64:
        """Return log(error of h / error of the rival), one for each task; tables of one data set count as one."""
        found: dict[str, list[float]] = defaultdict(list)
        for t in tasks:
            h, other = (self.log_error(t, o, start, level, schedule) for o in ("h", rival))
            if math.isfinite(h - other):
                found[_unit(t)].append(h - other)
        return np.array([np.mean(d) for d in found.values()])

    def ratio(self, *arguments: Any, **keywords: Any) -> tuple[float, float, float, int]:
        """Return the geometric mean over tasks of error of h / error of the rival, its 95 % interval, and how many."""
        from scipy.stats import t

        d = self.differences(*arguments, **keywords)
        if len(d) < 2:
            return math.nan, math.nan, math.nan, len(d)
        reach = t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d))
        low, high = math.exp(d.mean() - reach), math.exp(d.mean() + reach)
        return math.exp(d.mean()), low, high, len(d)

    def parts(self) -> dict[str, list[str]]:
        """Return the tasks by the number of classes and by where they come from."""
        k = {t: int(self.before[t]["n_classes"]) for t in self.tasks}
        generated = [t for t in self.tasks if "-k1000-" in t]
        tables = [t for t in self.tasks if t.partition("_")[0] in TABULAR]
        return {
            "all tasks": self.tasks,
            "K ≤ 10": [t for t in self.tasks if k[t] <= 10],
            "K > 10": [t for t in self.tasks if k[t] > 10],
            "networks": [t for t in self.tasks if t not in (*generated, *tables)],
            "tables": tables,
            "generated": generated,
        }


def _unit(task: str) -> str:
    first = task.partition("_")[0]
    return first if first in TABULAR else task


def page(experiment: Experiment) -> list[str]:
    """Return the lines of the page."""
    out = [
        "# The central experiment",
        "",
        "Generated by `python -m studies.central page` from `results/central.csv`, which version 0.2 wrote on an H200 "
        "(at most 1000 epochs). Each cell is the geometric mean over tasks of the error of h divided by the error of "
        "the rival, with its 95 % Student interval over tasks and the number of tasks; below 1, h is better. Maps, "
        "training and selectors are the same for every objective. The tables of one data set count as one task.",
    ]
    for start in STARTS:
        out += [
            "",
            f"## From the {start} start",
            "",
            f"| level, tasks | {' | '.join(RIVALS.values())} |",
        ]
        out.append("|---|" + "---:|" * len(RIVALS))
        for level in LEVELS:
            for name, tasks in experiment.parts().items():
                cells = [cell(experiment.ratio(rival, start, level, tasks)) for rival in RIVALS]
                out.append(f"| {level}, {name} | {' | '.join(cells)} |")
    return out


def cell(found: tuple[float, float, float, int]) -> str:
    """Return a ratio with its interval as text."""
    value, low, high, n = found
    return "–" if math.isnan(value) else f"{value:.2f} [{low:.2f}, {high:.2f}] ({n})"


def draw(experiment: Experiment, path: Path = FIGURE) -> Path:
    """Draw the ratios of all tasks, from both starts."""
    with styled() as plt:
        figure, axes = plt.subplots(
            1, len(LEVELS), figsize=(9, 2.6), sharey=True, layout="constrained"
        )
        for axis, level in zip(axes, LEVELS, strict=True):
            for shift, start, colour in (
                (-0.12, "identity", SUBJECT),
                (0.12, "published", "#8a8a8a"),
            ):
                for at, rival in enumerate(RIVALS):
                    value, low, high, _ = experiment.ratio(rival, start, level, experiment.tasks)
                    axis.plot([low, high], [at + shift] * 2, color=colour)
                    label = f"{start} start" if at == 0 and level == "top-label" else None
                    axis.plot(value, at + shift, "o", color=colour, label=label)
            axis.axvline(1, color="black", linewidth=0.8)
            axis.set(title=level, yticks=range(len(RIVALS)), yticklabels=list(RIVALS.values()))
            axis.set_xlabel("error of h / error of the rival")
        axes[0].invert_yaxis()
        axes[0].legend()
        return save_figure(figure, path)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "central-new.csv")
    parser.add_argument("--tasks", default="cifar10_resnet110", help="by commas")
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2000)
    given = parser.parse_args()
    if given.command == "run":
        tasks, starts = given.tasks.split(","), given.starts.split(",")
        run(given.data, given.out, tasks, starts, given.seeds, given.epochs)
        return
    experiment = Experiment(_rows(RESULTS))
    write_text(PAGE, "\n".join(page(experiment)) + "\n")
    print(PAGE, draw(experiment))


if __name__ == "__main__":
    main()
