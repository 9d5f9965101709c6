"""A few threads for kernels that release the GIL: no OpenMP, so nothing to oversubscribe."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

# Below this many events a second thread costs more than it brings.
PARALLEL_EVENTS = 100_000


def thread_count() -> int:
    """Return how many threads to use: OMP_NUM_THREADS, else the cores this process may run on.

    Examples
    --------
    >>> thread_count() >= 1
    True
    """
    granted = os.environ.get("OMP_NUM_THREADS", "")
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(int(granted), available)) if granted.isdigit() else available


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="hcal")


def split(n: int, snap: Callable[[int], int] | None = None, *, grain: int = 1) -> list[tuple[int, int]]:
    """Cut range(n) into one part a thread, or one part where n is small.

    Parameters
    ----------
    n : int
    snap : callable, optional
        Moves a cut up to the next place where cutting is allowed.
    grain : int
        How many events one unit of ``n`` stands for.

    Returns
    -------
    list of (start, stop)

    Examples
    --------
    >>> split(10)
    [(0, 10)]
    """
    parts = thread_count() if n * grain >= PARALLEL_EVENTS else 1
    cuts = [n * i // parts for i in range(1, parts)]
    edges = [0, *(snap(c) if snap else c for c in cuts), n]
    return [(a, b) for a, b in pairwise(edges) if b > a]


def run_parts(work: Callable[[int, int], T], parts: list[tuple[int, int]]) -> list[T]:
    """Run ``work(start, stop)`` on every part, in threads if there is more than one; results in order.

    Parameters
    ----------
    work : callable
    parts : list of (start, stop)

    Returns
    -------
    list of results

    Examples
    --------
    >>> run_parts(lambda a, b: b - a, [(0, 2), (2, 5)])
    [2, 3]
    """
    if len(parts) == 1:
        return [work(*parts[0])]
    return list(_pool(thread_count()).map(lambda part: work(*part), parts))
