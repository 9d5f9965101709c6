"""Margins of boosters, scorers and displays of scikit-learn."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import hcal
from hcal.integrations.sklearn import (
    CalibratedClassifier,
    CalibrationDisplay,
    Scorer,
    _method_of_scores,
    raw_margins,
)

mpl.use("Agg")
X, CODES = make_classification(900, 8, n_informative=5, n_classes=3, random_state=0)
NAMES = np.array(["cat", "dog", "fox"])[CODES]
BINARY = np.where(CODES == 2, "yes", "no")


def lightgbm_classifier(**options):
    lightgbm = pytest.importorskip("lightgbm")
    return lightgbm.LGBMClassifier(n_estimators=15, verbose=-1, n_jobs=1, **options)


def xgboost_classifier(**options):
    xgboost = pytest.importorskip("xgboost")
    return xgboost.XGBClassifier(n_estimators=15, n_jobs=1, **options)


def catboost_classifier(**options):
    catboost = pytest.importorskip("catboost", reason="90 MB: `make test-evaluators` installs it")
    return catboost.CatBoostClassifier(
        iterations=15, verbose=0, allow_writing_files=False, **options
    )


@pytest.mark.parametrize("make", [lightgbm_classifier, xgboost_classifier, catboost_classifier])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_margins_are_the_logits_behind_the_probabilities(make, n_classes: int) -> None:
    y = CODES if n_classes == 3 else (CODES == 2).astype(int)
    model = make().fit(X, y)
    margins = raw_margins(model, X)
    assert margins.shape == (900, n_classes)
    np.testing.assert_allclose(hcal.softmax(margins), model.predict_proba(X), atol=1e-5)
    bare = next((m for m in ("booster_", "get_booster") if hasattr(model, m)), None)
    if bare is not None:  # CatBoost has no other object inside
        inner = getattr(model, bare)
        np.testing.assert_allclose(
            raw_margins(inner() if callable(inner) else inner, X), margins, atol=1e-5
        )


def test_the_wrapper_finds_the_margins_of_catboost() -> None:
    model = catboost_classifier().fit(X[:500], NAMES[:500])
    wrapped = CalibratedClassifier(model, method="ts", cv="prefit")
    wrapped.fit(X[500:], NAMES[500:])
    assert _method_of_scores(wrapped.estimator_, wrapped.response) == "margins"
    expected = wrapped.calibrator_.predict_proba(raw_margins(model, X))
    np.testing.assert_allclose(wrapped.predict_proba(X), expected, rtol=1e-12)
    assert set(wrapped.predict(X)) <= set(NAMES)


@pytest.mark.parametrize("wrap", ["alone", "pipeline", "frozen", "cross-validated"])
def test_the_wrapper_finds_the_margins_of_lightgbm(wrap: str) -> None:
    model = lightgbm_classifier()
    if wrap == "pipeline":
        model = make_pipeline(StandardScaler(), model)
    if wrap != "cross-validated":
        model.fit(X[:500], NAMES[:500])
    options = {"ensemble": False} if wrap == "cross-validated" else {"cv": "prefit"}
    estimator = FrozenEstimator(model) if wrap == "frozen" else model
    wrapped = CalibratedClassifier(estimator, method="ts", **options).fit(X[500:], NAMES[500:])
    assert _method_of_scores(wrapped.estimator_, wrapped.response) == "margins"
    assert wrapped.calibrator_.input == "logits"
    inner = wrapped.estimator_
    expected = wrapped.calibrator_.predict_proba(raw_margins(inner, X))
    np.testing.assert_allclose(wrapped.predict_proba(X), expected, rtol=1e-12)
    assert set(wrapped.predict(X)) <= set(NAMES)


def test_catboost_and_others_are_asked_in_their_own_words(monkeypatch) -> None:
    """CatBoost is too large to install for a test: its one call is imitated, in a module of its name."""
    module = ModuleType("catboost")
    monkeypatch.setitem(sys.modules, "catboost", module)

    class CatBoostClassifier:
        classes_ = np.array([0, 1])

        def predict(self, X, prediction_type="Class"):
            assert prediction_type == "RawFormulaVal"
            return np.asarray(X)[:, 0]

        def predict_proba(self, X):
            raise AssertionError("the margins are there")

    CatBoostClassifier.__module__ = "catboost"
    margins = raw_margins(CatBoostClassifier(), X)
    expected = np.stack([0 * X[:, 0], X[:, 0]], axis=1)
    np.testing.assert_array_equal(margins, expected)
    svm = SVC().fit(X, CODES)
    np.testing.assert_array_equal(raw_margins(svm, X), svm.decision_function(X))
    with pytest.raises(ValueError, match="object has no raw scores"):
        raw_margins(object(), X)


# -- scorers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nll", "ece_ew", "smece", "accuracy"])
def test_a_scorer_is_the_metric_with_its_sign(name: str) -> None:
    model = LogisticRegression().fit(X, NAMES)
    value = hcal.metrics.get_metric(name).function(model.predict_proba(X), CODES)
    assert Scorer(name)(model, X, NAMES) == (value if name == "accuracy" else -value)
    assert pickle.loads(pickle.dumps(Scorer(name))) == Scorer(name)


def test_scorers_work_where_scikit_learn_takes_one() -> None:
    scoring = {"nll": Scorer("nll"), "ece": Scorer("ece_ew")}
    strengths = {"C": [1e-4, 1.0]}
    search = GridSearchCV(LogisticRegression(), strengths, cv=3, refit="nll", scoring=scoring)
    assert search.fit(X, NAMES).best_params_ == {"C": 1.0}
    assert (search.cv_results_["mean_test_ece"] < 0).all()
    for y in (NAMES, BINARY):
        theirs = cross_val_score(LogisticRegression(), X, y, cv=3, scoring="neg_log_loss")
        scores = cross_val_score(LogisticRegression(), X, y, cv=3, scoring=Scorer("nll"))
        np.testing.assert_allclose(scores, theirs)


def test_scorers_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="unknown metric 'ece'"):
        Scorer("ece")
    with pytest.raises(ValueError, match=r"classes that the estimator does not know: \['owl'\]"):
        Scorer("nll")(LogisticRegression().fit(X, NAMES), X[:1], ["owl"])
    with pytest.raises(ValueError, match="3 columns for 2 labels: name them with labels="):
        CalibrationDisplay.from_predictions(["a", "b"], np.full((2, 3), 1 / 3))


# -- display -----------------------------------------------------------------------------------------


def test_the_display_of_two_classes_is_scikit_learns() -> None:
    import matplotlib.pyplot as plt
    from sklearn.calibration import calibration_curve

    model = LogisticRegression().fit(X, BINARY)
    display = CalibrationDisplay.from_estimator(model, X, BINARY, n_bins=10)
    true, predicted = calibration_curve(BINARY == "yes", model.predict_proba(X)[:, 1], n_bins=10)
    np.testing.assert_allclose(display.prob_true, true)
    np.testing.assert_allclose(display.prob_pred, predicted)
    assert display.estimator_name == "LogisticRegression"
    assert display.pos_label == "yes"
    other = CalibrationDisplay.from_estimator(
        model, X, BINARY, n_bins=10, pos_label="no", name="mine"
    )
    expected = (1 - true).sum()
    np.testing.assert_allclose(other.prob_true.sum(), expected)
    assert other.ax_.get_title().startswith("mine: no")
    plt.close("all")


@pytest.mark.parametrize("strategy", ["uniform", "quantile", "corp", "smooth"])
def test_the_display_of_more_classes_shows_the_predicted_one(strategy: str) -> None:
    import matplotlib.pyplot as plt

    model = LogisticRegression().fit(X, NAMES)
    axes = plt.subplots()[1]
    display = CalibrationDisplay.from_estimator(model, X, NAMES, strategy=strategy, ax=axes)
    assert display.ax_ is axes
    expected = {"uniform": "equal-width", "quantile": "equal-mass"}.get(strategy, strategy)
    assert display.diagram[0].binning == expected
    with pytest.raises(ValueError, match="pos_label is for two classes"):
        CalibrationDisplay.from_estimator(model, X, NAMES, pos_label="cat")
    plt.close("all")


def test_scorers_and_displays_refuse_labels_of_other_rows() -> None:
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    X.index = [f"row {k}" for k in range(60)]
    y = (X["a"] > 0).astype(int)
    model = LogisticRegression().fit(X, y)
    turned = y[::-1]
    risk = pd.Series(model.predict_proba(X)[:, 1], index=X.index)
    calls = [
        lambda: Scorer("nll")(model, X, turned),
        lambda: Scorer("nll")(model, X, y, turned),
        lambda: CalibrationDisplay.from_estimator(model, X, turned),
        lambda: CalibrationDisplay.from_predictions(turned, risk),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="has the index of the scores in another order"):
            call()


def test_the_display_takes_columns_by_the_names_of_the_labels() -> None:
    """Columns of yes and no were read as those of the sorted labels, no and yes."""
    risk = np.random.default_rng(0).random(200)
    y = np.where(np.random.default_rng(1).random(200) < risk, "yes", "no")
    probs = pd.DataFrame({"yes": risk, "no": 1 - risk})
    expected = CalibrationDisplay.from_predictions(y, risk, pos_label="yes")
    for frame in (probs, probs[["no", "yes"]]):
        display = CalibrationDisplay.from_predictions(y, frame, pos_label="yes")
        np.testing.assert_allclose(display.prob_true, expected.prob_true)
