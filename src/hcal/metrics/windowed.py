"""The h-calibration error as a metric: windows of sorted events, with the noise of finite samples removed.

The objective of the paper (Huang et al., TPAMI 2025, Thm 7) compares, in every run of M consecutive sorted
events, the mean probability with the mean mark. As an *evaluation* it has a flaw: chance alone makes every
gap positive. Here the squared gap of a window is taken over pairs of different rows only,

    U = Σ_windows Σ_{a ≠ b} d_a d_b / (number of such pairs),    d = probability − mark,

whose expectation contains no variance of the labels: it is an unbiased estimate of the mean squared window
gap, 0 for calibrated predictions, and it can be negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample
from hcal.numerics import FloatArray, IntArray

Events = Literal["canonical", "class-wise", "top-label"]


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
        Standard error of ``squared`` (jackknife over rows), of no use where the predictions are calibrated.
    noise : float
        What ``value`` exceeds in about 5 % of the cases when the predictions are calibrated.
    raw : float
        Root of the mean squared window gap, chance included.
    """

    value: float
    squared: float
    se: float
    noise: float
    raw: float


def hce(
    probs: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    events: Events = "canonical",
    window: int = 200,
    debias: bool = True,
) -> float:
    """Return the h-calibration error: the root-mean-square gap of windows of sorted events.

    A near-uniform predictor on balanced classes may score 0, because it *is* calibrated: read it beside
    :func:`hcal.metrics.sharpness`.

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional
        Whole repetition counts.
    events : {"canonical", "class-wise", "top-label"}
        All N·K atomic events sorted together; each class on its own, averaged; or the predicted class only.
    window : int
        Events in a window; with fewer events there is one window of all of them.
    debias : bool
        Remove what chance adds (the answer is signed: below 0 means less gap than chance alone would
        show); False gives the plain root-mean-square gap.

    Returns
    -------
    float

    Examples
    --------
    >>> round(hce([[0.25, 0.75]] * 4, [1, 1, 1, 1], events="top-label"), 6)
    0.25
    """
    found = h_error(probs, y, sample_weight=sample_weight, events=events, window=window, se=False)
    return found.value if debias else found.raw


def h_error(
    probs: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    events: Events = "canonical",
    window: int = 200,
    se: bool = True,
) -> HError:
    """Return the h-calibration error with its noise level and standard error (see :func:`hce`).

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional
        Whole repetition counts.
    events : {"canonical", "class-wise", "top-label"}
    window : int
    se : bool
        Whether to compute the standard error (NaN if not).

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
    if events not in ("canonical", "class-wise", "top-label"):
        raise ValueError(f"events must be 'canonical', 'class-wise' or 'top-label', got {events!r}")
    if not isinstance(window, int | np.integer) or window < 2:
        raise ValueError(f"window must be an integer of at least 2, got {window!r}")
    s = _repeated(as_sample(probs, y, sample_weight))
    if events == "top-label":
        d = s.data.conf_sorted - s.data.hit_sorted
        sums = [_windows(d, s.data.conf_sorted, int(window), s.data.order, s.n, se)]
    elif events == "class-wise":
        sums = _class_windows(s, int(window), se)
    else:
        sums = [_pooled(s, int(window), se)]
    return _combine(sums, s.n)


def _repeated(s: Sample) -> Sample:
    """Return the sample with integer weights written out as repeated rows."""
    if s.weight is None:
        return s
    s.need_repetitions("hce")
    rows = np.repeat(np.arange(s.n), s.weight.astype(np.int64))
    return Sample(s.data.probs[rows], s.y[rows])


@dataclass
class _Sums:
    """Sums over all windows of one sorted list of events."""

    pairs: float  # ordered pairs of different rows
    products: float  # Σ d_a d_b over them
    squares: float  # Σ_windows (mean d)², chance included
    windows: int
    null_variance: float  # of ``products``, if labels were drawn from the probabilities
    row_products: Vector | None  # the part of ``products`` in which each row takes part
    row_pairs: Vector | None


def _windows(d: Vector, q: Vector, window: int, rows: IntArray, n_rows: int, se: bool) -> _Sums:
    """Sum over the windows of sorted events; ``rows`` says which row each event belongs to."""
    n = len(d)
    m = min(window, n)
    prefix = np.zeros(n + 1)
    np.cumsum(d, out=prefix[1:])
    sums = prefix[m:] - prefix[:-m]
    cover = _cover(n, m)
    square = float(np.dot(sums, sums))
    products = square - float(np.dot(cover, d * d))
    variance = q * (1 - q)
    # Two events at a distance of l share m − l windows; within a window v hardly changes.
    shared = (m - 1) * m * (2 * m - 1) / 3 if n > m else float(m - 1)
    found = _Sums(
        pairs=float(len(sums)) * m * (m - 1),
        products=products,
        squares=square / m**2,
        windows=len(sums),
        null_variance=2 * shared * float(np.dot(variance, variance)),
        row_products=None,
        row_pairs=None,
    )
    if se:
        total = np.zeros(len(sums) + 1)
        np.cumsum(sums, out=total[1:])
        place = np.arange(n)
        around = total[np.minimum(place, n - m) + 1] - total[np.maximum(place - m + 1, 0)]
        found.row_products = _by_row(rows, d * (around - cover * d), n_rows)
        found.row_pairs = _by_row(rows, cover * (m - 1), n_rows)
    return found


def _by_row(rows: IntArray, values: Vector, n_rows: int) -> Vector:
    return np.bincount(rows, weights=values, minlength=n_rows).astype(np.float64, copy=False)


def _cover(n: int, m: int) -> Vector:
    """Return how many of the n − m + 1 windows contain each event, shape (n,)."""
    place = np.arange(n, dtype=np.float64)
    return np.minimum(np.minimum(place + 1, n - place), min(m, n - m + 1))


def _class_windows(s: Sample, window: int, se: bool) -> list[_Sums]:
    out = []
    step = max(1, BLOCK // s.n)
    for first in range(0, s.k, step):
        columns = np.ascontiguousarray(s.data.probs[:, first : first + step].T, dtype=np.float64)
        for k, column in enumerate(columns, start=first):
            order = np.argsort(column, kind="stable")
            q = column[order]
            out.append(_windows(q - (s.y[order] == k), q, window, order, s.n, se))
    return out


def sort_events(probs: FloatArray) -> tuple[Vector, IntArray]:
    """Return all N·K probabilities ascending with their row-major places, ties in row-major order.

    Bits of non-negative floats sort like the floats: for float32 one sort of 64-bit integers (value above,
    place below) does what a stable argsort does, several times faster.

    Parameters
    ----------
    probs : array of shape (N, K)

    Returns
    -------
    values of shape (N·K,), places of shape (N·K,)

    Examples
    --------
    >>> sort_events(np.array([[0.75, 0.25]], dtype=np.float32))
    (array([0.25, 0.75]), array([1, 0]))
    """
    flat = np.ascontiguousarray(probs).ravel()
    if flat.dtype == np.float32 and flat.size < 2**32:
        flat = flat + np.float32(0)  # turns −0.0, whose bits sort last, into 0.0
        key = flat.view(np.uint32).astype(np.uint64) << np.uint64(32)
        key |= np.arange(flat.size, dtype=np.uint64)
        key.sort()
        value = (key >> np.uint64(32)).astype(np.uint32).view(np.float32).astype(np.float64)
        key &= np.uint64(0xFFFFFFFF)
        return value, key.view(np.int64)
    order = np.argsort(flat, kind="stable").astype(np.int64, copy=False)
    return flat[order].astype(np.float64), order


def _pooled(s: Sample, window: int, se: bool) -> _Sums:
    """All atomic events in one list; pairs of events of the same row are taken out again."""
    q, place = sort_events(s.data.probs)
    rows = place // s.k
    d = q - (s.y[rows] == place - rows * s.k)
    found = _windows(d, q, window, rows, s.n, se)
    del q, rows
    position = np.empty((s.n, s.k), dtype=np.int64)
    position.ravel()[place] = np.arange(place.size)
    del place
    m = min(window, position.size)
    step = max(1, BLOCK // s.k)
    for i in range(0, s.n, step):
        _remove_same_row(found, position[i : i + step], d, m, i)
    return found


def _remove_same_row(found: _Sums, position: NDArray[np.int64], d: Vector, m: int, first: int) -> None:
    """Take the pairs of events of the same row, less than a window apart, out of the sums."""
    n = len(d)
    position = np.sort(position, axis=1)
    for lag in range(1, min(position.shape[1], m)):
        row, column = np.nonzero(position[:, lag:] - position[:, :-lag] < m)
        if row.size == 0:
            return  # a larger lag is a larger distance
        a, b = position[row, column], position[row, column + lag]
        shared = np.minimum(a, n - m) - np.maximum(b - m + 1, 0) + 1.0
        product = shared * d[a] * d[b]
        found.products -= 2 * float(product.sum())
        found.pairs -= 2 * float(shared.sum())
        if found.row_products is not None and found.row_pairs is not None:
            n_rows = len(found.row_pairs) - first
            found.row_products[first:] -= 2 * _by_row(row, product, n_rows)
            found.row_pairs[first:] -= 2 * _by_row(row, shared, n_rows)


def _combine(sums: list[_Sums], n_rows: int) -> HError:
    """Average the members of a family of events (one member: that one)."""
    members = [x for x in sums if x.pairs > 0]
    raw = float(np.sqrt(np.mean([x.squares / x.windows for x in sums])))
    if not members:  # a single row: no pair, nothing to say without bias
        nan = float("nan")
        return HError(nan, nan, nan, nan, raw)
    squared = float(np.mean([x.products / x.pairs for x in members]))
    null = float(np.sqrt(sum(x.null_variance / x.pairs**2 for x in members))) / len(members)
    influence = np.zeros(n_rows)
    known = True
    for x in members:
        if x.row_products is None or x.row_pairs is None:
            known = False
            break
        influence += 2 * (x.row_products - x.products / x.pairs * x.row_pairs) / x.pairs / len(members)
    se = float(np.sqrt((influence**2).sum())) if known else float("nan")
    return HError(signed_root(squared), squared, se, signed_root(1.645 * null), raw)


def signed_root(x: float) -> float:
    """Return sign(x)·√|x|.

    Examples
    --------
    >>> signed_root(-4.0)
    -2.0
    """
    return float(np.sign(x) * np.sqrt(abs(x)))
