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
from typing import Any, Final, Literal, get_args

import numpy as np

from hcal.metrics.documented import documented_metric
from hcal.metrics.sample import Sample, Vector, as_sample
from hcal.metrics.window_sums import (
    ListedEvents,
    WindowSums,
    influence_of,
    sum_class_windows,
    sum_pooled_windows,
    sum_windows,
)

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


@documented_metric(weights="counts")
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
    events : {"class-wise", "pooled", "top-label"}
        Each class on its own, averaged, which sees most; all N·K events "row i has class k" sorted together,
        as in the paper's objective; or the predicted class only. ``"canonical"`` is the old name of
        ``"pooled"`` and warns.
    window : int
        Events in a window; with fewer events there is one window of all of them.
    debias : bool
        Remove what chance adds (the answer is signed: below 0 means less gap than chance alone would
        show); False gives the plain root-mean-square gap.

    Examples
    --------
    >>> round(hce([[0.25, 0.75]] * 4, [1, 1, 1, 1], events="top-label"), 6)
    0.25
    """
    found = h_error(probs, y, sample_weight=sample_weight, events=events, window=window, se=False)
    return found.value if debias else found.raw


@documented_metric(weights="counts")
def hce_pooled(
    probs: Any, y: Any = None, *, sample_weight: Any = None, window: int = 200, debias: bool = True
) -> float:
    """Return the h-calibration error of all classes pooled: the unbiased form of the paper's objective.

    Small values are necessary for calibration and not sufficient: see :func:`hce`.

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


@documented_metric(weights="counts")
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
    if events == "class-wise":
        return _combine(*sum_class_windows(s, int(window), se))
    if events == "top-label":
        top = ListedEvents(s.data.conf_sorted, s.data.hit_sorted, s.data.order)
        found = sum_windows(top, s.n, int(window), se)
    else:
        found = sum_pooled_windows(s, int(window), se)
    return _combine([found], influence_of([found], s.n) if se else None)


def _repeated(s: Sample, name: str) -> Sample:
    """Return the sample with integer weights written out as repeated rows."""
    if s.weight is None:
        return s
    s.need_repetitions(name, copied=True)
    rows = np.repeat(np.arange(s.n), s.weight.astype(np.int64))
    return Sample(s.data.take(rows), s.y[rows])


def _combine(sums: list[WindowSums], influence: Vector | None) -> HError:
    """Average the members of a family of events (one member: that one)."""
    members = [x for x in sums if x.pairs > 0]
    raw = float(np.sqrt(np.mean([x.squares / x.windows for x in sums])))
    if not members:  # a single row: no pair, nothing to say without bias
        nan = float("nan")
        return HError(nan, nan, nan, nan, raw)
    squared = float(np.mean([x.products / x.pairs for x in members]))
    null = float(np.sqrt(sum(x.null_variance / x.pairs**2 for x in members))) / len(members)
    se = float("nan")
    if influence is not None:
        variance = float((influence**2).sum()) / len(members) ** 2
        # The jackknife counts the noise of single pairs twice; what is left is never less than that noise.
        se = float(np.sqrt(max(variance - null**2, null**2)))
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

    >>> signed_root(-4.0)
    -2.0
    """
    return float(np.sign(x) * np.sqrt(abs(x)))
