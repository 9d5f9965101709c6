"""hcal.reliability: the data of reliability diagrams, their bands, and the picture."""

from __future__ import annotations

import json

import matplotlib as mpl
import numpy as np
import pytest
from scipy.stats import binom

import hcal
from hcal.evaluation.diagram import consistency_band
from hcal.runtime.numerics import softmax
from helpers import synthetic

mpl.use("Agg")
LOGITS, Y = synthetic(500, 4)
P = softmax(LOGITS)


@pytest.mark.parametrize("binning", ["equal-width", "equal-mass"])
def test_top_label_curve_is_its_definition(binning: str) -> None:
    curve = hcal.reliability(P, Y, bins=10, binning=binning)[0]
    conf, hit = P.max(1), (P.argmax(1) == Y).astype(float)
    assert curve.weight.sum() == 500
    for b in range(10):
        inside = (conf > curve.edges[b]) & (conf <= curve.edges[b + 1])
        assert curve.weight[b] == inside.sum()
        if inside.any():
            assert curve.predicted[b] == pytest.approx(conf[inside].mean())
            assert curve.observed[b] == pytest.approx(hit[inside].mean())
        else:
            assert np.isnan([curve.predicted[b], curve.observed[b], curve.low[b], curve.high[b]]).all()
    if binning == "equal-width":
        assert curve.error == pytest.approx(hcal.metrics.ece_ew(P, Y, bins=10))
    else:
        assert np.ptp(curve.weight) <= 1


def test_class_curves_are_those_of_the_class_wise_error() -> None:
    diagram = hcal.reliability(P, Y, level="class-wise")
    assert len(diagram) == 4
    assert np.mean([c.error for c in diagram.curves]) == pytest.approx(hcal.metrics.cwece_a(P, Y))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
@pytest.mark.parametrize(("n", "p"), [(1, 0.3), (7, 0.5), (40, 0.02), (1000, 0.97), (25, 1.0), (3, 0.0)])
def test_band_is_the_binomial_quantile(n: int, p: float, level: float) -> None:
    low, high = consistency_band(np.array([p]), np.array([float(n)]), level)
    expected = binom.ppf([(1 - level) / 2, (1 + level) / 2], n, p) / n
    assert [low[0], high[0]] == pytest.approx(expected.tolist(), abs=1e-12)


def test_bands_hold_calibrated_predictions() -> None:
    logits, y = synthetic(20000, 4, scale=1.0, seed=1)
    curves = [c for s in range(1) for c in hcal.reliability(softmax(logits), y, level="class-wise").curves]
    outside = np.concatenate([c.outside[c.weight > 0] for c in curves])
    # 60 bins at a nominal 5 %: more than 8 outside has a probability below 1 %.
    assert outside.sum() <= 8
    bad = hcal.reliability(P, Y)[0]
    assert bad.outside.sum() >= 3


def test_weights_repeat_rows() -> None:
    w = np.random.default_rng(0).integers(0, 3, 500)
    rows = np.repeat(np.arange(500), w)
    a, b = hcal.reliability(P, Y, sample_weight=w)[0], hcal.reliability(P[rows], Y[rows])[0]
    np.testing.assert_allclose(a.observed, b.observed)
    np.testing.assert_allclose(a.weight, b.weight)


def test_data_are_plain() -> None:
    content = json.loads(json.dumps(hcal.reliability(P, Y, bins=30).to_dict()))
    assert content["level"] == "top-label"
    assert None in content["curves"][0]["observed"]


def test_plots() -> None:
    import matplotlib.pyplot as plt

    ax = hcal.reliability(P, Y).plot()
    assert ax.get_xlabel() == "predicted probability"
    assert hcal.reliability(P, Y).plot(ax) is ax
    classes = hcal.reliability(P, Y, level="class-wise")
    figure = classes.plot()
    assert len([a for a in figure.axes if a.get_visible()]) == 4
    worst = int(np.argmax([c.error for c in classes.curves]))
    assert figure.axes[0].get_title().startswith(f"class {worst}:")
    assert len([a for a in classes.plot(classes=[2, 0]).axes if a.get_visible()]) == 2
    assert classes.plot(classes=[3]).get_title().startswith("class 3:")
    with pytest.raises(ValueError, match=r"classes must lie in 0..3, got 4"):
        classes.plot(classes=[4])
    with pytest.raises(ValueError, match="choose one class"):
        classes.plot(ax)
    plt.close("all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "canonical"}, "level must be"),
        ({"binning": "log"}, "binning must be"),
        ({"ci": 1.0}, "ci must be"),
        ({"bins": 0}, "bins must be"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hcal.reliability(P, Y, **options)
