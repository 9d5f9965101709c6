"""Calibration and refinement of proper scores, on data whose parts are known."""

from __future__ import annotations

import numpy as np
import pytest
from test_metrics_resampling import calibrated

from hcal import metrics
from hcal.numerics import softmax


def test_parts_are_those_of_the_truth() -> None:
    q, y = calibrated(6000, 5, 0, temperature=2.0)
    p = softmax(np.log(q) / 2.0)  # the true probabilities: the best that any recalibration can reach
    for score in ("nll", "brier"):
        found = metrics.decompose(q, y, score=score)
        assert found.score == getattr(metrics, score)(q, y)
        assert found.calibration + found.refinement == pytest.approx(found.score)
        # One parameter, learned on 4800 rows: its excess score is about 1/(2·4800) in NLL.
        assert found.refinement == pytest.approx(getattr(metrics, score)(p, y), abs=1e-3)
        assert found.calibration > 0.02
        assert abs(metrics.decompose(p, y, score=score).calibration) < 1e-3
    weighted = metrics.decompose(q, y, sample_weight=np.full(6000, 3))
    assert weighted.calibration == pytest.approx(metrics.decompose(q, y).calibration)
    for options, message in (({"score": "accuracy"}, "score must be"), ({"folds": 1}, "folds must be an integer")):
        with pytest.raises(ValueError, match=message):
            metrics.decompose(q, y, **options)
