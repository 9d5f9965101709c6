"""scikit-learn: calibrate any classifier, cross-validated or already fitted.

The map is always learned on rows that the classifier did not see. One map is fitted on the pooled held-out
scores and put behind one classifier fitted on all rows, so that the result has one curve to look at.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Literal, Self

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.utils import Bunch, _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils._metadata_requests import _routing_enabled
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, column_or_1d

from hcal.calibrators import make_calibrator
from hcal.calibrators.base import Calibrator
from hcal.inputs import check_groups, check_weight
from hcal.integrations._margins import booster_margins, raw_margins
from hcal.integrations._scoring import CalibrationDisplay, Scorer, score_function
from hcal.io.class_names import ClassName, check_classes, is_text
from hcal.numerics import FloatArray, IntArray

__all__ = ["CalibratedClassifier", "CalibrationDisplay", "Scorer", "raw_margins", "score_function"]

Response = Literal["auto", "decision_function", "predict_proba"]
Split = tuple[IntArray, IntArray]

#: What a class that a fold never saw gets, relative to the largest, where the scores are margins.
_FLOOR = float(np.finfo(np.float32).eps)
#: What a probability of 0 becomes before the logarithm; the calibrator then finds a floor for it.
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, **params: Any) -> Self:
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
        weight = check_weight(sample_weight, len(y))
        members = check_groups(groups, len(y))
        estimator = self._base()
        routed = self._route(estimator, weight, members, params)
        if self._is_prefit(estimator):
            check_is_fitted(estimator)
            self.estimator_ = estimator
            labels = self._code(y, np.asarray(estimator.classes_))
            everything = np.arange(len(labels))
            splits, models = [(everything, everything)], [estimator]
        else:
            labels = self._code(y, np.unique(y))
            if weight is not None and len(np.unique(y[weight > 0])) < 2:
                raise ValueError(
                    "sample_weight leaves one class only; calibration needs at least two classes"
                )
            splits = self._splits(X, y, members, routed.splitter.split)
            models = self._fit_folds(estimator, X, y, splits, routed.estimator.fit)
            self.estimator_ = clone(estimator).fit(X, y, **routed.estimator.fit)
        held_out = [test for _, test in splits]
        self.calibrator_ = self._fit_map(X, labels, weight, members, held_out, models)
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
        best = self.predict_proba(X).argmax(axis=1)
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
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        X, y = indexable(X, y)
        y = column_or_1d(y, warn=True)
        if not len(y):
            raise ValueError(f"{type(self).__name__} got 0 rows: there is nothing to learn from")
        if getattr(X, "shape", (1, 1))[1:] == (0,):
            raise ValueError(f"X has 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        return X, y

    def _code(self, y: NDArray[Any], known: NDArray[Any]) -> IntArray:
        """Set ``classes_`` and return the labels as 0..K−1."""
        new = np.setdiff1d(y, known)
        if new.size:
            raise ValueError(f"y has classes that the fitted estimator does not know: {new.tolist()}")
        if len(known) < 2:
            raise ValueError(f"calibration needs at least two classes; y has one class, {known[0]!r}")
        self.classes_ = known
        return np.searchsorted(known, y).astype(np.int64)

    def _base(self) -> Any:
        if self.estimator is not None:
            return self.estimator
        from sklearn.linear_model import LogisticRegression

        default = LogisticRegression()
        return default.set_fit_request(sample_weight=True) if _routing_enabled() else default

    def _is_prefit(self, estimator: Any) -> bool:
        if isinstance(self.cv, str) and self.cv != "prefit":
            raise ValueError(f'cv must be an int, "prefit", a splitter, an iterable or None; got {self.cv!r}')
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

    def _splits(self, X: Any, y: Any, groups: IntArray | None, params: dict[str, Any]) -> list[Split]:
        if groups is None:
            return list(check_cv(self.cv, y, classifier=True).split(X, y, **params))
        if self.cv is None or isinstance(self.cv, int | np.integer):
            return list(StratifiedGroupKFold(5 if self.cv is None else int(self.cv)).split(X, y, groups))
        return list(check_cv(self.cv, y, classifier=True).split(X, y, **{"groups": groups, **params}))

    def _fit_folds(
        self, estimator: Any, X: Any, y: Any, splits: list[Split], fit_params: dict[str, Any]
    ) -> list[Any]:
        """Return one classifier a split, fitted on its training rows."""
        jobs = (delayed(_fit_one)(clone(estimator), X, y, train, fit_params) for train, _ in splits)
        fitted: list[Any] = Parallel(n_jobs=self.n_jobs)(jobs)
        return fitted

    def _fit_map(
        self,
        X: Any,
        labels: IntArray,
        weight: Any,
        groups: IntArray | None,
        held_out: list[IntArray],
        models: list[Any],
    ) -> Calibrator:
        """Fit the calibrator on the held-out scores."""
        rows = np.concatenate(held_out)
        pairs = zip(models, held_out, strict=True)
        logits = np.concatenate([self._logits(model, _safe_indexing(X, test)) for model, test in pairs])
        calibrator = self._new_calibrator()
        if self._response(models[0]) == "predict_proba":
            calibrator.set_params(input="log_probs")  # a zero is then a small number, not minus infinity
        own, members = (None if a is None else a[rows] for a in (weight, groups))
        return calibrator.fit(logits, labels[rows], own, groups=members, classes=self._names())

    def _names(self) -> tuple[ClassName, ...] | None:
        """Return the labels where they are text that a calibrator can carry: its sentences then say them."""
        if not is_text(self.classes_):
            return None
        try:
            return check_classes(self.classes_, len(self.classes_))
        except ValueError:
            return None

    def _logits(self, estimator: Any, X: Any) -> FloatArray:
        """Return scores of shape (N, K) in the order of ``classes_``, as logits or log-probabilities."""
        name = self._response(estimator)
        margins = booster_margins(estimator) if name == "margins" else None
        scores = as_logits((getattr(estimator, name) if margins is None else margins)(X), name)
        absent = _ZERO if name == "predict_proba" else _FLOOR
        return align_columns(scores, np.asarray(estimator.classes_), self.classes_, absent)

    def _response(self, estimator: Any) -> str:
        """Return the name of the method that gives the scores; ``margins`` are a booster's own."""
        if self.response == "auto" and booster_margins(estimator) is not None:
            return "margins"
        order = ("decision_function", "predict_proba") if self.response == "auto" else (self.response,)
        name = next((n for n in order if hasattr(estimator, n)), None)
        if name is None:
            raise ValueError(
                f"{type(estimator).__name__} has no {' or '.join(order)}: there is nothing to calibrate"
            )
        return name

    def _new_calibrator(self) -> Calibrator:
        if isinstance(self.method, str):
            return make_calibrator(self.method)
        calibrator: Calibrator = clone(self.method)
        if calibrator.input != "logits":
            raise ValueError(f'the calibrator must have input="logits", got input={calibrator.input!r}')
        return calibrator


def _fit_one(estimator: Any, X: Any, y: Any, rows: IntArray, params: dict[str, Any]) -> Any:
    mine = {
        name: _safe_indexing(value, rows) if _is_per_row(value, len(y)) else value
        for name, value in params.items()
    }
    return estimator.fit(_safe_indexing(X, rows), _safe_indexing(y, rows), **mine)


def _is_per_row(value: Any, n_rows: int) -> bool:
    has_rows = hasattr(value, "shape") or isinstance(value, list | tuple) or hasattr(value, "iloc")
    return has_rows and _num_samples(value) == n_rows


def as_logits(response: Any, name: str) -> FloatArray:
    """Turn the output of ``decision_function``, ``margins`` or ``predict_proba`` into logits of shape (N, K).

    Examples
    --------
    >>> as_logits(np.array([3.0]), "decision_function")
    array([[0., 3.]])
    """
    scores = np.asarray(response, dtype=np.float64)
    if name == "predict_proba":
        return np.log(np.maximum(scores, _ZERO))
    if scores.ndim == 1 or scores.shape[1] == 1:
        return np.stack([np.zeros(len(scores)), scores.reshape(-1)], axis=1)
    return scores


def align_columns(
    logits: FloatArray, have: NDArray[Any], want: NDArray[Any], absent: float = _FLOOR
) -> FloatArray:
    """Put columns in the order of ``want``; a class that a fold never saw gets a probability near zero.

    ``absent`` is that probability, as a share of the largest.

    Examples
    --------
    >>> align_columns(np.array([[1.0, 2.0]]), np.array(["a", "b"]), np.array(["a", "b"]))
    array([[1., 2.]])
    """
    if logits.shape[1] != len(have):
        raise ValueError(
            f"the estimator gives {logits.shape[1]} scores for {len(have)} classes; "
            "one-versus-one scores cannot be calibrated (decision_function_shape='ovr' helps)"
        )
    if np.array_equal(have, want):
        return logits
    out = np.repeat(logits.max(axis=1, keepdims=True) + np.log(absent), len(want), axis=1)
    out[:, np.searchsorted(want, have)] = logits
    return out
