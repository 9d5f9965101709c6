"""The h-calibration error as a metric: windows of sorted events, with the noise of finite samples removed.

The objective of the paper (Huang et al., TPAMI 2025, Thm 7) compares, in every run of M consecutive sorted events, the
mean probability with the mean mark (1 if the event happened, else 0). As an *evaluation* this is biased: chance alone
makes every absolute gap positive. Here the squared gap of a window is taken over pairs of different rows only,

    U = Σ_windows Σ_{a ≠ b} d_a d_b / (number of such pairs),    d = probability − mark,

so its expectation contains no variance of the labels. U is an unbiased estimate of the mean squared gap of a window; it
has the mean 0 for calibrated predictions and can be negative.

The choice of the events that are sorted together decides which errors are visible. No choice sees the whole vector.
Errors in one class only, or of opposite signs in two classes, cancel if classes are *pooled* as in the paper's
objective (``docs/theory.md`` has an example); *class-wise* windows see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from hcal.frames import AnyArray
from hcal.metrics.registry import metric, needs_pair
from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample, check_integer
from hcal.numerics import FloatArray, IntArray, NumpyArray, prefix_sums

EventFamily = Literal["class-wise", "pooled", "top-label"]


@dataclass(frozen=True)
class HError:
    """The parts of an h-calibration error.

    Attributes
    ----------
    value : float
        sign(U)·√|U|, in units of probability; what :func:`hce` returns.
    squared : float
        U, the unbiased estimate of the mean squared gap.
    se : float
        Standard error of ``squared``, by the jackknife over rows, corrected for the noise of single pairs.
    noise : float
        If the predictions are calibrated, ``value`` exceeds this in about 5 % of samples.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> probs = rng.dirichlet([1, 1, 1], 200)
    >>> y = (probs.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
    >>> import hcal
    >>> error = hcal.metrics.h_error(probs, y)
    >>> error.value < error.noise
    True
    """

    value: float
    squared: float
    se: float
    noise: float


def h_error(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    events: EventFamily = "class-wise",
    window: int = 200,
) -> HError:
    """Return the h-calibration error with its noise level and standard error (see :func:`hce`).

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional
        Whole repetition counts.
    events : {"class-wise", "pooled", "top-label"}
    window : int

    Returns
    -------
    HError

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([1, 1, 1], size=1000)
    >>> y = (p.cumsum(1) > rng.random((1000, 1))).argmax(1)
    >>> error = h_error(p, y)
    >>> error.value < error.noise
    True
    """
    if events not in get_args(EventFamily):
        raise ValueError(f"events must be 'class-wise', 'pooled' or 'top-label', got {events!r}")
    check_integer("window", window, 2)
    s = as_sample(probs, y, sample_weight).repeated("hce_pooled" if events == "pooled" else "hce")
    key = (events, window)
    if key not in s.data.h_errors:
        s.data.h_errors[key] = _combine(_members(s, events, window), s.n)
    return s.data.h_errors[key]


def _members(s: Sample, events: EventFamily, window: int) -> Iterator[WindowSums]:
    """Yield the sums of every sorted list of events of a family."""
    if events == "top-label":
        order = np.argsort(s.data.top_conf, kind="stable").astype(np.int64)
        gap = s.data.top_conf - s.data.top_hit
        yield sum_windows(gap[order], order, s.n, window)
    elif events == "pooled":
        yield _pooled_windows(s, window)
    else:
        # With two classes, class 0 is the mirror image of class 1 and adds nothing.
        shared = _shared_squares(s.n, min(window, s.n))
        for k, column in enumerate(s.data.columns()):
            if s.k == 2 and k == 0:
                continue
            order = stable_order(column)
            happened = s.y[order] == k
            gap = column[order].astype(np.float64) - happened
            yield sum_windows(gap, order, s.n, window, shared)


def _ends(s: Sample, z: float, events: EventFamily) -> tuple[float, float]:
    """Return the interval of hce: its square plus and minus z standard errors, after a signed root."""
    error = h_error(s, events=events)
    margin = z * error.se
    return signed_root(error.squared - margin), signed_root(error.squared + margin)


@metric(
    "class-wise",
    "h-calibration error, class-wise",
    "root-mean-square gap of windows of 200 sorted probabilities of a class, averaged over "
    "classes, chance removed; can be negative",
    label="HCE",
    kind="debiased",
    weights="copies",
    ends=lambda s, _, z: _ends(s, z, "class-wise"),
    undefined=needs_pair,
)
def hce(
    probs: AnyArray,
    y: AnyArray = None,
    *,
    sample_weight: AnyArray = None,
    events: EventFamily = "class-wise",
    window: int = 200,
) -> float:
    """Return the h-calibration error: the root-mean-square gap of windows of sorted events.

    The contribution of chance is removed: a value below 0 means that gaps are smaller than chance alone makes them.
    It is not a canonical error for any choice of events, because it looks at one probability at a time. A nearly
    uniform predictor on balanced classes may score 0, because it *is* calibrated: read the error together with
    :func:`hcal.metrics.sharpness`.

    Parameters
    ----------
    events : {"class-wise", "pooled", "top-label"}
        "class-wise": each class on its own, averaged over classes; this sees the most. "pooled": all N·K events
        "row i has class k" sorted together, as in the paper's objective. "top-label": the predicted class only.
    window : int
        Number of events in a window; with fewer events there is one window of all events.

    Examples
    --------
    >>> round(hce([[0.25, 0.75]] * 4, [1, 1, 1, 1], events="top-label"), 6)
    0.25
    """
    return h_error(probs, y, sample_weight=sample_weight, events=events, window=window).value


@metric(
    "class-wise",
    "h-calibration error, pooled",
    "the same with all classes sorted together, as in the paper: it sees the average class only",
    label="HCE pooled",
    kind="debiased",
    weights="copies",
    ends=lambda s, _, z: _ends(s, z, "pooled"),
    undefined=needs_pair,
)
def hce_pooled(
    probs: AnyArray, y: AnyArray = None, *, sample_weight: AnyArray = None, window: int = 200
) -> float:
    """Return the h-calibration error of all classes pooled: the unbiased form of the paper's objective.

    A small value is necessary for calibration but not sufficient: see :func:`hce`.

    Examples
    --------
    >>> hce_pooled([[0.25, 0.75]] * 4, [1, 1, 1, 1])  # too high for one class, too low for the other
    0.0
    """
    return hce(probs, y, sample_weight=sample_weight, events="pooled", window=window)


def signed_root(x: float) -> float:
    """Return sign(x)·√|x|.

    >>> signed_root(-4.0)
    -2.0
    """
    return float(np.sign(x) * np.sqrt(abs(x)))


# -- windows ----------------------------------------------------------------------------------------


@dataclass
class WindowSums:
    """Sums over all windows of one sorted list of events."""

    pairs: float  # ordered pairs of different rows
    products: float  # Σ d_a d_b over them
    null_variance: float  # of ``products``, if labels were drawn from the probabilities
    row_products: Vector  # (N,): the terms of ``products`` and ``pairs`` that involve each row
    row_pairs: Vector


def _combine(sums: Iterator[WindowSums], n_rows: int) -> HError:
    """Average the lists of events of a family (one for each class, or a single one)."""
    values = []
    nulls = []
    influence = np.zeros(n_rows)
    for part in sums:
        if part.pairs > 0:
            value = part.products / part.pairs
            values.append(value)
            nulls.append(part.null_variance / part.pairs**2)
            influence += 2 * (part.row_products - value * part.row_pairs) / part.pairs
    if not values:  # a single row has no pair, so there is no unbiased estimate
        return HError(*[float("nan")] * 4)

    squared = float(np.mean(values))
    null = float(np.sqrt(sum(nulls))) / len(values)
    variance = float(influence @ influence) / len(values) ** 2
    # The jackknife variance contains the noise of single pairs twice; subtract it once, but keep at least that noise.
    se = float(np.sqrt(max(variance - null**2, null**2)))
    return HError(signed_root(squared), squared, se, signed_root(1.645 * null))


def sum_windows(
    gap: Vector, row: IntArray, n_rows: int, window: int, shared: Vector | None = None
) -> WindowSums:
    """Return the sums over all windows of sorted events; the gap and the row of each event are (n,).

    Events are processed in blocks. ``shared`` is the result of ``_shared_squares``, which depends only on n and m.
    """
    n = len(gap)
    m = min(window, n)
    count = n - m + 1
    by_place = _shared_squares(n, m) if shared is None else shared
    pairs = float(count) * m * (m - 1)
    total = WindowSums(pairs, 0.0, 0.0, np.zeros(n_rows), np.zeros(n_rows))
    for first in range(0, n, BLOCK // 4):
        events = np.arange(first, min(first + BLOCK // 4, n))
        _add_block(total, gap, row, m, events, by_place)
    return total


def _add_block(
    total: WindowSums, gap: Vector, row: IntArray, m: int, events: IntArray, by_place: Vector
) -> None:
    """Add the terms of consecutive events; ``m`` is the number of events in a window."""
    n = len(gap)
    count = n - m + 1
    first = int(events[0])
    n_rows = len(total.row_products)
    # The range of windows that contain one of these events.
    start = max(first - m + 1, 0)
    stop = min(int(events[-1]) + 1, count)
    prefix = prefix_sums(gap[start : stop + m - 1])
    sums = prefix[m:] - prefix[:-m]

    block = gap[events]
    to_end = np.minimum(events, n - 1 - events)  # events to the nearer end
    cover = np.minimum(to_end + 1.0, min(m, count))  # windows that contain the event
    begun = sums[first - start :]  # windows that begin in this block: each is counted once
    total.products += float(np.dot(begun, begun) - np.dot(cover, block**2))

    # p(1 − p) equals |d|(1 − |d|) for either mark. It hardly changes within a window, so v_a·v_b ≈ v_a².
    variance = np.abs(block) * (1 - np.abs(block))
    pairs_at = by_place[np.minimum(to_end, len(by_place) - 1)]
    total.null_variance += 2 * float(np.dot(variance**2, pairs_at))

    cumulated = prefix_sums(sums)
    last_window = np.minimum(events, n - m) + 1 - start
    first_window = np.maximum(events - m + 1, 0) - start
    around = cumulated[last_window] - cumulated[first_window]
    rows = row[events]
    total.row_products += np.bincount(rows, block * (around - cover * block), n_rows)
    total.row_pairs += np.bincount(rows, cover * (m - 1), n_rows)


def _shared_squares(n: int, m: int) -> Vector:
    """Return Σ_{b ≠ a} (number of windows that hold both a and b)², indexed by the distance of a to the nearer end.

    The last entry is valid for all larger distances too.
    """
    n = min(n, 2 * m + 1)  # the sum is the same for all events further from the ends
    a = np.arange((n + 1) // 2)[:, None]
    b = np.arange(n)[None, :]
    last = np.minimum(np.minimum(a, b), n - m)
    first = np.maximum(np.maximum(a, b) - m + 1, 0)
    shared = np.maximum(last - first + 1, 0).astype(np.float64)
    shared[a == b] = 0.0
    return np.asarray((shared**2).sum(axis=1))


def stable_order(x: FloatArray) -> IntArray:
    """Return a stable argsort of non-negative floats; for float32 it is several times faster than numpy's.

    The bits of non-negative floats sort like their values. With the bits in the upper and the position in the lower
    half of a 64-bit integer, one plain sort of integers gives the stable order.

    >>> stable_order(np.array([0.5, 0.25, 0.5], dtype=np.float32))
    array([1, 0, 2])
    """
    if x.dtype != np.float32 or len(x) >= 2**32:
        return np.argsort(x, kind="stable").astype(np.int64, copy=False)
    key = np.empty(len(x), dtype=np.uint64)
    for i in range(0, len(x), BLOCK):
        part = x[i : i + BLOCK] + np.float32(0)  # turns −0.0, whose bits would sort last, into 0.0
        key[i : i + BLOCK] = part.view(np.uint32)
        key[i : i + BLOCK] <<= np.uint64(32)
        key[i : i + BLOCK] |= np.arange(i, i + len(part), dtype=np.uint64)
    key.sort()
    key &= np.uint64(0xFFFFFFFF)
    return key.view(np.int64)


def _pooled_windows(s: Sample, window: int) -> WindowSums:
    """Sum over the windows of all classes sorted together."""
    flat = np.ascontiguousarray(s.data.probs).ravel()
    place = stable_order(flat)
    gap = flat.astype(np.float64)
    gap[np.arange(s.n) * s.k + s.y] -= 1
    gap = gap[place]
    total = sum_windows(gap, place // s.k, s.n, window)
    remove_same_rows(total, gap, place, s.k, min(window, len(gap)))
    return total


def remove_same_rows(total: WindowSums, gap: Vector, place: IntArray, k: int, m: int) -> None:
    """Subtract the pairs of events of the same row, which are less than a window apart, from the sums.

    ``place`` (N·K,) are the row-major positions of the sorted events, whose gaps are given.
    """
    n = len(gap)
    position: NumpyArray = np.empty(n, dtype=np.int32 if n < 2**31 else np.int64)
    position[place] = np.arange(n, dtype=position.dtype)
    table = position.reshape(n // k, k)
    table.sort(axis=1)
    step = max(1, BLOCK // k)
    for first in range(0, len(table), step):
        _remove_block(total, gap, table[first : first + step], first, m)


def _remove_block(total: WindowSums, gap: Vector, block: NumpyArray, first: int, m: int) -> None:
    """Subtract the pairs of some rows; ``block`` holds the ascending positions of the events of each row."""
    n = len(gap)
    k = block.shape[1]
    n_rows = len(total.row_products)
    lag = 1
    row, column = np.nonzero(np.diff(block, axis=1) < m)
    while row.size:
        a = block[row, column].astype(np.int64)
        b = block[row, column + lag].astype(np.int64)
        shared = np.minimum(a, n - m) - np.maximum(b - m + 1, 0) + 1.0  # windows that hold both
        product = shared * gap[a] * gap[b]
        total.products -= 2 * float(product.sum())
        total.pairs -= 2 * float(shared.sum())
        total.row_products -= 2 * np.bincount(first + row, product, n_rows)
        total.row_pairs -= 2 * np.bincount(first + row, shared, n_rows)

        lag += 1  # an event without a partner at this lag has none at a larger one
        partner = block[row, np.minimum(column + lag, k - 1)]
        near = (column + lag < k) & (partner - a < m)
        row = row[near]
        column = column[near]
