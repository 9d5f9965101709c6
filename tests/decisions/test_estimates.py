"""Estimates without labels: against simulations with known labels, against the definition, and against NannyML."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk
from typer.testing import CliRunner

import hcal
from hcal.decisions.expectation import ASSUMPTIONS, Unlabelled, expect

NANNYML = Path(__file__).with_name("nannyml.json")
COST = {"fn": 20, "fp": 1}


def measured(name: str, risk: np.ndarray, y: np.ndarray, threshold: float) -> float:
    """Return a metric of rows whose labels are known."""
    decided = (risk >= threshold).astype(int)
    probs = np.stack([1 - risk, risk], axis=1)
    if name == "cost":
        return float(np.mean(20 * (y > decided) + (decided > y)))
    if name == "rate":
        return float(y.mean())
    if name == "auc":
        return float(sk.roc_auc_score(y, risk))
    if name == "specificity":
        return float(sk.recall_score(1 - y, 1 - decided))
    if name in ("brier", "nll"):
        return float(getattr(hcal.metrics, name)(probs, y))
    if name == "accuracy":
        return float(sk.accuracy_score(y, decided))
    return float(getattr(sk, f"{name}_score")(y, decided))


def test_estimates_of_calibrated_probabilities_are_right_and_their_intervals_cover() -> None:
    names = list(ASSUMPTIONS)
    draws = 200
    gaps = np.zeros((draws, len(names)))
    covered = np.zeros(len(names))
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        risk = rng.beta(1, 9, 2000)
        y = (rng.random(2000) < risk).astype(int)
        estimates = hcal.estimate(risk, names, rule=0.1, cost=COST)
        truth = np.array([measured(name, risk, y, 0.1) for name in names])
        gaps[seed] = [metric.value for metric in estimates.metrics] - truth
        low = np.array([metric.low for metric in estimates.metrics])
        high = np.array([metric.high for metric in estimates.metrics])
        covered += (low <= truth) & (truth <= high)
    noise = gaps.std(axis=0) / np.sqrt(draws)
    assert (np.abs(gaps.mean(axis=0)) < 3.5 * noise).all()
    assert (covered / draws >= 0.9).all()
    assert (covered / draws <= 0.995).all()


def test_expectations_are_sums_over_all_labels() -> None:
    """Four rows have sixteen labellings: each metric is averaged over them by hand."""
    risk = np.array([0.1, 0.4, 0.4, 0.8])
    decided = (risk >= 0.3).astype(int)
    probs = np.stack([1 - risk, risk], axis=1)
    costs = np.array([[0.0, 1.0], [20.0, 0.0]])
    rows = Unlabelled(probs, np.ones(4), decided, 1, costs)
    for name in ("accuracy", "cost", "brier", "nll", "rate", "precision"):
        mean = 0.0
        square = 0.0
        for labels in product([0, 1], repeat=4):
            y = np.array(labels)
            chance = float(probs[np.arange(4), y].prod())
            value = 0.0 if name == "precision" else measured(name, risk, y, 0.3)
            if name == "precision":
                value = float(y[decided == 1].mean())
            mean += chance * value
            square += chance * value**2
        expected = expect(name, rows)
        assert expected.value == pytest.approx(mean)
        assert expected.deviation == pytest.approx(np.sqrt(square - mean**2))


def test_several_classes_average_over_them() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.4, 0.6, 0.8], 30_000)
    cumulated = probs.cumsum(axis=1)
    y = (cumulated < rng.random((30_000, 1))).sum(axis=1)
    table = np.array([[0.0, 1, 5], [2, 0, 1], [10, 3, 0]])
    estimates = hcal.estimate(probs, list(ASSUMPTIONS), cost=table)
    decided = hcal.decisions.CostRule(table).decide(probs)
    truth = {
        "accuracy": sk.accuracy_score(y, decided),
        "precision": sk.precision_score(y, decided, average="macro"),
        "recall": sk.recall_score(y, decided, average="macro"),
        "f1": sk.f1_score(y, decided, average="macro"),
        "auc": sk.roc_auc_score(y, probs, multi_class="ovr"),
        "cost": table[y, decided].mean(),
        "brier": hcal.metrics.brier(probs, y),
        "nll": hcal.metrics.nll(probs, y),
    }
    for name, value in truth.items():
        metric = estimates[name]
        assert metric.low - 0.5 * (metric.high - metric.low) < value
        assert value < metric.high + 0.5 * (metric.high - metric.low)


def test_a_weight_is_a_number_of_rows() -> None:
    risk = np.random.default_rng(0).beta(1, 4, 300)
    weight = np.arange(300) % 3 + 1
    names = [name for name in ASSUMPTIONS if name != "cost"]
    one = hcal.estimate(risk, names, sample_weight=weight)
    other = hcal.estimate(np.repeat(risk, weight), names)
    for metric, copy in zip(one.metrics, other.metrics, strict=True):
        assert metric.value == pytest.approx(copy.value)
        assert metric.high == pytest.approx(copy.high)


def test_nannyml_estimates_the_same() -> None:
    content = json.loads(NANNYML.read_text(encoding="utf-8"))
    n = content["rows"]
    assert content["version"] == "0.13.1"
    assert not content["calibrated_again"]
    risk = 0.95 * ((np.arange(n) + 0.5) / n) ** 3
    names = {"auc": "roc_auc", "f1": "f1", "precision": "precision", "recall": "recall"}
    names |= {"specificity": "specificity", "accuracy": "accuracy"}
    estimates = hcal.estimate(risk, [*names, "cost"], rule=content["threshold"], cost=COST)
    for name, theirs in names.items():
        assert estimates[name].value == pytest.approx(content["values"][theirs], abs=2e-4)
    assert -n * estimates["cost"].value == pytest.approx(content["values"]["business_value"])


def test_segments_are_their_rows() -> None:
    rng = np.random.default_rng(0)
    risk = rng.beta(1, 4, 900)
    country = np.array(["DE", "FR", "IT"])[np.arange(900) % 3]
    estimates = hcal.estimate(risk, ["recall", "auc"], by={"country": country}, rule=0.3)
    for entry in estimates.segments:
        alone = hcal.estimate(risk[country == entry.segment], ["recall", "auc"], rule=0.3)
        assert entry.metrics == alone.metrics
        assert entry.n == 300
    assert [entry.segment for entry in estimates.segments] == ["DE", "FR", "IT"]
    segments = list(estimates.to_frame()["segment"])
    assert segments == ["", "", "DE", "DE", "FR", "FR", "IT", "IT"]
    assert "country" in str(estimates)


def test_a_rule_brings_its_threshold_and_its_costs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    risk = rng.beta(1, 9, 4000)
    chosen = hcal.thresholds(risk, rng.random(4000) < risk, cost=COST)
    new = rng.beta(1, 9, 4000)
    estimates = hcal.estimate(new, rule=chosen)
    same = hcal.estimate(new, rule=chosen.threshold, cost=COST)
    assert estimates["cost"] == same["cost"]
    (tmp_path / "rule.json").write_text(chosen.to_json(), encoding="utf-8")
    saved = hcal.estimate(new, "recall", rule=tmp_path / "rule.json")
    assert saved["recall"] == estimates["recall"]
    assert hcal.require(estimates, ["recall>0.5", "cost<1"]).passed


def test_what_has_no_value_is_a_dash_and_what_is_asked_wrongly_a_sentence() -> None:
    estimates = hcal.estimate([0.1, 0.2], ["precision", "recall"])
    assert np.isnan(estimates["precision"].value)
    assert estimates["recall"].value == 0.0
    assert "precision –" in repr(estimates)
    with pytest.raises(ValueError, match="'ece' cannot be estimated without labels; there are"):
        hcal.estimate([0.1, 0.2], "ece")
    with pytest.raises(ValueError, match="the metric 'cost' needs cost="):
        hcal.estimate([0.1, 0.2], "cost")
    with pytest.raises(ValueError, match="the rule is for 2 classes, and probs has 3 columns"):
        hcal.estimate(np.full((4, 3), 1 / 3), rule=0.2)
    with pytest.raises(ValueError, match="cost of fn and fp is for two classes"):
        hcal.estimate(np.full((4, 3), 1 / 3), cost=COST)
    kept = hcal.abstain_below([0.9] * 100, [1] * 100, error=0.2)
    with pytest.raises(ValueError, match="pass the answered rows alone"):
        hcal.estimate([0.1, 0.2], rule=kept)


def test_the_command_estimates_by_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hcal.cli.app import app

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    risk = rng.beta(1, 9, 500)
    countries = np.where(np.arange(500) % 2, "DE", "FR")
    frame = pd.DataFrame({"probs": risk, "country": countries})
    frame.to_csv("new.csv", index=False)
    words = ["estimate", "new.csv", "--threshold", "0.1", "--cost", "fn=20,fp=1", "--by", "country"]
    content = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    expected = hcal.estimate(risk, rule=0.1, cost=COST, by={"country": frame["country"]})
    about_the_file = {"file": "new.csv", "input": "probs", "part": None, "class_names": None}
    assert content == json.loads(expected.to_json()) | about_the_file
    printed = CliRunner().invoke(app, words).output
    assert "rows on both sides of the threshold are positive as often as stated" in printed
    assert "DE" in printed


def test_there_is_a_picture_of_segments() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    risk = np.random.default_rng(0).beta(1, 4, 90)
    by = {"country": np.array(["DE", "FR", "IT"])[np.arange(90) % 3]}
    axes = hcal.estimate(risk, by=by).plot(metric="auc")
    assert axes.get_xlabel() == "expected auc"
    with pytest.raises(ValueError, match="pass by="):
        hcal.estimate(risk).plot()
    pyplot.close("all")


def test_the_share_of_positives_is_a_figure_of_two_classes() -> None:
    three = hcal.estimate([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])
    assert "rate" not in three.values
    assert hcal.estimate([0.2, 0.7])["rate"].value == pytest.approx(0.45)
