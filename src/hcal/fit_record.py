"""What a fit leaves behind besides its map: one record that messages, reports, certificates and files read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Final, Protocol, Self

import numpy as np
from scipy.special import chdtrc, ndtri, stdtrit

from hcal import leakage
from hcal.ageing import Aged
from hcal.class_names import check_classes
from hcal.frames import AnyArray, ColumnName
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray
from hcal.row_segments import Segments
from hcal.rows import ClassNames, Rows
from hcal.text import JsonObject

#: A score of the calibration rows by its name.
Scores = dict[str, float]
#: The deepest nesting and the longest text of what a file says about a fit.
MOST_LEVELS: Final = 8
MOST_CHARACTERS_OF_TEXT: Final = 10_000
#: A quantile by which the caution for few groups is set.
_RARELY: Final = 0.995
#: The most classes of a model in a file.
MOST_CLASSES_OF_FILE: Final = 10_000_000
#: Bins by which new probabilities are compared with those of the fit.
_BINS: Final = 10
#: A claim counts as at most an edge where it is above it by rounding.
_BELOW: Final = 1 - 1e-6
#: At most this many rows of a fit are remembered, and at most this many classes are checked.
_MOST_ROWS: Final = 20_000
_MOST_CLASSES: Final = 100
#: The variance of the old shares counts so often, for the noise of the map beside that of the rows.
_NOISE_OF_MAP: Final = 2.0


#: What is said of rows that have times and a fit that does not use them.
NO_HALF_LIFE: Final = (
    "the times of the rows have no effect on the fit, because there is no half-life"
)


@dataclass(frozen=True)
class ProbabilityBins:
    """How the calibrated probabilities of a fit are distributed, so that new ones can be compared with them.

    Attributes
    ----------
    edges : array of shape (B − 1,)
        Inner limits of bins of P(class 1) with two classes, else of the largest probability.
    mass : array of shape (B, K)
        The mean over all rows of each class's probability, in the rows of a bin.
    rows : float
        How many independent rows the mass comes from.
    """

    edges: Float64
    mass: Float64
    rows: float

    @classmethod
    def of(cls, probs: FloatArray, weight: Float64 | None, effective_rows: float) -> Self | None:
        """Return the bins of a fit's probabilities (N, K), from at most 20,000 rows; None with many classes."""
        if probs.shape[1] > _MOST_CLASSES:
            return None
        step = -(-len(probs) // _MOST_ROWS)
        sample = probs[::step].astype(np.float64)
        claims = _claims(sample)
        edges = _edges(claims)
        share = np.ones(len(sample)) if weight is None else weight[::step]
        mass = np.zeros((len(edges) + 1, probs.shape[1]))
        np.add.at(mass, _bin_of(claims, edges), share[:, None] * sample)
        rows = min(effective_rows, effective_rows * len(sample) / len(probs))
        return cls(edges, mass / mass.sum(), rows)

    @property
    def frequencies(self) -> Float64:
        """The mean probability of each class over the rows of the fit, shape (K,)."""
        return np.asarray(self.mass.sum(axis=0))

    def to_json(self) -> JsonObject:
        """Return plain values."""
        return {"edges": self.edges.tolist(), "mass": self.mass.tolist(), "rows": self.rows}

    @classmethod
    def from_json(cls, content: object, n_classes: int) -> Self | None:
        """Return the bins that a file holds; a ValueError says what is not sound."""
        if content is None:
            return None
        words = "'fit.bins' must be edges, mass of each class, and rows"
        if not isinstance(content, Mapping) or set(content) != {"edges", "mass", "rows"}:
            raise ValueError(words)
        try:
            edges = np.array(content["edges"], dtype=np.float64)
            mass = np.array(content["mass"], dtype=np.float64)
            rows = float(content["rows"])
        except (TypeError, ValueError, OverflowError):
            raise ValueError(words) from None
        shaped = edges.ndim == 1 and mass.shape == (len(edges) + 1, n_classes)
        if not shaped or len(edges) >= _BINS or not np.isfinite([*edges, rows]).all() or rows <= 0:
            raise ValueError(words)
        if not ((mass >= 0).all() and abs(mass.sum() - 1) < 1e-6 and (np.diff(edges) > 0).all()):
            raise ValueError(words)
        return cls(edges, mass, rows)

    def p_value(self, probs: Float64, ratio: Float64) -> float:
        """Return the p-value of: rows with these probabilities are a mixture of the classes of the fit.

        ``ratio`` says how many times as often each class occurs as before. Under label shift the density of new rows
        is Σ_k ratio_k·P(k | x) times that of the old ones, so each bin has an expected share. χ² compares it with the
        observed one. Both samples are noisy, and so is the map that was fitted to the old one.

        >>> rng = np.random.default_rng(0)
        >>> p = rng.beta(2, 2, 2000)
        >>> bins = ProbabilityBins.of(np.stack([1 - p, p], axis=1), None, 2000)
        >>> q = rng.beta(2, 2, 500)
        >>> bins.p_value(np.stack([1 - q, q], axis=1), np.ones(2)) > 0.01
        True
        >>> narrow = np.full((500, 2), 0.5)
        >>> bins.p_value(narrow, np.ones(2)) < 1e-6
        True
        """
        expected = self.mass @ ratio
        expected = np.maximum(expected / expected.sum(), 1e-12)
        before = np.maximum(self.mass.sum(axis=1), 1e-12)
        counts = np.bincount(_bin_of(_claims(probs), self.edges), minlength=len(before))
        observed = counts / len(probs)

        noise_of_fit = _NOISE_OF_MAP * (expected / before) ** 2 * before / self.rows
        noise = expected / len(probs) + noise_of_fit
        statistic = float(((observed - expected) ** 2 / noise).sum())
        return float(chdtrc(len(self.edges), statistic)) if len(self.edges) else 1.0


@dataclass(frozen=True)
class FitRecord:
    """What is known about a fit.

    Attributes
    ----------
    rows : int
        Rows with a positive weight that the fit used.
    weight : float
        The sum of their weights.
    frequencies : array of shape (K,)
        How often each class occurred, by weight.
    before, after : dict of float, or None
        Scores of the calibration rows before and after calibration; None after ``with_prior``, because the rows with
        the new class frequencies are not at hand.
    converged : bool
    names : tuple of K str or int, optional
        Names of the classes.
    columns : tuple of K str or int, optional
        How the columns of the scores were called.
    score_range : (float, float), optional
        With two classes of logits, the least and the greatest score of class 1.
    segments : tuple of S str, optional
        Names of the segments, where the calibrator has any.
    segment_title : str, optional
        The names of the columns of the segments.
    notes : tuple of str
        Sentences for the user.
    details : dict
        What the method has to say, as plain values: chosen settings, iterations.
    history : dict of lists
        What the training recorded after each epoch.
    prior : array of shape (K,), optional
        The class frequencies that ``with_prior`` adjusted the probabilities to.
    source_rows : int
        Rows of the source; more than ``rows`` where a sample was fitted.
    effective_rows : float, optional
        How many independent rows of weight 1 would tell the class frequencies as exactly: :func:`effective_rows`.
    bins : ProbabilityBins, optional
        How the calibrated probabilities of the rows are distributed.
    file, part, sha256 : str, optional
        The file that the rows were read from.
    request : dict
        How the columns of that file were read.
    from_folds : bool
        Whether the scores came from models of folds, and another model makes the predictions.
    date, version : str
        When the fit was made (UTC), and by which version of hcal.
    fingerprint : dict of arrays
        By which the rows are recognised (:mod:`hcal.leakage`).
    """

    rows: int
    weight: float
    frequencies: Float64
    before: Scores | None = None
    after: Scores | None = None
    converged: bool = True
    names: ClassNames | None = None
    columns: tuple[ColumnName, ...] | None = None
    score_range: tuple[float, float] | None = None
    segments: tuple[str, ...] | None = None
    segment_title: str | None = None
    notes: tuple[str, ...] = ()
    details: JsonObject = field(default_factory=dict)
    history: JsonObject = field(default_factory=dict)
    prior: Float64 | None = None
    source_rows: int = 0
    effective_rows: float | None = None
    bins: ProbabilityBins | None = None
    file: str | None = None
    part: str | None = None
    sha256: str | None = None
    request: JsonObject = field(default_factory=dict)
    from_folds: bool = False
    date: str = ""
    version: str = ""
    fingerprint: leakage.Fingerprint = field(default_factory=dict)

    @cached_property
    def n_classes(self) -> int:
        """The number K of classes."""
        return len(self.frequencies)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the arrays of a map: K classes, and S segments where there are any."""
        segments = {} if self.segments is None else {"S": len(self.segments)}
        return {"K": self.n_classes, **segments}

    @property
    def sampled(self) -> str:
        """Which rows of its source the fit used, in words."""
        if self.source_rows > self.rows:
            return f"fitted on a sample of {self.rows:,} of {self.source_rows:,} rows"
        return f"fitted on all {self.rows:,} rows"

    def with_age(self, age: Aged | None, *, has_times: bool) -> FitRecord:
        """Return this record with how the rows were weighed by their age, if they were."""
        if age is None:
            return replace(self, notes=(*self.notes, NO_HALF_LIFE)) if has_times else self
        return replace(
            self,
            notes=(*self.notes, age.sentence),
            details={**self.details, "age": dict(vars(age))},
        )

    def with_prior(self, frequencies: Float64) -> FitRecord:
        """Return the record of the same fit, for predictions with other class frequencies."""
        details = _lasting(self)
        return replace(self, prior=frequencies, before=None, after=None, notes=(), details=details)

    def to_json(self) -> JsonObject:
        """Return everything but the fingerprint as plain values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        del values["fingerprint"]
        values["bins"] = None if self.bins is None else self.bins.to_json()
        return {name: _plain(value) for name, value in values.items()}

    @classmethod
    def from_json(cls, content: JsonObject, fingerprint: Mapping[str, NumpyArray]) -> FitRecord:
        """Return the record that a file holds; a ValueError names the first entry that is not sound.

        >>> FitRecord.from_json({"rows": 4, "weight": 4.0, "frequencies": [0.25, 0.5]}, {})
        Traceback (most recent call last):
        ...
        ValueError: 'fit.frequencies' must be K numbers that sum to 1
        """
        unknown = sorted(set(content) - {entry.name for entry in fields(cls)})
        if unknown:
            raise ValueError(f"'fit.{unknown[0][:40]}' is not an entry of a fit")
        _check_values(dict(content), MOST_LEVELS)
        for name, (kinds, words) in _KINDS.items():
            if name in content and not _is_one_of(content[name], kinds):
                raise ValueError(f"'fit.{name}' must be {words}")
        frequencies = _shares(content.get("frequencies"), "frequencies")
        prior = content.get("prior")
        names = content.get("names")
        columns = content.get("columns")
        leakage.check_fingerprint(fingerprint)
        n_classes = len(frequencies)
        entries: JsonObject = dict(content)
        entries["frequencies"] = frequencies
        entries["prior"] = None if prior is None else _shares(prior, "prior", n_classes)
        entries["names"] = None if names is None else check_classes(names, n_classes)
        entries["columns"] = None if columns is None else check_classes(columns, n_classes)
        entries["score_range"] = _range(content.get("score_range"))
        entries["bins"] = ProbabilityBins.from_json(content.get("bins"), n_classes)
        entries["before"] = _scores(content.get("before"), "before")
        entries["after"] = _scores(content.get("after"), "after")
        entries["segments"] = _segments(content.get("segments"))
        entries["notes"] = _texts(content.get("notes", []), "notes")
        entries["fingerprint"] = dict(fingerprint)
        return cls(**entries)


def effective_rows(rows: Rows) -> float:
    """Return how many independent rows of weight 1 would tell the class frequencies as exactly as rows with labels.

    Unequal weights count as Kish's effective size. Rows of one group count by how much the classes cluster in the
    groups; few groups count less, because their spread is known badly itself.

    Examples
    --------
    >>> rows = Rows.of(np.eye(2)[[0, 1, 0, 1]], [0, 1, 0, 1], input="probs", weight=[3, 3, 1, 1])
    >>> round(effective_rows(rows), 3)
    3.2
    """
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight
    # Squares of tiny or huge weights would leave the range of numbers.
    weight = weight / weight.max()
    total = float(weight.sum())
    by_weight = total**2 / float(weight @ weight)
    if rows.groups is None:
        return by_weight
    group = np.unique(rows.groups, return_inverse=True)[1]
    count = int(group.max()) + 1
    if count < 2:
        return 1.0
    frequency = np.bincount(rows.labels, weight, rows.n_classes) / total
    of_group = np.bincount(group, weight)
    cell, place = np.unique(group * rows.n_classes + rows.labels, return_inverse=True)
    of_cell = np.bincount(place, weight)

    # The squared residuals of all groups and classes, Σ (W_gk − W_g·f_k)², where most W_gk are 0.
    crossed = of_cell * of_group[cell // rows.n_classes] * frequency[cell % rows.n_classes]
    squares = (
        of_cell @ of_cell - 2 * crossed.sum() + (of_group @ of_group) * (frequency @ frequency)
    )
    spread = 1 - float(frequency @ frequency)
    if spread <= 0:  # one class alone says nothing about how classes cluster
        return total**2 / float(of_group @ of_group)
    variance = max(float(squares), 1e-12) / total**2 * count / (count - 1)
    caution = (ndtri(_RARELY) / stdtrit(count - 1, _RARELY)) ** 2
    return float(min(spread / variance * caution, by_weight))


class Predictor(Protocol):
    """A calibrator of rows, of several labels or of questions."""

    @property
    def input(self) -> InputKind:
        """What the scores of the next fit are."""

    def predict_proba(self, scores: AnyArray) -> AnyArray:
        """Return the calibrated probabilities."""


class FittedModel(Predictor, Protocol):
    """A fitted calibrator that knows how its rows are checked: one label a row, or the options of a question."""

    @property
    def fit_(self) -> FitRecord:
        """What is known about the fit."""

    def rows_like(self, scores: AnyArray, y: AnyArray = None, **others: AnyArray) -> Rows:
        """Return checked rows, as those of the fit were; ``others`` are arguments of ``Rows.of``."""

    def probs_of(self, rows: Rows) -> FloatArray:
        """Return the calibrated probabilities of checked rows."""


def fitted_names(calibrator: object) -> ClassNames | None:
    """Return the names of the classes of a fitted calibrator, if it has any."""
    record = getattr(calibrator, "fit_", None)
    return None if record is None else record.names


def fitted_kind(calibrator: Predictor) -> InputKind:
    """Return what the scores of a calibrator are: those of its fit, else what it was made for."""
    if hasattr(calibrator, "members_") or not hasattr(calibrator, "prediction_"):
        return calibrator.input
    kind: InputKind = calibrator.prediction_.kind
    return kind


def refuse_other_kind_of(calibrator: Predictor, input: InputKind | None) -> None:
    """Refuse what is no calibrator of scores, and an argument ``input`` that is not the kind of scores it takes."""
    if not hasattr(calibrator, "rows_like"):
        raise TypeError(
            f"{type(calibrator).__name__} is no calibrator of scores: pass the probabilities that "
            "it predicts, as in hcal.evaluate(model.predict_proba(X), y, classes=model.classes_)"
        )
    kind = fitted_kind(calibrator)
    if input not in (None, kind):
        raise ValueError(
            f"input is {input!r}, but the calibrator takes {kind!r}: leave input out, or make "
            "a calibrator for these scores"
        )


def fitted_segments(calibrator: object) -> tuple[str, ...]:
    """Return the columns by which a fitted calibrator has segments; none where it has no segments.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.SegmentedCalibrator("ts")
    >>> _ = cal.fit([[0.0, 2.0]] * 8, [1, 1, 1, 0] * 2, by={"country": ["DE", "FR"] * 4})
    >>> fitted_segments(cal), fitted_segments(hcal.make_calibrator("ts"))
    (('country',), ())
    """
    record = getattr(calibrator, "fit_", None)
    if record is None or record.segments is None:
        return ()
    return tuple((record.segment_title or "segment").split(" · "))


def fitted_request(calibrator: Predictor) -> JsonObject:
    """Return how the rows of files are read for a fitted calibrator: as those of its fit were, with its segments."""
    record = getattr(calibrator, "fit_", None)  # a multilabel calibrator has none
    remembered = {} if record is None else dict(record.request)
    segments = fitted_segments(calibrator)
    if segments:
        remembered.setdefault("segments", ",".join(segments))
    return {"input": fitted_kind(calibrator), **remembered}


def predict_with_segments(calibrator: Predictor, scores: AnyArray, by: AnyArray = None) -> AnyArray:
    """Return the probabilities of a fitted calibrator; ``by`` goes to one that has segments, and to no other."""
    predict: Callable[..., AnyArray] = calibrator.predict_proba
    return predict(scores, by=by) if fitted_segments(calibrator) else predict(scores)


def unknown_segments(calibrator: object, by: Mapping[str, NumpyArray]) -> int:
    """Return how many rows have a segment that the fit of a calibrator did not see; 0 where it has no segments."""
    columns = fitted_segments(calibrator)
    if not columns:
        return 0
    values = {column: by[column] for column in columns}
    segments = Segments.of(values, len(values[columns[0]]))
    assert hasattr(calibrator, "fit_")
    is_fitted = np.isin(segments.names, calibrator.fit_.segments)
    return int((~is_fitted[segments.codes]).sum())


def refuse_segments(calibrator: object, what: str) -> None:
    """Raise a ValueError where a calibrator has segments, and ``what`` has no place for the segment of a row."""
    columns = fitted_segments(calibrator)
    if columns:
        raise ValueError(
            f"{what} knows no segments, and this calibrator was fitted by {', '.join(columns)}: "
            "use predict_proba(scores, by=…), or hcal apply"
        )


def _claims(probs: Float64) -> Float64:
    """Return P(class 1) of two classes, else the largest probability."""
    return np.asarray(probs[:, 1] if probs.shape[1] == 2 else probs.max(axis=1))


def _edges(claims: Float64) -> Float64:
    """Return the different deciles of the claims, without those that cut off less than half a tenth of the rows."""
    quantiles = np.unique(np.quantile(claims, np.arange(1, _BINS) / _BINS))
    ascending = np.sort(claims)
    edges: list[float] = []
    before = 0
    for edge in quantiles.tolist():
        below = int(np.searchsorted(ascending * _BELOW, edge, side="left"))
        if min(below - before, len(claims) - below) >= len(claims) / (2 * _BINS):
            edges.append(edge)
            before = below
    return np.array(edges)


def _bin_of(claims: Float64, edges: Float64) -> IntArray:
    """Return the bin of each claim; a claim at an edge, up to rounding, belongs to the bin below."""
    return np.searchsorted(edges, claims * _BELOW, side="left")


#: The types of the entries that need no other check, and how a message calls them.
_KINDS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "rows": ((int,), "a whole number"),
    "source_rows": ((int,), "a whole number"),
    "weight": ((int, float), "a number"),
    "effective_rows": ((int, float, type(None)), "a number"),
    "converged": ((bool,), "true or false"),
    "from_folds": ((bool,), "true or false"),
    "details": ((dict,), "an object"),
    "history": ((dict,), "an object"),
    "request": ((dict,), "an object"),
    "segment_title": ((str, type(None)), "a text"),
    "file": ((str, type(None)), "a text"),
    "part": ((str, type(None)), "a text"),
    "sha256": ((str, type(None)), "a text"),
    "date": ((str,), "a text"),
    "version": ((str,), "a text"),
}
#: Details about predictions, which are no longer true for other class frequencies.
_OF_PREDICTIONS: Final = frozenset({"changed_predictions", "threshold"})


def _lasting(record: FitRecord) -> JsonObject:
    return {name: value for name, value in record.details.items() if name not in _OF_PREDICTIONS}


def _is_one_of(value: object, kinds: tuple[type, ...]) -> bool:
    """Return whether a value has one of the types; True and False are no numbers."""
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds)


def _shares(values: object, name: str, n_classes: int | None = None) -> Float64:
    if not isinstance(values, list) or not {type(value) for value in values} <= {int, float}:
        raise ValueError(f"'fit.{name}' must be K numbers that sum to 1")
    if not 2 <= len(values) <= MOST_CLASSES_OF_FILE or n_classes not in (None, len(values)):
        raise ValueError(f"'fit.{name}' must be K numbers that sum to 1")
    # A share above 1 is refused before it becomes a float, which may be too small for it.
    if max(values) > 1 or not (min(values) >= 0 and abs(sum(values) - 1) < 1e-6):
        raise ValueError(f"'fit.{name}' must be K numbers that sum to 1")
    return np.array(values, dtype=np.float64)


def _range(values: object) -> tuple[float, float] | None:
    if values is None:
        return None
    words = "'fit.score_range' must be two ascending numbers"
    if not isinstance(values, list) or len(values) != 2:
        raise ValueError(words)
    low, high = values
    if {type(low), type(high)} - {int, float} or not low <= high:
        raise ValueError(words)
    return float(low), float(high)


def _scores(values: object, name: str) -> Scores | None:
    if values is None:
        return None
    if not isinstance(values, dict) or not all(
        isinstance(value, int | float) for value in values.values()
    ):
        raise ValueError(f"'fit.{name}' must be an object of numbers")
    return values


def _segments(values: object) -> tuple[str, ...] | None:
    if values is None:
        return None
    names = _texts(values, "segments")
    if not names or len(set(names)) < len(names):
        raise ValueError("'fit.segments' must be different names")
    return names


def _texts(values: object, name: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"'fit.{name}' must be a list of texts")
    return tuple(values)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _check_values(value: object, levels: int) -> None:
    """Refuse deeper nesting, or longer texts, than a fit writes."""
    if not levels:
        raise ValueError(f"'fit' is nested in more than {MOST_LEVELS} levels")
    if isinstance(value, str) and len(value) > MOST_CHARACTERS_OF_TEXT:
        raise ValueError(f"'fit' holds a text of more than {MOST_CHARACTERS_OF_TEXT:,} characters")
    entries: list[object] = []
    if isinstance(value, dict):
        entries = [*value, *value.values()]
    elif isinstance(value, list):
        entries = value
    for entry in entries:
        _check_values(entry, levels - 1)
