"""Partial results of blocks of rows, and who works on the blocks: this process, others of this machine, or a cluster.

Metrics, certificates and the sums that fits need are partial results: each block adds to one, and two become
one by ``merge``, which is associative, and commutative up to the rounding of sums.

A runner is called with a function and pieces and yields the function's answers in the order of the pieces. The answers
do not depend on the runner: :class:`Processes`, :class:`hcal.integrations.dask.Runner`, or ``map`` itself.
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


class Partial(Protocol):
    """An answer in the making, of a size that does not grow with the rows: ``update``, ``merge``, ``result``."""

    def merge(self, other: Any) -> Any:
        """Add what another part has seen."""


P = TypeVar("P", bound=Partial)


def merged(parts: Iterable[P], empty: Callable[[], P]) -> P:
    """Return the parts as one, added in the order given to an empty one.

    >>> from hcal.metrics import StreamingMetrics
    >>> blocks = [([[0.2, 0.8]], [1]), ([[0.6, 0.4]], [1])]
    >>> parts = [StreamingMetrics(2, ["accuracy"]).update(p, y) for p, y in blocks]
    >>> merged(parts, lambda: StreamingMetrics(2, ["accuracy"])).result()
    {'accuracy': 0.5}
    """
    whole = empty()
    for part in parts:
        whole.merge(part)
    return whole


def add_up(
    function: Callable[[Any], P],
    pieces: Sequence[Any],
    empty: Callable[[], P],
    *,
    runner: Runner | None = None,
    advance: Callable[[int], None] | None = None,
) -> P:
    """Return what the function makes of all pieces, merged in their order.

    ``function`` makes a partial result of a piece, ``empty`` one that has seen nothing.
    ``advance`` is told after each piece how many rows it had.
    """
    whole = empty()
    for piece, part in zip(pieces, (runner or map)(function, pieces), strict=True):
        whole.merge(part)
        if advance is not None:
            advance(len(piece))
    return whole
