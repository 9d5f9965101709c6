"""The h-calibration error as a metric: windows of sorted events, with the noise of finite samples removed.

The objective of the paper (Huang et al., TPAMI 2025, Thm 7) compares, in every run of M consecutive sorted
events, the mean probability with the mean mark. As an *evaluation* it has a flaw: chance alone makes every
gap positive. Here the squared gap of a window is taken over pairs of different rows only,

    U = Σ_windows Σ_{a ≠ b} d_a d_b / (number of such pairs),    d = probability − mark,

whose expectation contains no variance of the labels: it is an unbiased estimate of the mean squared window
gap, 0 for calibrated predictions, and it can be negative.

Which events are sorted together decides what it can see. None of the families sees the whole vector: what is
wrong in one class only, or in two classes with opposite signs, averages out where classes are *pooled*, as in
the paper's objective (``docs/theory.md`` has an example); *class-wise* windows see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.registry import metric
from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample
from hcal.numerics import FloatArray, IntArray, prefix_sums

EventFamily = Literal["class-wise", "pooled", "top-label"]


@dataclass(frozen=True)
class HError:
    """The parts of an h-calibration error.

    Attributes
    ----------
    value : float
        sign(U)·√|U|, in units of probability; what :func:`hce` returns.
    squared : float
        U itself: unbiased.
    se : float
        Standard error of ``squared``: jackknife over rows, less the pair noise that it counts twice.
    noise : float
        What ``value`` exceeds in about 5 % of the cases when the predictions are calibrated.
    """

    value: float
    squared: float
    se: float
    noise: float


def h_error(
    probs: Any, y: Any = None, *, sample_weight: Any = None, events: EventFamily = "class-wise", window: int = 200
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
    >>> found = h_error(p, y)
    >>> found.value < found.noise
    True
    """
    if events not in get_args(EventFamily):
        raise ValueError(f"events must be 'class-wise', 'pooled' or 'top-label', got {events!r}")
    if not isinstance(window, int | np.integer) or window < 2:
        raise ValueError(f"window must be an integer of at least 2, got {window!r}")
    s = as_sample(probs, y, sample_weight).repeated("hce_pooled" if events == "pooled" else "hce")
    found: HError | None = s.data.h_errors.get((events, window))
    if found is None:
        found = s.data.h_errors[events, window] = _combine(list(_members(s, events, window)), s.n)
    return found


def _members(s: Sample, events: EventFamily, window: int) -> Iterator[WindowSums]:
    """Yield the sums of every sorted list of events of a family."""
    if events == "top-label":
        yield sum_windows(s.data.conf_sorted - s.data.hit_sorted, s.data.order, s.n, window)
    elif events == "pooled":
        yield _pooled_windows(s, window)
    else:
        # Of two classes one says all, being the mirror of the other.
        columns = [(1, s.data.column(1))] if s.k == 2 else enumerate(s.data.columns())
        shared = _shared_squares(s.n, min(window, s.n))
        for k, column in columns:
            order = stable_order(column)
            d = column[order].astype(np.float64) - (s.y[order] == k)
            yield sum_windows(d, order, s.n, window, shared)


def _ends(s: Sample, z: float, events: EventFamily) -> tuple[float, float]:
    """Return the ends of the interval of hce: z standard errors of its square to each side."""
    found = h_error(s, events=events)
    return signed_root(found.squared - z * found.se), signed_root(found.squared + z * found.se)


@metric("class-wise", "h-calibration error, class-wise",
        "root-mean-square gap of windows of 200 sorted probabilities of a class, averaged over classes, "
        "chance removed; can be negative",
        label="HCE", kind="debiased", weights="copies",
        ends=lambda s, _, z: _ends(s, z, "class-wise"))  # fmt: skip
def hce(
    probs: Any, y: Any = None, *, sample_weight: Any = None, events: EventFamily = "class-wise", window: int = 200
) -> float:
    """Return the h-calibration error: the root-mean-square gap of windows of sorted events.

    What chance adds is removed: below 0 means less gap than chance alone would show. It is no canonical error,
    whatever the events: it looks at one probability at a time. A near-uniform predictor on balanced classes may
    score 0, because it *is* calibrated: read it beside :func:`hcal.metrics.sharpness`.

    Parameters
    ----------
    events : {"class-wise", "pooled", "top-label"}
        Each class on its own, averaged, which sees most; all N·K events "row i has class k" sorted together,
        as in the paper's objective; or the predicted class only.
    window : int
        Events in a window; with fewer events there is one window of all of them.

    Examples
    --------
    >>> round(hce([[0.25, 0.75]] * 4, [1, 1, 1, 1], events="top-label"), 6)
    0.25
    """
    return h_error(probs, y, sample_weight=sample_weight, events=events, window=window).value


@metric("class-wise", "h-calibration error, pooled",
        "the same with all classes sorted together, as in the paper: it sees the average class only",
        label="HCE pooled", kind="debiased", weights="copies",
        ends=lambda s, _, z: _ends(s, z, "pooled"))  # fmt: skip
def hce_pooled(probs: Any, y: Any = None, *, sample_weight: Any = None, window: int = 200) -> float:
    """Return the h-calibration error of all classes pooled: the unbiased form of the paper's objective.

    Small values are necessary for calibration and not sufficient: see :func:`hce`.

    Examples
    --------
    >>> hce_pooled([[0.25, 0.75]] * 4, [1, 1, 1, 1])  # 0.25 too high for one class, too low for the other
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
    row_products: Vector  # (N,): the part of ``products`` in which each row takes part
    row_pairs: Vector


def _combine(sums: list[WindowSums], n_rows: int) -> HError:
    """Average the members of a family of events (one member: that one)."""
    members = [x for x in sums if x.pairs > 0]
    nan = float("nan")
    if not members:  # a single row: no pair, nothing to say without bias
        return HError(nan, nan, nan, nan)
    squared = float(np.mean([x.products / x.pairs for x in members]))
    null = float(np.sqrt(sum(x.null_variance / x.pairs**2 for x in members))) / len(members)
    influence = np.zeros(n_rows)
    for x in members:
        influence += 2 * (x.row_products - x.products / x.pairs * x.row_pairs) / x.pairs
    variance = float(influence @ influence) / len(members) ** 2
    # The jackknife counts the noise of single pairs twice; what is left is never less than that noise.
    se = float(np.sqrt(max(variance - null**2, null**2)))
    return HError(signed_root(squared), squared, se, signed_root(1.645 * null))


def sum_windows(d: Vector, row: IntArray, n_rows: int, window: int, shared: Vector | None = None) -> WindowSums:
    """Sum over the windows of sorted events, a stretch at a time; d, row (n,).

    ``shared`` is what ``_shared_squares`` returns, the same for all lists of one length.
    """
    n, m = len(d), min(window, len(d))
    count = n - m + 1
    by_place = _shared_squares(n, m) if shared is None else shared
    found = WindowSums(float(count) * m * (m - 1), 0.0, 0.0, np.zeros(n_rows), np.zeros(n_rows))
    for first in range(0, n, BLOCK // 4):
        last = min(first + BLOCK // 4, n)
        # Every window that contains one of these events, and every event of those windows.
        start, stop = max(first - m + 1, 0), min(last, count)
        prefix = prefix_sums(d[start : stop + m - 1])
        sums = prefix[m:] - prefix[:-m]
        own, place = d[first:last], np.arange(first, last)
        edge = np.minimum(place, n - 1 - place)  # events to the nearer end
        cover = np.minimum(edge + 1.0, min(m, count))  # windows that contain the event
        begun = sums[first - start :]  # windows that begin in this stretch: each is counted once
        found.products += float(np.dot(begun, begun) - np.dot(cover, own**2))
        # q(1 − q) is |d|(1 − |d|) for either mark. In a window it hardly changes: v_a·v_b is taken as v_a².
        variance = np.abs(own) * (1 - np.abs(own))
        found.null_variance += 2 * float(np.dot(variance**2, by_place[np.minimum(edge, len(by_place) - 1)]))
        total = prefix_sums(sums)
        around = total[np.minimum(place, n - m) + 1 - start] - total[np.maximum(place - m + 1, 0) - start]
        found.row_products += np.bincount(row[first:last], own * (around - cover * own), n_rows)
        found.row_pairs += np.bincount(row[first:last], cover * (m - 1), n_rows)
    return found


def _shared_squares(n: int, m: int) -> Vector:
    """Return Σ_{b ≠ a} (number of windows that hold both a and b)² by the distance of a to the nearer end.

    The last entry holds for every larger distance.
    """
    n = min(n, 2 * m + 1)  # further inside, nothing changes any more
    a, b = np.arange((n + 1) // 2)[:, None], np.arange(n)[None, :]
    shared = np.minimum(np.minimum(a, b), n - m) - np.maximum(np.maximum(a, b) - m + 1, 0) + 1
    return np.asarray((np.where(a == b, 0, np.maximum(shared, 0)).astype(np.float64) ** 2).sum(axis=1))


def stable_order(x: FloatArray) -> IntArray:
    """Return what a stable argsort of non-negative floats returns, for float32 several times faster.

    The bits of such floats sort like the floats: above their places in one integer, they need one plain sort.

    >>> stable_order(np.array([0.5, 0.25, 0.5], dtype=np.float32))
    array([1, 0, 2])
    """
    if x.dtype != np.float32 or len(x) >= 2**32:
        return np.argsort(x, kind="stable").astype(np.int64, copy=False)
    key = np.empty(len(x), dtype=np.uint64)
    for i in range(0, len(x), BLOCK):
        part = x[i : i + BLOCK] + np.float32(0)  # turns −0.0, whose bits sort last, into 0.0
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
    d = flat.astype(np.float64)
    d[np.arange(s.n) * s.k + s.y] -= 1
    d = d[place]
    found = sum_windows(d, place // s.k, s.n, window)
    remove_same_rows(found, d, place, s.k, min(window, len(d)))
    return found


def remove_same_rows(found: WindowSums, d: Vector, place: IntArray, k: int, m: int) -> None:
    """Take pairs of events of the same row, less than a window apart, out of the sums.

    ``place`` (N·K,) are the row-major places of the sorted events ``d``.
    """
    n = len(d)
    position: NDArray[Any] = np.empty(n, dtype=np.int32 if n < 2**31 else np.int64)
    position[place] = np.arange(n, dtype=position.dtype)
    table = position.reshape(n // k, k)
    table.sort(axis=1)
    step = max(1, BLOCK // k)
    for first in range(0, len(table), step):
        block = table[first : first + step]
        for lag in range(1, min(k, m)):
            row, column = np.nonzero(block[:, lag:] - block[:, :-lag] < m)
            if row.size == 0:
                break  # a larger lag is a larger distance
            a, b = (block[row, c].astype(np.int64) for c in (column, column + lag))
            shared = np.minimum(a, n - m) - np.maximum(b - m + 1, 0) + 1.0  # windows that hold both
            product = shared * d[a] * d[b]
            found.products -= 2 * float(product.sum())
            found.pairs -= 2 * float(shared.sum())
            found.row_products -= 2 * np.bincount(first + row, product, len(table))
            found.row_pairs -= 2 * np.bincount(first + row, shared, len(table))
