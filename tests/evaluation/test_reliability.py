"""hcal.reliability: the data of reliability diagrams, their bands, and the picture."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from scipy.stats import binom

import hcal
from hcal.evaluation.curves import consistency_band
from hcal.numerics import softmax
from helpers import synthetic

mpl.use("Agg")
LOGITS, Y = synthetic(500, 4)
P = softmax(LOGITS)


@pytest.mark.parametrize("binning", ["equal-width", "equal-mass"])
def test_top_label_curve_is_its_definition(binning: str) -> None:
    curve = hcal.reliability(P, Y, bins=10, binning=binning)[0]
    conf = P.max(1)
    hit = (P.argmax(1) == Y).astype(float)
    assert curve.weight.sum() == 500
    for b in range(10):
        inside = (conf > curve.edges[b]) & (conf <= curve.edges[b + 1])
        assert curve.weight[b] == inside.sum()
        if inside.any():
            assert curve.predicted[b] == pytest.approx(conf[inside].mean())
            assert curve.observed[b] == pytest.approx(hit[inside].mean())
        else:
            empty = [curve.predicted[b], curve.observed[b], curve.low[b], curve.high[b]]
            assert np.isnan(empty).all()
    if binning == "equal-width":
        expected = hcal.metrics.ece_ew(P, Y, bins=10)
        assert curve.error == pytest.approx(expected)
    else:
        assert np.ptp(curve.weight) <= 1


def test_class_curves_are_those_of_the_class_wise_error() -> None:
    diagram = hcal.reliability(P, Y, level="class-wise")
    assert len(diagram) == 4
    mean_error = np.mean([curve.error for curve in diagram.curves])
    assert mean_error == pytest.approx(hcal.metrics.cwece_a(P, Y))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
@pytest.mark.parametrize(
    ("n", "p"), [(1, 0.3), (7, 0.5), (40, 0.02), (1000, 0.97), (25, 1.0), (3, 0.0)]
)
def test_band_is_the_binomial_quantile(n: int, p: float, level: float) -> None:
    low, high = consistency_band(np.array([p]), np.array([float(n)]), level)
    tails = [(1 - level) / 2, (1 + level) / 2]
    expected = binom.ppf(tails, n, p) / n
    assert [low[0], high[0]] == pytest.approx(expected.tolist(), abs=1e-12)


def test_bands_hold_calibrated_predictions() -> None:
    logits, y = synthetic(20000, 4, scale=1.0, seed=1)
    diagram = hcal.reliability(softmax(logits), y, level="class-wise")
    outside = np.concatenate([c.outside[c.weight > 0] for c in diagram.curves])
    # 60 bins at a nominal 5 %: more than 8 outside has a probability below 1 %.
    assert outside.sum() <= 8
    bad = hcal.reliability(P, Y)[0]
    assert bad.outside.sum() >= 3


def test_plots() -> None:
    import matplotlib.pyplot as plt

    for binning in ("corp", "smooth"):
        legend = hcal.reliability(P, Y, binning=binning).plot().get_legend()
        assert any("if calibrated" in text.get_text() for text in legend.get_texts())
    ax = hcal.reliability(P, Y).plot()
    assert ax.child_axes[0].get_xlabel() == "predicted probability"
    assert ax.get_ylabel() == "observed frequency"
    assert hcal.reliability(P, Y).plot(ax) is ax
    classes = hcal.reliability(P, Y, level="class-wise")
    figure = classes.plot()
    assert len([a for a in figure.axes if a.get_visible()]) == 4
    worst = int(np.argmax([c.error for c in classes.curves]))
    assert figure.axes[0].get_title().startswith(f"class {worst}:")
    axes = classes.plot(classes=[2, 0]).axes
    assert len([axis for axis in axes if axis.get_visible()]) == 2
    assert classes.plot(classes=[3]).get_title().startswith("class 3:")
    with pytest.raises(ValueError, match=r"classes must lie in 0..3, got 4"):
        classes.plot(classes=[4])
    with pytest.raises(ValueError, match="choose one class"):
        classes.plot(ax)
    plt.close("all")


def test_bad_options_are_named() -> None:
    for options, message in (
        ({"level": "canonical"}, "level must be"),
        ({"binning": "log"}, "binning must be one of 'equal-width', 'equal-mass', 'corp',"),
        ({"confidence": 1.0}, "confidence must lie"),
        ({"bins": 0}, "bins must be"),
        ({"resamples": 3}, "resamples must be an integer of at least 20"),
    ):
        with pytest.raises(ValueError, match=message):
            hcal.reliability(P, Y, **options)
    with pytest.raises(
        IndexError,
        match="no curve 1: its last curve is 0, of the class 1; level='class-wise' has one",
    ):
        hcal.reliability([0.2, 0.8], [0, 1], binning="corp")[1]


# -- curves without bins ----------------------------------------------------------------------------


def events(n: int, seed: int, power: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """P(class 1) and labels that follow it to some power: 1 is calibrated."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.02, 0.98, n)
    return p, (rng.random(n) < p**power).astype(int)


def test_corp_steps_are_scikit_learns_isotonic_regression() -> None:
    from sklearn.isotonic import IsotonicRegression

    p, y = events(400, 0)
    p = p.round(2)  # ties
    curve = hcal.reliability(p, y, level="class-wise", binning="corp")[1]
    fitted = IsotonicRegression().fit(p, y).predict(p)
    place = np.searchsorted(curve.edges, p, side="right") - 1
    np.testing.assert_allclose(curve.observed[place], fitted, atol=1e-12)
    assert (np.diff(curve.observed) > 0).all()
    assert curve.weight.sum() == 400
    np.testing.assert_allclose(curve.weight @ curve.predicted, p.sum())


def test_corp_parts_add_up_to_the_brier_score() -> None:
    p, y = events(500, 1, power=2)
    parts = hcal.reliability(p, y, level="class-wise", binning="corp")[1].parts
    total = parts.miscalibration - parts.discrimination + parts.uncertainty
    expected = np.mean((p - y) ** 2)
    assert total == pytest.approx(expected, rel=1e-12)
    expected = y.mean() * (1 - y.mean())
    assert parts.uncertainty == pytest.approx(expected)
    assert parts.miscalibration > 0.01
    assert parts.discrimination > 0


def test_a_weight_is_a_repetition() -> None:
    p, y = events(60, 2)
    w = np.random.default_rng(0).integers(1, 4, 60)
    for binning in ("equal-width", "corp", "smooth"):
        one = hcal.reliability(p, y, binning=binning, sample_weight=w)[0]
        repeated = np.repeat(p, w)
        two = hcal.reliability(repeated, np.repeat(y, w), binning=binning)[0]
        np.testing.assert_allclose(one.observed, two.observed, atol=1e-9)
        np.testing.assert_allclose(one.weight, two.weight)
        assert one.error == pytest.approx(two.error)


@pytest.mark.parametrize("binning", ["corp", "smooth"])
def test_bands_hold_calibrated_predictions_and_not_others(binning: str) -> None:
    def outside(power: float) -> float:
        shares = []
        for seed in range(8):
            c = hcal.reliability(*events(1500, seed, power), level="class-wise", binning=binning)[1]
            used = c.weight > 0
            shares.append(np.average(c.outside[used], weights=c.weight[used]))
        return float(np.mean(shares))

    # 5 % point by point; the mean of 8 sets of strongly dependent points has a spread of some per cent.
    assert outside(1.0) < 0.15
    assert outside(2.0) > 0.6


def test_the_smooth_curve_follows_the_truth_and_carries_smooth_ece() -> None:
    p, y = events(20_000, 3, power=2)
    curve = hcal.reliability(p, y, level="class-wise", binning="smooth")[1]
    inner = (curve.predicted > 0.2) & (curve.predicted < 0.8)
    # The kernel is as wide as the error, 0.16: it smooths p² by σ² = 0.03 and pulls at the ends.
    assert np.abs(curve.observed[inner] - curve.predicted[inner] ** 2).max() < 0.06
    expected = np.mean(p - p**2)
    assert curve.error == pytest.approx(expected, rel=0.1)
    top = hcal.reliability(p, y, level="top-label", binning="smooth")[0]
    assert top.error == hcal.metrics.smece(p, y, event="top-label")


# -- several curves in one picture ----------------------------------------------------------------------


def _rare(n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Return risks of which 3 % come true, and the events."""
    rng = np.random.default_rng(7)
    p = 1 / (1 + np.exp(-rng.normal(-4.2, 1.3, n)))
    return p, (rng.random(n) < p).astype(int)


def test_models_and_segments_are_curves_with_labels() -> None:
    p, y = events(900, 5)
    country = np.array(["FR", "DE", "IT"])[np.arange(900) % 3]
    models = {"raw": p**2, "calibrated": p}
    diagram = hcal.reliability(models, y, bins=5)
    assert [curve.label for curve in diagram.curves] == ["raw", "calibrated"]
    alone = hcal.reliability(p, y, bins=5)[0]
    np.testing.assert_array_equal(diagram["calibrated"].observed, alone.observed)
    assert diagram["calibrated"].by_chance == alone.by_chance

    both = hcal.reliability(models, y, bins=5, by=country)
    assert len(both) == 6
    german = both["raw, DE"]
    rows = country == "DE"
    german_alone = hcal.reliability(p[rows] ** 2, y[rows], bins=5)[0]
    np.testing.assert_array_equal(german.observed, german_alone.observed)
    frame = both.to_frame()
    assert set(frame["model"]) == {"raw", "calibrated"}
    assert set(frame["segment"]) == {"FR", "DE", "IT"}
    assert {"predicted", "observed", "interval_low", "interval_high"} <= set(frame.columns)
    with pytest.raises(KeyError, match="no curve of this diagram; it has raw, DE"):
        both["raw, ES"]
    with pytest.raises(ValueError, match="choose one class with level='positive'"):
        hcal.reliability(models, y, level="class-wise")
    with pytest.raises(ValueError, match="name at least one model"):
        hcal.reliability({}, y)


def test_one_picture_has_labels_colours_and_the_shares_of_rows() -> None:
    import matplotlib.pyplot as plt

    p, y = events(900, 5)
    models = {"raw": p**2, "calibrated": p}
    for binning in ("equal-width", "smooth"):
        diagram = hcal.reliability(models, y, binning=binning, resamples=20)
        axes = plt.subplots()[1]
        assert diagram.plot(axes, title="Two models", colors=["red", "green"]) is axes
        texts = [text.get_text() for text in axes.get_legend().get_texts()]
        assert [text.split(" (")[0] for text in texts] == [
            "perfectly calibrated",
            "raw",
            "calibrated",
        ]
        assert axes.get_title() == "Two models"
        assert {line.get_color() for line in axes.lines} >= {"red", "green"}
        assert len(axes.child_axes[0].patches) == 2
    only = hcal.reliability(models, y).plot(curves=["calibrated"], legend=False)
    assert only.get_title().startswith("calibrated: error")
    assert only.get_legend() is None
    nine_curves = hcal.reliability(p, y, by=np.arange(900) % 9)
    texts = [text.get_text() for text in nine_curves.plot().get_legend().get_texts()]
    assert texts[-1] == "7 of 9; curves= chooses others"
    with pytest.raises(ValueError, match="1 entries for 2 curves"):
        hcal.reliability(models, y).plot(colors=["red"])
    plt.close("all")


@pytest.mark.parametrize("binning", ["equal-width", "equal-mass"])
def test_axes_fit_rare_positives(binning: str) -> None:
    import matplotlib.pyplot as plt

    p, y = _rare()
    diagram = hcal.reliability(p, y, binning=binning)
    axes = diagram.plot()
    assert axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    assert (low, high) == axes.get_ylim()
    enough = diagram[0].weight >= 20
    points = diagram[0].predicted[enough]
    # The points of bins with enough rows use more than a third of the axis.
    assert np.ptp(np.log(points)) > np.log(high / low) / 3
    assert diagram.shares.sum() == pytest.approx(1)
    below_ten_percent = hcal.reliability(np.minimum(p, 0.09), y, binning="equal-mass")
    assert below_ten_percent.axis.high <= 0.2 or below_ten_percent.axis.log
    plt.close("all")


def test_a_dark_background_gets_light_colours() -> None:
    import matplotlib.pyplot as plt

    p, y = events(300, 5)
    diagram = hcal.reliability(p, y)
    light = {line.get_color() for line in diagram.plot().lines}
    with plt.style.context("dark_background"):
        dark = {line.get_color() for line in diagram.plot().lines}
    assert "#1d5fae" in light
    assert "#6cb0f5" in dark
    assert "#1d5fae" not in dark
    plt.close("all")


def test_intervals_of_bins_are_wilsons() -> None:
    p, y = events(700, 6)
    curve = hcal.reliability(p, y, bins=1, confidence=0.9)[0]
    rate = y.mean()
    z = 1.6448536269514722
    coefficients = [1 + z**2 / 700, -(2 * rate + z**2 / 700), rate**2]
    solved = np.roots(coefficients)
    assert [curve.interval_low[0], curve.interval_high[0]] == pytest.approx(sorted(solved))


@pytest.mark.parametrize("binning", ["equal-width", "equal-mass", "corp", "smooth"])
def test_bands_are_wider_for_rows_in_groups(binning: str) -> None:
    p, y = events(400, 7)
    groups = np.repeat(np.arange(400), 9)
    alone = hcal.reliability(p, y, binning=binning, bins=8)[0]
    copies = np.repeat(p, 9), np.repeat(y, 9)
    nine = hcal.reliability(*copies, binning=binning, bins=8)[0]
    grouped = hcal.reliability(*copies, binning=binning, bins=8, groups=groups)[0]
    # Nine copies of a row tell as much as one.
    widths = [np.nanmean(curve.high - curve.low) for curve in (alone, nine, grouped)]
    assert widths[2] == pytest.approx(widths[0], rel=0.15)
    assert widths[1] < 0.6 * widths[0]
