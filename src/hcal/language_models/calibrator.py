"""Multiple-choice questions, as a language model answers them: the number of options varies.

A model gives each option of a question a log-probability. The softmax over the options estimates how likely each
answer is, and is usually overconfident. One temperature is learned over all questions, whatever their number of
options. If enough questions have the same number of options, any other method of hcal can be used for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hcal import leakage
from hcal._version import __version__
from hcal.fit_record import FitRecord
from hcal.frames import AnyArray, ColumnName, refuse_other_index
from hcal.inputs import InputKind, check_labels, to_numpy
from hcal.maps.base import Map, Prediction
from hcal.methods.base import CalibrationWarning, Calibrator, Preserves
from hcal.methods.parameters import Estimator
from hcal.methods.registry import make_calibrator
from hcal.methods.ts import Temperature, TemperatureScaling
from hcal.metrics.scores import score_probs
from hcal.numerics import Float64, IntArray, NumpyArray, log_softmax_options, pad_options
from hcal.rows import Rows, refuse_beside_rows
from hcal.solvers.temperature import SolvedTemperature, label_derivatives, solve_increasing
from hcal.text import JsonObject, one_line

#: Logits (N, k) of the options of N questions, and the positions (N,) of the answers.
QuestionsOfSize = tuple[Float64, IntArray]
#: The calibrator of all questions whose number of options has no calibrator of its own.
_COMMON = "common"


class MultipleChoiceCalibrator(Estimator):
    """Calibrated probabilities of the options of questions; the number of options may differ between questions.

    Parameters
    ----------
    method : str or Calibrator, default "ts"
        ``"ts"``: one temperature for all questions. Another registry name, or an unfitted calibrator of logits:
        that method for every number of options with at least ``min_questions`` questions, and the common
        temperature for the rest.
    min_questions : int
        See ``method``.

    Attributes
    ----------
    temperature_ : float
        The common temperature.
    by_count_ : dict of int to Calibrator
        The calibrator of each number of options, where ``method`` is not ``"ts"``.
    fit_ : FitRecord
        What is known about the fit, as of every calibrator.

    ``scores`` are a list of N sequences or an array (N, K); ``mask`` (N, K) says which options exist.
    It is saved, loaded, exported (with ``method="ts"``) and reported like every calibrator.

    Examples
    --------
    >>> scores = [[-1.0, -9.0], [-2.0, -6.0, -7.0], [-1.0, -5.0], [-3.0, -1.0, -8.0]]
    >>> cal = MultipleChoiceCalibrator().fit(scores, [0, 0, 1, 1])
    >>> [p.round(2).tolist() for p in cal.predict_proba([[0.0, -4.0], [0.0, -4.0, -4.0]])]
    [[0.78, 0.22], [0.64, 0.18, 0.18]]
    """

    name: ClassVar[str] = "multiple_choice"
    title: ClassVar[str] = "Multiple choice"
    #: The only kind of scores; options that do not exist are −inf.
    input: ClassVar[InputKind] = "logits"

    members_: dict[str, Calibrator]

    def __init__(self, method: str | Calibrator = "ts", *, min_questions: int = 200) -> None:
        self.method = method
        self.min_questions = min_questions

    def fit(self, scores: AnyArray, y: AnyArray, mask: AnyArray = None) -> Self:
        """Learn from questions with known answers.

        Parameters
        ----------
        scores : list of N sequences, or array of shape (N, K)
            The log-probability (or any score that grows with it) of each option.
        y : array-like of shape (N,)
            The position of the right option.
        mask : array of bool of shape (N, K), optional
            True where an option exists. Without it, NaN and −inf mark options that do not exist.
        """
        refuse_other_index(scores, {"y": y, "mask": mask})
        padded, _ = _pad(scores, mask)
        labels = check_labels(y, *padded.shape)
        absent = np.flatnonzero(np.isneginf(padded[np.arange(len(labels)), labels]))
        if absent.size:
            row = absent[0]
            raise ValueError(
                f"question {row} has the answer {labels[row]}, which is not one of its options"
            )
        questions = list(_by_number_of_options(padded, labels))
        if not questions:
            raise ValueError("no question has 2 or more options: there is nothing to learn from")
        solved = solve_increasing(partial(_mean_slope, questions))
        if not solved.converged:
            warnings.warn(f"multiple choice: {solved.message}", CalibrationWarning, stacklevel=2)

        counts: dict[str, Calibrator] = {}
        for logits, answers in questions:
            if len(answers) >= self.min_questions and not self._one_temperature():
                counts[str(logits.shape[1])] = self._member().fit(logits, answers)
        common = self._common(padded, labels, solved, questions)
        self._take_over({_COMMON: common, **counts})
        common.fit_ = replace(
            common.fit_,
            columns=_columns_of(scores),
            before=score_probs(self.uncalibrated(padded), labels),
            after=score_probs(self.predict_proba(padded), labels),
        )
        return self

    def _common(
        self,
        padded: Float64,
        labels: IntArray,
        solved: SolvedTemperature,
        questions: list[QuestionsOfSize],
    ) -> Calibrator:
        """Return the calibrator with the common temperature, and the record of the fit."""
        common = TemperatureScaling()
        common.prediction_ = Prediction(
            map=Temperature(beta=np.array(solved.beta)),
            kind="logits",
            preserves=common.promises,
            floor=None,
            prior=None,
            states_zero=True,
        )
        n_questions = len(labels)
        questions_by_options = {str(logits.shape[1]): len(answers) for logits, answers in questions}
        common.fit_ = FitRecord(
            rows=n_questions,
            weight=float(n_questions),
            frequencies=np.bincount(labels, minlength=padded.shape[1]) / n_questions,
            converged=solved.converged,
            details={"temperature": 1 / solved.beta, "questions_by_options": questions_by_options},
            source_rows=n_questions,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            fingerprint=leakage.fingerprint(self.rows(padded)),
        )
        return common

    def _one_temperature(self) -> bool:
        """Return whether the method is a single temperature, which is learned over all questions."""
        method = self.method
        return method == "ts" or isinstance(method, TemperatureScaling)

    def _member(self) -> Calibrator:
        """Return an unfitted calibrator for the questions with one number of options."""
        if isinstance(self.method, str):
            return make_calibrator(self.method)
        return self.method.clone().set_params(input="logits")

    def uncalibrated(self, scores: AnyArray, mask: AnyArray = None) -> Float64:
        """Return the uncalibrated probabilities (N, K): the softmax over each question's own options."""
        padded, _ = _pad(scores, mask)
        return np.exp(log_softmax_options(padded))

    def rows(self, scores: AnyArray, mask: AnyArray = None) -> Float64:
        """Return the rows by which questions are recognised: scores minus the best one, 0 where there is no option.

        So neither a constant added to a question nor the padding of the array matters.
        """
        padded, _ = _pad(scores, mask)
        exists = np.isfinite(padded)
        below_best = padded - padded.max(axis=1, keepdims=True)
        rows = np.where(exists, below_best, 0.0)
        used = int(np.flatnonzero(exists.any(axis=0))[-1]) + 1
        width = max(used, self.n_classes_) if hasattr(self, "members_") else used
        return np.pad(rows[:, :used], ((0, 0), (0, width - used)))

    def rows_like(self, scores: AnyArray, y: AnyArray = None, **others: AnyArray) -> Rows:
        """Return checked questions: the log-probabilities of their options, −inf where there is no option.

        ``others`` are arguments of :meth:`hcal.rows.Rows.of`.
        """
        if isinstance(scores, Rows):
            refuse_beside_rows({"y": y, **others})
            return replace(scores, scores=log_softmax_options(scores.x), kind="log_probs")
        padded, _ = _pad(scores, None)
        return Rows.of(log_softmax_options(padded), y, input="log_probs", **others)

    def probs_of(self, rows: Rows) -> Float64:
        """Return the calibrated probabilities (N, K) of checked questions."""
        return np.asarray(self.predict_proba(rows.scores))

    def predict_proba(self, scores: AnyArray, mask: AnyArray = None) -> Float64 | list[Float64]:
        """Return calibrated probabilities of the options.

        Returns
        -------
        list of N arrays, or array of shape (N, K) with 0 where there is no option, as ``scores`` came
        """
        refuse_other_index(scores, {"mask": mask})
        self._refuse_other_columns(scores)
        padded, counts = _pad(scores, mask)
        probs: Float64 = self.members_[_COMMON].prediction_(padded)
        exists = np.isfinite(padded)
        n_options = exists.sum(axis=1)
        for k, member in self.by_count_.items():
            options = exists & (n_options == k)[:, None]
            if options.any():
                logits = padded[options].reshape(-1, k)
                probs[options] = member.predict_proba(logits).ravel()
        if counts is None:
            return probs
        return [row[:count] for row, count in zip(probs, counts, strict=True)]

    def _refuse_other_columns(self, scores: AnyArray) -> None:
        """Refuse options in another order than in the fit, where something was learned of each position."""
        columns = _columns_of(scores)
        fitted = self.fit_.columns
        if self.by_count_ and columns is not None and fitted is not None and columns != fitted:
            raise ValueError(
                f"the options are {one_line(columns, 120)}, and those of the fit were "
                f"{one_line(fitted, 120)}: pass the columns in that order"
            )

    def predict(self, scores: AnyArray, mask: AnyArray = None) -> IntArray:
        """Return the position of the most probable option of each question."""
        probs = self.predict_proba(scores, mask)
        return np.array([int(np.argmax(row)) for row in probs], dtype=np.int64)

    # -- as every calibrator -------------------------------------------------------------------------

    def _take_over(self, members: dict[str, Calibrator]) -> None:
        """Set the fitted attributes from the members."""
        common = members[_COMMON]
        # Where a question has no option, the probability is 0.
        common.prediction_ = replace(common.prediction_, states_zero=True)
        self.members_ = members
        self.by_count_ = {int(key): member for key, member in members.items() if key != _COMMON}
        self.temperature_ = float(1 / common.map_.arrays()["beta"])

    @property
    def fit_(self) -> FitRecord:
        """What is known about the fit: the record of the common calibrator."""
        return self.members_[_COMMON].fit_

    def remember_source(self, request: JsonObject, file: str, part: str, sha256: str) -> None:
        """Note in the record of the fit how its rows were read, and from which file."""
        self.members_[_COMMON].remember_source(request, file, part, sha256)

    @property
    def n_classes_(self) -> int:
        """The most options that a question had."""
        return self.fit_.n_classes

    @property
    def classes_(self) -> NumpyArray:
        """The positions of the options."""
        return np.arange(self.n_classes_)

    @property
    def converged_(self) -> bool:
        """Whether the fits of all members converged."""
        return all(member.converged_ for member in self.members_.values())

    @property
    def prediction_(self) -> Prediction:
        """The formula that is deployed and exported; only ``method="ts"`` has one."""
        if self.by_count_:
            raise ValueError(
                f"multiple choice with {self.method!r} has one map a number of options: "
                'only method="ts" is one graph'
            )
        return self.members_[_COMMON].prediction_

    @property
    def map_(self) -> Map:
        """The map of ``method="ts"``."""
        return self.prediction_.map

    @property
    def preserves(self) -> Preserves:
        """What all members preserve."""
        members = getattr(self, "members_", {}).values()
        preserved = {member.preserves for member in members}
        if None in preserved:
            return None
        return "accuracy" if "accuracy" in preserved else "order"

    def facts(self) -> JsonObject:
        """Return what a model file stores in addition to the members: nothing."""
        return {}

    def restore(self, members: dict[str, Calibrator], facts: JsonObject) -> Self:
        """Set the fitted attributes from a model file, after checking them."""
        common = members.get(_COMMON)
        if facts or not isinstance(common, TemperatureScaling) or common.input != "logits":
            raise ValueError(f"the member {_COMMON!r} must be a temperature of logits")
        for key, member in members.items():
            if key != _COMMON and (not key.isdecimal() or member.n_classes_ != int(key)):
                raise ValueError(f"the member {key[:40]!r} is not for that number of options")
        self._take_over(members)
        return self


def _columns_of(scores: AnyArray) -> tuple[ColumnName, ...] | None:
    """Return the names of the columns of a frame of options; None where they have none."""
    return None if isinstance(scores, list | tuple) else to_numpy(scores, "scores")[1].columns


def _pad(scores: AnyArray, mask: AnyArray) -> tuple[Float64, list[int] | None]:
    """Return scores (N, K), −inf where there is no option, and the lengths of a ragged input (None for an array)."""
    counts = None
    if isinstance(scores, list | tuple):
        parts = [to_numpy(row, "scores")[0] for row in scores]
        counts = [part.size for part in parts]
        padded = pad_options(parts, np.nan)
    else:
        array, _ = to_numpy(scores, "scores")
        padded = np.array(array, dtype=np.float64)
    if padded.ndim != 2 or not padded.size:
        raise ValueError(f"scores must be questions x options, got shape {padded.shape}")
    exists = ~(np.isnan(padded) | np.isneginf(padded))
    if mask is not None:
        exists &= _checked_mask(mask, exists)
    if np.isposinf(padded[exists]).any():
        raise ValueError("scores contain +inf")
    if not exists.any(axis=1).all():
        raise ValueError(f"question {int(np.argmin(exists.any(axis=1)))} has no options")
    return np.where(exists, padded, -np.inf), counts


def _checked_mask(mask: AnyArray, has_score: NDArray[np.bool_]) -> NDArray[np.bool_]:
    array, _ = to_numpy(mask, "mask")
    exists = np.asarray(array, dtype=bool)
    if exists.shape != has_score.shape:
        raise ValueError(f"mask has shape {exists.shape}, scores {has_score.shape}")
    without_score = np.argwhere(exists & ~has_score)
    if without_score.size:
        row, option = without_score[0]
        raise ValueError(
            f"question {row} has no score for option {option}, which the mask says exists"
        )
    return exists


def _by_number_of_options(padded: Float64, y: IntArray) -> Iterator[QuestionsOfSize]:
    """Yield scores and answers of the questions with the same number of options, at least 2."""
    exists = np.isfinite(padded)
    n_options = exists.sum(axis=1)
    # The position of the answer among the options that exist.
    answer = exists.cumsum(axis=1)[np.arange(len(y)), y] - 1
    for k in np.unique(n_options[n_options > 1]):
        rows = n_options == k
        options = exists & rows[:, None]
        yield padded[options].reshape(-1, k), answer[rows].astype(np.int64)


def _mean_slope(questions: list[QuestionsOfSize], beta: float) -> float:
    """Return the derivative of the mean NLL in β."""
    n_questions = sum(len(answers) for _, answers in questions)
    total = 0.0
    for logits, answers in questions:
        _, slopes, _ = label_derivatives(logits, answers, beta)
        total += float(slopes.sum())
    return total / n_questions
