"""Validation of the whole model: against simulations whose truth is known, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hcal
from hcal.decisions.validation import figures_of
from hcal.integrations.sklearn import CalibratedClassifier

EFFECTS = np.array([1, 0.7, 0.5, 0.3, *[0] * 8])


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return twelve columns, of which four matter, and an outcome."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 12))
    rate = 1 / (1 + np.exp(1 - X @ EFFECTS))
    y = (rng.random(n) < rate).astype(int)
    return X, y


def test_corrected_figures_are_those_of_new_rows() -> None:
    new_X, new_y = rows(20_000, 1_000_000)
    draws = 24
    truth = np.empty((draws, 4))
    apparent = np.empty((draws, 4))
    corrected = np.empty((draws, 4))
    covered = np.zeros(4)
    for seed in range(draws):
        X, y = rows(200, seed)
        validation = hcal.validate(
            LogisticRegression(C=np.inf), X, y, resamples=30, random_state=seed
        )
        truth[seed] = figures_of(validation.model.predict_proba(new_X)[:, 1], new_y.astype(float))
        apparent[seed] = [figure.apparent for figure in validation.figures]
        corrected[seed] = [figure.corrected for figure in validation.figures]
        low = np.array([figure.low for figure in validation.figures])
        high = np.array([figure.high for figure in validation.figures])
        covered += (low <= truth[seed]) & (truth[seed] <= high)
        assert not validation.remembers
    gap = np.abs(corrected.mean(axis=0) - truth.mean(axis=0))
    before = np.abs(apparent.mean(axis=0) - truth.mean(axis=0))
    moved = [0, 2, 3]
    assert (gap[moved] < 0.4 * before[moved]).all()
    assert (covered >= 0.8 * draws).all()


def test_a_forest_remembers_its_rows() -> None:
    X, y = rows(200, 0)
    new_X, new_y = rows(20_000, 1_000_000)
    forest = RandomForestClassifier(30, random_state=0)
    validation = hcal.validate(forest, X, y, resamples=30)
    truth = roc_auc_score(new_y, validation.model.predict_proba(new_X)[:, 1])
    assert validation.remembers
    assert validation.auc.apparent > 0.99
    assert validation.auc.corrected > truth + 0.1
    assert validation.auc.out_of_bag == pytest.approx(truth, abs=0.06)
    assert validation.gate_values()["auc"] == validation.auc.out_of_bag
    assert "take the out-of-bag figures" in str(validation)


def test_figures_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(0)
    risk = rng.uniform(0.05, 0.95, 500).round(2)
    event = (rng.random(500) < risk**2).astype(float)
    slope, intercept, brier, auc = figures_of(risk, event)
    panel = hcal.clinical(risk, event.astype(int))
    assert slope == pytest.approx(panel.slope.value)
    assert intercept == pytest.approx(panel.intercept.value)
    probs = np.stack([1 - risk, risk], axis=1)
    assert brier == pytest.approx(hcal.metrics.brier(probs, event))
    assert auc == pytest.approx(roc_auc_score(event, risk))


class Copies(ClassifierMixin, BaseEstimator):
    """A classifier that notes the groups of its fit."""

    seen: list[Any] = []  # noqa: RUF012 - shared, because each sample fits a copy

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Copies:
        self.seen.append((np.asarray(X)[:, 0], groups))
        self.model_ = LogisticRegression().fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.asarray(self.model_.predict_proba(X))


def test_copies_of_a_row_are_one_group_of_a_calibrator_inside() -> None:
    X, y = rows(100, 0)
    Copies.seen.clear()
    hcal.validate(Copies(), X, y, resamples=20)
    assert Copies.seen[0][1] is None
    for value, group in Copies.seen[1:]:
        pairs = set(zip(value, group, strict=True))
        assert len(pairs) == len(set(group)) == len(set(value))


def test_groups_are_drawn_whole() -> None:
    X, y = rows(40, 0)
    copies = np.repeat(np.arange(40), 10)
    model = LogisticRegression(C=np.inf)
    one = hcal.validate(model, X[copies], y[copies], resamples=40)
    grouped = hcal.validate(model, X[copies], y[copies], groups=copies, resamples=40)
    assert grouped.auc.optimism > 3 * one.auc.optimism
    with pytest.raises(ValueError, match="needs at least 20; there are 4"):
        hcal.validate(model, X, y, groups=np.arange(40) % 4)


def test_pipelines_frames_and_labels_of_any_kind() -> None:
    X, y = rows(120, 0)
    frame = pd.DataFrame(X).add_prefix("x")
    labels = np.where(y == 1, "ill", "well")
    model = make_pipeline(StandardScaler(), LogisticRegression())
    validation = hcal.validate(model, frame, labels, positive="ill", resamples=20)
    same = hcal.validate(model, X, y, resamples=20)
    for figure, other in zip(validation.figures, same.figures, strict=True):
        assert figure.corrected == pytest.approx(other.corrected)
    assert json.loads(validation.to_json())["schema"] == "hcal/validation/1"
    assert list(validation.to_frame()["name"]) == ["slope", "intercept", "brier", "auc"]


def test_model_and_calibrator_are_validated_together() -> None:
    X, y = rows(150, 0)
    model = CalibratedClassifier(LogisticRegression(C=np.inf), method="platt")
    validation = hcal.validate(model, X, y, resamples=20)
    alone = hcal.validate(LogisticRegression(C=np.inf), X, y, resamples=20)
    # The calibrator of folds flattens what the regression overstates.
    assert validation.slope.corrected > alone.slope.corrected + 0.1


def test_what_cannot_be_validated_is_said() -> None:
    X, y = rows(60, 0)
    fitted = LogisticRegression().fit(X, y)
    for model in (FrozenEstimator(fitted), CalibratedClassifier(fitted, cv="prefit")):
        with pytest.raises(ValueError, match="is fitted already, so its optimism cannot be seen"):
            hcal.validate(model, X, y)
    with pytest.raises(ValueError, match="needs two classes, and y has 3"):
        hcal.validate(fitted, X, np.arange(60) % 3)
    with pytest.raises(ValueError, match="must have fit and predict_proba"):
        hcal.validate("pool", X, y)
    with pytest.raises(ValueError, match=r"positive must be one of \[0, 1\]"):
        hcal.validate(fitted, X, y, positive="yes")


def test_no_interval_leaves_the_range_of_its_figure() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = (4 * X[:, 0] + rng.logistic(size=120) > 0).astype(int)
    validation = hcal.validate(LogisticRegression(), X, y, resamples=30)
    assert validation.auc.corrected > 0.95
    assert validation.auc.high == 1.0
    assert 0.0 <= validation.brier.low < validation.brier.high <= 2.0
