"""Columns that have names are taken by name, by every function that takes a frame; or refused with both lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hcal
from hcal.metrics import nll
from helpers import synthetic

pd = pytest.importorskip("pandas")

NAMES = ["ant", "bee", "cat"]
TURNED = ["cat", "ant", "bee"]
LOGITS, POSITIONS = synthetic(300, 3, seed=1)
LABELS = np.array(NAMES)[POSITIONS]
SCORES = pd.DataFrame(LOGITS, columns=NAMES)
PROBS = pd.DataFrame(hcal.softmax(LOGITS), columns=NAMES)


def numpy_of(frame: Any) -> np.ndarray:
    return np.asarray(frame.to_pandas() if hasattr(frame, "to_pandas") else frame)


@pytest.mark.parametrize("types", ["float64", "Float64", "double[pyarrow]", "float[pyarrow]"])
def test_pandas_frames_of_every_type_predict_by_name(types: str) -> None:
    pytest.importorskip("pyarrow")
    cal = hcal.make_calibrator("vs").fit(SCORES, LABELS)
    expected = cal.predict_proba(SCORES)[NAMES].to_numpy()

    turned = SCORES[TURNED].astype(types)

    np.testing.assert_allclose(cal.predict_proba(turned)[NAMES], expected, rtol=0, atol=1e-6)
    assert (cal.predict(turned) == cal.predict(SCORES)).all()


def test_a_missing_number_of_an_arrow_frame_is_refused_as_nan() -> None:
    pytest.importorskip("pyarrow")
    holed = SCORES.copy()
    holed.iloc[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN, first at row 3, column 1"):
        hcal.make_calibrator("ts").fit(holed.astype("double[pyarrow]"), LABELS)


def test_compare_takes_the_test_columns_by_name() -> None:
    tests = [SCORES, SCORES[TURNED]]
    settings = {"methods": ["vs"], "metrics": ["nll"]}
    tables = []
    for test in tests:
        fit_rows = (SCORES[:150], LABELS[:150])
        tables.append(hcal.compare(*fit_rows, test[150:], LABELS[150:], **settings))
    assert tables[0]["vs"]["nll"] == tables[1]["vs"]["nll"]


def test_cross_fit_returns_a_frame_with_the_names_of_the_classes() -> None:
    first = hcal.cross_fit("vs", SCORES, LABELS, resamples=0).probs
    second = hcal.cross_fit("vs", SCORES[TURNED], LABELS, resamples=0).probs
    np.testing.assert_allclose(second[NAMES], first, rtol=0, atol=1e-9)


def test_drift_compares_columns_of_the_same_name() -> None:
    old = SCORES[:150]
    new = SCORES[150:]
    assert hcal.drift(old, new) == hcal.drift(old, new[TURNED])
    with pytest.raises(ValueError, match=r"ant, bee, cat"):
        hcal.drift(old, new.set_axis(["x", "y", "z"], axis=1))


def test_a_monitor_takes_later_frames_by_the_names_of_the_first() -> None:
    plain = hcal.Monitor()
    plain.update(PROBS.to_numpy(), POSITIONS)
    plain.update(PROBS.to_numpy(), POSITIONS)
    named = hcal.Monitor().update(PROBS, LABELS).update(PROBS[TURNED], LABELS)
    by_number = hcal.Monitor().update(PROBS, POSITIONS).update(PROBS[TURNED], POSITIONS)
    monitor = hcal.Monitor(classes=NAMES).update(PROBS[TURNED], LABELS)

    assert named.log_evidence == plain.log_evidence
    assert by_number.log_evidence == plain.log_evidence
    assert monitor.log_evidence == hcal.Monitor().update(PROBS.to_numpy(), POSITIONS).log_evidence


def test_metrics_and_diagrams_read_names_of_columns() -> None:
    expected = nll(PROBS.to_numpy(), POSITIONS)
    assert nll(PROBS[TURNED], LABELS) == pytest.approx(expected)
    numbered = PROBS.set_axis([0, 1, 2], axis=1)
    expected = nll(numbered, POSITIONS)
    assert nll(numbered[[2, 0, 1]], POSITIONS) == pytest.approx(expected)

    first = hcal.reliability(PROBS, LABELS, level="class-wise", classes=NAMES).to_dict()
    second = hcal.reliability(PROBS[TURNED], LABELS, level="class-wise", classes=NAMES).to_dict()
    assert first == second


def test_the_baseline_of_an_evaluation_is_taken_by_name() -> None:
    other = PROBS * 0.5 + 1 / 6
    first = hcal.evaluate(PROBS, LABELS, baseline=other, metrics=["nll"])
    second = hcal.evaluate(PROBS, LABELS, baseline=other[TURNED], metrics=["nll"])
    assert first.to_json() == second.to_json()


def test_rows_whose_index_has_another_order_are_refused() -> None:
    labels = pd.Series(POSITIONS)
    with pytest.raises(ValueError, match="index of the scores in another order"):
        nll(PROBS, labels.sample(frac=1, random_state=0))


def test_integer_names_of_classes_are_names_everywhere() -> None:
    """Names 1 and 0 say that the first column is class 1; they were taken for positions by tests and proofs."""
    probs = hcal.softmax(synthetic(400, 2, seed=3)[0])
    y = synthetic(400, 2, seed=3)[1]
    named = {"classes": ["b", "a"]}
    numbered = {"classes": [1, 0]}
    turned = np.array([1, 0])[y]
    for options in ({"test": True, "metrics": ["ece_ew"]}, {"by": np.arange(400) % 2}):
        labels = np.array(["b", "a"])[y]
        text = hcal.evaluate(probs, labels, positive="a", **named, **options)
        number = hcal.evaluate(probs, turned, positive=0, **numbered, **options)
        assert number["ece_ew"] == text["ece_ew"]
        assert number.certificate is not None
        assert text.certificate is not None
        assert number.certificate.smooth == text.certificate.smooth
        assert number.certificate.headline.observed == text.certificate.headline.observed
    default = hcal.certify(probs, turned, **numbered)
    assert default.headline.observed == pytest.approx(np.mean(y == 1))
    with pytest.raises(ValueError, match="positive must be one of 3, 7, got 1"):
        hcal.evaluate(probs, np.array([3, 7])[y], classes=[3, 7], positive=1)
