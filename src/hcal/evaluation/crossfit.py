"""``hcal.cross_fit``: fit and test on the same rows, for data that is too small to split.

Every row is predicted by a fit that did not see it, so the rows can be evaluated as if they were new. The calibrator
to use is the one fitted on all rows. It looks better on its own rows than on new ones; this *optimism* is estimated
by the bootstrap (Efron and Gong, 1983; Steyerberg: Clinical Prediction Models): a fit on resampled rows is measured
on them and on the original rows, and the mean difference is subtracted. It is the optimism of the calibrator alone,
because the model that made the scores is not refitted; :func:`hcal.validate` refits both.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol, Self, TypeVar

import numpy as np

from hcal import inputs
from hcal.class_names import ClassName
from hcal.frames import AnyArray
from hcal.methods import CalibrationWarning, Calibrator, make_calibrator
from hcal.methods.folds import deal_folds, fold_sides
from hcal.metrics.estimates import calibration_line, log_odds_of
from hcal.metrics.scores import brier as brier_score
from hcal.numerics import Float64, FloatArray, IntArray, RowIndex
from hcal.progress import progress
from hcal.renamed import renamed
from hcal.results import Result
from hcal.rows import Rows
from hcal.text import JsonObject

#: The bootstrap draws whole groups. With fewer groups than this it says more about the draw than about the method.
FEWEST_GROUPS: Final = 20


@dataclass(frozen=True)
class Corrected:
    """A metric on the rows of the fit, and its optimism: by how much it looks too good there."""

    apparent: float
    optimism: float

    @property
    def corrected(self) -> float:
        """The estimate for new rows."""
        return self.apparent - self.optimism


@dataclass(frozen=True, repr=False)
class CrossFit(Result):
    """Out-of-fold probabilities and the calibrator fitted on all rows.

    Attributes
    ----------
    probs : array of shape (N, K)
        Each row predicted by a fit without its fold (and without its group), in the library of the scores; the
        columns are in the order of ``calibrator.classes_``.
    fold : array of shape (N,)
    calibrator : Calibrator
        Fitted on all rows, with their weights, groups and names of classes: the one to use.
    slope, brier : Corrected or None
        Calibration slope (of two classes) and Brier score, corrected for the optimism of the calibrator; None
        without ``resamples``, or with too few groups.
    resamples : int
    note : str
        Why there is no correction, or what it leaves out; may be empty.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(250, 2)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> found = cross_fit("ts", 3 * z, y, resamples=20)
    >>> found.probs.shape, found.brier.optimism <= 0.0
    ((250, 2), True)
    """

    schema: ClassVar[str] = "hcal/cross_fit/1"

    probs: AnyArray
    fold: IntArray
    calibrator: Calibrator
    slope: Corrected | None
    brier: Corrected | None
    resamples: int
    note: str = ""

    @property
    def sentences(self) -> list[str]:
        """The procedure and its results in words."""
        folds = int(self.fold.max()) + 1
        sentences = [
            f"Each of the {len(self.probs):,} rows is predicted by a fit without it ({folds} "
            "folds).",
            "The scores must come from rows that the model was not trained on.",
        ]
        if self.brier is not None:
            sentences.append(self._correction(self.brier))
            sentences.append(
                "This is the optimism of the calibrator alone, and not that of the model, which "
                "was not refitted: hcal.validate refits both."
            )
        if self.note:
            sentences.append(self.note)
        return sentences

    def _correction(self, brier: Corrected) -> str:
        """Return the corrected figures in words."""
        figures = f"Brier score {brier.corrected:.4f} (apparent {brier.apparent:.4f})"
        if self.slope is not None and not np.isnan(self.slope.corrected):
            slope = f"{self.slope.corrected:.3f} (apparent {self.slope.apparent:.3f})"
            figures = f"calibration slope {slope}, {figures}"
        fits = f"{self.resamples} bootstrap fits of the calibrator"
        return f"Corrected for optimism by {fits}: {figures}."

    def to_records(self) -> list[JsonObject]:
        """Return one row a corrected figure."""
        figures = {"slope": self.slope, "brier": self.brier}
        return [
            {
                "figure": name,
                "apparent": figure.apparent,
                "optimism": figure.optimism,
                "corrected": figure.corrected,
            }
            for name, figure in figures.items()
            if figure is not None
        ]

    def _content(self) -> JsonObject:
        probs = inputs.check_probs(self.probs)[0]
        figures = {str(row.pop("figure")): row for row in self.to_records()}
        return {
            "method": self.calibrator.name,
            "folds": int(self.fold.max()) + 1,
            "resamples": self.resamples,
            "corrected": figures,
            "sentences": self.sentences,
            "fold": self.fold,
            "probs": probs,
        }

    def _headline(self) -> list[str]:
        return self.sentences


@renamed(n_folds="folds", n_resamples="resamples")
def cross_fit(  # noqa: PLR0913 - a public door
    method: str | Calibrator,
    scores: AnyArray,
    y: AnyArray,
    sample_weight: AnyArray = None,
    *,
    groups: AnyArray = None,
    by: AnyArray = None,
    classes: Iterable[ClassName] | None = None,
    folds: int = 5,
    input: inputs.InputKind | None = None,
    resamples: int = 100,
    random_state: int = 0,
) -> CrossFit:
    """Return out-of-fold probabilities of a method, and how much better it looks on its own rows than on new ones.

    The slope and the Brier score are corrected for the optimism of the calibrator, which is fitted here. The model
    that made the scores is not refitted, so its own optimism stays in: the scores must come from rows that the
    model was not trained on. :func:`hcal.validate` corrects model and calibrator together.

    Parameters
    ----------
    method : str or Calibrator
        A registry name, or an unfitted calibrator.
    scores : array-like of shape (N, K), or (N,) for a binary score
    y : array-like of shape (N,)
        Integer labels 0..K−1, or the names that ``classes`` lists.
    sample_weight : array-like of shape (N,), optional
        A weight counts rows: it goes to every fit, and to the slope and the Brier score.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other: they stay in one fold, in every fit and in the returned calibrator,
        and are resampled together. From fewer than 20 groups the optimism cannot be estimated, and is not.
    by : array-like of shape (N,), optional
        The segment of each row, for a method that fits segments.
    classes : sequence of K str or int, optional
        Names of the classes in the order of the columns; the returned calibrator knows them.
    folds : int
    input : {"logits", "probs", "log_probs"}
        What ``scores`` holds: by default logits, or what a calibrator takes.
    resamples : int
        Bootstrap fits; 0 for none.
    random_state : int

    Returns
    -------
    CrossFit

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> score = rng.normal(size=300)
    >>> y = (rng.random(300) < 1 / (1 + np.exp(-score))).astype(int)
    >>> result = cross_fit("platt", 2 * score, y, resamples=20)
    >>> result.probs.shape
    (300, 2)
    """
    method = unfitted(method, input)
    rows = Rows.of(
        scores, y, input=method.input, weight=sample_weight, groups=groups, by=by, classes=classes
    )
    return cross_fit_rows(method, rows, folds, resamples=resamples, random_state=random_state)


def unfitted(method: str | Calibrator, input: inputs.InputKind | None) -> Calibrator:
    """Return an unfitted calibrator of a method, for scores of a kind."""
    if isinstance(method, str):
        return make_calibrator(method, input=input or "logits")
    if input not in (None, method.input):
        raise ValueError(f"{method.name!r} expects input={method.input!r}, got {input!r}")
    return method.clone()


def cross_fit_rows(
    method: Calibrator, rows: Rows, folds: int = 5, *, resamples: int = 100, random_state: int = 0
) -> CrossFit:
    """Return what :func:`cross_fit` does, of checked rows with all that belongs to them."""
    fold = score_folds(rows.logits(), folds, rows.groups)
    final = fit_on(method.clone(), rows)
    probs = rows.restored(predict_unseen(method, rows, rows, fold)[0])
    if not resamples:
        return CrossFit(probs, fold, final, None, None, 0)
    if rows.groups is not None and (n_groups := len(np.unique(rows.groups))) < FEWEST_GROUPS:
        note = (
            f"The optimism cannot be estimated from {n_groups} groups: the bootstrap draws whole "
            f"groups, and needs at least {FEWEST_GROUPS}."
        )
        return CrossFit(probs, fold, final, None, None, 0, note)
    slope, brier, note = _optimism(method, rows, resamples, random_state)
    return CrossFit(probs, fold, final, slope, brier, resamples, note)


class Learner(Protocol):
    """What is fitted on some rows and predicts others: a calibrator, or what stands for none."""

    @property
    def fit(self) -> Callable[..., Self]:
        """The method that learns from rows; its options differ from class to class."""

    def clone(self) -> Self:
        """Return an unfitted copy."""

    def predict_proba(self, scores: AnyArray) -> AnyArray:
        """Return the probabilities of rows."""


L = TypeVar("L", bound=Learner)


def fit_on(calibrator: L, rows: Rows) -> L:
    """Fit a calibrator on rows with all that belongs to them, and return it."""
    if isinstance(calibrator, Calibrator):
        return calibrator.fit(rows)
    return calibrator.fit(rows.scores, rows.labels)


def takes_segments(calibrator: Learner) -> bool:
    """Return whether a calibrator fits segments of rows, so that ``by`` belongs to its fit."""
    return "by" in inspect.signature(calibrator.fit).parameters


def _predict(fitted: Learner, rows: Rows) -> FloatArray:
    """Return the probabilities (N, K) of rows."""
    if isinstance(fitted, Calibrator) and rows.by is not None and takes_segments(fitted):
        with warnings.catch_warnings():
            # That a fold does not see a rare segment is how new segments will be predicted.
            warnings.filterwarnings("ignore", ".*that the fit did not see")
            return np.asarray(fitted.probs_of(rows))
    return np.asarray(fitted.predict_proba(rows.scores))


def score_folds(x: FloatArray, folds: int, groups: IntArray | None) -> IntArray:
    """Return the fold (N,) of every row; rows with similar scores x (N, K) go to different folds."""
    units = len(x if groups is None else np.unique(groups))
    if min(folds, units) < 2:
        raise ValueError(f"folds must lie in 2..{units}, the number of rows or groups, got {folds}")
    return deal_folds(x, folds, groups)


def predict_unseen(
    calibrator: Learner, cal: Rows, test: Rows, fold: IntArray | None = None
) -> tuple[FloatArray, float, float]:
    """Fit on ``cal`` and predict ``test``; with folds, predict each row by a fit without its fold.

    Returns
    -------
    probs : array of shape (M, K)
    fit_s, predict_s : float
        Wall-clock seconds.
    """
    sides: Sequence[tuple[RowIndex, RowIndex]] = [(slice(None), slice(None))]
    if fold is not None:
        sides = fold_sides(fold)
    probs = np.empty(test.scores.shape, dtype=test.scores.dtype)
    fit_s = 0.0
    predict_s = 0.0
    # What stands for no calibration of questions has no name.
    name = getattr(calibrator, "name", type(calibrator).__name__)
    with progress(f"fitting {name}", len(sides)) as advance:
        for learned, left_out in sides:
            start = time.perf_counter()
            fitted = fit_on(calibrator.clone(), cal[learned])
            middle = time.perf_counter()
            probs[left_out] = _predict(fitted, test[left_out])
            fit_s += middle - start
            predict_s += time.perf_counter() - middle
            advance(1)
    return probs, fit_s, predict_s


def draw_units(unit: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the numbers of the rows of as many units (groups, or rows) as there are, drawn with replacement.

    >>> sorted(draw_units(np.array([0, 0, 1]), np.random.default_rng(1)).tolist())
    [0, 1, 2]
    """
    size = np.bincount(unit)
    start = np.cumsum(size) - size
    drawn = rng.integers(0, len(size), len(size))
    by_unit = np.argsort(unit, kind="stable")
    # The rows of a unit lie side by side in by_unit: count up from the first row of each drawn unit.
    first = np.repeat(start[drawn], size[drawn])
    ends = np.cumsum(size[drawn])
    step = np.arange(ends[-1]) - np.repeat(ends - size[drawn], size[drawn])
    return np.asarray(by_unit[first + step])


def _optimism(
    calibrator: Calibrator, rows: Rows, resamples: int, seed: int
) -> tuple[Corrected, Corrected, str]:
    """Return slope and Brier score with their optimism, and a note on draws that had no slope."""
    rng = np.random.default_rng(seed)
    if rows.weight is not None:
        rows = rows[rows.weight > 0]
    unit = (
        np.arange(len(rows))
        if rows.groups is None
        else np.unique(rows.groups, return_inverse=True)[1]
    )
    apparent = _slope_and_brier(fit_on(calibrator.clone(), rows), rows)
    # Copies of a drawn row or group belong together in the folds of a fit, so they are groups of its rows.
    rows = replace(rows, groups=unit, names=None)
    gaps = np.empty((resamples, 2))
    with progress("correcting for optimism", resamples) as advance:
        for i in range(resamples):
            drawn = rows[draw_units(unit, rng)]
            with warnings.catch_warnings():
                # The fit on all rows says what is to be said; these are thrown away.
                warnings.simplefilter("ignore", CalibrationWarning)
                fitted = fit_on(calibrator.clone(), drawn)
            gaps[i] = _slope_and_brier(fitted, drawn) - _slope_and_brier(fitted, rows)
            advance(1)
    sloped = ~np.isnan(gaps[:, 0])
    # A fit does not look worse on its own rows than on others: what says so is noise of the draws.
    slope_optimism = np.nan
    if sloped.mean() >= 0.5:
        slope_optimism = max(float(gaps[sloped, 0].mean()), 0.0)
    brier_optimism = min(float(gaps[:, 1].mean()), 0.0)
    note = ""
    if rows.scores.shape[1] == 2 and not sloped.all():
        without = f"{resamples - sloped.sum()} of the {resamples} bootstrap samples had no slope"
        usable = sloped.mean() >= 0.5
        note = f"{without}, and {'were left out of it' if usable else 'it is not corrected'}."
    return (
        Corrected(float(apparent[0]), slope_optimism),
        Corrected(float(apparent[1]), brier_optimism),
        note,
    )


def _slope_and_brier(fitted: Calibrator, rows: Rows) -> Float64:
    """Return the slope of a logistic regression on the log-odds (NaN unless K = 2), and the Brier score."""
    probs = _predict(fitted, rows)
    slope = np.nan
    if probs.shape[1] == 2:
        risk = probs[:, 1].astype(np.float64)
        slope = calibration_line(log_odds_of(risk), rows.labels == 1, rows.weight)[1]
    return np.array([slope, brier_score(probs, rows.labels, sample_weight=rows.weight)])
