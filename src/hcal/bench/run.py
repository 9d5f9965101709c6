"""The runner: tasks × methods × seeds in parallel processes, resumable, one bad cell never fatal.

Every job runs in a fresh process forked from a server that has the heavy imports already. That gives an
honest peak memory, survives crashes and lets a hung cell be stopped. With a scheduler, jobs run on the
workers of a Dask cluster instead (:mod:`hcal.bench.cluster`). Only this process writes results.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from hcal.bench.catalog import metric_key
from hcal.bench.cell import Job, failed_cell, run_job
from hcal.bench.methods import Method
from hcal.bench.store import Cell, Key, Results, Store, read_results
from hcal.bench.tasks import TaskRef
from hcal.runtime.threads import thread_count

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Plan:
    """What a run is to do."""

    tasks: Sequence[TaskRef]
    methods: Sequence[Method]  # ``uncal`` must be among them: it supplies the values before
    metrics: Sequence[str]
    seeds: int = 1  # of the methods that take one; others run once
    bootstrap: int = 0  # replicates of the test rows kept for paired intervals
    bootstrap_tasks: Sequence[str] | None = None  # the tasks that get them; all if None
    jobs: int = 1  # processes at a time
    timeout_s: float = 3600.0  # a job that takes longer is stopped and recorded as failed
    device: str | None = None  # of torch, for the methods that take one
    retry_failed: bool = False  # run cells again that an earlier run recorded as failed
    #: The address of a Dask scheduler: jobs run on its workers, as many at a time as these have threads.
    scheduler: str | None = None

    def all_jobs(self) -> list[Job]:
        """List every job, cheap methods of a task together, the paper protocol's selectors in one."""
        metrics = tuple(sorted(self.metrics, key=metric_key))
        out = []
        for task in self.tasks:
            wanted = self.bootstrap_tasks is None or task.name in self.bootstrap_tasks
            boot = self.bootstrap if wanted else 0
            for group in _shared_fits(self.methods):
                for seed in range(self.seeds if group[0].seeded else 1):
                    out.append(
                        Job(task, group, seed, metrics, boot, threads=self.threads, device=self.device)
                    )
        return out

    @property
    def threads(self) -> int:
        """The threads of each process: its share of those that this one may use."""
        return max(1, thread_count() // self.jobs)


def _shared_fits(methods: Sequence[Method]) -> list[tuple[Method, ...]]:
    """Group the methods that differ only in which trained candidate they keep."""
    groups: dict[str, list[Method]] = {}
    for method in methods:
        groups.setdefault(method.group or f"only {method.name}", []).append(method)
    return [tuple(g) for g in groups.values()]


Progress = Callable[[int, int, Cell | None], None]


def run(plan: Plan, path: str | os.PathLike[str], progress: Progress | None = None) -> Results:
    """Fill the results file with every cell of the plan that it does not hold yet.

    An existing file is continued. ``progress`` is called with cells done, cells in all, and the cell just
    finished (None at the start).
    """
    with Store(path) as store:
        results = read_results(path)
        todo, total = _remaining(plan, results)
        done = total - sum(len(j.keys) for j in todo)
        report = progress or (lambda *_: None)
        report(done, total, None)
        before = {k.task: c.post for k, c in results.good.items() if k.method == "uncal"}
        for cell in _in_parallel(todo, before, plan):
            store.append(cell)
            done += 1
            report(done, total, cell)
    return read_results(path)


def _remaining(plan: Plan, results: Results) -> tuple[list[Job], int]:
    """Return the jobs with cells still to fill, ``uncal`` of every task first, and the number of cells."""
    finished = results.good if plan.retry_failed else results.cells
    jobs = plan.all_jobs()
    todo = []
    for job in jobs:
        missing = tuple(
            m for m, k in zip(job.methods, job.keys, strict=True) if not _holds(finished.get(k), job)
        )
        if missing:
            todo.append(replace(job, methods=missing))
    todo.sort(key=lambda j: j.methods[0].name != "uncal")
    return todo, sum(len(j.keys) for j in jobs)


def _holds(cell: Cell | None, job: Job) -> bool:
    """Whether a stored cell has all that the job asks for; more metrics or replicates fill it in later."""
    if cell is None:
        return False
    return not cell.ok or (set(job.metrics) <= set(cell.post) and _replicates(cell) >= job.bootstrap)


def _replicates(cell: Cell) -> int:
    notes = (note for note in cell.notes.values() if isinstance(note, dict))
    return max((len(note.get("boot", ())) for note in notes), default=0)


class Crew(Protocol):
    """Who runs jobs: processes of this machine, or the workers of a cluster."""

    def free(self) -> bool:
        """Whether another job can begin now."""

    def start(self, job: Job) -> None:
        """Begin a job."""

    def news(self) -> list[Cell]:
        """Wait a while; return the cells that came, and those that will not come."""

    def busy(self) -> bool:
        """Whether a job is under way."""


@contextlib.contextmanager
def _crew(plan: Plan) -> Iterator[Crew]:
    if plan.scheduler is not None:
        from hcal.bench.cluster import cluster_crew

        with cluster_crew(plan.scheduler, plan.timeout_s) as crew:
            yield crew
        return
    with _worker_environment(plan.threads) as context:
        processes = _Processes(context, plan.jobs, plan.timeout_s)
        try:
            yield processes
        finally:
            processes.stop()


def _in_parallel(todo: list[Job], before: dict[str, dict[str, float]], plan: Plan) -> Iterator[Cell]:
    """Run jobs, as many at a time as the crew takes; a job waits until ``uncal`` of its task is there."""
    queue = list(todo)
    pending = {j.task.name for j in queue if j.methods[0].name == "uncal"}
    with _crew(plan) as crew:
        while queue or crew.busy():
            while crew.free() and (job := _next_job(queue, pending)):
                base = before.get(job.task.name)
                if base is None and job.methods[0].name != "uncal":
                    why = "the uncalibrated cell of this task failed"
                    yield from (failed_cell(key, why) for key in job.keys)
                else:
                    crew.start(replace(job, before=base))
            for cell in crew.news():
                if cell.key.method == "uncal":
                    pending.discard(cell.key.task)
                    if cell.ok:
                        before[cell.key.task] = cell.post
                yield cell


def _next_job(queue: list[Job], pending: set[str]) -> Job | None:
    for i, job in enumerate(queue):
        if job.methods[0].name == "uncal" or job.task.name not in pending:
            return queue.pop(i)
    return None


class _Processes:
    """A fresh process for every job."""

    def __init__(self, context: Any, jobs: int, timeout_s: float) -> None:
        self._context, self._jobs, self._timeout_s = context, jobs, timeout_s
        self._running: list[_Worker] = []

    def free(self) -> bool:
        return len(self._running) < self._jobs

    def start(self, job: Job) -> None:
        self._running.append(_Worker(self._context, job, self._timeout_s))

    def busy(self) -> bool:
        return bool(self._running)

    def news(self) -> list[Cell]:
        cells = [cell for worker in self._ready() for cell in worker.collect()]
        self._running = [w for w in self._running if not w.finished]
        return cells

    def _ready(self) -> list[_Worker]:
        """Wait for news from any worker, or until one has used up its time."""
        if not self._running:
            return []
        patience = max(0.0, min(w.deadline for w in self._running) - time.monotonic())
        news = wait([w.pipe for w in self._running], timeout=min(patience, 5.0))
        now = time.monotonic()
        return [w for w in self._running if w.pipe in news or now >= w.deadline]

    def stop(self) -> None:
        for worker in self._running:
            worker.stop()


class _Worker:
    """One job in its own process."""

    def __init__(self, context: Any, job: Job, timeout_s: float) -> None:
        self.waiting: list[Key] = list(job.keys)
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.finished = False
        self.pipe, child = context.Pipe(duplex=False)
        # Nothing is ever sent here: this process alone holds the other end, and its death closes it.
        lifeline, self._alive = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(job, child, lifeline), daemon=True)
        self.process.start()
        child.close()
        lifeline.close()

    def collect(self) -> list[Cell]:
        """Return finished cells; when the process is over or overdue, also the cells it did not deliver."""
        cells: list[Cell] = []
        try:
            while self.pipe.poll():
                cell: Cell = self.pipe.recv()
                self.waiting.remove(cell.key)
                cells.append(cell)
        except EOFError:
            self.stop()
            code = self.process.exitcode
            return cells + self._give_up(f"the process ended with exit code {code}")
        if not self.waiting:
            self.stop(kill=False)
        elif time.monotonic() >= self.deadline:
            self.stop()
            return cells + self._give_up(f"took longer than {self.timeout_s:g} s")
        return cells

    def _give_up(self, why: str) -> list[Cell]:
        lost, self.waiting = self.waiting, []
        return [failed_cell(k, why) for k in lost]

    def stop(self, *, kill: bool = True) -> None:
        """End the process and release what it holds."""
        self.finished = True
        if kill and self.process.is_alive() and self.waiting:
            self.process.kill()
        self.process.join()
        self.pipe.close()
        self._alive.close()


def _work(job: Job, pipe: Connection, lifeline: Connection) -> None:
    """Body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops its workers
    threading.Thread(target=_die_with, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(job.threads)
    for cell in run_job(job):
        pipe.send(cell)
    pipe.close()


def _die_with(lifeline: Connection) -> None:
    """Leave no orphan computing when the run was killed.

    The parent of a worker is the fork server, which lives on as long as its workers do: to watch the parent
    would be to wait for oneself.
    """
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


@contextlib.contextmanager
def _worker_environment(threads: int) -> Iterator[Any]:
    """Yield a process context whose children use ``threads`` threads each: nobody fights for a core."""
    saved = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    try:
        if "forkserver" in mp.get_all_start_methods():
            context: Any = mp.get_context("forkserver")
            context.set_forkserver_preload(["hcal.bench.cell", "torch", "scipy.optimize", "sklearn.isotonic"])
        else:
            context = mp.get_context("spawn")
        yield context
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
