"""Every published value of the three golden files, and every number of small samples as it was before.

After an intended change, write ``expected.txt`` again with ``python tests/metrics/test_metrics_golden.py`` and read its
diff.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import test_metrics_oracles as small

from hcal import metrics
from hcal.metrics.clinical import clinical
from hcal.metrics.resampling import bootstrap, intervals, measure
from hcal.metrics.scores import swapped
from hcal.numerics import softmax
from helpers import GOLDEN, assert_as_before, load_task

EXPECTED = Path(__file__).with_name("expected.txt")

SETS = ("synthetic_600x7", "resnet110_c10_test_uncal", "resnet110_c10_test_div2")
PUBLISHED = (
    "ECE_ew ACE ECE_r2 dECE ECE_em KSerror MMCE KDE_ECE ECE_s_r2 ECE_s_r1 CWECE_s CWECE_a CWECE_r2 "
    "tCWECE tCWECE_k SKCE DKDE_CE NLL accuracy"
)
OURS = (
    "ece_ew ace ece_r2 dece ece_em ks mmce kde_ece ece_s2 ece_s1 cwece_s cwece_a cwece_r2 tcwece "
    "tcwece_k skce dkde_ce nll accuracy"
)
KEYS = dict(zip(PUBLISHED.split(), OURS.split(), strict=True))
BRIER = dict(zip(SETS, (0.748315, 0.110189, 0.0997070), strict=True))


def tolerance(key: str, data: str) -> float:
    # The stored values carry float32 arithmetic; the reasons are in the specification of the metrics.
    if key == "ECE_s_r2":
        return 1.5e-2 if data == "resnet110_c10_test_uncal" else 3e-4
    if key == "tCWECE_k":
        return 8e-2 if data == "synthetic_600x7" else 5e-2
    return {"MMCE": 1e-5, "KSerror": 2e-4, "dECE": 3e-4}.get(key, 3e-6)


@cache
def sample(data: str) -> metrics.Sample:
    if data == "synthetic_600x7":
        if not GOLDEN.exists():
            pytest.skip("needs ../shared/golden")
        with np.load(GOLDEN / "synthetic_600x7.npz") as f:
            logits = f["logits"].astype(np.float64)
            y = f["labels"]
    else:
        _, _, test, y = load_task("cifar10_resnet110")
        logits = test.astype(np.float64) / (2 if data.endswith("div2") else 1)
    return metrics.Sample(softmax(logits), y)


@pytest.mark.data
@pytest.mark.parametrize("data", SETS)
def test_golden_values(data: str) -> None:
    s = sample(data)
    values = json.loads((GOLDEN / f"metrics_{data}.json").read_text())["values"]
    values["tCWECE_k"] = values["tCWECE_k_over_numpy_seeds"]["mean"]
    for key, name in KEYS.items():
        value = getattr(metrics, name)(s)
        assert value == pytest.approx(values[key], rel=tolerance(key, data)), name
    assert metrics.brier(s) == pytest.approx(BRIER[data], rel=5e-6)


# -- small samples -----------------------------------------------------------------------------------


def _lines() -> Iterator[str]:
    p, y = small.sparse(120, 4, 3)
    s = metrics.Sample(p, y)
    w = np.arange(120) % 3
    values, _ = measure(s, metrics.list_metrics())
    for name, i in intervals(s, values, 0.9, resamples=30).items():
        function = metrics.get_metric(name).function
        yield f"{name} {values[name]:.6g} {function(p, y, sample_weight=w):.6g} {vars(i)}"
    yield f"{intervals(metrics.Sample(p, y, w), {'tcwece_k': 0.25}, 0.9, resamples=30)}"
    names = ["skce", "dkde_ce", "brier"]
    drawn = bootstrap([s], names, 3, np.random.default_rng(0), first_order=True)[0]
    yield f"{ {name: panel.round(8).tolist() for name, panel in drawn.items()} }"
    for events in ("class-wise", "pooled", "top-label"):
        errors = [metrics.h_error(p, y, events=events, window=size) for size in (15, 60, 200)]
        yield f"{events} {errors}"
    for name, width in (("kde_ece", 0.1), ("skce", 0.3), ("dkde_ce", 0.5)):
        yield f"{name} {getattr(metrics, name)(s, bandwidth=width):.8g}"
    for name in ("tcwece_k", "dece", "ace"):
        yield f"{name} {getattr(metrics, name)(s, bins=4):.8g}"
    for statistic in ("ks", "dece", "tcwece", "skce"):
        yield f"{metrics.calibration_test(s, statistic=statistic, resamples=39)}"
    yield f"{metrics.calibration_test(s, method='skce', resamples=39)}"
    streamed = metrics.StreamingMetrics(4)
    streamed.update(p[:50], y[:50], w[:50])
    streamed.update(p[50:], y[50:])
    yield f"{streamed.n} {streamed.mean_confidence:.8g} {streamed.result()} {streamed.bounds()}"
    p, y = small.draw(250, 2, 4)
    weight = np.arange(250) % 4
    of_brier = metrics.decompose(p, y, score="brier", folds=3, sample_weight=weight)
    parts = (metrics.decompose(p, y), of_brier)
    yield f"{parts} {metrics.sharpness(s):.8g}"
    panel = clinical(p[:, 1], y, thresholds=[0.01, 0.2, 0.7])
    yield f"{panel}"
    curve = panel.to_dict()["curve"]
    yield f"{ {name: np.round(x[::40], 6).tolist() for name, x in curve.items()} }"
    few = clinical(p[:, 1] ** 3, y, confidence=0.999)
    third = clinical(*small.draw(600, 3, 5), positive=2)
    yield f"{few} {third}"
    yield f"{swapped(p, 1 - y)} {swapped(p, y)} {swapped(p[:12], 1 - y[:12], 'sick')}"


def test_everything_is_as_it_was() -> None:
    assert_as_before(_lines(), EXPECTED)


if __name__ == "__main__":
    EXPECTED.write_text("\n".join(_lines()) + "\n", encoding="utf-8")
