"""The raw scores of a classifier, before any squashing: found by what the model is, without a flag.

Boosters hide their margins behind an argument of their own; a probability rounded to 0 or 1 has lost them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Response = Callable[[Any], Any]


def booster_margins(estimator: Any) -> Response | None:
    """Return a function from rows to margins, or None where the model is no booster that has them.

    Knows LightGBM's, XGBoost's and CatBoost's classifiers, alone, at the end of a pipeline or frozen.

    >>> booster_margins(object()) is None
    True
    """
    inner, before = _unwrap(estimator)
    kind = _family(inner)
    if kind is None or not hasattr(inner, "predict_proba"):
        return None
    ask = _ASK[kind]
    return lambda X: ask(inner, X if before is None else before.transform(X))


def raw_margins(model: Any, X: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the raw scores of a fitted model as logits: what a calibrator should be fitted on.

    Parameters
    ----------
    model : classifier or booster
        scikit-learn's (with ``decision_function``), LightGBM's, XGBoost's and CatBoost's classifiers, and a
        bare ``lightgbm.Booster`` or ``xgboost.Booster``.
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
    from hcal.integrations.sklearn import as_logits

    found = booster_margins(model)
    kind = _family(model)
    if found is not None:
        scores = found(X)
    elif hasattr(model, "decision_function"):
        scores = model.decision_function(X)
    elif kind in _BARE:
        scores = _BARE[kind](model, X)
    else:
        raise ValueError(
            f"{type(model).__name__} has no raw scores: calibrate its predict_proba with input='probs'"
        )
    return np.asarray(as_logits(scores, "decision_function"), dtype=np.float64)


def _family(model: Any) -> str | None:
    roots = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    return next((name for name in _ASK if name in roots), None)


def _unwrap(estimator: Any) -> tuple[Any, Any]:
    """Return the classifier within, and the steps before it where it ends a pipeline."""
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline

    while isinstance(estimator, FrozenEstimator):
        estimator = estimator.estimator
    if isinstance(estimator, Pipeline):
        inner, _ = _unwrap(estimator[-1])
        return inner, estimator[:-1] if len(estimator) > 1 else None
    return estimator, None


def _xgboost_bare(model: Any, X: Any) -> Any:
    from xgboost import DMatrix

    return model.predict(X if isinstance(X, DMatrix) else DMatrix(X), output_margin=True)


_ASK: dict[str, Callable[[Any, Any], Any]] = {
    "lightgbm": lambda model, X: model.predict_proba(X, raw_score=True),
    "xgboost": lambda model, X: model.predict(X, output_margin=True),
    "catboost": lambda model, X: model.predict(X, prediction_type="RawFormulaVal"),
}
_BARE: dict[str | None, Callable[[Any, Any], Any]] = {
    "lightgbm": lambda model, X: model.predict(X, raw_score=True),
    "xgboost": _xgboost_bare,
}
