"""Drivers of a pass over pieces of work: one after the other here, or in processes; answers in order.

A driver is called with a function and pieces and yields the function's answers in the order of the pieces, a
few of them ahead. What the answers are does not depend on the driver. ``hcal.integrations.dask`` has another.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, Protocol, TypeVar

from hcal.runtime.threads import thread_count

S = TypeVar("S")
T = TypeVar("T")

#: Pieces a process has waiting: it never starves, and what is not yet used stays small.
_AHEAD: Final = 2
#: A process that dies may have been one of many on a full machine; a piece that kills each is another matter.
_TRIES: Final = 3


class Driver(Protocol):
    """Runs a function on pieces and yields its answers in their order."""

    def __call__(self, function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
        """Yield ``function(piece)`` for every piece."""


class WorkerDiedError(OSError):
    """A process that worked on a piece was killed, and so were those that tried again."""


def one_by_one(function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
    """Yield ``function(piece)`` for every piece, in this process.

    Parameters
    ----------
    function : callable
    pieces : iterable

    Examples
    --------
    >>> list(one_by_one(abs, [-1, 2]))
    [1, 2]
    """
    return map(function, pieces)


class _Mergeable(Protocol):
    def merge(self, other: Any) -> Any: ...


M = TypeVar("M", bound=_Mergeable)


def add_up(
    function: Callable[[S], M],
    pieces: Sequence[S],
    empty: Callable[[], M],
    *,
    driver: Driver | None = None,
    advance: Callable[[int], None] | None = None,
    size: Callable[[S], int],
) -> M:
    """Return what the function makes of all pieces, merged in their order.

    Parameters
    ----------
    function : callable
        Of a piece; returns a partial result (:mod:`hcal.runtime.partial`).
    pieces : sequence
    empty : callable
        Makes a partial result that has seen nothing.
    driver : Driver, optional
        This process by default.
    advance : callable, optional
        Told how many rows were done, after each piece.
    size : callable
        Returns how many rows a piece has.

    Returns
    -------
    partial result
    """
    whole = empty()
    for piece, part in zip(pieces, (driver or one_by_one)(function, pieces), strict=True):
        whole.merge(part)
        if advance is not None:
            advance(size(piece))
    return whole


class Processes:
    """A driver with processes of this machine.

    Every process gets the function once. Where one is killed, the pieces that were under
    way are done again; a piece must therefore be harmless to do twice. Processes end with the one that began
    them.

    Parameters
    ----------
    workers : int

    Examples
    --------
    >>> list(Processes(2)(abs, []))
    []
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.workers = workers

    def __call__(self, function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
        """Yield ``function(piece)`` for every piece."""
        queue = iter(pieces)
        waiting: deque[tuple[S, Future[T] | None]] = deque()
        pool, tries = self._pool(function), 0
        try:
            while True:
                while len(waiting) < _AHEAD * self.workers and (new := next(queue, None)) is not None:
                    waiting.append((new, None))
                if not waiting:
                    return
                try:
                    waiting = deque((p, pool.submit(_work, p) if f is None else f) for p, f in waiting)
                    answer = _answer(waiting[0][1])
                except BrokenProcessPool:
                    tries += 1
                    if tries == _TRIES:
                        raise WorkerDiedError(
                            f"{_TRIES} worker processes were killed, one after the other: too little memory? "
                            "Take fewer workers or a smaller block"
                        ) from None
                    pool.shutdown(cancel_futures=True)
                    pool = self._pool(function)
                    waiting = deque((p, f if _is_done(f) else None) for p, f in waiting)
                    continue
                waiting.popleft()
                tries = 0
                yield answer
        finally:
            pool.shutdown(cancel_futures=True)

    def _pool(self, function: Callable[[Any], Any]) -> ProcessPoolExecutor:
        threads = max(1, thread_count() // self.workers)
        return ProcessPoolExecutor(
            self.workers, _context(function), initializer=_begin, initargs=(function, threads)
        )


def _context(function: Any) -> Any:
    """Return how processes begin: not as forks of this one, which would have the locks of its threads.

    They are forks of one that has loaded the function's module and done nothing, so that only the first is
    slow to come; where there is no such thing each is a new one.
    """
    from multiprocessing import get_all_start_methods, get_context

    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    module = getattr(getattr(function, "func", function), "__module__", None)
    if context.get_start_method() == "forkserver" and module != "__main__":
        context.set_forkserver_preload([__name__, *([module] if module else [])])
    return context


def _answer(future: Future[T] | None) -> T:
    assert future is not None
    return future.result()


def _is_done(future: Future[Any] | None) -> bool:
    return future is not None and future.done() and not future.cancelled() and future.exception() is None


_function: Callable[[Any], Any] = abs


def _begin(function: Callable[[Any], Any], threads: int) -> None:
    """Set a worker up: its function, its share of the cores, and an eye on who began it."""
    global _function
    from threadpoolctl import threadpool_limits

    _function = function
    os.environ["OMP_NUM_THREADS"] = str(threads)
    threadpool_limits(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asked; it ends us
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent has gone, by whatever way; a server of forks goes with its own."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(piece: Any) -> Any:
    return _function(piece)
