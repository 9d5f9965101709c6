"""Rows and columns that say which they are are believed, or refused with a sentence; nothing is misaligned silently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import hcal
from hcal.rows import Rows
from helpers import synthetic

pd = pytest.importorskip("pandas")

NAMES = ["ant", "bee", "cat"]
LOGITS, POSITIONS = synthetic(120, 3, seed=5)
ROWS = [f"row {number}" for number in range(120)]
SCORES = pd.DataFrame(LOGITS, columns=NAMES, index=ROWS)
PROBS = pd.DataFrame(hcal.softmax(LOGITS), columns=NAMES, index=ROWS)
LABELS = pd.Series(np.array(NAMES)[POSITIONS], index=ROWS)
PATIENTS = pd.Series(np.arange(120) // 4, index=ROWS)
CLINICS = pd.Series(np.arange(120) % 2, index=ROWS)
SICK = pd.Series(POSITIONS > 0, index=ROWS)
MODEL = LogisticRegression()
PRESENT = pd.DataFrame(np.eye(3)[POSITIONS], columns=NAMES, index=ROWS)

#: What takes a column beside the scores.
CALLS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "fit, y": (LABELS, lambda y: hcal.make_calibrator("ts").fit(SCORES, y)),
    "fit, groups": (
        PATIENTS,
        lambda groups: hcal.make_calibrator("ts").fit(SCORES, LABELS, groups=groups),
    ),
    "fit, by": (PATIENTS, lambda by: hcal.SegmentedCalibrator("ts").fit(SCORES, LABELS, by=by)),
    "fit, by in a dict": (
        PATIENTS,
        lambda by: hcal.SegmentedCalibrator("ts").fit(SCORES, LABELS, by={"clinic": by}),
    ),
    "multilabel": (PRESENT, lambda y: hcal.MultilabelCalibrator("ts").fit(SCORES, y)),
    "evaluate, y": (LABELS, lambda y: hcal.evaluate(PROBS, y, metrics=["nll"])),
    "evaluate, by": (PATIENTS, lambda by: hcal.evaluate(PROBS, LABELS, metrics=["nll"], by=by)),
    "certify, y": (LABELS, lambda y: hcal.certify(PROBS, y)),
    "certify, groups": (PATIENTS, lambda groups: hcal.certify(PROBS, LABELS, groups=groups)),
    "certify, by": (PATIENTS, lambda by: hcal.certify(PROBS, LABELS, by=by)),
    "cross_fit": (LABELS, lambda y: hcal.cross_fit("ts", SCORES, y, resamples=0)),
    "reliability": (LABELS, lambda y: hcal.reliability(PROBS, y)),
    "monitor": (LABELS, lambda y: hcal.Monitor().update(PROBS, y)),
    "abstain_below": (LABELS, lambda y: hcal.abstain_below(PROBS, y, error=0.5)),
    "evaluate, baseline": (
        PROBS,
        lambda baseline: hcal.evaluate(PROBS, LABELS, metrics=["nll"], baseline=baseline),
    ),
    "certify, baseline": (PROBS, lambda baseline: hcal.certify(PROBS, LABELS, baseline=baseline)),
    "reliability, groups": (
        PATIENTS,
        lambda groups: hcal.reliability(PROBS, LABELS, groups=groups),
    ),
    "reliability, by": (PATIENTS, lambda by: hcal.reliability(PROBS, LABELS, by=by)),
    "reliability, models": (
        PROBS,
        lambda other: hcal.reliability({"a": PROBS, "b": other}, POSITIONS),
    ),
    "clinical, y": (LABELS, lambda y: hcal.clinical(PROBS, y)),
    "clinical, groups": (PATIENTS, lambda groups: hcal.clinical(PROBS, LABELS, groups=groups)),
    "clinical, by": (CLINICS, lambda by: hcal.clinical(PROBS, LABELS, by=by)),
    "validate, y": (SICK, lambda y: hcal.validate(MODEL, SCORES, y, resamples=20)),
    "validate, groups": (
        PATIENTS,
        lambda groups: hcal.validate(MODEL, SCORES, SICK, groups=groups, resamples=20),
    ),
    "thresholds, groups": (
        PATIENTS,
        lambda groups: hcal.thresholds(PROBS, LABELS, cost=1 - np.eye(3), groups=groups),
    ),
    "estimate, by": (PATIENTS, lambda by: hcal.estimate(PROBS, by=by)),
    "drop_unlabelled": (LABELS, lambda y: hcal.drop_unlabelled(PROBS, y)),
    "nll": (LABELS, lambda y: hcal.metrics.nll(PROBS, y)),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_index_is_refused_and_an_index_that_only_counts_is_not(name: str) -> None:
    column, call = CALLS[name]
    call(column)
    call(column.reset_index(drop=True))
    call(column.to_numpy())
    with pytest.raises(ValueError, match=r"in another order: pass .*to_numpy"):
        call(column[::-1])
    with pytest.raises(ValueError, match="another index than the scores, other 0 and row 0"):
        call(column.set_axis([f"other {number}" for number in range(120)]))


@pytest.mark.parametrize(
    "columns",
    [
        [2, 0, 1],
        [2.0, 0.0, 1.0],
        ["2", "0", "1"],
        ["class_2", "class_0", "class_1"],
        ["x3", "x1", "x2"],
        ["logit_2", "logit_0", "logit_1"],
        ["p[2]", "p[0]", "p[1]"],
    ],
)
def test_columns_that_are_numbered_are_put_in_the_order_of_their_numbers(
    columns: list[Any],
) -> None:
    cal = hcal.make_calibrator("vs").fit(LOGITS, POSITIONS)
    frame = pd.DataFrame(LOGITS[:, [2, 0, 1]], columns=columns)
    np.testing.assert_array_equal(cal.predict_proba(frame), cal.predict_proba(LOGITS))
    again = hcal.make_calibrator("vs").fit(frame, POSITIONS)
    np.testing.assert_allclose(again.predict_proba(LOGITS), cal.predict_proba(LOGITS), atol=1e-9)


def test_columns_that_are_called_true_and_false_are_the_classes_1_and_0() -> None:
    logits, y = synthetic(80, 2, seed=6)
    frame = pd.DataFrame(logits[:, ::-1], columns=[True, False])
    cal = hcal.make_calibrator("platt").fit(frame, y.astype(bool))
    plain = hcal.make_calibrator("platt").fit(logits, y)
    np.testing.assert_allclose(cal.predict_proba(logits), plain.predict_proba(logits), atol=1e-9)


@pytest.mark.parametrize("dtype", ["object", "string", "string[pyarrow]", "category"])
def test_a_missing_label_of_any_type_of_text_is_refused(dtype: str) -> None:
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow")
    labels = LABELS.astype(dtype)
    labels.iloc[3] = None
    with pytest.raises(ValueError, match="no label in 1 of 120 rows, first row 3"):
        hcal.make_calibrator("ts").fit(SCORES, labels)
    assert len(hcal.drop_unlabelled(SCORES, labels)[1]) == 119


def test_what_has_no_order_or_one_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="a set has no order"):
        hcal.make_calibrator("ts").fit(LOGITS, LABELS.to_numpy(), classes=set(NAMES))
    same_name_twice = SCORES.set_axis(["ant", "ant", "cat"], axis=1)
    with pytest.raises(ValueError, match="two columns that are called 'ant'"):
        hcal.make_calibrator("ts").fit(same_name_twice, POSITIONS)


def test_sparse_scores_are_refused_with_what_to_do() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match=r"sparse array of scipy: pass its \.toarray\(\)"):
        hcal.make_calibrator("ts").fit(sparse.csr_array(LOGITS), POSITIONS)


def test_categories_are_names_and_not_positions() -> None:
    expected = hcal.make_calibrator("ts").fit(SCORES, LABELS)
    for categories in (NAMES[::-1], [*NAMES, "dog"]):
        labels = LABELS.astype(pd.CategoricalDtype(categories))
        again = hcal.make_calibrator("ts").fit(SCORES, labels)
        assert again.map_.beta == expected.map_.beta


def test_a_report_of_a_calibrator_refuses_another_kind_of_scores(tmp_path: Any) -> None:
    cal = hcal.make_calibrator("ts").fit(LOGITS, POSITIONS)
    with pytest.raises(ValueError, match="input is 'probs', but the calibrator takes 'logits'"):
        hcal.report(cal, LOGITS, POSITIONS, tmp_path / "page.html", input="probs")
    with pytest.raises(ValueError, match="pass their logarithms, because the fit"):
        cal.predict_proba(hcal.softmax(LOGITS))


def test_models_of_one_diagram_have_their_columns_in_one_order() -> None:
    turned = PROBS[["cat", "ant", "bee"]]
    for y in (POSITIONS, LABELS):
        diagram = hcal.reliability({"model": PROBS, "turned": turned}, y)
        assert diagram["model"].error == pytest.approx(diagram["turned"].error)
    renamed = PROBS.set_axis(["ant_2", "bee_2", "cat_2"], axis=1)
    assert len(hcal.reliability({"model": PROBS, "renamed": renamed}, POSITIONS)) == 2


def test_rows_of_named_classes_keep_their_names_where_a_fit_knows_none() -> None:
    logits, y = synthetic(80, 2, seed=6)
    cal = hcal.make_calibrator("platt").fit(logits, y)
    turned = Rows.of(logits[:, ::-1], input="logits", classes=[1, 0])
    rows = turned.in_order_of(cal.fit_, "logits")
    assert rows.names == (0, 1)
    np.testing.assert_array_equal(rows.scores, logits)


def test_validation_says_what_is_wrong_with_labels() -> None:
    gap = np.where(np.arange(120) == 3, np.nan, POSITIONS > 0)
    with pytest.raises(ValueError, match="y has no value in 1 of 120 rows, first at row 3"):
        hcal.validate(MODEL, SCORES, gap)
    with pytest.raises(ValueError, match=r"y must have shape \(120,\), got \(119,\)"):
        hcal.validate(MODEL, SCORES, POSITIONS[1:])
