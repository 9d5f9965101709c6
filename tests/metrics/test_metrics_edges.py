"""What holds for every metric (weights, order, few rows, bad input), and edge cases with documented answers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import foldnorm
from test_metrics_oracles import SETS, draw

from hcal import metrics
from hcal.metrics.scores import collapse_reasons
from helpers import changeable_records

ALL = metrics.list_metrics()
#: They compare with the base rates, or classes with each other: rows of one class have no answer.
SKILL = ("d2_nll", "d2_brier", "auc")


def both(name: str, *args, **options) -> float:
    """A metric by its name, with small windows."""
    if name.startswith("hce"):
        options = {"window": 15} | options
    return getattr(metrics, name)(*args, **options)


def test_registry_lists_every_metric_of_the_contract() -> None:
    contract = (
        "ece_ew ece_em ece_r2 dece ace ece_s1 ece_s2 kde_ece mmce ks cwece_a cwece_s cwece_r2",
        "tcwece tcwece_k skce dkde_ce nll brier accuracy hce hce_pooled mce smece kuiper",
        "spiegelhalter",
    )
    assert set(ALL) >= set(" ".join(contract).split())
    assert [name for level in metrics.LEVELS for name in metrics.list_metrics(level)] == ALL
    s = metrics.Sample(*draw(300, 4, 3))
    for name, metric in metrics.METRICS.items():
        assert metric.name == name
        assert getattr(metrics, name) is metric.function
        assert "\n" not in metric.explain
        words, _, rest = metric.function.__doc__.partition(
            "sample_weight : array-like of shape (N,), optional"
        )
        assert words.startswith("Return ")
        assert ("Whole repetition counts" in rest) == (metric.weights != "any")
        assert ">>> " in rest
        for rows in (metric.rows, metric.shares):
            if rows is not None:
                assert s.mean(rows(s)) == pytest.approx(metric.function(s), rel=1e-9)
        if metric.ends is not None:
            value = metric.function(s)
            low, high = metric.ends(s, value, 2.0)
            assert low <= value <= high
        assert (metric.kind == "score") == (metric.level == "score")
        assert (metric.rows is not None) == (name in ("nll", "brier", "accuracy"))
        assert metric.lower_is_better == (name not in ("accuracy", *SKILL))
    assert [metrics.METRICS[name].label for name in ("ece_ew", "mce")] == ["ECE^ew", "MCE"]
    with pytest.raises(ValueError, match="unknown metric 'ECE'; the metrics are ece_ew"):
        metrics.get_metric("ECE")
    with pytest.raises(ValueError, match="level must be one of"):
        metrics.list_metrics("all")  # type: ignore[arg-type]


def test_results_cannot_be_changed() -> None:
    assert changeable_records("hcal.metrics") == {"WindowSums"}


def test_a_single_row_is_in_a_bin() -> None:
    """The first bin of equal mass leaves out the smallest confidence, except where it is the only one."""
    assert metrics.ece_em([[0.1, 0.2, 0.7]], [2]) == pytest.approx(0.3)
    assert metrics.ece_em([[0.1, 0.2, 0.7]], [0]) == pytest.approx(0.7)


def test_integer_weight_equals_repetition_and_row_order_does_not_matter() -> None:
    p, y = draw(60, 4, 0)
    w = np.random.default_rng(1).integers(0, 4, 60)
    repeated = np.repeat(np.arange(60), w)
    other = np.random.default_rng(5).permutation(60)
    for name in ALL:
        full = both(name, p[repeated], y[repeated])
        assert both(name, p, y, sample_weight=w) == pytest.approx(full, rel=1e-10), name
        # tcwece_k draws its starts from the sorted values, so even they do not depend on the order.
        expected = pytest.approx(both(name, p, y), rel=1e-9)
        assert both(name, p[other], y[other]) == expected, name


def test_fractional_weights_scale_out_or_are_refused() -> None:
    p, y = draw(50, 3, 2)
    w = np.random.default_rng(3).random(50) + 0.1
    for name in ALL:
        function = getattr(metrics, name)
        metric = metrics.METRICS[name]
        assert metric.takes(metrics.Sample(p, y, w)) == (metric.weights == "any")
        if metric.weights == "any":
            value = function(p, y, sample_weight=w)
            expected = function(p, y, sample_weight=7.3 * w)
            assert value == pytest.approx(expected, rel=1e-10), name
            assert value != pytest.approx(function(p, y), rel=1e-6), name
        else:
            with pytest.raises(
                ValueError, match=f"{name} counts samples.* counts; row 0 is not whole"
            ):
                function(p, y, sample_weight=w)


def certain(hit: bool, n: int = 40, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % k
    p = np.zeros((n, k))
    p[np.arange(n), y if hit else (y + 1) % k] = 1.0
    return p, y


def test_confidence_of_exactly_one_and_zero() -> None:
    for name in ALL:
        # ace clips at 1.19e-7, as published; kde_ece spreads a point over one grid step of 1.3e-4.
        best = float(not metrics.METRICS[name].lower_is_better)
        expected = pytest.approx(best, abs=2e-3 if name == "kde_ece" else 2e-7)
        assert getattr(metrics, name)(*certain(True)) == expected, name
    assert metrics.ace(*certain(True)) == pytest.approx(2**-23, rel=1e-6)
    wrong = dict.fromkeys(("ece_ew", "ks", "mce", "mmce", "kde_ece", "dece"), 1.0)
    # cwece: a third of the rows of a class at p = 1 and wrong, and a third at p = 0 that have it.
    wrong |= {"brier": 2.0, "accuracy": 0.0, "nll": 708.3964185322641, "cwece_a": 2 / 3}
    for name, value in wrong.items():
        assert getattr(metrics, name)(*certain(False)) == pytest.approx(value, rel=1e-9), name


def test_very_few_rows_and_two_classes_have_an_answer() -> None:
    p, y = SETS["two classes"]
    for name in ALL:
        function = getattr(metrics, name)
        for n in (1, 2, 3):
            few = draw(n, 3, 6)
            no_pair = n == 1 and name in ("skce", "dkde_ce", "hce", "hce_pooled")
            one_class = name in SKILL and len(set(few[1].tolist())) == 1
            assert np.isfinite(function(*few)) == (not (no_pair or one_class)), name
        of_two = pytest.approx(function(p, y), rel=1e-9)
        assert function(p[:, 1], y) == of_two, name


def test_a_column_of_zeros_for_an_absent_class() -> None:
    p, y = draw(50, 3, 8)
    wide = np.concatenate([p, np.zeros((50, 1))], axis=1)
    for name in ("cwece_a", "cwece_s", "cwece_r2", "tcwece", "tcwece_k", "dkde_ce"):
        assert np.isfinite(getattr(metrics, name)(wide, y)), name
    assert metrics.cwece_s(wide, y) == pytest.approx(metrics.cwece_s(p, y), rel=1e-12)


def test_a_perfectly_sorted_sample_ends_the_sweep_at_once() -> None:
    # All right: every number of bins keeps accuracies monotone; b stops at N − 1 without trying them all.
    conf = np.linspace(0.6, 0.9, 200_000)
    p = np.stack([1 - conf, conf], axis=1)
    always = np.ones(len(p), int)
    assert metrics.ece_s1(p, always) == pytest.approx(0.25, rel=1e-6)
    p = np.array([[0.4, 0.6], [0.3, 0.7], [0.1, 0.9]])
    y = np.array([0, 1, 1])
    w = np.array([2, 3, 4])
    for name in ("ece_s1", "ece_s2"):
        repeated = np.repeat(p, w, axis=0)
        small = getattr(metrics, name)(repeated, np.repeat(y, w))
        assert getattr(metrics, name)(p, y, sample_weight=w) == pytest.approx(small, rel=1e-12)


def test_bad_input_is_named() -> None:
    p, y = draw(10, 3, 9)
    cases = (
        (
            np.where(np.arange(30).reshape(10, 3) == 7, np.nan, p),
            y,
            "NaN, first at row 2, column 1",
        ),
        (p * 2, y, "must sum to 1 in every row"),
        (p, y[:-1], "9 labels for 10 rows"),
        (p, np.where(np.arange(10) == 4, 3, y), "row 4 is 3"),
        (p, y + 0.5, "y must hold integers"),
        (p[:0], y[:0], "empty"),
        (p, np.eye(3)[y], "one-hot|multi-?label|indicator"),
        (p, None, "y is missing"),
    )
    for name in ALL:
        for bad, labels, message in cases:
            with pytest.raises(ValueError, match=message):
                getattr(metrics, name)(bad, labels)
        one_negative = np.where(np.arange(10) == 3, -1, 1)
        with pytest.raises(ValueError, match="row 3 is -1"):
            getattr(metrics, name)(p, y, sample_weight=one_negative)


def test_bad_parameters_are_named() -> None:
    p, y = draw(20, 3, 10)
    for name, options, message in (
        ("ece_ew", {"bins": 0}, "bins must be an integer of at least 1"),
        ("cwece_a", {"bins": 2.5}, "bins must be an integer of at least 1"),
        ("mmce", {"bandwidth": 0}, "bandwidth must be positive"),
        ("skce", {"bandwidth": -1}, "bandwidth must be positive"),
        ("dkde_ce", {"bandwidth": 0}, "bandwidth must be positive"),
        ("kde_ece", {"bandwidth": 0.5}, "bandwidth must be at most 0.2"),
        ("hce", {"window": 1}, "window must be an integer of at least 2"),
        ("hce", {"events": "all"}, "events must be"),
    ):
        with pytest.raises(ValueError, match=message):
            getattr(metrics, name)(p, y, **options)
    with pytest.raises(ValueError, match="already holds y"):
        metrics.nll(metrics.Sample(p, y), y)


def test_bins_and_order_are_parameters() -> None:
    p, y = draw(200, 4, 11)
    gap = abs(p.max(1).mean() - (p.argmax(1) == y).mean())
    assert metrics.ece_ew(p, y, bins=1) == pytest.approx(gap)
    assert metrics.ece_ew(p, y, order=2) == metrics.ece_r2(p, y)
    of_classes = metrics.cwece_a(p, y, bins=14) * 4
    assert of_classes == pytest.approx(metrics.cwece_s(p, y))


def test_windows_of_other_kinds() -> None:
    # The degenerate case of the objective: windows of one event give Brier / K; two events bracket it.
    p, y = draw(100, 3, 12)
    assert metrics.hce(p, y, events="pooled") == metrics.hce_pooled(p, y)
    assert metrics.hce_pooled(p, y) != metrics.hce(p, y)
    # With two classes only one is counted: its mirror image adds no information, so it must not lower the noise.
    p, y = draw(300, 2, 5)
    one = metrics.h_error(p, y)
    mirror = metrics.h_error(1 - p, 1 - y)
    assert one.squared == pytest.approx(mirror.squared, rel=1e-9)
    assert one.noise == pytest.approx(mirror.noise, rel=1e-9)


def test_frames_lists_and_tensors_are_accepted() -> None:
    p, y = draw(30, 3, 13)
    expected = metrics.ece_em(p, y)
    assert metrics.ece_em(p.tolist(), y.tolist()) == expected
    for library in ("pandas", "polars"):
        frames = pytest.importorskip(library)
        assert metrics.ece_em(frames.DataFrame(p), frames.Series(y)) == expected
    torch = pytest.importorskip("torch")
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        tensors = torch.from_numpy(p).to(device), torch.from_numpy(y).to(device)
        for name in ALL:
            assert getattr(metrics, name)(*tensors) == getattr(metrics, name)(p, y), name


# -- cases that `make fuzz` found -------------------------------------------------------------------


def test_kde_ece_of_scores_that_are_all_alike_is_their_gap() -> None:
    # It was in the thousands: the last point of a kernel of one grid step was copied up to 1.
    for k in (2, 3):
        p = np.full((40, k), 0.25 / (k - 1))
        p[:, 1] = 0.75
        always = np.ones(40, dtype=int)
        assert metrics.kde_ece(p, always) == pytest.approx(0.25, abs=2e-3)
        half = np.tile([1, 0], 20)
        assert metrics.kde_ece(p, half) == pytest.approx(0.25, abs=2e-3)
    # A few rows at both ends asked for a bandwidth that was then refused.
    p = np.array([[1.0, 0.0], [0.0, 1.0]] * 10)
    assert metrics.kde_ece(p, [0, 1] * 8 + [1, 1, 0, 0]) <= 1


def test_counts_too_large_to_write_out_are_refused_in_one_line() -> None:
    p = [[0.2, 0.8], [0.6, 0.4]]
    y = [1, 0]
    for name in ("ece_s1", "ece_s2", "hce", "hce_pooled"):
        with pytest.raises(
            ValueError, match=rf"^{name} looks at every repetition: sample_weight sums to 2e\+12"
        ):
            getattr(metrics, name)(p, y, sample_weight=[1e12, 1e12])


def test_an_even_share_is_not_above_one_in_any_float_width() -> None:
    """For most K the float32 nearest to 1/K lies above 1/K; such an entry must not count as above 1/K."""
    for k in (3, 5, 10, 100):
        y = np.arange(200) % k
        for width in (np.float32, np.float64):
            even = np.full((200, k), 1 / k, dtype=width)
            assert metrics.tcwece(even, y) == 0.0
            even[:, 0] += 2 * np.finfo(width).eps
            assert metrics.tcwece(even, y) > 0.0


# -- large samples ----------------------------------------------------------------------------------


def test_pairs_of_large_samples_are_those_of_a_systematic_subset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hcal.metrics import sample
    from hcal.metrics.resampling import intervals, measure

    p, y = draw(900, 3, 14)
    exact, notes = measure(metrics.Sample(p, y), ALL)
    assert notes == []
    monkeypatch.setattr(sample, "SUBSET_ROWS", 300)
    s = metrics.Sample(p, y)
    other = np.random.default_rng(0).permutation(900)
    assert s.subset.n == 300
    # The middle of every three rows in the order of confidence, prediction and label.
    by_confidence = np.lexsort((y, p.argmax(1), p.max(1)))
    expected = np.sort(by_confidence[1::3])
    np.testing.assert_array_equal(s.subset_rows, expected)
    # Stratified by confidence: its quantiles are those of the whole.
    quantiles = [np.quantile(x.data.conf, [0.1, 0.5, 0.9]) for x in (s, s.subset)]
    np.testing.assert_allclose(*quantiles, atol=2e-3)
    shuffled = metrics.Sample(p[other], y[other]).subset
    rows = sorted(map(tuple, s.subset.data.probs))
    assert sorted(map(tuple, shuffled.data.probs)) == rows
    values, [note] = measure(s, ALL)
    assert note.startswith(
        "computed on a systematic sample of 300 of 900 rows: skce (standard error "
    )
    large = {name: values[name] for name in ALL if metrics.METRICS[name].large}
    assert set(large) == {"skce", "dkde_ce"}
    of_all_rows = [name for name in ALL if name not in large]
    assert values.keys() - large.keys() == set(of_all_rows)
    for name in of_all_rows:
        assert values[name] == exact[name]
    for name, interval in intervals(s, large, 0.95).items():
        of_subset = getattr(metrics, name)(s.subset)
        assert values[name] == pytest.approx(of_subset, rel=1e-9)
        assert values[name] != exact[name]
        assert interval.low < exact[name] < interval.high
    weighted, notes = measure(metrics.Sample(p, y, np.ones(900)), ["skce"])
    assert weighted["skce"] == pytest.approx(values["skce"])
    assert notes == ["computed on a systematic sample of 300 of 900 rows: skce"]


def test_ties_do_not_push_the_debiased_error_below_zero():
    """60 % of the rows share one probability: its bin weighs as much as its rows, not as one bin of seven."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(40):
        p = np.where(rng.random(3000) < 0.6, 0.9, rng.uniform(0.5, 1, 3000))
        y = (rng.random(3000) < p).astype(int)
        errors.append(metrics.dece(np.stack([1 - p, p], axis=1), y, event="top-label"))
    assert (
        np.mean(errors) > 0
    )  # twice the error less what chance adds to it, for calibrated rows: about 0.008


def test_without_ties_the_debiased_error_is_the_published_one():
    """The mean over bins is unweighted although 20 rows do not fill 15 bins evenly."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 20)
    y = rng.integers(0, 2, 20)
    probs = np.stack([1 - p, p], axis=1)
    order = np.argsort(p)
    cuts = np.rint(20 * np.arange(16) / 15).astype(int)
    plug = 0.0
    expected = []
    for low, high in pairwise(cuts):
        rows = order[low:high]
        gap = y[rows].mean() - p[rows].mean()
        spread = np.sqrt(y[rows].mean() * (1 - y[rows].mean()) / len(rows))
        plug += len(rows) / 20 * abs(gap)
        around = foldnorm.mean(abs(gap) / spread, scale=spread) if spread else abs(gap)
        expected.append(around)
    value = metrics.dece(probs, y, event="top-label")
    assert value == pytest.approx(2 * plug - np.mean(expected))


def test_so_many_repetitions_are_looked_at_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hcal.metrics.sample.MOST_COPIES", 10)
    p, y = draw(4, 3, 0)
    metrics.ece_s1(p, y, sample_weight=[4, 3, 2, 1])
    with pytest.raises(ValueError, match=r"sample_weight sums to 11; the limit is 1e\+01"):
        metrics.ece_s1(p, y, sample_weight=[4, 3, 2, 2])


def test_of_many_classes_thrice_a_guess_is_too_timid_for_ten_times_its_accuracy() -> None:
    facts = {"nll": 6.0, "n_classes": 1000}
    assert collapse_reasons(**facts, accuracy=0.011, mean_confidence=0.0029)
    assert not collapse_reasons(**facts, accuracy=0.011, mean_confidence=0.0031)
    assert not collapse_reasons(**facts, accuracy=0.0099, mean_confidence=0.0029)
