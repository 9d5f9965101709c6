"""The base class of all calibrators.

A method is one file in this folder with one subclass of :class:`Calibrator`. It defines one function, ``_fit``, which
learns a :class:`hcal.maps.base.Map` from checked logits and labels. Input checks, array libraries, warnings, scores
before and after, class frequencies and keeping the argmax are done here and in :mod:`hcal.maps.prediction`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hcal import inputs, leakage
from hcal.class_names import ClassName, encode, names_of_fit, with_names
from hcal.maps.base import Map
from hcal.maps.prediction import Prediction, learn_floor, raise_to_floor
from hcal.methods import prior
from hcal.methods.parameters import TakesScores, check_params
from hcal.metrics.scores import Scores, score_probs
from hcal.numerics import Float64, FloatArray, IntArray, softmax

__all__ = ["CalibrationWarning", "Calibrator", "Fitted", "Preserves"]

Preserves = Literal["order", "accuracy"] | None
_Names = tuple[ClassName, ...] | None
#: Scores, labels, weights and groups.
_Rows = tuple[FloatArray, IntArray, Float64 | None, IntArray | None]

#: A fit with more scores than this predicts its own rows by the compiled kernel; for fewer, loading it takes longer.
_MANY_SCORES = 1_000_000
#: Methods with folds replace integer weights by copies of the rows, up to this many rows.
_MOST_COPIES = 200_000
#: A fit warns if the sum of the weights is this many times the number of rows, or the inverse.
_FAR = 5.0
#: Entries of ``info_`` about predictions, which are no longer true after ``with_prior``.
_OF_PREDICTIONS = {"notes", "changed_predictions", "threshold"}


class CalibrationWarning(UserWarning):
    """A fit did not converge, made the calibration set worse, or got weights with an unusual sum."""


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
    info : dict
        JSON-able facts for the user: chosen hyperparameters, iterations, notes.
    preserves : {"order", "accuracy", None, "as declared"}
        What this fit preserves, if that differs from the declaration of the class.
    """

    map: Map
    converged: bool = True
    message: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    preserves: Preserves | Literal["as declared"] = "as declared"


class Calibrator(TakesScores, ABC):
    """Base of every calibrator: ``fit(logits, y)``, then ``predict_proba(logits)``.

    Subclasses set ``name``, ``title``, ``preserves`` and ``map_types`` and write ``_fit``. The constructor only
    stores its arguments (scikit-learn's rule), all of them keyword-only, ``input`` among them.

    Attributes
    ----------
    input : {"logits", "probs", "log_probs"}
        What the scores are, in ``fit`` and in ``predict_proba``; every method takes it.
    map_ : Map
        What was learned: an object of arrays that turns logits into log-probabilities.
    n_classes_ : int
    classes_ : array of shape (K,)
    converged_ : bool
    scores_ : dict
        ``{"before": {...}, "after": {...}}`` on the calibration set.
    info_ : dict
    """

    name: ClassVar[str]
    title: ClassVar[str]
    preserves: Preserves = None
    #: The types of map that a fit may learn, including inner maps; a model file may name no other.
    map_types: ClassVar[tuple[type[Map], ...]] = ()
    #: Variants such as ``h:class_wise``: the word after the colon, and the parameters that it stands for.
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Whether ``_fit`` uses weights; if not, ``sample_weight`` is refused rather than ignored.
    weighted: ClassVar[bool] = False
    #: Whether ``_fit`` splits rows into folds; it then uses ``groups``, and a group stays in one fold.
    grouped: ClassVar[bool] = False
    #: Whether probabilities below all that the calibration set shows are raised to a floor.
    floored: ClassVar[bool] = True

    map_: Map
    prediction_: Prediction
    n_classes_: int
    class_names_: _Names = None
    converged_: bool
    info_: dict[str, Any]
    scores_: dict[str, Scores]
    fitted_on_: dict[str, NDArray[Any]]

    @abstractmethod
    def _fit(
        self, x: Float64, y: IntArray, weight: Float64 | None, groups: IntArray | None
    ) -> Fitted:
        """Learn from finite float64 logits (N, K), labels (N,), and weights and groups (N,) or None."""

    # -- public -----------------------------------------------------------------------------------

    def fit(
        self,
        logits: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        classes: Any = None,
    ) -> Self:
        """Learn from the outputs of a trained classifier on held-out rows.

        Parameters
        ----------
        logits : array-like of shape (N, K), or (N,) for a binary score
            Logits, probabilities or log-probabilities, as the parameter ``input`` says.
        y : array-like of shape (N,)
            Integer labels 0..K−1, or the names that ``classes`` lists.
        sample_weight : array-like of shape (N,), optional
            A weight counts rows: a weight of 7 is the same as seven copies of the row. Everything that depends on the
            number of rows (penalties, priors, the floor) uses the sum of the weights.
        groups : array-like of shape (N,), optional
            Rows of one group depend on each other; methods with held-out rows keep a group together.
        classes : sequence of K str or int, optional
            Names of the classes in the order of the columns; ``predict`` then returns them. Not needed for a DataFrame
            whose columns are named like the labels.
        """
        self._forget()
        check_params(type(self), self.get_params())
        x, origin = inputs.check_logits(logits, input=self.input)
        names = names_of_fit(classes, y, origin.columns, x.shape[1])
        labels = inputs.check_labels(encode(y, names), *x.shape)
        weight = self._check_weight(sample_weight, len(x))
        members = inputs.check_groups(groups, len(x))
        fitted_on = leakage.fingerprint(x)
        x, labels, weight, members = by_content(x, labels, weight, members)
        if self.grouped and weight is not None:
            x, labels, weight, members = as_copies(x, labels, weight, members)
        floor = learn_floor(x, weight) if self.floored and self.input != "logits" else None
        inner = x.astype(np.float64, copy=False)
        fitted = self._fit(
            inner if floor is None else raise_to_floor(inner, floor),
            labels,
            weight,
            members if self.grouped else None,
        )
        mass = np.bincount(labels, weights=weight, minlength=x.shape[1])
        fitted = named(
            replace(fitted, info=fitted.info | {"class_frequencies": (mass / mass.sum()).tolist()}),
            names,
        )
        self._remember(fitted, x.shape[1], names, floor=floor)
        self.fitted_on_ = fitted_on
        try:
            given = (
                np.exp(x) if self.input == "probs" else x
            )  # scores from which x can be computed again
            after = self.prediction_.in_blocks(given, kernel=x.size > _MANY_SCORES)
            both = {"before": softmax(x), "after": after}
            self.scores_ = {
                when: score_probs(probs, labels, weight) for when, probs in both.items()
            }
        except BaseException:
            self._forget()
            raise
        self._warn(fitted)
        return self

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities in the array library, device and float width of the input.

        Parameters
        ----------
        logits : array-like of shape (N, K), or (N,) for a binary score

        Returns
        -------
        array of shape (N, K)
        """
        if inputs.is_on_accelerator(logits):
            from hcal.integrations.torch import predict_on_device

            return predict_on_device(self, logits)
        scores, origin = inputs.check_scores(logits, input=self.input, n_classes=self.n_classes_)
        return inputs.restore(self.prediction_.in_blocks(scores), origin, self.class_names_)

    def predict(self, logits: Any) -> NDArray[Any]:
        """Return the most probable class of each row, by name if the fit was given names.

        Parameters
        ----------
        logits : array-like of shape (N, K)

        Returns
        -------
        array of shape (N,)
        """
        scores, _ = inputs.check_scores(logits, input=self.input, n_classes=self.n_classes_)
        return np.asarray(self.classes_[self.prediction_.in_blocks(scores).argmax(axis=1)])

    def score(self, logits: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the negative NLL, since accuracy could not tell most calibrators apart.

        Parameters
        ----------
        logits : array-like of shape (N, K)
        y : array-like of shape (N,)
        """
        from hcal.metrics import nll

        return -nll(
            self.predict_proba(logits), encode(y, self.class_names_), sample_weight=sample_weight
        )

    def with_prior(self, frequencies: Any) -> Self:
        """Return this calibrator for other class frequencies than those of the calibration set.

        Parameters
        ----------
        frequencies : array-like of shape (K,)
            How often each class occurs where predictions are made; they are normalised.

        Returns
        -------
        Calibrator
            A new fitted calibrator, which saves, loads and exports like any other. The argmax may change.

        Examples
        --------
        >>> from hcal import make_calibrator
        >>> cal = make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
        >>> cal.with_prior([0.5, 0.5]).predict_proba([[0.0, 2.0]]).round(2)
        array([[0.5, 0.5]])
        """
        old = np.asarray(self.info_["class_frequencies"])
        new = prior.check_frequencies(frequencies, old.size)
        return self._with_prior(new, prior.log_ratio(new, old, self.class_names_))

    def with_prior_from(self, scores: Any) -> Self:
        """Return this calibrator for the class frequencies of unlabelled rows, learned by EM.

        Saerens, Latinne, Decaestecker: Adjusting the Outputs of a Classifier to New a Priori Probabilities,
        Neural Computation 2002.

        Parameters
        ----------
        scores : array-like of shape (N, K)
            Scores of the new rows, of the kind ``input``. Only the class frequencies may differ from the calibration
            set; P(scores | class) must be the same.

        Returns
        -------
        Calibrator
            As from :meth:`with_prior`; ``info_["prior"]`` holds the frequencies found.
        """
        old = np.asarray(self.info_["class_frequencies"])
        checked, _ = inputs.check_scores(scores, input=self.input, n_classes=self.n_classes_)
        probs = self._with_prior(old, None).prediction_.in_blocks(checked).astype(np.float64)
        new = prior.estimate_frequencies(probs, old)
        # Nothing can be learned about a class without calibration rows: its probability is not changed.
        return self._with_prior(new, np.where(old > 0, prior.log_ratio(new, old), 0.0))

    @property
    def classes_(self) -> NDArray[Any]:
        """The names of the classes in the order of the columns, or 0..K−1 if the fit was given none."""
        return (
            np.arange(self.n_classes_) if self.class_names_ is None else np.array(self.class_names_)
        )

    # -- machinery --------------------------------------------------------------------------------

    def _check_weight(self, sample_weight: Any, n_rows: int) -> Float64 | None:
        weight = inputs.check_weight(sample_weight, n_rows)
        if weight is None:
            return None
        if not self.weighted:
            raise ValueError(f"{self.name!r} does not support sample_weight")
        total, rows = float(weight.sum()), int(np.count_nonzero(weight))
        if not rows / _FAR <= total <= rows * _FAR:
            words = (
                f"{self.name}: sample_weight sums to {total:.4g} over {rows} rows; a weight counts rows (2 is the "
                "row twice), so the fit takes the data for that many: pass "
                "sample_weight * (len(sample_weight) / sample_weight.sum()) if only their ratios matter"
            )
            warnings.warn(words, CalibrationWarning, stacklevel=3)
        return weight

    def _remember(
        self,
        fitted: Fitted,
        n_classes: int,
        names: _Names,
        floor: Float64 | None = None,
        ratio: Float64 | None = None,
    ) -> None:
        """Set the attributes of a fitted calibrator from a fit or a file."""
        if fitted.preserves != "as declared":
            self.preserves = fitted.preserves
        if ratio is not None:
            self.preserves = None
        self.map_ = fitted.map
        self.prediction_ = Prediction(
            map=fitted.map, kind=self.input, preserves=self.preserves, floor=floor, prior=ratio
        )
        self.n_classes_ = n_classes
        self.class_names_ = names
        self.converged_ = fitted.converged
        self.info_ = fitted.info

    def _with_prior(self, new: Float64, log_ratio: Float64 | None) -> Self:
        """Return a fitted copy that multiplies the map's probabilities by e^log_ratio instead of this one's factors."""
        other = self.clone()
        info = {key: told for key, told in self.info_.items() if key not in _OF_PREDICTIONS}
        fitted = Fitted(
            self.map_, self.converged_, "", info | {"prior": new.tolist()}, self.preserves
        )
        other._remember(
            fitted,
            self.n_classes_,
            self.class_names_,
            floor=self.prediction_.floor,
            ratio=log_ratio,
        )
        other.scores_, other.fitted_on_ = self.scores_, self.fitted_on_
        return other

    def _forget(self) -> None:
        """Delete all learned attributes, so that a failed fit does not leave an object that predicts."""
        learned = [n for n in vars(self) if n.endswith("_") and not n.startswith("_")]
        for name in [*learned, *({"preserves"} & set(vars(self)))]:
            delattr(self, name)

    def _warn(self, fitted: Fitted) -> None:
        if not fitted.converged:
            warnings.warn(
                f"{self.name}: {fitted.message or 'did not converge'}",
                CalibrationWarning,
                stacklevel=3,
            )
        before, after = self.scores_["before"]["nll"], self.scores_["after"]["nll"]
        if after > before * (1 + 1e-6) + 1e-12:
            words = f"{self.name}: NLL on the calibration set rose from {before:.6g} to {after:.6g}"
            warnings.warn(
                f"{words}; the calibrator left it worse than before",
                CalibrationWarning,
                stacklevel=3,
            )


def named(fitted: Fitted, names: _Names) -> Fitted:
    """Return the same with the user's class names in the message and the notes."""
    told = {
        key: [with_names(words, names) for words in fitted.info[key]]
        for key in {"notes"} & set(fitted.info)
    }
    return replace(fitted, message=with_names(fitted.message, names), info=fitted.info | told)


@np.errstate(over="ignore")  # an infinite key sorts as well as any other
def by_content(
    x: FloatArray, y: IntArray, weight: Float64 | None, groups: IntArray | None
) -> _Rows:
    """Return the rows with positive weight, in an order that does not depend on the order in which they were given.

    Rows are sorted by how far the label, and then the other classes, are below the top score. A constant added to a row
    does not matter, nor does the numbering of the classes.

    >>> x, y = np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 3.0]]), np.array([1, 0, 0])
    >>> by_content(x, y, None, None)[1], by_content(x[::-1], y[::-1], None, None)[1]
    (array([0, 1, 0]), array([0, 1, 0]))
    """
    if weight is not None and not weight.all():
        x, y, weight, groups = _taken(weight > 0, x, y, weight, groups)
    top = x.max(axis=1)
    gaps = (top - x[np.arange(len(y)), y], top - x.min(axis=1), top - x.mean(axis=1))
    unit = (
        float(np.median(gaps[1])) * 2.0**-30 or 1.0
    )  # rounding moves a gap by far less than this grid
    keys = [np.rint(gap / unit) for gap in gaps[::-1]]
    order = np.lexsort(keys)
    same = np.all([key[order[1:]] == key[order[:-1]] for key in keys], axis=0)
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if tied.size:  # usually few rows, which are sorted by all of their scores
        rank = class_ranks(x, y, weight)
        rows = order[tied]
        scores = np.rint((top[rows, None] - x[rows][:, np.argsort(rank)]) / unit)
        order[tied] = rows[np.lexsort((*scores.T, rank[y[rows]], *(key[rows] for key in keys)))]
    return _taken(order, x, y, weight, groups)


def _taken(
    index: NDArray[Any], x: FloatArray, y: IntArray, weight: Float64 | None, groups: IntArray | None
) -> _Rows:
    return (
        x[index],
        y[index],
        None if weight is None else weight[index],
        None if groups is None else groups[index],
    )


def class_ranks(x: FloatArray, y: IntArray, weight: Float64 | None) -> IntArray:
    """Return a rank (K,) of every class that depends on its rows and not on its number, unless two have equal rows.

    >>> class_ranks(np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 3.0]]), np.array([1, 0, 1]), None)
    array([0, 1])
    """
    mass = np.ones(len(y)) if weight is None else weight / weight.max()
    below = x - x.max(axis=1, keepdims=True)
    sums = mass @ np.exp(below), mass @ below, np.bincount(y, weights=mass, minlength=x.shape[1])
    keys = (np.rint(v / (np.abs(v).max() * 2.0**-30 or 1.0)) for v in sums)
    ranks = np.empty(x.shape[1], dtype=np.int64)
    ranks[np.lexsort(tuple(keys))] = np.arange(len(ranks))
    return ranks


def as_copies(x: FloatArray, y: IntArray, weight: Float64, groups: IntArray | None) -> _Rows:
    """Replace integer weights by copies of the rows, so that the copies of a row can go to different folds.

    >>> as_copies(np.array([[0.0, 2.0], [1.0, 0.0]]), np.array([1, 0]), np.array([2.0, 1.0]), None)[1]
    array([1, 1, 0])
    """
    if weight.sum() > _MOST_COPIES or (weight != np.rint(weight)).any():
        return x, y, weight, groups
    return _taken(np.repeat(np.arange(len(y)), weight.astype(np.int64)), x, y, None, groups)
