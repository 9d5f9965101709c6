"""``hcal.refit``: fit a calibrator again on new rows, with all that it remembers of its last fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hcal import leakage
from hcal.ageing import HalfLifeLike
from hcal.fit_record import FitRecord
from hcal.frames import AnyArray
from hcal.io.doors import RowInfo, source_of
from hcal.methods.base import CalibrationWarning, Calibrator, as_copies, is_no_array
from hcal.methods.folds import deal_folds
from hcal.metrics.estimates import weighted_mean
from hcal.metrics.scores import SMALLEST, score_probs
from hcal.numerics import Float64, FloatArray
from hcal.rows import Rows
from hcal.segments import SegmentedCalibrator

#: One row in so many is held out for the comparison with the old calibrator: the newest ones.
PARTS: Final = 5
#: With fewer rows than this on either side, nothing is compared.
FEWEST_ROWS: Final = 20
#: Level of the interval of the difference.
CONFIDENCE: Final = 0.95
#: What a fit may have read from its file beside the scores, and how new rows bring it.
_ROLES: Final = {
    "groups": "groups= (--groups)",
    "weight": "weight= (--weight)",
    "time": "time= (--time)",
}


@dataclass(frozen=True)
class OldAndNew:
    """The old calibrator and a new one on the newest rows, on which the new one was not fitted.

    Attributes
    ----------
    rows : int
        The rows of the comparison.
    which : str
        Which rows they are, in words.
    old, new : dict of float
        NLL, Brier score, accuracy, ECE and mean confidence.
    gain, low, high : float
        The NLL of the old calibrator less that of the new one, with a 95 % interval.
    seen : float
        The share of these rows that the old calibrator was fitted on.
    """

    rows: int
    which: str
    old: dict[str, float]
    new: dict[str, float]
    gain: float
    low: float
    high: float
    seen: float

    @property
    def sentence(self) -> str:
        """The finding in words."""
        return (
            f"On {self.which} ({self.rows:,}) {self._verdict}. The NLL is {self.old['nll']:.4f} "
            f"with the old one and {self.new['nll']:.4f} with the new one; the gain is "
            f"{self.gain:+.4f} ({self.low:+.4f} to {self.high:+.4f}).{self._caution}"
        )

    @property
    def worse(self) -> bool:
        """Whether the new calibrator is worse by more than chance, on rows that neither was fitted on."""
        return self.high < 0 and self.seen < leakage.REFUSED_FROM

    @property
    def _verdict(self) -> str:
        if self.low > 0:
            return "the new calibrator is better"
        if self.worse:
            return "the new calibrator is worse: keep the old one, or look at the new rows"
        if self.high < 0:
            return "the old calibrator looks better"
        return "the two do not differ by more than chance"

    @property
    def _caution(self) -> str:
        if not self.seen:
            return ""
        return (
            f" The old one was fitted on about {_percent(self.seen)} of these rows, so it looks "
            "better here than on rows that it has not seen."
        )


def refit(  # noqa: PLR0913 - a public door
    calibrator: Calibrator,
    scores: AnyArray,
    y: AnyArray = None,
    weight: AnyArray = None,
    *,
    groups: AnyArray = None,
    by: AnyArray = None,
    time: AnyArray = None,
    half_life: HalfLifeLike | None = None,
) -> Calibrator:
    """Return a calibrator that is fitted on new rows as a fitted one was on its own.

    The method with its parameters, the kind of scores, the names and the order of the classes, the columns of files,
    segments and the half-life are those of the last fit. ``fit_.notes`` of the new calibrator say how it does
    beside the old one on the newest rows, and how many of the new rows the old one was fitted on.

    Parameters
    ----------
    calibrator : Calibrator
        A fitted one, which is not changed.
    scores : array-like of shape (N, K), or (N,) for a binary score
        Of all rows to learn from, old ones included if they are to count. Also files, or what yields blocks of
        rows, with their labels (``y=None``); then the columns are those of the last fit.
    y : array-like of shape (N,)
    weight, groups : array-like of shape (N,), optional
        As in ``fit``; with files, names of columns.
    by : array-like of shape (N,), frame, or dict of columns, optional
        The segment of each row, where the calibrator has segments.
    time : array-like of shape (N,), optional
        When each row was made. The newest fifth of the rows compares old and new; without times, any fifth.
    half_life : str, timedelta or float, optional
        Another half-life than that of the last fit.

    Returns
    -------
    Calibrator

    Examples
    --------
    >>> import hcal
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=4000)
    >>> y = rng.random(4000) < 1 / (1 + np.exp(-z - np.repeat([0, 2], 2000)))
    >>> old = hcal.PlattScaling().fit(z[:2000], y[:2000])
    >>> new = refit(old, z[2000:], y[2000:])
    >>> print(new.fit_.notes[-1])
    On a fifth of the rows (400) the new calibrator is better. The NLL is 0.7176 with the old one and 0.3711 with ...
    """
    _refuse_others(calibrator)
    rows = _rows(calibrator, scores, y, RowInfo(weight, groups, by, None, time))
    span = _half_life(calibrator.fit_) if half_life is None else half_life
    _refuse_missing(calibrator.fit_, rows)
    new = _unfitted(calibrator).fit(rows, half_life=span)

    seen = leakage.overlap(calibrator.fit_.fingerprint, rows.logits()).share
    comparison = _compared(calibrator, rows, span, seen)
    details = dict(new.fit_.details)
    sentence = "The new rows are too few to compare the old calibrator with the new one."
    if comparison is not None:
        sentence = comparison.sentence
        details["refit"] = asdict(comparison)
        if comparison.worse:
            warnings.warn(f"refit: {sentence}", CalibrationWarning, stacklevel=2)
    notes = (*new.fit_.notes, *_overlap(calibrator.fit_, new.fit_, seen), sentence)
    new.fit_ = replace(new.fit_, notes=notes, details=details)
    return new


# -- what the last fit remembers ------------------------------------------------------------------


def _refuse_others(calibrator: object) -> None:
    """Refuse what is no fitted calibrator of one label a row, and one for other class frequencies."""
    if not isinstance(calibrator, Calibrator):
        raise ValueError(
            "refit takes a fitted calibrator of one label a row, got "
            f"{type(calibrator).__name__}: fit that again"
        )
    if calibrator.fit_.prior is not None:
        raise ValueError(
            "the calibrator was changed for other class frequencies (with_prior), and new rows "
            "have their own: refit the one that fit returned, and call with_prior again"
        )


def _rows(calibrator: Calibrator, scores: AnyArray, y: AnyArray, info: RowInfo) -> Rows:
    """Return the new rows with their columns in the order of the last fit, and its segments alone."""
    if is_no_array(scores, y):
        kind = calibrator.prediction_.kind
        source = source_of(scores, y, info, input=kind, calibrator=calibrator, part="cal")
        rows = calibrator.rows_like(source.sample())
    else:
        rows = calibrator.rows_like(
            scores, y, weight=info.weight, groups=info.groups, by=info.by, time=info.time
        )
    if isinstance(calibrator, SegmentedCalibrator):
        return replace(rows, by=calibrator.segments_of(rows))
    return replace(rows, by=None)


def _half_life(record: FitRecord) -> str | None:
    age = record.details.get("age")
    return None if age is None else str(age["half_life"])


def _refuse_missing(record: FitRecord, rows: Rows) -> None:
    """Refuse rows without what the last fit read from its file: a fit without it would be another one."""
    for role, words in _ROLES.items():
        column = record.request.get(role)
        if column is not None and getattr(rows, role) is None:
            raise ValueError(
                f"the last fit used the column {column!r} as {role}, and the new rows have none: "
                f"pass {words}, or fit a new calibrator without it"
            )


def _unfitted(calibrator: Calibrator) -> Calibrator:
    return calibrator.clone().set_params(input=calibrator.prediction_.kind)


# -- old beside new -------------------------------------------------------------------------------


def _compared(
    old: Calibrator, rows: Rows, span: HalfLifeLike | None, seen: float
) -> OldAndNew | None:
    """Return how the old calibrator and one fitted on the older rows do on the newest ones.

    The old one was fitted on the share ``seen`` of all rows.
    """
    rows = as_copies(rows[rows.weights > 0])
    newest, which = _newest(rows)
    older = ~newest
    if rows.groups is not None:
        # A group that has new rows teaches nothing about them.
        older &= ~np.isin(rows.groups, rows.groups[newest])
    if min(newest.sum(), older.sum()) < FEWEST_ROWS:
        return None
    test = rows[newest]
    with _about_the_comparison():
        new = _unfitted(old).fit(rows[older], half_life=span)
        old_probs = old.probs_of(test)
        new_probs = new.probs_of(test)
    gain = weighted_mean(
        _losses(old_probs, test) - _losses(new_probs, test), test.weights, test.groups, CONFIDENCE
    )
    if rows.time is not None:
        seen = leakage.overlap(old.fit_.fingerprint, test.logits()).share
    return OldAndNew(
        rows=len(test),
        which=which,
        old=score_probs(old_probs, test.labels, test.weight),
        new=score_probs(new_probs, test.labels, test.weight),
        gain=gain.value,
        low=gain.low,
        high=gain.high,
        seen=seen,
    )


def _newest(rows: Rows) -> tuple[NDArray[np.bool_], str]:
    """Return which rows are the newest fifth; without times, a fifth that spreads over the scores, or whole groups."""
    if rows.time is not None:
        values = rows.time.values
        begin = np.sort(values)[-(-len(values) * (PARTS - 1) // PARTS)]
        newest = values >= begin
        if newest.all():  # most rows have the first time
            newest = values > begin
        if newest.any():
            return newest, f"the rows from {rows.time.words(float(values[newest].min()))} on"
    return deal_folds(rows.logits(), PARTS, rows.groups) == 0, "a fifth of the rows"


def _losses(probs: FloatArray, rows: Rows) -> Float64:
    chosen = probs[np.arange(len(rows)), rows.labels].astype(np.float64)
    return -np.log(np.maximum(chosen, SMALLEST))


@contextmanager
def _about_the_comparison() -> Iterator[None]:
    """Keep quiet about a fit that is thrown away; the fit on all rows says what is to be said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        yield


def _overlap(old: FitRecord, new: FitRecord, seen: float) -> list[str]:
    """Return how many of the new rows are old ones, and from when both are where the fits know it."""
    common = "none" if not seen else f"about {_percent(seen)}"
    sentences = [
        f"The last fit had {old.rows:,} rows and this one {new.rows:,}; {common} of these were in "
        "the last fit."
    ]
    before = old.details.get("age")
    now = new.details.get("age")
    if before is not None and now is not None:
        sentences.append(
            f"The rows of the last fit are from {before['oldest']} to {before['newest']}, and "
            f"those of this one from {now['oldest']} to {now['newest']}."
        )
    return sentences


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
