"""Edge cases with documented answers, weights, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from test_metrics_oracles import SETS, draw

from hcal import metrics

ALL = metrics.list_metrics()


def test_registry_lists_every_metric_of_the_contract() -> None:
    contract = (
        "ece_ew ece_em ece_r2 dece ace ece_s1 ece_s2 kde_ece mmce ks cwece_a cwece_s cwece_r2 tcwece",
        "tcwece_k skce dkde_ce nll brier accuracy hce hce_pooled mce smece kuiper spiegelhalter",
    )
    assert set(ALL) >= set(" ".join(contract).split())
    assert [name for level in metrics.LEVELS for name in metrics.list_metrics(level)] == ALL
    for name, metric in metrics.METRICS.items():
        assert metric.name == name
        assert getattr(metrics, name) is metric.function
        assert "\n" not in metric.explain
    with pytest.raises(ValueError, match="unknown metric 'ECE'; the metrics are ece_ew"):
        metrics.get_metric("ECE")
    with pytest.raises(ValueError, match="level must be one of"):
        metrics.list_metrics("all")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_the_registry_knows_which_weights_a_metric_takes(name: str) -> None:
    p, y = draw(60, 4, 0)
    metric, fractions = metrics.METRICS[name], np.linspace(0.5, 2.0, 60)
    assert metric.takes(metrics.Sample(p, y, fractions)) == (metric.weights == "any")
    if metric.weights == "any":
        assert np.isfinite(metric.function(p, y, sample_weight=fractions))
    else:
        with pytest.raises(ValueError, match=f"{name} counts samples, so sample_weight must hold whole"):
            metric.function(p, y, sample_weight=fractions)


@pytest.mark.parametrize("name", ALL)
def test_the_registry_knows_which_metrics_are_means_and_which_are_signed(name: str) -> None:
    s = metrics.Sample(*draw(300, 4, 3))
    metric = metrics.METRICS[name]
    for rows in (metric.rows, metric.shares):
        if rows is not None:
            assert rows(s).shape == (s.n,)
            assert s.mean(rows(s)) == pytest.approx(metric.function(s), rel=1e-9)
    assert (metric.ends is None) or metric.ends(s, metric.function(s), 0.0)[1] == pytest.approx(
        metric.function(s), rel=1e-9
    )
    assert (metric.kind == "score") == (metric.level == "score") == (metric.rows is not None)
    assert metric.lower_is_better == (name != "accuracy")


@pytest.mark.parametrize("name", ALL)
def test_integer_weight_equals_repetition(name: str) -> None:
    p, y = draw(60, 4, 0)
    w = np.random.default_rng(1).integers(0, 4, 60)
    repeated = np.repeat(np.arange(60), w)
    function = getattr(metrics, name)
    if name.startswith("hce"):
        weighted, full = (
            function(p, y, sample_weight=w, window=15),
            function(p[repeated], y[repeated], window=15),
        )
    else:
        weighted, full = function(p, y, sample_weight=w), function(p[repeated], y[repeated])
    assert weighted == pytest.approx(full, rel=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_fractional_weights_scale_out_or_are_refused(name: str) -> None:
    p, y = draw(50, 3, 2)
    w = np.random.default_rng(3).random(50) + 0.1
    function = getattr(metrics, name)
    if metrics.METRICS[name].weights == "any":
        assert function(p, y, sample_weight=w) == pytest.approx(
            function(p, y, sample_weight=7.3 * w), rel=1e-10
        )
        assert function(p, y, sample_weight=w) != pytest.approx(function(p, y), rel=1e-6)
    else:
        with pytest.raises(ValueError, match="whole repetition counts; row 0 is not whole"):
            function(p, y, sample_weight=w)


@pytest.mark.parametrize("name", ALL)
def test_row_order_does_not_matter(name: str) -> None:
    p, y = draw(70, 4, 4)
    other = np.random.default_rng(5).permutation(70)
    function = getattr(metrics, name)
    # tcwece_k draws its starts from the sorted values, so even they do not depend on the order.
    assert function(p[other], y[other]) == pytest.approx(function(p, y), rel=1e-9)


def certain(hit: bool, n: int = 40, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % k
    p = np.zeros((n, k))
    p[np.arange(n), y if hit else (y + 1) % k] = 1.0
    return p, y


@pytest.mark.parametrize("name", ALL)
def test_confidence_of_exactly_one_and_zero(name: str) -> None:
    value = getattr(metrics, name)(*certain(True))
    expected = 1.0 if name == "accuracy" else 0.0
    # ace clips at 1.19e-7, as published; kde_ece spreads a point over one grid step of 1.3e-4.
    assert value == pytest.approx(expected, abs=2e-3 if name == "kde_ece" else 2e-7)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ece_ew", 1.0),
        ("ks", 1.0),
        ("mce", 1.0),
        ("mmce", 1.0),
        ("kde_ece", 1.0),
        ("dece", 1.0),
        ("brier", 2.0),
        ("accuracy", 0.0),
        ("nll", 708.3964185322641),
        # Each class: a third of the rows at p = 1 and wrong; the label's own entries, p = 0, lie in no bin.
        ("cwece_a", 1 / 3),
    ],
)
def test_certain_and_always_wrong(name: str, expected: float) -> None:
    assert getattr(metrics, name)(*certain(False)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_few_rows_have_an_answer(name: str, n: int) -> None:
    p, y = draw(n, 3, 6)
    value = getattr(metrics, name)(p, y)
    no_pair = n == 1 and name in ("skce", "dkde_ce", "hce", "hce_pooled")
    assert np.isnan(value) if no_pair else np.isfinite(value)


@pytest.mark.parametrize("name", ALL)
def test_binary_score_is_a_column_of_class_one(name: str) -> None:
    p, y = SETS["two classes"]
    assert getattr(metrics, name)(p[:, 1], y) == pytest.approx(getattr(metrics, name)(p, y), rel=1e-9)


@pytest.mark.parametrize("name", ["cwece_a", "cwece_s", "cwece_r2", "tcwece", "tcwece_k", "dkde_ce"])
def test_a_column_of_zeros_for_an_absent_class(name: str) -> None:
    p, y = draw(50, 3, 8)
    wide = np.concatenate([p, np.zeros((50, 1))], axis=1)
    assert np.isfinite(getattr(metrics, name)(wide, y))
    if name == "cwece_s":
        assert metrics.cwece_s(wide, y) == pytest.approx(metrics.cwece_s(p, y), rel=1e-12)


def test_a_perfectly_sorted_sample_ends_the_sweep_at_once() -> None:
    # All right: every number of bins keeps accuracies monotone; b stops at N − 1 without trying them all.
    n = 200_000
    conf = np.linspace(0.6, 0.9, n)
    p = np.stack([1 - conf, conf], axis=1)
    assert metrics.ece_s1(p, np.ones(n, int)) == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_bad_input_is_named(name: str) -> None:
    function = getattr(metrics, name)
    p, y = draw(10, 3, 9)
    for bad, labels, message in (
        (np.where(np.arange(30).reshape(10, 3) == 7, np.nan, p), y, "NaN, first at row 2, column 1"),
        (p * 2, y, "must sum to 1 in every row"),
        (p, y[:-1], "9 labels for 10 rows"),
        (p, np.where(np.arange(10) == 4, 3, y), "row 4 is 3"),
        (p, y + 0.5, "y must hold integers"),
        (p[:0], y[:0], "empty"),
        (p, np.eye(3)[y], "one-hot or multi-label"),
        (p, None, "y is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            function(bad, labels)
    with pytest.raises(ValueError, match="row 3 is -1"):
        function(p, y, sample_weight=np.where(np.arange(10) == 3, -1, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, y: metrics.ece_ew(p, y, bins=0), "bins must be a positive integer"),
        (lambda p, y: metrics.cwece_a(p, y, bins=2.5), "bins must be a positive integer"),
        (lambda p, y: metrics.mmce(p, y, bandwidth=0), "bandwidth must be positive"),
        (lambda p, y: metrics.skce(p, y, bandwidth=-1), "bandwidth must be positive"),
        (lambda p, y: metrics.dkde_ce(p, y, bandwidth=0), "bandwidth must be positive"),
        (lambda p, y: metrics.kde_ece(p, y, bandwidth=0.5), "bandwidth must be at most 0.2"),
        (lambda p, y: metrics.skce(p, y, estimator="cubic"), "estimator must be"),
        (
            lambda p, y: metrics.skce(p, y, estimator="linear", sample_weight=np.ones(20)),
            "sample_weight has no meaning",
        ),
        (lambda p, y: metrics.tcwece(p, y, threshold=1.0), "threshold must lie in"),
        (lambda p, y: metrics.tcwece_k(p, y, restarts=0), "restarts must be a positive"),
        (lambda p, y: metrics.hce(p, y, window=1), "window must be an integer of at least 2"),
        (lambda p, y: metrics.hce(p, y, events="all"), "events must be"),
        (lambda p, y: metrics.nll(metrics.Sample(p, y), y), "already holds y"),
    ],
)
def test_bad_parameters_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*draw(20, 3, 10))


def test_bins_and_order_are_parameters() -> None:
    p, y = draw(200, 4, 11)
    assert metrics.ece_ew(p, y, bins=1) == pytest.approx(abs(p.max(1).mean() - (p.argmax(1) == y).mean()))
    assert metrics.ece_ew(p, y, order=2) == metrics.ece_r2(p, y)
    assert metrics.cwece_a(p, y, bins=14) * 4 == pytest.approx(metrics.cwece_s(p, y))
    assert metrics.tcwece(p, y, threshold=0.0) != metrics.tcwece(p, y)


def test_hce_without_debias_is_the_brier_score_in_windows_of_one_pair() -> None:
    # The degenerate case of the objective: windows of one event give Brier / K; two events bracket it.
    p, y = draw(100, 3, 12)
    raw = metrics.hce(p, y, window=2, debias=False)
    assert 0 < raw**2 < metrics.brier(p, y) / 3


def test_atomic_is_the_old_name_of_pooled_events() -> None:
    p, y = draw(100, 3, 12)
    assert metrics.hce(p, y, events="atomic") == metrics.hce_pooled(p, y) != metrics.hce(p, y)


def test_two_classes_are_one() -> None:
    # Averaging a class with its mirror image would halve the variance on paper alone.
    p, y = draw(300, 2, 5)
    both, one = metrics.h_error(p, y), metrics.h_error(1 - p, 1 - y)
    assert both.squared == pytest.approx(one.squared, rel=1e-9)
    assert both.noise == pytest.approx(one.noise, rel=1e-9)


def test_frames_and_lists_are_accepted() -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    p, y = draw(30, 3, 13)
    expected = metrics.ece_em(p, y)
    assert metrics.ece_em(p.tolist(), y.tolist()) == expected
    assert metrics.ece_em(pd.DataFrame(p), pd.Series(y)) == expected
    assert metrics.ece_em(pl.DataFrame(p), pl.Series(y)) == expected


# -- what `make fuzz` found: each stays as a case ---------------------------------------------------


@pytest.mark.parametrize("k", [2, 3])
def test_kde_ece_of_scores_that_are_all_alike_is_their_gap(k: int) -> None:
    # It was in the thousands: the last point of a kernel of one grid step was copied up to 1.
    p = np.full((40, k), 0.25 / (k - 1))
    p[:, 1] = 0.75
    assert metrics.kde_ece(p, np.ones(40, dtype=int)) == pytest.approx(0.25, abs=2e-3)
    assert metrics.kde_ece(p, np.tile([1, 0], 20)) == pytest.approx(0.25, abs=2e-3)


def test_kde_ece_of_few_rows_at_both_ends_does_not_complain_of_a_bandwidth_that_nobody_gave() -> None:
    p = np.array([[1.0, 0.0], [0.0, 1.0]] * 10)
    assert metrics.kde_ece(p, [0, 1] * 8 + [1, 1, 0, 0]) <= 1


@pytest.mark.parametrize("name", ["ece_s1", "ece_s2", "hce", "hce_pooled"])
def test_counts_too_large_to_write_out_are_refused_in_one_line(name: str) -> None:
    p, y = [[0.2, 0.8], [0.6, 0.4]], [1, 0]
    with pytest.raises(ValueError, match=rf"^{name} looks at every repetition: sample_weight sums to 2e\+12"):
        getattr(metrics, name)(p, y, sample_weight=[1e12, 1e12])


@pytest.mark.parametrize("name", ["ece_s1", "ece_s2"])
def test_the_sweep_of_ordered_hits_does_not_write_repetitions_out(name: str) -> None:
    p, y, w = np.array([[0.4, 0.6], [0.3, 0.7], [0.1, 0.9]]), np.array([0, 1, 1]), np.array([2, 3, 4])
    small = getattr(metrics, name)(np.repeat(p, w, axis=0), np.repeat(y, w))
    assert getattr(metrics, name)(p, y, sample_weight=w) == pytest.approx(small, rel=1e-12)


@pytest.mark.parametrize("k", [3, 5, 10, 100])
def test_an_even_share_is_not_above_one_in_any_float_width(k: int) -> None:
    """1/K rounds up in float32 for most K: that is how 1/K is written there, and not more than it."""
    y = np.arange(200) % k
    for width in (np.float32, np.float64):
        even = np.full((200, k), 1 / k, dtype=width)
        assert metrics.tcwece(even, y) == 0.0
        even[:, 0] += 2 * np.finfo(width).eps
        assert metrics.tcwece(even, y) > 0.0
