"""The k-means of the published code: a seeded random sub-sample, a random start, 25 Lloyd iterations.

Its draws are those of a 32-bit Mersenne twister, so the same seed picks the same positions as the library it
calls (Johnson, Douze, Jégou: Billion-scale similarity search with GPUs, 2019); the centres agree to float32
rounding, which the tests check against that library.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcal.numerics import Float64, prefix_sums

_POINTS_PER_CLUSTER = 256
_SPLIT_SEED = 1234
_NUDGE = 1 / 1024


def sampled_kmeans(
    values: ArrayLike, clusters: int = 15, iterations: int = 25, random_state: int = 1234
) -> Float64:
    """Return the ascending centres (clusters,) of the published k-means.

    ``values`` (n,) ascend: another order of the same values is another sub-sample.

    >>> sampled_kmeans([0.0, 0.1, 0.9, 1.0], clusters=2).round(3)
    array([0.05, 0.95])
    """
    x = np.asarray(values, dtype=np.float32)
    size = clusters * _POINTS_PER_CLUSTER
    if len(x) > size:
        x = x[list(_draw(len(x), size, random_state))]
    centres = x[list(_draw(len(x), min(clusters, len(x)), random_state + 1))].astype(np.float64)
    ordered = np.sort(x).astype(np.float64)
    prefix = prefix_sums(ordered)
    for _ in range(iterations):
        centres = _lloyd(ordered, prefix, centres)
    return np.sort(centres)


@lru_cache(maxsize=4096)
def _draw(n: int, take: int, random_state: int) -> tuple[int, ...]:
    """First ``take`` positions of a seeded random permutation of n (Fisher and Yates)."""
    twister = _twister(random_state)
    moved: dict[int, int] = {}
    out = []
    for i in range(take):
        j = i + next(twister) % (n - i) if i < n - 1 else i
        out.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    return tuple(out)


def _twister(random_state: int) -> Iterator[int]:
    state = np.random.RandomState(random_state)
    while True:
        yield from state.randint(0, 1 << 32, size=256, dtype=np.uint32).tolist()


def _lloyd(x: Float64, prefix: Float64, centres: Float64) -> Float64:
    order = np.argsort(centres, kind="stable")
    ascending = centres[order]
    inner = np.searchsorted(x, (ascending[1:] + ascending[:-1]) / 2, side="right")
    edges = np.concatenate([[0], inner, [len(x)]])
    counts, sums = np.empty(len(centres), dtype=np.int64), np.empty(len(centres))
    counts[order], sums[order] = np.diff(edges), np.diff(prefix[edges])
    moved = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    return _split_for_empty(moved, counts, len(x))


def _split_for_empty(centres: Float64, counts: NDArray[np.int64], n: int) -> Float64:
    """Give each empty cluster half of a populous one, drawn with a probability that grows with its size."""
    k = len(centres)
    twister = _twister(_SPLIT_SEED)
    for empty in np.flatnonzero(counts == 0):
        if n <= k:  # nothing to split
            break
        donor = 0
        while next(twister) / (2**32 - 1) >= (counts[donor] - 1) / (n - k):
            donor = (donor + 1) % k
        centres[empty] = centres[donor] * (1 + _NUDGE)
        centres[donor] *= 1 - _NUDGE
        counts[empty] = counts[donor] // 2
        counts[donor] -= counts[empty]
    return centres
