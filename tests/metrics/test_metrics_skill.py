"""D² and the area under the ROC curve against scikit-learn, with weights, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import d2_log_loss_score, roc_auc_score

from hcal import metrics
from hcal.metrics.estimates import concordance
from hcal.metrics.registry import METRICS
from studies.worlds import draw_labels


def drawn(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated probabilities with ties, and labels."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(k), n).round(2) + 1e-3
    p /= p.sum(axis=1, keepdims=True)
    return p, draw_labels(p, rng)


@pytest.mark.parametrize("k", [2, 5])
def test_scikit_learn_says_the_same(k: int) -> None:
    p, y = drawn(400, k)
    weight = np.random.default_rng(1).integers(0, 4, 400).astype(float)
    for w in (None, weight):
        expected = d2_log_loss_score(y, p, sample_weight=w)
        assert metrics.d2_nll(p, y, sample_weight=w) == pytest.approx(expected)
        score = p[:, 1] if k == 2 else p
        options = {} if k == 2 else {"multi_class": "ovr"}
        if w is None or k == 2:
            expected = roc_auc_score(y, score, sample_weight=w, **options)
            # Rows that were divided by their sum tie, or not, by their last bits.
            assert metrics.auc(p, y, sample_weight=w) == pytest.approx(expected, abs=1e-4)
    frequency = np.bincount(y) / len(y)
    base = np.broadcast_to(frequency, p.shape)
    expected = 1 - metrics.brier(p, y) / metrics.brier(base, y)
    assert metrics.d2_brier(p, y) == pytest.approx(expected)


def test_a_weight_is_a_repetition() -> None:
    p, y = drawn(60, 4)
    weight = np.arange(60) % 3
    rows = np.repeat(np.arange(60), weight)
    for name in ("d2_nll", "d2_brier", "auc"):
        function = getattr(metrics, name)
        expected = function(p[rows], y[rows])
        assert function(p, y, sample_weight=weight) == pytest.approx(expected)


def test_base_rates_have_no_skill_and_one_class_has_no_answer() -> None:
    y = np.arange(90) % 3
    base = np.full((90, 3), 1 / 3)
    assert metrics.d2_nll(base, y) == pytest.approx(0)
    assert metrics.d2_brier(base, y) == pytest.approx(0)
    assert metrics.auc(base, y) == 0.5
    for name in ("d2_nll", "d2_brier", "auc"):
        assert np.isnan(getattr(metrics, name)(base, np.zeros(90, dtype=int)))


@pytest.mark.parametrize(("name", "k"), [("d2_nll", 2), ("d2_brier", 4), ("auc", 2), ("auc", 4)])
def test_intervals_cover(name: str, k: int) -> None:
    truth = getattr(metrics, name)(*drawn(200_000, k, 1))
    covered = 0
    for seed in range(100):
        s = metrics.Sample(*drawn(150, k, 10 + seed))
        low, high = METRICS[name].ends(s, METRICS[name].function(s), 1.959964)
        covered += low <= truth <= high
    # 88 or fewer of 100 at a nominal 95 % have a probability of 0.4 %.
    assert covered >= 89


def test_few_outcomes_have_no_interval() -> None:
    p, y = drawn(100, 2)
    y = np.where(np.arange(100) < 5, 1, 0)
    s = metrics.Sample(p, y)
    for name in ("d2_nll", "auc"):
        metric = METRICS[name]
        assert metric.ends(s, metric.function(s), 1.96) is None


def test_one_outcome_has_no_area() -> None:
    for outcome in (0, 1):
        assert np.isnan(concordance(np.array([0.3, 0.4]), np.array([outcome, outcome])))
