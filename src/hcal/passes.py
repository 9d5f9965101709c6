"""Who works on the pieces of a source: this process, processes of this machine, or a Dask cluster.

A runner is called with a function and pieces and yields the function's answers in the order of the pieces. The answers
do not depend on the runner. :class:`hcal.integrations.dask.Runner` is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Runner(Protocol):
    """Runs a function on pieces and yields its answers in their order."""

    def __call__(self, function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
        """Yield ``function(piece)`` for every piece."""


class WorkerDiedError(OSError):
    """A process that worked on a piece was killed."""


def one_by_one(function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
    """Yield ``function(piece)`` for every piece, in this process.

    Examples
    --------
    >>> list(one_by_one(abs, [-1, 2]))
    [1, 2]
    """
    return map(function, pieces)


class Processes:
    """A runner with processes of this machine.

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
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        try:
            yield from Parallel(self.workers, return_as="generator")(delayed(function)(p) for p in pieces)
        except TerminatedWorkerError:
            raise WorkerDiedError(
                "a worker process was killed: too little memory? Take fewer workers or smaller blocks"
            ) from None


class _Mergeable(Protocol):
    def merge(self, other: Any) -> Any: ...


M = TypeVar("M", bound=_Mergeable)


def add_up(
    function: Callable[[S], M],
    pieces: Sequence[S],
    empty: Callable[[], M],
    *,
    runner: Runner | None = None,
    advance: Callable[[int], None] | None = None,
    size: Callable[[S], int],
) -> M:
    """Return what the function makes of all pieces, merged in their order.

    ``function`` makes a partial result (:mod:`hcal.partial`) of a piece, ``empty`` one that has seen nothing.
    ``advance`` is told after each piece how many rows were done: its ``size``.
    """
    whole = empty()
    for piece, part in zip(pieces, (runner or one_by_one)(function, pieces), strict=True):
        whole.merge(part)
        if advance is not None:
            advance(size(piece))
    return whole
