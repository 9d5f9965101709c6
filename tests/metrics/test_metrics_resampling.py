"""Bootstrap, drawn labels, intervals, calibration tests, and the parts of proper scores."""

from __future__ import annotations

import numpy as np
import pytest
from test_metrics_oracles import draw, sparse

from hcal import metrics
from hcal.metrics import resampling
from hcal.metrics.canonical import skce_jackknife
from hcal.metrics.sample import Sample
from hcal.metrics.testing import calibration_test
from hcal.numerics import softmax


def calibrated(
    n: int, k: int, seed: int, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions softmax(temperature·z) of labels drawn from softmax(z)."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=(n, k))
    below_top = z - z.max(1, keepdims=True)
    p = np.exp(below_top)
    q = np.exp(temperature * below_top)
    p = p / p.sum(1, keepdims=True)
    q = q / q.sum(1, keepdims=True)
    return q, (p.cumsum(1) > rng.random((n, 1))).argmax(1)


# tcwece_k keeps the clusters of the whole sample; the canonical errors are not bootstrapped.
SKILL = ("d2_nll", "d2_brier", "auc")
OTHERWISE = ("skce", "dkde_ce", "hce", "hce_pooled", "tcwece_k", *SKILL)
BOOTSTRAPPED = [n for n in metrics.list_metrics() if n not in OTHERWISE]


def test_a_replicate_is_the_metric_of_the_drawn_rows() -> None:
    s = Sample(*sparse(60, 4, 0))
    weights = resampling.bootstrap_weights(s, 3, np.random.default_rng(0))
    for name, replicates in resampling.replicates(s, BOOTSTRAPPED, weights).items():
        for value, w in zip(replicates, weights, strict=True):
            rows = np.repeat(np.arange(60), w.astype(int))
            expected = getattr(metrics, name)(s.data.probs[rows], s.y[rows])
            assert value == pytest.approx(expected, rel=1e-9), name


def test_drawn_labels_follow_the_predictions() -> None:
    p, y = draw(20, 5, 2)
    labels = Sample(p, y).data.drawn(4000, np.random.default_rng(2))
    seen = np.stack([np.mean(labels == k, axis=0) for k in range(5)], axis=1)
    # 4000 draws: a standard deviation of at most 0.008 for each of 100 frequencies.
    assert np.abs(seen - p).max() < 0.035


def test_relabelled_sample_forgets_what_labels_decide() -> None:
    p, y = draw(50, 4, 3)
    s = Sample(p, y)
    before = {n: getattr(metrics, n)(s) for n in metrics.list_metrics()}
    other = np.roll(y, 7)
    for name in before:
        fresh = getattr(metrics, name)(p, other)
        assert getattr(metrics, name)(s.relabelled(other)) == pytest.approx(fresh, rel=1e-12), name
        assert getattr(metrics, name)(s) == before[name]


def test_intervals_contain_their_estimate_and_say_what_they_are() -> None:
    s = Sample(*calibrated(400, 4, 6, temperature=1.6))
    values = {n: getattr(metrics, n)(s) for n in metrics.list_metrics()}
    intervals = resampling.intervals(s, values, 0.95, resamples=60)
    assert set(intervals) == set(values)
    for name, i in intervals.items():
        assert i.low <= values[name] <= i.high, name
        metric = metrics.METRICS[name]
        assert i.kind == ("percentile" if metric.interval == "bootstrap" else metric.interval)
        assert (i.chance is not None) == (metric.kind == "plug-in" and metric.ends is None)
    pairs = {"skce", "hce", "hce_pooled"}
    jackknife = {name for name, i in intervals.items() if i.kind == "jackknife"}
    assert jackknife == pairs | {"d2_nll", "d2_brier", "auc"}
    few = {name: values[name] for name in ("nll", "ks", "hce")}
    again, other = (resampling.intervals(s, few, 0.95, resamples=60) for _ in range(2))
    assert again == other


@pytest.mark.slow
def test_bias_aware_intervals_hold_zero_where_the_predictions_are_calibrated() -> None:
    plug_in = {n: m for n, m in metrics.METRICS.items() if m.kind == "plug-in"}
    names = [name for name, metric in plug_in.items() if metric.ends is None]
    kept = dict.fromkeys(names, 0)
    for seed in range(10):
        s = Sample(*calibrated(400, 3, seed))
        values = {n: getattr(metrics, n)(s) for n in names}
        for name, i in resampling.intervals(s, values, 0.95, resamples=50).items():
            kept[name] += i.low == 0.0
    # Each should keep 0 in 97.5 % of the cases; 6 or fewer of 10 would have a probability below 1e-4.
    assert min(kept.values()) >= 7


@pytest.mark.parametrize(
    ("method", "statistic"), [("resampling", "ks"), ("resampling", "dece"), ("skce", "")]
)
def test_calibration_test_tells_calibrated_from_not(method: str, statistic: str) -> None:
    options = {"statistic": statistic} if statistic else {}
    p = []
    for seed in range(12):
        rows = calibrated(500, 4, seed)
        test = calibration_test(*rows, method=method, resamples=199, **options)
        p.append(test.p_value)
    # Uniform p-values: all twelve above 0.5, or six below 0.1, would have probabilities below 1e-3.
    assert min(p) < 0.5
    assert sum(v < 0.1 for v in p) < 6
    bad = calibration_test(*calibrated(500, 4, 0, 2.0), method=method, resamples=199, **options)
    assert bad.p_value == 1 / 200
    expected = calibration_test(
        *calibrated(500, 4, 0, 2.0), method=method, resamples=199, **options
    )
    assert bad == expected


def test_statistic_of_the_skce_test_is_the_metric() -> None:
    p, y = calibrated(150, 4, 1)
    test = calibration_test(p, y, method="skce", resamples=19, bandwidth=1.0)
    assert test.value == pytest.approx(metrics.skce(p, y))
    auto = calibration_test(p, y, method="skce", resamples=19)
    squares = ((p[:, None] - p) ** 2).sum(-1)
    distance = np.sqrt(squares)[np.triu_indices(150, 1)]
    bandwidth = np.median(distance) / 4
    assert auto.value == pytest.approx(metrics.skce(p, y, bandwidth=bandwidth))
    uniform = np.full((50, 3), 1 / 3)
    flat = calibration_test(uniform, y[:50] % 3, method="skce", resamples=19)
    assert 0 < flat.p_value <= 1


def test_bad_options_of_the_test_are_named() -> None:
    p, y = draw(20, 3, 0)
    for data, options, message in (
        ((p, y), {"method": "guess"}, "method must be"),
        ((p, y), {"statistic": "nll"}, "must be a calibration error"),
        ((p, y), {"statistic": "xyz"}, "unknown metric"),
        ((p, y), {"resamples": 5}, "resamples must be"),
        ((p, y), {"bandwidth": 0.0}, "bandwidth must be positive"),
        ((Sample(p, y, np.ones(20)),), {}, "no sample_weight"),
        (draw(1, 3, 0), {}, "at least 2 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            calibration_test(*data, **options)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_standard_errors_of_pair_statistics(temperature: float) -> None:
    samples = [Sample(*calibrated(600, 3, seed, temperature)) for seed in range(50)]
    by_events = {}
    for events in ("class-wise", "pooled"):
        by_events[events] = [metrics.h_error(s, events=events) for s in samples]
    pairs = {}
    for events, errors in by_events.items():
        pairs[events] = [(h.squared, h.se) for h in errors]
    pairs["skce"] = [skce_jackknife(s) for s in samples]
    for name in ("skce", "dkde_ce"):
        shares = [metrics.METRICS[name].shares(s) for s in samples]
        errors = [x.std(ddof=1) / np.sqrt(len(x)) for x in shares]
        pairs[f"{name} by rows"] = [(x.mean(), se) for x, se in zip(shares, errors, strict=True)]
    if temperature == 1.0:
        del pairs["skce by rows"]  # degenerate where calibrated: its spread is of second order
    for name, values in pairs.items():
        value, error = np.array(values).T
        # The spread of 50 values is known to 10 %; errors of calibrated data are skewed: the median.
        assert np.median(error) == pytest.approx(value.std(ddof=1), rel=0.33), name


def test_rows_of_weight_zero_are_not_drawn() -> None:
    # Found by make fuzz: a replicate of such rows alone had no weight at all.
    last_twice = [0, 0, 0, 0, 0, 0, 0, 2]
    s = Sample(*draw(8, 3, 0), sample_weight=last_twice)
    weights = resampling.bootstrap_weights(s, 50, np.random.default_rng(0))
    np.testing.assert_array_equal(weights, np.tile(last_twice, (50, 1)))


def test_parts_are_those_of_the_truth() -> None:
    q, y = calibrated(6000, 5, 0, temperature=2.0)
    p = softmax(
        np.log(q) / 2.0
    )  # the true probabilities: the best that any recalibration can reach
    for score in ("nll", "brier"):
        parts = metrics.decompose(q, y, score=score)
        assert parts.score == getattr(metrics, score)(q, y)
        assert parts.calibration + parts.refinement == pytest.approx(parts.score)
        # One parameter, learned on 4800 rows: its excess score is about 1/(2·4800) in NLL.
        expected = getattr(metrics, score)(p, y)
        assert parts.refinement == pytest.approx(expected, abs=1e-3)
        assert parts.calibration > 0.02
        assert abs(metrics.decompose(p, y, score=score).calibration) < 1e-3
    weighted = metrics.decompose(q, y, sample_weight=np.full(6000, 3))
    assert weighted.calibration == pytest.approx(metrics.decompose(q, y).calibration)
    for options, message in (
        ({"score": "accuracy"}, "score must be"),
        ({"folds": 1}, "folds must be an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            metrics.decompose(q, y, **options)


def test_clusters_are_those_of_the_weights() -> None:
    """Of a replicate they are those of the sample that it is drawn from."""
    p, y = draw(300, 4, 1)
    weight = np.repeat([1.0, 5.0, 1.0], 100)
    plain = Sample(p, y)
    of_plain = metrics.tcwece_k(plain)
    weighted = metrics.tcwece_k(p, y, sample_weight=weight)
    assert metrics.tcwece_k(plain.reweighted(weight)) == weighted
    assert metrics.tcwece_k(plain.reweighted(weight).reweighted(None)) == of_plain
    assert metrics.tcwece_k(plain.replicate(weight)) not in (of_plain, weighted)
