"""Thresholds against brute force, against scikit-learn, and against their own promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hcal
from hcal.decisions import CostTable, LeastCost, ThresholdCurve, Thresholds, read_rule

COST = {"fn": 20, "fp": 1}
AIMS: list[dict[str, Any]] = [
    {"cost": COST},
    {"capacity": 0.05},
    {"precision": 0.2},
    {"recall": 0.8},
]


def rare(n: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return calibrated probabilities with 4 % positives, and labels."""
    rng = np.random.default_rng(seed)
    risk = rng.beta(1, 24, n).round(3)
    return risk, (rng.random(n) < risk).astype(int)


def chosen(p: np.ndarray, y: np.ndarray, **aim: Any) -> Thresholds:
    result = hcal.thresholds(p, y, **aim)
    assert isinstance(result, Thresholds)
    return result


def mean_cost(p: np.ndarray, y: np.ndarray, threshold: float) -> float:
    decided = p >= threshold
    missed = ~decided & (y == 1)
    false_alarm = decided & (y == 0)
    return float((20 * missed + false_alarm).mean())


def precision(p: np.ndarray, y: np.ndarray, threshold: float) -> float:
    return float(y[p >= threshold].mean())


def caught(p: np.ndarray, y: np.ndarray, threshold: float) -> int:
    return int(y[p >= threshold].sum())


def test_no_threshold_is_better_than_the_chosen_one() -> None:
    p, y = rare()
    candidates = [0.0, *np.unique(p), 1.1]
    result = chosen(p, y, cost=COST)
    assert result.cost is not None
    expected = min(mean_cost(p, y, t) for t in candidates)
    assert result.cost.value == pytest.approx(expected)
    assert result.cost.value == pytest.approx(mean_cost(p, y, result.threshold))
    assert min(point.cost or 9 for point in result.points) == result.cost.value

    result = chosen(p, y, capacity=0.05)
    shares = [(p >= t).mean() for t in candidates]
    assert result.share.value == max(share for share in shares if share <= 0.05)

    result = chosen(p, y, precision=0.2)
    precise = [(p >= t).mean() for t in candidates[:-1] if precision(p, y, t) >= 0.2]
    assert result.share.value == max(precise)

    result = chosen(p, y, recall=0.8)
    catching = [(p >= t).mean() for t in candidates if caught(p, y, t) >= 0.8 * y.sum()]
    assert result.share.value == min(catching)


@pytest.mark.parametrize("aim", AIMS, ids=lambda aim: next(iter(aim)))
def test_decisions_are_those_that_were_measured(aim: dict[str, Any], tmp_path: Path) -> None:
    p, y = rare()
    result = chosen(p, y, **aim)
    decided = hcal.decide(p, result)
    assert decided.mean() == pytest.approx(result.share.value)
    assert y[decided == 1].mean() == pytest.approx(result.precision.value)
    assert decided[y == 1].mean() == pytest.approx(result.recall.value)
    file = tmp_path / "rule.json"
    file.write_text(result.to_json(), encoding="utf-8")
    np.testing.assert_array_equal(hcal.decide(p, file), decided)
    assert read_rule(file) == result.rule
    for estimate in (result.share, result.precision, result.recall):
        assert estimate.low < estimate.value < estimate.high
    assert result.threshold_low <= result.threshold <= result.threshold_high


def test_scikit_learn_finds_no_better_threshold_and_decides_the_same() -> None:
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import confusion_matrix, make_scorer
    from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV

    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    rate = 1 / (1 + np.exp(4 - X @ [1.0, 0.5, 0.2]))
    y = (rng.random(2000) < rate).astype(int)
    model = LogisticRegression().fit(X[:1000], y[:1000])
    X = X[1000:]
    y = y[1000:]
    p = model.predict_proba(X)[:, 1]

    def gain(truth: np.ndarray, decided: np.ndarray) -> float:
        table = confusion_matrix(truth, decided)
        return -float(20 * table[1, 0] + table[0, 1])

    search = {"cv": "prefit", "refit": False, "thresholds": 500}
    tuned = TunedThresholdClassifierCV(model, scoring=make_scorer(gain), **search)
    tuned.fit(X, y)
    ours = chosen(p, y, cost=COST)
    assert ours.cost is not None
    assert ours.cost.value <= -tuned.best_score_ / len(y) + 1e-12
    expected = -tuned.best_score_ / len(y)
    assert ours.cost.value == pytest.approx(expected, rel=0.02)
    fixed = FixedThresholdClassifier(FrozenEstimator(model), threshold=ours.threshold).fit(X, y)
    np.testing.assert_array_equal(fixed.predict(X), hcal.decide(p, ours))


def test_new_rows_cost_what_is_expected_and_not_what_was_seen() -> None:
    """The chosen threshold looks too cheap on its own rows; the correction removes most of it."""
    seen, expected, true = [], [], []
    fresh, fresh_y = rare(200_000, seed=1000)
    for seed in range(60):
        p, y = rare(400, seed)
        result = hcal.thresholds(p, y, cost=COST, resamples=100)
        assert isinstance(result, Thresholds)
        assert result.cost is not None
        seen.append(result.cost.value)
        expected.append(result.on_new_rows)
        true.append(mean_cost(fresh, fresh_y, result.threshold))
    optimism = np.mean(true) - np.mean(seen)
    assert optimism > 0.02
    assert abs(np.mean(true) - np.mean(expected)) < 0.6 * optimism


def test_a_weight_is_so_many_rows_and_groups_are_drawn_as_a_whole() -> None:
    p, y = rare(1500)
    weight = np.random.default_rng(1).integers(0, 4, len(p))
    weighted = chosen(p, y, cost=COST, sample_weight=weight)
    copies = np.repeat(np.arange(len(p)), weight)
    repeated = chosen(p[copies], y[copies], cost=COST)
    assert weighted.threshold == pytest.approx(repeated.threshold)
    assert weighted.recall == repeated.recall

    alone = chosen(p, y, cost=COST, groups=np.arange(len(p)))
    assert alone.cost is not None
    plain = chosen(p, y, cost=COST).cost
    assert plain is not None
    width = alone.cost.high - alone.cost.low
    assert width == pytest.approx(plain.high - plain.low, rel=0.1)
    fourfold = np.tile(np.arange(len(p)), 4)
    grouped = chosen(p[fourfold], y[fourfold], cost=COST, groups=fourfold).cost
    assert grouped is not None
    assert grouped.value == pytest.approx(plain.value)
    assert grouped.high - grouped.low == pytest.approx(plain.high - plain.low, rel=0.1)


def test_intervals_cover_the_truth_of_a_fixed_threshold() -> None:
    """At a capacity the threshold is nearly fixed, so precision and recall have nominal intervals."""
    fresh, fresh_y = rare(400_000, seed=999)
    inside = []
    for seed in range(150):
        p, y = rare(3000, seed)
        result = hcal.thresholds(p, y, capacity=0.2, resamples=200)
        assert isinstance(result, Thresholds)
        decided = fresh >= result.threshold
        inside.append(result.precision.low < fresh_y[decided].mean() < result.precision.high)
    assert np.mean(inside) > 0.9


def test_intervals_cover_the_truth_of_a_chosen_threshold() -> None:
    """The choice makes its own figures look good: bootstrap percentiles alone hold the true cost in 87 %."""
    all_p, all_y = rare(400_000, seed=1000)
    draws = 150
    covered = dict.fromkeys(["cost", "precision", "recall", "net_benefit"], 0)
    for seed in range(draws):
        p, y = rare(1500, seed)
        result = hcal.thresholds(p, y, cost=COST, resamples=200)
        assert isinstance(result, Thresholds)
        decided = all_p >= result.threshold
        caught = float((decided * all_y).mean())
        cost = mean_cost(all_p, all_y, result.threshold)
        truth = {
            "cost": cost,
            "precision": caught / float(decided.mean()),
            "recall": caught / float(all_y.mean()),
            "net_benefit": float(all_y.mean()) - cost / 20,
        }
        for name, value in truth.items():
            estimate = getattr(result, name)
            covered[name] += bool(estimate.low <= value <= estimate.high)
    assert min(covered.values()) >= 0.91 * draws, covered
    assert max(covered.values()) <= 0.995 * draws, covered


def test_a_table_of_costs_decides_for_the_least_expected_cost() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 2000)
    cumulated = p.cumsum(axis=1)
    y = (cumulated > rng.random((2000, 1))).argmax(axis=1)
    costs = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [10.0, 1.0, 0.0]])
    result = hcal.thresholds(p, y, cost=costs, classes=["a", "b", "c"])
    assert isinstance(result, CostTable)
    decisions = (p @ costs).argmin(axis=1)
    names = np.array(["a", "b", "c"])
    np.testing.assert_array_equal(hcal.decide(p, result), names[decisions])
    assert result.cost.value == pytest.approx(costs[y, decisions].mean())
    assert result.cost.low < result.predicted_cost < result.cost.high
    assert result.cost.value < result.most_probable_cost
    two = hcal.thresholds(p[:, 1], y == 1, cost=[[0, 1], [20, 0]])
    decided = hcal.decide(p[:, 1], two)
    np.testing.assert_array_equal(decided, p[:, 1] > 1 / 21)


def test_bad_questions_get_one_line() -> None:
    p, y = rare(300)
    for arguments, message in (
        ({}, "give one of cost, capacity, precision and recall; got none"),
        ({"recall": 0.5, "capacity": 0.1}, "got capacity and recall"),
        ({"cost": {"fn": 1}}, "cost must be"),
        ({"cost": {"fn": -1, "fp": 1}}, "not negative"),
        ({"capacity": 5}, "between 0 and 1, such as 0.05"),
        ({"precision": 0.999}, "no threshold has that precision: the best one here has"),
        ({"cost": [[0, 1, 2]] * 3}, "3 rows and columns for 2 classes"),
        ({"cost": COST, "positive": 2}, "positive must be 0 or 1"),
    ):
        with pytest.raises(ValueError, match=message):
            hcal.thresholds(p, y, **arguments)
    with pytest.raises(ValueError, match="one class alone"):
        hcal.thresholds(p, np.zeros(300, dtype=int), cost=COST)
    with pytest.raises(ValueError, match="the rule is for 2 classes, and probs has 3 columns"):
        hcal.decide([[0.2, 0.3, 0.5]], 0.4)
    with pytest.raises(ValueError, match="rule must be a result"):
        hcal.decide(p, {"threshold": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "hcal/evaluate/1"}, "a rule is the JSON of hcal.thresholds"),
        ({"threshold": "x"}, "'threshold' must be a number from 0 to 1"),
        ({"threshold": True}, "'threshold' must be a number from 0 to 1"),
        ({"threshold": 7}, "'threshold' must be a number from 0 to 1"),
        ({"positive": 2}, "'positive' must be 0 or 1"),
        ({"names": "ab"}, "'names' must be a list"),
        ({"names": ["a", "b", "c"]}, "3 names for 2 classes"),
    ],
)
def test_nothing_in_a_saved_rule_is_trusted(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    p, y = rare(300)
    content = hcal.thresholds(p, y, recall=0.5, classes=["no", "yes"]).to_dict()
    file = tmp_path / "rule.json"
    file.write_text(json.dumps(content | change), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        hcal.decide(p, file)


def test_all_none_and_ties() -> None:
    p = np.array([0.2, 0.2, 0.6, 0.6])
    y = np.array([0, 1, 0, 1])
    nobody = chosen(p, y, cost={"fn": 1, "fp": 20})
    assert nobody.share.value == 0
    assert hcal.decide(p, nobody).sum() == 0
    assert "No row" in str(nobody)
    everybody = chosen(p, y, cost=COST)
    assert everybody.share.value == 1
    assert everybody.threshold == 0
    risks = np.array([0.0, 1.0, 1.0])
    certain = chosen(risks, np.array([1, 0, 1]), cost={"fn": 1, "fp": 20})
    assert hcal.decide([0.0, 1.0], certain).tolist() == [0, 0]
    tied = chosen(np.full(100, 0.3), np.arange(100) % 3 == 0, capacity=0.5)
    assert tied.share.value == 0


def test_neighbouring_floats_are_told_apart() -> None:
    low = 0.3
    high = float(np.nextafter(low, 1))
    curve = ThresholdCurve.of_rows(np.array([low, high]), np.array([0, 1]))
    cut = int(LeastCost(1, 1).choose(curve.counts))
    assert low < curve.threshold(cut) <= high


def test_the_command_chooses_saves_and_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hcal.cli.app import app

    monkeypatch.chdir(tmp_path)
    p, y = rare(2000)
    lines = [f"{i},{p[i]},{y[i]}" for i in range(2000)]
    Path("old.csv").write_text("\n".join(["id,prob,y", *lines]), encoding="utf-8")
    without_labels = ["id,prob", *(line.rpartition(",")[0] for line in lines)]
    Path("new.csv").write_text("\n".join(without_labels), encoding="utf-8")
    read = ["--scores", "prob", "--input", "probs", "--id", "id"]
    run = CliRunner().invoke
    result = run(app, ["decide", "old.csv", *read, "--cost", "fn=20,fp=1", "--save", "r.json"])
    assert result.exit_code == 0, result.output
    assert "on new rows expect" in result.output
    result = run(app, ["decide", "new.csv", *read, "--rule", "r.json", "-o", "out.csv", "--json"])
    assert result.exit_code == 0, result.output
    decided = hcal.decide(p, "r.json")
    assert json.loads(result.output)["decided"]["1"] == decided.sum()
    written = Path("out.csv").read_text(encoding="utf-8").splitlines()
    assert written[0] == "id,decision,probs_0,probs_1"
    decisions = [int(line.split(",")[1]) for line in written[1:]]
    assert decisions == decided.tolist()
    result = run(app, ["decide", "new.csv", *read, "--threshold", "0.2", "--json"])
    counts = {"0": int((p < 0.2).sum()), "1": int((p >= 0.2).sum())}
    assert json.loads(result.output)["decided"] == counts
    Path("costs.json").write_text("[[0, 1], [20, 0]]", encoding="utf-8")
    result = run(app, ["decide", "old.csv", *read, "--cost", "costs.json"])
    assert "the probabilities expected" in result.output
    result = run(app, ["decide", "new.csv", *read, "--cost", "fn=20,fp=1"])
    assert result.exit_code == 1
    assert "has no labels" in result.output
    result = run(app, ["decide", "new.csv", *read])
    assert result.exit_code == 1
    assert "give one of --cost" in result.output
