"""hcal.evaluate: the numbers, the words, the forms."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import hcal
from hcal.metrics.testing import calibration_test
from hcal.numerics import log_softmax, softmax
from helpers import load_task, synthetic

LOGITS, Y = synthetic(400, 4)
P = softmax(LOGITS)


def test_all_metrics_by_default_and_each_is_the_plain_function() -> None:
    result = hcal.evaluate(P, Y)
    assert list(result.values) == hcal.list_metrics()
    for name, value in result.values.items():
        assert value == getattr(hcal.metrics, name)(P, Y)
        assert result[name] == value
        assert result.interval(name) is None
    assert result.accuracy == hcal.metrics.accuracy(P, Y)
    assert result.mean_confidence == pytest.approx(P.max(1).mean())
    assert 0 < result.sharpness < 1
    assert not result.collapsed
    assert result.warnings == []


def test_metrics_are_chosen_by_name_or_level() -> None:
    assert list(hcal.evaluate(P, Y, metrics="nll").values) == ["nll"]
    result = hcal.evaluate(P, Y, metrics=["score", "ks"])
    assert list(result.values) == [*hcal.list_metrics("score"), "ks"]
    assert list(hcal.evaluate(P, Y, metrics="all").values) == hcal.list_metrics()


def test_input_kinds_and_libraries_agree() -> None:
    expected = hcal.evaluate(P, Y, metrics="score").values
    for result in (
        hcal.evaluate(LOGITS, Y, metrics="score", input="logits"),
        hcal.evaluate(log_softmax(LOGITS), Y, metrics="score", input="log_probs"),
        hcal.evaluate(torch.from_numpy(P), torch.from_numpy(Y), metrics="score"),
        hcal.evaluate(hcal.metrics.Sample(P, Y), None, metrics="score"),
    ):
        assert result.values == pytest.approx(expected, rel=1e-10)


def test_intervals_test_and_seed() -> None:
    chosen = ["ece_ew", "dece", "cwece_a", "nll", "accuracy"]
    result = hcal.evaluate(P, Y, metrics=chosen, confidence=0.9, resamples=100)
    for name in chosen:
        low, high = result.interval(name)
        assert low <= result[name] <= high
    wide = hcal.evaluate(P, Y, metrics=chosen, confidence=0.99, resamples=100)
    assert wide.interval("nll")[1] > result.interval("nll")[1]
    assert result.test.p_value < 0.01
    again = hcal.evaluate(P, Y, metrics=chosen, confidence=0.9, resamples=100)
    assert again.to_json() == result.to_json()
    untested = hcal.evaluate(P, Y, metrics="nll", confidence=0.9, resamples=50, test=False)
    assert untested.test is None
    assert hcal.evaluate(P, Y, metrics="nll", test=True).test is not None


def test_baseline_gives_paired_differences() -> None:
    q = softmax(LOGITS / 2.5)  # what the labels were drawn from
    names = ["nll", "ece_ew", "dece", "skce"]
    result = hcal.evaluate(q, Y, metrics=names, confidence=0.95, baseline=P, resamples=200)
    for name, d in result.differences.items():
        assert d.before == getattr(hcal.metrics, name)(P, Y)
        assert d.change == pytest.approx(result[name] - d.before)
    assert result.differences["nll"].high < 0
    assert result.differences["ece_ew"].high < 0
    assert result.differences["skce"].low is None
    # Paired: much narrower than the two intervals apart.
    d = result.differences["nll"]
    interval = result.interval("nll")
    assert d.high - d.low < 2 * (interval[1] - interval[0])
    names = ["nll", "ece_ew"]
    same = hcal.evaluate(P, Y, metrics=names, confidence=0.95, baseline=P, resamples=50)
    assert same.differences["nll"].low == 0.0
    assert same.differences["ece_ew"].high == 0.0


def test_paired_interval_covers_the_true_difference() -> None:
    """Differences of NLL between two predictors of known truth, 60 sets of N = 300, K = 3: nominal 95 %."""
    covered = 0
    rng = np.random.default_rng(0)
    z = 1.5 * rng.normal(size=(200_000, 3))
    p = softmax(z)
    truth = (p * (log_softmax(z) - log_softmax(1.5 * z))).sum(1).mean()
    for seed in range(60):
        logits, y = synthetic(300, 3, scale=1.0, seed=seed)
        result = hcal.evaluate(
            softmax(1.5 * logits),
            y,
            metrics="nll",
            confidence=0.95,
            baseline=softmax(logits),
            resamples=200,
            test=False,
        )
        d = result.differences["nll"]
        covered += d.low <= truth <= d.high
    assert covered >= 51  # a binomial of 0.95 falls below in one case of 300


def test_forms_for_machines() -> None:
    names = ["ece_ew", "skce", "dkde_ce", "nll"]
    result = hcal.evaluate(P, Y, metrics=names, confidence=0.95, resamples=50, baseline=P)
    content = json.loads(result.to_json())
    assert content["metrics"]["nll"]["value"] == result["nll"]
    assert content["metrics"]["nll"]["low"] == result.interval("nll")[0]
    assert content["metrics"]["dkde_ce"]["interval"] == "bias-aware"
    assert content["metrics"]["dkde_ce"]["chance"] == result.by_chance["dkde_ce"]
    assert content["metrics"]["nll"]["chance"] is None
    assert content["n"] == 400
    assert content["k"] == 4
    assert content["collapsed"] is False
    assert pickle.loads(pickle.dumps(result)).results == result.results  # metrics by their names
    frame = result.to_frame()
    assert frame.loc["ece_ew", "value"] == result["ece_ew"]
    assert list(frame.index) == list(result.values)
    one = hcal.evaluate(P[:1], Y[:1])
    assert json.loads(one.to_json())["metrics"]["skce"]["value"] is None  # a single row has no pair


def test_forms_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    result = hcal.evaluate(P, Y, confidence=0.95, resamples=50)
    text = str(result)
    for word in ("400 rows, 4 classes", "top-label", "class-wise", "canonical", "ece_ew", "95%"):
        assert word in text
    for word in ("by chance", "mean confidence", "sharpness", "p ≤ 0.001"):
        assert word in text
    assert "Exactly calibrated: refuted" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 120
    assert len(repr(result).splitlines()) <= 4
    assert "ece_ew" in repr(result)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, str(result).splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "300")
    assert all(name in result._repr_html_() for name in hcal.list_metrics())
    plain = str(hcal.evaluate(P, Y, metrics="score"))
    assert "what it says" in plain
    assert "proper score" in plain


def test_uniform_predictor_is_collapsed_even_where_hce_is_zero() -> None:
    y = np.arange(1000) % 10
    result = hcal.evaluate(np.full((1000, 10), 0.1), y)
    assert result["hce"] < 0.02
    assert result["cwece_a"] == pytest.approx(0, abs=1e-12)
    assert result.collapsed
    assert "the predictions say nothing" in result.warnings[0]
    assert "COLLAPSED PREDICTOR" in str(result)
    assert "COLLAPSED PREDICTOR" in result._repr_html_()


def test_a_near_uniform_predictor_is_collapsed_whatever_the_number_of_classes() -> None:
    for k in (2, 4, 10, 1000):
        # Right in half of the way between guessing and certainty, stating a tenth of that.
        facts = {"nll": 1.0, "n_classes": k, "accuracy": 0.5 + 0.5 / k}
        assert hcal.evaluation.collapse_reasons(**facts, mean_confidence=0.05 + 0.95 / k)
        # Half of what it knows: too cautious, but it says something.
        assert not hcal.evaluation.collapse_reasons(**facts, mean_confidence=0.25 + 0.75 / k)


def test_collapse_on_real_outputs() -> None:
    cal, y_cal, logits, y = load_task("cifar100_resnet50")
    before = softmax(logits.astype(np.float64))
    names = ["cwece_a", "nll"]
    timid = softmax(0.05 * logits.astype(np.float64))
    flat = hcal.evaluate(timid, y, metrics=names, baseline=before)
    assert flat.collapsed
    assert flat["cwece_a"] < flat.differences["cwece_a"].before  # this is the trap
    assert hcal.evaluate(timid, y, metrics=names).collapsed  # recognised without a baseline
    assert hcal.evaluate(np.full_like(before, 0.01), y, metrics=names).collapsed
    scaled = hcal.make_calibrator("ts").fit(cal, y_cal).predict_proba(logits)
    assert not hcal.evaluate(scaled, y, metrics=names, baseline=before).collapsed
    assert not hcal.evaluate(before, y, metrics=names).collapsed


def test_weights() -> None:
    w = np.random.default_rng(0).integers(0, 3, 400)
    rows = np.repeat(np.arange(400), w)
    chosen = ["ece_ew", "dece", "cwece_a", "nll"]
    weighted = hcal.evaluate(P, Y, metrics=chosen, sample_weight=w).values
    repeated = hcal.evaluate(P[rows], Y[rows], metrics=chosen)
    assert weighted == pytest.approx(repeated.values, rel=1e-9)
    result = hcal.evaluate(P, Y, sample_weight=w + 0.5)
    counts = [n for n, m in hcal.metrics.METRICS.items() if m.weights != "any"]
    assert set(result.values) == set(hcal.list_metrics()) - set(counts)
    note = f"left out, because they need whole repetition counts as weights: {', '.join(counts)}"
    assert result.notes == (note,)
    with pytest.raises(ValueError, match="dece counts samples"):
        hcal.evaluate(P, Y, metrics="dece", sample_weight=w + 0.5)
    settings = {"metrics": ["nll", "ece_ew"], "confidence": 0.95, "resamples": 50}
    ci = hcal.evaluate(P, Y, sample_weight=w + 0.5, **settings)
    assert ci.interval("nll")[0] < ci["nll"] < ci.interval("nll")[1]
    assert ci.test is None


def test_coinciding_rows_warn() -> None:
    with pytest.warns(UserWarning, match="About 50 % of the 400 rows were used to fit"):
        result = hcal.evaluate(P, Y, metrics="nll", calibration=P[:200])
    assert "look smaller than on new rows" in result.warnings[0]
    result = hcal.evaluate(P[:200], Y[:200], metrics="nll", calibration=P[200:])
    assert result.warnings == []


def test_bad_options_are_named() -> None:
    for options, message in (
        ({"confidence": 95}, "confidence must lie between 0 and 1"),
        ({"confidence": 0.95, "resamples": 3}, "resamples must be"),
        ({"input": "scores"}, "input must be one of"),
        ({"metrics": ["ece"]}, "unknown metric 'ece'; the metrics are ece_ew, ece_em"),
        ({"metrics": []}, "metrics is empty"),
        (
            {"baseline": np.full((400, 5), 0.2)},
            "baseline has 5 classes, and the predictions have 4",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            hcal.evaluate(P, Y, **({"metrics": "nll"} | options))


def test_old_words_are_refused_with_the_new_ones(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    for call, old, new in (
        (lambda **words: hcal.evaluate(P, Y, metrics="nll", **words), "ci", "confidence"),
        (lambda **words: hcal.evaluate(P, Y, metrics="nll", **words), "n_resamples", "resamples"),
        (lambda **words: hcal.clinical(P, Y, **words), "ci", "confidence"),
        (lambda **words: hcal.reliability(P, Y, **words), "ci", "confidence"),
        (lambda **words: hcal.report(None, P, Y, page, input="probs", **words), "ci", "confidence"),
        (lambda **words: calibration_test(P, Y, **words), "n_resamples", "resamples"),
    ):
        with pytest.raises(TypeError, match=f"no argument '{old}': .* '{new}'"):
            call(**{old: 20})


def test_two_classes_are_told_by_the_positive_one() -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(1, 9, 3000)
    y = (rng.random(3000) < p).astype(int)
    names = ["well", "sick"]
    evaluation = hcal.evaluate(
        p, np.array(names)[y], metrics=["nll"], confidence=0.95, classes=names
    )
    positive = evaluation.positive
    assert set(vars(positive)) == {"name", "stated", "observed"}
    assert positive.name == "sick"
    assert positive.stated == pytest.approx(p.mean())
    assert positive.observed == y.mean()
    text = " ".join(str(evaluation).split())
    assert "P(sick) stated" in text
    assert f"slope {evaluation.clinical.slope}" in text
    assert evaluation.clinical.auc == hcal.clinical(p, y).auc
    assert evaluation.assessment.estimate == evaluation.certificate.headline.estimate
    other = hcal.evaluate(p, y, metrics=["nll"], confidence=0.95, positive=0)
    assert other.positive.observed == pytest.approx(1 - y.mean())
    assert json.loads(other.to_json())["assessment"]["event"] == "P(class 0)"
    with pytest.raises(ValueError, match="positive must be 0 or 1"):
        hcal.evaluate(p, y, metrics=["nll"], positive=3)


def test_groups_are_certified_worst_first() -> None:
    rng = np.random.default_rng(0)
    p = np.full((6000, 3), 0.05)
    p[:, 0] = 0.9
    group = np.where(np.arange(6000) < 1500, "bad", "good")
    rate_of_0 = np.where(group == "bad", 0.75, 0.9)
    y = np.where(rng.random(6000) < rate_of_0, 0, 1)
    evaluation = hcal.evaluate(p, y, metrics=["ece_ew"], by=group)
    proven = [(group.name, group.proven) for group in evaluation.groups]
    assert proven == [("bad", "over"), ("good", "")]
    text = " ".join(str(evaluation).split())
    assert "Segment bad (1,500 rows): its probabilities are too high on average by at least" in text
    assert json.loads(evaluation.to_json())["groups"][0]["group"] == "bad"
    with pytest.raises(ValueError, match="leave the weights out"):
        hcal.evaluate(p, y, metrics=["ece_ew"], by=group, sample_weight=np.ones(6000))


def test_two_classes_show_the_positive_one() -> None:
    p = np.array([0.1, 0.2, 0.9])
    y = np.array([0, 0, 1])
    assert hcal.reliability(p, y).level == "positive"
    for options, title in (
        ({}, "class 1"),
        ({"positive": 0}, "class 0"),
        ({"level": "top-label"}, "top label"),
    ):
        assert hcal.reliability(p, y, **options)[0].title == title
    with pytest.raises(ValueError, match="positive must be 0 or 1"):
        hcal.reliability(p, y, positive=2)


def test_an_evaluation_of_which_some_metrics_have_a_baseline_is_shown() -> None:
    from hcal.reporting import measure_report

    z, y = synthetic(300, 3)
    calibrator = hcal.make_calibrator("ts").fit(z, y)
    evaluation = measure_report(z, y, calibrator).after.evaluation
    assert set(evaluation.differences) < set(evaluation.results)
    assert "ece_em" in str(evaluation)
