"""Array types, numerically safe softmax, small array helpers in numpy, and threads that work on blocks of rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.xp import log_softmax as log_softmax
from hcal.xp import softmax as softmax

S = TypeVar("S")
T = TypeVar("T")
FloatArray = NDArray[np.floating]
Float64 = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: A numpy array of any type, such as names or bytes.
NumpyArray = NDArray[Any]
#: Which rows of an array: a slice, their numbers, or a mark for each.
RowIndex = slice | IntArray | NDArray[np.bool_]

#: Differences of logits below this count as 0: an inverse temperature for them would overflow.
NOTHING = 1e-190


def row_blocks(shape: tuple[int, ...], events: int) -> list[slice]:
    """Cut the rows of an array (N, K) into slices of about ``events`` entries, to bound memory or to stay in the cache.

    >>> row_blocks((5, 10), 20)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    n_rows, n_classes = shape
    size = max(1, events // n_classes)
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def prefix_sums(x: Float64) -> Float64:
    """Return the sums of the first 0, 1, … n values; x (n,) → (n + 1,).

    >>> prefix_sums(np.array([1.0, 2.0]))
    array([0., 1., 3.])
    """
    return np.concatenate([[0.0], np.cumsum(x)])


def run_starts(x: NumpyArray) -> IntArray:
    """Return the index at which each run of equal values begins; x (n,), n ≥ 1.

    >>> run_starts(np.array([3, 3, 5]))
    array([0, 2])
    """
    return np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))


def is_ragged(rows: object) -> bool:
    """Return whether this is a list of rows of different lengths.

    >>> is_ragged([[0.5, 0.5], [0.2, 0.3, 0.5]]), is_ragged([[0.5, 0.5]]), is_ragged(np.eye(2))
    (True, False, False)
    """
    if not isinstance(rows, list | tuple) or not all(hasattr(row, "__len__") for row in rows):
        return False
    return not any(isinstance(row, str) for row in rows) and len({len(row) for row in rows}) > 1


def pad_options(rows: Iterable[ArrayLike], fill: float) -> Float64:
    """Return rows of different lengths as one array (N, longest row); short rows are filled up at their end.

    ``fill`` is 0 for probabilities, −inf for scores.

    >>> pad_options([[0.5, 0.5], [0.2, 0.3, 0.5]], 0.0)
    array([[0.5, 0.5, 0. ],
           [0.2, 0.3, 0.5]])
    """
    parts = [_numbers(row, i) for i, row in enumerate(rows)]
    out = np.full((len(parts), max(map(len, parts), default=0)), fill)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return out


def log_softmax_options(scores: Float64) -> Float64:
    """Return log-probabilities (N, K) of scores (N, K) in which −inf marks options that a question does not have.

    The argmax of every row is that of the scores.

    >>> log_softmax_options(np.array([[0.0, 0.0, -np.inf]])).round(3)
    array([[-0.693, -0.693,   -inf]])
    """
    logs: Float64 = log_softmax(scores)
    top = scores.argmax(axis=1)
    rows = np.flatnonzero(
        logs.argmax(axis=1) != top
    )  # rounding may make the best option equal to an earlier one
    logs[rows, top[rows]] = np.nextafter(logs[rows].max(axis=1, initial=-np.inf), np.inf)
    return logs


def _numbers(row: ArrayLike, number: int) -> Float64:
    try:
        return np.asarray(row, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise ValueError(
            f"row {number} of the probs or scores holds something that is no number"
        ) from None


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
