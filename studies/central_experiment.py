"""The paper's central experiment, in full: does the h objective beat its rivals, all else equal?

``python -m studies.central_experiment --data FOLDER --out FILE`` trains every objective (h, NLL, Brier,
focal, label smoothing) on the paper's twelve maps, from the published and from the identity start, with three
seeds, with the published schedule and without its early stop, and keeps the best map and epoch by the same
three selectors. It needs torch and numpy alone, uses a GPU where there is one, and continues a file that is
there: with ``--minutes`` it ends in time and is called again.

Rows: one for each task, objective, schedule, start, seed and selector (``map`` says which map was chosen),
and with ``--all-maps FILE`` one for each map as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcal.bench.synthetic import parse_synthetic
from hcal.maps.module import Init
from hcal.maps.presets import PAPER_MAPS
from hcal.solvers.monitors import SELECTORS
from studies.central_losses import CONSTANTS, OBJECTIVES, SCORES, new_objective
from studies.central_table import Table
from studies.central_training import Member, Schedule, Start, build_members, scores_of, train_together

#: Generated tasks with a known truth and K = 1000: 2.5 million events fit one recorded epoch.
GENERATED: Final = tuple(f"{kind}-k1000-n2500-s0" for kind in ("temperature", "class_bias", "non_monotone"))
#: The shared tasks, small ones first, so that a run that is cut short has whole tasks.
NETWORKS: Final = (
    "cifar10_resnet110",
    "cifar10_resnet50",
    "cifar10_wideresnet",
    "cifar10_resnet50_weak",
    "agnews_gpt2",
    "pathmnist_resnet50",
    "cifar10lt_resnet110",
    "cifar100_resnet50",
    "cifar100_resnet110",
    "cifar100_wideresnet_probs",
)
TABULAR: Final = ("car", "digits", "letter", "pendigits", "thyroid", "yeast")
STARTS: Final[tuple[Init, ...]] = ("published", "identity")
#: Name -> schedule: the published one, and a constant learning rate to the end.
SCHEDULES: Final[Mapping[str, Schedule]] = {
    "early-stop": Schedule(epochs=1000),
    "to-the-end": Schedule(epochs=600, plateau=0, patience=0),
}


@dataclass(frozen=True)
class Task:
    """Log-probabilities and labels of both parts, and the truth of the test rows where it is known."""

    name: str
    x_cal: NDArray[np.float32]
    y_cal: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    true_test: NDArray[np.float64] | None = None


def read_task(path: Path) -> Task:
    """Return a task from an ``.npz`` file with ``logits_*`` or ``probs_*`` and ``y_*``.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Task
    """
    with np.load(path) as stored:
        part = {name: _log_probs(stored, name) for name in ("cal", "test")}
        y_cal, y_test = (stored[f"y_{name}"].astype(np.int64) for name in ("cal", "test"))
    return Task(path.stem, part["cal"], y_cal, part["test"], y_test)


def _log_probs(stored: Mapping[str, Any], part: str) -> NDArray[np.float32]:
    if f"logits_{part}" in stored:
        logits = np.asarray(stored[f"logits_{part}"], dtype=np.float64)
    else:
        probs = np.asarray(stored[f"probs_{part}"], dtype=np.float64)
        logits = np.log(np.maximum(probs, np.finfo(np.float32).tiny))
    return _normalised(logits)


def _normalised(logits: NDArray[np.float64]) -> NDArray[np.float32]:
    from hcal.numerics import log_softmax

    return log_softmax(logits).astype(np.float32)


def generated_task(name: str) -> Task:
    """Return a generated task by its name, such as ``temperature-k1000-n2500-s0``.

    Examples
    --------
    >>> generated_task("temperature-k3-n20-s0").x_test.shape
    (20, 3)
    """
    made = parse_synthetic(name)
    cal, test = _normalised(made.logits_cal), _normalised(made.logits_test)
    return Task(name, cal, made.y_cal, test, made.y_test, made.true_test)


def task_names(data: Path, wanted: Sequence[str]) -> list[str]:
    """Return the names of the tasks, in this order; a name of a group stands for all of it.

    Parameters
    ----------
    data : Path
        A folder with the ``.npz`` files of the shared tasks, and ``tabular/`` in it.
    wanted : sequence of str
        ``networks``, ``tabular``, ``generated``, names of files without ``.npz``, or of generated tasks.

    Examples
    --------
    >>> task_names(Path(), ["generated", "agnews_gpt2"])[2:]
    ['non_monotone-k1000-n2500-s0', 'agnews_gpt2']
    """
    tables = sorted(p.stem for p in (data / "tabular").glob("*.npz") if _is_multiclass(p))
    groups = {"networks": NETWORKS, "tabular": tables, "generated": GENERATED}
    return [task for name in wanted for task in groups.get(name, [name])]


def load_task(data: Path, name: str) -> Task:
    """Return a task of :func:`task_names`: of a file where there is one, else generated."""
    for path in (data / f"{name}.npz", data / "tabular" / f"{name}.npz"):
        if path.exists():
            return read_task(path)
    return generated_task(name)


def _is_multiclass(path: Path) -> bool:
    return path.stem.split("_")[0] in TABULAR and not path.stem.endswith("_c300")


def starts_of(maps: Sequence[str], seeds: int, inits: Sequence[Init] = STARTS) -> list[Start]:
    """Return every distinct start: where nothing is random, one seed stands for all.

    A piecewise map starts at the identity either way; an ensemble at the identity is not random.

    Examples
    --------
    >>> len(starts_of(PAPER_MAPS, 3)), len(starts_of(PAPER_MAPS, 3, ["identity"]))
    (44, 20)
    """
    out = []
    for name in maps:
        family = name.partition("-")[0]
        for init in ("identity",) if family == "piecewise" else inits:
            random = family == "monotonic" or (family == "ensemble" and init == "published")
            out += [Start(name, init, seed) for seed in range(seeds if random else 1)]
    return out


def candidates(members: Sequence[Member], init: Init, seed: int) -> list[Member]:
    """Return one member for each map: that of this start and seed, or the one that stands for it."""
    found: dict[str, Member] = {}
    for member in members:
        s = member.start
        family = s.map.partition("-")[0]
        same = family == "piecewise" or (
            s.init == init and (s.seed == seed or (family == "ensemble" and init == "identity"))
        )
        if same:
            found[s.map] = member
    return list(found.values())


@dataclass(frozen=True)
class OnDevice:
    """A task as tensors."""

    x_cal: Tensor
    y_cal: Tensor
    x_test: Tensor
    y_test: Tensor
    true_test: Tensor | None

    @classmethod
    def of(cls, task: Task, device: torch.device) -> OnDevice:
        """Copy a task to a device."""
        x_cal, y_cal, x_test, y_test = (
            torch.from_numpy(a).to(device) for a in (task.x_cal, task.y_cal, task.x_test, task.y_test)
        )
        true = None if task.true_test is None else torch.from_numpy(task.true_test).to(device)
        return cls(x_cal, y_cal, x_test, y_test, true)

    def measure(self, probs: Tensor) -> dict[str, float]:
        """Return the scores of predictions for the test rows."""
        out = scores_of(probs, self.y_test, SCORES)
        if self.true_test is not None:
            out["truth_tv"] = float(0.5 * (probs.double() - self.true_test).abs().sum(dim=1).mean())
        return out


def run_group(
    task: Task,
    on: OnDevice,
    objective: str,
    schedule: str,
    settings: Schedule,
    maps: Sequence[str],
    seeds: int,
    all_maps: bool = True,
    starts: Sequence[Init] = STARTS,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train one objective with one schedule on one task; return the chosen rows and those of every map.

    Parameters
    ----------
    task, on : Task and the same as tensors
    objective, schedule : str
    settings : Schedule
    maps : sequence of str
    seeds : int
    all_maps : bool
        Whether the second list is asked for.
    starts : sequence of str

    Returns
    -------
    two lists of rows
    """
    wanted = starts_of(maps, seeds, starts)
    members = build_members(wanted, on.x_cal, on.y_cal, new_objective(objective), settings)
    epochs = train_together(members)
    shape = {"n_classes": task.x_cal.shape[1], "n_cal": len(task.y_cal), "n_test": len(task.y_test)}
    common = {"task": task.name, "objective": objective, "schedule": schedule, "epochs": epochs, **shape}
    rows: dict[tuple[int, str], dict[str, Any]] = {}

    def row(m: Member, select: str) -> dict[str, Any]:
        key = (id(m), select)
        if key not in rows:
            rows[key] = _row(common, m, select, on.measure(m.predict(select, on.x_test)))
        return rows[key]

    chosen = []
    for init in starts:
        for seed in range(seeds):
            for select in SELECTORS:
                best = min(candidates(members, init, seed), key=lambda m: m.choices()[select].score)
                chosen.append({**row(best, select), "start": init, "seed": seed})
    return chosen, [row(m, select) for m in members for select in SELECTORS] if all_maps else []


def _row(
    common: Mapping[str, Any], member: Member, select: str, scores: Mapping[str, float]
) -> dict[str, Any]:
    choice, start = member.choices()[select], member.start
    own = {"map": start.map, "start": start.init, "seed": start.seed, "selector": select}
    return {**common, **own, "epoch": choice.epoch, "selected_by": choice.score, **scores}


def before_row(task: Task, on: OnDevice) -> dict[str, Any]:
    """Return the row of the uncalibrated predictions."""
    scores = on.measure(on.x_test.exp())
    shape = {"n_classes": task.x_cal.shape[1], "n_cal": len(task.y_cal), "n_test": len(task.y_test)}
    return {"task": task.name, "objective": "uncal", "map": "", "seed": 0, **shape, **scores}


def run(
    tasks: Iterator[Task],
    table: Table,
    every: Table | None,
    *,
    schedules: Mapping[str, Schedule],
    objectives: Sequence[str] = tuple(OBJECTIVES),
    maps: Sequence[str] = PAPER_MAPS,
    seeds: int = 3,
    starts: Sequence[Init] = STARTS,
    device: torch.device | None = None,
    until: float = float("inf"),
) -> bool:
    """Run what is missing in the table; return whether everything is there.

    Parameters
    ----------
    tasks : iterator of Task
    table : Table
        Of the chosen maps.
    every : Table, optional
        Of all maps.
    schedules : mapping of str to Schedule
    objectives, maps : sequences of str
    seeds : int
    starts : sequence of str
    device : torch.device, optional
    until : float
        No group is begun after this moment of :func:`time.monotonic`.

    Returns
    -------
    bool
    """
    where = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for task in tasks:
        groups = [(o, s) for s in schedules for o in objectives if (task.name, o, s) not in table.done]
        if not groups:
            continue
        on = OnDevice.of(task, where)
        if (task.name, "uncal", "") not in table.done:
            table.append([before_row(task, on)])
        for objective, schedule in groups:
            if time.monotonic() > until:
                return False
            began = time.monotonic()
            chosen, all_rows = run_group(
                task, on, objective, schedule, schedules[schedule], maps, seeds, every is not None, starts
            )
            table.append(chosen)
            if every is not None:
                every.append(all_rows)
            took, epochs = time.monotonic() - began, chosen[0]["epochs"]
            print(f"{task.name} {objective} {schedule}: {epochs} epochs, {took:.1f} s", flush=True)
    return True


def schedules_of(names: str, most: int | None) -> dict[str, Schedule]:
    """Return the schedules named by commas, of at most so many epochs."""
    wanted = {name: SCHEDULES[name] for name in names.split(",")}
    return {n: replace(s, epochs=min(s.epochs, most)) if most else s for n, s in wanted.items()}


def arguments_of(description: str | None) -> argparse.ArgumentParser:
    """Return the arguments that say what to run."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the .npz files (tabular/ in it)")
    parser.add_argument("--out", type=Path, required=True, help="the CSV of chosen maps; continued if there")
    parser.add_argument("--tasks", default="networks,tabular,generated", help="by commas")
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="by commas")
    parser.add_argument(
        "--objectives", default=",".join(OBJECTIVES), help=f"by commas; also {', '.join(CONSTANTS[1:])}"
    )
    parser.add_argument("--maps", default=",".join(PAPER_MAPS), help="by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--epochs", type=int, help="at most so many, for any schedule")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after this long")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and run."""
    parser = arguments_of(__doc__)
    parser.add_argument("--all-maps", type=Path, help="a CSV of every map, too")
    args = parser.parse_args(arguments)
    until = time.monotonic() + 60 * args.minutes
    names = task_names(args.data, args.tasks.split(","))
    done = run(
        (load_task(args.data, name) for name in names),
        Table(args.out),
        Table(args.all_maps) if args.all_maps else None,
        schedules=schedules_of(args.schedules, args.epochs),
        objectives=args.objectives.split(","),
        maps=args.maps.split(","),
        seeds=args.seeds,
        starts=args.starts,
        until=until,
    )
    print("complete" if done else "out of time: call again with the same files", flush=True)


if __name__ == "__main__":
    main()
