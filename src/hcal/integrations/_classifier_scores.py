"""The scores of fitted classifiers: decision functions, margins of boosters, and probabilities by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline

from hcal.class_names import Classifier
from hcal.frames import AnyArray, to_numpy
from hcal.numerics import Float64, FloatArray, NumpyArray

#: What makes ``predict`` of a booster return margins.
_MARGINS: dict[str, Mapping[str, bool | str]] = {
    "lightgbm": {"raw_score": True},
    "xgboost": {"output_margin": True},
    "catboost": {"prediction_type": "RawFormulaVal"},
}


class HasPredict(Protocol):
    """A fitted model: a classifier, or a booster."""

    @property
    def predict(self) -> Callable[..., AnyArray]:
        """Of a booster, the margins where its options ask for them."""


def raw_margins(model: HasPredict, X: AnyArray) -> FloatArray:
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
    classifier, steps = unwrap(model)
    options = booster_options(classifier)
    if options is not None:
        features = X if steps is None else steps.transform(X)
        margins = _booster_margins(classifier, features, options)
    elif hasattr(model, "decision_function"):
        margins = np.asarray(model.decision_function(X), dtype=np.float64)
    else:
        raise ValueError(
            f"{type(model).__name__} has no raw scores: calibrate its predict_proba with "
            "input='probs'"
        )
    if margins.ndim == 2 and margins.shape[1] > 1:
        return margins
    return np.stack([np.zeros(len(margins)), margins.reshape(-1)], axis=1)


def stated_probs(model: Classifier, X: AnyArray) -> Float64:
    """Return ``predict_proba`` with the columns in the order of the model's classes.

    Columns of a frame that are called as the classes are put in order by name.
    """
    probs, origin = to_numpy(model.predict_proba(X), "predict_proba")
    columns = origin.columns
    if columns is not None:
        names = np.asarray(model.classes_).tolist()
        places = {str(column): place for place, column in enumerate(columns)}
        if set(places) == {str(name) for name in names}:
            probs = probs[:, [places[str(name)] for name in names]]
    return np.asarray(probs, dtype=np.float64)


def booster_options(model: HasPredict) -> Mapping[str, bool | str] | None:
    """Return the options with which a booster's ``predict`` returns margins; None if the model is no booster."""
    roots = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    for package, options in _MARGINS.items():
        if package in roots:
            return options
    return None


def unwrap(estimator: HasPredict) -> tuple[HasPredict, Pipeline | None]:
    """Return the inner classifier and, if it is the last step of a pipeline, the steps before it."""
    while isinstance(estimator, FrozenEstimator):
        estimator = estimator.estimator
    if not isinstance(estimator, Pipeline):
        return estimator, None
    classifier = unwrap(estimator[-1])[0]
    return classifier, estimator[:-1] if len(estimator) > 1 else None


def class_numbers(y: AnyArray, classes: NumpyArray) -> NDArray[np.int64]:
    """Return the positions of labels among the classes, whatever their order.

    >>> class_numbers(["b", "a"], np.array(["b", "a"]))
    array([0, 1])
    """
    labels = np.asarray(y)
    unknown = np.setdiff1d(labels, classes)
    if unknown.size:
        raise ValueError(f"y has classes that the estimator does not know: {unknown.tolist()[:5]}")
    order = np.argsort(classes)
    ranks = np.searchsorted(classes, labels, sorter=order)
    return order[ranks].astype(np.int64)


def _booster_margins(
    model: HasPredict, features: AnyArray, options: Mapping[str, bool | str]
) -> Float64:
    if type(model).__module__.startswith("xgboost") and not hasattr(model, "predict_proba"):
        from xgboost import DMatrix

        features = features if isinstance(features, DMatrix) else DMatrix(features)
    return np.asarray(model.predict(features, **options), dtype=np.float64)
