"""Partial results: what a block of rows adds to an answer, and how two of them become one.

Metrics, certificates and the sums that fits need all follow one protocol. A stream, a folder of
files, Dask, torch.distributed and joblib are thin runners of it: each updates one part per block and merges
the parts. Merging is associative, and commutative up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeVar, runtime_checkable


@runtime_checkable
class Partial(Protocol):
    """An answer in the making, of a size that does not grow with the rows."""

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """Add a block of rows."""

    def merge(self, other: Self) -> Self:
        """Add what another part has seen."""

    def result(self) -> Any:
        """Return the answer for all rows seen."""


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
