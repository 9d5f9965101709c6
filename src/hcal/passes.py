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
from typing import Any, Final, Protocol, Self, TypeVar

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

    ``function`` makes a partial result (:mod:`hcal.partial`) of a piece, ``empty`` one that has seen
    nothing. ``advance`` is told after each piece how many rows were done: its ``size``.
    """
    whole = empty()
    for piece, part in zip(pieces, (driver or one_by_one)(function, pieces), strict=True):
        whole.merge(part)
        if advance is not None:
            advance(size(piece))
    return whole


class Processes:
    """A driver with processes of this machine.

    They take seconds to come: as a context manager it keeps them from pass to pass. Where one is killed, the
    pieces that were under way are done again; a piece must therefore be harmless to do twice. Processes end
    with the one that began them.

    Examples
    --------
    >>> list(Processes(2)(abs, []))
    []
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._kept = False

    def __enter__(self) -> Self:
        self._kept = True
        return self

    def __exit__(self, *_: object) -> None:
        self._kept = False
        self._close()

    def __call__(self, function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
        """Yield ``function(piece)`` for every piece."""
        queue = iter(pieces)
        waiting: deque[tuple[S, Future[T] | None]] = deque()
        tries = 0
        try:
            while True:
                while len(waiting) < _AHEAD * self.workers and (new := next(queue, None)) is not None:
                    waiting.append((new, None))
                if not waiting:
                    return
                try:
                    waiting = deque((p, self._submit(function, p) if f is None else f) for p, f in waiting)
                    answer = _answer(waiting[0][1])
                except BrokenProcessPool:
                    tries += 1
                    self._close()
                    if tries == _TRIES:
                        raise WorkerDiedError(
                            f"{_TRIES} worker processes were killed, one after the other: too little memory? "
                            "Take fewer workers or a smaller block"
                        ) from None
                    waiting = deque((p, f if _is_done(f) else None) for p, f in waiting)
                    continue
                waiting.popleft()
                tries = 0
                yield answer
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()
            if not self._kept:
                self._close()

    def _submit(self, function: Callable[[S], T], piece: S) -> Future[T]:
        if self._pool is None:
            from multiprocessing import get_context

            # Not forked, from this process or from a server of forks: a fork has the locks of threads that
            # it does not have, and libraries start threads when they are loaded.
            threads = max(1, thread_count() // self.workers)
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.workers, context, initializer=_begin, initargs=(threads, os.getpid())
            )
        return self._pool.submit(function, piece)

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


def _answer(future: Future[T] | None) -> T:
    assert future is not None
    return future.result()


def _is_done(future: Future[Any] | None) -> bool:
    return future is not None and future.done() and not future.cancelled() and future.exception() is None


def _begin(threads: int, parent: int) -> None:
    """Set a worker up: its share of the cores, and an eye on who began it."""
    from threadpoolctl import threadpool_limits

    os.environ["OMP_NUM_THREADS"] = str(threads)
    threadpool_limits(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asked; it ends us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent has gone, by whatever way."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
