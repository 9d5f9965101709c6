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

import warnings
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from hcal.metrics.sample import BLOCK, Sample, Vector, as_sample
from hcal.runtime.numerics import FloatArray, IntArray

EventFamily = Literal["class-wise", "pooled", "top-label"]
#: Names that pooled events had: the first claimed more than they see.
_OLD_NAMES: Final = ("canonical", "atomic")


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
    events: EventFamily = "class-wise",
    window: int = 200,
    debias: bool = True,
) -> float:
    """Return the h-calibration error: the root-mean-square gap of windows of sorted events.

    It is no canonical error, whatever the events: it looks at one probability at a time. A near-uniform
    predictor on balanced classes may score 0, because it *is* calibrated: read it beside
    :func:`hcal.metrics.sharpness`.

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional
        Whole repetition counts.
    events : {"class-wise", "pooled", "top-label"}
        Each class on its own, averaged, which sees most; all N·K events "row i has class k" sorted together,
        as in the paper's objective; or the predicted class only. ``"canonical"`` is the old name of
        ``"pooled"`` and warns.
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


def hce_pooled(
    probs: Any, y: Any = None, *, sample_weight: Any = None, window: int = 200, debias: bool = True
) -> float:
    """Return the h-calibration error of all classes pooled: the unbiased form of the paper's objective.

    Small values are necessary for calibration and not sufficient: see :func:`hce`.

    Parameters
    ----------
    probs : array-like of shape (N, K)
    y : array-like of shape (N,)
    sample_weight : array-like of shape (N,), optional
        Whole repetition counts.
    window : int
    debias : bool

    Returns
    -------
    float

    Examples
    --------
    >>> hce_pooled([[0.25, 0.75]] * 4, [1, 1, 1, 1])  # 0.25 too high for one class, too low for the other
    0.0
    """
    return hce(probs, y, sample_weight=sample_weight, events="pooled", window=window, debias=debias)


def _checked(events: Any) -> EventFamily:
    if events in _OLD_NAMES:
        warnings.warn(
            f"events={events!r} is called 'pooled' now: the classes are sorted together, and what is wrong "
            "in one of them can average out; events='class-wise' sees it",
            FutureWarning,
            stacklevel=4,
        )
        return "pooled"
    if events not in get_args(EventFamily):
        raise ValueError(f"events must be 'class-wise', 'pooled' or 'top-label', got {events!r}")
    return events  # type: ignore[no-any-return]


def h_error(
    probs: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    events: EventFamily = "class-wise",
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
    events : {"class-wise", "pooled", "top-label"}
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
    events = _checked(events)
    if not isinstance(window, int | np.integer) or window < 2:
        raise ValueError(f"window must be an integer of at least 2, got {window!r}")
    s = _repeated(as_sample(probs, y, sample_weight), "hce_pooled" if events == "pooled" else "hce")
    if events == "top-label":
        family = [
            _windows(_Listed(s.data.conf_sorted, s.data.hit_sorted, s.data.order), s.n, int(window), se)
        ]
    elif events == "class-wise":
        family = _class_windows(s, int(window), se)
    else:
        pooled = _Pooled(s)
        family = [_windows(pooled, s.n, int(window), se)]
        _remove_same_rows(family[0], pooled, s, min(int(window), len(pooled)))
    return _combine(family, s.n)


def _repeated(s: Sample, name: str) -> Sample:
    """Return the sample with integer weights written out as repeated rows."""
    if s.weight is None:
        return s
    s.need_repetitions(name, copied=True)
    rows = np.repeat(np.arange(s.n), s.weight.astype(np.int64))
    return Sample(s.data.probs[rows], s.y[rows])


class _Sorted(Protocol):
    """Events in ascending order of probability, decoded a stretch at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice | IntArray) -> tuple[Vector, Vector, IntArray]:
        """Return the probabilities, the marks and the rows of some events."""


@dataclass(frozen=True)
class _Listed:
    """One event a row, held as sorted arrays."""

    probability: Vector
    mark: Vector
    row: IntArray

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, where: slice | IntArray) -> tuple[Vector, Vector, IntArray]:
        return self.probability[where], self.mark[where], self.row[where]


class _Pooled:
    """All N·K atomic events; only the sorted keys are held, 8 bytes an event for float32."""

    def __init__(self, s: Sample) -> None:
        self.k, self.y = s.k, s.y
        self.flat = np.ascontiguousarray(s.data.probs).ravel()
        self.packed = self.flat.dtype == np.float32 and self.flat.size < 2**32
        self.key: NDArray[Any]
        if self.packed:
            self.key = _packed_sort(self.flat)
        elif s.data.tensor is not None:
            self.key = s.data.tensor.reshape(-1).sort(stable=True).indices.cpu().numpy()
        else:
            self.key = np.argsort(self.flat, kind="stable")

    def __len__(self) -> int:
        return self.flat.size

    def places(self, where: slice | IntArray) -> IntArray:
        """Return the row-major places of some sorted events."""
        key = self.key[where]
        return np.asarray((key & np.uint64(0xFFFFFFFF)).view(np.int64) if self.packed else key)

    def __getitem__(self, where: slice | IntArray) -> tuple[Vector, Vector, IntArray]:
        place = self.places(where)
        row = place // self.k
        mark = (self.y[row] == place - row * self.k).astype(np.float64)
        if self.packed:
            bits = (self.key[where] >> np.uint64(32)).astype(np.uint32)
            return bits.view(np.float32).astype(np.float64), mark, row
        return self.flat[place].astype(np.float64), mark, row


def _packed_sort(flat: FloatArray) -> NDArray[np.uint64]:
    """Return ascending keys: the bits of a float32 above, its place below.

    Bits of non-negative floats sort like the floats, so one sort of integers does what a stable argsort
    does, several times faster.
    """
    key = np.empty(flat.size, dtype=np.uint64)
    for i in range(0, flat.size, BLOCK):
        part = flat[i : i + BLOCK] + np.float32(0)  # turns −0.0, whose bits sort last, into 0.0
        key[i : i + BLOCK] = part.view(np.uint32)
        key[i : i + BLOCK] <<= np.uint64(32)
        key[i : i + BLOCK] |= np.arange(i, i + len(part), dtype=np.uint64)
    key.sort()
    return key


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


def _windows(events: _Sorted, n_rows: int, window: int, se: bool) -> _Sums:
    """Sum over the windows of sorted events, a stretch of about ``BLOCK/4`` events at a time."""
    n = len(events)
    m = min(window, n)
    count = n - m + 1
    by_place = _shared_squares(n, m)
    found = _Sums(float(count) * m * (m - 1), 0.0, 0.0, count, 0.0, None, None)
    if se:
        found.row_products, found.row_pairs = np.zeros(n_rows), np.zeros(n_rows)
    for first in range(0, n, BLOCK // 4):
        last = min(first + BLOCK // 4, n)
        # Every window that contains one of these events, and every event of those windows.
        start, stop = max(first - m + 1, 0), min(last, count)
        q, mark, row = events[start : stop + m - 1]
        d = q - mark
        prefix = np.zeros(len(d) + 1)
        np.cumsum(d, out=prefix[1:])
        sums = prefix[m:] - prefix[:-m]
        own = slice(first - start, last - start)
        cover = _cover(first, last, n, m)
        begun = sums[first - start :]  # windows that begin in this stretch: each is counted once
        square = float(np.dot(begun, begun))
        found.squares += square / m**2
        found.products += square - float(np.dot(cover, d[own] ** 2))
        # Within a window the variance hardly changes: v_a·v_b is taken as v_a².
        variance = q[own] * (1 - q[own])
        edge = np.minimum(np.arange(first, last), n - 1 - np.arange(first, last))
        found.null_variance += 2 * float(np.dot(variance**2, by_place[np.minimum(edge, len(by_place) - 1)]))
        if found.row_products is not None and found.row_pairs is not None:
            total = np.zeros(len(sums) + 1)
            np.cumsum(sums, out=total[1:])
            place = np.arange(first, last)
            around = total[np.minimum(place, n - m) + 1 - start] - total[np.maximum(place - m + 1, 0) - start]
            found.row_products += _by_row(row[own], d[own] * (around - cover * d[own]), n_rows)
            found.row_pairs += _by_row(row[own], cover * (m - 1), n_rows)
    return found


def _by_row(rows: IntArray, values: Vector, n_rows: int) -> Vector:
    return np.bincount(rows, weights=values, minlength=n_rows).astype(np.float64, copy=False)


def _cover(first: int, last: int, n: int, m: int) -> Vector:
    """Return how many of the n − m + 1 windows contain each of the events first..last−1."""
    place = np.arange(first, last, dtype=np.float64)
    return np.minimum(np.minimum(place + 1, n - place), min(m, n - m + 1))


def _shared_squares(n: int, m: int) -> Vector:
    """Return Σ_{b ≠ a} (number of windows that hold both a and b)² by the distance of a to the nearer end.

    The last entry holds for every larger distance.
    """
    n = min(n, 2 * m + 1)  # further inside, nothing changes any more
    a = np.arange((n + 1) // 2)[:, None]
    b = np.arange(n)[None, :]
    low, high = np.minimum(a, b), np.maximum(a, b)
    shared = np.minimum(low, n - m) - np.maximum(high - m + 1, 0) + 1
    squares = np.where(a == b, 0, np.maximum(shared, 0)).astype(np.float64) ** 2
    return np.asarray(squares.sum(axis=1))


def _class_windows(s: Sample, window: int, se: bool) -> list[_Sums]:
    """Sum over the windows of every class; of two classes one says all, being the mirror of the other."""
    out = []
    if s.k == 2:
        column = np.ascontiguousarray(s.data.probs[:, 1], dtype=np.float64)
        order = np.argsort(column, kind="stable")
        mark = (s.y[order] == 1).astype(np.float64)
        return [_windows(_Listed(column[order], mark, order), s.n, window, se)]
    step = max(1, BLOCK // s.n)
    for first in range(0, s.k, step):
        columns = np.ascontiguousarray(s.data.probs[:, first : first + step].T, dtype=np.float64)
        for k, column in enumerate(columns, start=first):
            order = np.argsort(column, kind="stable")
            mark = (s.y[order] == k).astype(np.float64)
            out.append(_windows(_Listed(column[order], mark, order), s.n, window, se))
    return out


def _remove_same_rows(found: _Sums, events: _Pooled, s: Sample, m: int) -> None:
    """Take pairs of events of the same row, less than a window apart, out of the sums."""
    n = len(events)
    position: NDArray[Any] = np.empty(n, dtype=np.int32 if n < 2**31 else np.int64)
    for i in range(0, n, BLOCK):
        places = events.places(slice(i, i + BLOCK))
        position[places] = np.arange(i, i + len(places), dtype=position.dtype)
    table = position.reshape(s.n, s.k)
    table.sort(axis=1)
    step = max(1, BLOCK // s.k)
    for first in range(0, s.n, step):
        block = table[first : first + step]
        for lag in range(1, min(s.k, m)):
            row, column = np.nonzero(block[:, lag:] - block[:, :-lag] < m)
            if row.size == 0:
                break  # a larger lag is a larger distance
            a, b = (block[row, c].astype(np.int64) for c in (column, column + lag))
            _remove_pairs(found, events, first + row, a, b, m)


def _remove_pairs(found: _Sums, events: _Pooled, row: IntArray, a: IntArray, b: IntArray, m: int) -> None:
    n = len(events)
    (q_a, mark_a, _), (q_b, mark_b, _) = events[a], events[b]
    shared = np.minimum(a, n - m) - np.maximum(b - m + 1, 0) + 1.0
    product = shared * (q_a - mark_a) * (q_b - mark_b)
    found.products -= 2 * float(product.sum())
    found.pairs -= 2 * float(shared.sum())
    if found.row_products is not None and found.row_pairs is not None:
        n_rows = len(found.row_pairs)
        found.row_products -= 2 * _by_row(row, product, n_rows)
        found.row_pairs -= 2 * _by_row(row, shared, n_rows)


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
    # The jackknife counts the noise of single pairs twice; what is left is never less than that noise.
    se = float(np.sqrt(max((influence**2).sum() - null**2, null**2))) if known else float("nan")
    return HError(signed_root(squared), squared, se, signed_root(1.645 * null), raw)


def hce_ends(s: Sample, _: float, z: float) -> tuple[float, float]:
    """Return the ends of the interval of hce: z standard errors of its square to each side."""
    return _ends(h_error(s), z)


def hce_pooled_ends(s: Sample, _: float, z: float) -> tuple[float, float]:
    """Return the same for pooled events."""
    return _ends(h_error(s, events="pooled"), z)


def _ends(found: HError, z: float) -> tuple[float, float]:
    return signed_root(found.squared - z * found.se), signed_root(found.squared + z * found.se)


def signed_root(x: float) -> float:
    """Return sign(x)·√|x|.

    Examples
    --------
    >>> signed_root(-4.0)
    -2.0
    """
    return float(np.sign(x) * np.sqrt(abs(x)))
