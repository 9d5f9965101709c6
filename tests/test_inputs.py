"""Bad input gets a ValueError that names what is wrong and where: each promise of the contract is a case.

The same cases run through a calibrator's ``fit`` and ``predict_proba``, a metric, and the bare checks, so
that no door is left open.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hcal
from hcal import inputs
from helpers import synthetic

LOGITS, Y = synthetic(40, 4)
PROBS = hcal.softmax(LOGITS)


def _with(array: np.ndarray, place: tuple[int, ...], value: float) -> np.ndarray:
    changed = array.astype(np.float64).copy()
    changed[place] = value
    return changed


# -- scores ---------------------------------------------------------------------------------------

BAD_SCORES: dict[str, tuple[Any, str]] = {
    "nan": (_with(LOGITS, (3, 1), np.nan), "logits contains NaN, first at row 3, column 1"),
    "inf": (
        _with(LOGITS, (5, 2), np.inf),
        "logits contains an infinite value, first at row 5, column 2",
    ),
    "minus inf": (_with(LOGITS, (5, 2), -np.inf), "infinite value, first at row 5, column 2"),
    "empty": (np.zeros((0, 4)), r"logits is empty: shape \(0, 4\)"),
    "one class": (np.zeros((40, 1)), "at least 2 classes"),
    "three dimensions": (np.zeros((40, 4, 2)), r"shape \(N, K\).*hcal.integrations.dense"),
    "no dimension": (np.float64(1.0), r"shape \(N, K\)"),
    "ragged": ([[1.0, 2.0], [1.0]], "logits is not a rectangular array"),
    "text": (np.full((40, 4), "a"), "logits must hold real numbers"),
    "objects": (np.full((40, 4), None), "logits must hold real numbers"),
    "complex": (np.ones((40, 4), complex), "logits must hold real numbers"),
}


def test_fit_and_predict_refuse_bad_scores() -> None:
    fitted = hcal.make_calibrator("ts").fit(LOGITS, Y)
    for scores, message in (
        *BAD_SCORES.values(),
        (LOGITS[:, :3], "3 classes, but the calibrator was fitted on 4"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.predict_proba(scores)
    for scores, message in BAD_SCORES.values():
        calibrator = hcal.make_calibrator("ts")
        with pytest.raises(ValueError, match=message):
            calibrator.fit(scores, Y)
        with pytest.raises(
            ValueError, match="not fitted"
        ):  # a failed fit leaves nothing that predicts
            calibrator.predict_proba(LOGITS)


BAD_PROBS: dict[str, tuple[Any, str]] = {
    "sum": (_with(PROBS, (7, 0), 3.0), "must sum to 1 in every row .*; row 7 sums to .*say input="),
    "negative": (_with(PROBS, (2, 1), -0.5), "negative value -0.5, first at row 2, column 1"),
    "nan": (_with(PROBS, (3, 1), np.nan), "probs contains NaN, first at row 3, column 1"),
    "inf": (
        _with(PROBS, (3, 1), np.inf),
        "probs contains an infinite value, first at row 3, column 1",
    ),
    "empty": (np.zeros((0, 4)), "probs is empty"),
    "logits": (LOGITS, "negative value|must sum to 1"),
}


def test_bad_probabilities_are_refused_at_every_door() -> None:
    for probs, message in BAD_PROBS.values():
        for door in (
            lambda probs: hcal.make_calibrator("ts", input="probs").fit(probs, Y),
            lambda probs: hcal.metrics.nll(probs, Y),
            inputs.check_probs,
        ):
            with pytest.raises(ValueError, match=message):
                door(probs)


@pytest.mark.parametrize(("dtype", "slack"), [(np.float64, 5e-5), (np.float32, 5e-4)])
def test_sums_within_tolerance_are_renormalised(dtype: type, slack: float) -> None:
    checked, _ = inputs.check_probs((PROBS * (1 + slack)).astype(dtype))
    np.testing.assert_allclose(checked.sum(axis=1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="must sum to 1"):
        inputs.check_probs((PROBS * (1 + 4 * slack)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_become_the_same_logits_alone_in_a_batch_and_by_blocks(dtype: type) -> None:
    """Whether a row was divided by its sum used to depend on the other rows: two in five changed a bit."""
    logits = np.random.default_rng(0).normal(size=(700, 300)).astype(dtype)
    probs = hcal.softmax(logits * 3)
    probs[5] = 0.0
    probs[5, 2] = 1.0
    at_once = inputs.check_logits(probs, input="probs")[0]
    alone = []
    for row in range(40):
        alone.append(inputs.check_logits(probs[row : row + 1], input="probs")[0])
    assert np.array_equal(at_once[:40], np.concatenate(alone))
    log_of_zero = dtype(
        np.log(np.finfo(np.float64).tiny)
    )  # in both widths, or their maps would differ
    assert (at_once[5, 3:] == log_of_zero).all()
    probs[10:20] = 1 / 300  # top classes whose logarithm is that of an earlier class
    top = probs[10:20, 0]
    probs[10:20, 1] = np.nextafter(top, dtype(1))
    y = probs.argmax(axis=1) * (np.arange(700) % 3 > 0)
    cal = hcal.make_calibrator("ts", input="probs").fit(probs, y)
    tops = cal.predict_proba(probs).argmax(axis=1)
    assert np.array_equal(tops, probs.argmax(axis=1))


def test_two_columns_that_miss_1_by_a_rounding_are_left_alone() -> None:
    p = np.random.default_rng(0).random(1000)
    columns = np.stack([1 - p, p], axis=1)
    assert np.array_equal(inputs.check_probs(columns)[0], columns)


def test_the_first_bad_row_is_named_whatever_block_it_is_in() -> None:
    probs = np.full((3000, 100), 0.01)
    probs[[2500, 2900], 7] = [0.5, -0.25]
    with pytest.raises(ValueError, match=r"negative value -0.25, first at row 2900, column 7"):
        inputs.check_logits(probs, input="probs")
    probs[2900, 7] = 0.5
    with pytest.raises(ValueError, match=r"row 2500 sums to 1\.49"):
        inputs.check_logits(probs, input="probs")
    probs[2999, 99] = np.nan
    with pytest.raises(ValueError, match="NaN, first at row 2999, column 99"):
        inputs.check_logits(probs, input="probs")


def test_log_probs_must_be_logarithms_of_probabilities() -> None:
    with pytest.raises(
        ValueError, match="log_probs must be logarithms of rows that sum to 1; exp of row 0"
    ):
        inputs.check_logits(LOGITS, input="log_probs")
    with pytest.raises(ValueError, match="infinite value, first at row 0, column 1"):
        inputs.check_logits([[0.0, np.inf]], input="log_probs")
    with pytest.raises(ValueError, match=r"a row is -inf everywhere \(row 1\)"):
        inputs.check_logits([[0.0, -np.inf], [-np.inf, -np.inf]], input="log_probs")


def test_probability_zero_keeps_the_order_and_stays_finite() -> None:
    rows = {"probs": [0.0, 1e-300, 1.0], "log_probs": [-np.inf, -700.0, 0.0]}
    for kind, row in rows.items():
        logits, _ = inputs.check_logits([row], input=kind)  # type: ignore[arg-type]
        assert np.isfinite(logits).all()
        assert (np.diff(logits[0]) > 0).all()


def test_the_kind_of_input_is_never_guessed() -> None:
    with pytest.raises(
        ValueError, match=r"'input' .*'logits' or 'probs' or 'log_probs', got 'scores'"
    ):
        hcal.make_calibrator("ts", input="scores").fit(LOGITS, Y)


# -- labels ---------------------------------------------------------------------------------------

BAD_LABELS: dict[str, tuple[Any, str]] = {
    "too large": (np.where(np.arange(40) == 6, 4, Y), r"y must lie in 0..3; row 6 is 4"),
    "negative": (np.where(np.arange(40) == 6, -1, Y), r"y must lie in 0..3; row 6 is -1"),
    "fraction": (np.where(np.arange(40) == 6, 0.5, Y), "y must hold integers 0..K-1; row 6 is 0.5"),
    "nan": (np.where(np.arange(40) == 6, np.nan, Y), "y must hold integers 0..K-1; row 6 is nan"),
    "text": (np.full(40, "cat"), "say .*classes=\\["),
    "too few": (Y[:-1], "y has 39 labels for 40 rows"),
    "too many": (np.r_[Y, 0], "y has 41 labels for 40 rows"),
    "one-hot": (np.eye(4)[Y], "y is one-hot"),
    "several labels a row": (np.ones((40, 2)), "hcal.MultilabelCalibrator"),
    "two dimensions": (np.full((40, 2), 3), r"y must have shape \(N,\)"),
    "empty": (np.zeros(0), "y has 0 labels for 40 rows"),
}


def test_bad_labels_are_refused_at_every_door() -> None:
    for labels, message in BAD_LABELS.values():
        with pytest.raises(ValueError, match=message):
            hcal.make_calibrator("ts").fit(LOGITS, labels)
        with pytest.raises(ValueError, match=message):
            hcal.metrics.nll(PROBS, labels)


@pytest.mark.parametrize(
    "labels", [Y.astype(np.int16), Y.astype(np.float64), Y[:, None], Y.tolist()]
)
def test_integers_in_any_clothes_are_labels(labels: Any) -> None:
    np.testing.assert_array_equal(inputs.check_labels(labels, 40, 4), Y)


# -- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(39), r"sample_weight must have shape \(40,\)"),
        (np.where(np.arange(40) == 3, -1, 1), "finite and non-negative; row 3 is -1"),
        (np.where(np.arange(40) == 3, np.nan, 1), "finite and non-negative; row 3 is nan"),
        (np.zeros(40), "zero everywhere"),
        (np.where(np.arange(40) == 3, 1e13, 1), "counts rows, and row 3 is 1e"),
        (np.full(40, "a"), "sample_weight must hold real numbers"),
    ],
)
def test_bad_weights_are_refused(weight: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hcal.make_calibrator("ts").fit(LOGITS, Y, sample_weight=weight)
    with pytest.raises(ValueError, match=message):
        hcal.metrics.nll(PROBS, Y, sample_weight=weight)


# -- names ----------------------------------------------------------------------------------------


def test_unknown_names_list_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown calibrator 'tss'; valid names: .*\bts\b"):
        hcal.make_calibrator("tss")
    with pytest.raises(
        ValueError, match="'ts' has no parameter 'temperature'; valid parameters: input"
    ):
        hcal.make_calibrator("ts", temperature=2)


# -- what is legal --------------------------------------------------------------------------------


def test_an_absent_class_is_legal() -> None:
    keep = Y != 2
    probs = hcal.make_calibrator("ts").fit(LOGITS[keep], Y[keep]).predict_proba(LOGITS)
    assert probs.shape == (40, 4)


def test_a_vector_is_a_binary_score_of_class_1() -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(size=200) * 4
    rate = 1 / (1 + np.exp(-score / 2))
    y = (rng.random(200) < rate).astype(int)
    p = hcal.make_calibrator("ts").fit(score, y).predict_proba(score)
    two = np.stack([np.zeros(200), score], axis=1)
    expected = hcal.make_calibrator("ts").fit(two, y).predict_proba(two)
    np.testing.assert_array_equal(p, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_the_answer_has_the_float_width_of_the_question(dtype: type) -> None:
    calibrator = hcal.make_calibrator("ts").fit(LOGITS, Y)
    got = calibrator.predict_proba(LOGITS.astype(dtype)).dtype
    # In float16 the two largest probabilities of a row would often be equal.
    expected = {np.int32: np.float64, np.float16: np.float32}.get(dtype, dtype)
    assert got == expected


def test_the_answer_comes_back_in_the_library_of_the_question() -> None:
    pd, pl, torch = (pytest.importorskip(name) for name in ("pandas", "polars", "torch"))
    calibrator = hcal.make_calibrator("ts").fit(LOGITS, Y)
    expected = calibrator.predict_proba(LOGITS)
    names = list("abcd")
    frame = pd.DataFrame(LOGITS, columns=names, index=np.arange(40) + 7)
    got = calibrator.predict_proba(frame)
    assert list(got.columns) == names
    assert list(got.index) == list(frame.index)
    np.testing.assert_array_equal(got.to_numpy(), expected)
    probs = calibrator.predict_proba(pl.DataFrame(LOGITS, schema=names))
    np.testing.assert_array_equal(probs.to_numpy(), expected)
    tensor = calibrator.predict_proba(torch.from_numpy(LOGITS).bfloat16())
    assert tensor.dtype == torch.float32
    is_cat = Y == 0
    two = hcal.make_calibrator("ts").fit(LOGITS[:, 0], is_cat, classes=["other", "cat"])
    assert list(two.predict_proba(frame["a"]).columns) == ["other", "cat"]
    assert two.predict_proba(pl.Series(LOGITS[:, 0])).columns == ["other", "cat"]


def test_a_fit_that_makes_it_worse_warns_and_says_so() -> None:
    from hcal.methods._scaling import Temperature
    from hcal.methods.base import Calibrator, Fitted

    class Worse(Calibrator):
        name = "worse"
        title = "Worse"

        def _fit(self, rows: Any) -> Fitted:
            return Fitted(Temperature(beta=np.array(50.0)), converged=False, message="gave up")

    with pytest.warns(hcal.CalibrationWarning) as caught:
        worse = Worse().fit(LOGITS, Y)
    messages = [str(w.message) for w in caught]
    assert messages[0] == "worse: gave up"
    assert "left it worse than before" in messages[1]
    assert not worse.converged_
    assert worse.fit_.after["nll"] > worse.fit_.before["nll"]


def test_every_door_refuses_masked_entries() -> None:
    """numpy drops the mask on conversion, and the hidden values would count."""
    values = np.tile([[0.2, 0.8], [0.6, 0.4]], (20, 1))
    scores = np.ma.masked_array(values)
    y = np.ma.masked_array(np.tile([1, 0], 20))
    np.testing.assert_array_equal(
        inputs.check_probs(scores)[0], np.asarray(scores)
    )  # nothing is masked
    assert type(inputs.check_labels(y, 40, 2)) is np.ndarray
    bad_scores = scores.copy()
    bad_y = y.copy()
    bad_scores[3, 1] = bad_y[3] = np.ma.masked
    for arrays, message in (
        ((bad_scores, y), "probs has masked entries, first at row 3, column 1: leave these"),
        ((scores, bad_y), "y has masked entries, first at row 3"),
        ((scores, y, bad_y), "sample_weight has masked entries, first at row 3"),
    ):
        calls = [hcal.evaluate, hcal.metrics.nll, hcal.make_calibrator("ts", input="probs").fit]
        if len(arrays) == 2:
            calls += [hcal.reliability, _compare, _report]
        for call in calls:
            options = {} if len(arrays) == 2 else {"sample_weight": arrays[2]}
            with pytest.raises(ValueError, match=f"^{message}"):
                call(*arrays[:2], **options)


def _compare(scores: Any, y: Any) -> Any:
    return hcal.compare(scores, y, folds=2, methods=["ts"], input="probs")


def _report(scores: Any, y: Any) -> Any:
    return hcal.reporting.build_report(scores, y, input="probs")
