"""Calibration and refinement of proper scores, on data whose parts are known."""

from __future__ import annotations

import numpy as np
import pytest
from test_metrics_resampling import calibrated

from hcal import metrics
from hcal.numerics import softmax


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_parts_are_those_of_the_truth(score: str) -> None:
    q, y = calibrated(6000, 5, 0, temperature=2.0)
    p = softmax(np.log(q) / 2.0)  # the true probabilities: the best that any recalibration can reach
    best = getattr(metrics, score)(p, y)
    found = metrics.decompose(q, y, score=score)
    assert found.score == getattr(metrics, score)(q, y)
    assert found.calibration + found.refinement == pytest.approx(found.score)
    # One parameter, learned on 4800 rows: its excess score is about 1/(2·4800) in NLL.
    assert found.refinement == pytest.approx(best, abs=1e-3)
    assert found.calibration > 0.02
    honest = metrics.decompose(p, y, score=score)
    assert abs(honest.calibration) < 1e-3


def test_integer_weights_count_rows() -> None:
    q, y = calibrated(500, 3, 1, temperature=1.5)
    w = np.full(500, 3)
    assert metrics.decompose(q, y, sample_weight=w).calibration == pytest.approx(
        metrics.decompose(q, y).calibration
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"score": "accuracy"}, "score must be"), ({"folds": 1}, "folds must be an integer")],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metrics.decompose(*calibrated(20, 3, 2), **options)
