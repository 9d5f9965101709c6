"""The base class of all calibrators.

A method is one file in this folder with one subclass of :class:`Calibrator`. It defines one function, ``_fit``, which
learns a :class:`hcal.maps.base.Map` from checked rows of logits. Input checks, array libraries, warnings, scores
before and after, class frequencies and keeping the argmax are done here and in :mod:`hcal.maps.base`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Literal, NoReturn, Self

import numpy as np

from hcal import leakage
from hcal._version import __version__
from hcal.ageing import Aged, HalfLifeLike, aged
from hcal.class_names import ClassName, with_names
from hcal.fit_record import FitRecord, ProbabilityBins, effective_rows
from hcal.frames import AnyArray, is_on_accelerator
from hcal.maps.base import Map, Prediction, learn_floor, raise_to_floor
from hcal.methods import prior
from hcal.methods.parameters import TakesScores, check_params
from hcal.metrics.scores import score_probs
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray, softmax
from hcal.rows import ClassNames, OneColumn, Rows, refuse_beside_rows
from hcal.text import JsonObject

__all__ = ["CalibrationWarning", "Calibrator", "Fitted", "Preserves"]

Preserves = Literal["order", "accuracy", "ranking within segments"] | None

#: Methods with folds replace integer weights by copies of the rows, up to this many rows.
_MOST_COPIES = 200_000
#: A fit warns if the sum of the weights is this many times the number of rows, or the inverse.
_FAR = 5.0
#: Attributes of versions before 0.4, and where their content is now.
_MOVED = {
    "scores_": "fit_.before and fit_.after",
    "info_": "fit_.details, fit_.notes and fit_.frequencies",
    "fitted_on_": "fit_.rows and fit_.fingerprint",
    "class_names_": "fit_.names",
}


class CalibrationWarning(UserWarning):
    """A fit did not converge, made the calibration set worse, or got weights with an unusual sum.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", CalibrationWarning)  # a fit in doubt is an error then
    """


@dataclass(frozen=True)
class Fitted:
    """The result of ``_fit``.

    Attributes
    ----------
    map : Map
        Everything that a prediction needs; its fields go into the saved file.
    converged : bool
    message : str
        The text of the warning if ``converged`` is false.
    details : dict
        Plain values for the user: chosen hyperparameters, iterations.
    notes : tuple of str
        Sentences for the user.
    preserves : {"order", "accuracy", None, "as declared"}
        What this fit preserves, if that differs from the declaration of the class.
    history : dict of lists
        What the training recorded after each epoch.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> Fitted(cal.map_, notes=("one number was learned",)).converged
    True
    """

    map: Map
    converged: bool = True
    message: str = ""
    details: JsonObject = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    preserves: Preserves | Literal["as declared"] = "as declared"
    history: JsonObject = field(default_factory=dict)


class Calibrator(TakesScores, ABC):
    """Base of every calibrator: ``fit(scores, y)``, then ``predict_proba(scores)``.

    Subclasses set ``name``, ``title``, ``promises`` and ``map_types`` and write ``_fit``. The constructor only
    stores its arguments (scikit-learn's rule), all of them keyword-only, ``input`` among them.

    Attributes
    ----------
    input : {"logits", "probs", "log_probs"}
        What the scores of the next fit are; every method takes it.
    prediction_ : Prediction
        The formula of a prediction: the kind of the scores, the map that was learned, and what it preserves.
    fit_ : FitRecord
        What is known about the fit: rows, class frequencies, names, scores before and after, notes.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> isinstance(cal, Calibrator), cal.predict_proba([[0.0, 2.0]]).round(2)
    (True, array([[0.25, 0.75]]))
    """

    name: ClassVar[str]
    title: ClassVar[str]
    #: What every fit of the method preserves; ``preserves`` says what this fit does.
    promises: ClassVar[Preserves] = None
    #: The types of map that a fit may learn, including inner maps; a model file may name no other.
    map_types: ClassVar[tuple[type[Map], ...]] = ()
    #: Variants such as ``h:class_wise``: the word after the colon, and the parameters that it stands for.
    variants: ClassVar[Mapping[str, JsonObject]] = {}
    #: Whether ``_fit`` uses weights; if not, ``sample_weight`` is refused rather than ignored.
    weighted: ClassVar[bool] = False
    #: Whether ``_fit`` splits rows into folds; it then uses ``groups``, and a group stays in one fold.
    grouped: ClassVar[bool] = False
    #: Whether probabilities below all that the calibration set shows are raised to a floor.
    floored: ClassVar[bool] = True

    prediction_: Prediction
    fit_: FitRecord
    #: The module that predicts on a GPU, kept so that a service builds it once; it is no part of the state.
    device_head: object = None

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "device_head"}

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "preserves" in vars(cls):
            raise TypeError(
                f"{cls.__name__} declares 'preserves': since 0.4 a method declares 'promises'"
            )

    @abstractmethod
    def _fit(self, rows: Rows) -> Fitted:
        """Learn from rows of finite float64 logits with labels, and weights and groups where there are any."""

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
    ) -> Self:
        """Learn from the outputs of a trained classifier on held-out rows.

        Parameters
        ----------
        scores : array-like of shape (N, K), or (N,) for a binary score
            Logits, probabilities or log-probabilities, as the parameter ``input`` says. Also, with their labels
            (``y=None``): checked :class:`~hcal.rows.Rows`, files, or what yields blocks of rows. Of more than 300,000
            rows a random sample is fitted, which ``fit_.source_rows`` shows.
        y : array-like of shape (N,)
            Integer labels 0..K−1, or the names that ``classes`` lists.
        sample_weight : array-like of shape (N,), optional
            A weight counts rows: a weight of 7 is the same as seven copies of the row. Everything that depends on the
            number of rows (penalties, priors, the floor) uses the sum of the weights.
        groups : array-like of shape (N,), optional
            Rows of one group depend on each other; methods with held-out rows keep a group together. With files,
            weights and groups are names of columns.
        classes : sequence of K str or int, optional
            Names of the classes in the order of the columns; ``predict`` then returns them. A frame whose columns
            have these names is put in their order. Not needed for a frame whose columns are named like the labels.
        time : array-like of shape (N,), optional
            When each row was made: dates, texts such as ``"2024-05-31"``, or numbers. With files, a column.
        half_life : str, timedelta or float, optional
            A row counts half as much as one that is so much younger: ``"90d"``, with the units s, min, h, d, w and y;
            for times that are numbers, a number.
        """
        self._forget()
        check_params(type(self), self.get_params())
        rows = self._rows_to_fit(scores, y, sample_weight, groups, classes, time)
        rows, age = rows_by_age(self._weighed(rows), half_life)
        if age is not None and not self.weighted:
            raise ValueError(f"{self.name!r} takes no weights, so its rows cannot age")
        fingerprint = leakage.fingerprint(rows.logits())
        rows = by_content(rows)
        if self.grouped:
            rows = as_copies(rows)

        floor = self._floor_of(rows)
        fitted = self._fit(self._prepared(rows, floor))
        fitted = in_names_of_classes(fitted, rows.names)
        preserves = fitted.preserves
        self.prediction_ = Prediction(
            map=fitted.map,
            kind=rows.kind,
            preserves=self.promises if preserves == "as declared" else preserves,
            floor=floor,
            prior=None,
            states_zero=self.states_zero(None),
        )
        try:
            record = self._record(rows, fitted, fingerprint)
            self.fit_ = record.with_age(age, has_times=rows.time is not None)
        except BaseException:
            self._forget()
            raise
        self._warn(fitted)
        return self

    def predict_proba(self, scores: AnyArray) -> AnyArray:
        """Return calibrated probabilities in the array library, device and float width of the input.

        Parameters
        ----------
        scores : array-like of shape (N, K), or (N,) for a binary score
            Columns that have names are put in the order of the fit by name.

        Returns
        -------
        array of shape (N, K)
            The columns in the order of ``classes_``.
        """
        if not isinstance(scores, np.ndarray) and is_on_accelerator(scores):
            from hcal.integrations.torch import predict_on_device

            return predict_on_device(self, scores)
        rows = Rows.of_scores(scores, input=self.prediction_.kind, like=self.fit_)
        return rows.restored(self.prediction_.in_blocks(rows.scores))

    def probs_of(self, rows: Rows) -> FloatArray:
        """Return probabilities (N, K) of checked rows, as :meth:`rows_like` returns them."""
        return self.prediction_.in_blocks(rows.scores, once=True)

    @classmethod
    def states_zero(cls, log_ratio: Float64 | None) -> bool:
        """Return whether a probability may be 0: only where :meth:`with_prior` says that a class does not occur."""
        return not cls.floored or (log_ratio is not None and bool(np.isneginf(log_ratio).any()))

    def predict(self, scores: AnyArray) -> NumpyArray:
        """Return the most probable class of each row, by name if the fit was given names.

        Parameters
        ----------
        scores : array-like of shape (N, K)

        Returns
        -------
        array of shape (N,)
        """
        probs = self.prediction_.in_blocks(self.rows_like(scores).scores)
        return np.asarray(self.classes_[probs.argmax(axis=1)])

    def score(self, scores: AnyArray, y: AnyArray, sample_weight: AnyArray = None) -> float:
        """Return the negative NLL, since accuracy could not tell most calibrators apart.

        Parameters
        ----------
        scores : array-like of shape (N, K)
        y : array-like of shape (N,)
        """
        from hcal.metrics import nll

        rows = self.rows_like(scores, y, weight=sample_weight)
        return -nll(self.probs_of(rows), rows.labels, sample_weight=rows.weight)

    def rows_like(
        self, scores: AnyArray, y: AnyArray = None, *, complete: bool = True, **others: AnyArray
    ) -> Rows:
        """Return checked rows whose columns are in the order of the fit, of the kind that was fitted.

        ``scores`` may be rows that were checked before, with all that belongs to them. ``others`` are
        ``weight``, ``groups``, ``by``, ``ids`` and ``start`` of :meth:`hcal.rows.Rows.of`.
        """
        kind = self.prediction_.kind
        if isinstance(scores, Rows):
            refuse_beside_rows({"y": y, **others})
            return scores.in_order_of(self.fit_, kind)
        return Rows.of(scores, y, input=kind, like=self.fit_, complete=complete, **others)

    def with_prior(self, frequencies: prior.Frequencies) -> Self:
        """Return this calibrator for other class frequencies than those of the calibration set.

        Parameters
        ----------
        frequencies : array-like of shape (K,), or dict or pandas Series by the names of the classes
            How often each class occurs where predictions are made; they are normalised.

        Returns
        -------
        Calibrator
            A new fitted calibrator, which saves, loads and exports like any other. The argmax may change. Its record
            has no scores before and after: those of the fit belong to the old frequencies.

        Examples
        --------
        >>> from hcal import make_calibrator
        >>> cal = make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
        >>> cal.with_prior([0.5, 0.5]).predict_proba([[0.0, 2.0]]).round(2)
        array([[0.5, 0.5]])
        """
        old = self.fit_.frequencies
        new = prior.check_frequencies(frequencies, old.size, self.fit_.names)
        return self._with_prior(new, prior.log_ratio(new, old, self.fit_.names))

    def with_prior_from(self, scores: AnyArray) -> Self:
        """Return this calibrator for the class frequencies of unlabelled rows, learned by EM.

        The frequencies of the fit count as much as 30 more rows: one row hardly moves them, a thousand rows do. New
        rows that no class frequencies can explain (P ≤ 1 %, with up to 100 classes) raise a
        :class:`hcal.CalibrationWarning`, because the estimate is then wrong.

        Saerens, Latinne, Decaestecker: Adjusting the Outputs of a Classifier to New a Priori Probabilities,
        Neural Computation 2002.

        Parameters
        ----------
        scores : array-like of shape (N, K)
            Scores of the new rows, of the kind of the fit. Only the class frequencies may differ from the calibration
            set; P(scores | class) must be the same.

        Returns
        -------
        Calibrator
            As from :meth:`with_prior`; ``fit_.prior`` holds the estimated frequencies.
        """
        if self.fit_.from_folds:
            raise ValueError(
                "this calibrator was learned on models of folds, and another model gives the "
                "scores, so new scores cannot be compared with those of the fit: fit "
                "CalibratedClassifier with ensemble=True or cv='prefit', or pass the frequencies "
                "to with_prior"
            )
        return self._with_prior_of(self.rows_like(scores))

    def _with_prior_of(self, rows: Rows) -> Self:
        """Return this calibrator for the class frequencies of rows."""
        old = self.fit_.frequencies
        probs = self._with_prior(old, None).probs_of(rows).astype(np.float64)
        bins = self.fit_.bins
        # Some methods state other frequencies on the rows of their own fit: new ones are compared with those.
        stated = old if bins is None else np.where(old > 0, bins.frequencies, 0.0)
        stated = stated / stated.sum()
        ratio = prior.frequency_ratio(probs, stated)
        new = old * ratio / (old @ ratio)
        # Nothing can be learned about a class without calibration rows: its probability is not changed.
        log_ratio = np.where(old > 0, prior.log_ratio(new, old), 0.0)
        moved = self._with_prior(new, log_ratio)
        p_value = 1.0 if bins is None else bins.p_value(probs, ratio)
        if p_value <= prior.UNEXPLAINED_LEVEL:
            words = (
                f"no class frequencies explain the new scores (p = {p_value:.2g}): more has "
                "changed than how often each class occurs, so the estimated frequencies may be "
                "far off"
            )
            moved.fit_ = replace(moved.fit_, notes=(words,))
            warnings.warn(f"{self.name}: {words}", CalibrationWarning, stacklevel=3)
        return moved

    def remember_source(self, request: JsonObject, file: str, part: str, sha256: str) -> None:
        """Note in the record of the fit how its rows were read, and from which file."""
        self.fit_ = replace(self.fit_, request=request, file=file, part=part, sha256=sha256)

    # -- what was learned -------------------------------------------------------------------------

    @property
    def map_(self) -> Map:
        """What was learned: an object of arrays that turns logits into log-probabilities."""
        return self.prediction_.map

    @property
    def preserves(self) -> Preserves:
        """What a prediction preserves; before the fit, what every fit of the method does."""
        return self._preserved()

    def _preserved(self) -> Preserves:
        if "prediction_" not in vars(self):
            return self.promises
        return self.prediction_.preserves  # type: ignore[return-value]

    @property
    def n_classes_(self) -> int:
        """The number K of classes."""
        return self.fit_.n_classes

    @property
    def classes_(self) -> NumpyArray:
        """The names of the classes in the order of the columns, or 0..K−1 if the fit was given none."""
        names = self.fit_.names
        return np.arange(self.n_classes_) if names is None else np.array(names)

    @property
    def converged_(self) -> bool:
        """Whether the fit converged."""
        return self.fit_.converged

    if not TYPE_CHECKING:  # otherwise a type checker would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if name in _MOVED:
                raise AttributeError(
                    f"{type(self).__name__} has no {name}: since 0.4 see {_MOVED[name]}"
                )
            super().__getattr__(name)

    def types_of_maps(self) -> tuple[type[Map], ...]:
        """The types of map that a fit with these parameters may learn."""
        return self.map_types

    # -- machinery --------------------------------------------------------------------------------

    def _rows_to_fit(
        self,
        scores: AnyArray,
        y: AnyArray,
        weight: AnyArray,
        groups: AnyArray,
        classes: Iterable[ClassName] | None,
        time: AnyArray,
    ) -> Rows:
        """Return the checked rows of a fit."""
        beside = {"weight": weight, "groups": groups, "classes": classes, "time": time}
        if isinstance(scores, Rows):
            refuse_beside_rows({"y": y, **beside})
        elif is_no_array(scores, y):
            scores = self._sampled(scores, y, **beside)
        if not isinstance(scores, Rows):
            return Rows.of(scores, y, input=self.input, **beside)
        if scores.kind != self.input:
            raise ValueError(
                f"the rows hold {scores.kind}, but the calibrator takes input={self.input!r}"
            )
        OneColumn().update(scores).check(None)  # a block alone did not show its kind
        return scores

    def _weighed(self, rows: Rows) -> Rows:
        """Check the weights of a fit, and return its rows without those of weight 0."""
        if rows.weight is not None:
            self._check_weight(rows.weight)
            if not rows.weight.all():
                rows = rows[rows.weight > 0]
        return rows

    def _sampled(self, source: AnyArray, y: AnyArray, **beside: AnyArray) -> Rows:
        """Return the rows to fit on from files, from blocks of rows or from Dask collections.

        ``beside`` are fields of :class:`hcal.io.doors.RowInfo`.
        """
        # A fit of arrays needs none of what reads files.
        from hcal.io.doors import RowInfo, rows_to_fit

        return rows_to_fit(source, y, RowInfo(**beside), self.input)

    def _check_weight(self, weight: Float64) -> None:
        if not self.weighted:
            raise ValueError(f"{self.name!r} does not support sample_weight")
        total = float(weight.sum())
        n_rows = int(np.count_nonzero(weight))
        if not n_rows / _FAR <= total <= n_rows * _FAR:
            words = (
                f"{self.name}: sample_weight sums to {total:.4g} over {n_rows} rows; a weight "
                "counts rows (2 is the row twice), so the fit takes the data for that many: pass "
                "sample_weight * (len(sample_weight) / sample_weight.sum()) "
                "if only their ratios matter"
            )
            warnings.warn(words, CalibrationWarning, stacklevel=4)

    def _floor_of(self, rows: Rows) -> Float64 | None:
        if not self.floored or rows.kind == "logits":
            return None
        return learn_floor(rows.logits(), rows.weight)

    def _prepared(self, rows: Rows, floor: Float64 | None) -> Rows:
        """Return the rows as ``_fit`` takes them: float64 logits, raised to the floor."""
        x = rows.logits().astype(np.float64, copy=False)
        if floor is not None:
            x = raise_to_floor(x, floor)
        groups = rows.groups if self.grouped else None
        return replace(rows, scores=x, kind="logits", groups=groups)

    def _record(self, rows: Rows, fitted: Fitted, fingerprint: leakage.Fingerprint) -> FitRecord:
        """Return what is known about the fit, with the scores before and after on its rows."""
        mass = np.bincount(rows.labels, weights=rows.weight, minlength=rows.n_classes)
        before = softmax(rows.logits())
        after = self._probs_of_fit(rows)
        independent_rows = effective_rows(rows)
        return FitRecord(
            rows=len(rows),
            weight=rows.total,
            frequencies=mass / mass.sum(),
            before=score_probs(before, rows.y, rows.weight),
            after=score_probs(after, rows.y, rows.weight),
            converged=fitted.converged,
            names=rows.names,
            columns=rows.columns,
            score_range=rows.score_range,
            notes=fitted.notes,
            details=fitted.details,
            history=fitted.history,
            source_rows=rows.source_rows or len(rows),
            effective_rows=independent_rows,
            bins=ProbabilityBins.of(after, rows.weight, independent_rows),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            fingerprint=fingerprint,
        )

    def _probs_of_fit(self, rows: Rows) -> FloatArray:
        """Return probabilities (N, K) of the rows of the fit, before its record exists."""
        return self.prediction_.in_blocks(rows.scores, once=True)

    def _with_prior(self, new: Float64, log_ratio: Float64 | None) -> Self:
        """Return a fitted copy that multiplies the map's probabilities by e^log_ratio instead of this one's factors."""
        other = self.clone()
        preserves = self.prediction_.preserves if log_ratio is None else None
        other.prediction_ = replace(
            self.prediction_,
            prior=log_ratio,
            preserves=preserves,
            states_zero=self.states_zero(log_ratio),
        )
        other.fit_ = self.fit_.with_prior(new)
        return other

    def _forget(self) -> None:
        """Delete all learned attributes, so that a failed fit does not leave an object that predicts."""
        for name in [n for n in vars(self) if n.endswith("_") and not n.startswith("_")]:
            delattr(self, name)

    def _warn(self, fitted: Fitted) -> None:
        if not fitted.converged:
            words = f"{self.name}: {fitted.message or 'did not converge'}"
            warnings.warn(words, CalibrationWarning, stacklevel=3)
        if self.fit_.before is None or self.fit_.after is None:
            return
        before = self.fit_.before["nll"]
        after = self.fit_.after["nll"]
        if after > before * (1 + 1e-6) + 1e-12:
            words = (
                f"{self.name}: NLL on the calibration set rose from {before:.6g} to {after:.6g}; "
                "the calibrator left it worse than before"
            )
            warnings.warn(words, CalibrationWarning, stacklevel=3)


def in_names_of_classes(fitted: Fitted, names: ClassNames | None) -> Fitted:
    """Return the same with the user's class names in the message and the notes."""
    notes = tuple(with_names(words, names) for words in fitted.notes)
    return replace(fitted, message=with_names(fitted.message, names), notes=notes)


def rows_by_age(rows: Rows, half_life: HalfLifeLike | None) -> tuple[Rows, Aged | None]:
    """Return the rows with less weight where they are older, and what to remember of it."""
    if half_life is None:
        return rows, None
    if rows.time is None:
        raise ValueError("half_life needs the time of each row: pass time= (--time)")
    by_age, facts = aged(rows.time, half_life)
    return replace(rows, weight=by_age * rows.weights), facts


@np.errstate(over="ignore")  # an infinite key sorts as well as any other
def by_content(rows: Rows) -> Rows:
    """Return the rows in an order that does not depend on the order in which they were given.

    Rows are sorted by how far the label, and then the other classes, are below the top score. A constant added to a row
    does not matter, nor does the numbering of the classes.

    >>> x = np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 3.0]])
    >>> rows = Rows.of(x, [1, 0, 0], input="logits")
    >>> by_content(rows).y, by_content(rows[::-1]).y
    (array([0, 1, 0]), array([0, 1, 0]))
    """
    x = rows.logits()
    y = rows.labels
    top = x.max(axis=1)
    gap_to_label = top - x[np.arange(len(y)), y]
    gap_to_least = top - x.min(axis=1)
    gap_to_mean = top - x.mean(axis=1)
    # Rounding moves a gap by far less than this grid.
    unit = float(np.median(gap_to_least)) * 2.0**-30 or 1.0
    keys = [np.rint(gap / unit) for gap in (gap_to_mean, gap_to_least, gap_to_label)]
    order = np.lexsort(keys)

    same = np.all([key[order[1:]] == key[order[:-1]] for key in keys], axis=0)
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if tied.size:  # usually few rows, which are sorted by all of their scores
        rank = class_ranks(x, y, rows.weight)
        tied_rows = order[tied]
        depth = top[tied_rows, None] - x[tied_rows][:, np.argsort(rank)]
        scores = np.rint(depth / unit)
        all_keys = [*scores.T, rank[y[tied_rows]]]
        all_keys += [key[tied_rows] for key in keys]
        order[tied] = tied_rows[np.lexsort(all_keys)]
    return rows[order]


def class_ranks(x: FloatArray, y: IntArray, weight: Float64 | None) -> IntArray:
    """Return a rank (K,) of every class that depends on its rows and not on its number, unless two have equal rows.

    >>> class_ranks(np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 3.0]]), np.array([1, 0, 1]), None)
    array([0, 1])
    """
    mass = np.ones(len(y)) if weight is None else weight / weight.max()
    below = x - x.max(axis=1, keepdims=True)
    exponentials = mass @ np.exp(below)
    counts = np.bincount(y, weights=mass, minlength=x.shape[1])
    keys = [_on_grid(sums) for sums in (exponentials, mass @ below, counts)]
    ranks = np.empty(x.shape[1], dtype=np.int64)
    ranks[np.lexsort(keys)] = np.arange(len(ranks))
    return ranks


def as_copies(rows: Rows) -> Rows:
    """Replace integer weights by copies of the rows, so that the copies of a row can go to different folds."""
    weight = rows.weight
    if weight is None or weight.sum() > _MOST_COPIES or (weight != np.rint(weight)).any():
        return rows
    copies = np.repeat(np.arange(len(rows)), weight.astype(np.int64))
    return replace(rows[copies], weight=None)


def _on_grid(sums: NumpyArray) -> NumpyArray:
    unit = float(np.abs(sums).max()) * 2.0**-30 or 1.0
    return np.rint(sums / unit)


def is_no_array(scores: AnyArray, y: AnyArray) -> bool:
    """Whether rows come from files, in blocks or from Dask, or have no labels."""
    return (y is None and not isinstance(scores, Rows)) or hasattr(scores, "__dask_graph__")
