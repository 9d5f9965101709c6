"""Jobs of the benchmark on the workers of a Dask cluster.

Tasks must be within reach of every worker: a folder that all see, or synthetic ones. A job whose worker dies
is run again elsewhere by Dask, up to its ``allowed-failures``; a job that hangs is given up, and its worker
is restarted by its nanny.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from hcal.bench.cell import Job, failed_cell, run_job
from hcal.bench.store import Cell

#: Seconds after which the crew looks again at who is overdue and how many workers there are.
_PATIENCE = 5.0


@contextlib.contextmanager
def cluster_crew(address: str, timeout_s: float) -> Iterator[ClusterCrew]:
    """Connect to a scheduler (``"tcp://10.0.0.1:8786"``); at the end give up what runs and disconnect."""
    from hcal.integrations.dask import Driver

    with Driver(address) as run:
        crew = ClusterCrew(run, timeout_s)
        try:
            yield crew
        finally:
            crew.stop()


class ClusterCrew:
    """Jobs as futures, as many at a time as the cluster has threads.

    A job that takes longer than ``timeout_s`` is given up.
    """

    def __init__(self, driver: Any, timeout_s: float) -> None:
        self._driver, self._timeout_s = driver, timeout_s
        self._running: dict[Any, tuple[Job, float]] = {}

    def free(self) -> bool:
        """Whether a thread of the cluster waits for work; workers may come and go."""
        return bool(len(self._running) < max(1, self._driver.threads()))

    def start(self, job: Job) -> None:
        """Send a job to the cluster."""
        future = self._driver.client.submit(run_whole_job, job, pure=False)
        self._running[future] = (job, time.monotonic() + self._timeout_s)

    def busy(self) -> bool:
        """Whether a job is under way."""
        return bool(self._running)

    def news(self) -> list[Cell]:
        """Wait a while; return the cells of jobs that are over, one way or another."""
        from distributed import wait

        if not self._running:
            return []
        left = min(deadline for _, deadline in self._running.values()) - time.monotonic()
        with contextlib.suppress(TimeoutError):
            wait(list(self._running), timeout=min(max(left, 0.01), _PATIENCE), return_when="FIRST_COMPLETED")
        cells: list[Cell] = []
        for future, (job, deadline) in list(self._running.items()):
            if future.done():
                cells += self._finished(future, job)
            elif time.monotonic() >= deadline:
                cells += self._given_up(future, job)
        return cells

    def _finished(self, future: Any, job: Job) -> list[Cell]:
        del self._running[future]
        if future.status == "finished":
            found: list[Cell] = future.result()
            return found
        # A cell's own failure is a cell; this is a worker that died too often, or a message that got lost.
        error = future.exception() if future.status == "error" else "cancelled by the cluster"
        return [failed_cell(key, f"the cluster gave it up: {error}") for key in job.keys]

    def _given_up(self, future: Any, job: Job) -> list[Cell]:
        del self._running[future]
        client = self._driver.client
        stuck = [w for w, keys in client.processing().items() if future.key in keys]
        future.cancel()
        with contextlib.suppress(Exception):  # without a nanny it cannot be restarted, and goes on in vain
            client.restart_workers(stuck, timeout=_PATIENCE, raise_for_error=False)
        return [failed_cell(key, f"took longer than {self._timeout_s:g} s") for key in job.keys]

    def stop(self) -> None:
        """Give up what is still running."""
        for future in self._running:
            future.cancel()


def run_whole_job(job: Job) -> list[Cell]:
    """Run a job in this process."""
    return list(run_job(job))
