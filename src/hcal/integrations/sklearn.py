"""scikit-learn: calibrate any classifier, cross-validated or already fitted.

A map is always learned on rows that the classifier did not see. By default, every fold gives a classifier and the
calibrator of its held-out scores, and their probabilities are averaged, as in scikit-learn. With ``ensemble=False``,
one calibrator of all held-out scores stands behind one classifier that is fitted on all rows.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.utils import Bunch, _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils._metadata_requests import _routing_enabled
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_method_params, check_is_fitted, column_or_1d

from hcal.class_names import Classifier, check_classes, is_text, missing_labels
from hcal.frames import AnyArray, refuse_lazy, refuse_other_index
from hcal.inputs import check_groups, check_weight
from hcal.integrations._classifier_scores import (
    booster_options,
    class_numbers,
    raw_margins,
    stated_probs,
    unwrap,
)
from hcal.integrations._frequencies import MeanProbs, new_frequencies
from hcal.integrations._scoring import CalibrationDisplay, Scorer
from hcal.methods import make_calibrator
from hcal.methods.base import Calibrator
from hcal.methods.prior import Frequencies, check_frequencies
from hcal.numerics import Float64, FloatArray, IntArray, NumpyArray
from hcal.rows import ClassNames

if TYPE_CHECKING:
    from sklearn.utils import Tags

__all__ = ["CalibratedClassifier", "CalibrationDisplay", "FittedPair", "Scorer", "raw_margins"]

Response = Literal["auto", "decision_function", "predict_proba"]
Ensemble = bool | Literal["auto"]
Split = tuple[IntArray, IntArray]
#: What goes to an estimator's ``fit`` or a splitter's ``split``, by name.
Metadata: TypeAlias = Mapping[str, AnyArray]


class Splitter(Protocol):
    """A cross-validation splitter of scikit-learn."""

    @property
    def split(self) -> Callable[..., Iterable[Split]]:
        """Yield the rows to fit on and the rows to hold out, for each fold."""


CrossValidation: TypeAlias = int | str | Splitter | Iterable[Split] | None

#: The probability, relative to the largest, of a class that a fold did not contain, if the scores are margins.
_FLOOR = float(np.finfo(np.float32).eps)
#: Replaces a probability of 0 before the logarithm; the calibrator raises it to a fitted floor.
_ZERO = float(np.finfo(np.float64).smallest_subnormal)


@dataclass(frozen=True)
class FittedPair:
    """A fitted classifier, and the calibrator of its scores.

    Attributes
    ----------
    estimator : classifier
    calibrator : Calibrator
    """

    estimator: Classifier
    calibrator: Calibrator


@dataclass(frozen=True)
class HeldOut:
    """Scores of rows that a classifier was not fitted on, and what belongs to the rows."""

    scores: FloatArray
    labels: IntArray
    weight: Float64 | None
    groups: IntArray | None


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore
    """Wrap a classifier so that its ``predict_proba`` can be trusted.

    Parameters
    ----------
    estimator : classifier, optional
        Anything with ``decision_function`` or ``predict_proba``; logistic regression if not given. A
        ``FrozenEstimator`` is used as it is, like ``cv="prefit"``.
    method : str or Calibrator, default "pool"
        A registry name (see :func:`hcal.list_calibrators`), or an unfitted calibrator of logits.
    cv : int, "prefit", splitter, iterable or None
        How held-out scores are made, as in scikit-learn. None means 5 stratified folds. ``"prefit"``: the
        estimator is fitted already, and the rows given to ``fit`` must be new to it.
    ensemble : bool or "auto"
        True: each fold gives a classifier and its calibrator, and probabilities are averaged. False: one calibrator of
        all held-out scores, behind one classifier fitted on all rows. "auto": True, except for a fitted estimator.
    response : {"auto", "decision_function", "predict_proba"}
        The output to calibrate; ``auto`` prefers raw scores: ``decision_function``, or the margins of
        LightGBM, XGBoost and CatBoost.
    n_jobs : int, optional
        How many folds are fitted at the same time (joblib).

    Attributes
    ----------
    classes_ : array of shape (K,)
    calibrated_classifiers_ : list of FittedPair
        One for each fold, or a single one.
    estimator_ : classifier
        Of a single pair: fitted on all rows, or the given one.
    calibrator_ : Calibrator
        Of a single pair: fitted on held-out scores.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = CalibratedClassifier(GaussianNB(), method="ts").fit(X, y)
    >>> model.predict_proba(X[:1]).shape, len(model.calibrated_classifiers_)
    ((1, 2), 5)
    """

    calibrated_classifiers_: list[FittedPair]
    classes_: NumpyArray

    def __init__(
        self,
        estimator: Classifier | None = None,
        *,
        method: str | Calibrator = "pool",
        cv: CrossValidation = None,
        ensemble: Ensemble = "auto",
        response: Response = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.ensemble = ensemble
        self.response = response
        self.n_jobs = n_jobs

    def fit(
        self,
        X: AnyArray,
        y: AnyArray,
        sample_weight: AnyArray = None,
        *,
        groups: AnyArray = None,
        **params: AnyArray,
    ) -> Self:
        """Fit the classifiers, unless one is fitted already, and their calibrators.

        Parameters
        ----------
        X : array-like of shape (N, features)
            What the estimator takes: numpy, scipy sparse, pandas, polars, lists.
        y : array-like of shape (N,)
            Labels of any kind, strings too.
        sample_weight : array-like of shape (N,), optional
            Goes to the map, and to the estimator if it takes weights.
        groups : array-like of shape (N,), optional
            Rows of one group depend on each other: a group is held out as a whole.
        **params
            Metadata for the estimator's ``fit`` and the splitter's ``split``, routed as scikit-learn does.
        """
        refuse_other_index(X, {"y": y, "sample_weight": sample_weight, "groups": groups})
        X, y = self._check_targets(X, y)
        weight = check_weight(sample_weight, len(y))
        group = check_groups(groups, len(y))
        estimator = self._base()
        prefit = self._is_prefit(estimator)
        ensemble = self._is_ensemble(prefit)
        routed = self._route(estimator, weight, group, params)

        if prefit:
            check_is_fitted(estimator)
            self.classes_ = np.asarray(estimator.classes_)
            tests = [np.arange(len(y))]
            models = [estimator]
        else:
            self.classes_ = _several_classes(y, weight)
            splits = self._splits(X, y, group, routed.splitter.split)
            tests = [test for _, test in splits]
            trains = [train for train, _ in splits]
            models = self._fitted_on(trains, estimator, X, y, routed.estimator.fit)

        labels = class_numbers(y, self.classes_)
        folds = [
            self._held_out(model, _safe_indexing(X, rows), labels, weight, group, rows)
            for model, rows in zip(models, tests, strict=True)
        ]
        kind = _method_of_scores(models[0], self.response)
        if prefit or ensemble:
            calibrators = [self._calibrated(fold, kind) for fold in folds]
            pairs = list(map(FittedPair, models, calibrators))
        else:
            calibrator = self._calibrated(_joined(folds), kind)
            calibrator.fit_ = replace(calibrator.fit_, from_folds=True)
            final = clone(estimator).fit(X, y, **routed.estimator.fit)
            pairs = [FittedPair(final, calibrator)]

        self.calibrated_classifiers_ = pairs
        self._fitted_pairs = pairs
        self._fitted_response = self.response
        self._held_out_mean = _mean_of(pairs, folds) if prefit or ensemble else None
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(pairs[0].estimator, name):
                setattr(self, name, getattr(pairs[0].estimator, name))
        return self

    def predict_proba(self, X: AnyArray) -> FloatArray:
        """Return calibrated probabilities, columns in the order of ``classes_``.

        Parameters
        ----------
        X : array-like of shape (N, features)

        Returns
        -------
        array of shape (N, K)
        """
        check_is_fitted(self, "calibrated_classifiers_")
        probs: FloatArray = self._probs_of(self.calibrated_classifiers_, X).mean(axis=0)
        return probs

    def predict(self, X: AnyArray) -> NumpyArray:
        """Return the most probable label of each row.

        Parameters
        ----------
        X : array-like of shape (N, features)

        Returns
        -------
        array of shape (N,)
        """
        best = self.predict_proba(X).argmax(axis=1)  # raises if nothing was fitted
        labels: NumpyArray = self.classes_[best]
        return labels

    def with_prior(self, frequencies: Frequencies) -> Self:
        """Return this model for other class frequencies than those of the rows of the fit.

        Parameters
        ----------
        frequencies : array-like of shape (K,), or dict or pandas Series by label
            How often each class of ``classes_`` occurs where predictions are made; they are normalised.
        """
        check_is_fitted(self, "calibrated_classifiers_")
        new = check_frequencies(frequencies, len(self.classes_), self.classes_.tolist())
        moved = copy.copy(self)
        moved.calibrated_classifiers_ = [
            FittedPair(pair.estimator, pair.calibrator.with_prior(new))
            for pair in self._fitted_pairs
        ]
        moved.prior_ = new
        return moved

    def with_prior_from(self, X: AnyArray) -> Self:
        """Return this model for the class frequencies of unlabelled rows.

        The frequencies are those of :meth:`hcal.methods.base.Calibrator.with_prior_from`, as far as the rows prove
        that they changed: rows that look like those of the fit leave them as they are. ``prior_`` holds them.

        Parameters
        ----------
        X : array-like of shape (N, features)
            Independent rows. Only the class frequencies may differ from the rows of the fit.
        """
        check_is_fitted(self, "calibrated_classifiers_")
        if self._held_out_mean is None:
            raise ValueError(
                "the calibrator was learned on models of folds, and another model makes the "
                "predictions, so new rows cannot be compared with those of the fit: fit with "
                "ensemble=True or cv='prefit', or pass the frequencies to with_prior"
            )
        frequencies = [pair.calibrator.fit_.frequencies for pair in self._fitted_pairs]
        probs = self._probs_of(self._fitted_pairs, X).astype(np.float64, copy=False)
        return self.with_prior(new_frequencies(probs, np.array(frequencies), self._held_out_mean))

    @property
    def estimator_(self) -> Classifier:
        """The classifier, if there is a single one."""
        return self._single_pair("estimator_").estimator

    @property
    def calibrator_(self) -> Calibrator:
        """The calibrator, if there is a single one."""
        return self._single_pair("calibrator_").calibrator

    def _single_pair(self, name: str) -> FittedPair:
        pairs = vars(self).get("calibrated_classifiers_", [])
        if len(pairs) == 1:
            pair: FittedPair = pairs[0]
            return pair
        if pairs:
            raise AttributeError(
                f"{name}: this model averages {len(pairs)} classifiers with a calibrator each: see "
                "calibrated_classifiers_, or fit with ensemble=False"
            )
        raise AttributeError(f"{type(self).__name__} has no {name} before fit")

    def get_metadata_routing(self) -> MetadataRouter:
        """Say which metadata goes where: the estimator's ``fit`` and the splitter's ``split``."""
        fit_to_fit = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self._base(), method_mapping=fit_to_fit)
        if hasattr(self.cv, "split"):
            fit_to_split = MethodMapping().add(caller="fit", callee="split")
            router.add(splitter=self.cv, method_mapping=fit_to_split)
        return router

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        base_tags = get_tags(self._base()).input_tags
        tags.input_tags.sparse = base_tags.sparse
        tags.input_tags.allow_nan = base_tags.allow_nan
        return tags

    # -- parts ------------------------------------------------------------------------------------

    def _check_targets(self, X: AnyArray, y: AnyArray) -> tuple[AnyArray, NumpyArray]:
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        refuse_lazy(X, "X")
        refuse_lazy(y, "y")
        name = getattr(y, "name", None) or next(iter(getattr(y, "columns", [])), None)
        column = "y" if name is None else f"the column {name!r} of labels"
        refuse_other_index(X, {"y": y})
        X, y = indexable(X, y)
        if np.size(y) == len(y):
            _refuse_missing(np.ravel(y), column)
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        if type_of_target(y) == "continuous":
            raise ValueError(
                f"Unknown label type: {column} holds fractions, such as {y[y != np.rint(y)][0]}, "
                "which are no classes; hcal does no regression, for that see MAPIE or crepes"
            )
        check_classification_targets(y)
        return X, y

    def _base(self) -> Classifier:
        if self.estimator is not None:
            return self.estimator
        from sklearn.linear_model import LogisticRegression

        default = LogisticRegression()
        if _routing_enabled():
            default.set_fit_request(sample_weight=True)
        classifier: Classifier = default
        return classifier

    def _is_prefit(self, estimator: Classifier) -> bool:
        if isinstance(self.cv, str) and self.cv != "prefit":
            raise ValueError(
                f'cv must be an int, "prefit", a splitter, an iterable or None; got {self.cv!r}'
            )
        return isinstance(self.cv, str) or isinstance(estimator, FrozenEstimator)

    def _is_ensemble(self, prefit: bool) -> bool:
        if not isinstance(self.ensemble, bool | np.bool_) and self.ensemble != "auto":
            raise ValueError(f'ensemble must be True, False or "auto"; got {self.ensemble!r}')
        if self.ensemble == "auto":
            return not prefit
        if self.ensemble and prefit:
            raise ValueError("ensemble=True needs folds, and the estimator is fitted already")
        return bool(self.ensemble)

    def _route(
        self, estimator: Classifier, weight: AnyArray, groups: AnyArray, params: Metadata
    ) -> Bunch:
        if _routing_enabled():
            group_params = {"groups": groups} if hasattr(self.cv, "split") else {}
            routed = process_routing(self, "fit", sample_weight=weight, **group_params, **params)
            routed.setdefault("splitter", Bunch(split={}))
            return routed
        to_fit = dict(params)
        if weight is not None and "sample_weight" in inspect.signature(estimator.fit).parameters:
            to_fit["sample_weight"] = weight
        elif weight is not None and not self._is_prefit(estimator):
            warnings.warn(
                f"{type(estimator).__name__} takes no sample_weight: the weights act on the map "
                "only",
                stacklevel=3,
            )
        return Bunch(estimator=Bunch(fit=to_fit), splitter=Bunch(split={}))

    def _splits(
        self, X: AnyArray, y: AnyArray, groups: IntArray | None, params: Metadata
    ) -> list[Split]:
        cv = self.cv
        if groups is not None:
            params = {"groups": groups, **params}
            if cv is None or isinstance(cv, int | np.integer):
                cv = StratifiedGroupKFold(5 if cv is None else int(cv))
        return list(check_cv(cv, y, classifier=True).split(X, y, **params))

    def _fitted_on(
        self,
        trains: list[IntArray],
        estimator: Classifier,
        X: AnyArray,
        y: AnyArray,
        params: Metadata,
    ) -> list[Classifier]:
        """Return a classifier fitted on the rows of each fold."""
        jobs = (delayed(_fit_one)(clone(estimator), X, y, rows, params) for rows in trains)
        models: list[Classifier] = Parallel(n_jobs=self.n_jobs)(jobs)
        return models

    def _held_out(
        self,
        model: Classifier,
        X: AnyArray,
        labels: IntArray,
        weight: Float64 | None,
        groups: IntArray | None,
        rows: IntArray,
    ) -> HeldOut:
        """Return the scores that a classifier gives to the rows of its fold."""
        return HeldOut(
            self._logits(model, X, self.response),
            labels[rows],
            None if weight is None else weight[rows],
            None if groups is None else groups[rows],
        )

    def _calibrated(self, fold: HeldOut, response: str) -> Calibrator:
        calibrator = self._new_calibrator(response)
        return calibrator.fit(
            fold.scores, fold.labels, fold.weight, groups=fold.groups, classes=self._names()
        )

    def _probs_of(self, pairs: list[FittedPair], X: AnyArray) -> FloatArray:
        """Return the probabilities (F, N, K) of every pair."""
        refuse_lazy(X, "X")
        response = self._fitted_response
        probs = [
            pair.calibrator.predict_proba(self._logits(pair.estimator, X, response))
            for pair in pairs
        ]
        return np.stack(probs)

    def _names(self) -> ClassNames | None:
        """Return the labels as class names for the calibrator if they are text that it can store, else None."""
        if not is_text(self.classes_):
            return None
        with suppress(ValueError):
            return check_classes(self.classes_, len(self.classes_))
        return None

    def _logits(self, estimator: Classifier, X: AnyArray, response: Response) -> FloatArray:
        """Return scores of shape (N, K) in the order of ``classes_``, as logits or log-probabilities."""
        logits: FloatArray
        if _method_of_scores(estimator, response) == "predict_proba":
            logits = np.log(np.maximum(stated_probs(estimator, X), _ZERO))
            absent = _ZERO
        else:
            logits = raw_margins(estimator, X)
            absent = _FLOOR
        classes = np.asarray(estimator.classes_)
        if logits.shape[1] != len(classes):
            raise ValueError(
                f"the estimator gives {logits.shape[1]} scores for {len(classes)} classes; "
                "one-versus-one scores cannot be calibrated (decision_function_shape='ovr' helps)"
            )
        if np.array_equal(classes, self.classes_):
            return logits
        # A class that a fold never saw gets a probability near zero, as a share of the largest.
        lowest = logits.max(axis=1, keepdims=True) + np.log(absent)
        all_classes = np.repeat(lowest, len(self.classes_), axis=1)
        all_classes[:, class_numbers(classes, self.classes_)] = logits
        return all_classes

    def _new_calibrator(self, response: str) -> Calibrator:
        if isinstance(self.method, str):
            calibrator = make_calibrator(self.method)
        else:
            calibrator = clone(self.method)
        if calibrator.input != "logits":
            raise ValueError(
                f'the calibrator must have input="logits", got input={calibrator.input!r}'
            )
        if response == "predict_proba":
            # Of log-probabilities a zero is a small number, not minus infinity.
            calibrator.set_params(input="log_probs")
        return calibrator


def _method_of_scores(estimator: Classifier, response: Response) -> str:
    """Return the name of the method that gives the scores; ``margins`` are a booster's own."""
    if response == "auto" and booster_options(unwrap(estimator)[0]) is not None:
        return "margins"
    names: list[str] = [response]
    if response == "auto":
        names = ["decision_function", "predict_proba"]
    for name in names:
        if hasattr(estimator, name):
            return name
    raise ValueError(
        f"{type(estimator).__name__} has no {' or '.join(names)}: there is nothing to calibrate"
    )


def _fit_one(
    estimator: Classifier, X: AnyArray, y: AnyArray, rows: IntArray, params: Metadata
) -> Classifier:
    own_params = _check_method_params(X, params, indices=rows)
    return estimator.fit(_safe_indexing(X, rows), _safe_indexing(y, rows), **own_params)


def _several_classes(y: NumpyArray, weight: Float64 | None) -> NumpyArray:
    """Return the classes of labels; a single one is refused."""
    present = np.unique(y if weight is None else y[weight > 0])
    if len(present) < 2:
        raise ValueError(
            f"calibration needs rows of more than one class; there are {present.tolist()}"
        )
    return np.unique(y)


def _refuse_missing(labels: NumpyArray, column: str) -> None:
    missing = missing_labels(labels)
    if missing.any():
        raise ValueError(
            f"{column} has no label in {missing.sum():,} of {len(missing):,} rows, first row "
            f"{missing.argmax()}: leave these rows out of X and y (of pandas: X[y.notna()], "
            "y[y.notna()])"
        )


def _joined(folds: list[HeldOut]) -> HeldOut:
    """Return the rows of all folds, as one calibrator takes them."""
    weight = None
    if folds[0].weight is not None:
        weight = np.concatenate([fold.weight for fold in folds if fold.weight is not None])
    groups = None
    if folds[0].groups is not None:
        groups = np.concatenate([fold.groups for fold in folds if fold.groups is not None])
    return HeldOut(
        np.concatenate([fold.scores for fold in folds]),
        np.concatenate([fold.labels for fold in folds]),
        weight,
        groups,
    )


def _mean_of(pairs: list[FittedPair], folds: list[HeldOut]) -> MeanProbs:
    """Return the mean over folds of the probabilities of held-out rows, each by the pair that did not see it."""
    means = [
        MeanProbs.of(pair.calibrator.predict_proba(fold.scores), fold.weight, fold.groups)
        for pair, fold in zip(pairs, folds, strict=True)
    ]
    return MeanProbs(
        np.mean([mean.mean for mean in means], axis=0),
        np.sum([mean.covariance for mean in means], axis=0) / len(means) ** 2,
    )
