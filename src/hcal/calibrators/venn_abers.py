"""Venn-Abers predictors, inductive and cross (Vovk, Petej & Fedorova, NeurIPS 2015), one against the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hcal import inputs
from hcal.calibrators._log_odds import events, log_odds
from hcal.calibrators._one_vs_rest import columns, normalise, ten_digits
from hcal.calibrators.base import PRIOR, Calibrator, Fitted, State
from hcal.calibrators.declared import parameters
from hcal.calibrators.floor import apply_floor
from hcal.calibrators.iso import pool_equal
from hcal.calibrators.row_order import WeightedRows, fold_parts
from hcal.calibrators.state import Field, Rule, Sizes, StateArrays, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import (
    Float64,
    FloatArray,
    IntArray,
    bounded,
    prefix_sums,
    run_starts,
    softmax,
)


def _whole(name: str, size: str) -> Callable[[StateArrays, Sizes], bool]:
    return lambda s, n: bool(s[name][0] == 0 and s[name][-1] == n[size])


@parameters
class VennAbers(Calibrator):
    """Isotonic regression with the new row added once as a miss and once as a hit: an interval (p0, p1).

    One of the two is calibrated, whatever the distribution. The probability given is p1/(1 − p0 + p1), which
    loses least log-loss in the worse of the two cases; it is never 0 or 1. Two classes have one event; with
    more, each class against the rest, and rows divided by their sum. A class absent from the calibration rows
    keeps its probability.

    Vovk, Petej, Fedorova: Large-scale probabilistic predictors with and without guarantees of validity,
    NeurIPS 2015.

    Parameters
    ----------
    folds : int
        1: inductive, all rows in one regression, where the guarantee holds. More: cross, a regression a fold,
        merged by geometric means; smoother, without the guarantee.
    random_state : int
        Deals the rows into folds.

    Examples
    --------
    >>> cal = VennAbers(input="probs").fit([[0.4, 0.6], [0.2, 0.8]] * 2, [0, 1, 1, 0])
    >>> cal.predict_proba([[0.1, 0.9]]).round(3)
    array([[0.375, 0.625]])
    >>> [edge[0, 1].round(3) for edge in cal.predict_interval([[0.1, 0.9]])]
    [np.float64(0.4), np.float64(1.0)]
    """

    name = "venn_abers"
    title = "Venn-Abers"
    weighted = True
    state_specs = (
        StateSpec(
            (
                Field("low_knots", "where p0 changes, event after event, fold after fold", ("P",)),
                Field("low", "p0 from there on", ("P",), 0, 1),
                Field("high_knots", "where p1 changes", ("Q",)),
                Field("high", "p1 up to there", ("Q",), 1e-200, 1),
                Field("low_offsets", "which of low are whose", ("F*E+1",), 0, "P", "int64", "not falling"),
                Field("high_offsets", "which of high are whose", ("F*E+1",), 0, "Q", "int64", "not falling"),
            ),
            {"P": ("steps of p0", 0), "Q": ("steps of p1", 0), "F": ("folds", 1)},
            (
                Rule("low_offsets", "begin with 0 and end with P", _whole("low_offsets", "P")),
                Rule("high_offsets", "begin with 0 and end with Q", _whole("high_offsets", "Q")),
            ),
        ),
    )

    folds: int = 1
    random_state: int = 0
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        if self.folds < 1:
            raise ValueError(f"folds must be at least 1, got {self.folds!r}")
        dealt = fold_parts(logits, y, sample_weight, self.folds, random_state=self.random_state)
        return Fitted(_fit_all(ten_digits(log_odds(logits)), y, [held for _, held in dealt]))

    def _predict(self, logits: FloatArray) -> FloatArray:
        miss, hit = _merged(self.state_, logits)
        q = hit / (miss + hit)
        if self.n_classes_ == 2:
            return np.hstack([miss / (miss + hit), q])
        return normalise(q, softmax(np.asarray(logits, dtype=np.float64)), 0.0)

    def predict_interval(self, logits: Any) -> tuple[Float64, Float64]:
        """Return (p0, p1): between which calibrated probabilities each class lies, one against the rest.

        Parameters
        ----------
        logits : array-like of shape (N, K), or (N,) for a binary score

        Returns
        -------
        two arrays of shape (N, K)
            With several folds, the geometric means that the prediction merges. Rows do not sum to 1.
        """
        self._check_fitted()
        if PRIOR in self.state_:
            raise ValueError("intervals are of the class frequencies of the fit: ask before with_prior")
        x, _ = inputs.check_logits(logits, input=self.input, n_classes=self.n_classes_)
        miss, p1 = _merged(self.state_, bounded(apply_floor(x, self.state_.get("input_floor"))))
        p0 = 1 - miss
        if self.n_classes_ == 2:
            return np.hstack([1 - p1, p0]), np.hstack([1 - p0, p1])
        return p0, p1


def _fit_all(odds: Float64, y: IntArray, parts: list[WeightedRows]) -> State:
    """Return the steps of all folds and events end to end, events within folds."""
    used = events(odds)
    first = odds.shape[1] - used.shape[1]
    found: dict[str, list[Float64]] = {"low_knots": [], "low": [], "high_knots": [], "high": []}
    for rows, own in parts:
        mass = np.bincount(y[rows], weights=own, minlength=odds.shape[1])
        for column, o in columns(used[rows]):
            known = mass[column + first] > 0 and np.count_nonzero(mass) > 1
            hit = (y[rows] == column + first).astype(np.float64)
            steps = _steps(*pool_equal(o, hit, own)) if known else (np.empty(0),) * 4
            for name, array in zip(found, steps, strict=True):
                found[name].append(array)
    state: State = {name: np.concatenate(arrays) for name, arrays in found.items()}
    for name in ("low", "high"):
        state[f"{name}_offsets"] = np.cumsum([0, *map(len, found[name])], dtype=np.int64)
    return state


def _steps(x: Float64, mass: Float64, hits: Float64) -> tuple[Float64, Float64, Float64, Float64]:
    """Return p0 and p1 as step functions: where they change, and to what.

    p0 of a score is that of the greatest x below or at it, p1 that of the smallest above or at it.
    """
    low, high = _added(mass, hits, 0.0), _added(mass, hits, 1.0)
    starts = run_starts(low)
    ends = np.flatnonzero(np.concatenate([high[1:] != high[:-1], [True]]))
    return x[starts], low[starts], x[ends], high[ends]


def _added(mass: Float64, hits: Float64, label: float) -> Float64:
    """Return, for every point, the isotonic fit there after one more row with this label at that point.

    The fit at j is the slope with which the greatest convex minorant of the cumulated hits passes j. With a
    row added at j, it is the lower tangent that bridges the hull of the points before j and that of the
    points from j on, moved by the row; both hulls are chains that do not depend on j, and all bridges are
    walked at once.
    """
    w, s = prefix_sums(mass), prefix_sums(hits)
    before, after = _chain(w, s), len(w) - 1 - _chain(-w[::-1], s[::-1])[::-1]
    left, right = np.arange(len(mass)), np.arange(1, len(w))

    def slope(i: IntArray, j: IntArray) -> Float64:
        steepness: Float64 = (s[j] - s[i] + label) / (w[j] - w[i] + 1)
        return steepness

    while True:
        now = slope(left, right)
        further = after[right]
        moved = (further != right) & (slope(left, further) < now)
        right = np.where(moved, further, right)
        now = np.where(moved, slope(left, right), now)
        nearer = before[left]
        shifted = (nearer != left) & (slope(nearer, right) > now)
        left = np.where(shifted, nearer, left)
        if not (moved.any() or shifted.any()):
            return np.clip(now, 0.0, 1.0)


def _chain(w: Float64, s: Float64) -> IntArray:
    """Return, for every point, the one before it on the lower hull of all up to it; the first, itself."""
    previous = np.zeros(len(w), dtype=np.int64)
    width, height = w.tolist(), s.tolist()
    chain: list[int] = [0]
    for i in range(1, len(width)):
        while len(chain) > 1:
            a, b = chain[-2], chain[-1]
            # b leaves the hull when it does not lie below the line from a to i.
            if (height[b] - height[a]) * (width[i] - width[a]) < (height[i] - height[a]) * (
                width[b] - width[a]
            ):
                break
            chain.pop()
        previous[i] = chain[-1]
        chain.append(i)
    return previous


def _merged(state: State, logits: FloatArray) -> tuple[Float64, Float64]:
    """Return the geometric means (N, events) of 1 − p0 and of p1 over the folds; of one, themselves."""
    low, high = _intervals(state, events(ten_digits(log_odds(logits))))
    return np.exp(np.log1p(-low).mean(axis=0)), np.exp(np.log(high).mean(axis=0))


def _intervals(state: State, used: Float64) -> tuple[Float64, Float64]:
    """Return p0 and p1 of every fold: shape (folds, N, events); of an event without a curve, p and p."""
    n_folds = (len(state["low_offsets"]) - 1) // used.shape[1]
    low, high = np.empty((2, n_folds, *used.shape))
    for fold in range(n_folds):
        for column, o in columns(used):
            at = fold * used.shape[1] + column
            low[fold, :, column], high[fold, :, column] = _interval(state, at, o)
    return low, high


def _interval(state: State, at: int, odds: Float64) -> tuple[Float64, Float64]:
    below = slice(*state["low_offsets"][at : at + 2])
    above = slice(*state["high_offsets"][at : at + 2])
    if below.start == below.stop:
        p = np.clip(1 / (1 + np.exp(-np.clip(odds, -700, 700))), np.finfo(np.float64).tiny, 1 - 2.0**-53)
        return p, p
    # Below all rows a miss stands alone: 0. Above all rows a hit does: 1.
    low = np.concatenate([[0.0], state["low"][below]])
    high = np.concatenate([state["high"][above], [1.0]])
    found = np.searchsorted(state["low_knots"][below], odds, side="right")
    return low[found], high[np.searchsorted(state["high_knots"][above], odds, side="left")]
