"""With two classes every top-label metric judges P(positive), by every way in, as in other packages."""

from __future__ import annotations

import json

import numpy as np
import oracles
import pytest
import write_netcal
from test_metrics_oracles import draw

import hcal
from hcal import metrics
from hcal.metrics.resampling import bootstrap, chance, intervals
from hcal.metrics.sample import Sample

TOP_LABEL = metrics.list_metrics("top-label")


def both_columns(p: np.ndarray) -> np.ndarray:
    return np.stack([1 - p, p], axis=1)


def test_a_model_that_states_four_times_too_much_has_an_error_that_calibration_lowers() -> None:
    p, y = write_netcal.churn(8000, 3)
    assert metrics.ece_ew(p, y) == pytest.approx(0.15, abs=0.01)
    assert (
        metrics.ece_ew(p, y, event="top-label") < 0.06
    )  # "no churn" is right about as often as stated
    calibrated = hcal.make_calibrator("pool", input="probs").fit(p[:4000], y[:4000])
    before = hcal.evaluate(p[4000:], y[4000:], metrics=TOP_LABEL)
    after = hcal.evaluate(calibrated.predict_proba(p[4000:]), y[4000:], metrics=TOP_LABEL)
    for name in TOP_LABEL:
        assert after[name] < before[name], name
    assert after["ece_ew"] < 0.02


def test_every_way_in_judges_the_same_event() -> None:
    pytest.importorskip("torchmetrics")
    import torch

    from hcal.integrations.evaluate import compute_metrics
    from hcal.integrations.torchmetrics import CalibrationMetrics

    p, y = draw(150, 2, 4)
    streamed = metrics.streaming.NAMES
    for event, positive in (("auto", 1), ("auto", 0), ("top-label", 1)):
        choice = {"event": event, "positive": positive}
        s = Sample(p, y, **choice)
        expected = {name: getattr(metrics, name)(p, y, **choice) for name in TOP_LABEL}
        assert {name: metrics.METRICS[name].function(s) for name in TOP_LABEL} == expected
        assert {name: getattr(metrics, name)(s.subset) for name in TOP_LABEL} == expected

        stream = metrics.StreamingMetrics(2, **choice)
        second_part = stream.empty().update(p[70:], y[70:])
        stream.update(p[:70], y[:70]).merge(second_part)
        batches = CalibrationMetrics(2, **choice)
        batches.update(torch.from_numpy(p[:70]), torch.from_numpy(y[:70]))
        batches.update(torch.from_numpy(p[70:]), torch.from_numpy(y[70:]))
        seen = {name: float(value) for name, value in batches.compute().items()}
        assert seen == pytest.approx(stream.result(), rel=1e-12)
        for name in set(TOP_LABEL) & set(streamed):
            allowed = stream.bounds()[name] + 1e-9
            assert stream.result()[name] == pytest.approx(expected[name], abs=allowed), name
        assert stream.result()["accuracy"] == pytest.approx(metrics.accuracy(p, y))
        assert stream.mean_confidence == pytest.approx(p.max(axis=1).mean())

        trainer = compute_metrics(TOP_LABEL, input="probs", **choice)((p, y))
        assert trainer == pytest.approx(expected, rel=1e-12)
        if event == "auto":
            evaluation = hcal.evaluate(p, y, metrics=TOP_LABEL, positive=positive)
            assert evaluation.values == pytest.approx(expected, rel=1e-12)


def test_replicates_and_drawn_labels_judge_the_same_event() -> None:
    p, y = draw(60, 2, 5)
    for choice in ({"positive": 0}, {"event": "top-label"}):
        s = Sample(p, y, **choice)
        replicate = bootstrap([s], TOP_LABEL, 1, np.random.default_rng(1))[0]
        drawn_labels = s.data.drawn(1, np.random.default_rng(2))[0]
        drawn = chance(s, TOP_LABEL, 1, np.random.default_rng(2))
        rows = np.random.default_rng(1).integers(0, 60, 60)
        for name in TOP_LABEL:
            function = getattr(metrics, name)
            expected = function(p[rows], y[rows], **choice)
            assert replicate[name][0] == pytest.approx(expected), name
            assert drawn[name][0] == pytest.approx(function(p, drawn_labels, **choice)), name
    s = Sample(*write_netcal.churn(600, 1))
    values = {"ece_ew": metrics.ece_ew(s), "dece": metrics.dece(s)}
    for interval in intervals(s, values, 0.95, resamples=60).values():
        assert 0.05 < interval.low < interval.high < 0.25


def test_the_predicted_class_of_two_is_judged_as_that_of_three() -> None:
    p, y = draw(300, 2, 6)
    padded = np.concatenate([p, np.zeros((300, 1))], axis=1)
    for name in TOP_LABEL:
        function = getattr(metrics, name)
        assert function(p, y, event="top-label") == pytest.approx(function(padded, y)), name
        if name != "spiegelhalter":
            assert function(p, y) != pytest.approx(function(padded, y), rel=1e-3)
        mirrored = function(p[:, ::-1], 1 - y, positive=0)
        assert mirrored == pytest.approx(function(p, y), rel=1e-12), name


def test_what_has_no_meaning_is_refused() -> None:
    p, y = draw(20, 2, 7)
    wide, labels = draw(20, 3, 7)
    for name in TOP_LABEL:
        function = getattr(metrics, name)
        for probs, choice, message in (
            (p, {"event": "positive"}, "event must be 'auto' or 'top-label', got 'positive'"),
            (p, {"positive": 2}, "positive must be 0 or 1, the number of a class, got 2"),
            (p, {"positive": True}, "positive must be 0 or 1"),
            (wide, {"positive": 2}, "positive chooses one of two classes, and probs has 3"),
        ):
            with pytest.raises(ValueError, match=message):
                function(probs, y if probs is p else labels, **choice)
        with pytest.raises(ValueError, match="a Sample already holds event and positive"):
            function(Sample(p, y), event="top-label")
    with pytest.raises(ValueError, match="same classes, metrics, event and positive"):
        metrics.StreamingMetrics(2).merge(metrics.StreamingMetrics(2, positive=0))


# -- other packages ----------------------------------------------------------------------------------


def test_netcal_says_the_same() -> None:
    stored = json.loads(write_netcal.OUT.read_text())
    assert stored["netcal"] == "1.4.0"
    for name, (p, y) in write_netcal.SETS.items():
        theirs = stored["values"][name]
        ece = metrics.ece_ew(p, y, bins=stored["bins"])
        assert ece == pytest.approx(theirs["ECE"], rel=1e-9)
        mce = metrics.mce(p, y, bins=stored["bins"])
        assert mce == pytest.approx(theirs["MCE"], rel=1e-9)
        # Ours clips probabilities to 1.2e-7 from 0 and 1, as published.
        ace = metrics.ace(p, y, bins=stored["bins"])
        assert ace == pytest.approx(theirs["ACE"], abs=2e-7)


def test_torchmetrics_says_the_same() -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    import torch

    for stated, y in write_netcal.SETS.values():
        p = np.minimum(stated, 0.9999)  # torchmetrics gives p = 1 a bin of its own
        tensors = torch.from_numpy(p), torch.from_numpy(y)
        for norm, ours in (("l1", "ece_ew"), ("l2", "ece_r2"), ("max", "mce")):
            theirs = functional.binary_calibration_error(*tensors, n_bins=15, norm=norm)
            assert getattr(metrics, ours)(p, y) == pytest.approx(float(theirs), rel=1e-5), ours


def test_scikit_learn_says_the_same() -> None:
    from sklearn.calibration import calibration_curve

    for p, y in write_netcal.SETS.values():
        rate, mean = calibration_curve(y, p, n_bins=15)
        bins = np.clip(np.ceil(p * 15), 1, 15)
        share = np.unique(bins, return_counts=True)[1] / len(p)
        expected = share @ np.abs(rate - mean)
        assert metrics.ece_ew(p, y) == pytest.approx(expected, rel=1e-9)


def test_scikit_learns_scoring_takes_a_positive_label() -> None:
    from hcal.integrations.sklearn import Scorer

    class Stated:
        classes_ = np.array(["no", "yes"])

        def predict_proba(self, X: np.ndarray) -> np.ndarray:
            return both_columns(X)

    p, y = write_netcal.churn(500, 8)
    names = Stated.classes_[y]
    assert Scorer("ece_ew")(Stated(), p, names) == -metrics.ece_ew(p, y)
    score = Scorer("mce", pos_label="no")(Stated(), p, names)
    assert score == -metrics.mce(p, y, positive=0)
    top = Scorer("ece_ew", event="top-label")(Stated(), p, names)
    assert top == -metrics.ece_ew(p, y, event="top-label")


# -- every row is in a bin, and ties share one -------------------------------------------------------


def test_a_probability_of_zero_counts() -> None:
    p = np.zeros(40)
    y = np.tile([1, 0], 20)
    for name in ("ece_ew", "ece_em", "ece_r2", "ace", "mce", "ece_s1", "cwece_a", "ks", "kuiper"):
        assert getattr(metrics, name)(p, y) == pytest.approx(0.5, abs=1e-6), name
    stream = metrics.StreamingMetrics(2).update(p, y)
    for name in ("ece_ew", "ece_em", "ks", "mce", "cwece_a"):
        assert stream.result()[name] == pytest.approx(0.5), name


def test_ties_at_the_least_probability_count() -> None:
    rng = np.random.default_rng(0)
    p = np.where(np.arange(1000) < 600, 0.1, rng.uniform(0.2, 0.9, 1000))
    y = (rng.random(1000) < np.where(p == 0.1, 0.5, p)).astype(int)
    three = np.stack([1 - p, p, 0 * p], axis=1)
    for name in ("ece_em", "dece", "ece_s1", "ece_ew"):
        assert getattr(metrics, name)(p, y) > 0.2, name
    # The predicted class: 60 % of the rows are tied, at the largest confidence and (mirrored) at the least.
    assert metrics.ece_em(three, y) > 0.2
    least = np.tile([0.4, 0.35, 0.25], (len(p), 1))
    least[600:] = [0.8, 0.1, 0.1]
    label = np.where(np.arange(1000) < 600, 1, 0)
    assert metrics.ece_em(least, label) == pytest.approx(0.6 * 0.4 + 0.4 * 0.2)


@pytest.mark.parametrize("decimals", [1, 2])
def test_the_order_of_tied_rows_does_not_matter(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    p = rng.beta(1, 3, 400).round(decimals)
    y = (rng.random(400) < p**1.5).astype(int)
    order = rng.permutation(400)
    weight = rng.integers(0, 4, 400)
    copies = np.repeat(np.arange(400), weight)
    for name in TOP_LABEL:
        function = getattr(metrics, name)
        expected = pytest.approx(function(p, y), rel=1e-9)
        assert function(p[order], y[order]) == expected, name
        repeated = function(p[copies], y[copies])
        assert function(p, y, sample_weight=weight) == pytest.approx(repeated, rel=1e-9), name


def test_a_sweep_over_few_values_tries_more_bins_than_values() -> None:
    # The first frequencies that fall are those of the two last rows, which only very many bins tell apart.
    for seed in range(6):
        rng = np.random.default_rng(seed)
        values = np.sort(rng.uniform(0.1, 0.9, 4))
        p = np.concatenate([values.repeat(30), [0.95, 0.97]])
        drawn = rng.random(120) < p[:120]
        y = np.concatenate([drawn, [True, False]]).astype(int)
        for name in ("ece_s1", "ece_s2"):
            expected = getattr(oracles, name)(both_columns(p), y)
            assert getattr(metrics, name)(p, y) == pytest.approx(expected, rel=1e-9), name
    values = np.linspace(0.1, 0.9, 10).repeat(20_000)
    scores = np.concatenate([values, [0.95, 0.97]])
    exact = np.arange(200_000) % 20_000 < 20_000 * values
    labels = np.concatenate([exact, [True, False]])
    assert (
        metrics.ece_s1(scores, labels.astype(int)) < 1e-4
    )  # 100,000 numbers of bins: one by one, minutes


def test_an_evaluation_judges_the_class_that_its_sample_judges() -> None:
    """The metrics were those of class 0, and the rate, the verdict and the panel those of class 1."""
    rng = np.random.default_rng(5)
    risk = rng.beta(1, 4, 300)
    y = (rng.random(300) < risk).astype(int)
    probs = np.stack([1 - risk, risk], axis=1)
    sample = Sample(probs, y, positive=0)
    options = {"metrics": ["ece_ew"], "confidence": 0.9, "resamples": 20}
    of_sample = hcal.evaluate(sample, **options)
    of_arrays = hcal.evaluate(probs, y, positive=0, **options)
    assert of_sample.to_dict() == of_arrays.to_dict()
    assert of_sample.positive.name == "class 0"
    assert of_sample.clinical.positive == 0
    with pytest.raises(ValueError, match="the Sample assesses class 0, and positive=1 is another"):
        hcal.evaluate(sample, positive=1, **options)


def test_the_positive_class_may_be_named() -> None:
    """Names that are integers are names: here class 0 is called 1."""
    pd = pytest.importorskip("pandas")
    risk = np.array([0.1, 0.4, 0.8, 0.9])
    both = np.stack([1 - risk, risk], axis=1)
    y = np.array([0, 1, 1, 1])
    for names in (["no", "yes"], [1, 0]):
        frame = pd.DataFrame(both, columns=names)
        labels = np.array(names)[y]
        for number, name in enumerate(names):
            expected = metrics.mce(both, y, positive=number)
            assert metrics.mce(frame, labels, positive=name) == expected
