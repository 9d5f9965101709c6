"""The central experiment in many processes: small tasks on the cores, large ones on the GPU.

``python -m studies.central_parallel --data FOLDER --out FILE --tasks tabular --cpu 12 --gpu 3`` runs what is
missing in FILE, a group (task, objective, schedule) at a time. Largest tasks come first, generated ones last;
processes on the GPU begin at the front and those on the cores with the last small ones. Each writes a file of
its own, which are put into FILE in the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import MutableSequence, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import multiprocessing

from hcal.maps.module import Init
from studies.central_experiment import (
    STARTS,
    Task,
    arguments_of,
    load_task,
    run,
    schedules_of,
    task_names,
)
from studies.central_table import Table, merge_tables

#: Up to so many events (rows × classes) a task may be trained on a core.
SMALL: Final = 15_000


class Group(NamedTuple):
    """What one process trains at a time, and how many events it has."""

    task: str
    objective: str
    schedule: str
    events: int


@dataclass(frozen=True)
class Wanted:
    """What every process knows: the arguments of the run and when to begin nothing more."""

    data: Path
    out: Path
    maps: list[str]
    seeds: int
    epochs: int | None
    until: float
    starts: Sequence[Init] = STARTS

    def part(self, number: int) -> Path:
        """Return the file of one process."""
        return self.out.with_name(f"{self.out.stem}.part{number}.csv")


def order_tasks(tasks: list[Task]) -> list[Task]:
    """Return the largest tasks first, and those whose truth is known (generated) after all others."""
    return sorted(tasks, key=lambda t: (t.true_test is not None, -t.x_cal.size))


def take(groups: MutableSequence[Group], on_core: bool) -> Group | None:
    """Take a group off the list: the first, or for a core the last that is small.

    Examples
    --------
    >>> left = [Group("a", "h", "s", 99_000), Group("b", "h", "s", 900), Group("c", "h", "s", 99_000)]
    >>> take(left, True).task, take(left, True), take(left, False).task
    ('b', None, 'a')
    """
    places = range(len(groups) - 1, -1, -1) if on_core else range(len(groups))
    for place in places:
        if not on_core or groups[place].events <= SMALL:
            return groups.pop(place)
    return None


def work(
    number: int,
    device: str,
    wanted: Wanted,
    groups: MutableSequence[Group],
    lock: AbstractContextManager[Any],
) -> None:
    """Train groups until none is left or the time is over."""
    torch.set_num_threads(1)
    table = Table(wanted.part(number))
    while time.monotonic() < wanted.until:
        with lock:
            group = take(groups, device == "cpu")
        if group is None:
            return
        run(
            iter([load_task(wanted.data, group.task)]),
            table,
            None,
            schedules=schedules_of(group.schedule, wanted.epochs),
            objectives=[group.objective],
            maps=wanted.maps,
            seeds=wanted.seeds,
            starts=wanted.starts,
            device=torch.device(device),
        )


def run_parallel(wanted: Wanted, groups: list[Group], devices: list[str], grace: float) -> int:
    """Run the groups, a process a device; return how many rows the file has gained.

    Parameters
    ----------
    wanted : Wanted
    groups : list of Group
        In the order of :func:`order_tasks`.
    devices : list of str
        Of torch; one may be there several times.
    grace : float
        Seconds after ``wanted.until``; who is still at work then is ended, and its group is lost.
    """
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        left, lock = manager.list(groups), manager.Lock()
        workers = [
            context.Process(target=work, args=(number, device, wanted, left, lock))
            for number, device in enumerate(devices)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.0, min(wanted.until - time.monotonic() + grace, 1e6)))
            if worker.is_alive():
                worker.terminate()
                worker.join()
    parts = [wanted.part(number) for number in range(len(devices))]
    gained = merge_tables(wanted.out, parts)
    for part in parts:
        part.unlink(missing_ok=True)
    return gained


def main(arguments: list[str] | None = None) -> None:
    """Read the arguments and run."""
    parser = arguments_of(__doc__)
    parser.add_argument("--cpu", type=int, default=os.cpu_count() or 1, help="processes on cores")
    parser.add_argument("--gpu", type=int, default=0, help="processes on the GPU")
    parser.add_argument("--grace", type=float, default=2.0, help="minutes after --minutes to end a group in")
    args = parser.parse_args(arguments)
    until = time.monotonic() + 60 * args.minutes
    wanted = Wanted(args.data, args.out, args.maps.split(","), args.seeds, args.epochs, until, args.starts)
    done = Table(args.out).done
    tasks = order_tasks([load_task(args.data, n) for n in task_names(args.data, args.tasks.split(","))])
    groups = [
        Group(t.name, objective, schedule, t.x_cal.size)
        for t in tasks
        for schedule in args.schedules.split(",")
        for objective in args.objectives.split(",")
        if (t.name, objective, schedule) not in done
    ]
    devices = ["cuda"] * args.gpu + ["cpu"] * args.cpu
    gained = run_parallel(wanted, groups, devices, 60 * args.grace)
    print(f"{gained} new rows in {args.out}; {len(groups)} groups were missing", flush=True)


if __name__ == "__main__":
    main()
