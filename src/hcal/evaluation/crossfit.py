"""``hcal.cross_fit``: fit and test on the same rows, for data that is too small to split.

Every row is predicted by a fit that did not see it, so the rows can be evaluated as if they were new. The calibrator
to use is the one fitted on all rows. It looks better on its own rows than on new ones; this *optimism* is estimated
by the bootstrap (Efron and Gong, 1983; Steyerberg: Clinical Prediction Models): a fit on resampled rows is measured
on them and on the original rows, and the mean difference is subtracted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logit

from hcal import inputs
from hcal.methods import Calibrator, make_calibrator
from hcal.methods.folds import deal_folds, fold_sides
from hcal.metrics.clinical import logistic
from hcal.metrics.scores import brier as brier_score
from hcal.numerics import Float64, FloatArray, IntArray


@dataclass(frozen=True)
class Corrected:
    """A metric on the rows of the fit, and its optimism: by how much it looks too good there."""

    apparent: float
    optimism: float

    @property
    def corrected(self) -> float:
        """The estimate for new rows."""
        return self.apparent - self.optimism


@dataclass(frozen=True)
class CrossFit:
    """Out-of-fold probabilities and the calibrator fitted on all rows.

    Attributes
    ----------
    probs : array of shape (N, K)
        Each row predicted by a fit without its fold (and without its group).
    fold : array of shape (N,)
    calibrator : Calibrator
        Fitted on all rows: the one to use.
    slope, brier : Corrected or None
        Calibration slope (of two classes) and Brier score, corrected for optimism; None without ``resamples``.
    resamples : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(250, 2)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> found = cross_fit("ts", 3 * z, y, resamples=20)
    >>> found.probs.shape, found.brier.optimism <= 0.0
    ((250, 2), True)
    """

    probs: FloatArray
    fold: IntArray
    calibrator: Calibrator
    slope: Corrected | None
    brier: Corrected | None
    resamples: int

    @property
    def sentences(self) -> list[str]:
        """The procedure and its results in words."""
        folds = int(self.fold.max()) + 1
        told = [
            f"Each of the {len(self.probs):,} rows is predicted by a fit without it ({folds} folds)."
        ]
        if self.slope is not None and self.brier is not None:
            slope = f"calibration slope {self.slope.corrected:.3f} (apparent {self.slope.apparent:.3f}), "
            told.append(
                f"Corrected for optimism by {self.resamples} bootstrap fits: "
                f"{'' if np.isnan(self.slope.apparent) else slope}Brier score {self.brier.corrected:.4f} "
                f"(apparent {self.brier.apparent:.4f})."
            )
        return told

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def cross_fit(
    method: str | Calibrator,
    scores: Any,
    y: Any,
    *,
    groups: Any = None,
    folds: int = 5,
    input: inputs.InputKind = "logits",
    resamples: int = 100,
    random_state: int = 0,
) -> CrossFit:
    """Return out-of-fold probabilities of a method, and its slope and Brier score corrected for optimism.

    Parameters
    ----------
    method : str or Calibrator
        A registry name, or an unfitted calibrator.
    scores : array-like of shape (N, K), or (N,) for a binary score
    y : array-like of shape (N,)
        Integer labels 0..K−1.
    groups : array-like of shape (N,), optional
        Rows of one group stay in one fold, and are resampled together.
    folds : int
    input : {"logits", "probs", "log_probs"}
        What ``scores`` holds, if ``method`` is a name.
    resamples : int
        Bootstrap fits; 0 for none.
    random_state : int

    Returns
    -------
    CrossFit
    """
    cal = make_calibrator(method, input=input) if isinstance(method, str) else method.clone()
    x, _ = inputs.check_logits(scores, input=cal.input)
    labels = inputs.check_labels(y, *x.shape)
    members = inputs.check_groups(groups, len(labels))
    fold = score_folds(x, folds, members)
    final = cal.clone().fit(scores, labels)
    # The scores are checked already, and probabilities have been turned into their logarithms.
    cal.set_params(input="logits" if cal.input == "logits" else "log_probs")
    probs = predict_unseen(cal, x, labels, x, fold)[0]
    slope = brier = None
    if resamples:
        slope, brier = _corrected(cal, x, labels, members, resamples, random_state)
    return CrossFit(probs, fold, final, slope, brier, resamples)


def score_folds(x: FloatArray, folds: int, groups: IntArray | None) -> IntArray:
    """Return the fold (N,) of every row; rows with similar scores x (N, K) go to different folds."""
    units = len(x if groups is None else np.unique(groups))
    if min(folds, units) < 2:
        raise ValueError(f"folds must lie in 2..{units}, the number of rows or groups, got {folds}")
    return deal_folds(x, folds, groups)


def predict_unseen(
    calibrator: Calibrator,
    cal: FloatArray,
    y: IntArray,
    test: FloatArray,
    fold: IntArray | None = None,
) -> tuple[FloatArray, float, float]:
    """Fit on ``cal`` and predict ``test``; with folds, predict each row by a fit without its fold.

    Returns
    -------
    probs : array of shape (M, K)
    fit_s, predict_s : float
        Wall-clock seconds.
    """
    sides: list[Any] = [(slice(None), slice(None))] if fold is None else fold_sides(fold)
    out, seconds = np.empty(test.shape, dtype=test.dtype), np.zeros(2)
    for rows, held in sides:
        start = time.perf_counter()
        fitted = calibrator.clone().fit(cal[rows], y[rows])
        middle = time.perf_counter()
        out[held] = fitted.predict_proba(test[held])
        seconds += middle - start, time.perf_counter() - middle
    return out, float(seconds[0]), float(seconds[1])


def _corrected(
    cal: Calibrator, x: FloatArray, y: IntArray, groups: IntArray | None, resamples: int, seed: int
) -> list[Corrected]:
    rng = np.random.default_rng(seed)
    unit = np.arange(len(y)) if groups is None else np.unique(groups, return_inverse=True)[1]
    members = np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])
    gaps = []
    for _ in range(resamples):
        rows = np.concatenate([members[u] for u in rng.integers(0, len(members), len(members))])
        fitted = cal.clone().fit(x[rows], y[rows])
        gaps.append(_slope_and_brier(fitted, x[rows], y[rows]) - _slope_and_brier(fitted, x, y))
    apparent, optimism = _slope_and_brier(cal.clone().fit(x, y), x, y), np.mean(gaps, axis=0)
    return [Corrected(float(a), float(o)) for a, o in zip(apparent, optimism, strict=True)]


def _slope_and_brier(fitted: Calibrator, x: FloatArray, y: IntArray) -> Float64:
    """Return the slope of a logistic regression on the log-odds (NaN unless K = 2), and the Brier score."""
    probs, slope = fitted.predict_proba(x), np.nan
    if probs.shape[1] == 2 and len(np.unique(y)) == 2:
        log_odds = logit(np.clip(probs[:, 1].astype(np.float64), 1e-8, 1 - 1e-8))
        slope = logistic(
            np.stack([np.ones_like(log_odds), log_odds], axis=1), y.astype(np.float64)
        )[0][1]
    return np.array([slope, brier_score(probs, y)])
