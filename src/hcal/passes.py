"""Computing over blocks of rows: partial results that can be merged, and runners that work on the blocks.

Metrics, certificates and the sums that fits need are partial results: each block makes one, and ``merge`` adds two of
them up. Merging is associative, and commutative up to rounding.

A runner takes a function and pieces of the data and yields the function's results in the order of the pieces. It may
work in this process (``map``), in other processes (:class:`Processes`) or on a cluster
(:class:`hcal.integrations.dask.Runner`); the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, Self, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Runner(Protocol):
    """Runs a function on pieces and yields its results in their order."""

    def __call__(self, function: Callable[[S], T], pieces: Iterable[S]) -> Iterator[T]:
        """Yield ``function(piece)`` for every piece."""


class WorkerDiedError(OSError):
    """A worker process was killed while it worked on a piece."""


class Processes:
    """A runner that works in several processes of this machine.

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
            yield from Parallel(self.workers, return_as="generator")(
                delayed(function)(p) for p in pieces
            )
        except TerminatedWorkerError:
            raise WorkerDiedError(
                "a worker process was killed: too little memory? Take fewer workers or smaller "
                "blocks"
            ) from None


class Partial(Protocol):
    """A partial result (``update``, ``merge``, ``result``) whose size does not grow with the number of rows."""

    def merge(self, other: Self) -> object:
        """Add the rows of another partial result."""


P = TypeVar("P", bound=Partial)
#: Is told how many rows are done, for a progress bar.
Advance = Callable[[int], None] | None


def merged(parts: Iterable[P], empty: Callable[[], P]) -> P:
    """Merge the parts, in the order given, into an empty partial result and return that.

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
