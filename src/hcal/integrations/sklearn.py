"""scikit-learn: calibrate any classifier, cross-validated or already fitted.

The map is always learned on rows that the classifier did not see. One map is fitted on the pooled held-out
scores and put behind one classifier fitted on all rows, so that the result has one curve to look at.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import suppress
from typing import Any, Literal, Self

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch, _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils._metadata_requests import _routing_enabled
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_method_params, check_is_fitted, column_or_1d

from hcal.class_names import check_classes, is_text, missing_labels
from hcal.inputs import check_groups, check_weight
from hcal.integrations._scoring import CalibrationDisplay, Scorer, encode
from hcal.methods import make_calibrator
from hcal.methods.base import Calibrator
from hcal.numerics import FloatArray, IntArray

__all__ = ["CalibratedClassifier", "CalibrationDisplay", "Scorer", "raw_margins"]

Response = Literal["auto", "decision_function", "predict_proba"]
Split = tuple[IntArray, IntArray]

#: The probability, relative to the largest, of a class that a fold did not contain, if the scores are margins.
_FLOOR = float(np.finfo(np.float32).eps)
#: Replaces a probability of 0 before the logarithm; the calibrator raises it to a fitted floor.
_ZERO = float(np.finfo(np.float64).smallest_subnormal)


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
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
    response : {"auto", "decision_function", "predict_proba"}
        The output to calibrate; ``auto`` prefers raw scores: ``decision_function``, or the margins of
        LightGBM, XGBoost and CatBoost.
    n_jobs : int, optional
        How many folds are fitted at the same time (joblib).

    Attributes
    ----------
    classes_ : array of shape (K,)
    estimator_ : classifier
        Fitted on all rows, or the given one.
    calibrator_ : Calibrator
        Fitted on held-out scores.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> model = CalibratedClassifier(GaussianNB(), method="ts").fit(X, y)
    >>> model.predict_proba(X[:1]).shape
    (1, 3)
    """

    estimator_: Any
    calibrator_: Calibrator
    classes_: NDArray[Any]

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str | Calibrator = "pool",
        cv: Any = None,
        response: Response = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.response = response
        self.n_jobs = n_jobs

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, **params: Any
    ) -> Self:
        """Fit the classifier, unless it is fitted already, and its map.

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
        X, y = self._check_targets(X, y)
        weight, members = check_weight(sample_weight, len(y)), check_groups(groups, len(y))
        estimator = self._base()
        routed = self._route(estimator, weight, members, params)
        if self._is_prefit(estimator):
            check_is_fitted(estimator)
            self.estimator_, self.classes_ = estimator, np.asarray(estimator.classes_)
            labels = encode(y, self.classes_)
            held_out, models = [np.arange(len(y))], [estimator]
        else:
            self.classes_ = np.unique(y)
            labels = encode(y, self.classes_)
            if len(present := np.unique(y if weight is None else y[weight > 0])) < 2:
                raise ValueError(
                    f"calibration needs rows of more than one class; there are {present.tolist()}"
                )
            splits = self._splits(X, y, members, routed.splitter.split)
            held_out = [test for _, test in splits]
            to_fit = routed.estimator.fit
            jobs = (delayed(_fit_one)(clone(estimator), X, y, train, to_fit) for train, _ in splits)
            models = Parallel(n_jobs=self.n_jobs)(jobs)
            self.estimator_ = clone(estimator).fit(X, y, **to_fit)
        pairs = zip(models, held_out, strict=True)
        logits = np.concatenate(
            [self._logits(model, _safe_indexing(X, rows)) for model, rows in pairs]
        )
        rows = np.concatenate(held_out)
        calibrator = self._new_calibrator(self._response(models[0]))
        own, of = (None if a is None else a[rows] for a in (weight, members))
        self.calibrator_ = calibrator.fit(
            logits, labels[rows], own, groups=of, classes=self._names()
        )
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Return calibrated probabilities, columns in the order of ``classes_``.

        Parameters
        ----------
        X : array-like of shape (N, features)

        Returns
        -------
        array of shape (N, K)
        """
        check_is_fitted(self, "calibrator_")
        probs: FloatArray = self.calibrator_.predict_proba(self._logits(self.estimator_, X))
        return probs

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of each row.

        Parameters
        ----------
        X : array-like of shape (N, features)

        Returns
        -------
        array of shape (N,)
        """
        best = self.predict_proba(X).argmax(axis=1)  # raises if nothing was fitted
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def get_metadata_routing(self) -> MetadataRouter:
        """Say which metadata goes where: the estimator's ``fit`` and the splitter's ``split``."""
        fit_to_fit = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self._base(), method_mapping=fit_to_fit)
        if hasattr(self.cv, "split"):
            fit_to_split = MethodMapping().add(caller="fit", callee="split")
            router.add(splitter=self.cv, method_mapping=fit_to_split)
        return router

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._base()).input_tags
        tags.input_tags.sparse, tags.input_tags.allow_nan = inner.sparse, inner.allow_nan
        return tags

    # -- parts ------------------------------------------------------------------------------------

    def _check_targets(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        name = getattr(y, "name", None) or next(iter(getattr(y, "columns", [])), None)
        column = "y" if name is None else f"the column {name!r} of labels"
        X, y = indexable(X, y)
        if np.size(y) == len(y) and (missing := missing_labels(np.ravel(y))).any():
            raise ValueError(
                f"{column} has no label in {missing.sum():,} of {len(missing):,} rows, first row {missing.argmax()}: "
                "leave these rows out of X and y (of pandas: X[y.notna()], y[y.notna()])"
            )
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        if type_of_target(y) == "continuous":
            raise ValueError(
                f"Unknown label type: {column} holds fractions, such as {y[y != np.rint(y)][0]}, which are no classes; "
                "hcal does no regression, for that see MAPIE or crepes"
            )
        check_classification_targets(y)
        return X, y

    def _base(self) -> Any:
        if self.estimator is not None:
            return self.estimator
        from sklearn.linear_model import LogisticRegression

        default = LogisticRegression()
        return default.set_fit_request(sample_weight=True) if _routing_enabled() else default

    def _is_prefit(self, estimator: Any) -> bool:
        if isinstance(self.cv, str) and self.cv != "prefit":
            raise ValueError(
                f'cv must be an int, "prefit", a splitter, an iterable or None; got {self.cv!r}'
            )
        return isinstance(self.cv, str) or isinstance(estimator, FrozenEstimator)

    def _route(self, estimator: Any, weight: Any, groups: Any, params: dict[str, Any]) -> Bunch:
        if _routing_enabled():
            asked = {"groups": groups} if hasattr(self.cv, "split") else {}
            routed = process_routing(self, "fit", sample_weight=weight, **asked, **params)
            routed.setdefault("splitter", Bunch(split={}))
            return routed
        to_fit = dict(params)
        if weight is not None and "sample_weight" in inspect.signature(estimator.fit).parameters:
            to_fit["sample_weight"] = weight
        elif weight is not None and not self._is_prefit(estimator):
            warnings.warn(
                f"{type(estimator).__name__} takes no sample_weight: the weights act on the map only",
                stacklevel=3,
            )
        return Bunch(estimator=Bunch(fit=to_fit), splitter=Bunch(split={}))

    def _splits(
        self, X: Any, y: Any, groups: IntArray | None, params: dict[str, Any]
    ) -> list[Split]:
        cv = self.cv
        if groups is not None:
            params = {"groups": groups, **params}
            if cv is None or isinstance(cv, int | np.integer):
                cv = StratifiedGroupKFold(5 if cv is None else int(cv))
        return list(check_cv(cv, y, classifier=True).split(X, y, **params))

    def _names(self) -> Any:
        """Return the labels as class names for the calibrator if they are text that it can store, else None."""
        with suppress(ValueError):
            return (
                check_classes(self.classes_, len(self.classes_)) if is_text(self.classes_) else None
            )
        return None

    def _logits(self, estimator: Any, X: Any) -> FloatArray:
        """Return scores of shape (N, K) in the order of ``classes_``, as logits or log-probabilities."""
        have, absent = np.asarray(estimator.classes_), _FLOOR
        if self._response(estimator) == "predict_proba":
            logits, absent = (
                np.log(np.maximum(np.asarray(estimator.predict_proba(X), dtype=np.float64), _ZERO)),
                _ZERO,
            )
        else:
            logits = raw_margins(estimator, X)
        if logits.shape[1] != len(have):
            raise ValueError(
                f"the estimator gives {logits.shape[1]} scores for {len(have)} classes; "
                "one-versus-one scores cannot be calibrated (decision_function_shape='ovr' helps)"
            )
        if np.array_equal(have, self.classes_):
            return logits
        # A class that a fold never saw gets a probability near zero, as a share of the largest.
        out = np.repeat(
            logits.max(axis=1, keepdims=True) + np.log(absent), len(self.classes_), axis=1
        )
        out[:, np.searchsorted(self.classes_, have)] = logits
        return out

    def _response(self, estimator: Any) -> str:
        """Return the name of the method that gives the scores; ``margins`` are a booster's own."""
        if self.response == "auto" and _booster(_unwrap(estimator)[0]) is not None:
            return "margins"
        order = (
            ("decision_function", "predict_proba") if self.response == "auto" else (self.response,)
        )
        name = next((n for n in order if hasattr(estimator, n)), None)
        if name is None:
            raise ValueError(
                f"{type(estimator).__name__} has no {' or '.join(order)}: there is nothing to calibrate"
            )
        return name

    def _new_calibrator(self, response: str) -> Calibrator:
        calibrator = (
            make_calibrator(self.method) if isinstance(self.method, str) else clone(self.method)
        )
        if calibrator.input != "logits":
            raise ValueError(
                f'the calibrator must have input="logits", got input={calibrator.input!r}'
            )
        # Of log-probabilities a zero is a small number, not minus infinity.
        found: Calibrator = (
            calibrator.set_params(input="log_probs") if response == "predict_proba" else calibrator
        )
        return found


def _fit_one(estimator: Any, X: Any, y: Any, rows: IntArray, params: dict[str, Any]) -> Any:
    mine = _check_method_params(X, params, indices=rows)
    return estimator.fit(_safe_indexing(X, rows), _safe_indexing(y, rows), **mine)


def raw_margins(model: Any, X: Any) -> FloatArray:
    """Return the raw scores of a fitted model as logits: what a calibrator should be fitted on.

    Boosters hide their margins behind an argument of their own; a probability rounded to 0 or 1 has lost them.

    Parameters
    ----------
    model : classifier or booster
        scikit-learn's (with ``decision_function``), LightGBM's, XGBoost's and CatBoost's classifiers, alone, at the
        end of a pipeline or frozen, and a bare ``lightgbm.Booster`` or ``xgboost.Booster``.
    X : array-like of shape (N, features)

    Returns
    -------
    array of shape (N, K)
        A binary margin m becomes (0, m).

    Examples
    --------
    >>> from sklearn.svm import LinearSVC
    >>> raw_margins(LinearSVC().fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]), [[1.5]]).shape
    (1, 2)
    """
    inner, steps = _unwrap(model)
    options = _booster(inner)
    if options is not None:
        x = X if steps is None else steps.transform(X)
        if type(inner).__module__.startswith("xgboost") and not hasattr(inner, "predict_proba"):
            from xgboost import DMatrix

            x = x if isinstance(x, DMatrix) else DMatrix(x)
        margins = np.asarray(inner.predict(x, **options), dtype=np.float64)
    elif hasattr(model, "decision_function"):
        margins = np.asarray(model.decision_function(X), dtype=np.float64)
    else:
        name = type(model).__name__
        raise ValueError(
            f"{name} has no raw scores: calibrate its predict_proba with input='probs'"
        )
    if margins.ndim == 2 and margins.shape[1] > 1:
        return margins
    return np.stack([np.zeros(len(margins)), margins.reshape(-1)], axis=1)


#: What makes ``predict`` of a booster return margins.
_MARGINS: dict[str, dict[str, Any]] = {
    "lightgbm": {"raw_score": True},
    "xgboost": {"output_margin": True},
    "catboost": {"prediction_type": "RawFormulaVal"},
}


def _booster(model: Any) -> dict[str, Any] | None:
    """Return the options with which a booster's ``predict`` returns margins; None if the model is no booster."""
    roots = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    return next((options for name, options in _MARGINS.items() if name in roots), None)


def _unwrap(estimator: Any) -> tuple[Any, Any]:
    """Return the inner classifier and, if it is the last step of a pipeline, the steps before it."""
    while isinstance(estimator, FrozenEstimator):
        estimator = estimator.estimator
    if isinstance(estimator, Pipeline):
        return _unwrap(estimator[-1])[0], estimator[:-1] if len(estimator) > 1 else None
    return estimator, None
