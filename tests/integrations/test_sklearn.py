"""CalibratedClassifier: scikit-learn's own checks, and what a user of it expects."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_iris, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import hcal
from hcal.integrations.sklearn import CalibratedClassifier, Scorer

INNER = [None, GaussianNB()]


# scikit-learn's check data have random or separable labels; the fit rightly says so by a CalibrationWarning.
@pytest.mark.filterwarnings("ignore::hcal.CalibrationWarning")
@pytest.mark.filterwarnings("ignore:The least populated class")
@pytest.mark.parametrize("method", ["ts", pytest.param("pool", marks=pytest.mark.slow)])
@pytest.mark.parametrize("inner", INNER, ids=lambda e: type(e).__name__)
def test_every_check_of_scikit_learn(inner, method) -> None:
    """As of scikit-learn's own CalibratedClassifierCV, a row of weight 0 still takes a place in its folds."""
    folds = dict.fromkeys(
        (
            "check_sample_weight_equivalence_on_dense_data",
            "check_sample_weight_equivalence_on_sparse_data",
        ),
        "folds",
    )
    results = check_estimator(
        CalibratedClassifier(inner, method=method), on_skip=None, expected_failed_checks=folds
    )
    assert len(results) > 50
    # the one skip is scikit-learn's own: it wants SCIPY_ARRAY_API in the environment
    odd = {r["check_name"] for r in results if r["status"] not in ("passed", "xfail")}
    assert odd <= {"check_array_api_input"}


@pytest.fixture
def flowers() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    rng = np.random.default_rng(0)
    names = np.array(["setosa", "versicolor", "virginica"])
    is_noise = rng.random(len(y)) < 0.15
    noisy = np.where(is_noise, rng.integers(0, 3, len(y)), y)
    return X, names[noisy]


@pytest.mark.parametrize(
    "inner",
    [GaussianNB(), LinearSVC(), KNeighborsClassifier(), RandomForestClassifier(20, random_state=0)],
)
def test_any_classifier_with_string_labels_gets_better_or_stays(inner, flowers) -> None:
    X, y = flowers
    model = CalibratedClassifier(inner, method="ts", ensemble=False).fit(X, y)
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    probs = model.predict_proba(X)
    assert probs.shape == (150, 3)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-9)
    assert set(model.predict(X)) <= set(y)
    fit = model.calibrator_.fit_
    assert fit.after["nll"] <= fit.before["nll"]
    if not isinstance(inner, GaussianNB):  # ts keeps order
        assert (model.predict(X) == model.estimator_.predict(X)).all()


def test_held_out_scores_reveal_what_training_scores_hide() -> None:
    """A forest is sure of its own training rows; the map must come from rows it has not seen."""
    X, y = make_classification(400, 10, n_informative=3, flip_y=0.3, random_state=0)
    X_new = X[200:]
    y_new = y[200:]
    forest = RandomForestClassifier(30, random_state=0)
    model = CalibratedClassifier(forest, method="ts").fit(X[:200], y[:200])
    raw = clone(forest).fit(X[:200], y[:200]).predict_proba(X_new)
    fitted_forest = clone(forest).fit(X[:200], y[:200])
    cheat = CalibratedClassifier(fitted_forest, method="ts", cv="prefit")
    with pytest.warns(
        hcal.CalibrationWarning
    ):  # the training rows are separable: T runs to its bound
        cheat.fit(X[:200], y[:200])
    honest = hcal.metrics.nll(model.predict_proba(X_new), y_new)
    assert honest < hcal.metrics.nll(raw, y_new)
    assert honest < hcal.metrics.nll(cheat.predict_proba(X_new), y_new)


def test_prefit_and_frozen_are_the_same_and_leave_the_estimator_alone(flowers) -> None:
    X, y = flowers
    inner = GaussianNB().fit(X[::2], y[::2])
    theta = inner.theta_.copy()
    prefit = CalibratedClassifier(inner, method="ts", cv="prefit")
    prefit.fit(X[1::2], y[1::2])
    frozen = CalibratedClassifier(FrozenEstimator(inner), method="ts")
    frozen.fit(X[1::2], y[1::2])
    np.testing.assert_array_equal(prefit.predict_proba(X), frozen.predict_proba(X))
    np.testing.assert_array_equal(inner.theta_, theta)
    # a class that the calibration rows lack keeps its column; one that the estimator lacks is an error
    two = y[1::2] != "setosa"
    of_two = CalibratedClassifier(inner, method="ts", cv="prefit")
    of_two.fit(X[1::2][two], y[1::2][two])
    assert of_two.predict_proba(X).shape == (150, 3)
    with pytest.raises(ValueError, match="does not know: \\['rose'\\]"):
        CalibratedClassifier(inner, method="ts", cv="prefit").fit(X[:1], ["rose"])
    with pytest.raises(sklearn.exceptions.NotFittedError):
        CalibratedClassifier(GaussianNB(), method="ts", cv="prefit").fit(X, y)


def test_frames_in_and_names_checked(flowers) -> None:
    X, y = flowers
    names = list("abcd")
    expected = CalibratedClassifier(GaussianNB(), method="ts").fit(X, y).predict_proba(X)
    of_pandas = (pd.DataFrame(X, columns=names), pd.Series(y))
    of_polars = (pl.DataFrame(X, names), pl.Series(y))
    for frame, column in (of_pandas, of_polars):
        model = CalibratedClassifier(GaussianNB(), method="ts").fit(frame, column)
        np.testing.assert_allclose(model.predict_proba(frame), expected, rtol=1e-9)
        assert model.feature_names_in_.tolist() == names


@pytest.mark.filterwarnings("ignore::hcal.CalibrationWarning")  # the words tell all
def test_sparse_and_text_input() -> None:
    docs = [
        "good film",
        "bad film",
        "good plot",
        "bad plot",
        "good",
        "bad",
        "so good",
        "so bad",
        "good bad",
    ] * 5
    y = (["pos", "neg"] * 4 + ["neg"]) * 5
    model = CalibratedClassifier(
        make_pipeline(CountVectorizer(), MultinomialNB()), method="ts", cv=3
    )
    assert model.fit(docs, y).predict(["good", "bad"]).tolist() == ["pos", "neg"]
    X = sparse.csr_matrix(CountVectorizer().fit_transform(docs))
    counts = CalibratedClassifier(MultinomialNB(), method="ts", cv=3).fit(X, y)
    assert counts.predict_proba(X).shape == (45, 2)


def test_pipeline_grid_search_and_nested_parameters(flowers) -> None:
    X, y = flowers
    model = CalibratedClassifier(GaussianNB(), method=hcal.make_calibrator("ts"))
    searched = {
        "calibratedclassifier__estimator__var_smoothing": [1e-9, 1e-2],
        "calibratedclassifier__cv": [2, 3],
    }
    pipeline = make_pipeline(StandardScaler(), model)
    grid = GridSearchCV(pipeline, searched, scoring="neg_log_loss", cv=3).fit(X, y)
    assert len(grid.cv_results_["params"]) == 4
    assert np.isfinite(
        cross_val_score(grid.best_estimator_, X, y, cv=3, scoring="neg_log_loss")
    ).all()


def test_a_group_is_held_out_as_a_whole(flowers) -> None:
    X, y = flowers
    groups = np.repeat(np.arange(15), 10)
    model = CalibratedClassifier(GaussianNB(), method="ts")
    for _, test in model._splits(X, y, groups, {}):
        assert len(test) == 10 * len(set(groups[test]))
    assert model.fit(X, y, groups=groups).predict_proba(X).shape == (150, 3)
    with pytest.raises(ValueError, match=r"groups must have shape \(150,\)"):
        model.fit(X, y, groups=groups[:3])


def test_metadata_routing_reaches_estimator_and_splitter(flowers) -> None:
    X, y = flowers
    groups = np.arange(len(y)) // 10
    weight = np.linspace(0.5, 2, len(y))
    with sklearn.config_context(enable_metadata_routing=True):
        inner = LogisticRegression(max_iter=500).set_fit_request(sample_weight=True)
        model = CalibratedClassifier(inner, method="ts", cv=GroupKFold(3), ensemble=False)
        model.fit(X, y, sample_weight=weight, groups=groups)
        unweighted = LogisticRegression(max_iter=500).set_fit_request(sample_weight=False)
        plain = CalibratedClassifier(unweighted, method="ts", cv=GroupKFold(3), ensemble=False)
        plain.fit(X, y, sample_weight=weight, groups=groups)
    by_hand = LogisticRegression(max_iter=500).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(model.estimator_.coef_, by_hand.coef_)
    assert not np.allclose(plain.estimator_.coef_, by_hand.coef_)


def test_estimator_without_weights_says_so(flowers) -> None:
    X, y = flowers
    with pytest.warns(UserWarning, match="KNeighborsClassifier takes no sample_weight"):
        CalibratedClassifier(KNeighborsClassifier(), method="ts").fit(
            X, y, sample_weight=np.ones(len(y))
        )


@pytest.mark.slow
def test_folds_in_joblib_workers_agree(flowers) -> None:
    X, y = flowers
    one = CalibratedClassifier(GaussianNB(), method="ts").fit(X, y)
    two = CalibratedClassifier(GaussianNB(), method="ts", n_jobs=2).fit(X, y)
    np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))


def rare(seed: int, n_rows: int = 7000) -> tuple[np.ndarray, np.ndarray]:
    return make_classification(
        n_rows,
        20,
        n_informative=6,
        n_redundant=8,
        weights=[0.96],
        flip_y=0.02,
        class_sep=0.7,
        random_state=seed,
    )


@pytest.mark.filterwarnings(
    "ignore::hcal.CalibrationWarning"
)  # platt smooths the labels of few positives
def test_an_ensemble_is_the_mean_of_its_pairs_and_is_the_default() -> None:
    X, y = rare(0, 1500)
    model = CalibratedClassifier(GaussianNB(), method="platt", cv=3).fit(X, y)
    folds = StratifiedKFold(3).split(X, y)
    by_hand = []
    for train, test in folds:
        inner = GaussianNB().fit(X[train], y[train])
        cal = hcal.make_calibrator("platt", input="log_probs")
        scores = np.log(np.maximum(inner.predict_proba(X[test]), 5e-324))
        cal.fit(scores, y[test])
        new = np.log(np.maximum(inner.predict_proba(X[:50]), 5e-324))
        by_hand.append(cal.predict_proba(new))
    expected = np.mean(by_hand, axis=0)
    np.testing.assert_allclose(model.predict_proba(X[:50]), expected, rtol=1e-12)
    assert len(model.calibrated_classifiers_) == 3
    for name in ("estimator_", "calibrator_"):
        with pytest.raises(AttributeError, match=f"{name}: this model averages 3 classifiers"):
            getattr(model, name)


def test_groups_stay_together_in_every_pair(flowers) -> None:
    X, y = flowers
    groups = np.repeat(np.arange(15), 10)
    model = CalibratedClassifier(GaussianNB(), method="pool").fit(X, y, groups=groups)
    rows = [pair.calibrator.fit_.effective_rows for pair in model.calibrated_classifiers_]
    alone = CalibratedClassifier(GaussianNB(), method="pool").fit(X, y)
    assert sum(rows) < sum(p.calibrator.fit_.effective_rows for p in alone.calibrated_classifiers_)


@pytest.mark.filterwarnings("ignore::hcal.CalibrationWarning")
@pytest.mark.parametrize("kind", ["ensemble", "prefit"])
def test_new_rows_of_the_same_distribution_leave_the_frequencies(kind: str) -> None:
    """``calibrator_.with_prior_from`` estimated 23.7 % where 4.9 % was true, and was off in 12 of 12 runs."""
    inners = [GaussianNB(), RandomForestClassifier(30, random_state=0), LogisticRegression()]
    misses = []
    for inner in inners:
        for seed in range(4):
            X, y = rare(seed)
            options = {}
            first = 0
            if kind == "prefit":
                first = 1000
                inner = clone(inner).fit(X[:first], y[:first])
                options = {"cv": "prefit"}
            model = CalibratedClassifier(inner, method="platt", **options)
            model.fit(X[first:3000], y[first:3000])
            moved = model.with_prior_from(X[3000:])
            miss = abs(moved.prior_[1] - y[3000:].mean())
            misses.append(miss)
    assert max(misses) <= 0.015


@pytest.mark.filterwarnings("ignore::hcal.CalibrationWarning")
def test_frequencies_that_changed_are_found() -> None:
    for seed in range(3):
        X, y = rare(seed, 20_000)
        model = CalibratedClassifier(GaussianNB(), method="platt").fit(X[:8000], y[:8000])
        new = np.arange(8000, 20_000)
        positives = new[y[new] == 1]
        negatives = new[y[new] == 0]
        often = np.concatenate([positives, negatives[:1200]])
        share = y[often].mean()
        moved = model.with_prior_from(X[often])
        assert share > 0.3
        assert moved.prior_[1] == pytest.approx(share, abs=0.06)
        again = moved.with_prior_from(X[8000:])  # from the frequencies of the fit
        assert again.prior_[1] == pytest.approx(y[:8000].mean(), abs=0.015)
        truth = model.with_prior([1 - share, share])
        np.testing.assert_allclose(truth.predict_proba(X[:9]).sum(axis=1), 1)
        expected = hcal.metrics.nll(model.predict_proba(X[often]), y[often])
        assert hcal.metrics.nll(moved.predict_proba(X[often]), y[often]) < expected


def test_a_response_that_changes_after_the_fit_waits_for_the_next_one(flowers) -> None:
    """The map of margins had got logarithms of probabilities."""
    X, y = flowers
    model = CalibratedClassifier(LogisticRegression(max_iter=500), method="ts").fit(X, y)
    expected = model.predict_proba(X)
    model.set_params(response="predict_proba", cv=3, ensemble=False, method="vs")
    np.testing.assert_array_equal(model.predict_proba(X), expected)


def test_models_of_folds_do_not_tell_the_frequencies_of_another_model(flowers) -> None:
    X, y = flowers
    model = CalibratedClassifier(GaussianNB(), method="ts", ensemble=False).fit(X, y)
    with pytest.raises(ValueError, match="ensemble=True or cv='prefit'"):
        model.with_prior_from(X)
    cal = model.calibrator_
    with pytest.raises(ValueError, match="learned on models of folds"):
        cal.with_prior_from(np.log(model.estimator_.predict_proba(X)))
    assert model.with_prior([1, 1, 1]).predict_proba(X).shape == (150, 3)


class Named(BaseEstimator, ClassifierMixin):
    """A classifier whose classes are not sorted, and whose probabilities are a frame in another order."""

    def fit(self, X, y):
        self.inner_ = LogisticRegression(max_iter=500).fit(X, y)
        self.classes_ = self.inner_.classes_[::-1]
        return self

    def predict_proba(self, X):
        order = [1, 2, 0]
        probs = self.inner_.predict_proba(X)
        return pd.DataFrame(probs[:, order], columns=self.inner_.classes_[order])


@pytest.mark.parametrize("options", [{}, {"ensemble": False}, {"cv": "prefit"}])
def test_classes_go_by_name(options, flowers) -> None:
    """Labels of unsorted classes were searched as sorted ones, and frames taken by position."""
    X, y = flowers
    inner = Named().fit(X, y)
    model = CalibratedClassifier(inner, method="ts", **options).fit(X, y)
    fitted = LogisticRegression(max_iter=500).fit(X, y)
    plain = CalibratedClassifier(fitted, method="ts", response="predict_proba", **options)
    plain.fit(X, y)
    order = [list(model.classes_).index(name) for name in plain.classes_]
    probs = model.predict_proba(X)[:, order]
    np.testing.assert_allclose(probs, plain.predict_proba(X), atol=1e-9)
    score = Scorer("nll")
    expected = score(inner.inner_, X, y)
    assert score(inner, X, y) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ensemble": "yes"}, 'ensemble must be True, False or "auto"'),
        ({"ensemble": True, "cv": "prefit"}, "the estimator is fitted already"),
        ({"cv": "loo"}, "cv must be an int"),
        ({"cv": 1}, "n_splits=1"),
        ({"method": "no such"}, "unknown calibrator 'no such'"),
        ({"method": hcal.make_calibrator("ts", input="probs")}, 'must have input="logits"'),
        ({"response": "transform"}, "has no transform"),
    ],
)
def test_bad_parameters_are_named(params, message, flowers) -> None:
    with pytest.raises(ValueError, match=message):
        CalibratedClassifier(GaussianNB(), **{"method": "ts", **params}).fit(*flowers)
