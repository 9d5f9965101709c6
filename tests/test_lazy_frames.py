"""A frame whose rows are not in memory is refused in one line that says what to do, at every door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sklearn.linear_model import LogisticRegression

import hcal
from hcal.integrations.sklearn import CalibratedClassifier

CAL = hcal.make_calibrator("ts")
CAL.fit([[0.0, 2.0], [1.0, 0.0]] * 4, [1, 1, 1, 0] * 2)
CLASSIFIER = LogisticRegression()
FITTED = CalibratedClassifier(CLASSIFIER, method="ts", ensemble=False, cv=2)
FITTED.fit([[0.0, 0.1], [0.2, 0.3], [1.0, 0.9], [0.8, 1.0]] * 3, [0, 1, 1, 0] * 3)
#: Each takes what is lazy in the place of scores, labels or segments.
DOORS: dict[str, Callable[[Any, Path], Any]] = {
    "predict_proba": lambda x, _: CAL.predict_proba(x),
    "fit": lambda x, _: hcal.make_calibrator("ts").fit(x, [0, 1]),
    "labels": lambda x, _: hcal.make_calibrator("ts").fit([[0.0, 1.0]], x),
    "segments": lambda x, _: hcal.evaluate([[0.1, 0.9]], [1], by=x),
    "evaluate": lambda x, _: hcal.evaluate(x, [1, 0]),
    "certify": lambda x, _: hcal.certify(x, [1, 0]),
    "report": lambda x, folder: hcal.report(None, x, [1, 0], folder / "report.html"),
    "compare": lambda x, _: hcal.compare(x, [0, 1], [[0.1, 0.2]], [0]),
    "cross_fit": lambda x, _: hcal.cross_fit("ts", x, [0, 1]),
    "reliability": lambda x, _: hcal.reliability(x, [1, 0]),
    "clinical": lambda x, _: hcal.clinical(x, [1, 0]),
    "drift": lambda x, _: hcal.drift(x, [[0.0, 1.0]]),
    "estimate": lambda x, _: hcal.estimate(x),
    "thresholds": lambda x, _: hcal.thresholds(x, [1, 0], cost={"fn": 1, "fp": 1}),
    "abstain_below": lambda x, _: hcal.abstain_below(x, [1, 0], error=0.1),
    "Monitor": lambda x, _: hcal.Monitor().update(x, [1, 0]),
    "a source without labels": lambda x, _: hcal.evaluate(CAL, x),
    "a report without labels": lambda x, folder: hcal.report(CAL, x, None, folder / "r.html"),
    "drop_unlabelled": lambda x, _: hcal.drop_unlabelled(x, [0, 1]),
    "labels that may be missing": lambda x, _: hcal.drop_unlabelled([[0.0], [1.0]], x),
    "validate": lambda x, _: hcal.validate(CLASSIFIER, x, [0, 1]),
    "validate, labels": lambda x, _: hcal.validate(CLASSIFIER, [[0.0], [1.0]], x),
    "features": lambda x, _: CalibratedClassifier(CLASSIFIER).fit(x, [0, 1]),
    "targets": lambda x, _: CalibratedClassifier(CLASSIFIER).fit([[0.0], [1.0]], x),
    "features to predict": lambda x, _: FITTED.predict_proba(x),
    "metric": lambda x, _: hcal.metrics.ece_ew(x, [1, 0]),
}


def polars_frame() -> Any:
    polars = pytest.importorskip("polars")
    return polars.LazyFrame({"a": [0.1, 0.6], "b": [0.9, 0.4]})


def duckdb_relation() -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.sql("SELECT * FROM (VALUES (0.1, 0.9), (0.6, 0.4)) t(a, b)")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (polars_frame, "lazy frame of polars, whose rows are not in memory: call .collect() first"),
        (duckdb_relation, "lazy frame of duckdb, whose rows are not in memory: call .df() first"),
    ],
)
def test_a_lazy_frame_is_refused_with_what_to_do(
    door: str, make: Callable[[], Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="is a lazy frame") as error:
        DOORS[door](make(), tmp_path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
