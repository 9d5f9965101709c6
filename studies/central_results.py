"""The results of the central experiment, by what its page asks of them: ratios of errors, wins, collapses."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hcal.evaluation import collapse_reasons
from hcal.numerics import Float64
from studies.central_experiment import TABULAR
from studies.paired import PairedInterval, paired_over_tasks

#: Level -> the selector that the paper takes for it, and the metrics that are averaged.
LEVELS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "top-label": ("top-label", ("ece_ew", "ks")),
    "class-wise": ("class-wise", ("cwece_a", "tcwece")),
    "proper score": ("nll", ("nll", "brier")),
}
RIVALS: Final = {"nll": "NLL", "brier": "Brier", "focal": "focal", "smoothing": "label smoothing"}
SCHEDULES: Final = {"early-stop": "published schedule", "to-the-end": "no early stop"}
STARTS: Final = ("published", "identity")
#: Log-ratios of errors below this are a tie.
TIE: Final = 0.02


@dataclass(frozen=True)
class Entry:
    """One row of the results: what was trained, what was chosen, and its scores."""

    task: str
    objective: str
    schedule: str
    start: str
    seed: int
    selector: str
    map: str
    n_classes: int
    epoch: int
    scores: Mapping[str, float]


def read_entries(path: Path) -> list[Entry]:
    """Read the results; rows that are there twice count once, the last of them.

    Parameters
    ----------
    path : Path

    Returns
    -------
    list of Entry
    """
    names = {m for _, metrics in LEVELS.values() for m in metrics} | {
        "accuracy",
        "mean_confidence",
        "truth_tv",
    }
    found: dict[tuple[str, ...], Entry] = {}
    with path.open(newline="") as file:
        for r in csv.DictReader(file):
            scores = {n: float(r[n]) for n in names if r.get(n)}
            key = (r["task"], r["objective"], r["schedule"], r["start"], r["seed"], r["selector"])
            found[key] = Entry(
                *key[:4],
                int(r["seed"]),
                r["selector"],
                r["map"],
                int(r["n_classes"]),
                int(r["epoch"] or 0),
                scores,
            )
    return list(found.values())


class Experiment:
    """The results, by what the page asks of them.

    Parameters
    ----------
    entries : iterable of Entry
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.before: dict[str, Entry] = {}
        self._cells: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
        for e in entries:
            if e.objective == "uncal":
                self.before[e.task] = e
            else:
                self._cells[e.task, e.objective, e.schedule, e.start, e.selector].append(e)
        self.tasks = sorted(self.before)
        self.seeds = max((len(c) for c in self._cells.values()), default=0)

    def chosen(self, task: str, objective: str, schedule: str, start: str, selector: str) -> list[Entry]:
        """Return what was chosen, one a seed."""
        return self._cells.get((task, objective, schedule, start, selector), [])

    def by_seed(self, task: str, objective: str, schedule: str, start: str, level: str) -> Float64:
        """Return the mean over the metrics of a level of log(error), one a seed."""
        selector, metrics = LEVELS[level]
        found = self.chosen(task, objective, schedule, start, selector)
        values = [[math.log(max(e.scores[m], 1e-12)) for m in metrics] for e in found]
        return np.asarray(np.array(values, dtype=np.float64).reshape(len(found), len(metrics)).mean(axis=1))

    def log_error(self, task: str, objective: str, schedule: str, start: str, level: str) -> float:
        """Return the mean over seeds and the metrics of a level of log(error); NaN where nothing ran."""
        found = self.by_seed(task, objective, schedule, start, level)
        return float(found.mean()) if found.size else float("nan")

    def differences(
        self, rival: str, schedule: str, start: str, level: str, tasks: Sequence[str] | None = None
    ) -> Float64:
        """Return log(error of h / error of the rival) where both ran, one for each :func:`_unit`."""
        found: dict[str, list[float]] = defaultdict(list)
        for t in self.tasks if tasks is None else tasks:
            h, other = (self.log_error(t, o, schedule, start, level) for o in ("h", rival))
            if math.isfinite(h - other):
                found[_unit(t)].append(h - other)
        return np.array([np.mean(d) for d in found.values()], dtype=np.float64)

    def ratio(
        self, rival: str, schedule: str, start: str, level: str, tasks: Sequence[str] | None = None
    ) -> PairedInterval:
        """Return the log-ratio of errors h / rival with its interval over tasks."""
        return paired_over_tasks(self.differences(rival, schedule, start, level, tasks))

    def wins(self, rival: str, schedule: str, start: str, level: str) -> tuple[int, int, int]:
        """Return where h is better by more than 2 %, where the rival is, and how many were compared."""
        d = self.differences(rival, schedule, start, level)
        return int((d < -TIE).sum()), int((d > TIE).sum()), d.size

    def collapsed(self, objective: str, schedule: str, start: str, selector: str) -> tuple[int, int]:
        """Return how many of the chosen predictors are collapsed, and of how many."""
        found = [e for t in self.tasks for e in self.chosen(t, objective, schedule, start, selector)]
        return sum(self._is_collapsed(e) for e in found), len(found)

    def untrained(self, tasks: Sequence[str], start: str, selector: str) -> tuple[int, int]:
        """Return how many choices of any objective and schedule are the first epoch, and of how many."""
        found = [
            e
            for (t, _, _, i, s), c in self._cells.items()
            if (i, s) == (start, selector) and t in tasks
            for e in c
        ]
        return sum(e.epoch == 1 for e in found), len(found)

    def _is_collapsed(self, e: Entry) -> bool:
        s = e.scores
        return bool(
            collapse_reasons(
                accuracy=s["accuracy"],
                mean_confidence=s["mean_confidence"],
                nll=s["nll"],
                n_classes=e.n_classes,
                nll_before=self.before[e.task].scores["nll"],
            )
        )

    def parts(self) -> dict[str, list[str]]:
        """Return the splits of the tasks: by the number of classes, and by how wrong they are before."""
        error = {t: self.before[t].scores["ece_ew"] for t in self.tasks}
        middle = float(np.median(list(error.values())))
        k = {t: self.before[t].n_classes for t in self.tasks}
        out = {
            "all tasks": self.tasks,
            "K ≤ 10": [t for t in self.tasks if k[t] <= 10],
            "K > 10": [t for t in self.tasks if k[t] > 10],
            f"ECE before ≤ {middle:.3f}": [t for t in self.tasks if error[t] <= middle],
            f"ECE before > {middle:.3f}": [t for t in self.tasks if error[t] > middle],
        }
        kinds = self.kinds()
        return {**out, **kinds} if len(kinds) > 1 else out

    def kinds(self) -> dict[str, list[str]]:
        """Return the tasks by what they come from: networks, tables, generated ones with a known truth."""
        out: dict[str, list[str]] = {"networks": [], "tables": [], "generated": []}
        for t in self.tasks:
            known = "truth_tv" in self.before[t].scores
            out["generated" if known else "tables" if _is_table(t) else "networks"].append(t)
        return {kind: tasks for kind, tasks in out.items() if tasks}

    def described(self) -> str:
        """Return how many tasks there are, by kind."""
        names = {"networks": "networks", "generated": "generated with 1000 classes"}
        said = []
        for kind, tasks in self.kinds().items():
            sets = len({_unit(t) for t in tasks})
            said.append(f"{len(tasks)} {names.get(kind, f'tables of {sets} data sets')}")
        return ", ".join(said)


def _is_table(task: str) -> bool:
    return task.partition("_")[0] in TABULAR


def _unit(task: str) -> str:
    """Return what counts as one: a task, or a data set, whose models share its test rows."""
    return task.partition("_")[0] if _is_table(task) else task
