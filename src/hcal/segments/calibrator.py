"""SegmentedCalibrator: one calibrator for all segments, and a correction of each that is as large as its rows allow."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from hcal.ageing import HalfLifeLike
from hcal.class_names import ClassName
from hcal.fit_record import FitRecord, fitted_segments
from hcal.frames import AnyArray, columns_by_name
from hcal.inputs import InputKind
from hcal.leakage import Fingerprint
from hcal.maps.base import Map, Prediction
from hcal.methods.base import CalibrationWarning, Calibrator, Fitted, Preserves, is_no_array
from hcal.methods.folds import split_rows
from hcal.methods.registry import get_calibrator, list_calibrators, make_calibrator
from hcal.metrics.scores import nll
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray
from hcal.row_segments import UNNAMED, Segments
from hcal.rows import Rows, refuse_beside_rows
from hcal.segments.map import CorrectedRows, SegmentedMap, log_of
from hcal.segments.shrinkage import UNKNOWN, Corrections, shrink

#: The common calibrator of a row, when its segment is corrected, was fitted without the row's fold.
CORRECTION_FOLDS = 5
#: How many unknown segments a warning names.
_SHOWN_NAMES = 3
#: A smaller probability that segments differ at all is told.
_SURE = 0.95


class UnknownSegmentWarning(CalibrationWarning):
    """Some rows have a segment that the fit did not see."""


class SegmentedCalibrator(Calibrator):
    """One calibrator for all segments (countries, tenants, tasks), and a correction of each segment.

    The correction has an intercept and a slope on the common log-odds; with three and more classes, a term of each
    class and a temperature. It is shrunk by empirical Bayes: how much segments differ is learned from all of them, a
    segment with 60 rows moves a little and one with 10,000 moves fully. If segments do not differ, nothing is
    corrected. A segment that the fit did not see gets the common calibrator.

    Slopes are not negative, so the ranking of two classes holds within a segment; with more classes, the predicted
    class of a row is that of the common calibrator.

    Parameters
    ----------
    method : str or Calibrator
        The common calibrator: a registry name, or an unfitted calibrator.
    input : {"logits", "probs", "log_probs"}

    Attributes
    ----------
    fit_ : FitRecord
        ``fit_.segments`` are the names of the segments.
    map_ : SegmentedMap
        ``slopes`` (S,) and ``offsets`` (S, K) of the segments.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> country = np.repeat(["DE", "FR"], 500)
    >>> z = rng.normal(size=1000)
    >>> y = (rng.random(1000) < 1 / (1 + np.exp(-z - np.where(country == "DE", 1.0, -1.0)))).astype(int)
    >>> cal = SegmentedCalibrator("platt").fit(z, y, by=country)
    >>> cal.predict_proba(np.zeros(2), by=["DE", "FR"])[:, 1].round(1)
    array([0.7, 0.3])
    """

    name = "segmented"
    title = "Segmented calibration"
    weighted = True
    grouped = True
    map_types = (SegmentedMap, Prediction)

    def __init__(self, method: str | Calibrator = "pool", *, input: InputKind = "logits") -> None:
        self.method = method
        self.input = input

    # -- public -----------------------------------------------------------------------------------

    def fit(  # noqa: PLR0913 - a public door
        self,
        scores: AnyArray,
        y: AnyArray = None,
        sample_weight: AnyArray = None,
        *,
        groups: AnyArray = None,
        classes: Iterable[ClassName] | None = None,
        time: AnyArray = None,
        half_life: HalfLifeLike | None = None,
        by: AnyArray = None,
    ) -> Self:
        """Learn from the outputs of a trained classifier on held-out rows of several segments.

        Parameters
        ----------
        scores : array-like of shape (N, K), or (N,) for a binary score
            Also files, or blocks of rows, with their labels (``y=None``); then ``by`` names columns.
        y : array-like of shape (N,)
        sample_weight, groups : array-like of shape (N,), optional
        classes : sequence of K str or int, optional
        time : array-like of shape (N,), optional
        half_life : str, timedelta or float, optional
            A row counts half as much as one that is so much younger, such as ``"90d"``.
        by : array-like of shape (N,), frame, or dict of columns
            The segment of each row; a row without one is refused.
        """
        if is_no_array(scores, y):
            rows = self._sampled(
                scores, y, weight=sample_weight, groups=groups, classes=classes, by=by, time=time
            )
        elif isinstance(scores, Rows):
            beside = {"y": y, "sample_weight": sample_weight, "groups": groups, "classes": classes}
            refuse_beside_rows({**beside, "time": time})
            rows = scores if by is None else replace(scores, by=Segments.of(by, len(scores)))
        else:
            rows = Rows.of(
                scores,
                y,
                input=self.input,
                weight=sample_weight,
                groups=groups,
                by=by,
                time=time,
                classes=classes,
            )
        if rows.by is None:
            raise ValueError("by is missing: pass the segment of each row")
        return super().fit(rows, half_life=half_life)

    def predict_proba(self, scores: AnyArray, *, by: AnyArray = None) -> AnyArray:
        """Return calibrated probabilities in the array library, device and float width of the input.

        Parameters
        ----------
        scores : array-like of shape (N, K), or (N,) for a binary score
        by : array-like of shape (N,), frame, or dict of columns
            The segment of each row. One that the fit did not see gets the common calibrator.

        Returns
        -------
        array of shape (N, K)
        """
        rows = self.rows_like(scores, by=by)
        return rows.restored(self.probs_of(rows))

    def predict(self, scores: AnyArray, *, by: AnyArray = None) -> NumpyArray:
        """Return the most probable class of each row, by name if the fit was given names."""
        probs = self.probs_of(self.rows_like(scores, by=by))
        return np.asarray(self.classes_[probs.argmax(axis=1)])

    def score(
        self, scores: AnyArray, y: AnyArray, sample_weight: AnyArray = None, *, by: AnyArray = None
    ) -> float:
        """Return the negative NLL."""
        rows = self.rows_like(scores, y, weight=sample_weight, by=by)
        return -nll(self.probs_of(rows), rows.labels, sample_weight=rows.weight)

    def with_prior_from(self, scores: AnyArray, *, by: AnyArray = None) -> Self:
        """Return this calibrator for the class frequencies of unlabelled rows, the same shift in every segment."""
        return self._with_prior_of(self.rows_like(scores, by=by))

    def rows_like(
        self, scores: AnyArray, y: AnyArray = None, *, by: AnyArray = None, **others: AnyArray
    ) -> Rows:
        """Return checked rows as the fit took them; of a frame or a dict, the columns of its segments."""
        return super().rows_like(scores, y, by=self._columns_of_fit(by), **others)

    def segments_of(self, rows: Rows) -> Segments:
        """Return the segments of rows by the columns of the fit, which other columns may stand beside."""
        if rows.by is None:
            raise ValueError(
                f"the calibrator has segments: pass the {self.fit_.segment_title} of each row (by=)"
            )
        segments = rows.by.of_columns(fitted_segments(self))
        self._check_title(segments.title)
        return replace(segments, title=self.fit_.segment_title or UNNAMED)

    def probs_of(self, rows: Rows) -> FloatArray:
        """Return probabilities (N, K) of checked rows, whose segments are found by name."""
        return self._predicted(rows, self._codes(rows))

    # -- what was learned -------------------------------------------------------------------------

    def _preserved(self) -> Preserves:
        """Return what a prediction preserves: with two classes, the ranking within each segment."""
        kept = super()._preserved()
        if kept is None and "fit_" in vars(self) and self.n_classes_ == 2:
            return "ranking within segments"
        return kept

    @property
    def segments_(self) -> tuple[str, ...]:
        """The names of the segments of the fit."""
        return self.fit_.segments or ()

    def types_of_maps(self) -> tuple[type[Map], ...]:
        """The types of map that a fit may learn: also those of the common calibrator.

        The common method of the last fit counts too: ``method`` may have been changed since then.
        """
        own_types: tuple[type[Map], ...] = (*self.map_types, *self._common().types_of_maps())
        if "fit_" not in vars(self):
            return own_types
        fitted_method = self.fit_.details.get("common", {}).get("method")
        if fitted_method not in list_calibrators():
            return own_types
        return (*own_types, *get_calibrator(fitted_method).map_types)

    # -- machinery --------------------------------------------------------------------------------

    def _common(self) -> Calibrator:
        """Return an unfitted common calibrator of logits."""
        if isinstance(self.method, str):
            common = make_calibrator(self.method)
        elif isinstance(self.method, Calibrator):
            common = self.method.clone()
        else:
            raise ValueError(f"method is a registry name or a calibrator, got {self.method!r}")
        if isinstance(common, SegmentedCalibrator):
            raise ValueError("the common calibrator of segments cannot have segments itself")
        return common.set_params(input="logits")

    def _weighed(self, rows: Rows) -> Rows:
        """Return the rows of positive weight; a segment without one was not seen."""
        weighed = super()._weighed(rows)
        return replace(weighed, by=_segments_of(weighed).without_empty())

    def _fit(self, rows: Rows) -> Fitted:
        common = self._common()
        if rows.weight is not None and not common.weighted:
            raise ValueError(f"{common.name!r} does not support sample_weight")
        segments = _segments_of(rows)
        fitted = common._fit(_for_common(rows, common))
        unseen, log_probs = _out_of_fold(rows, common)
        corrections = shrink(unseen, log_probs, len(segments.names))
        mass = np.bincount(segments.codes, rows.weight, minlength=len(segments.names))
        segmented = SegmentedMap(
            common=_prediction(fitted, common),
            slopes=corrections.slopes,
            offsets=corrections.offsets,
            rows=mass.astype(np.float64),
            keep=rows.n_classes > 2 or _preserved_by(fitted, common) is not None,
        )
        details = {
            "slope_deviation": corrections.slope_deviation,
            "term_deviation": corrections.term_deviation,
            "probability_of_difference": corrections.differ,
            "common": {"method": common.name, **fitted.details},
        }
        return Fitted(
            segmented,
            fitted.converged,
            fitted.message,
            details,
            notes=(
                *_notes_on_predictions(fitted, segmented, rows),
                _difference(corrections, segments, rows.n_classes),
            ),
            # Terms of classes may reorder the classes below the top one.
            preserves=None if _preserved_by(fitted, common) is None else "accuracy",
            history=fitted.history,
        )

    def _record(self, rows: Rows, fitted: Fitted, fingerprint: Fingerprint) -> FitRecord:
        segments = _segments_of(rows)
        record = super()._record(rows, fitted, fingerprint)
        return replace(record, segments=segments.names, segment_title=segments.title)

    def _probs_of_fit(self, rows: Rows) -> FloatArray:
        return self._predicted(rows, _segments_of(rows).codes)

    def _predicted(self, rows: Rows, codes: IntArray) -> FloatArray:
        """Return probabilities (N, K) of rows whose segments have these numbers in the fit."""
        segmented = self.map_
        assert isinstance(segmented, SegmentedMap)
        probs = np.empty(rows.scores.shape, dtype=rows.scores.dtype)
        # A corrected map belongs to its rows, so they must be what in_blocks takes at a time.
        no_rows = replace(self.prediction_, map=segmented.of_rows(codes[:0]))
        step = no_rows.rows_at_once(rows.n_classes)
        for start in range(0, len(rows), step):
            block = slice(start, start + step)
            corrected: CorrectedRows = segmented.of_rows(codes[block])
            prediction = replace(self.prediction_, map=corrected)
            probs[block] = prediction.in_blocks(rows.scores[block])
        return probs

    def _codes(self, rows: Rows) -> IntArray:
        """Return the number of each row's segment in the fit, −1 for a segment that it did not see."""
        segments = self.segments_of(rows)
        place = {name: number for number, name in enumerate(self.segments_)}
        numbers = [place.get(name, UNKNOWN) for name in segments.names]
        codes = np.array(numbers, dtype=np.int64)[segments.codes]
        unknown = codes == UNKNOWN
        if unknown.any():
            names = [segments.names[code] for code in np.unique(segments.codes[unknown])]
            warnings.warn(
                self._unknown_sentence(int(unknown.sum()), len(codes), names),
                UnknownSegmentWarning,
                stacklevel=4,
            )
        return codes

    def _unknown_sentence(self, count: int, n_rows: int, names: list[str]) -> str:
        """Return how many rows have unknown segments, with names that differ from a known one in writing alone."""
        of_fit = {_loosely(name): name for name in self.segments_}
        alike = [name for name in names if _loosely(name) in of_fit]
        listed = ", ".join(repr(name) for name in (alike or names)[:_SHOWN_NAMES])
        title = self.fit_.segment_title
        sentence = (
            f"{count:,} of {n_rows:,} rows have a {title} that the fit did not see, such as "
            f"{listed}: they get the common calibrator"
        )
        if not alike:
            return sentence
        return f"{sentence}; the fit writes {of_fit[_loosely(alike[0])]!r}"

    def _columns_of_fit(self, by: AnyArray) -> AnyArray:
        """Return the columns of the fit's segments by name where ``by`` has names for its columns."""
        columns = fitted_segments(self)
        if isinstance(by, dict):
            named: dict[str, AnyArray] | None = {str(name): values for name, values in by.items()}
        else:
            named = None if isinstance(by, Segments) else columns_by_name(by, "by")
        if named is None or not set(columns) <= named.keys():
            return by
        return {column: named[column] for column in columns}

    def _check_title(self, title: str) -> None:
        """Refuse segments by other columns than those of the fit; columns without a name are trusted."""
        fitted = self.fit_.segment_title or UNNAMED
        several = " · " in title + fitted
        if title != fitted and (several or UNNAMED not in (title, fitted)):
            raise ValueError(
                f"the segments are by {title}, and those of the fit by {fitted}: pass these "
                "columns by name"
            )


@dataclass(frozen=True)
class _Part:
    """Rows of one fold, and the log-probabilities of a common calibrator that was fitted without them."""

    rows: Rows
    log_probs: Float64


def _out_of_fold(rows: Rows, common: Calibrator) -> tuple[Rows, Float64]:
    """Return the rows fold by fold, with log-probabilities (N, K) of fits without the fold.

    A row whose weight lies in several folds comes several times, with a part of its weight.
    """
    parts = [_part(fold, unseen, common) for fold, unseen in split_rows(rows, CORRECTION_FOLDS)]
    weights = [part.rows.weight for part in parts]
    weight = None if rows.weight is None else np.concatenate([w for w in weights if w is not None])
    joined = Rows(
        scores=np.concatenate([part.rows.scores for part in parts]),
        kind=rows.kind,
        y=np.concatenate([part.rows.labels for part in parts]),
        weight=weight,
        by=replace(
            _segments_of(rows),
            codes=np.concatenate([_segments_of(part.rows).codes for part in parts]),
        ),
    )
    return joined, np.concatenate([part.log_probs for part in parts])


def _part(fold: Rows, unseen: Rows, common: Calibrator) -> _Part:
    fitted = common.clone()._fit(_for_common(fold, common))
    return _Part(unseen, log_of(_prediction(fitted, common).in_blocks(unseen.x, once=True)))


def _for_common(rows: Rows, common: Calibrator) -> Rows:
    """Return the rows as the common method takes them: without segments, and groups if it has a use for them."""
    return replace(rows, by=None, groups=rows.groups if common.grouped else None)


def _prediction(fitted: Fitted, common: Calibrator) -> Prediction:
    return Prediction(
        map=fitted.map,
        kind="logits",
        preserves=_preserved_by(fitted, common),
        floor=None,
        prior=None,
        states_zero=True,
    )


def _preserved_by(fitted: Fitted, common: Calibrator) -> Preserves:
    return common.promises if fitted.preserves == "as declared" else fitted.preserves


def _loosely(name: str) -> str:
    """Return a name without capitals, spaces, signs and leading zeros, to recognise another way to write it.

    >>> _loosely("DE"), _loosely("d.e. "), _loosely("007")
    ('de', 'de', '7')
    """
    letters = "".join(letter for letter in name.casefold() if letter.isalnum())
    return letters.lstrip("0") or letters


def _notes_on_predictions(fitted: Fitted, segmented: SegmentedMap, rows: Rows) -> tuple[str, ...]:
    """Return sentences on how many predictions change.

    With three and more classes a correction keeps the predicted class, so the notes of the common fit hold. With two
    classes each segment that is corrected has a threshold of its own, so they do not.
    """
    corrected = segmented.of_rows(_segments_of(rows).codes)
    if rows.n_classes > 2 or corrected.is_common:
        return fitted.notes
    moved = corrected.probabilities(rows.x).argmax(axis=1) != rows.x.argmax(axis=1)
    changed = float(rows.weights @ moved)
    if changed == 0:
        return (f"no prediction of {rows.total:,.0f} crosses 50 %",)
    return (
        f"{changed:,.0f} of {rows.total:,.0f} predictions cross 50 %, at a score of the model that "
        "differs from segment to segment",
    )


def _segments_of(rows: Rows) -> Segments:
    assert rows.by is not None
    return rows.by


def _difference(corrections: Corrections, segments: Segments, n_classes: int) -> str:
    """Return a sentence on how much the segments differ."""
    count = len(segments.names)
    if count == 1:
        return "there is one segment, so it gets the common calibrator"
    if corrections.slope_deviation == corrections.term_deviation == 0:
        return (
            f"the {count:,} segments do not differ by more than chance: all get the common "
            "calibrator"
        )
    terms = f"class terms deviate by {corrections.term_deviation:.2g}"
    if n_classes == 2:
        # The intercept is the difference of two independent class terms.
        terms = f"intercepts deviate by {np.sqrt(2) * corrections.term_deviation:.2g}"
    sentence = (
        f"the {count:,} segments differ: {terms} in log-odds (standard deviation), slopes by "
        f"{corrections.slope_deviation:.2g}"
    )
    if corrections.differ > _SURE:
        return sentence
    return f"{sentence}; that they differ at all has a probability of {corrections.differ:.0%}"
