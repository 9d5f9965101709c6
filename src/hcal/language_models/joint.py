"""Several confidences of one answer (stated, computed from its tokens, of a grader) joined to one P(correct).

Each confidence is put on the scale of log-odds and standardised, and a logistic regression weighs them. Its
coefficients have normal priors of deviation 1, so that a confidence that says nothing in few rows gets little weight.
A calibrator then learns from the joined log-odds of rows that the regression did not see, by task if there are tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np
from scipy.special import logit

from hcal.fit_record import FitRecord
from hcal.frames import AnyArray, columns_by_name, refuse_other_index, to_numpy
from hcal.inputs import InputKind
from hcal.methods.base import Calibrator, as_copies
from hcal.methods.folds import deal_folds
from hcal.methods.parameters import Estimator
from hcal.methods.registry import make_calibrator
from hcal.numerics import Float64
from hcal.rows import Rows
from hcal.segments import SegmentedCalibrator
from hcal.solvers.regression import fit_logistic
from hcal.text import JsonObject, one_line, quoted

#: What a confidence can be.
KINDS: Final = ("stated", "probs", "log_probs", "logits")
#: A stated confidence is a whole number of per cent, so 100 % may be 99.5 %.
_LEAST_STATED: Final = 0.005
#: The nearest to 0 and 1 that a computed probability counts.
_LEAST_COMPUTED: Final = 1e-12
#: Of a coefficient of a standardised confidence: θ²/2, a normal prior of deviation 1.
_RIDGE: Final = 0.5
_FOLDS: Final = 5
#: What is said to whoever passes one kind of scores.
_NO_SCORES: Final = (
    "this calibrator joins several confidences of an answer: pass what its predict_proba returns, "
    "as in hcal.evaluate(cal.predict_proba(confidences), correct)"
)
#: The member that maps joined log-odds.
_JOINED: Final = "joined"


@dataclass(frozen=True)
class _Weighing:
    """The joined log-odds: intercept + Σ coefficient · (log-odds − mean) / deviation, of J confidences."""

    mean: list[float]
    deviation: list[float]
    coefficient: list[float]
    intercept: float

    def joined(self, odds: Float64) -> Float64:
        """Return the joined log-odds (N,) of the log-odds (N, J) of the confidences."""
        standardised = (odds - np.array(self.mean)) / np.array(self.deviation)
        return np.asarray(self.intercept + standardised @ np.array(self.coefficient))


class JointConfidence(Estimator):
    """P(correct) of answers from several confidences: stated, computed from the tokens, of a grader.

    Parameters
    ----------
    kinds : dict of str
        What each confidence is, by its column: ``"stated"`` (from 0 to 1, by a model or a grader), ``"probs"`` or
        ``"log_probs"`` (computed), or ``"logits"`` (any score that grows with the confidence).
    method : str
        The calibrator of the joined log-odds: a registry name.

    Attributes
    ----------
    kinds_ : dict of str
        The kinds of the last fit.
    coefficients_ : dict of float
        By how much the joined log-odds grow where a confidence is one standard deviation higher.
    fit_ : FitRecord
        Of the calibrator of the joined log-odds.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> right = rng.random(2000) < 0.6
    >>> stated = np.clip(np.where(right, 0.9, 0.8) + rng.normal(0, 0.1, 2000), 0, 1)
    >>> tokens = -rng.exponential(np.where(right, 0.3, 0.6))
    >>> both = {"stated": stated, "mean": tokens}
    >>> joint = JointConfidence({"stated": "stated", "mean": "log_probs"}).fit(both, right)
    >>> joint.predict_proba({"stated": [0.9, 0.7], "mean": [-0.1, -1.0]})[:, 1].round(1)
    array([0.8, 0.1])
    """

    name: ClassVar[str] = "joint"
    title: ClassVar[str] = "Joint confidence"

    members_: dict[str, Calibrator]
    kinds_: dict[str, str]

    def __init__(self, kinds: Mapping[str, str], method: str = "pool") -> None:
        self.kinds = kinds
        self.method = method

    def fit(
        self,
        confidences: AnyArray,
        correct: AnyArray,
        sample_weight: AnyArray = None,
        *,
        groups: AnyArray = None,
        by: AnyArray = None,
    ) -> Self:
        """Learn from answers that were judged right or wrong.

        Parameters
        ----------
        confidences : frame, or dict of columns of shape (N,)
            With the columns of ``kinds``; others are not used.
        correct : array-like of shape (N,)
            1 or True where the answer was right.
        sample_weight, groups : array-like of shape (N,), optional
        by : array-like of shape (N,), frame, or dict of columns, optional
            The segment of each answer, such as its task: adds a correction of each (:class:`SegmentedCalibrator`).
        """
        _check_kinds(self.kinds)
        # A frame may call its columns by numbers, and a model file calls them by texts.
        kinds = {str(column): kind for column, kind in self.kinds.items()}
        beside = {"correct": correct, "sample_weight": sample_weight, "groups": groups, "by": by}
        odds = _odds(confidences, kinds, beside)
        no_scores = np.full((len(odds), 2), -1.0)
        rows = Rows.of(
            no_scores, correct, input="logits", weight=sample_weight, groups=groups, by=by
        )
        if len(np.unique(rows.labels[rows.weights > 0])) < 2:
            raise ValueError("correct needs both: answers that are right, and answers that are not")
        # A whole weight is that many answers, which may go to different folds.
        places = np.arange(len(rows))
        rows = as_copies(replace(rows, ids=places)[rows.weights > 0])
        odds = odds[rows.ids]
        weighing = _fitted(odds, rows)
        unseen = np.empty(len(odds))
        # The folds spread over the joined log-odds.
        fold = deal_folds(_two_columns(weighing.joined(odds)), _FOLDS, rows.groups)
        for number in range(int(fold.max()) + 1):
            left_out = fold == number
            others = ~left_out if not left_out.all() else left_out
            unseen[left_out] = _fitted(odds[others], rows[others]).joined(odds[left_out])

        calibrator: Calibrator = make_calibrator(self.method)
        if by is not None:
            calibrator = SegmentedCalibrator(calibrator)
        calibrator.fit(replace(rows, scores=_two_columns(unseen)))
        self._weighing = weighing
        self.kinds_ = kinds
        self.members_ = {_JOINED: calibrator}
        return self

    def predict_proba(self, confidences: AnyArray, *, by: AnyArray = None) -> Float64:
        """Return the probabilities (N, 2) that an answer is wrong, and that it is right.

        Parameters
        ----------
        confidences : frame, or dict of columns of shape (N,)
        by : array-like of shape (N,), frame, or dict of columns, optional
            The segment of each answer, where the fit had segments.
        """
        calibrator = self._calibrator
        odds = _odds(confidences, self.kinds_, {"by": by})
        scores = _two_columns(self._weighing.joined(odds))
        if isinstance(calibrator, SegmentedCalibrator):
            return np.asarray(calibrator.predict_proba(scores, by=by))
        if by is not None:
            raise ValueError("by: the fit had no segments")
        return np.asarray(calibrator.predict_proba(scores))

    @property
    def coefficients_(self) -> dict[str, float]:
        """By how much the joined log-odds grow where a confidence is one standard deviation higher."""
        weighing = self._fitted_weighing
        return dict(zip(self.kinds_, weighing.coefficient, strict=True))

    @property
    def fit_(self) -> FitRecord:
        """What is known about the fit of the calibrator of the joined log-odds."""
        return self._calibrator.fit_

    def remember_source(self, request: JsonObject, file: str, part: str, sha256: str) -> None:
        """Note in the record of the fit how its rows were read, and from which file."""
        self._calibrator.remember_source(request, file, part, sha256)

    # -- what takes calibrators of scores refuses this one ------------------------------------------

    @property
    def input(self) -> InputKind:
        """Refuse to say what the scores are, because there are several."""
        raise ValueError(_NO_SCORES)

    def rows_like(self, *_scores: AnyArray, **_others: AnyArray) -> Rows:
        """Refuse scores."""
        raise ValueError(_NO_SCORES)

    # -- in a model file --------------------------------------------------------------------------

    def facts(self) -> JsonObject:
        """Return what a model file stores in addition to the calibrator: the weighing."""
        return {**asdict(self._fitted_weighing), "kinds": self.kinds_}

    def restore(self, members: dict[str, Calibrator], facts: JsonObject) -> Self:
        """Set the fitted attributes from a model file, after checking them."""
        facts = dict(facts)
        kinds = facts.pop("kinds", None)
        _check_kinds(kinds)
        if set(members) != {_JOINED} or members[_JOINED].n_classes_ != 2:
            raise ValueError("joined confidences need one calibrator of two classes")
        numbers = {name: facts.get(name) for name in ("mean", "deviation", "coefficient")}
        for name, values in numbers.items():
            if not _are_numbers(values, len(kinds)):
                raise ValueError(f"{name!r} must hold a number for each of {len(kinds)} kinds")
        intercept = facts.get("intercept")
        if set(facts) != {*numbers, "intercept"} or not _are_numbers([intercept], 1):
            raise ValueError("the facts of joined confidences are not those that hcal wrote")
        if min(facts["deviation"]) <= 0:
            raise ValueError("'deviation' must be greater than 0")
        self._weighing = _Weighing(**facts)
        self.kinds_ = dict(kinds)
        self.members_ = dict(members)
        return self

    # -- machinery --------------------------------------------------------------------------------

    @property
    def _fitted_weighing(self) -> _Weighing:
        self._calibrator  # noqa: B018 - refuses an unfitted one
        return self._weighing

    @property
    def _calibrator(self) -> Calibrator:
        if "members_" not in vars(self):
            raise ValueError("this JointConfidence is not fitted yet: call fit first")
        return self.members_[_JOINED]


def _check_kinds(kinds: object) -> None:
    """Refuse what does not say what each confidence is."""
    if not isinstance(kinds, Mapping) or not kinds:
        raise ValueError('kinds says what each column is: {"stated": "stated", …}')
    for column, kind in kinds.items():
        if kind not in KINDS:
            listed = ", ".join(KINDS)
            raise ValueError(f"the kind of {column!r} must be one of {listed}, got {kind!r}")
    if len({str(column) for column in kinds}) < len(kinds):
        raise ValueError("two columns of kinds have one name")


def _odds(
    confidences: AnyArray, kinds: Mapping[str, str], beside: Mapping[str, AnyArray]
) -> Float64:
    """Return the log-odds (N, J) of the confidences; ``beside`` are values of the same rows."""
    columns = confidences
    if not isinstance(confidences, Mapping):
        columns = columns_by_name(confidences, "confidences")
    if columns is None:
        raise ValueError("confidences must be a frame or a dict of columns")
    columns = {str(name): values for name, values in columns.items()}
    missing = [column for column in kinds if column not in columns]
    if missing:
        listed = one_line(", ".join(columns), 120)
        raise ValueError(f"there is no column {missing[0]!r} of confidences; there are {listed}")
    first = columns[next(iter(kinds))]
    refuse_other_index(first, {**{column: columns[column] for column in kinds}, **beside})
    odds = [odds_of_kind(columns[column], kind, column) for column, kind in kinds.items()]
    if len({len(values) for values in odds}) > 1:
        raise ValueError("the columns of confidences have different lengths")
    return np.stack(odds, axis=1)


def odds_of_kind(values: AnyArray, kind: str, column: str) -> Float64:
    """Return confidences (N,) as log-odds; refuse what cannot be of that kind.

    >>> odds_of_kind([0.5, 1.0], "stated", "said").round(2).tolist()
    [0.0, 5.29]
    >>> odds_of_kind([-1.0, -5.0], "log_probs", "sum").round(2).tolist()
    [-0.54, -4.99]
    """
    array, _ = to_numpy(values, column)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "biuf":
        raise ValueError(f"{column!r} must hold one number a row, got {quoted(values)}")
    numbers = array.astype(np.float64)
    lowest, highest = {"log_probs": (-np.inf, 0.0), "logits": (-np.inf, np.inf)}.get(kind, (0, 1))
    bad = np.isnan(numbers) | (numbers < lowest) | (numbers > highest)
    bad |= np.isinf(numbers) if kind == "logits" else False
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{column!r} is {kind}, and row {row} is {numbers[row]:g}")
    if kind == "logits":
        return numbers
    probs = np.exp(numbers) if kind == "log_probs" else numbers
    least = _LEAST_STATED if kind == "stated" else _LEAST_COMPUTED
    clipped = np.clip(probs, least, 1 - least)
    if kind != "log_probs":
        return np.asarray(logit(clipped))
    # Of an answer of many tokens the probability may be 0 in floats, and its logarithm is not.
    log_probs = np.maximum(numbers, -1e6)
    return np.where(probs < least, log_probs, log_probs - np.log1p(-np.minimum(probs, 1 - least)))


def _fitted(odds: Float64, rows: Rows) -> _Weighing:
    """Return the weighing of a logistic regression on standardised log-odds (N, J)."""
    share = rows.weights / rows.total
    mean = share @ odds
    deviation = np.sqrt(share @ (odds - mean) ** 2)
    deviation = np.where(deviation > 0, deviation, 1.0)
    design = np.column_stack([np.ones(len(odds)), (odds - mean) / deviation])
    ridge = np.full(design.shape[1], _RIDGE)
    ridge[0] = 0.0
    target = rows.labels.astype(np.float64)
    theta = fit_logistic(design, target, rows.weight, ridge=ridge).theta
    return _Weighing(mean.tolist(), deviation.tolist(), theta[1:].tolist(), float(theta[0]))


def _two_columns(log_odds: Float64) -> Float64:
    return np.stack([np.zeros_like(log_odds), log_odds], axis=1)


def _are_numbers(values: object, count: int) -> bool:
    """Return whether a value of a file is a list of so many finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in (int, float) and bool(np.isfinite(value)) for value in values)
    )
