"""Compiled kernels: a decorator that keeps them on disk, and a few threads to run them in.

Kernels release the GIL, so plain threads run them (no OpenMP, so nothing to oversubscribe).

``python -m hcal.compiled`` compiles all kernels and keeps them on disk, for an image of a container.
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

S = TypeVar("S")
T = TypeVar("T")
Kernel = Callable[..., Any]

#: The modules of kernels; each compiles its own by ``compile_all()``.
KERNEL_MODULES: Final = (
    "hcal.pool._numba",
    "hcal.h_calibration._numba",
    "hcal.h_calibration._mixture_numba",
)


def jit(**options: Any) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles a kernel: the GIL released, kept on disk where numba finds a place."""
    from numba import njit

    def decorate(function: Kernel) -> Kernel:
        kernel: Any = njit(nogil=True, **options)(function)
        if hasattr(kernel, "enable_caching"):  # not where NUMBA_DISABLE_JIT is set
            try:
                kernel.enable_caching()
                _forgive_full_disks(kernel)
            except RuntimeError:  # neither the install nor HOME can be written to
                _say_once("no folder can be written to")
        return kernel  # type: ignore[no-any-return]

    return decorate


def exponential(kind: type[np.floating[Any]]) -> Kernel:
    """Return a kernel (v, out) of e^v for an array v ≤ 0 of float32 or float64, at most 2 ulp off.

    e^v = 2^n·e^r with |r| ≤ ½ ln 2, and e^r is its Taylor series: loops that the compiler vectorises, and a result that
    depends on nothing but v. Where e^v would underflow it is 0.
    """
    wide = kind is np.float64
    whole, bits, bias, least = (np.int64, 52, 1023, -708.0) if wide else (np.int32, 23, 127, -87.0)
    series = tuple(kind(1 / math.factorial(i)) for i in range(13 if wide else 7, -1, -1))
    # ln 2 in two parts: n times the first is exact.
    high = kind(0.6931471803691238 if wide else 0.693359375)
    low = kind(1.9082149292705877e-10 if wide else -2.12194440e-4)
    steps, half, bottom = kind(1 / math.log(2)), kind(0.5), kind(least)

    @jit(error_model="numpy", fastmath={"contract", "nnan"})
    def exp_of(v: Any, out: Any) -> None:
        for i in range(len(v)):
            u = max(v[i], bottom)
            n = whole(u * steps - half)
            r = (u - kind(n) * high) - kind(n) * low
            y = series[0]
            for c in series[1:]:
                y = y * r + c
            power = whole((n + whole(bias)) << whole(bits)).view(kind)
            out[i] = y * power if v[i] >= bottom else kind(0)

    return exp_of


def _forgive_full_disks(kernel: Any) -> None:
    """Let a kernel that cannot be written be used all the same: numba would raise at its first call."""
    write = kernel._cache.save_overload

    def save_overload(signature: Any, data: Any) -> None:
        try:
            write(signature, data)
        except OSError as error:
            kernel._cache.disable()
            _say_once(error.strerror or str(error))

    kernel._cache.save_overload = save_overload


@cache
def _say_once(why: str) -> None:
    warnings.warn(
        f"compiled kernels are not kept on disk ({why}): every process spends some seconds on "
        "compiling them. Set NUMBA_CACHE_DIR to a folder of your own.",
        stacklevel=2,
    )


# -- all kernels of an installation -----------------------------------------------------------------


def main() -> None:
    """Compile every kernel of hcal, and print a line for each with the folder that keeps it."""
    if find_spec("numba") is None:
        raise SystemExit("there is nothing to compile without numba: pip install 'hcal[fast]'")
    for name in KERNEL_MODULES:
        start = time.perf_counter()
        for title, kernel in import_module(name).compile_all():
            seconds = time.perf_counter() - start
            print(f"{title}: {seconds:.1f} s, {kernel.stats.cache_path or 'not kept'}", flush=True)
            start = time.perf_counter()


# -- threads ----------------------------------------------------------------------------------------

# Below this many events a second thread costs more than it brings.
PARALLEL_EVENTS = 100_000


def thread_count() -> int:
    """Return how many threads to use: OMP_NUM_THREADS, else the cores this process may run on."""
    granted = os.environ.get("OMP_NUM_THREADS", "")
    available = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(int(granted), available)) if granted.isdigit() else available


_NAME = "hcal-worker"


@cache
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """One pool a process: the threads of a parent do not exist in its fork."""
    return ThreadPoolExecutor(workers, thread_name_prefix=_NAME)


def in_threads(
    work: Callable[[S], T], items: Sequence[S], *, events: int = PARALLEL_EVENTS
) -> list[T]:
    """Return ``work(item)`` for every item, in order; in threads if there is enough to do.

    What is computed does not depend on the number of threads. ``events`` counts the array entries that all items
    together stand for.

    >>> in_threads(len, ["a", "bc"], events=1)
    [1, 2]
    """
    # a thread of the pool must not wait for the pool
    inside = threading.current_thread().name.startswith(_NAME)
    if len(items) < 2 or events < PARALLEL_EVENTS or thread_count() == 1 or inside:
        return [work(item) for item in items]
    return list(_pool(thread_count(), os.getpid()).map(work, items))


def split(
    n: int, snap: Callable[[int], int] | None = None, *, grain: int = 1
) -> list[tuple[int, int]]:
    """Cut range(n) into one part a thread, or one part where n is small.

    ``snap`` moves a cut up to the next place where cutting is allowed; a unit of ``n`` stands for ``grain``
    events.
    """
    wanted = 2 * n * grain // PARALLEL_EVENTS  # no thread is started for less than half of that
    parts = min(thread_count(), wanted) if wanted > 1 else 1
    cuts = [n * i // parts for i in range(1, parts)]
    edges = [0, *(snap(c) if snap else c for c in cuts), n]
    return [(a, b) for a, b in pairwise(edges) if b > a]


@contextmanager
def one_openmp_thread() -> Iterator[None]:
    """Hold the OpenMP loops that THIS thread starts, those of torch among them, to one thread.

    The limit is a variable of the thread (``omp_set_num_threads``), so nobody else notices or can undo it;
    ``torch.set_num_threads`` would set the whole process.
    """
    import torch
    from threadpoolctl import threadpool_limits

    torch.get_num_threads()  # sets this thread up where it is new: later, that would undo the limit
    with threadpool_limits(1, user_api="openmp"):
        yield


if __name__ == "__main__":
    main()
