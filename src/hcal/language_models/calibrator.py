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
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hcal import leakage
from hcal._version import __version__
from hcal.fit_record import FitRecord
from hcal.inputs import InputKind, check_labels, to_numpy
from hcal.maps.base import Map
from hcal.maps.prediction import Prediction
from hcal.methods.base import CalibrationWarning, Calibrator, Preserves
from hcal.methods.parameters import Estimator
from hcal.methods.registry import make_calibrator
from hcal.methods.ts import Temperature, TemperatureScaling
from hcal.metrics.scores import score_probs
from hcal.numerics import Float64, IntArray, log_softmax_options, pad_options
from hcal.rows import Rows
from hcal.solvers.temperature import label_derivatives, solve_increasing

#: The calibrator of all questions whose number of options has no calibrator of its own.
_COMMON = "common"


class MultipleChoiceCalibrator(Estimator):
    """Calibrated probabilities of the options of questions; the number of options may differ between questions.

    Parameters
    ----------
    method : str or Calibrator, default "ts"
        ``"ts"``: one temperature for all questions. Any other registry name, or an unfitted calibrator of logits:
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

    def fit(self, scores: Any, y: Any, mask: Any = None) -> Self:
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
        known, _ = _pad(scores, mask)
        labels = check_labels(y, *known.shape)
        absent = np.flatnonzero(np.isneginf(known[np.arange(len(labels)), labels]))
        if absent.size:
            row = absent[0]
            raise ValueError(
                f"question {row} has the answer {labels[row]}, which is not one of its options"
            )
        groups = list(_groups(known, labels))
        if not groups:
            raise ValueError("no question has 2 or more options: there is nothing to learn from")
        n = sum(len(own) for _, own in groups)

        def slope(beta: float) -> float:
            return sum(float(label_derivatives(z, own, beta)[1].sum()) for z, own in groups) / n

        solved = solve_increasing(slope)
        if not solved.converged:
            warnings.warn(f"multiple choice: {solved.message}", CalibrationWarning, stacklevel=2)
        common = TemperatureScaling()
        common.prediction_ = Prediction(
            map=Temperature(beta=np.array(solved.beta)),
            kind="logits",
            preserves=common.promises,
            floor=None,
            prior=None,
        )
        common.fit_ = FitRecord(
            rows=len(labels),
            weight=float(len(labels)),
            frequencies=np.bincount(labels, minlength=known.shape[1]) / len(labels),
            converged=solved.converged,
            details={
                "temperature": 1 / solved.beta,
                "questions_by_options": {str(z.shape[1]): len(own) for z, own in groups},
            },
            source_rows=len(labels),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            fingerprint=leakage.fingerprint(self.rows(known)),
        )
        counts = {}
        for z, own in groups:
            if len(own) >= self.min_questions and not self._one_temperature():
                counts[str(z.shape[1])] = self._member().fit(z, own)
        self._take_over({_COMMON: common, **counts})
        common.fit_ = replace(
            common.fit_,
            before=score_probs(self.uncalibrated(known), labels),
            after=score_probs(self.predict_proba(known), labels),
        )
        return self

    def _one_temperature(self) -> bool:
        """Return whether the method is a single temperature, which is learned over all questions."""
        method = self.method
        return method == "ts" or isinstance(method, TemperatureScaling)

    def _member(self) -> Calibrator:
        """Return an unfitted calibrator for the questions with one number of options."""
        if isinstance(self.method, str):
            return make_calibrator(self.method)
        return self.method.clone().set_params(input="logits")

    def uncalibrated(self, scores: Any, mask: Any = None) -> Float64:
        """Return the uncalibrated probabilities (N, K): the softmax over each question's own options."""
        return np.exp(log_softmax_options(_pad(scores, mask)[0]))

    def rows(self, scores: Any, mask: Any = None) -> Float64:
        """Return the rows by which questions are recognised: scores minus the best one, 0 where there is no option.

        So neither a constant added to a question nor the padding of the array matters.
        """
        known, _ = _pad(scores, mask)
        exists = np.isfinite(known)
        rows = np.where(exists, known - known.max(axis=1, keepdims=True), 0.0)
        used = int(np.flatnonzero(exists.any(axis=0))[-1]) + 1
        width = max(used, self.n_classes_) if hasattr(self, "members_") else used
        return np.pad(rows[:, :used], ((0, 0), (0, width - used)))

    def rows_like(self, scores: Any, y: Any = None, **others: Any) -> Rows:
        """Return checked questions: the log-probabilities of their options, −inf where there is no option.

        ``others`` are arguments of :meth:`hcal.rows.Rows.of`.
        """
        if isinstance(scores, Rows):
            return replace(scores, scores=log_softmax_options(scores.x), kind="log_probs")
        known, _ = _pad(scores, None)
        return Rows.of(log_softmax_options(known), y, input="log_probs", **others)

    def probs_of(self, rows: Rows) -> Float64:
        """Return the calibrated probabilities (N, K) of checked questions."""
        return np.asarray(self.predict_proba(rows.scores))

    def predict_proba(self, scores: Any, mask: Any = None) -> Any:
        """Return calibrated probabilities of the options.

        Returns
        -------
        list of N arrays, or array of shape (N, K) with 0 where there is no option, as ``scores`` came
        """
        known, counts = _pad(scores, mask)
        probs = self.members_[_COMMON].prediction_(known)
        exists = np.isfinite(known)
        for k, member in self.by_count_.items():
            there = exists & (exists.sum(axis=1) == k)[:, None]
            if there.any():
                probs[there] = member.predict_proba(known[there].reshape(-1, k)).ravel()
        return probs if counts is None else [p[:c] for p, c in zip(probs, counts, strict=True)]

    def predict(self, scores: Any, mask: Any = None) -> IntArray:
        """Return the position of the most probable option of each question."""
        return np.array(
            [int(np.argmax(p)) for p in self.predict_proba(scores, mask)], dtype=np.int64
        )

    # -- as every calibrator -------------------------------------------------------------------------

    def _take_over(self, members: dict[str, Calibrator]) -> None:
        """Set the fitted attributes from the members."""
        common = members[_COMMON]
        self.members_ = members
        self.by_count_ = {int(key): member for key, member in members.items() if key != _COMMON}
        self.temperature_ = float(1 / common.map_.arrays()["beta"])

    @property
    def fit_(self) -> FitRecord:
        """What is known about the fit: the record of the common calibrator."""
        return self.members_[_COMMON].fit_

    def remember_source(self, request: dict[str, Any], file: str, part: str, sha256: str) -> None:
        """Note in the record of the fit how its rows were read, and from which file."""
        self.members_[_COMMON].remember_source(request, file, part, sha256)

    @property
    def n_classes_(self) -> int:
        """The most options that a question had."""
        return self.fit_.n_classes

    @property
    def classes_(self) -> NDArray[Any]:
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
                f'multiple choice with {self.method!r} has one map a number of options: only method="ts" is one graph'
            )
        return self.members_[_COMMON].prediction_

    @property
    def map_(self) -> Map:
        """The map of ``method="ts"``."""
        return self.prediction_.map

    @property
    def preserves(self) -> Preserves:
        """What all members preserve."""
        kept = {"order", *(member.preserves for member in getattr(self, "members_", {}).values())}
        return None if None in kept else ("accuracy" if "accuracy" in kept else "order")

    def facts(self) -> dict[str, Any]:
        """Return what a model file stores in addition to the members: nothing."""
        return {}

    def restore(self, members: dict[str, Calibrator], facts: dict[str, Any]) -> Self:
        """Set the fitted attributes from a model file, after checking them."""
        common = members.get(_COMMON)
        if facts or not isinstance(common, TemperatureScaling) or common.input != "logits":
            raise ValueError(f"the member {_COMMON!r} must be a temperature of logits")
        for key, member in members.items():
            if key != _COMMON and (not key.isdecimal() or member.n_classes_ != int(key)):
                raise ValueError(f"the member {key[:40]!r} is not for that number of options")
        self._take_over(members)
        return self


def _pad(scores: Any, mask: Any) -> tuple[Float64, list[int] | None]:
    """Return scores (N, K), −inf where there is no option, and the lengths of a ragged input (None for an array)."""
    counts = None
    if isinstance(scores, list | tuple):
        parts = [to_numpy(s, "scores")[0] for s in scores]
        padded, counts = pad_options(parts, np.nan), [p.size for p in parts]
    else:
        padded = np.array(to_numpy(scores, "scores")[0], dtype=np.float64)
    if padded.ndim != 2 or not padded.size:
        raise ValueError(f"scores must be questions x options, got shape {padded.shape}")
    exists = ~(np.isnan(padded) | np.isneginf(padded))
    if mask is not None:
        given = np.asarray(to_numpy(mask, "mask")[0], dtype=bool)
        if given.shape != padded.shape:
            raise ValueError(f"mask has shape {given.shape}, scores {padded.shape}")
        if (given & ~exists).any():
            row, option = np.argwhere(given & ~exists)[0]
            raise ValueError(
                f"question {row} has no score for option {option}, which the mask says exists"
            )
        exists &= given
    if np.isposinf(padded[exists]).any():
        raise ValueError("scores contain +inf")
    if not exists.any(axis=1).all():
        raise ValueError(f"question {int(np.argmin(exists.any(axis=1)))} has no options")
    return np.where(exists, padded, -np.inf), counts


def _groups(known: Float64, y: IntArray) -> Iterator[tuple[Float64, IntArray]]:
    """Yield (scores, answers) of the questions with the same number of options, at least 2."""
    exists = np.isfinite(known)
    number = exists.sum(axis=1)
    place = (
        exists.cumsum(axis=1)[np.arange(len(y)), y] - 1
    )  # the position of the answer among the existing options
    for k in np.unique(number[number > 1]):
        rows = number == k
        yield known[exists & rows[:, None]].reshape(-1, k), place[rows].astype(np.int64)
